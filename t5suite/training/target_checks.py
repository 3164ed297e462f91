"""Whether a tokenizer can write the targets of training rows: texts, sets of labels, tags of words.

>>> warn_of_unwritable_targets(data.training_sets, TextEncoding(t5_tokenizer, lengths), "generate")
reviews.csv:2: T5Tokenizer writes the target ' good' as 'good'; a perfect model would get 40.00 exact_match in ...
"""

import itertools
import logging
import math
from collections.abc import Iterable

from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.training_data import TrainingSet
from t5suite.tasks.entry_metrics import RATES, shipped_metric_choices
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.registry import Task
from t5suite.training.eval_sets import method_for
from t5suite.training.label_checks import tokenizer_title, with_room_for_labels, written

logger = logging.getLogger(__name__)

ROWS_CHECKED = 100  # of a training split; ROUGE takes 0.4 to 3 s for 100 rows


def warn_of_unwritable_targets(training_sets: Iterable[TrainingSet], encoding: TextEncoding, method: str) -> None:
    """Warns where a model that writes the tokens of each target has no perfect score: they make another text.

    Of a training split the first ROWS_CHECKED rows are checked. `check_labels` has refused label words.

    Args:
      method: `--eval_method`.
    """
    for part in training_sets:
        is_written = method_for(encoding, method, part.task, is_single_task=False) == "generate"
        if is_written and part.task.value_kind != "class":
            _warn_of_unwritable_targets(part, encoding.for_task(part.task))


def _warn_of_unwritable_targets(part: TrainingSet, encoding: TextEncoding) -> None:
    task = part.task
    examples = task.example_set(itertools.islice(part.loaded.rows, ROWS_CHECKED), "train")
    texts = written(with_room_for_labels(encoding), _targets_of(examples))
    scores = _scores_below_targets(task, examples, texts)
    if not scores:
        return
    place = _first_wrong_place(task, examples, texts)
    logger.warning(
        "%s: %s writes the target %.80r as %.80r; a perfect model would get %s in the first %d rows; change the rows, "
        "or --add_tokens with what the vocabulary lacks",
        part.loaded.place(examples.row_of_example[place]),
        tokenizer_title(encoding.tokenizer),
        _targets_of(examples)[place],
        texts[place],
        ", ".join(f"{score:.2f} {name}" for name, score in scores.items()),
        len(examples.rows),
    )


def _targets_of(examples: ExampleSet) -> list[str]:
    """The texts that a model is trained to write."""
    return [example.targets for example in examples.examples]


def _scores_below_targets(task: Task, examples: ExampleSet, texts: list[str]) -> dict[str, float]:
    """The scores of texts by the suite's metrics of a task, where the targets have better ones."""
    targets = _targets_of(examples)
    if texts == targets:
        return {}
    names = [name for name in task.entry["metric_names"] if name in shipped_metric_choices()]
    if not names:
        return {}
    task = Task(task.benchmark, task.name, {**task.entry, "metric_names": names, "metric_to_optimize": "average"})
    try:
        scores = task.score_examples(examples, texts)
        best_scores = task.score_examples(examples, targets)
    except Exception:  # a metric may read columns that training rows lack; evaluation has them, or names them
        return {}
    return {name: score for name, score in scores.items() if name not in RATES and _is_worse(score, best_scores[name])}


def _is_worse(score: float, best_score: float) -> bool:
    """Whether a score is below the best one, or not defined where that is."""
    if math.isnan(best_score):
        return False
    return math.isnan(score) or score < best_score


def _first_wrong_place(task: Task, examples: ExampleSet, texts: list[str]) -> int:
    """The first example whose text is worse than its target; the first other text if a metric needs several rows."""
    pairs = zip(_targets_of(examples), texts, strict=True)
    changed_places = [place for place, (target, text) in enumerate(pairs) if target != text]
    for place in changed_places:
        row = examples.row_of_example[place]
        texts_of_row = [texts[number] for number in examples.places_of([row])]
        if _scores_below_targets(task, examples.part([row]), texts_of_row):
            return place
    return changed_places[0]
