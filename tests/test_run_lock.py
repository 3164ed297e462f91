"""A run directory has one owner: others are refused, a dead one's lock is taken over; a run without a name finds its own."""

import contextlib
import errno
import fcntl
import functools
import io
import json
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from absl.testing import parameterized
from support import changed_trainer
from transformers import TrainerCallback

import fine_tune_t5
from t5suite import FineTuner, load_task
from t5suite.base.programs import run_command
from t5suite.commands.looking_ahead import look_ahead
from t5suite.runs import opening
from t5suite.runs.choosing import directory_for
from t5suite.runs.directory import read_manifest
from t5suite.runs.lock import LOCK_FILE, RunLock, owner_record
from t5suite.runs.public_record import public_manifest
from t5suite.testing import (
    TINY_T5,
    cli_output,
    exits_with,
    load_own_rows,
    make_task,
    read_rows,
    save_model,
    tiny_tokenizer,
    write_rows,
)
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.run_directory import (
    choose_output_dir,
    follow_data_seed,
    note_tokenizer,
    run_directory,
    take_directory,
)

OWNER = """
import sys, time
from t5suite.runs.lock import RunLock
with RunLock(sys.argv[1]).acquire("their-run"):
    print("ready", flush=True)
    sys.stdin.readline()
"""
CHOSEN_BY = {
    "benchmark": "glue",
    "dataset_name": "rte",
    "train_file": None,
    "model_name_or_path": "t5-small",
    "objective": "ul2",
    "seed": 1,
    "learning_rate": 1e-3,
    "max_steps": 10,
}
OTHERS = {
    "benchmark": "super_glue",
    "dataset_name": "cb",
    "train_file": "reviews.csv",
    "model_name_or_path": "t5-base",
    "objective": "prefix_lm",
    "seed": 2,
}
ROWS = [{"text": f"{mood} shoes, pair {number}", "mood": mood} for number in range(20) for mood in ("bad", "good")]
ROW_FLAGS = {
    "train_file": "rows.tsv",
    "text_column": "text",
    "target_column": "mood",
    "labels": "bad,good",
    "model_name_or_path": "tiny",
    "use_cpu": True,
    "max_steps": 1,
    "seed": 5,
    "validation_split": 0.2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "eval_method": "score",
    "max_eval_samples": 2,
    "logging_steps": 1,
}
TRAINED_ON = "trained on some of these rows"
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


def write_files(directory, names) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("x")


class IsRefused(TrainerCallback):
    """Ends a run before its first step, after it has written some files."""

    def __init__(self, directory, names):
        self.directory, self.names = directory, names

    def on_train_begin(self, args, state, control, **kwargs):
        write_files(self.directory, self.names)
        bad_configuration()


def bad_configuration():
    load_task("glue", "rtee")


def bug():
    raise RuntimeError("a bug")


class OwnedTest(parameterized.TestCase):
    """What a run leaves behind that is refused."""

    def refuse(self, directory, names=(), fail=bad_configuration):
        """A run that writes these files and fails, by what all runs are begun and ended with."""
        refused = exits_with(78) if fail is bad_configuration else self.assertRaises(RuntimeError)
        with refused, run_directory(arguments(output_dir=str(directory)), dict(CHOSEN_BY), [], "auto"):
            write_files(directory, names)
            fail()

    def test_a_fine_tuning_leaves_nothing_of_what_it_made(self):
        directory = folder()
        callback = IsRefused(directory, ["corpus/train/build.json", ".half.tmp"])
        tuner = FineTuner(
            data="mini/sentiment", config_overrides=TINY_T5, from_scratch=True, use_cpu=True, no_eval=True, quiet=True,
            eval_strategy="no", max_train_samples=8, callbacks=callback, output_dir=str(directory),
        )  # fmt: skip
        with exits_with(78, "rtee"):
            tuner.train()
        self.assertFalse(directory.parent.exists())
        self.assertTrue(directory.parent.parent.is_dir())

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

    def test_a_directory_in_which_another_process_has_started_in_the_meantime_is_given_back(self):
        directory = folder()
        run = opening.open_run(directory, {"seed": 1})
        opening.open_run(directory, {"seed": 1}).update()
        before = (directory / "manifest.json").read_bytes()
        lock = RunLock(directory)
        with exits_with(78, f"{directory}: another process has started a run there in the meantime"):
            take_directory(run, lock)
        self.assertFalse(lock.held)
        self.assertEqual((directory / "manifest.json").read_bytes(), before)
        RunLock(directory).acquire("next").release()

    def test_a_run_that_began_with_another_tokenizer_says_what_differs(self):
        run = opening.open_run(folder(), {"seed": 1})
        run.directory.mkdir(parents=True)
        tokenizer = tiny_tokenizer()
        note_tokenizer(run, tokenizer)
        note_tokenizer(run, tokenizer)
        noted = read_manifest(run.directory)["tokenizer"]
        self.assertEqual(noted["pieces"], len(tokenizer))
        tokenizer.add_tokens(["<more>"])
        note_tokenizer(run, tokenizer)
        longer = len(tokenizer)
        with exits_with(78, f"it had {longer} pieces, and this one has {longer - 1}.*another run with --output_dir"):
            note_tokenizer(run, tiny_tokenizer())

    def test_the_order_follows_the_data_seed_where_one_is_given_be_it_zero(self):
        seeds = [SuiteTrainingArguments(seed=42, data_seed=seed, use_cpu=True).order_seed for seed in (None, 0, 7)]
        self.assertEqual(seeds, [42, 0, 7])

    def test_a_run_of_an_earlier_version_keeps_its_order_where_data_seed_had_no_effect(self):
        settings = {"seed": 42, "data_seed": 7}
        directory = folder()
        new, args = opening.open_run(directory, settings), SuiteTrainingArguments(data_seed=7, use_cpu=True)
        follow_data_seed(new, args)
        self.assertEqual(args.order_seed, 7)
        again = opening.open_run(directory, settings)
        follow_data_seed(again, args)
        self.assertEqual((again.resumed, args.order_seed), (True, 7))
        del again.manifest["follows_data_seed"]
        again.update()
        for _ in range(2):
            earlier = opening.open_run(directory, settings)
            with self.assertLogs("t5suite", "WARNING"):
                follow_data_seed(earlier, args)
            self.assertEqual(args.order_seed, 42)
        for _ in range(2):
            allowed = opening.open_run(directory, {"seed": 42, "data_seed": 8}, allow_changed="data_seed")
            args.data_seed = 8
            follow_data_seed(allowed, args)
            self.assertEqual(args.order_seed, 8)

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


def arguments(**flags) -> SimpleNamespace:
    """What opening a run reads of the training arguments."""
    defaults = {"output_dir": "runs", "extend": False, "allow_changed": None, "overwrite_output_dir": False}
    return SimpleNamespace(**{**defaults, "process_index": 0, **flags})


def begun_run(directory, **changes) -> None:
    """A run that has begun with these settings."""
    manifest = {"run_id": "3fa94c10", "settings": {**CHOSEN_BY, **changes}, "status": "running"}
    Path(directory).mkdir(parents=True)
    (Path(directory) / "manifest.json").write_text(json.dumps(manifest))


def start_together(seed: int, barrier, directories) -> None:
    """A process that starts a run of its own when the others do."""
    settings = {**CHOSEN_BY, "seed": seed}
    args = arguments()
    choose_output_dir(args, settings, "auto", "runs/rte")
    barrier.wait(60)
    with run_directory(args, settings, [], "auto", "runs/rte") as run:
        directories.put((seed, str(run.directory)))
        barrier.wait(60)


class InFolderTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(contextlib.chdir(tempfile.mkdtemp()))
        variables = {
            name: value for name, value in os.environ.items() if name not in ("WANDB_RUN_ID", "T5SUITE_RUN_DIR")
        }
        self.enter_context(mock.patch.dict(os.environ, variables, clear=True))


class DirectoryTest(InFolderTest):
    def test_the_first_run_has_the_name_itself_and_no_directory_is_made(self):
        self.assertEqual(directory_for("runs/rte", CHOSEN_BY), "runs/rte")
        self.assertFalse(Path("runs").exists())

    @parameterized.parameters(*OTHERS)
    def test_other_data_another_model_seed_or_objective_get_the_next_free_one(self, name):
        begun_run("runs/rte")
        other = {**CHOSEN_BY, name: OTHERS[name]}
        self.assertEqual(directory_for("runs/rte", other), "runs/rte-2")
        begun_run("runs/rte-2", **{name: OTHERS[name]})
        self.assertEqual(directory_for("runs/rte", other), "runs/rte-2")
        self.assertEqual(directory_for("runs/rte", CHOSEN_BY), "runs/rte")
        self.assertEqual(directory_for("runs/rte", {**CHOSEN_BY, "seed": 7}), "runs/rte-3")

    @parameterized.parameters(
        "data_dir", "data_format", "hub_path", "hub_name", "train_dir", "validation_file", "test_file", "train_corpus",
        "text_column", "text_column_name", "target_column", "source_id", "target_id", "model_revision", "config_name",
        "tokenizer_name",
    )  # fmt: skip
    def test_so_do_other_files_and_columns_of_rows_and_other_parts_of_a_model(self, name):
        begun_run("runs/rte", **{name: "a"})
        self.assertEqual(directory_for("runs/rte", {**CHOSEN_BY, name: "b"}), "runs/rte-2")
        self.assertEqual(directory_for("runs/rte", {**CHOSEN_BY, name: "a"}), "runs/rte")

    @parameterized.parameters({"learning_rate": 1e-4}, {"max_steps": 20})
    def test_any_other_setting_stays_where_the_run_is(self, **changes):
        begun_run("runs/rte")
        self.assertEqual(directory_for("runs/rte", {**CHOSEN_BY, **changes}), "runs/rte")

    def test_minus_one_is_no_number_of_steps_neither_a_smaller_nor_a_larger_one(self):
        begun_run("runs/epochs", max_steps=-1, num_train_epochs=3.0)
        with exits_with(78, "max_steps -1 there, 20 here"):
            opening.open_run("runs/epochs", {**CHOSEN_BY, "max_steps": 20, "num_train_epochs": 3.0}, is_default=True)
        begun_run("runs/steps", num_train_epochs=3.0)
        of_epochs = {**CHOSEN_BY, "max_steps": -1, "num_train_epochs": 5.0}
        longer = opening.open_run("runs/steps", of_epochs, extend=True)
        self.assertEqual(longer.changed, {"max_steps": (10, -1), "num_train_epochs": (3.0, 5.0)})

    def test_a_run_of_epochs_is_not_made_longer_by_fewer_updates_than_it_had(self):
        of_epochs, of_steps = {"max_steps": -1, "num_train_epochs": 3.0}, {**CHOSEN_BY, "num_train_epochs": 3.0}
        begun_run("runs/epochs", **of_epochs)
        path = Path("runs/epochs/manifest.json")
        before = json.dumps({**json.loads(path.read_text()), "status": "finished", "total_steps": 600})
        path.write_text(before)
        with exits_with(78, "--extend: --max_steps 500 is less than the 600 updates that the run had"):
            opening.open_run("runs/epochs", {**of_steps, "max_steps": 500}, extend=True)
        self.assertEqual(path.read_text(), before)
        longer = opening.open_run("runs/epochs", {**of_steps, "max_steps": 700}, extend=True)
        self.assertEqual(longer.changed, {"max_steps": (-1, 700)})

    def test_a_run_that_goes_on_has_the_command_and_the_settings_of_its_last_start(self):
        begun_run("runs/rte", share_rows=True, per_device_train_batch_size=32)
        withdrawn = {**CHOSEN_BY, "share_rows": False, "per_device_train_batch_size": 16}
        same = opening.open_run("runs/rte", withdrawn, argv=["--seed", "1"])
        self.assertEqual((same.changed, same.manifest["settings"]), ({}, withdrawn))
        self.assertEqual(same.manifest["command"], [sys.argv[0], "--seed", "1"])
        words = ["--max_steps", "20", "--extend", "--hub_token", "hf_x"]
        longer = opening.open_run("runs/rte", {**CHOSEN_BY, "max_steps": 20}, argv=words, extend=True)
        self.assertEqual(longer.manifest["command"], [sys.argv[0], *words[:-1], "***"])
        self.assertEqual(longer.manifest["working_directory"], os.getcwd())

    def test_a_run_around_the_current_directory_is_not_moved_aside(self):
        begun_run("runs/rte")
        Path("runs/rte/notes").mkdir()
        other = {**CHOSEN_BY, "seed": 2}
        for start, output_dir in (("runs/rte", "."), ("runs/rte/notes", "..")):
            with contextlib.chdir(start), exits_with(78, "the current directory is in the run's directory"):
                opening.open_run(output_dir, other, overwrite=True)
        self.assertEqual(os.listdir("runs"), ["rte"])
        opening.open_run("runs/rte", other, overwrite=True)
        self.assertEqual(os.listdir("runs"), ["rte.old-1"])

    def test_a_run_that_failed_before_its_first_step_starts_again_with_another_model_and_data(self):
        begun_run("runs/rte", seed=2)
        path = Path("runs/rte/manifest.json")
        noted = {name: {"then": 1} for name in ("data", "tokenizer", "teacher", "libraries", "hub")}
        path.write_text(json.dumps({**json.loads(path.read_text()), **noted, "status": "failed"}))
        for trace in (Path("runs/rte/metrics.jsonl"), Path("runs/rte/checkpoint-1")):
            trace.touch() if trace.suffix else trace.mkdir()
            with exits_with(78, "seed 2 there, 1 here"):
                opening.open_run("runs/rte", CHOSEN_BY)
            trace.unlink() if trace.suffix else trace.rmdir()
        run = opening.open_run("runs/rte", CHOSEN_BY)
        self.assertEqual((run.resumed, run.run_id, run.manifest["settings"]), (True, "3fa94c10", CHOSEN_BY))
        self.assertEqual([run.manifest.get(name) for name in noted if run.manifest.get(name) == noted[name]], [])

    def test_a_change_that_is_allowed_stays_where_the_run_is(self):
        begun_run("runs/rte")
        self.assertEqual(directory_for("runs/rte", {**CHOSEN_BY, "seed": 2}, allowed=["seed"]), "runs/rte")

    def test_a_new_run_of_the_same_settings_gets_a_free_one(self):
        begun_run("runs/rte")
        begun_run("runs/rte-2", seed=2)
        self.assertEqual(directory_for("runs/rte", CHOSEN_BY, need_new=True), "runs/rte-3")

    def test_a_requeued_job_takes_the_run_that_it_began_with_all_of_these_settings(self):
        of_job = {"slurm_job": "7", "slurm_restarts": 0}
        for directory, rate in (("runs/rte", 1e-3), ("runs/rte-2", 1e-4)):
            begun_run(directory, learning_rate=rate)
            path = Path(directory) / "manifest.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **of_job}))
        settings = {**CHOSEN_BY, "learning_rate": 1e-3}
        with mock.patch.dict(os.environ, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}):
            for changes, directory in (
                ({}, "rte"), ({"learning_rate": 1e-4}, "rte-2"), ({"learning_rate": 1e-2}, "rte-3"), ({"max_steps": 20}, "rte-3")
            ):  # fmt: skip
                self.assertEqual(directory_for("runs/rte", {**settings, **changes}, need_new=True), f"runs/{directory}")
            self.assertTrue(opening.open_run("runs/rte", settings, need_new=True).resumed)
            with exits_with(78, "--resume none needs a new --output_dir"):
                opening.open_run("runs/rte-2", settings, need_new=True)
            longer = {**settings, "max_steps": 20}
            opening.open_run("runs/rte", longer, extend=True).update()
            self.assertEqual(
                directory_for("runs/rte", settings, need_new=True), "runs/rte", "as a program's first train()"
            )

    def test_what_a_run_in_a_slurm_job_publishes_does_not_tell_of_the_job(self):
        outside = opening.open_run("runs/outside", CHOSEN_BY).manifest
        with mock.patch.dict(os.environ, {"SLURM_JOB_ID": "7"}):
            inside = opening.open_run("runs/inside", CHOSEN_BY).manifest
        self.assertEqual(inside.keys() - outside.keys(), {"slurm_job", "slurm_restarts"})
        self.assertEqual(public_manifest(inside).keys(), public_manifest(outside).keys())

    def test_what_a_run_read_from_the_hub_is_that_of_a_requeued_job_s_own_start_alone(self):
        begun_run("runs/rte")
        path = Path("runs/rte/manifest.json")
        hub = {"models": {"t5-small": {"commit": "1"}}}
        path.write_text(json.dumps({**json.loads(path.read_text()), "hub": hub, "slurm_job": "7", "slurm_restarts": 0}))
        for job, restarts, resume, reads in (
            ("7", "1", "none", hub), ("7", "0", "none", {}), ("8", "1", "none", {}), ("8", "1", "auto", hub)
        ):  # fmt: skip
            with mock.patch.dict(os.environ, {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": restarts}):
                self.assertEqual(opening.hub_before("runs/rte", resume, False), reads, (job, restarts, resume))

    def test_the_log_says_which_and_why(self):
        begun_run("runs/rte")
        with self.assertLogs("t5suite", "INFO") as logs:
            directory_for("runs/rte", {**CHOSEN_BY, "seed": 2})
        self.assertRegex(logs.output[0], "runs/rte .*seed 1 there, 2 here.* runs/rte-2")

    def test_a_directory_that_another_run_takes_in_the_meantime_is_left_to_it(self):
        first, second = arguments(), arguments()
        settings = {**CHOSEN_BY, "seed": 2}
        choose_output_dir(first, dict(CHOSEN_BY), "auto", "runs/rte")
        choose_output_dir(second, settings, "auto", "runs/rte")
        self.assertEqual(first.output_dir, second.output_dir)
        with run_directory(first, dict(CHOSEN_BY), [], "auto", "runs/rte") as run:
            self.assertEqual(str(run.directory), "runs/rte")
            with run_directory(second, settings, [], "auto", "runs/rte") as other:
                self.assertEqual((str(other.directory), second.output_dir), ("runs/rte-2", "runs/rte-2"))
            same = arguments(output_dir="runs/rte")
            with exits_with(78, "in use"), run_directory(same, dict(CHOSEN_BY), [], "auto", "runs/rte"):
                pass

    def test_only_a_process_that_is_starting_is_waited_for(self):
        Path("runs/rte").mkdir(parents=True)
        Path("runs/rte/notes.txt").touch()
        settings = {**CHOSEN_BY, "seed": 2}
        second = arguments()
        begun_run("begun")
        choose_output_dir(second, settings, "auto", "runs/rte")
        nobody_is_waited_for = mock.patch.object(time, "sleep", side_effect=AssertionError)
        refused = exits_with(78, "runs/rte: not empty")
        with nobody_is_waited_for, refused, run_directory(second, settings, [], "auto", "runs/rte"):
            pass
        Path("runs/rte/notes.txt").unlink()
        begin = mock.Mock(side_effect=lambda _: shutil.copy("begun/manifest.json", "runs/rte"))
        waiting = mock.patch.object(time, "sleep", begin)
        with owner_of("runs/rte"), waiting, run_directory(second, settings, [], "auto", "runs/rte") as run:
            self.assertEqual(str(run.directory), "runs/rte-2")
        begin.assert_called()

    def test_processes_that_start_together_get_one_each(self):
        processes = multiprocessing.get_context("fork")
        barrier, directories = processes.Barrier(3), processes.Queue()
        starts = [processes.Process(target=start_together, args=(seed, barrier, directories)) for seed in (1, 2, 3)]
        for process in starts:
            process.start()
        taken = dict(directories.get(timeout=60) for _ in starts)
        for process in starts:
            process.join(60)
        self.assertCountEqual(taken, (1, 2, 3))
        self.assertCountEqual(taken.values(), ("runs/rte", "runs/rte-2", "runs/rte-3"))
        for seed, directory in taken.items():
            self.assertEqual(directory_for("runs/rte", {**CHOSEN_BY, "seed": seed}), directory)


def words(**flags) -> list[str]:
    return [f"--{name}={value}" for name, value in {**ROW_FLAGS, **flags}.items()]


def run_it(**flags) -> dict:
    as_only_command = mock.patch.dict(opening.COMMAND, clear=True)
    with as_only_command, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return fine_tune_t5.main(words(**flags))


@functools.cache
def folder_of_a_run() -> Path:
    """A folder with the user's rows, a model, and `runs/rows-tiny`, a finished run of one step; not to be changed."""
    place = Path(tempfile.mkdtemp())
    lines = [f"{row['text']}\t{row['mood']}\n" for row in ROWS]
    (place / "rows.tsv").write_text("".join(["text\tmood\n", *lines]))
    save_model(place / "tiny")
    with contextlib.chdir(place):
        run_it()
    return place


class OwnRowsTest(InFolderTest):
    """Runs of a file of the user's own rows."""

    def setUp(self):
        super().setUp()
        shutil.copytree(folder_of_a_run(), ".", dirs_exist_ok=True)
        path = Path("runs/rows-tiny/manifest.json")
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "working_directory": os.getcwd()}))  # as if it had begun here

    def look_ahead(self, **flags) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as output:
            look_ahead("fine_tune_t5", words(**flags))
        return output.getvalue()

    def test_a_raised_length_extends_and_what_else_changes_is_refused_before_and_by_the_run(self):
        for flags in ({"learning_rate": 0.5, "max_steps": 2}, {"warmup_steps": 3}):
            changes = (
                "learning_rate 0.0005 there, 0.5 here" if "learning_rate" in flags else "warmup_steps 0 there, 3 here"
            )
            with exits_with(78, f"{changes}.*--output_dir.*--allow_changed"):
                self.look_ahead(**flags)
            with exits_with(78, f"{changes}.*--output_dir.*--allow_changed"):
                run_it(**flags)
        self.assertIn("output_dir runs/rows-tiny", self.look_ahead(max_steps=2))
        run_it(max_steps=2)
        manifest = json.loads(Path("runs/rows-tiny/manifest.json").read_text())
        self.assertEqual(manifest["changes"][-1]["changed"], {"max_steps": [1, 2]})
        self.assertEqual(manifest["training"]["steps"], 2)
        with exits_with(78, "max_steps 2 there, 1 here.*--output_dir"):
            self.look_ahead(max_steps=1)
        with exits_with(78, "max_steps 2 there, 1 here.*--output_dir"):
            run_it(max_steps=1)
        self.assertEqual(os.listdir("runs"), ["rows-tiny"])

    def add_to_command(self, **flags) -> None:
        """Adds flags to the command of the run that is there, and to its settings."""
        path = Path("runs/rows-tiny/manifest.json")
        manifest = json.loads(path.read_text())
        command = [*manifest["command"], *words_of(flags)]
        path.write_text(json.dumps({**manifest, "command": command, "settings": {**manifest["settings"], **flags}}))

    def test_the_first_refusal_names_each_changed_setting_also_one_that_is_left_out_now(self):
        self.add_to_command(schedule="constant", dropout_rate=0.1)
        changes = {"learning_rate": 0.5, "per_device_train_batch_size": 3, "eval_steps": 1}
        names = ["dropout_rate", "eval_steps", "learning_rate", "schedule", "update_size"]
        for command in (self.look_ahead, run_it):
            with exits_with(78, "dropout_rate 0.1 there, not given here") as refusal:
                command(**changes)
            allowed = refusal.message.partition("--allow_changed ")[2].split()[0]
            self.assertCountEqual(allowed.split(","), names)
            self.assertNotRegex(refusal.message, r"\d\.0\b|None")
        self.look_ahead(**changes, allow_changed=allowed)

    def test_it_also_names_changed_flags_that_follow_others(self):
        self.add_to_command(load_best_model_at_end=False, metric_for_best_model="loss")
        self.look_ahead()
        with exits_with(78, "learning_rate 0.0005 there.*--allow_changed") as refusal:
            self.look_ahead(learning_rate=0.5)
        for name in ("load_best_model_at_end", "metric_for_best_model"):
            self.assertIn(name, refusal.message.partition("--allow_changed ")[2])

    def test_flags_that_are_left_out_are_refused_by_the_run_alone(self):
        self.add_to_command(schedule="constant")
        self.look_ahead()
        self.look_ahead(learning_rate=0.5, allow_changed="learning_rate")
        self.look_ahead(max_steps=2)
        with exits_with(78, "schedule 'constant' there"):
            run_it()

    def test_what_the_run_settles_as_before_refuses_no_command(self):
        self.look_ahead(use_cpu=False)
        self.add_to_command(torch_compile=True, torch_compile_backend="inductor")
        self.look_ahead(torch_compile=True)
        run_it(torch_compile=True)

    @parameterized.parameters("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
    def test_ranks_of_mpi_are_counted_by_the_run(self, name):
        """The run that is there had two ranks."""
        path = Path("runs/rows-tiny/manifest.json")
        manifest = json.loads(path.read_text())
        manifest["settings"]["update_size"] *= 2
        path.write_text(json.dumps(manifest))
        with exits_with(78, "update_size"):
            self.look_ahead()
        with mock.patch.dict(os.environ, {name: "2"}):
            self.look_ahead()

    @parameterized.parameters(
        ("gradient_accumulation_steps: null", "--gradient_accumulation_steps.*None"),
        ("per_device_train_batch_size: null", "--per_device_train_batch_size.*None"),
        ("learning_rate: fast", "--learning_rate.*fast"),
        ("max_steps: .inf", "--max_steps.*inf"),
        ("warmup_steps: 2026-01-01", "--warmup_steps.*2026"),
    )
    def test_a_file_s_value_that_is_no_number_is_named_by_the_parser(self, line, message):
        Path("flags.yaml").write_text(f"{line}\n")
        words_of_file = [
            "flags.yaml",
            *(word for word in words() if not word.startswith(f"--{line.partition(':')[0]}=")),
        ]
        with contextlib.redirect_stderr(io.StringIO()):
            look_ahead("fine_tune_t5", words_of_file)
        with exits_with(78, message):
            fine_tune_t5.main(words_of_file)

    def test_a_flag_names_the_directory_before_the_variable_of_a_sweep_does(self):
        shutil.rmtree("runs")
        with mock.patch.dict(os.environ, {"T5SUITE_RUN_DIR": "of_a_trial"}):
            self.assertIn("output_dir of_a_trial\n", self.look_ahead())
            self.assertIn("output_dir mine\n", self.look_ahead(output_dir="mine"))

    def test_a_saved_model_s_own_task_is_shown_where_no_flag_names_one(self):
        names = {"own": "notes", "glue": "rte"}
        for benchmark, name in names.items():
            task = make_task(name, benchmark)
            model = save_model(tempfile.mkdtemp(), tasks=[task])
            with contextlib.redirect_stderr(io.StringIO()) as output:
                look_ahead("fine_tune_t5", ["--model_name_or_path", str(model), "--eval_only"])
            self.assertIn(f"benchmark {benchmark}, dataset_name {name}", output.getvalue())
        with contextlib.redirect_stderr(io.StringIO()) as output:
            look_ahead("fine_tune_t5", ["--model_name_or_path", str(model), "--dataset_name", "entailment"])
        self.assertIn("dataset_name entailment", output.getvalue())

    @pytest.mark.slow
    def test_a_damaged_manifest_is_left_to_the_run_which_rebuilds_it(self):
        Path("runs/rows-tiny/manifest.json").write_text("{")
        for flags in ({}, {"output_dir": "runs/rows-tiny"}):
            self.assertIn("output_dir runs/rows-tiny\n", self.look_ahead(**flags))
        run_it()
        self.assertEqual(json.loads(Path("runs/rows-tiny/manifest.json").read_text())["status"], "finished")

    @pytest.mark.slow
    def test_another_seed_is_another_directory_before_and_in_the_run(self):
        self.assertRegex(self.look_ahead(seed=7), r"output_dir runs/rows-tiny-2\b")
        run_it(seed=7)
        self.assertCountEqual(os.listdir("runs"), ["rows-tiny", "rows-tiny-2"])
        self.assertRegex(self.look_ahead(seed=7), r"output_dir runs/rows-tiny-2\b")
        self.assertRegex(self.look_ahead(), r"output_dir runs/rows-tiny\n")

    @pytest.mark.slow
    def test_a_new_run_that_was_stopped_says_how_it_goes_on(self):
        way_on = "--output_dir runs/rows-tiny-2 and without --resume none goes on from checkpoint-1"
        stopping = changed_trainer(stop_requested=lambda trainer: trainer.state.global_step == 0)
        with exits_with(75, way_on), stopping:
            run_it(resume="none", max_steps=2)
        run_it(output_dir="runs/rows-tiny-2", max_steps=2)
        manifest = json.loads(Path("runs/rows-tiny-2/manifest.json").read_text())
        self.assertEqual((manifest["status"], manifest["training"]["steps"]), ("finished", 2))

    @parameterized.parameters(
        ({}, ["rows-tiny", "rows-tiny-2"]), ({"overwrite_output_dir": True}, ["rows-tiny", "rows-tiny.old-1"]),
    )  # fmt: skip
    def test_a_requeued_job_goes_on_with_the_run_that_it_began_anew_and_another_job_begins_its_own(self, flags, names):
        flags = {"resume": "none", "max_steps": 2, **flags}
        job = {"SLURM_JOB_ID": "7"}
        stopping = changed_trainer(stop_requested=lambda trainer: trainer.state.global_step == 0)
        with mock.patch.dict(os.environ, job), exits_with(75), stopping:
            run_it(**flags)
        for _ in range(2):  # the second time it is finished
            with mock.patch.dict(os.environ, {**job, "SLURM_RESTART_COUNT": "1"}):
                run_it(**flags)
            self.assertCountEqual(os.listdir("runs"), names)
        newest = Path("runs") / (names[1] if "-2" in names[1] else names[0])
        training = json.loads((newest / "manifest.json").read_text())["training"]
        self.assertEqual((training["from_step"], training["steps"]), (1, 2))
        with mock.patch.dict(os.environ, {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "1"}):
            run_it(**flags)
        self.assertLen(os.listdir("runs"), 3)

    def test_a_finished_run_names_the_steps_whose_weights_it_keeps(self):
        one = {"task": None, "step": 20, "by": "accuracy", "equal_steps": [40, 60]}
        invalid = {"invalid_rate": 96.67, "fewest_invalid": {"step": 60, "invalid_rate": 0.0}}
        of_task = {"task": "rte[a]", "step": 40, "by": "mean of pearson and spearman", "equal_steps": [], **invalid}
        path = Path("runs/rows-tiny/manifest.json")
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "choices": [one, of_task], "training": {"steps": 60}}))
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
            fine_tune_t5.main(words())
        lines = [line.strip() for line in shown.getvalue().splitlines()]
        first = lines.index("kept: step 20 of 60, the best by accuracy; steps 40 and 60 are equal to it")
        what_is_kept = "kept for rte[a]: step 40 of 60, the best by mean of pearson and spearman"
        what_was_invalid = "96.7% of its answers were invalid, the fewest (0.0%) at step 60"
        self.assertEqual(lines[first + 1], f"{what_is_kept}; {what_was_invalid}")

    @parameterized.parameters(("rougeL", True), ("loss", False))
    def test_a_finished_run_whose_evaluations_are_all_equal_names_the_loss_unless_it_chose(self, by, names_loss):
        choice = {"task": None, "step": 20, "by": by, "equal_steps": [40, 60], "all_equal": True}
        path = Path("runs/rows-tiny/manifest.json")
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "choices": [choice], "training": {"steps": 60}}))
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
            fine_tune_t5.main(words())
        (line,) = [line for line in shown.getvalue().splitlines() if "kept: step 20 of 60" in line]
        self.assertEqual("--metric_for_best_model loss" in line, names_loss)

    def test_a_file_from_which_rows_are_held_out_is_named_if_it_has_changed_since(self):
        with open("rows.tsv", "a") as rows:
            rows.write("more shoes\tgood\n")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as log:
            fine_tune_t5.main(words())
        self.assertIn("rows.tsv changed since", log.getvalue())

    def test_another_files_rows_are_read_as_the_model_s_were(self):
        Path("new.tsv").write_text("".join(["text\tmood\n", *(f"{row['text']}!\t{row['mood']}\n" for row in ROWS)]))
        new_rows = ["--validation_file=new.tsv", "--model_name_or_path=runs/rows-tiny", "--eval_only", "--use_cpu"]
        columns = ["--text_column=text", "--target_column=mood", "--labels=bad,good"]
        results = [self.evaluate(*new_rows)[0], self.evaluate(*new_rows, *columns)[0]]
        self.assertEqual(results[0], results[1])
        self.assertEqual(list(results[0]["tasks"]["new"]), ["accuracy", "invalid_rate"])

    @pytest.mark.slow
    def test_answers_to_other_rows_are_not_cut_at_the_longest_of_their_targets(self):
        """An answer that goes on after the target is wrong; `predict` shows it whole, too."""
        long_target = "the delivery was late and the lamp was damaged"
        Path("long.tsv").write_text("text\tanswer\n" + "".join(f"what {n}\t{long_target}\n" for n in range(8)))
        Path("short.tsv").write_text("text\tanswer\n" + "".join(f"why {n}\tthe\n" for n in range(4)))
        columns = ["--text_column=text", "--target_column=answer", "--metrics=exact_match", "--use_cpu"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            training = ["--train_file=long.tsv", "--output_dir=runs/long", "--model_name_or_path=tiny"]
            fine_tune_t5.main([*training, *columns, "--max_steps=1", "--no_eval"])
            scoring = ["--validation_file=short.tsv", "--output_dir=runs/short", "--model_name_or_path=runs/long"]
            fine_tune_t5.main([*scoring, *columns, "--eval_only"])
        (path,) = Path("runs/short/predictions").iterdir()
        evaluated = [line["prediction"] for line in read_rows(path)]
        shown = cli_output("predict", "--model_name_or_path", "runs/long", "--input", "short.tsv", "--use_cpu")
        predicted = [json.loads(line)["prediction"] for line in shown.splitlines()]
        self.assertEqual(evaluated, predicted)
        self.assertGreater(max(map(len, evaluated)), len("the"))

    @pytest.mark.slow
    def test_a_model_of_sets_is_not_scored_as_one_of_text_without_a_warning(self):
        rows = "".join(f"film {n}\tdrama, horror\n" for n in range(8))
        Path("films.tsv").write_text("text\tgenres\n" + rows)
        columns = ["--text_column=text", "--target_column=genres"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            training = ["--train_file=films.tsv", "--output_dir=runs/films", "--model_name_or_path=tiny", "--use_cpu"]
            fine_tune_t5.main([*training, *columns, "--metrics=micro_f1,subset_accuracy", "--max_steps=1", "--no_eval"])
        films = ["--validation_file=films.tsv", "--model_name_or_path=runs/films", "--eval_only", "--use_cpu"]
        swapped = ["--text_column=genres", "--target_column=text"]
        warning = "WARNING .*sets of labels.*--metrics micro_f1,subset_accuracy, .* --text_column and --target_column"
        self.assertRegex(self.evaluate(*films, *swapped, method="generate")[1], warning)
        for flags in ([], columns):
            scores, log = self.evaluate(*films, *flags, method="generate")
            self.assertNotIn("sets of labels", log)
            self.assertContainsSubset(["micro_f1", "subset_accuracy"], scores["tasks"]["films"])

    def evaluate(self, *words, method="score") -> tuple[dict, str]:
        """The scores of a run that trains nothing, and what it logs and prints."""
        words = [*words, f"--eval_method={method}", "--output_dir", tempfile.mkdtemp() + "/scores"]
        with contextlib.redirect_stderr(io.StringIO()) as log, contextlib.redirect_stdout(log):
            return fine_tune_t5.main(words), log.getvalue()

    @parameterized.parameters(
        ("--train_file rows.jsonl", 65, "rows.jsonl:1: no column 'text' .--text_column_name.; did you mean txt"),
        ("--train_file rows.jsonl --text_column_name txt --validation_file held/*.txt", 65, "held/.*: no text file"),
        ("--validation_file rows.jsonl --train_file good.txt", 65, "rows.jsonl:1: no column 'text'"),
        ("--train_file no.jsonl --bad_lines skip", 65, "no.jsonl: no such file"),
        ("--train_file rows.jsonl --bad_lines skip", None, ""),
        ("--train_file rows.jsonl --eval_only --validation_file good.txt", None, ""),
        ("--train_file hub:nobody/nothing --streaming --max_steps 1", None, ""),
    )
    @pytest.mark.slow
    def test_text_of_pre_training_is_looked_at_before_the_model_is(self, flags, code, message):
        Path("rows.jsonl").write_text('{"txt": "one"}\n')
        Path("good.txt").write_text("one\n")
        refused = exits_with(code, message) if code else contextlib.nullcontext()
        with contextlib.redirect_stderr(io.StringIO()), refused:
            look_ahead("pre_train_t5", flags.split())

    @pytest.mark.slow
    def test_a_named_directory_is_made_longer_only_with_extend(self):
        longer = {"max_steps": 2, "output_dir": "runs/rows-tiny"}
        with exits_with(78, "max_steps 1 there, 2 here.*--extend"):
            self.look_ahead(**longer)
        with exits_with(78, "max_steps 1 there, 2 here.*--extend"):
            run_it(**longer)
        self.look_ahead(**longer, extend=True)
        run_it(**longer, extend=True)

    @parameterized.parameters(0, 1)
    def test_each_of_several_processes_is_refused_before_it_waits_for_the_others(self, rank):
        of_rank = {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for flags, code in (({"target_column": "mod"}, 65), ({"learning_rate": 0.5}, 78)):
            with contextlib.redirect_stderr(io.StringIO()) as shown, mock.patch.dict(os.environ, of_rank):
                try:
                    exit_code = run_command(lambda _, flags=flags: look_ahead("fine_tune_t5", words(**flags)))
                except SystemExit as stop:
                    exit_code = stop.code
            self.assertEqual(exit_code, code)
            self.assertEqual(shown.getvalue().count("error: "), 1 - rank)

    @parameterized.parameters({}, {"WORLD_SIZE": "2", "RANK": "0"}, {"WORLD_SIZE": "2", "RANK": "1"})
    def test_one_process_shows_a_finished_run_early_and_several_decide_together(self, **environment):
        path = Path("runs/rows-tiny/manifest.json")
        manifest = json.loads(path.read_text())
        manifest["settings"]["update_size"] *= int(environment.get("WORLD_SIZE", 1))
        path.write_text(json.dumps(manifest))
        with mock.patch.dict(os.environ, environment), mock.patch.dict(opening.COMMAND):
            self.look_ahead()
            path.write_text(json.dumps({**manifest, **opening.COMMAND}))
            ends = contextlib.nullcontext() if environment else self.assertRaises(SystemExit)
            with ends, contextlib.redirect_stdout(io.StringIO()):
                self.look_ahead()

    def test_a_changed_command_names_the_run_beside_that_resume_none_began(self):
        with exits_with(78, "learning_rate.* Give --resume none"):
            self.look_ahead(learning_rate=0.5)
        run_it(learning_rate=0.5, resume="none")
        with exits_with(78, "--output_dir runs/rows-tiny-2 goes on there"):
            self.look_ahead(learning_rate=0.5)
        with exits_with(78, "learning_rate.* Give --resume none"):
            self.look_ahead(learning_rate=0.25)

    def test_a_mistyped_column_leaves_no_directory(self):
        shutil.rmtree("runs")
        with exits_with(65, "'mod'"):
            self.look_ahead(target_column="mod")
        self.assertFalse(Path("runs").exists())


COLUMNS = {name: ROW_FLAGS[name] for name in ("text_column", "target_column", "labels")}
HELD_OUT = {"seed": 5, "validation_split": 0.2}  # of `folder_of_a_run`
# Flags of a run that begins with the weights of another one.
WAYS = {
    "model": {"model_name_or_path": "runs/rows-tiny"},
    "weights": {"init_checkpoint": "runs/rows-tiny/model.safetensors"},
    "resumed": {"resume": "runs/rows-tiny/checkpoint-1", "max_steps": 2},
    "other weights": {"model_name_or_path": "runs/rows-tiny", "init_checkpoint": "tiny"},
}
# What is scored; copy.tsv is a copy of the rows that `folder_of_a_run` has.
SCORED = (
    {"validation_file": "copy.tsv"},
    {"validation_file": "new.tsv"},
    {"train_file": "copy.tsv", **HELD_OUT},
    {"train_file": "copy.tsv", **HELD_OUT, "seed": 6},
)


def write_table(path: str, rows: list[dict]) -> None:
    lines = ["\t".join(row.values()) for row in rows]
    Path(path).write_text("\n".join(["\t".join(rows[0]), *lines, ""]))


def new_rows(count: int) -> list[dict]:
    return [{"text": f"hat {number}", "mood": "good"} for number in range(count)]


def texts(split: str, **flags) -> set[str]:
    """The texts of a split, as flags of own rows divide them."""
    return {row["text"] for row in load_own_rows(None, split, **{**COLUMNS, **flags}).rows}


def have_common_texts(trained: dict, scored: dict) -> bool:
    """Whether rows that are scored with some flags were trained on with others."""
    return not texts("train", **trained).isdisjoint(texts("validation", **scored))


def shown_by(function, *values) -> str:
    """All that a function logs and prints; a tuner logs nothing to the terminal by itself."""
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    as_only_command = mock.patch.dict(opening.COMMAND, clear=True)
    with as_only_command, contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
        logging.getLogger("t5suite").addHandler(handler)
        try:
            function(*values)
        finally:
            logging.getLogger("t5suite").removeHandler(handler)
    return shown.getvalue()


def words_of(flags: dict) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def evaluated(weights: str, **flags) -> str:
    """What a run that only scores shows."""
    flags = {"model_name_or_path": weights, "use_cpu": True, "eval_method": "score", **flags}
    flags["output_dir"] = tempfile.mkdtemp() + "/scores"
    return shown_by(fine_tune_t5.main, [*words_of(flags), "--eval_only"])


def evaluated_as_checkpoints(run: str, **flags) -> str:
    """What the scoring of a run's checkpoints shows."""
    flags = {**COLUMNS, "model_name_or_path": "tiny", "use_cpu": True, "output_dir": run, **flags}
    return shown_by(fine_tune_t5.main, [*words_of(flags), "--eval_checkpoints=all"])


def evaluated_by_a_tuner(weights: str, train_file=None, validation_file=None, **flags) -> str:
    rows = {"validation": validation_file} if validation_file else train_file
    return shown_by(FineTuner(weights, rows, use_cpu=True, **COLUMNS, **flags).evaluate)


class TrainedRowsTest(InFolderTest):
    """Scores of rows that the weights were trained on are marked, and no others."""

    def setUp(self):
        super().setUp()
        shutil.copytree(folder_of_a_run(), ".", dirs_exist_ok=True)
        shutil.copy("rows.tsv", "copy.tsv")
        write_table("new.tsv", new_rows(6))
        write_table("more.tsv", [{"text": f"more {row['text']}", "mood": "bad"} for row in new_rows(9)])

    def assertMarked(self, trained: dict, score, weights: str, scored_flags=SCORED):
        for flags in scored_flags:
            log = score(weights, **flags)
            is_marked = have_common_texts(trained, flags)
            self.assertEqual("trained on 32 rows of the same data (rows.tsv)" in log, is_marked, (flags, log))
            self.assertEqual("the score is not one of unseen rows" in log, is_marked, (flags, log))

    @parameterized.product(
        score=(evaluated, evaluated_by_a_tuner), weights=("", "/checkpoint-1", "/best/rows"),
    )  # fmt: skip
    def test_by_whichever_folder_of_the_run(self, score, weights):
        shutil.copytree("runs/rows-tiny/checkpoint-1", "runs/rows-tiny/best/rows")  # as `--select per_task` keeps them
        self.assertMarked({"train_file": "rows.tsv", **HELD_OUT}, score, f"runs/rows-tiny{weights}")

    def test_each_checkpoint(self):
        self.assertMarked({"train_file": "rows.tsv", **HELD_OUT}, evaluated_as_checkpoints, "runs/rows-tiny")

    @parameterized.parameters(*WAYS)
    def test_after_further_training_wherever_the_runs_are_now(self, way):
        further = {**ROW_FLAGS, "train_file": "more.tsv", "output_dir": "runs/further", **WAYS[way]}
        shown_by(fine_tune_t5.main, words_of(further))
        shutil.rmtree("runs/rows-tiny")
        shutil.move("runs/further", "moved")
        trained = {"train_file": "more.tsv" if way == "other weights" else "rows.tsv", **HELD_OUT}
        for score in (evaluated, evaluated_as_checkpoints):
            self.assertMarked(trained, score, "moved")
        self.assertRegex(evaluated("moved", validation_file="more.tsv"), r"trained on 7 rows .*\(more.tsv\)")

    @parameterized.parameters(*WAYS)
    def test_rows_by_which_further_training_is_validated(self, way):
        further = {**ROW_FLAGS, "train_file": "more.tsv", "validation_file": "copy.tsv", **WAYS[way]}
        del further["validation_split"]
        for more in ({}, {"dry_run": True}):
            log = shown_by(fine_tune_t5.main, words_of({**further, **more, "output_dir": "runs/further"}))
            self.assertEqual("the model was trained on 32 rows" in log, way != "other weights", log)

    def test_a_run_that_goes_on_keeps_what_its_first_weights_were_trained_on(self):
        further = {"train_file": "more.tsv", "output_dir": "runs/further", **WAYS["model"]}
        run_it(**further)
        shutil.rmtree("runs/rows-tiny")
        shutil.copytree("tiny", "runs/rows-tiny")
        run_it(**further, max_steps=2, extend=True)
        run_it(**further, max_steps=3, extend=True, resume="runs/further/checkpoint-2")
        self.assertMarked({"train_file": "rows.tsv", **HELD_OUT}, evaluated, "runs/further")

    def test_rows_that_a_run_was_trained_on_before_its_data_changed(self):
        write_table("rows.tsv", new_rows(40))
        run_it(max_steps=2, allow_changed="data", extend=True)  # the held-out rows are new, too
        marks = json.loads(Path("runs/rows-tiny/manifest.json").read_text()).get("marks", {})
        self.assertNotIn(TRAINED_ON, str(marks))
        self.assertMarked({"train_file": "copy.tsv", **HELD_OUT}, evaluated, "runs/rows-tiny", SCORED[::2])
        self.assertIn(TRAINED_ON, evaluated("runs/rows-tiny", validation_file="rows.tsv"))

    def test_a_run_that_goes_on_with_another_seed_holds_out_rows_that_it_was_trained_on(self):
        """The same file with as many rows held out: only which rows these are has changed."""
        longer = {"output_dir": "runs/rows-tiny", "max_steps": 2, "seed": 6, "extend": True}
        with exits_with(78, "held_out_sha256.*--allow_changed seed,data"):
            run_it(**longer, allow_changed="seed")
        going_on = words(**longer, allow_changed="seed,data")
        self.assertIn("trained on 32 rows of the same data", shown_by(fine_tune_t5.main, going_on))
        self.assertIn(TRAINED_ON, str(json.loads(Path("runs/rows-tiny/manifest.json").read_text())["marks"]))
        for scored in ({"train_file": "rows.tsv", **HELD_OUT}, {"train_file": "copy.tsv", **HELD_OUT, "seed": 6}):
            self.assertIn(TRAINED_ON, evaluated("runs/rows-tiny", **scored))
        self.assertNotIn(TRAINED_ON, evaluated("runs/rows-tiny", validation_file="new.tsv"))

    def test_held_out_rows_of_one_of_several_files(self):
        """Which rows are held out depends on all of them."""
        os.mkdir("both")
        write_table("both/a.tsv", ROWS)
        write_table("both/b.tsv", [{**row, "text": f"b {row['text']}"} for row in ROWS])
        trained = {"data_format": "tsv", "train_dir": "both", **HELD_OUT}
        flags = {name: value for name, value in ROW_FLAGS.items() if name != "train_file"}
        shown_by(fine_tune_t5.main, words_of({**flags, **trained, "output_dir": "runs/both"}))
        shutil.copytree("both", "all")
        write_table("all/c.tsv", new_rows(20))
        marks = []
        for scored in ({"train_file": "both/a.tsv"}, {"train_dir": "all"}, {"train_dir": "both"}):
            scored = {"data_format": "tsv", **scored, **HELD_OUT}
            marks.append(TRAINED_ON in evaluated("runs/both", **scored))
            self.assertEqual(marks[-1], have_common_texts(trained, scored), scored)
        self.assertEqual(marks, [True, True, False])

    def test_held_out_rows_of_further_columns(self):
        """Rows with equal inputs are held out together, and which are equal depends on the columns."""
        rows = [{"text": row["text"], "size": size, "mood": row["mood"]} for row in ROWS for size in ("small", "large")]
        write_table("rows.tsv", rows)
        run_it(output_dir="runs/text")
        for columns in ("text", "text,size"):
            scored = {"train_file": "rows.tsv", **HELD_OUT, **COLUMNS, "text_column": columns}
            is_marked = have_common_texts({"train_file": "rows.tsv", **HELD_OUT}, scored)
            self.assertEqual(is_marked, columns == "text,size")
            self.assertEqual(TRAINED_ON in evaluated("runs/text", **scored), is_marked)

    @parameterized.product(is_interrupted=(True, False), validates_on_training_rows=(True, False))
    def test_a_tuner_after_its_training_also_where_that_was_interrupted(
        self, is_interrupted, validates_on_training_rows
    ):
        rows = {"train": ROWS, "validation": ROWS} if validates_on_training_rows else ROWS
        callback = TrainerCallback()
        if is_interrupted:
            callback.on_step_end = mock.Mock(side_effect=OSError("no space"))
        tuner = FineTuner("tiny", rows, callbacks=callback, use_cpu=True, max_steps=1, output_dir="runs/new", **COLUMNS)
        with contextlib.suppress(OSError):
            shown_by(tuner.train)
        self.assertEqual(Path("runs/new/results.json").exists(), not is_interrupted)
        log = shown_by(tuner.evaluate)
        self.assertEqual("the score is not one of unseen rows" in log, validates_on_training_rows, log)

    def test_inputs_that_are_in_another_file_too_are_counted(self):
        """Of 40 rows that are trained on, 6 stand among the 10 of part.tsv, one of them twice."""
        write_table("part.tsv", [*ROWS[:6], ROWS[0], *new_rows(3)])
        message = "part validation: 7 of 10 inputs are training inputs, too"
        mark = "trained on 7 of 10 inputs"
        run = {**ROW_FLAGS, "max_eval_samples": 10, "validation_file": "part.tsv", "output_dir": "runs/part"}
        del run["validation_split"]
        for more in ({"dry_run": True}, {}):
            self.assertIn("7 of 10 inputs are training inputs, too", shown_by(fine_tune_t5.main, words_of(run | more)))
        self.assertIn(mark, json.loads(Path("runs/part/manifest.json").read_text())["marks"]["rows"])
        shutil.rmtree("runs/rows-tiny")
        shutil.move("runs/part", "moved")
        Path("rows.tsv").unlink()
        for weights in ("moved", "moved/checkpoint-1"):
            for score in (evaluated, evaluated_by_a_tuner):
                log = score(weights, validation_file="part.tsv")
                self.assertIn(message, log)
                self.assertNotIn("training inputs", score(weights, validation_file="new.tsv"))
            self.assertIn(mark, evaluated(weights, validation_file="part.tsv"))

    def test_a_count_among_a_part_of_the_trained_inputs_is_called_the_least(self):
        """The run keeps hashes of 20 of its 40 inputs, of which the scored file has all."""
        write_table("all.tsv", [*ROWS, *new_rows(1)])
        for module in ("runs.trained_inputs", "training.trained_rows_warnings"):
            self.enter_context(mock.patch(f"t5suite.{module}.MOST_INPUTS", 20))
        run = {**ROW_FLAGS, "validation_file": "new.tsv", "output_dir": "runs/many"}
        del run["validation_split"]
        shown_by(fine_tune_t5.main, words_of(run))
        log = evaluated("runs/many", validation_file="all.tsv")
        self.assertIn("at least 20 of 41 inputs are training inputs, too", log)

    @parameterized.parameters("model", "weights", "resumed")
    def test_inputs_that_the_weights_of_a_run_were_trained_on_before_it(self, way):
        held_out = texts("validation", train_file="rows.tsv", **HELD_OUT)
        write_table("part.tsv", [*ROWS[:10], *new_rows(10)])
        num_trained_on = sum(row["text"] not in held_out for row in ROWS[:10])
        further = {**ROW_FLAGS, "train_file": "more.tsv", "output_dir": "runs/further", **WAYS[way]}
        shown_by(fine_tune_t5.main, words_of(further))
        shutil.rmtree("runs/rows-tiny")
        log = evaluated("runs/further", validation_file="part.tsv")
        self.assertIn(f"{num_trained_on} of 20 inputs are training inputs, too", log)

    def test_inputs_that_a_longer_run_was_trained_on_before_its_data_changed(self):
        held_out = texts("validation", train_file="rows.tsv", **HELD_OUT)
        write_table("part.tsv", ROWS[:10])
        num_trained_on = sum(row["text"] not in held_out for row in ROWS[:10])
        write_table("rows.tsv", new_rows(40))
        run_it(max_steps=2, allow_changed="data", extend=True)
        log = evaluated("runs/rows-tiny", validation_file="part.tsv")
        self.assertIn(f"{num_trained_on} of 10 inputs are training inputs, too", log)

    def test_official_splits_of_a_benchmark_are_not_searched_for_common_inputs(self):
        Path("data/films/mood").mkdir(parents=True)
        lines = [{"text": row["text"], "label": 1} for row in ROWS]
        write_rows("data/films/mood/train.jsonl", lines)
        write_rows("data/films/mood/validation.jsonl", lines[:5])
        entry = {"prefix": "", "text_column_name": "text", "label_column_name": "label", "labels": ["bad", "good"]}
        entry |= {"metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}
        Path("tasks.yaml").write_text(json.dumps({"films": {"mood": entry}}))
        flags = {"task_file": "tasks.yaml", "benchmark": "films", "dataset_name": "mood", "data_dir": "data"}
        flags |= {"model_name_or_path": "tiny", "use_cpu": True, "output_dir": "runs/mood", "max_steps": 1}
        self.assertNotIn("training inputs", shown_by(fine_tune_t5.main, words_of(flags)))

    def test_rows_of_predictions_that_are_scored(self):
        flags = ["--model_name_or_path", "runs/rows-tiny", "--predictions", "answers.jsonl"]
        for file, rows, is_marked in (("copy.tsv", ROWS, True), ("new.tsv", new_rows(6), False)):
            Path("answers.jsonl").write_text("".join(json.dumps(row["mood"]) + "\n" for row in rows))
            with contextlib.redirect_stderr(io.StringIO()) as notes:
                cli_output("score", *flags, "--rows", file)
            sentence = "runs/rows-tiny was trained on 32 rows of the same data (rows.tsv)"
            self.assertEqual(sentence in notes.getvalue(), is_marked)

    def test_a_run_that_is_validated_on_its_training_rows(self):
        run = {**ROW_FLAGS, "validation_file": "copy.tsv"}
        del run["validation_split"]
        log = shown_by(fine_tune_t5.main, words_of(run))
        self.assertIn("this run trains on 40 rows of the same data (rows.tsv)", log)

    def test_held_out_rows_of_one_data_set_that_another_one_has(self):
        """Alpaca holds rows out by their instruction, too, and JSONLines by their input alone."""
        rows = []
        for row in ROWS:
            rows += [{"instruction": word, "input": row["text"], "output": row["mood"]} for word in ("Rate", "Judge")]
        for name in ("one", "two"):
            os.mkdir(name)
            write_rows(f"{name}/train.jsonl", rows)
        flags = {name: ROW_FLAGS[name] for name in ("model_name_or_path", "use_cpu", "max_steps")}
        marks = []
        for name in ("JSONLines", "Alpaca"):
            data = ["--data_class", "JSONLines", name, "--data_path", "one", "two", "--output_dir", name]
            marks.append("this run trains on" in shown_by(fine_tune_t5.main, [*words_of(flags), *data]))
            trained, scored = [
                {row["input"] for row in load_own_rows(None, split, data_class=[form], data_path=["one"]).rows}
                for split, form in (("train", name), ("validation", "JSONLines"))
            ]
            self.assertEqual(marks[-1], not trained.isdisjoint(scored), name)
        self.assertEqual(marks, [False, True])

    def test_an_evaluation_of_other_rows_names_the_model_that_it_scored(self):
        """In its own folder there is none."""
        flags = {"model_name_or_path": "runs/rows-tiny", "use_cpu": True, "output_dir": "scores"}
        shown_by(fine_tune_t5.main, [*words_of(flags), "--eval_only", "--validation_file=copy.tsv"])
        with exits_with(78, "t5suite evaluate --model_name_or_path runs/rows-tiny scores"):
            shown_by(fine_tune_t5.main, [*words_of(flags), "--eval_only", "--validation_file=new.tsv"])

    @parameterized.parameters(True, False)
    def test_a_task_whose_validation_rows_are_its_training_rows(self, trains):
        Path("data/films/mood").mkdir(parents=True)
        write_rows("data/films/mood/train.jsonl", [{"text": row["text"], "label": 1} for row in ROWS])
        entry = {"prefix": "", "text_column_name": "text", "label_column_name": "label", "labels": ["bad", "good"]}
        entry |= {"metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}
        entry["splits"] = {"train": "train", "validation": "train"}
        Path("tasks.yaml").write_text(json.dumps({"films": {"mood": entry}}))
        flags = {"task_file": "tasks.yaml", "benchmark": "films", "dataset_name": "mood", "data_dir": "data"}
        flags |= {"model_name_or_path": "tiny", "use_cpu": True, "output_dir": "runs/mood", "max_steps": 1}
        log = shown_by(fine_tune_t5.main, [*words_of(flags), *([] if trains else ["--eval_only"])])
        self.assertEqual("this run trains on 40 rows" in log, trains, log)
        self.assertEqual(TRAINED_ON in log, trains, log)

    def test_a_run_of_an_earlier_version_goes_on_and_is_known_by_its_own_data(self):
        path = Path("runs/rows-tiny/manifest.json")
        manifest = json.loads(path.read_text())
        del manifest["weights_trained_on"]
        for split in manifest["data"].values():
            del split["held_out_sha256"]
        path.write_text(json.dumps(manifest))
        self.assertIn(TRAINED_ON, evaluated("runs/rows-tiny", validation_file="copy.tsv"))
        self.assertNotIn(TRAINED_ON, evaluated("runs/rows-tiny", validation_file="new.tsv"))
        going_on = words(max_steps=2, output_dir="runs/rows-tiny", extend=True)
        self.assertNotIn(TRAINED_ON, shown_by(fine_tune_t5.main, going_on))
        self.assertMarked({"train_file": "rows.tsv", **HELD_OUT}, evaluated, "runs/rows-tiny")
