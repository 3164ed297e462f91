"""The commit protocol: killed at any point, on a full disk, over ranks; which checkpoint is found and which ones go."""

import contextlib
import errno
import functools
import hashlib
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from absl.testing import parameterized
from checkpoint_runs import copy_checkpoint, damage_of, make_trainer
from ranks_in_threads import outcomes
from support import damaged_files, folder, write_manifest
from transformers import TrainerCallback

from t5suite.testing import TINY_T5, exits_with, tiny_run, tiny_tuner

RUN = {
    "config_overrides": TINY_T5, "from_scratch": True, "no_eval": True, "eval_strategy": "no", "max_steps": 4,
    "save_strategy": "steps", "save_steps": 1, "save_total_limit": 9, "per_device_train_batch_size": 2,
    "optim": "adamw_torch", "max_train_samples": 16,
}  # fmt: skip


def names(place) -> list[str]:
    return sorted(path.name for path in Path(place).iterdir())


def checkpoints_in(place) -> list[str]:
    return [name for name in names(place) if "checkpoint" in name]


def break_file(checkpoint, name="optimizer.pt") -> None:
    os.truncate(checkpoint / name, 10)


class Ended(Exception):
    """Ends a run."""


class Ends(TrainerCallback):
    """Ends a run after the checkpoint of step 3, and, on request, one that goes on before its first step."""

    def __init__(self, before_first_step: bool = False):
        self.before_first_step, self.resumed_step = before_first_step, None

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == 3 and self.resumed_step == 0:
            raise Ended

    def on_train_begin(self, args, state, control, **kwargs):
        self.resumed_step = state.global_step
        if self.before_first_step:
            raise Ended


@functools.cache
def ended_run() -> Path:
    """The directory of a run that ended after the third of four steps, with three checkpoints; not to be changed.

    It has one thread, as in processes that are killed: sums over several differ in the last bit.
    """
    directory = folder() / "run"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.suppress(Ended):
            finish(directory)
    finally:
        torch.set_num_threads(threads)
    return directory


def finish(directory, **flags) -> None:
    tiny_tuner(**RUN | flags, output_dir=str(directory), callbacks=Ends()).train()


def start(directory, **flags) -> int | None:
    """Starts a run; returns the step from which it goes on, and ends it there."""
    ends = Ends(before_first_step=True)
    with contextlib.suppress(Ended):
        tiny_tuner(**RUN | flags, output_dir=str(directory), callbacks=ends).train()
    return ends.resumed_step


def copy_run() -> Path:
    return shutil.copytree(ended_run(), folder() / "run", symlinks=True)


class FindingTest(parameterized.TestCase):
    """From which checkpoint a run goes on."""

    def test_newest_that_verifies_and_the_others_named_and_set_aside(self):
        run = copy_run()
        break_file(run / "checkpoint-3")
        (run / "checkpoint-2" / "config.json").unlink()
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(start(run), 1)
        text = "\n".join(logs.output)
        self.assertRegex(text, r"checkpoint-3 is damaged \(optimizer.pt: 10 bytes of \d+ \(cut short\?\)\)")
        self.assertRegex(text, r"checkpoint-2 is damaged \(config.json: is missing\); it is set aside as damaged-check")
        self.assertEqual(checkpoints_in(run), ["checkpoint-1", "damaged-checkpoint-2", "damaged-checkpoint-3"])

    def test_none_verifies_is_an_error_each_time_and_nothing_is_touched(self):
        run = copy_run()
        for step in (1, 2, 3):
            break_file(run / f"checkpoint-{step}")
        for _ in range(2):
            with exits_with(74, r"checkpoint-3 \(optimizer.*checkpoint-2 \(optimizer.*checkpoint-1 \(optimizer"):
                start(run)
        self.assertEqual(checkpoints_in(run), ["checkpoint-1", "checkpoint-2", "checkpoint-3"])

    def test_one_that_was_set_aside_before_is_no_new_beginning(self):
        run = copy_run()
        for step in (1, 2):
            shutil.rmtree(run / f"checkpoint-{step}")
        (run / "checkpoint-3").rename(run / "damaged-checkpoint-3")
        with exits_with(74, "damaged-checkpoint-3 .set aside before"):
            start(run)

    def test_another_run_s_checkpoint_and_one_without_a_manifest_do_not_count(self):
        run = copy_run()
        write_manifest(run / "checkpoint-2", run_id="another")
        (run / "checkpoint-3" / "checkpoint.json").unlink()
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(start(run), 1)
        self.assertRegex("\n".join(logs.output), r"of run another, not of \w+")
        self.assertEqual(checkpoints_in(run), ["checkpoint-1", "damaged-checkpoint-2", "damaged-checkpoint-3"])

    @pytest.mark.slow
    def test_checkpoints_of_the_former_format_are_refused_untouched_with_the_version_that_reads_them(self):
        run = copy_run()
        for step in (1, 2, 3):
            write_manifest(run / f"checkpoint-{step}", format=1, run_id=run_id_of(run))
        break_file(run / "checkpoint-3")
        for flags in ({}, {"resume": str(run / "checkpoint-2")}):
            with exits_with(78, "checkpoint-2 was written by t5suite 0.1.0, .*--model_name_or"):
                start(run, **flags)
            self.assertEqual(checkpoints_in(run), ["checkpoint-1", "checkpoint-2", "checkpoint-3"])
        shutil.rmtree(run / "checkpoint-3")
        (run / "model.safetensors").unlink(missing_ok=True)
        self.assertIsNone(damage_of(run / "checkpoint-2"), "what it holds can still be looked at, and exported")

    def test_a_named_checkpoint_is_taken(self):
        self.assertEqual(start(folder() / "run", resume=str(ended_run() / "checkpoint-2")), 2)

    def test_a_named_checkpoint_must_verify(self):
        run = copy_run()
        break_file(run / "checkpoint-2")
        with exits_with(74, "--resume .*checkpoint-2: optimizer.pt: 10 bytes"):
            start(folder() / "run", resume=str(run / "checkpoint-2"))
        self.assertEqual(checkpoints_in(run), ["checkpoint-1", "checkpoint-2", "checkpoint-3"])

    def test_what_names_no_checkpoint_is_refused(self):
        with exits_with(78, "choose auto, none or the path"):
            start(folder() / "run", resume="atuo")

    @pytest.mark.slow
    def test_a_link_to_a_stock_checkpoint_is_followed_with_a_warning(self):
        path = stock_checkpoint()
        link = path.parent / "latest"
        link.symlink_to(path)
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(start(folder() / "run", resume=str(link)), 3)
        self.assertIn("unverified", "\n".join(logs.output))

    @parameterized.parameters("checkpoint-40-copy", "best", "checkpoint-last")
    @pytest.mark.quick_cases(1)
    def test_a_stock_checkpoint_must_tell_its_step(self, name):
        path = stock_checkpoint()
        with exits_with(78, f"--resume .*{name}: .*checkpoint-N.*global_step"):
            start(folder() / "run", resume=str(path.rename(path.with_name(name))))

    def test_a_stock_checkpoint_must_be_complete(self):
        path = stock_checkpoint()
        (path / "trainer_state.json").write_text("{")
        with exits_with(74, "trainer_state.json is missing or broken"):
            start(folder() / "run", resume=str(path))

    def deepspeed_checkpoint(self) -> Path:
        """Without a manifest, as DeepSpeed leaves it."""
        path = stock_checkpoint()
        (path / "global_step3").mkdir()
        (path / "global_step3" / "zero_pp_rank_0.pt").write_bytes(b"state")
        return path

    def test_deepspeed_is_code(self):
        with exits_with(74, "loading it can run code"):
            start(folder() / "run", resume=str(self.deepspeed_checkpoint()))

    @parameterized.parameters("trust", "a manifest")
    @pytest.mark.quick_cases(1)
    def test_deepspeed_is_taken_with_trust_or_a_manifest(self, reason):
        path = self.deepspeed_checkpoint()
        if reason == "a manifest":
            write_manifest(path)
        with exits_with(78, "was written under DeepSpeed"):  # it is taken, and fits no run without DeepSpeed
            start(folder() / "run", resume=str(path), trust_checkpoint=reason == "trust")

    def test_trust_is_none_in_what_has_changed(self):
        path = self.deepspeed_checkpoint()
        write_manifest(path)
        (path / "global_step3" / "zero_pp_rank_0.pt").write_bytes(b"STATE")
        with exits_with(74, "zero_pp_rank_0.pt: SHA-256"):
            start(folder() / "run", resume=str(path), trust_checkpoint=True)

    def test_reading_errors_of_a_disk_count_as_damage(self):
        run, digest = copy_run(), hashlib.file_digest

        def read(file, name):
            if str(file.name) == str(run / "checkpoint-3" / "config.json"):
                raise OSError(errno.EIO, "Input/output error", file.name)
            return digest(file, name)

        with mock.patch("hashlib.file_digest", read), self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(start(run), 2)
        self.assertRegex("\n".join(logs.output), r"checkpoint-3 is damaged \(\S*config.json: Input/output error\)")


def run_id_of(run) -> str:
    return json.loads((run / "manifest.json").read_text())["run_id"]


def stock_checkpoint() -> Path:
    """A checkpoint as Hugging Face's trainer leaves it: without a manifest."""
    path = shutil.copytree(ended_run() / "checkpoint-3", folder() / "checkpoint-3")
    (path / "checkpoint.json").unlink()
    return path


class RotationTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"save_total_limit": 2}, [3, 4]),
        ({"save_total_limit": 1, "keep_every": 2}, [2, 3, 4]),
        ({"save_total_limit": 1}, [4]),
        ({"save_total_limit": 9}, [1, 2, 3, 4]),
    )
    @pytest.mark.quick_cases(1)
    def test_what_stays(self, flags, steps):
        directory = folder()
        make_trainer(directory, max_steps=4, **flags).train()
        self.assertEqual(names(directory), [f"checkpoint-{step}" for step in steps])

    @parameterized.parameters(({"save_total_limit": 1}, [1, 3]), ({"save_total_limit": 1, "keep_every": 2}, [1, 2, 3]))
    @pytest.mark.slow
    def test_the_best_stays(self, flags, steps):
        """Of equal checkpoints the first is the best."""
        by_steps = {"eval_strategy": "steps", "eval_steps": 1, "max_eval_samples": 2, "learning_rate": 0.0}
        settings = {**RUN, **by_steps, **flags, "no_eval": False, "load_best_model_at_end": True, "max_steps": 3}
        run = tiny_run(**settings, eval_method="score")
        self.assertEqual(checkpoints_in(run.directory), [f"checkpoint-{step}" for step in steps])

    def test_the_one_before_the_newest_stays_beside_those_of_keep_every_and_the_bests_of_their_time(self):
        directory = folder()

        class Improves(TrainerCallback):
            """The best step is 3, then 8, 13, ...; after every save what is there."""

            saves = []

            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step % 5 == 3:
                    state.best_global_step = state.global_step

            def on_save(self, args, state, control, **kwargs):
                self.saves.append({int(name.removeprefix("checkpoint-")) for name in checkpoints_in(directory)})

        trainer = make_trainer(directory, max_steps=16, save_total_limit=3, keep_every=5)
        trainer.add_callback(Improves)
        trainer.train()
        self.assertLen(Improves.saves, 16)
        for step, steps in enumerate(Improves.saves[8:], start=9):
            best = step - (step - 3) % 5
            self.assertContainsSubset({best, step - 1, step, *range(5, step, 5)}, steps)
            self.assertLen([there for there in steps if there % 5], 3)

    def test_nothing_goes_while_the_newest_is_not_whole(self):
        directory, rename = folder(), os.rename

        def damage_the_second(source, target):
            rename(source, target)
            if Path(target).name == "checkpoint-2":
                break_file(Path(target))

        with mock.patch("os.rename", damage_the_second), self.assertLogs("t5suite", "WARNING"):
            make_trainer(directory, max_steps=2, save_total_limit=1).train()
        self.assertEqual(names(directory), ["checkpoint-1", "checkpoint-2"])

    def test_leftovers_go_and_a_replaced_one_comes_back(self):
        run = copy_run()
        (run / "checkpoint-2").rename(run / ".replaced-checkpoint-2")
        shutil.copytree(run / "checkpoint-3", run / ".replaced-checkpoint-3")
        for name in (".saving-checkpoint-6", ".deleting-checkpoint-1", ".saving-checkpoint-x", ".saving-notes"):
            (run / name).mkdir()
        unlink = os.unlink

        def refuse_a_replaced_one(path, *, dir_fd=None):  # as over NFS, where a process still reads it
            if path == "optimizer.pt":
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
            unlink(path, dir_fd=dir_fd)

        with mock.patch("os.unlink", refuse_a_replaced_one):
            self.assertEqual(start(run), 3)
        self.assertLen(names(run), len(names(ended_run())) + 3)
        self.assertEqual(start(run), 3)
        stays = [".saving-checkpoint-x", "checkpoint-1", "checkpoint-2", "checkpoint-3"]
        self.assertEqual(checkpoints_in(run), stays)
        self.assertTrue((run / ".saving-notes").is_dir())

    def test_nothing_behind_a_link_is_deleted(self):
        run, outside = copy_run(), folder()
        (outside / "file").touch()
        (run / ".deleting-checkpoint-9").symlink_to(outside)
        with exits_with(78, "deleting-checkpoint-9 .*leads to"):
            start(run)
        self.assertTrue((outside / "file").exists())

    @pytest.mark.slow
    def test_damaged_ones_are_never_deleted(self):
        run = copy_run()
        break_file(run / "checkpoint-3")
        finish(run, save_total_limit=1)
        self.assertEqual(checkpoints_in(run), ["checkpoint-4", "damaged-checkpoint-3"])


class Acts(TrainerCallback):
    """Does something once the first checkpoint is there."""

    def __init__(self, action):
        self.action = action

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.action()


def second_checkpoint(directory, action=lambda: None, **flags) -> None:
    """Trains two steps and saves after each; between the checkpoints an action."""
    trainer = make_trainer(directory, max_steps=2, **flags)
    trainer.add_callback(Acts(action))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.train()


def failing_sync(error: OSError, name: str = ""):
    """The disk fails for a file of the second checkpoint, or for all of them."""
    sync = os.fsync

    def fail(descriptor):
        if f".saving-checkpoint-2/{name}" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise error
        sync(descriptor)

    return mock.patch("os.fsync", fail)


class CommitTest(parameterized.TestCase):
    def test_nothing_has_the_name_before_all_is_on_the_disk(self):
        directory, synced, renamed, sync, rename = folder(), [], [], os.fsync, os.rename

        def note_sync(descriptor):
            synced.append(os.fstat(descriptor).st_ino)
            sync(descriptor)

        def note_rename(source, target):
            renamed.append(Path(target).name)
            on_disk = set(synced)
            self.assertEqual([p for p in Path(source).rglob("*") if p.stat().st_ino not in on_disk], [])
            self.assertEqual(synced[-1], Path(source).stat().st_ino, "the folder with the manifest in it comes last")
            rename(source, target)

        with mock.patch("os.fsync", note_sync), mock.patch("os.rename", note_rename):
            make_trainer(directory).train()
        self.assertEqual(renamed, ["checkpoint-1"])
        self.assertEqual(synced[-1], directory.stat().st_ino, "the rename itself is brought to the disk")

    def test_a_disk_that_fails_at_the_end_is_an_error_that_names_the_file(self):
        directory = folder()
        failing = failing_sync(OSError(errno.EIO, "Input/output error"), "config.json")
        with failing, exits_with(74, "config.json: .*EIO.*1 is unchanged.*file system is at fault") as failure:
            second_checkpoint(directory)
        self.assertNotRegex(failure.message, "room|bytes")
        self.assertEqual(names(directory), ["checkpoint-1"])
        self.assertEqual(damaged_files(directory / "checkpoint-1"), [])

    @parameterized.parameters(errno.ESTALE, errno.EIO)
    @pytest.mark.quick_cases(1)
    def test_a_faulty_disk_is_not_called_full(self, code):
        failing = failing_sync(OSError(code, os.strerror(code)))
        with failing, exits_with(74, f"{os.strerror(code)}.*file system is at fault") as failure:
            second_checkpoint(folder())
        self.assertNotRegex(failure.message, "room|bytes")

    def test_a_file_system_without_inodes_is_said_to_have_none(self):
        failing = failing_sync(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        without_inodes = SimpleNamespace(f_bavail=1000, f_frsize=4096, f_files=64, f_favail=0)
        without = mock.patch("os.statvfs", return_value=without_inodes)
        with without, failing, exits_with(74, "4,096,000 bytes free, but none of its 64 inodes: delete"):
            second_checkpoint(folder())

    def test_what_is_committed_is_readable_to_whom_the_umask_says(self):
        self.addCleanup(os.umask, os.umask(0o027))
        directory = folder()
        make_trainer(directory).train()
        for path in (directory / "checkpoint-1").iterdir():
            self.assertEqual(oct(path.stat().st_mode & 0o777), "0o640", path.name)

    @parameterized.parameters(
        lambda place: (place / "a").symlink_to(place / "config.json"), lambda place: (place / "a\nb").write_text("")
    )
    def test_files_that_could_not_be_verified_are_not_committed(self, add_file):
        """A model or tokenizer of one's own may write any file."""
        directory = folder()
        trainer = make_trainer(directory)
        save = trainer.model.save_pretrained

        def save_and_add(place, **settings):
            save(place, **settings)
            add_file(Path(place))

        with mock.patch.object(trainer.model, "save_pretrained", save_and_add), self.assertRaises(ValueError):
            trainer.train()
        self.assertEqual(names(directory), [])

    @parameterized.parameters((200_000, r"\S+optimizer\.pt"), (0, r"\S+"), (1000, r"\S+"))
    @pytest.mark.slow
    def test_a_full_disk_leaves_the_previous_one_and_says_what_was_missing(self, most_bytes, file):
        directory = folder()
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        fill = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limit[1]))
        try:
            with exits_with(
                74,
                rf"checkpoint-2 could not be written: {file}: File too large \(EFBIG\); about [\d,]+ bytes wanted, "
                r"[\d,]+ bytes free; checkpoint-1 is unchanged; make room",
            ):
                second_checkpoint(directory, fill, optim="adamw_torch")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        self.assertEqual(names(directory), ["checkpoint-1"])
        self.assertEqual(damaged_files(directory / "checkpoint-1"), [])
        second = make_trainer(directory, max_steps=2, optim="adamw_torch")
        second.train(resume_from_checkpoint=str(directory / "checkpoint-1"))
        self.assertEqual(names(directory), ["checkpoint-1", "checkpoint-2"])

    @parameterized.parameters("inline_container.cc:664] . unexpected pos 78656 vs 78548", "PytorchStreamWriter failed")
    def test_libraries_words_for_a_full_disk(self, words):
        failing = mock.patch("torch.save", side_effect=RuntimeError(words))
        with failing, exits_with(74, f"{re.escape(words)}|could not be written"):
            make_trainer(folder()).train()

    def test_other_errors_of_libraries_are_raised_as_they_are(self):
        failing = mock.patch("torch.save", side_effect=RuntimeError("shapes do not match"))
        with failing, self.assertRaisesRegex(RuntimeError, "^shapes do not match$"):
            make_trainer(folder()).train()

    @parameterized.parameters(("another", ["checkpoint-1", "damaged-checkpoint-1"]), ("", ["checkpoint-1"]))
    @pytest.mark.slow
    def test_another_run_s_checkpoint_of_the_same_step_is_set_aside_and_the_run_s_own_replaced(self, run_id, expected):
        directory = copy_checkpoint().parent
        write_manifest(directory / "checkpoint-1", run_id=run_id, details={"mark": 1})
        make_trainer(directory).train()
        self.assertEqual(names(directory), expected)
        manifest = json.loads((directory / "checkpoint-1" / "checkpoint.json").read_text())
        self.assertEqual((manifest["run_id"], manifest["details"]), ("", {}))


class RanksTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_two_ranks_commit_one_checkpoint_and_fail_together(self):
        directory = folder()
        sync = os.fsync

        def full_on_the_second_rank(descriptor):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if ".saving-checkpoint-2" in path and dist.get_rank() == 1:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            sync(descriptor)

        with mock.patch("os.fsync", full_on_the_second_rank):
            errors = outcomes(2, lambda: make_trainer(directory, max_steps=2).train())
        for error in errors:
            self.assertEqual(error.exit_code, 74)
            self.assertRegex(str(error), "No space left on device")
        self.assertEqual(names(directory), ["checkpoint-1"])
        self.assertEqual(damaged_files(directory / "checkpoint-1"), [])
        manifest = json.loads((directory / "checkpoint-1" / "checkpoint.json").read_text())
        self.assertContainsSubset(["rank-0.json", "rank-1.json"], manifest["files"])
        self.assertEqual(manifest["world_size"], 2)


def killed_at(point, function, directory) -> int:
    """Calls a function in a process that gets SIGKILL at its point-th operation on files; returns how many it made.

    Python announces each of them to an audit hook before it is made (PEP 578); fsync is counted by hand. `point` may
    be a function of an operation's event and arguments.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            torch.set_num_threads(1)  # the parent's threads are not here
            count = count_operations(point, directory)
            function()
            os.write(write_end, str(count()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as lines:
        text = lines.read()
    _, status = os.waitpid(pid, 0)
    assert (status == signal.SIGKILL) == (point is not None), (status, text)
    return int(text or 0)


def count_operations(point, directory):
    """Counts this process's operations on files of a directory, and ends it at one; the result tells their number."""
    number = 0

    def note(event="fsync", arguments=()):
        nonlocal number
        if event == "open" and not str(arguments[0]).startswith(str(directory)):
            return
        if event in ("fsync", "open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"):
            number += 1
            if point(event, arguments) if callable(point) else number == point:
                os.kill(os.getpid(), signal.SIGKILL)

    sync = os.fsync
    os.fsync = lambda descriptor: (note(), sync(descriptor), note())
    sys.addaudithook(note)
    return lambda: number


def in_memory(test) -> Path:
    """A folder in memory: what is on a disk after a power cut is not what a SIGKILL can show."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    test.addCleanup(shutil.rmtree, place)
    return place


def writes_the_optimizer(event, arguments):
    return event == "open" and str(arguments[0]).endswith(".saving-checkpoint-2/optimizer.pt")


def renames_the_second(event, arguments):
    return event == "os.rename" and str(arguments[1]).endswith("/checkpoint-2")


def deletes_the_first(event, arguments):
    return event == "os.remove" and ".deleting-checkpoint-1" in os.readlink(f"/proc/self/fd/{arguments[1]}")


class KillTest(parameterized.TestCase):
    @parameterized.parameters(
        (writes_the_optimizer, [".saving-checkpoint-2", "checkpoint-1"], "checkpoint-1"),
        (renames_the_second, [".saving-checkpoint-2", "checkpoint-1"], "checkpoint-1"),
        (deletes_the_first, [".deleting-checkpoint-1", "checkpoint-2"], "checkpoint-2"),
    )
    @pytest.mark.quick_cases(1)
    def test_a_verified_checkpoint_exists_wherever_a_save_is_killed(self, point, left, whole):
        directory = in_memory(self)
        killed_at(point, lambda: second_checkpoint(directory, save_total_limit=1), directory)
        self.assertEqual(names(directory), left)
        self.assertEqual(damaged_files(directory / whole), [])

    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_model(self):
        """It goes on from its second checkpoint, makes the third again and the fourth, and deletes older ones."""
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # as in `ended_run`
        memory = in_memory(self)
        whole, run, before = memory / "whole", memory / "run", memory / "before"
        shutil.copytree(ended_run(), whole)
        finish(whole)
        shutil.copytree(ended_run(), before)
        shutil.copytree(before, run)

        def go_on():
            finish(run, save_total_limit=1, resume=str(run / "checkpoint-2"))

        operations = killed_at(None, go_on, run)
        self.assertGreater(operations, 60)
        self.assertEqual(checkpoints_in(run), ["checkpoint-4", "left-checkpoint-3"])
        for point in range(1, operations + 1, 9):
            shutil.rmtree(run)
            shutil.copytree(before, run)
            killed_at(point, go_on, run)
            with contextlib.redirect_stdout(io.StringIO()):
                finish(run, save_total_limit=1)
            # A run that was killed after its last checkpoint has no other one to make, and so deletes none.
            names_of_all = [*(f"checkpoint-{step}" for step in (1, 2, 3, 4)), "left-checkpoint-3"]
            self.assertContainsSubset(checkpoints_in(run), names_of_all, point)
            self.assertEqual(damaged_files(run / "checkpoint-4"), [], point)
            for name in ("model.safetensors", "checkpoint-4/optimizer.pt"):
                self.assertEqual((run / name).read_bytes(), (whole / name).read_bytes(), (point, name))
