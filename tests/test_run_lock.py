"""A run directory has one owner: others are refused, a dead one's lock is taken over."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from absl.testing import parameterized
from transformers import TrainerCallback

from t5suite import FineTuner, load_task
from t5suite.runs.lock import LOCK_FILE, RunLock, owner_record
from t5suite.testing import TINY_T5, exits_with

OWNER = """
import sys, time
from t5suite.runs.lock import RunLock
with RunLock(sys.argv[1]).acquire("their-run"):
    print("ready", flush=True)
    sys.stdin.readline()
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}


@contextlib.contextmanager
def owner_of(directory, **environment):
    """Another process that owns the directory until its standard input ends."""
    command = [sys.executable, "-c", OWNER, str(directory)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, env={**ENVIRONMENT, **environment}, text=True, **pipes)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate()


def folder() -> Path:
    return Path(tempfile.mkdtemp()) / "runs" / "new"


def without_locks(descriptor, *_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


class RunLockTest(parameterized.TestCase):
    def test_another_process_is_refused_and_told_by_whom(self):
        directory = folder()
        with owner_of(directory) as owner:
            with exits_with(78) as caught:
                RunLock(directory).acquire()
            message = str(caught.exception)
            for part in (str(directory), "run their-run", os.uname().nodename, f"process {owner.pid}", "since 20"):
                self.assertIn(part, message)
            with exits_with(78):  # to be refused takes nothing from the owner
                RunLock(directory).acquire()
        with RunLock(directory).acquire("ours"):
            self.assertEqual(json.loads((directory / LOCK_FILE).read_text())["run_id"], "ours")

    @parameterized.parameters(signal.SIGKILL, signal.SIGTERM)
    def test_a_dead_owner_s_lock_is_taken_over_and_said(self, number):
        directory = folder()
        with owner_of(directory) as owner:
            owner.send_signal(number)
            owner.wait()
            with self.assertLogs("t5suite.runs.lock", logging.INFO) as logs, RunLock(directory).acquire():
                self.assertIn("the former owner, run their-run (", logs.output[0])

    def test_the_same_process_is_refused_too_until_it_releases(self):
        directory = folder()
        lock = RunLock(directory).acquire()
        link = Path(tempfile.mkdtemp()) / "link"
        link.symlink_to(directory)
        for name in (directory, link):
            with exits_with(78, "in use by this process already"):
                RunLock(name).acquire()
        self.assertFalse(can_lock(directory))  # to be refused has not dropped the first one's lock
        lock.release()
        lock.release()
        with RunLock(directory).acquire():
            self.assertFalse(can_lock(directory))
        self.assertTrue(can_lock(directory))

    def test_a_forked_child_neither_owns_nor_releases(self):
        directory = folder()
        with RunLock(directory).acquire("ours") as lock:
            pid = os.fork()
            if pid == 0:
                code = 0
                try:
                    lock.release()
                    with exits_with(78):
                        RunLock(directory).acquire()
                except AssertionError:
                    code = 1
                finally:
                    os._exit(code)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            self.assertEqual(json.loads((directory / LOCK_FILE).read_bytes())["run_id"], "ours")
        self.assertEqual((directory / LOCK_FILE).read_bytes(), b"")

    def test_a_malformed_record_is_no_crash_and_does_not_hide_the_owner(self):
        directory = folder()
        directory.mkdir(parents=True)
        for content in (b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\x00" * 900, b"null", b'{"pid": 1} tail'):
            (directory / LOCK_FILE).write_bytes(content)
            with RunLock(directory).acquire("3fa94c10"):
                self.assertEqual(json.loads((directory / LOCK_FILE).read_bytes())["run_id"], "3fa94c10")
        with owner_of(directory):
            (directory / LOCK_FILE).write_bytes(b"{")
            with exits_with(78, "in use by an unknown process"):
                RunLock(directory).acquire()

    def test_a_link_in_the_file_s_place_is_not_followed(self):
        directory, victim = folder(), Path(tempfile.mkdtemp()) / "precious"
        victim.write_text("precious")
        directory.mkdir(parents=True)
        (directory / LOCK_FILE).symlink_to(victim)
        with self.assertRaises(OSError):
            RunLock(directory).acquire()
        self.assertEqual(victim.read_text(), "precious")

    def test_a_lock_file_that_went_with_its_directory_is_not_the_directory_s(self):
        directory, take = folder(), RunLock._take

        def too_late(lock):
            if lock is late and not lock.path.with_name("once").exists():
                lock.path.unlink()  # between opening and locking, a refused run removes its directory
                lock.path.with_name("once").touch()
            return take(lock)

        late = RunLock(directory)
        with mock.patch.object(RunLock, "_take", too_late), late.acquire():
            self.assertEqual(os.fstat(late._descriptor).st_ino, (directory / LOCK_FILE).stat().st_ino)

    def test_a_requeued_job_waits_for_its_former_self(self):
        """An NFS server keeps the locks of a node that has died for a while."""
        directory = folder()
        with owner_of(directory, SLURM_JOB_ID="99") as owner, mock.patch.object(time, "sleep") as sleep:
            sleep.side_effect = lambda _: (owner.kill(), owner.wait())
            requeued = {"SLURM_JOB_ID": "99", "SLURM_RESTART_COUNT": "1"}
            with mock.patch.dict(os.environ, requeued), RunLock(directory).acquire():
                self.assertEqual(sleep.call_count, 1)


class Fails(TrainerCallback):
    """Ends a run before its first step, after it has written some files."""

    def __init__(self, directory, names, fail):
        self.directory, self.names, self.fail = directory, names, fail

    def on_train_begin(self, args, state, control, **kwargs):
        for name in self.names:
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_text("x")
        self.fail()


def bad_configuration():
    load_task("glue", "rtee")


def bug():
    raise RuntimeError("a bug")


class OwnedTest(parameterized.TestCase):
    """What a run leaves behind that is refused."""

    def refuse(self, directory, names=(), fail=bad_configuration, **changes):
        tuner = FineTuner(
            data="mini/sentiment", config_overrides=TINY_T5, from_scratch=True, use_cpu=True, no_eval=True, quiet=True,
            eval_strategy="no", callbacks=Fails(directory, names, fail), output_dir=str(directory), **changes,
        )  # fmt: skip
        with exits_with(78) if fail is bad_configuration else self.assertRaises(RuntimeError):
            tuner.train()

    def test_it_leaves_nothing_of_what_it_made(self):
        directory = folder()
        self.refuse(directory, ["corpus/train/build.json", ".half.tmp"])
        self.assertFalse(directory.parent.exists())
        self.assertTrue(directory.parent.parent.is_dir())
        (directory / ".git").mkdir(parents=True)
        self.refuse(directory)
        self.assertEqual(os.listdir(directory), [".git"])

    @parameterized.parameters("metrics.jsonl", "checkpoint-2/x", "results.json", "corpus/train/corpus.json")
    def test_what_is_worth_keeping_stays(self, name):
        directory = folder()
        self.refuse(directory, [name])
        self.assertTrue((directory / name).is_file())
        self.assertEqual(json.loads((directory / "manifest.json").read_text())["status"], "failed")

    def test_other_ends_leave_their_logs(self):
        directory = folder()
        self.refuse(directory, fail=bug)
        self.assertTrue((directory / "logs" / "rank-0.log").is_file())
        self.refuse(directory)  # it goes on with that run
        self.assertTrue((directory / "logs" / "rank-0.log").is_file())

    def test_a_directory_of_another_s_is_left_as_it_is(self):
        directory = folder()
        with owner_of(directory):
            before = sorted(os.listdir(directory))
            self.refuse(directory, fail=bad_configuration)
            self.assertEqual(sorted(os.listdir(directory)), before)


class WithoutLocksTest(parameterized.TestCase):
    """File systems that know no locks: the record alone tells."""

    def setUp(self):
        super().setUp()
        self.directory = folder()
        self.enter_context(mock.patch.object(fcntl, "lockf", without_locks))

    def acquire(self, record=None):
        self.directory.mkdir(parents=True, exist_ok=True)
        if record is not None:
            (self.directory / LOCK_FILE).write_text(json.dumps(record))
        with self.assertLogs("t5suite.runs.lock", logging.WARNING):
            return RunLock(self.directory).acquire("ours")

    def test_a_live_owner_is_refused(self):
        with owner_of(self.directory), exits_with(78, "run their-run"):
            self.acquire()

    def test_a_dead_owner_s_is_taken_and_so_is_one_that_was_given_back(self):
        with owner_of(self.directory) as owner:
            owner.kill()
            owner.wait()
            self.acquire().release()
        self.acquire().release()
        # A number that another process has now is not the owner.
        self.acquire({**owner_record("old"), "pid": os.getppid(), "process_started": 1}).release()

    @parameterized.parameters({"host": "elsewhere"}, {"boot": "another"})
    def test_an_owner_elsewhere_cannot_be_looked_at(self, **changes):
        with exits_with(78, f"delete .*{LOCK_FILE}"):
            self.acquire({**owner_record("old"), **changes, "pid": 2**22})

    def test_a_job_before_it_was_requeued_has_ended(self):
        record = {**owner_record("old"), "host": "elsewhere", "slurm_job": "99", "slurm_restarts": 0}
        with mock.patch.dict(os.environ, {"SLURM_JOB_ID": "99", "SLURM_RESTART_COUNT": "1"}):
            self.acquire(record).release()
        with mock.patch.dict(os.environ, {"SLURM_JOB_ID": "99"}), exits_with(78):
            self.acquire(record)


def can_lock(directory) -> bool:
    """Whether a process that is not this one could lock the directory."""
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", code, str(directory / LOCK_FILE)]
    complaint = subprocess.run(command, stderr=subprocess.PIPE).stderr
    assert not complaint or b"BlockingIOError" in complaint, complaint
    return not complaint
