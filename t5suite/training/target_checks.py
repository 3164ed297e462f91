"""Whether a tokenizer can write the targets of training rows: texts, sets of labels, tags of words.

>>> warn_of_unwritable_targets(data.training_sets, TextEncoding(t5_tokenizer, lengths), "generate")
reviews.csv:2: T5Tokenizer writes the target 'Rhône' as 'Rh<unk>ne'; 9 of the first 100 targets change ...
"""

import copy
import itertools
import logging
import math
import operator
import shlex
from collections.abc import Iterable
from dataclasses import replace

from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.training_data import TrainingSet
from t5suite.models.added_tokens import add_words
from t5suite.tasks.entry_metrics import RATES, shipped_metric_choices
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.registry import Task
from t5suite.training.eval_sets import method_for
from t5suite.training.label_checks import tokenizer_title, with_room_for_labels, written

logger = logging.getLogger(__name__)

ROWS_CHECKED = 100  # of a training split; ROUGE takes 0.4 to 3 s for 100 rows
SHOWN_CHARACTERS = 30  # before and behind the first difference


def warn_of_unwritable_targets(training_sets: Iterable[TrainingSet], encoding: TextEncoding, method: str) -> None:
    """Warns where the tokens of targets make other texts: words of free text change, or a metric falls.

    Of a training split the first ROWS_CHECKED rows are checked. `check_labels` has refused label words.

    Args:
      method: `--eval_method`.
    """
    for part in training_sets:
        # Not a single task: one without candidates, which cannot be scored, is written in place of an error here.
        is_written = method_for(encoding, method, part.task, is_single_task=False) == "generate"
        if is_written and part.task.value_kind != "class":
            _warn_of_unwritable_targets(part, encoding.for_task(part.task))


def _warn_of_unwritable_targets(part: TrainingSet, encoding: TextEncoding) -> None:
    task = part.task
    examples = task.example_set(itertools.islice(part.loaded.rows, ROWS_CHECKED), "train")
    targets = _targets_of(examples)
    encoding = with_room_for_labels(encoding)  # targets that are too long are another check's
    texts = written(encoding, targets)
    if _are_right(task, examples, texts):
        return
    place = _first_wrong_place(task, examples, texts)
    target, text = _excerpts(targets[place], texts[place])
    scores = [f"{score:.2f} {name}" for name, score in _scores_below_targets(task, examples, texts).items()]
    logger.warning(
        "%s: %s writes the target %s as %s; %d of the first %d targets change%s; change the rows, or %s",
        part.loaded.place(examples.row_of_example[place]),
        tokenizer_title(encoding.tokenizer),
        target,
        text,
        sum(map(operator.ne, targets, texts)),
        len(targets),
        f", and a perfect model would get {', '.join(scores)}" if scores else "",
        _advice(task, examples, texts, encoding),
    )


def _are_right(task: Task, examples: ExampleSet, texts: list[str]) -> bool:
    """Whether texts are as good as the targets by the suite's metrics, and free text has the same words, too."""
    if _scores_below_targets(task, examples, texts):
        return False
    if task.writes_plainly or "json_match" in task.entry["metric_names"]:  # white space means nothing there
        return True
    return all(target.split() == text.split() for target, text in zip(_targets_of(examples), texts, strict=True))


def _excerpts(*texts: str) -> list[str]:
    """The place of each text where the first difference is, in quotes; dots stand for what is left out.

    >>> _excerpts("best with oysters, as the wines of the Rhône", "best with oysters, as the wines of the Rhô ne")
    ["...'sters, as the wines of the Rhône'", "...'sters, as the wines of the Rhô ne'"]
    """
    columns = itertools.zip_longest(*texts)
    place = next((place for place, characters in enumerate(columns) if len(set(characters)) > 1), 0)
    start = max(0, place - SHOWN_CHARACTERS)
    end = place + SHOWN_CHARACTERS
    before = "..." if start else ""
    return [f"{before}{text[start:end]!r}{'...' if text[end:] else ''}" for text in texts]


def _advice(task: Task, examples: ExampleSet, texts: list[str], encoding: TextEncoding) -> str:
    """What to do: add tokens, if all targets are right with them (tried on a copy); else take another model."""
    pairs = zip(_targets_of(examples), texts, strict=True)
    missing = {character for target, text in pairs for character in set(target) - set(text)}
    tokenizer = copy.deepcopy(encoding.tokenizer)
    missing -= {*tokenizer.get_vocab()}  # adding them changes nothing
    missing -= {","}  # it separates the flag's tokens
    tokens = sorted(character for character in missing if not character.isspace())
    add_words(tokenizer, tokens)
    if _are_right(task, examples, written(replace(encoding, tokenizer=tokenizer), _targets_of(examples))):
        return f"add what the vocabulary lacks: --add_tokens {shlex.quote(','.join(tokens))}"
    return "take a model that writes them, such as ByT5 (any text) or mT5 (letters of 101 languages)"


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
    # The task with the suite's metrics alone; the one that selects checkpoints may not be among them.
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
    """The first example whose text is not right; the first other text if a metric needs several rows."""
    pairs = zip(_targets_of(examples), texts, strict=True)
    changed_places = [place for place, (target, text) in enumerate(pairs) if target != text]
    for place in changed_places:
        row = examples.row_of_example[place]
        texts_of_row = [texts[number] for number in examples.places_of([row])]
        if not _are_right(task, examples.part([row]), texts_of_row):
            return place
    return changed_places[0]
