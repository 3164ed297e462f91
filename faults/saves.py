"""What the checks of checkpoints share: points inside a save, ways to damage a file, how a directory must look.

>>> context.run(script, flags, patch=partial(kill_at_point, "before the rename"))
>>> all_verify(directory, newest=2), remains(directory)
(None, 'left over: .saving-checkpoint-4')
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

# Six steps, a checkpoint every second one; kills fall into the save of step 4.
SHORT = {"max_steps": 6}
STREAMED = {"streaming": True, "num_virtual_streams": 4, "shuffle_buffer_size": 16}
CONFIGURATIONS = (("fine_tune_t5", {}), ("pre_train_t5", {}), ("pre_train_t5", STREAMED))
SAVED = "checkpoint-4"


@dataclass(frozen=True)
class Point:
    """A place inside a save.

    Attributes:
      target: the function, as "module:name".
      needle: what an argument of the call contains.
      when: "before" or "after" the call; "half": after it, with half of the file that it wrote gone.
      resumed_from: the checkpoint that is then the newest.
    """

    target: str
    needle: str
    when: str = "before"
    resumed_from: int = 2


PACKAGE = "t5suite.training.checkpoints"
SAVING = f".saving-{SAVED}"
WEIGHTS = ("transformers.modeling_utils:safe_save_file", f"{SAVING}/model.safetensors")
OPTIMIZER = ("torch:save", f"{SAVING}/optimizer.pt")
STATE = ("transformers.trainer_callback:TrainerState.save_to_json", SAVING)
POINTS = {
    "before its folder": Point("pathlib:Path.mkdir", SAVING),
    "its folder made": Point("pathlib:Path.mkdir", SAVING, "after"),
    "before the weights": Point(*WEIGHTS),
    "weights half written": Point(*WEIGHTS, "half"),
    "weights written": Point(*WEIGHTS, "after"),
    "optimizer half written": Point(*OPTIMIZER, "half"),
    "optimizer written": Point(*OPTIMIZER, "after"),
    "random numbers written": Point(f"{PACKAGE}.saving:write_json", f"{SAVING}/rank-0.json", "after"),
    "before the trainer's state": Point(*STATE),
    "all files written": Point(*STATE, "after"),
    "folders synced": Point(f"{PACKAGE}.committing:sync_tree", SAVING, "after"),
    "manifest half written": Point(f"{PACKAGE}.manifests:write_json", f"{SAVING}/checkpoint.json", "half"),
    "before the rename": Point("os:rename", SAVING),
    "renamed, not synced": Point("os:rename", SAVING, "after", 4),
    "rotation's rename": Point("os:rename", ".deleting-checkpoint-2", "after", 4),
    "rotation half done": Point("os:unlink", "optimizer.pt", "after", 4),
}
# DeepSpeed's ranks write their parts themselves.
SHARDED_POINTS = {"parts written": Point("torch:save", SAVING, "after")}


def kill_at_point(name: str) -> None:
    """SIGKILL to itself at a point of `POINTS` or `SHARDED_POINTS`. Runs in the victim."""
    import importlib

    point = (POINTS | SHARDED_POINTS)[name]
    module, _, path = point.target.partition(":")
    *owners, function = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    original = getattr(owner, function)

    def wrapped(*arguments, **keywords):
        subjects = [a if isinstance(a, (str, Path)) else getattr(a, "name", "") for a in arguments]
        written = next((str(subject) for subject in subjects if point.needle in str(subject)), None)
        if written and point.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **keywords)
        if written and point.when == "half":
            for argument in arguments:
                if hasattr(argument, "flush"):
                    argument.flush()
            truncate(Path(written))
        if written and point.when in ("after", "half"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, function, wrapped)


def all_verify(directory: Path, newest: int | None = None) -> str | None:
    """Whether every folder that is called a checkpoint is one, and perhaps which is the newest."""
    from t5suite.training.checkpoints.folders import checkpoint_step, checkpoints
    from t5suite.training.checkpoints.manifests import damage

    found = checkpoints(directory)
    problems = [f"{path.name}: {reason}" for path in found if (reason := damage(path))]
    if problems:
        return "; ".join(problems)
    last = checkpoint_step(found[-1]) if found else None
    return f"the newest checkpoint is {last}, not {newest}" if newest is not None and last != newest else None


def remains(directory: Path) -> str | None:
    names = [
        path.name for path in directory.iterdir() if path.name.startswith((".saving-", ".deleting-", ".replaced-"))
    ]
    return f"left over: {', '.join(names)}" if names else None


def truncate(path: Path) -> None:
    """Cuts a file to half."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Leaves nothing of it."""
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """Turns one bit in its middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def zero(path: Path) -> None:
    """Overwrites a third of it with zeros, as a file system does that lost a block."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(bytes(size // 3))


DAMAGES = {"truncated": truncate, "empty": empty, "flipped": flip, "zeroed": zero, "deleted": Path.unlink}
