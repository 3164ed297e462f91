"""What folders in a run directory are called while a checkpoint is made, kept, replaced, deleted or set aside.

    >>> checkpoint_folder("runs/x", 400)
    PosixPath('runs/x/checkpoint-400')
    >>> checkpoints("runs/x")                                  # ascending by step
    [PosixPath('runs/x/checkpoint-200'), PosixPath('runs/x/checkpoint-400')]

| name                          | holds                                                                              |
|-------------------------------|------------------------------------------------------------------------------------|
| `checkpoint-400`              | a whole checkpoint: only a rename makes this name                                  |
| `.saving-checkpoint-400`      | one that is being written; left over: the save was cut short                       |
| `.replaced-checkpoint-400`    | the former one of the same step, until the new one has its name                    |
| `.deleting-checkpoint-400`    | one that rotation has given up                                                     |
| `damaged-checkpoint-400[-2]`  | one that did not verify, set aside for a person to look at; nothing here deletes it |
"""

import re
from pathlib import Path

STATE_FILE = "trainer_state.json"
SAVING, REPLACED, DELETING, DAMAGED = ".saving-", ".replaced-", ".deleting-", "damaged-"


def checkpoints(output_dir) -> list[Path]:
    """The directory's checkpoints, ascending by step, verified or not."""
    return sorted(filter(is_numbered, Path(output_dir).glob("checkpoint-*")), key=checkpoint_step)


def is_numbered(path: Path) -> bool:
    """Whether a folder's name tells the step of a checkpoint."""
    return re.fullmatch(r"checkpoint-[0-9]+", path.name) is not None


def checkpoint_step(path) -> int:
    """The step in a checkpoint's name.

    >>> checkpoint_step("runs/x/checkpoint-400")
    400
    """
    return int(Path(path).name.removeprefix("checkpoint-"))


def checkpoint_folder(output_dir, step: int, prefix: str = "") -> Path:
    """Where the checkpoint of a step lies, or with a prefix the folder that becomes it or was it.

    >>> checkpoint_folder("runs/x", 400, SAVING)
    PosixPath('runs/x/.saving-checkpoint-400')
    """
    return Path(output_dir) / f"{prefix}checkpoint-{step}"


def leftovers(output_dir, prefix: str) -> list[Path]:
    """Folders of a kind that should be gone by now, ascending by name."""
    found = Path(output_dir).glob(f"{prefix}checkpoint-*")
    return sorted(path for path in found if re.fullmatch(r"checkpoint-[0-9]+", path.name.removeprefix(prefix)))


def damaged_checkpoints(output_dir) -> list[Path]:
    """What was set aside, ascending by name."""
    return sorted(Path(output_dir).glob(f"{DAMAGED}checkpoint-*"))
