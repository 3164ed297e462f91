"""Which checkpoint is the best one: only a number selects, and the weights that it selected must still be there.

    >>> check_best_is_there("runs/x/checkpoint-800")
    CheckpointError: the best checkpoint, runs/x/checkpoint-400, is missing; no other has its weights, ...

transformers 5.24 writes the best score, its step and its folder to `trainer_state.json`. It drops a folder that is
missing with a warning, and the last weights would then be taken for the best.
"""

import logging
import sys
from pathlib import Path

from transformers import TrainerState

from t5suite.base.errors import CheckpointError
from t5suite.training.checkpoints.folders import STATE_FILE
from t5suite.training.checkpoints.manifests import MANIFEST_FILE, damage
from t5suite.training.checkpoints.starts import Start

logger = logging.getLogger(__name__)


def selected_a_checkpoint(state: TrainerState) -> bool:
    """Whether an evaluation has given a number, and its checkpoint was written."""
    return state.best_model_checkpoint is not None


def forget_undefined_best(state: TrainerState) -> None:
    """Has no best score until an evaluation has given a number: until then early stopping does not count.

    transformers starts from minus infinity, of which JSON has no form; t5suite 0.2 wrote the smallest float for a NaN.
    """
    if state.best_metric is not None and state.best_metric <= -sys.float_info.max:
        forget_best(state)


def forget_best(state: TrainerState) -> None:
    state.best_metric = state.best_global_step = state.best_model_checkpoint = None


def best_of_checkpoint(checkpoint) -> Path | None:
    """The best checkpoint when this one was written: beside it, or in the run that it began with; None: none was."""
    file = Path(checkpoint) / STATE_FILE
    if not file.is_file() or has_no_manifest(checkpoint):
        return None
    state = TrainerState.load_from_json(str(file))
    forget_undefined_best(state)
    if not state.best_global_step:
        return None
    sibling = Path(checkpoint).parent / f"checkpoint-{state.best_global_step}"
    if sibling.is_dir():
        return sibling
    recorded = written_best(state)
    if recorded is None:
        return None
    return recorded if recorded.is_dir() else sibling


def has_no_manifest(checkpoint) -> bool:
    """Whether Hugging Face's trainer wrote a checkpoint, or t5suite before there were manifests.

    The best score of the one may be a loss, of which lower is better; the best checkpoint of both cannot be verified.
    """
    return not (Path(checkpoint) / MANIFEST_FILE).is_file()


def written_best(state: TrainerState) -> Path | None:
    """The folder of the best step's checkpoint; None if none was written: earlier versions evaluated at other steps."""
    if state.best_model_checkpoint is None:
        return None
    folder = Path(state.best_model_checkpoint)
    return folder if folder.name == f"checkpoint-{state.best_global_step}" else None


def check_best_is_there(checkpoint) -> None:
    """Refuses to resume from a checkpoint of this run whose best checkpoint is lost.

    Raises:
      CheckpointError: the best checkpoint is missing, or has changed since it was written.
    """
    best = best_of_checkpoint(checkpoint)
    if best is not None and best != Path(checkpoint):  # that one was verified when it was chosen
        check_best(best)


def check_best(best) -> None:
    """Refuses a best checkpoint that is missing, or has changed since it was written.

    Raises:
      CheckpointError: with the ways out.
    """
    reason = damage(best)
    if reason:
        problem = f"is damaged: {reason}" if Path(best).is_dir() else "is missing"
        raise CheckpointError(
            f"the best checkpoint, {best}, {problem}; no other has its weights, and none takes its place. Bring back a "
            "copy of it; or end with the last weights, which no score has chosen: --load_best_model_at_end False "
            "--allow_changed load_best_model_at_end,save_strategy,save_steps (leave --early_stopping_patience out, if "
            "it was given, and add its name there); or start anew with another --output_dir"
        )


def scores_differ(start: Start, selects_by: dict | None) -> bool:
    """Whether scores from here on cannot be compared with those of the checkpoint that a run begins with.

    Args:
      selects_by: what this run selects by (`eval_sets.describe_selection`), as the details of its checkpoints say it.
    """
    if "data" in start.reset:
        return True
    if start.checkpoint is not None and has_no_manifest(start.checkpoint):
        return True
    return None not in (selects_by, start.selected_by) and selects_by != start.selected_by


def drop_best(state: TrainerState) -> None:
    """Has no best score yet: see `scores_differ`. Early stopping counts anew."""
    if state.best_global_step is not None:
        logger.warning(
            "the best score so far (step %d) no longer counts: other data, another metric or --eval_method, or a "
            "checkpoint that cannot be verified. The best checkpoint is chosen from the evaluations after this step",
            state.best_global_step,
        )
    forget_best(state)


def take_up_best(state: TrainerState, output_dir, loads_best: bool) -> None:
    """Finds the best checkpoint of a resumed run again, also in a directory that was moved or copied.

    The best checkpoint of another run, whose checkpoint this one began with, may not have come along: its score selects
    nothing any more, so that the evaluations of this run decide.

    Args:
      loads_best: whether the run ends with the best weights (`--load_best_model_at_end`). If not, no checkpoint is
        missed: evaluations need not be where checkpoints are.
    """
    forget_undefined_best(state)
    if state.best_global_step is None:
        return
    in_this_run = Path(output_dir) / f"checkpoint-{state.best_global_step}"
    if in_this_run.is_dir():
        state.best_model_checkpoint = str(in_this_run)
    recorded = written_best(state)
    is_there = recorded is not None and recorded.is_dir()
    if is_there or not loads_best:
        return
    logger.warning(
        "the best checkpoint so far, of step %d, is not there: the evaluations from here on select the best",
        state.best_global_step,
    )
    forget_best(state)


def note_nothing_selected(step: int) -> None:
    logger.warning(
        "no checkpoint was selected: no evaluation during training gave a number (a NaN selects nothing). The weights "
        "are those of the last step, %d",
        step,
    )
