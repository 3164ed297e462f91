"""The commit protocol: killed at any point, on a full disk, over ranks; which checkpoint is found and which ones go."""

import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from absl.testing import parameterized
from support import folder

from t5suite.base.errors import CheckpointError
from t5suite.runs.directory import write_json
from t5suite.testing import exits_with
from t5suite.training.checkpoints.committing import commit_checkpoint
from t5suite.training.checkpoints.folders import checkpoints, clean_leftovers, find_checkpoint, rotate
from t5suite.training.checkpoints.manifests import Manifest, damage, hash_file
from t5suite.training.checkpoints.states import load_state, save_state
from t5suite.training.processes.ranks import Ranks

RUN = "run-1"


def writer(step, size=100):
    def write(place):
        save_state(place, "optimizer", {"step": step, "moment": torch.full((size,), float(step))})
        (place / "config.json").write_text(json.dumps({"step": step}))
        (place / "part").mkdir()
        (place / "part" / "shard.bin").write_bytes(bytes([step % 256]) * size)

    return write


def commit(place, step, run_id=RUN, **settings):
    return commit_checkpoint(place, step, writer(step), run_id=run_id, **settings)


def names(place):
    return sorted(path.name for path in Path(place).iterdir())


def break_file(checkpoint, name="optimizer.pt"):
    os.truncate(checkpoint / name, 10)


def life(place):
    """What a run with --save_total_limit 1 does to its directory: save, rotate, come back to the same step."""
    clean_leftovers(place)
    for step in (4, 4, 6, 8):
        commit(place, step)
        rotate(place, limit=1)


# filelock refuses a fork while another thread forks.
FORKING = threading.Lock()


def forked(function) -> tuple[int, str]:
    """Calls a function in a process of its own; returns its exit status and what the function returned, as text."""
    read_end, write_end = os.pipe()
    with FORKING:
        pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            os.write(write_end, str(function()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as lines:
        text = lines.read()
    return os.waitpid(pid, 0)[1], text


def killed_at(place, point: int | None) -> int:
    """Runs `life` in a process that gets SIGKILL at its point-th operation on files; returns how many it made.

    Python announces each of them to an audit hook before it is made (PEP 578); fsync and write are counted by hand.
    """

    def doomed_life():
        made = 0

        def count(event="fsync", arguments=()):
            nonlocal made
            if event == "open" and not str(arguments[0]).startswith(str(place)):
                return
            if event in ("fsync", "open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"):
                made += 1
                if made == point:
                    os.kill(os.getpid(), signal.SIGKILL)

        sync = os.fsync
        os.fsync = lambda descriptor: (count(), sync(descriptor), count())
        sys.addaudithook(count)
        life(place)
        return made

    status, text = forked(doomed_life)
    assert (status == signal.SIGKILL) == (point is not None), status
    return int(text or 0)


class KillTest(parameterized.TestCase):
    def test_killed_at_some_operation_one_verified_checkpoint_exists_and_the_run_goes_on(self):
        self.kill_at_every(41)

    @pytest.mark.slow
    @pytest.mark.resume
    def test_killed_at_any_operation(self):
        self.kill_at_every(1)

    def kill_at_every(self, stride):
        # In memory: what is on a disk after a power cut is not what a SIGKILL can show.
        memory = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.addCleanup(shutil.rmtree, memory)
        start, place = memory / "start", memory / "run"
        commit(start, 2)
        shutil.copytree(start, place)
        operations = killed_at(place, None)
        self.assertGreater(operations, 60)
        self.assertEqual(names(place), ["checkpoint-8"])
        for point in range(1, operations + 1, stride):
            shutil.rmtree(place)
            shutil.copytree(start, place)
            killed_at(place, point)
            clean_leftovers(place)
            found = find_checkpoint(place, "auto", run_id=RUN)
            self.assertIsNotNone(found, f"operation {point}")
            self.assertTrue(all(name.startswith("checkpoint-") for name in names(place)), names(place))
            for path in checkpoints(place):
                self.assertIsNone(damage(path))
                step = Manifest.read(path).step
                self.assertEqual(load_state(path, "optimizer")["moment"].tolist(), [float(step)] * 100)
            life(place)
            self.assertEqual(names(place), ["checkpoint-8"])


class CommitTest(parameterized.TestCase):
    def test_nothing_has_the_name_before_all_is_on_the_disk(self):
        place, synced, sync, rename = folder(), [], os.fsync, os.rename

        def note_rename(source, target):
            on_disk = set(synced)
            self.assertEqual([p for p in Path(source).rglob("*") if p.stat().st_ino not in on_disk], [])
            self.assertEqual(synced[-1], Path(source).stat().st_ino, "the folder with the manifest in it comes last")
            rename(source, target)

        note_sync = mock.patch("os.fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), sync(fd)))
        with note_sync, mock.patch("os.rename", note_rename):
            commit(place, 4)
        self.assertEqual(synced[-1], place.stat().st_ino, "the rename itself is brought to the disk")

    def test_a_disk_that_fails_at_the_end_is_an_error_that_names_the_file(self):
        place = folder()
        commit(place, 2)

        failing = mock.patch("os.fsync", side_effect=OSError(errno.EIO, "Input/output error"))
        with failing, exits_with(74, "config.json: .*EIO.*2 is unchanged"):
            commit(place, 4)
        self.assertEqual(names(place), ["checkpoint-2"])

    @parameterized.parameters(errno.EIO, errno.ESTALE)
    def test_a_faulty_disk_is_not_called_full(self, code):
        place = folder()
        failing = mock.patch("os.fsync", side_effect=OSError(code, os.strerror(code)))
        with failing, exits_with(74, f"{os.strerror(code)}.*file system is at fault") as caught:
            commit(place, 4)
        self.assertNotRegex(str(caught.exception), "room|bytes")

    def test_a_file_system_without_inodes_is_said_to_have_none(self):
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        found = SimpleNamespace(f_bavail=1000, f_frsize=4096, f_files=64, f_favail=0)
        with mock.patch("os.statvfs", return_value=found), mock.patch("os.fsync", side_effect=full):
            with exits_with(74, "4,096,000 bytes free, but none of its 64 inodes: delete"):
                commit(folder(), 4)
            with self.assertRaisesRegex(OSError, "none of its 64 inodes"):
                write_json(folder() / "a.json", {})

    def test_what_is_committed_is_readable_to_whom_the_umask_says(self):
        self.addCleanup(os.umask, os.umask(0o027))
        checkpoint = commit_checkpoint(folder(), 4, lambda target: (target / "model.safetensors").touch(0o600))
        self.assertEqual(oct((checkpoint / "model.safetensors").stat().st_mode & 0o777), "0o640")

    def test_files_that_could_not_be_verified_are_not_committed(self):
        for make in (lambda p: (p / "a").symlink_to(p / "config.json"), lambda p: (p / "a\nb").write_text("")):
            with self.assertRaises((CheckpointError, ValueError)):
                commit_checkpoint(folder(), 4, lambda target, make=make: make(target))

    def test_a_full_disk_leaves_the_previous_one_and_says_what_was_missing(self):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        for most in (0, 1000, 60_000):
            place = folder()
            commit(place, 2)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limit[1]))
            try:
                with exits_with(74) as caught:
                    commit_checkpoint(place, 4, writer(4, size=25_000), run_id=RUN)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            self.assertRegex(
                str(caught.exception),
                r"checkpoint-4 could not be written: .*optimizer\.pt: File too large \(EFBIG\); about [\d,]+ bytes "
                r"wanted, [\d,]+ bytes free; checkpoint-2 is unchanged; make room",
            )
            self.assertEqual(caught.exception.exit_code, 74)
            self.assertEqual(names(place), ["checkpoint-2"])
            self.assertEqual(commit(place, 4), find_checkpoint(place, "auto"))

    def test_libraries_words_for_a_full_disk_and_other_errors_as_they_are(self):
        for words, kind in (
            ("inline_container.cc:664] . unexpected pos 78656 vs 78548", CheckpointError),
            ("PytorchStreamWriter failed", CheckpointError), ("shapes do not match", RuntimeError),
        ):  # fmt: skip
            with self.assertRaisesRegex(kind, f"{words}|could not be written"):
                commit_checkpoint(folder(), 4, mock.Mock(side_effect=RuntimeError(words)))

    def test_another_runs_checkpoint_of_the_same_step_is_set_aside(self):
        place = folder()
        commit(place, 4, run_id="another")
        commit(place, 4)
        self.assertEqual(names(place), ["checkpoint-4", "damaged-checkpoint-4"])
        self.assertEqual(Manifest.read(place / "checkpoint-4").run_id, RUN)


def two_ranks(place, rank):
    """What one of two ranks sees of a commit, and of one that fails on the other rank."""
    store, patience = f"file://{place}/store", timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=patience)
    ranks, run = Ranks.of_process(), place / "run"

    def write(target):
        write_json(target / f"rank-{rank}.json", rank)
        (target / f"shard-{rank}.bin").write_text(str(rank))  # as a library writes: without a record

    def failing(target):
        write(target)
        if rank == 1:
            raise OSError(28, "No space left on device", "shard")

    manifest = Manifest.read(commit_checkpoint(run, 2, write, ranks, run_id="r"))
    seen = {"files": sorted(manifest.files), "world_size": manifest.world_size}
    try:
        commit_checkpoint(run, 4, failing, ranks, run_id="r")
    except CheckpointError as error:
        seen["error"] = str(error)
    return json.dumps({**seen, "found": ranks.together(find_checkpoint, run, "auto").name, "there": names(run)})


class RanksTest(parameterized.TestCase):
    def test_two_ranks_commit_one_checkpoint_and_fail_together(self):
        place = folder()
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda rank: forked(lambda: two_ranks(place, rank)), (0, 1)))
        for status, text in results:
            self.assertEqual(status, 0)
            seen = json.loads(text)
            self.assertEqual(seen["files"], ["rank-0.json", "rank-1.json", "shard-0.bin", "shard-1.bin"])
            self.assertEqual(seen["world_size"], 2)
            self.assertRegex(seen["error"], "No space left on device")
            self.assertEqual((seen["found"], seen["there"]), ("checkpoint-2", ["checkpoint-2"]))


class RotationTest(parameterized.TestCase):
    def test_what_stays(self):
        for limit, keep_every, best, expected in (
            (None, None, None, [100, 150, 200, 250, 300]), (1, None, None, [300]), (2, None, None, [250, 300]),
            (1, None, 150, [150, 300]), (1, 100, None, [100, 200, 250, 300]), (1, 100, 150, [100, 150, 200, 300]),
        ):  # fmt: skip
            place = folder()
            for step in (100, 150, 200, 250):
                (place / f"checkpoint-{step}").mkdir()
            commit(place, 300)
            best = best and place / f"checkpoint-{best}"
            rotate(place, limit, keep_every, best)
            self.assertEqual(names(place), sorted(f"checkpoint-{step}" for step in expected))

    def test_nothing_goes_while_the_newest_is_not_whole(self):
        place = folder()
        for step in (2, 4):
            commit(place, step)
        break_file(place / "checkpoint-4")
        with self.assertLogs("t5suite", "WARNING"):
            self.assertEqual(rotate(place, 1), [])
        self.assertEqual(names(place), ["checkpoint-2", "checkpoint-4"])

    def test_leftovers_go_and_a_replaced_one_comes_back(self):
        place = folder()
        commit(place, 2).rename(place / ".replaced-checkpoint-2")
        commit(place, 4)
        shutil.copytree(place / "checkpoint-4", place / ".replaced-checkpoint-4")
        for name in (".saving-checkpoint-6", ".deleting-checkpoint-1", ".saving-checkpoint-x", ".saving-notes"):
            (place / name).mkdir()
        outside = folder()
        (outside / "file").touch()
        (place / ".deleting-checkpoint-9").symlink_to(outside)
        clean_leftovers(place)
        self.assertEqual(names(place), [".saving-checkpoint-x", ".saving-notes", "checkpoint-2", "checkpoint-4"])
        self.assertTrue((outside / "file").exists())
        self.assertEqual(clean_leftovers(place), [])


class FindingTest(parameterized.TestCase):
    def test_checkpoints_of_the_former_format_are_refused_untouched_with_the_version_that_reads_them(self):
        place = folder()
        for step in (2, 4, 6):
            path = commit(place, step)
            content = {**json.loads((path / "checkpoint.json").read_text()), "format": 1}
            del content["sha256"]
            text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
            signed = {**content, "sha256": hashlib.sha256(text).hexdigest()}
            (path / "checkpoint.json").write_text(json.dumps(signed))
        break_file(path)
        self.assertIsNone(damage(place / "checkpoint-4"), "what it holds can still be looked at, and exported")
        for resume in ("auto", str(place / "checkpoint-4")):
            with exits_with(78, "checkpoint-4 was written by t5suite 0.1.0, .*--model_name_or"):
                find_checkpoint(place, resume)
            self.assertEqual(names(place), ["checkpoint-2", "checkpoint-4", "checkpoint-6"])

    def test_newest_that_verifies_and_the_others_named_and_set_aside(self):
        place = folder()
        for step in (2, 4, 6, 10):
            commit(place, step)
        break_file(place / "checkpoint-10")
        (place / "checkpoint-6" / "config.json").unlink()
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(find_checkpoint(place, "auto", run_id=RUN), place / "checkpoint-4")
        text = "\n".join(logs.output)
        self.assertRegex(text, r"checkpoint-10 is damaged \(optimizer.pt: 10 bytes of \d+ \(cut short\?\)\)")
        self.assertRegex(text, r"checkpoint-6 is damaged \(config.json: is missing\); it is set aside as damaged-check")
        self.assertEqual(
            names(place), ["checkpoint-2", "checkpoint-4", "damaged-checkpoint-10", "damaged-checkpoint-6"]
        )

    def test_none_verifies_is_an_error_each_time_and_nothing_is_touched(self):
        place = folder()
        for step in (2, 4):
            break_file(commit(place, step))
        for _ in range(2):
            with exits_with(74, r"checkpoint-4 \(optimizer.*checkpoint-2 \(optimizer"):
                find_checkpoint(place, "auto")
        self.assertEqual(names(place), ["checkpoint-2", "checkpoint-4"])
        place = folder()
        commit(place, 2).rename(place / "damaged-checkpoint-2")
        with exits_with(74, "damaged-checkpoint-2 .set aside before"):
            find_checkpoint(place, "auto")

    def test_damaged_ones_are_never_deleted(self):
        place = folder()
        for step in (2, 4):
            commit(place, step)
        break_file(place / "checkpoint-4")
        find_checkpoint(place, "auto")
        for step in (4, 6, 8):
            commit(place, step)
            rotate(place, 1)
            clean_leftovers(place)
        self.assertEqual(names(place), ["checkpoint-8", "damaged-checkpoint-4"])

    def test_another_runs_checkpoint_and_one_without_a_manifest_do_not_count(self):
        place = folder()
        commit(place, 2)
        commit(place, 4, run_id="another")
        stock_checkpoint(place / "checkpoint-6")
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(find_checkpoint(place, "auto", run_id=RUN).name, "checkpoint-2")
        self.assertIn("of run another, not of run-1", "".join(logs.output))
        self.assertEqual(names(place), ["checkpoint-2", "damaged-checkpoint-4", "damaged-checkpoint-6"])

    def test_named_checkpoint_must_verify(self):
        place = folder()
        path = commit(place, 2)
        self.assertEqual(find_checkpoint(folder(), str(path)), path)
        break_file(path)
        with exits_with(74, "--resume .*checkpoint-2: optimizer.pt: 10 bytes"):
            find_checkpoint(folder(), str(path))
        self.assertEqual(names(place), ["checkpoint-2"])
        with exits_with(78, "choose auto, none or the path"):
            find_checkpoint(folder(), "atuo")

    def test_stock_checkpoint_is_taken_with_a_warning_if_it_is_complete_and_tells_its_step(self):
        path = stock_checkpoint(folder() / "checkpoint-4")
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(find_checkpoint(folder(), str(path)), path)
        self.assertIn("unverified", logs.output[0])
        link = path.parent / "latest"
        link.symlink_to(path)
        self.assertEqual(find_checkpoint(folder(), str(link)), path.resolve())
        for name in ("best", "checkpoint-last", "checkpoint-40-copy"):
            with exits_with(78, f"--resume .*{name}: .*checkpoint-N.*global_step"):
                find_checkpoint(folder(), str(stock_checkpoint(folder() / name)))
        (path / "trainer_state.json").write_text("{")
        with exits_with(74, "trainer_state.json is missing or broken"):
            find_checkpoint(folder(), str(path))

    def test_deepspeed_is_code_and_needs_trust_or_a_manifest(self):
        path = stock_checkpoint(folder() / "checkpoint-4")
        (path / "global_step4").mkdir()
        with exits_with(74, "loading it can run code"):
            find_checkpoint(folder(), str(path))
        self.assertEqual(find_checkpoint(folder(), str(path), trust=True), path)
        place = folder()

        def write(target):
            (target / "global_step4").mkdir()
            (target / "global_step4" / "zero_pp_rank_0.pt").write_bytes(b"state")

        self.assertEqual(find_checkpoint(folder(), str(commit_checkpoint(place, 4, write))), place / "checkpoint-4")
        (place / "checkpoint-4" / "global_step4" / "zero_pp_rank_0.pt").write_bytes(b"STATE")
        with exits_with(74, "zero_pp_rank_0.pt: SHA-256"):
            find_checkpoint(folder(), str(place / "checkpoint-4"), trust=True)

    def test_reading_errors_of_a_disk_count_as_damage(self):
        place = folder()
        for step in (2, 4):
            commit(place, step)

        def read(path):
            if Path(path) == place / "checkpoint-4" / "config.json":
                raise OSError(5, "Input/output error", str(path))
            return hash_file(path)

        with mock.patch("t5suite.training.checkpoints.manifests.hash_file", read):
            self.assertRegex(damage(place / "checkpoint-4"), "config.json: Input/output error")
            self.assertEqual(find_checkpoint(place, "auto").name, "checkpoint-2")


def stock_checkpoint(path):
    path.mkdir()
    (path / "trainer_state.json").write_text("{}")
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
        (path / name).write_bytes(b"x")
    return path
