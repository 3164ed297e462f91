"""Files of a checkpoint: states that come back bit by bit; every damage is found and named."""

import hashlib
import json
import os
import pickle
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from absl.testing import parameterized
from transformers import T5Config, T5ForConditionalGeneration

from t5suite.optim.optimizers import OPTIMIZERS, make_optimizer
from t5suite.testing import exits_with
from t5suite.training.checkpoints import states
from t5suite.training.checkpoints.committing import commit_checkpoint
from t5suite.training.checkpoints.manifests import MANIFEST_FILE, Manifest, Record, check_name, damage
from t5suite.training.checkpoints.states import load_state, random_state, restore_random_state, save_state

FILES = ("model.safetensors", "optimizer.pt", "rank-0.json", MANIFEST_FILE)


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


def tiny_t5(dtype=torch.float32):
    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config).to(dtype)


def trained(model, optimizer, steps=3):
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def round_trip(state):
    place = tempfile.mkdtemp()
    save_state(place, "optimizer", state)
    return load_state(place, "optimizer")


MAKERS = {
    **{name: lambda model, name=name: make_optimizer(name, model, 1e-2) for name in OPTIMIZERS},
    "adafactor_with_momentum": lambda model: make_optimizer("adafactor", model, 1e-2, {"beta1": 0.9}),
    "torch_adamw_fused": lambda model: torch.optim.AdamW(model.parameters(), fused=True, amsgrad=True),
    "named_groups": lambda model: torch.optim.SGD(
        [{"params": [p], "name": n} for n, p in model.named_parameters()], lr=1.0, momentum=0.9
    ),
}


class StatesTest(parameterized.TestCase):
    @parameterized.parameters(*MAKERS)
    def test_a_restored_optimizer_goes_on_bit_by_bit(self, name):
        for dtype in (torch.float32, torch.bfloat16):
            model, other = tiny_t5(dtype), tiny_t5(dtype)
            optimizer, restored = MAKERS[name](model), MAKERS[name](other)
            trained(model, optimizer)
            state = round_trip(optimizer.state_dict())
            self.assertTrue(same(state, optimizer.state_dict()))
            other.load_state_dict(model.state_dict())
            states.restore_optimizer(restored, state)
            self.assertTrue(same(restored.state_dict(), optimizer.state_dict()))
            trained(model, optimizer)
            trained(other, restored)
            self.assertTrue(same(dict(other.state_dict()), dict(model.state_dict())))
            self.assertTrue(same(restored.state_dict(), optimizer.state_dict()))

    def test_what_could_not_be_read_without_running_code_is_refused_when_it_is_saved(self):
        for value in (Path("/"), np.float64(1), random.Random):
            with exits_with(78, "^optimizer: objects of .* cannot be kept in a checkpoint"):
                save_state(tempfile.mkdtemp(), "optimizer", {"state": {3: value}})

    def test_torn_files_and_pickles_are_checkpoint_errors(self):
        place = Path(tempfile.mkdtemp())
        save_state(place, "optimizer", [torch.zeros(800)])
        whole = (place / "optimizer.pt").read_bytes()
        for content in (b"", whole[:-400], b"\xff" * 64, pickle.dumps(Path("/")), None):
            (place / "optimizer.pt").unlink() if content is None else (place / "optimizer.pt").write_bytes(content)
            with exits_with(74, f"{place}/optimizer.pt( is truncated, or contains Python| is missing)"):
                load_state(place, "optimizer")

    def test_all_generators_go_on_through_json_and_damaged_states_are_checkpoint_errors(self):
        draw = lambda _: (random.random(), random.gauss(0, 1), *np.random.randn(2), *torch.randn(3).tolist())
        draw(0)
        whole = json.loads(json.dumps(random_state(), allow_nan=False))
        expected = [*map(draw, range(3))]
        restore_random_state(whole)
        self.assertEqual([*map(draw, range(3))], expected)
        damages = ({"python": 3}, {"torch": []}, {"numpy": None}, {"numpy": ["MT19937", [0], 0, 0, 0.0]})
        for broken in ({}, *({**whole, **part} for part in damages)):
            with exits_with(74):
                restore_random_state(broken)
        restore_random_state(whole)


def write_files(folder):
    """A small checkpoint, with a file in a folder of its own."""
    torch.manual_seed(0)
    save_state(folder, "optimizer", {0: torch.randn(1000), "step": 3})
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "rank-0.json").write_text('{"random_state": 0}')
    (folder / "original").mkdir()
    (folder / "original" / "config.json").write_text("{}")


def make_checkpoint(step=4, run_id="abc"):
    return commit_checkpoint(tempfile.mkdtemp(), step, write_files, run_id=run_id)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def link(path):
    moved = path.parent.parent / "elsewhere"
    shutil.move(path, moved)
    path.symlink_to(moved)


# How to damage a file, and what is said of it.
DAMAGES = {
    "truncate": (lambda path: os.truncate(path, path.stat().st_size // 2), "cut short"),
    "empty": (lambda path: os.truncate(path, 0), "0 bytes of"), "flip": (flip, "SHA-256"),
    "delete": (Path.unlink, "missing"),
    "grow": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "instead of"), "link": (link, "link"),
    "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "no plain file"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "no plain file"),
}  # fmt: skip


class DamageTest(parameterized.TestCase):
    @parameterized.parameters(*DAMAGES)
    def test_every_damage_to_every_file_is_found_and_named(self, kind):
        inflict, reason = DAMAGES[kind]
        for file in FILES:
            checkpoint = make_checkpoint()
            self.assertIsNone(damage(checkpoint))
            inflict(checkpoint / file)
            self.assertRegex(damage(checkpoint), rf"^{file}.*({reason}|damaged)")

    def test_what_libraries_would_load_unlisted_is_damage_and_a_note_a_warning(self):
        for name in ("rng_state.pth", "pytorch_model.bin", "model.safetensors.index.json", "global_step4/x.pt", "a.py"):
            checkpoint = make_checkpoint()
            (checkpoint / name).parent.mkdir(exist_ok=True)
            (checkpoint / name).write_bytes(b"\x80\x04.")
            self.assertRegex(damage(checkpoint), f"^{name}: not in checkpoint.json")
        checkpoint = make_checkpoint()
        (checkpoint / "notes.txt").write_text("best so far")
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertIsNone(damage(checkpoint))
        self.assertIn("notes.txt", logs.output[0])

    def test_another_step_s_name_and_a_newer_format_are_damage(self):
        checkpoint = make_checkpoint(4)
        other = checkpoint.rename(checkpoint.with_name("checkpoint-40"))
        self.assertRegex(damage(other), "says step 4")
        content = json.loads((other / MANIFEST_FILE).read_text())
        (other / MANIFEST_FILE).write_text(json.dumps({**content, "format": 3}))
        self.assertRegex(damage(other), "format 3; this version reads format 2")

    def test_manifest_says_what_it_was_told(self):
        place = tempfile.mkdtemp()
        checkpoint = commit_checkpoint(place, 7, write_files, run_id="r1", details={"seed": 3, "by_id": {"1": 0.5}})
        manifest = Manifest.read(checkpoint)
        self.assertEqual((manifest.step, manifest.run_id, manifest.world_size), (7, "r1", 1))
        self.assertEqual(manifest.details, {"seed": 3, "by_id": {"1": 0.5}})
        for name, record in manifest.files.items():
            content = (checkpoint / name).read_bytes()
            self.assertEqual(record, Record(len(content), hashlib.sha256(content).hexdigest()))
        self.assertEqual(set(manifest.files), {*FILES, "original/config.json"} - {MANIFEST_FILE})

    def test_names_that_lead_elsewhere_are_refused(self):
        for name in (
            "../x", "/etc/passwd", "a/../../x", "", ".", "..", "a//b", "a/", "./a", "a\\b", "a\0b", "a\nb", "\ud800",
            MANIFEST_FILE, 3, None,
        ):  # fmt: skip
            with self.subTest(ascii(name)), self.assertRaises(ValueError):
                check_name(name)

    def test_a_manifest_that_leads_elsewhere_is_refused_before_anything_is_read(self):
        place = Path(tempfile.mkdtemp())
        (place / "secret").write_text("x")
        checkpoint = place / "checkpoint-1"
        checkpoint.mkdir()
        for name in ("../secret", str(place / "secret")):
            record = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
            content = {"format": 1, "step": 1, "run_id": "", "world_size": 1, "files": {name: record}, "details": {}}
            text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
            signed = {**content, "sha256": hashlib.sha256(text).hexdigest()}
            (checkpoint / MANIFEST_FILE).write_text(json.dumps(signed))
            self.assertRegex(damage(checkpoint), "is no name of a file inside the checkpoint")
        with self.assertRaises(ValueError):
            Manifest(1, "", 1, {"../secret": Record(1, "0" * 64)}).write(checkpoint)
