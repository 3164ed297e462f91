"""Whether a tokenizer can write the targets of training rows: texts, sets of labels, tags of words.

>>> warn_of_unwritable_targets(data.training_sets, TextEncoding(t5_tokenizer, lengths), "generate")
reviews.csv:2: T5Tokenizer writes the target ' good' as 'good', and 60 of the first 60 targets as other texts, ...
"""

import itertools
import logging
from collections.abc import Iterable

from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.training_data import TrainingSet
from t5suite.tasks.metrics import label_set
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import has_label_sets
from t5suite.training.eval_sets import method_for
from t5suite.training.label_checks import tokenizer_title, with_room_for_labels, written

logger = logging.getLogger(__name__)

ROWS_LOOKED_AT = 500  # of a training split


def warn_of_unwritable_targets(training_sets: Iterable[TrainingSet], encoding: TextEncoding, method: str) -> None:
    """Warns of texts, sets of labels and tags that no model can write: their tokens make another text.

    Of a training split the first ROWS_LOOKED_AT rows are looked at. `check_labels` has refused label words.

    Args:
      method: `--eval_method`.
    """
    for part in training_sets:
        is_written = method_for(encoding, method, part.task, is_single_task=False) == "generate"
        if is_written and part.task.value_kind != "class":
            _warn_of_unwritable_targets(part, encoding.for_task(part.task))


def _warn_of_unwritable_targets(part: TrainingSet, encoding: TextEncoding) -> None:
    task = part.task
    row_of_target: dict[str, int] = {}
    for number, row in enumerate(itertools.islice(part.loaded.rows, ROWS_LOOKED_AT)):
        for example in task.examples(row, "train"):
            row_of_target.setdefault(example.targets, number)
    targets = list(row_of_target)
    pairs = zip(targets, written(with_room_for_labels(encoding), targets), strict=True)
    changed = [(target, text) for target, text in pairs if _answer_of(task, target) != _answer_of(task, text)]
    if not changed:
        return
    target, text = changed[0]
    logger.warning(
        "%s: %s writes the target %.80r as %.80r, and %d of the first %d targets as other texts, so that no answer "
        "equals them; change the rows, or --add_tokens with what the vocabulary lacks",
        part.loaded.place(row_of_target[target]),
        tokenizer_title(encoding.tokenizer),
        target,
        text,
        len(changed),
        len(targets),
    )


def _answer_of(task: Task, text: str):
    """A text as metrics compare it; of several labels the set."""
    answer = task.parse(text)
    return label_set(answer) if has_label_sets(task.entry) else answer
