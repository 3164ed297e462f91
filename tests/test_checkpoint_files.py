"""Files of a checkpoint: states that come back bit by bit; every damage is found and named."""

import contextlib
import functools
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from absl.testing import parameterized
from checkpoint_runs import copy_checkpoint, damage_of, make_trainer
from support import folder, write_manifest
from transformers import TrainerCallback

from t5suite.testing import exits_with, tiny_model, tiny_run

FILES = ("model.safetensors", "optimizer.pt", "rank-0.json", "checkpoint.json")


def same(a, b):
    if torch.is_tensor(a):
        raw = lambda t: t.contiguous().reshape(-1).view(torch.uint8)
        return torch.is_tensor(b) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return [*a] == [*b] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return np.asarray(a).tobytes() == np.asarray(b).tobytes() if isinstance(a, float) else a == b


class Draws(TrainerCallback):
    """Draws from all generators at the end of each step."""

    def __init__(self):
        self.draws = {}

    def on_step_end(self, args, state, control, **kwargs):
        self.draws[state.global_step] = (
            random.random(),
            random.gauss(0, 1),
            *np.random.randn(3),
            *torch.randn(3).tolist(),
        )


class Puts(TrainerCallback):
    """Puts a value into the state of the optimizer."""

    def __init__(self, value):
        self.value = value

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        optimizer.state[optimizer.param_groups[0]["params"][0]]["value"] = self.value


OPTIMIZERS = (
    {"optimizer": "adamw"},
    {"optimizer": "adamw_rms"},
    {"optimizer": "adafactor"},
    {"optimizer": "adafactor", "optim_args": "beta1=0.9"},
    {"optim": "adamw_torch_fused"},
    {"optim": "adafactor"},  # transformers' own
    {"optim": "sgd", "optim_args": "momentum=0.9"},
)


class StatesTest(parameterized.TestCase):
    @parameterized.parameters(*OPTIMIZERS)
    @pytest.mark.slow
    def test_a_restored_optimizer_goes_on_bit_by_bit(self, **optimizer):
        self.check_restored(optimizer, torch.float32)

    @parameterized.parameters(OPTIMIZERS[0], OPTIMIZERS[2])
    @pytest.mark.slow
    def test_so_does_one_of_weights_in_bfloat16(self, **optimizer):
        self.check_restored(optimizer, torch.bfloat16)

    @parameterized.parameters(OPTIMIZERS[1], *OPTIMIZERS[3:])
    @pytest.mark.slow  # how a state is kept is the same code for all of them
    def test_so_do_the_others_in_bfloat16(self, **optimizer):
        self.check_restored(optimizer, torch.bfloat16)

    def check_restored(self, optimizer, dtype):
        whole, again = folder(), folder()
        flags = {**optimizer, "max_steps": 3, "save_steps": 2}
        trainer = make_trainer(whole, model=tiny_model().to(dtype), **flags)
        trainer.train()
        resumed = make_trainer(again, model=tiny_model(seed=1).to(dtype), **flags)
        resumed.train(resume_from_checkpoint=str(whole / "checkpoint-2"))
        self.assertTrue(same(dict(resumed.model.state_dict()), dict(trainer.model.state_dict())))
        self.assertTrue(same(resumed.optimizer.state_dict(), trainer.optimizer.state_dict()))

    def test_the_scale_of_losses_goes_on(self):
        """fp16's, which doubles here with each sound update, from 4."""
        directory = folder()
        trainer, resumed = (
            make_trainer(place, optim="adamw_torch", max_steps=3, save_steps=2) for place in (directory, folder())
        )
        for each in (trainer, resumed):
            each.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        trainer.train()
        resumed.train(resume_from_checkpoint=str(directory / "checkpoint-2"))
        self.assertEqual([each.accelerator.scaler.get_scale() for each in (trainer, resumed)], [32.0, 32.0])
        self.assertTrue(same(dict(resumed.model.state_dict()), dict(trainer.model.state_dict())))

    @parameterized.parameters(Path("/"), np.float64(1), random.Random)
    @pytest.mark.quick_cases(1)
    def test_what_could_not_be_read_without_running_code_is_refused_when_it_is_saved(self, value):
        directory = folder()
        trainer = make_trainer(directory, optim="adamw_torch")
        trainer.add_callback(Puts(value))
        with exits_with(78, "^optimizer: objects of .* cannot be kept in a checkpoint"):
            trainer.train()
        self.assertEmpty(list(directory.iterdir()))

    @parameterized.parameters("empty", "cut", "noise", "pickle")
    def test_torn_files_and_pickles_are_checkpoint_errors(self, kind):
        checkpoint = copy_checkpoint()
        file = checkpoint / "optimizer.pt"
        content = {"empty": b"", "cut": file.read_bytes()[:-400], "noise": b"\xff" * 64}
        content["pickle"] = pickle.dumps(Path("/"))
        file.write_bytes(content[kind])
        (checkpoint / "checkpoint.json").unlink()
        trainer = make_trainer(folder(), optim="adamw_torch", max_steps=2)
        with exits_with(74, f"{file} is truncated, or contains Python"):
            trainer.train(resume_from_checkpoint=str(checkpoint))

    def test_a_state_that_does_not_fit_into_memory_is_not_called_truncated(self):
        checkpoint = copy_checkpoint()
        trainer = make_trainer(folder(), optim="adamw_torch", max_steps=2)
        error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")
        message = rf"{checkpoint}/.*\.pt does not fit into memory \(.*can't allocate memory.*\); use more memory"
        with mock.patch("torch.load", side_effect=error), exits_with(71, message):
            trainer.train(resume_from_checkpoint=str(checkpoint))

    def test_all_generators_go_on(self):
        directory, flags = folder(), {"max_steps": 3, "save_steps": 2}
        whole, resumed = Draws(), Draws()
        trainer = make_trainer(directory, **flags)
        trainer.add_callback(whole)
        trainer.train()
        trainer = make_trainer(folder(), **flags)
        trainer.add_callback(resumed)
        trainer.train(resume_from_checkpoint=str(directory / "checkpoint-2"))
        self.assertEqual(resumed.draws, {3: whole.draws[3]})

    @parameterized.parameters(
        ({"random_state": {}},), ({"python": 3},), ({"torch": []},), ({"numpy": None},),
        ({"numpy": ["MT19937", [0], 0, 0, 0.0]},),
    )  # fmt: skip
    def test_damaged_states_of_generators_are_checkpoint_errors(self, change):
        checkpoint = copy_checkpoint()
        file = checkpoint / "rank-0.json"
        content = json.loads(file.read_text())
        state = change.pop("random_state", content["random_state"])
        file.write_text(json.dumps({**content, "random_state": {**state, **change}}))
        (checkpoint / "checkpoint.json").unlink()
        trainer = make_trainer(folder(), optim="adamw_torch", max_steps=2)
        with exits_with(74, "random number generators"):
            trainer.train(resume_from_checkpoint=str(checkpoint))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def link(path):
    moved = path.parent.parent / "elsewhere"
    shutil.move(path, moved)
    path.symlink_to(moved)


# How to damage a file, and the part of the reason that names it.
DAMAGES = {
    "truncate": (lambda path: os.truncate(path, path.stat().st_size // 2), "cut short"),
    "empty": (lambda path: os.truncate(path, 0), "0 bytes of"), "flip": (flip, "SHA-256"),
    "delete": (Path.unlink, "missing"),
    "grow": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "instead of"), "link": (link, "link"),
    "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "no plain file"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "no plain file"),
}  # fmt: skip


NO_MANIFEST = (("delete", "checkpoint.json"), ("pipe", "checkpoint.json"), ("folder", "checkpoint.json"))
RUN = {"no_eval": True, "max_steps": 1, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 2}


@functools.cache
def finished_run() -> Path:
    """The directory of a run of one step; not to be changed."""
    return tiny_run(**RUN).directory


class DamageTest(parameterized.TestCase):
    def test_a_checkpoint_that_nobody_touched_is_whole(self):
        self.assertIsNone(damage_of(copy_checkpoint()))

    @parameterized.parameters(*((kind, file) for kind in DAMAGES for file in FILES if (kind, file) not in NO_MANIFEST))
    def test_every_damage_to_every_file_is_found_and_named(self, kind, file):
        inflict, reason = DAMAGES[kind]
        checkpoint = copy_checkpoint()
        inflict(checkpoint / file)
        self.assertRegex(damage_of(checkpoint), rf"^{file}.*({reason}|damaged)")

    @parameterized.parameters(*NO_MANIFEST)
    @pytest.mark.slow
    def test_a_run_does_not_go_on_from_a_checkpoint_without_a_manifest(self, kind, file):
        """Elsewhere it is a folder with a model such as any other."""
        inflict, reason = DAMAGES[kind]
        directory = shutil.copytree(finished_run(), folder() / "run")
        inflict(directory / "checkpoint-1" / file)
        with exits_with(74, rf"checkpoint-1 \({file}.*({reason}|damaged)"):
            tiny_run(**RUN | {"max_steps": 2}, extend=True, output_dir=str(directory))

    @parameterized.product(file=("optimizer.pt", "scheduler.pt"), has_manifest=(True, False))
    def test_a_trainer_does_not_resume_from_a_checkpoint_that_lacks_a_state(self, file, has_manifest):
        """Not with a fresh state in its place, which would be another run without a word."""
        checkpoint = copy_checkpoint()
        (checkpoint / file).unlink()
        if not has_manifest:
            (checkpoint / "checkpoint.json").unlink()
        trainer = make_trainer(checkpoint.parent, optim="adamw_torch", max_steps=2)
        with exits_with(74, rf"{file}.*missing"):
            trainer.train(resume_from_checkpoint=str(checkpoint))

    @parameterized.parameters(*DAMAGES)
    @pytest.mark.quick_cases(1)
    def test_a_trainer_does_not_resume_from_damaged_random_numbers(self, kind):
        """It would draw other ones than the run that wrote the checkpoint, without a word."""
        checkpoint = copy_checkpoint()
        inflict, reason = DAMAGES[kind]
        inflict(checkpoint / "rank-0.json")
        trainer = make_trainer(checkpoint.parent, optim="adamw_torch", max_steps=2)
        with exits_with(74, rf"rank-0.json.*({reason}|damaged)"):
            trainer.train(resume_from_checkpoint=str(checkpoint))

    @pytest.mark.slow
    def test_a_trainer_resumes_from_the_newest_of_its_checkpoints_that_verifies(self):
        directory = folder()
        make_trainer(directory, max_steps=3, save_steps=1, save_strategy="steps").train()
        whole = make_trainer(folder(), max_steps=4)
        whole.train(resume_from_checkpoint=str(directory / "checkpoint-2"))
        flip(directory / "checkpoint-3" / "optimizer.pt")
        resumed = make_trainer(directory, max_steps=4)
        resumed.train(resume_from_checkpoint=True)
        self.assertTrue(same(dict(resumed.model.state_dict()), dict(whole.model.state_dict())))
        with exits_with(78, "no checkpoint in"):
            make_trainer(folder()).train(resume_from_checkpoint=True)

    @parameterized.parameters({"world_size": 2}, {"run_id": "another"}, {"details": {"settings": "other"}})
    def test_so_is_a_manifest_that_was_edited(self, **change):
        checkpoint = copy_checkpoint()
        file = checkpoint / "checkpoint.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
        self.assertRegex(damage_of(checkpoint), "^checkpoint.json is damaged")

    def test_so_is_damage_in_a_folder(self):
        checkpoint = copy_checkpoint()
        (checkpoint / "original").mkdir()
        (checkpoint / "original" / "config.json").write_text("{}")
        write_manifest(checkpoint)
        self.assertIsNone(damage_of(checkpoint))
        (checkpoint / "original" / "config.json").write_text("[]")
        self.assertRegex(damage_of(checkpoint), "^original/config.json: SHA-256")

    @parameterized.parameters(
        "rng_state.pth", "pytorch_model.bin", "model.safetensors.index.json", "global_step4/x.pt", "a.py"
    )
    def test_what_libraries_would_load_unlisted_is_damage(self, name):
        checkpoint = copy_checkpoint()
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_bytes(b"\x80\x04.")
        self.assertRegex(damage_of(checkpoint), f"^{name}: not in checkpoint.json")

    @parameterized.parameters("rng_state.pth", "rng_state_1.pth")
    def test_random_numbers_of_the_trainer_are_damage_though_they_are_listed(self, name):
        """It would load them; a run of ours keeps its own in `rank-0.json`."""
        checkpoint = copy_checkpoint()
        (checkpoint / name).write_bytes(b"\x80\x04.")
        write_manifest(checkpoint)
        self.assertRegex(damage_of(checkpoint), f"^{name}: not a file of this suite's checkpoints")

    def test_a_note_is_a_warning(self):
        checkpoint = copy_checkpoint()
        (checkpoint / "notes.txt").write_text("best so far")
        with contextlib.redirect_stderr(io.StringIO()) as output:
            self.assertIsNone(damage_of(checkpoint))
        self.assertRegex(output.getvalue(), "WARNING .*notes.txt")

    def test_another_step_s_name_and_a_newer_format_are_damage(self):
        checkpoint = copy_checkpoint()
        renamed = checkpoint.rename(checkpoint.with_name("checkpoint-40"))
        self.assertRegex(damage_of(renamed), "says step 1")
        write_manifest(renamed, format=3)
        self.assertRegex(damage_of(renamed), "format 3; this version reads format 2")

    def test_the_manifest_says_of_which_run_it_is_and_has_every_file(self):
        checkpoint = finished_run() / "checkpoint-1"
        manifest = json.loads((checkpoint / "checkpoint.json").read_text())
        of_run = json.loads((finished_run() / "manifest.json").read_text())
        self.assertEqual((manifest["step"], manifest["world_size"], manifest["format"]), (1, 1, 2))
        self.assertEqual(manifest["run_id"], of_run["run_id"])
        no_scores = {}
        self.assertEqual(manifest["details"], {"settings": of_run["fingerprint"], "selects_by": no_scores})
        for name, record in manifest["files"].items():
            content = (checkpoint / name).read_bytes()
            self.assertEqual(record, {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        names = {path.name for path in checkpoint.iterdir()}
        self.assertEqual(set(manifest["files"]), names - {"checkpoint.json"})

    @parameterized.parameters(
        "../x", "/etc/passwd", "a/../../x", "", ".", "..", "a//b", "a/", "./a", "a\\b", "a\0b", "a\nb", "\ud800",
        "checkpoint.json",
    )  # fmt: skip
    def test_names_that_lead_elsewhere_are_refused(self, name):
        self.check_refused(name)

    @parameterized.parameters("../secret", "{}/secret")
    def test_so_are_those_of_files_that_are_there_and_as_the_manifest_says(self, name):
        place = Path(tempfile.mkdtemp())
        (place / "secret").write_text("x")
        self.check_refused(name.format(place), place)

    def check_refused(self, name, place=None):
        checkpoint = copy_checkpoint()
        if place is not None:
            checkpoint = checkpoint.rename(place / checkpoint.name)
        record = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
        write_manifest(checkpoint, files={name: record})
        self.assertRegex(damage_of(checkpoint), "is no name of a file inside the checkpoint")
