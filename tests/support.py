"""What many tests use: a folder of their own, and their own flags over those that all tests of a file share."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

from t5suite.testing import read_rows, tiny_trainer


def folder() -> Path:
    """A new one, which is removed when all tests have run."""
    return Path(tempfile.mkdtemp())


def later_wins(*parts) -> list[str]:
    """The words of all parts, in order; of a flag that is given twice, the last: a command line gives each flag once.

    >>> later_wins(["run.yaml", "--seed", "1", "--bf16", "--seed=2"])
    ['run.yaml', '--bf16', '--seed=2']
    """
    groups = {}
    for word in [str(word) for part in parts for word in ([part] if isinstance(part, str) else part)]:
        if word.startswith("--"):
            name = word.partition("=")[0].replace("-", "_")
            groups.pop(name, None)
            groups[name] = [word]
        elif groups:
            groups[next(reversed(groups))].append(word)
        else:
            groups[""] = [word]
    return [word for group in groups.values() for word in group]


@contextlib.contextmanager
def changed_trainer(**patches):
    """Trainers of runs have other methods in the block; afterwards the process has no request to stop.

    >>> with changed_trainer(stop_requested=lambda trainer: trainer.state.global_step + 1 == 3), exits_with(75):
    ...     fine_tune_t5.main(argv)
    """
    trainer = tiny_trainer()
    try:
        with mock.patch.multiple(type(trainer), **patches) if patches else contextlib.nullcontext():
            yield
    finally:
        trainer.stop.restore()


# Parts of the names of metrics that measure time, speed or memory, in which two equal runs differ.
OF_THE_MACHINE = ("second", "runtime", "mfu", "data_wait", "peak_memory")


def untimed(directory) -> list[dict]:
    """The lines of `metrics.jsonl` without what differs between two equal runs."""
    is_of_the_machine = lambda name: any(part in name for part in OF_THE_MACHINE)
    lines = read_rows(Path(directory) / "metrics.jsonl")
    return [{name: value for name, value in line.items() if not is_of_the_machine(name)} for line in lines]


def damaged_files(checkpoint) -> list[str]:
    """The files of a checkpoint that differ from what its manifest says of them."""
    listed = json.loads((Path(checkpoint) / "checkpoint.json").read_text())["files"]
    digest = lambda name: hashlib.sha256((Path(checkpoint) / name).read_bytes()).hexdigest()
    return [name for name, record in listed.items() if digest(name) != record["sha256"]]


ROOT = Path(__file__).resolve().parent.parent
WITHOUT_TORCH = """
import runpy, sys
sys.argv = {argv}
try:
    runpy.run_path({script!r}, run_name="__main__")
except SystemExit as end:
    assert end.code == {code}, end.code
loaded = [name for name in ("torch", "transformers", "datasets") if name in sys.modules]
assert not loaded, loaded
"""


def answered_without_torch(script, *argv, code=0) -> str:
    """What a script prints in a process of its own, which must load no torch and end with this code."""
    program = WITHOUT_TORCH.format(argv=[script, *argv], script=str(ROOT / script), code=code)
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    return process.stdout or process.stderr


def write_manifest(checkpoint, **changes) -> None:
    """Writes `checkpoint.json` of the files that are there (docs/reliability.md), with some of its entries changed."""
    checkpoint = Path(checkpoint)
    files = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != "checkpoint.json":
            content = path.read_bytes()
            record = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            files[path.relative_to(checkpoint).as_posix()] = record
    step = int(checkpoint.name.rpartition("-")[2])
    manifest = {"step": step, "run_id": "", "world_size": 1, "files": files, "details": {}, "format": 2}
    manifest |= changes
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    signed = {**manifest, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (checkpoint / "checkpoint.json").write_text(json.dumps(signed))


@contextlib.contextmanager
def renamed_folders():
    """By the new name of each folder that is renamed in the block: what of it was not on disk (fsync) before, or the
    folder above it, if the new name was not on disk at the end."""
    synced, unsynced = set(), {}
    fsync, replace = os.fsync, os.replace

    def note(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def check(source, target):
        if Path(source).is_dir():
            paths = [source, *Path(source).rglob("*")]
            unsynced[str(target)] = [path for path in map(str, paths) if path not in synced]
            synced.discard(str(Path(target).parent))
        replace(source, target)

    with mock.patch("os.fsync", note), mock.patch("os.replace", check):
        yield unsynced
    for target, paths in unsynced.items():
        paths += {str(Path(target).parent)} - synced


def start_browser(test_class):
    """A browser until the tests of a class have run; the class is skipped where there is none."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        raise unittest.SkipTest("no Chromium here: apt-get install --no-install-recommends chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise unittest.SkipTest("no playwright here: python -m pip install playwright") from None
    driver = sync_playwright().start()
    test_class.addClassCleanup(driver.stop)
    browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
    test_class.addClassCleanup(browser.close)
    return browser


class OwnStopRequests(parameterized.TestCase):
    """Each test has requests to stop of its own: the process's would reach the run that goes on."""

    def setUp(self):
        from t5suite.training.processes.signals import StopRequests

        super().setUp()
        self.enter_context(mock.patch("t5suite.training.trainer.stop_requests", StopRequests))
