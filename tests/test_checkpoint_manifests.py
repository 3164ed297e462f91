"""checkpoint.json: every damage is found and named, and a manifest of any shape is a result or a CheckpointError."""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from absl.testing import absltest, parameterized
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t5suite.base.errors import CheckpointError
from t5suite.training.checkpoints import Manifest, Record, commit_checkpoint, damage, read_manifest, save_state, verify
from t5suite.training.checkpoints.manifests import MANIFEST_FILE, check_name, hash_files, write_manifest

FUZZ_EXAMPLES = int(os.environ.get("T5SUITE_FUZZ_EXAMPLES", "1000")) // 4  # a test
FILES = ("model.safetensors", "optimizer.safetensors", "optimizer.json", "rank-0.json", MANIFEST_FILE)


def write_files(folder, records):
    """A small checkpoint: two files that are hashed as they are written, three that are not, one in a folder."""
    torch.manual_seed(0)
    records.update(save_state(folder, "optimizer", {0: torch.randn(1000), "step": 3}))
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "rank-0.json").write_text('{"random_state": 0}')
    (folder / "original").mkdir()
    (folder / "original" / "config.json").write_text("{}")


def make_checkpoint(step=4, run_id="abc"):
    return commit_checkpoint(tempfile.mkdtemp(), step, write_files, run_id=run_id)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def zero(path):
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(size // 3)
        file.write(b"\0" * (size // 3))


def grow(path):
    with open(path, "ab") as file:
        file.write(b"\0")


def link(path):
    moved = path.parent.parent / "elsewhere"
    shutil.move(path, moved)
    path.symlink_to(moved)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def folder_instead(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "truncate": (truncate, "cut short|damaged"),
    "empty": (empty, "0 bytes of|damaged"),
    "flip": (flip, "SHA-256"),
    "zero": (zero, "SHA-256|damaged"),
    "delete": (Path.unlink, "missing"),
    "grow": (grow, "instead of|damaged"),
    "link": (link, "link"),
    "pipe": (pipe, "no plain file"),
    "folder": (folder_instead, "no plain file"),
}


class DamageTest(parameterized.TestCase):
    @parameterized.product(file=FILES, kind=list(DAMAGES))
    def test_every_damage_to_every_file_is_found_and_named(self, file, kind):
        checkpoint = make_checkpoint()
        self.assertIsNone(damage(checkpoint))
        inflict, reason = DAMAGES[kind]
        inflict(checkpoint / file)
        self.assertRegex(damage(checkpoint), rf"^{file}.*({reason}|damaged)")
        with self.assertRaisesRegex(CheckpointError, file):
            verify(checkpoint)

    def test_single_bits_of_a_manifest_count(self):
        checkpoint = make_checkpoint()
        path = checkpoint / MANIFEST_FILE
        whole, known = path.read_bytes(), read_manifest(checkpoint)
        for place in range(0, 8 * len(whole), 13):
            content = bytearray(whole)
            content[place // 8] ^= 1 << place % 8
            path.write_bytes(content)
            try:
                self.assertEqual(read_manifest(checkpoint), known)  # white space
            except CheckpointError:
                pass

    def test_sizes_alone_take_no_hashing(self):
        checkpoint = make_checkpoint()
        flip(checkpoint / "model.safetensors")
        self.assertIsNone(damage(checkpoint, hashed=False))
        truncate(checkpoint / "model.safetensors")
        self.assertRegex(damage(checkpoint, hashed=False), "model.safetensors: 5120 bytes of 10240")

    def test_what_libraries_would_load_unlisted_is_damage(self):
        for name in ("optimizer.pt", "pytorch_model.bin", "model.safetensors.index.json", "global_step4/x.pt", "a.py"):
            checkpoint = make_checkpoint()
            (checkpoint / name).parent.mkdir(exist_ok=True)
            (checkpoint / name).write_bytes(b"\x80\x04.")
            self.assertRegex(damage(checkpoint), f"^{name}: not in checkpoint.json")

    def test_a_note_beside_the_files_is_named_in_a_warning(self):
        checkpoint = make_checkpoint()
        (checkpoint / "notes.txt").write_text("best so far")
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertIsNone(damage(checkpoint))
        self.assertIn("notes.txt", logs.output[0])

    def test_a_checkpoint_under_the_name_of_another_step(self):
        checkpoint = make_checkpoint(4)
        other = checkpoint.rename(checkpoint.with_name("checkpoint-40"))
        self.assertRegex(damage(other), "says step 4")

    def test_a_newer_format_is_named(self):
        checkpoint = make_checkpoint()
        content = json.loads((checkpoint / MANIFEST_FILE).read_text())
        (checkpoint / MANIFEST_FILE).write_text(json.dumps({**content, "format": 2}))
        self.assertRegex(damage(checkpoint), "format 2; this version reads format 1")

    def test_manifest_says_what_it_was_told(self):
        place = tempfile.mkdtemp()
        checkpoint = commit_checkpoint(place, 7, write_files, run_id="r1", details={"seed": 3, "by_id": {"1": 0.5}})
        manifest = verify(checkpoint)
        self.assertEqual((manifest.step, manifest.run_id, manifest.world_size), (7, "r1", 1))
        self.assertEqual(manifest.details, {"seed": 3, "by_id": {"1": 0.5}})
        for name, record in manifest.files.items():
            content = (checkpoint / name).read_bytes()
            self.assertEqual(record, Record(len(content), hashlib.sha256(content).hexdigest()))
        self.assertEqual(set(manifest.files), {*FILES, "original/config.json"} - {MANIFEST_FILE})

    @parameterized.parameters(
        "../x", "/etc/passwd", "a/../../x", "", ".", "..", "a//b", "a/", "./a", "a\\b", "a\0b", "a\nb", "\ud800",
        MANIFEST_FILE, 3, None,
    )  # fmt: skip
    def test_names_that_lead_elsewhere_are_refused(self, name):
        with self.assertRaises(ValueError):
            check_name(name)

    def test_a_manifest_that_leads_elsewhere_is_refused_before_anything_is_read(self):
        place = Path(tempfile.mkdtemp())
        (place / "secret").write_text("x")
        checkpoint = place / "checkpoint-1"
        checkpoint.mkdir()
        for name in ("../secret", str(place / "secret")):
            record = dataclasses.asdict(hash_files(place, ["secret"])["secret"])
            content = {"format": 1, "step": 1, "run_id": "", "world_size": 1, "files": {name: record}, "details": {}}
            text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
            signed = {**content, "sha256": hashlib.sha256(text).hexdigest()}
            (checkpoint / MANIFEST_FILE).write_text(json.dumps(signed))
            self.assertRegex(damage(checkpoint), "is no name of a file inside the checkpoint")
        with self.assertRaises(ValueError):
            write_manifest(checkpoint, Manifest(1, "", 1, {"../secret": Record(1, "0" * 64)}))


ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=6)
NAMES = (
    st.sampled_from(["model.safetensors", "../x", "/x", "a/b", "checkpoint.json", "a" * 300, "\ud800", ""]) | st.text()
)
JSON = st.recursive(ATOMS, lambda x: st.lists(x, max_size=3) | st.dictionaries(NAMES, x, max_size=3), max_leaves=8)
RECORDS = st.fixed_dictionaries(
    {
        "size": st.integers(-1, 5) | JSON,
        "sha256": st.sampled_from(["0" * 64, "0" * 63, hashlib.sha256(b"").hexdigest()]) | JSON,
    }
)
FILES_IN_MANIFESTS = st.dictionaries(st.just("model.safetensors") | NAMES, RECORDS | JSON, min_size=1, max_size=2)
MANIFESTS = st.fixed_dictionaries(
    {"format": st.just(1) | JSON},
    optional={
        "step": st.just(1) | JSON,
        "run_id": st.just("x") | JSON,
        "world_size": st.just(1) | JSON,
        "files": FILES_IN_MANIFESTS | JSON,
        "details": st.just({}) | JSON,
        "sha256": JSON,
        "other": JSON,
    },
)
WHOLE = st.fixed_dictionaries(
    {
        "format": st.just(1),
        "step": st.just(1) | JSON,
        "run_id": st.just("x") | JSON,
        "world_size": st.just(1) | JSON,
        "files": FILES_IN_MANIFESTS,
        "details": st.just({}) | JSON,
    }
)
SETTINGS = settings(max_examples=FUZZ_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def judged(content: bytes):
    """What `damage` and `verify` make of a checkpoint with this manifest and an empty file: no other exception."""
    folder = Path(tempfile.gettempdir()) / f"fuzzed-{os.getpid()}" / "checkpoint-1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").touch()
    (folder / MANIFEST_FILE).write_bytes(content)
    reason = damage(folder)
    assert reason is None or isinstance(reason, str)
    try:
        verify(folder)
        assert reason is None
    except CheckpointError:
        assert reason is not None
    return reason


def dumped(value) -> bytes:
    return json.dumps(value).encode()


def signed(content) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return dumped({**content, "sha256": hashlib.sha256(text).hexdigest()})


class FuzzTest(parameterized.TestCase):
    @SETTINGS
    @given(st.binary(max_size=40) | JSON.map(dumped))
    def test_any_bytes(self, content):
        self.assertIsNotNone(judged(content))

    @SETTINGS
    @given(MANIFESTS)
    def test_any_near_manifest(self, content):
        self.assertIsNotNone(judged(dumped(content)))

    @SETTINGS
    @given(WHOLE)
    def test_any_manifest_that_states_its_own_hash(self, content):
        judged(signed(content))

    @SETTINGS
    @given(st.data())
    def test_any_cut_or_change_of_a_real_manifest(self, data):
        content = bytearray(self.real)
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(content) - 1))
            content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        judged(bytes(content))

    @parameterized.parameters(
        b"[" * 10**5, b'{"a":' * 10**5, b'{"format": ' + b"9" * 5000 + b"}", b"\xff\xfe", b"1e999"
    )
    def test_what_has_broken_readers_before(self, content):
        self.assertIsNotNone(judged(content))

    @parameterized.parameters(
        ("0", "0" * 64), (True, "0" * 64), (-1, "0" * 64), (0.0, "0" * 64), (None, "0" * 64), (10**30, "0" * 64),
        (0, None), (0, 0), (0, ["0" * 64]), (0, "0" * 63), (0, "0" * 64 + "\n"), (0, "G" * 64),
    )  # fmt: skip
    def test_records_that_are_none(self, size, sha256):
        files = {"model.safetensors": {"size": size, "sha256": sha256}}
        content = {"format": 1, "step": 1, "run_id": "x", "world_size": 1, "files": files, "details": {}}
        self.assertRegex(judged(signed(content)), "is no record|bytes of")

    def test_what_fuzzing_signs_can_verify(self):
        files = {"model.safetensors": {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}}
        content = {"format": 1, "step": 1, "run_id": "x", "world_size": 1, "files": files, "details": {}}
        self.assertIsNone(judged(signed(content)))

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.real = (make_checkpoint(1) / MANIFEST_FILE).read_bytes()


if __name__ == "__main__":
    absltest.main()
