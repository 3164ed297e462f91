"""Small trainings that leave checkpoints, and what the suite says of a checkpoint."""

import contextlib
import functools
import io
import shutil
import tempfile
from pathlib import Path

from t5suite.testing import run_cli, tiny_rows, tiny_trainer


def make_trainer(directory, **flags):
    """A trainer that saves a checkpoint after every step."""
    defaults = {
        "max_steps": 1, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 2, "optim": "sgd",
        "learning_rate": 1e-3,
    }  # fmt: skip
    return tiny_trainer(tiny_rows("entailment", count=8), output_dir=str(directory), **defaults | flags)


@functools.cache
def training_of_two_steps() -> Path:
    """The directory of a training; not to be changed."""
    directory = Path(tempfile.mkdtemp())
    make_trainer(directory, optim="adamw_torch", max_steps=2).train()
    return directory


def copy_checkpoint() -> Path:
    """A copy of a whole checkpoint of the first of two steps, alone in its directory."""
    directory = Path(tempfile.mkdtemp()) / "run"
    return shutil.copytree(training_of_two_steps() / "checkpoint-1", directory / "checkpoint-1")


def damage_of(checkpoint) -> str | None:
    """What is wrong with a checkpoint, in the words of `t5suite export`; None if the checkpoint verifies.

    The command is given the run's directory, whose newest checkpoint it takes.
    """
    words = ("export", "--model_name_or_path", checkpoint.parent, "--output_dir", tempfile.mkdtemp())
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run_cli(*words)
    except ValueError as error:
        if getattr(error, "exit_code", None) != 74:
            raise
        before, _, reason = str(error).partition(" is damaged: ")
        assert before == str(checkpoint), error
        return reason.removesuffix("; use another checkpoint")
    return None
