"""What a run that learnt nothing is told below its table: what the model wrote instead of labels, and where to look.

>>> hints_of(report, eval_sets, "runs/reviews", updates=6, trained_before=False)
["reviews: 100% of the answers are no label (bad, good); most often '' (38 times). Look at runs/reviews/predictions/
reviews.validation.jsonl. Usual causes: a run that is too short (6 updates from random weights); ..."]
"""

import logging
from collections import Counter
from pathlib import Path

from t5suite.data.jsonl import file_sha256
from t5suite.training.eval_results import Report, Result
from t5suite.training.eval_sets import EvalSet

logger = logging.getLogger(__name__)

# Percent of answers that are no label: with so many, the score says nothing of what was learnt.
HARDLY_ANY_LABEL = 90.0
# Fewer updates than these teach no model what an answer looks like.
FEW_UPDATES_FROM_RANDOM_WEIGHTS, FEW_UPDATES = 1000, 100
LONGEST_ANSWER, MOST_LABELS = 30, 6


def give_hints(report: Report, eval_sets: list[EvalSet], run=None) -> None:
    """Logs the hints as warnings; of a run, with what its manifest says of it."""
    manifest = run.manifest if run is not None else {}
    settings, updates = manifest.get("settings") or {}, (manifest.get("training") or {}).get("steps")
    trained_before = bool(settings.get("model_name_or_path")) and not settings.get("from_scratch")
    directory = None if run is None else run.directory
    for hint in hints_of(report, eval_sets, directory, updates, trained_before):
        logger.warning(hint)


def hints_of(report: Report, eval_sets: list[EvalSet], directory, updates: int | None, trained_before: bool) -> list:
    """One for each split whose answers are hardly ever labels.

    Args:
      directory: the run's, where predictions lie; None where nothing was written.
      updates: that were made; None where the model was only evaluated.
      trained_before: whether the weights that the run began with were a checkpoint's.
    """
    found = []
    for eval_set in eval_sets:
        result = report.results[eval_set.name]
        if result.metrics.get("invalid_rate", 0.0) >= HARDLY_ANY_LABEL:
            place = (
                ""
                if directory is None
                else f" Look at {directory}/predictions/{eval_set.task.name}.{eval_set.split}.jsonl."
            )
            causes = likely_causes(result, updates, trained_before)
            can_score = eval_set.task.has_candidates and result.method == "generate"
            cure = (
                " `--eval_method score` chooses among the labels, whatever the model would write." if can_score else ""
            )
            found.append(f"{_what_was_written(eval_set, result)}{place} {causes}{cure}")
    return found


def changed_files(manifest: dict) -> list[str]:
    """Files of rows that are not those any more that a finished run has read.

    >>> changed_files(read_manifest("runs/reviews"))         # a row was added to it since
    ['reviews.csv']
    """
    known = {facts.get("fingerprint") for facts in (manifest.get("data") or {}).values()}
    if not any(str(fingerprint).startswith("sha256:") for fingerprint in known):
        return []
    settings = manifest.get("settings") or {}
    named = [settings[name] for name in ("train_file", "validation_file", "test_file") if settings.get(name)]
    # Several files (a pattern) have one fingerprint together, and are passed over.
    files = [name for name in dict.fromkeys(named) if isinstance(name, str) and Path(name).is_file()]
    return [name for name in files if f"sha256:{file_sha256(name)}" not in known]


def warn_of_changed_files(run) -> None:
    """Says that a finished run's results are not those of the files as they are now."""
    changed = changed_files(run.manifest)
    if changed:
        cure = "these are the results of the rows before; to train on those of now give a new --output_dir"
        logger.warning("%s changed since: %s", " and ".join(changed), cure)


def likely_causes(result: Result, updates: int | None, trained_before: bool) -> str:
    """Why a model writes no labels, the likeliest first."""
    causes = []
    if updates is not None and updates < (FEW_UPDATES if trained_before else FEW_UPDATES_FROM_RANDOM_WEIGHTS):
        causes.append(f"a run that is too short ({updates} updates{'' if trained_before else ' from random weights'})")
    if updates is None:
        causes.append("a model that was not trained on this task, or with another prefix")
    if result.predictions and result.truncated == len(result.predictions):
        causes.append("answers that never end (all were cut off at the greatest length)")
    causes.append("label words (--labels, a task's `labels`) that are not those of the target column")
    if trained_before:
        causes.append("a base model that was never trained on text-to-text tasks (t5-v1_1, mT5: give it more updates)")
    return f"Usual causes: {'; '.join(causes)}."


def _what_was_written(eval_set: EvalSet, result: Result) -> str:
    answers = Counter(text.strip() for text in result.predictions)
    (most, times), *_ = answers.most_common(1) or [("", 0)]
    rate, words = result.metrics["invalid_rate"], eval_set.task.label_words or []
    labels = f" ({', '.join(words)})" if 0 < len(words) <= MOST_LABELS else ""
    shown = most if len(most) <= LONGEST_ANSWER else f"{most[:LONGEST_ANSWER]}..."
    return f"{eval_set.name}: {rate:.0f}% of the answers are no label{labels}; most often {shown!r} ({times} times)."
