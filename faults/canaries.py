"""A folder that must stay as it is, and pickles that would change it if they were read the careless way.

>>> canaries = Canaries(context)
>>> (checkpoint / "optimizer.pt").write_bytes(canaries.payload("a pickle beside the checkpoint"))
"""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from faults import patches
from faults.attempts import Attempt, problems
from faults.fork_server import environment
from faults.harness import Context, Outcome, all_hold


class Canaries:
    """A folder that must stay as it is, with a path in it for each attempt to betray itself by."""

    def __init__(self, context: Context):
        self.context = context
        self.folder = context.directory / "canary"
        self.folder.mkdir()
        (self.folder / "file").write_text("untouched")
        self.paths: dict[str, Path] = {}
        self.proven: set[str] = set()

    def new(self, name: str) -> Path:
        """What an attempt would make if its code ran."""
        self.paths[name] = self.folder / f"c{len(self.paths)}"
        return self.paths[name]

    def payload(self, name: str, form: str = "raw") -> bytes:
        """A pickle that makes the attempt's canary when it is read; "zip": in torch's form."""
        if form not in self.proven:
            _prove(self.context, self.folder / "proof", form)
            self.proven.add(form)
        return _payload(self.context, self.new(name), form)

    def outcome(self, attempts: dict[str, Attempt], done: str, found=None, pending: str = "") -> Outcome:
        """Makes the attempts and looks for canaries; `found` is what else was looked at."""
        found = {**problems(self.context, attempts), **(found or {})}
        for name, path in self.paths.items():
            if path.exists() and name in found:
                found[name] = "ITS CODE RAN"
        left = sorted(path.name for path in self.folder.iterdir() if path not in self.paths.values())
        if left != ["file"] or (self.folder / "file").read_text() != "untouched":
            found["the folder of canaries"] = f"holds {', '.join(left)}"
        return replace(all_hold(found, done), pending=pending if not any(found.values()) else "")


def _payload(context: Context, canary: Path, form: str) -> bytes:
    """Bytes that run `touch canary` when they are unpickled."""
    if form == "raw":
        return f"cos\nsystem\n(Vtouch {canary}\ntR.".encode()
    import torch

    path = context.folder("payload")
    torch.save({"shared.weight": _Touch(canary)}, path)
    return path.read_bytes()


def _prove(context: Context, canary: Path, form: str) -> None:
    """Reads a payload the careless way, in a process of its own, and sees it run."""
    path = context.folder("payload")
    path.write_bytes(_payload(context, canary, form))
    read = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    if form == "zip":
        read = "import torch, sys; torch.load(sys.argv[1], weights_only=False)"
    subprocess.run([sys.executable, "-c", read, str(path)], env=environment(context.shared), check=False)
    assert canary.exists(), f"the {form} payload does nothing, so that nothing would be shown"
    canary.unlink()


class _Touch:
    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self):
        return subprocess.call, (["touch", str(self.canary)],)


def killed_run(context: Context, script: str) -> Path:
    """A run that was killed after its checkpoint of step 6."""
    directory = context.directory / f"killed-{script}"
    if not directory.exists():
        patch = partial(patches.kill_at_step, 7)
        context.run(script, context.flags(script), directory=directory, patch=patch, traced=False)
        assert (directory / "checkpoint-6" / "checkpoint.json").exists(), "the run has no checkpoint"
    return directory
