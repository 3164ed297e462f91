"""Whether a tokenizer can write the label words of a task, and tells them apart.

>>> check_labels([load_task("glue", "rte")], TextEncoding(tokenizer, lengths), "generate", trains=True)
"""

import collections
import logging
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import listed
from t5suite.data.batches.encodings import SegmentEncoding, TextEncoding
from t5suite.data.batches.training_data import TrainingSet, rows_of_batches
from t5suite.data.rows.formats import quoted_words
from t5suite.data.rows.row_checks import look_like_label_sets
from t5suite.tasks.cells import value_at
from t5suite.tasks.registry import Task

logger = logging.getLogger(__name__)

TOKENS_OF_ANY_LABEL = 1 << 20  # more tokens than any label has
# Free text has more targets, longer ones, or fewer rows for each.
MOST_LABELS = 20
LONGEST_LABEL = 40  # characters
FEWEST_ROWS_OF_LABEL = 10


def check_labels(tasks: Iterable[Task], encoding: TextEncoding, method: str, trains: bool) -> None:
    """Refuses label words with the same tokens, and trains on none that cannot be right where answers are written.

    A head has classes and writes nothing. A model that was trained before is scored all the same where words cannot be
    written, with a warning; not where two have the same tokens: no score tells them apart.

    Args:
      method: `--eval_method`.

    Raises:
      ConfigError: names the labels and the tokenizer.
    """
    if isinstance(encoding, SegmentEncoding):
        return
    for task in {task.name: task for task in tasks}.values():
        if task.value_kind != "class":
            continue
        encoding_of_task = encoding.for_task(task)
        _check_differ(task, encoding_of_task)
        if method == "score":
            continue
        message = _unreadable_labels(task, encoding_of_task)
        if message and trains and method == "generate":
            raise ConfigError(message)
        if message:
            logger.warning("%s", message)


def _check_differ(task: Task, encoding: TextEncoding) -> None:
    pair = labels_with_same_ids(encoding, task.candidates({}))
    if pair is None:
        return
    labels = f"{task.benchmark}/{task.name}: the labels {pair[0]!r} and {pair[1]!r} have the same tokens"
    if labels_with_same_ids(with_room_for_labels(encoding), pair) is None:
        limit = "the task's max_output_tokens" if "max_output_tokens" in task.entry else "--max_target_length"
        raise ConfigError(f"{labels} up to the length limit of {encoding.lengths.target}; raise {limit}")
    raise ConfigError(
        f"{labels} in the vocabulary of {tokenizer_title(encoding.tokenizer)}, so no model can choose between them; "
        "give other label words, or --add_tokens with what the vocabulary lacks"
    )


def _unreadable_labels(task: Task, encoding: TextEncoding) -> str | None:
    """A message about labels that are no label of the task once the tokenizer has written them; None without any."""
    written_texts = written(with_room_for_labels(encoding), task.candidates({}))
    pairs = zip(task.label_words, written_texts, strict=True)
    texts = [f"{word!r} as {text!r}" for number, (word, text) in enumerate(pairs) if task.parse(text) != number]
    if not texts:
        return None
    return (
        f"{task.benchmark}/{task.name}: {tokenizer_title(encoding.tokenizer)} writes the label {listed(texts)}, so an "
        "answer with such a label would always count as wrong; give other label words, --add_tokens with what the "
        "vocabulary lacks, or --eval_method score, which chooses a label"
    )


def labels_with_same_ids(encoding: TextEncoding, words: Sequence[str]) -> tuple[str, str] | None:
    """Two labels with the same tokens, between which a model cannot choose; None if all differ.

    >>> labels_with_same_ids(TextEncoding(t5_tokenizer, Lengths(8, 8)), ["好评", "差评"])   # both are <unk>
    ('好评', '差评')
    """
    word_by_ids: dict[tuple[int, ...], str] = {}
    for word, ids in zip(words, encoding.answers(words), strict=True):
        other_word = word_by_ids.setdefault(tuple(ids), word)
        if other_word != word:
            return other_word, word
    return None


def written(encoding: TextEncoding, words: Sequence[str]) -> list[str]:
    """The texts that a model's answers have if it writes exactly these words."""
    num_fixed = encoding.num_fixed_tokens
    return encoding.texts([ids[num_fixed:] for ids in encoding.answers(words)])


def with_room_for_labels(encoding: TextEncoding) -> TextEncoding:
    """The encoding with room for labels of any length."""
    return replace(encoding, lengths=encoding.lengths._replace(target=TOKENS_OF_ANY_LABEL))


def tokenizer_title(tokenizer) -> str:
    """The tokenizer's class, and where it is from if it was loaded."""
    place = getattr(tokenizer, "name_or_path", "")
    name = type(tokenizer).__name__
    return f"{name} ({place})" if place else name


def hint_at_labels(part: TrainingSet) -> None:
    """Says so where the targets of free text look like labels: few short ones, and many rows for each."""
    targets = _targets_like_labels(part)
    num_labels = len(set(targets))
    if num_labels < 2 or len(targets) < FEWEST_ROWS_OF_LABEL * num_labels or look_like_label_sets(targets):
        return
    labels, variants = _labels_and_variants(targets)
    if len(labels) < 2:
        return
    remark = ""
    if variants:
        remark = f", once these are written alike, which differ in case or spaces only: {_with_places(variants, part)}"
    logger.info(
        "%s: %d distinct targets in %d rows, learned as free text: --labels %s makes it a classification%s",
        part.task.name,
        num_labels,
        len(targets),
        shlex.quote(quoted_words(labels)),
        remark,
    )


def _labels_and_variants(targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Labels for the targets, and the targets that differ from one in case or spaces only; both sorted.

    >>> _labels_and_variants(["good ", "good ", "Good", "bad"])  # no label has spaces at its ends
    (['bad', 'good'], ['Good', 'good '])
    """
    label_by_letters: dict[str, str] = {}
    variants = []
    for target, _ in collections.Counter(targets).most_common():
        letters = "".join(target.split()).casefold()
        label = label_by_letters.setdefault(letters, target.strip())
        if label != target:
            variants.append(target)
    return sorted(label_by_letters.values()), sorted(variants)


def _with_places(targets: Sequence[str], part: TrainingSet) -> str:
    """Targets, each with the place of its first row."""
    column = part.task.entry["label_column_name"]
    cells = [value_at(row, column) for row in rows_of_batches(part.loaded.rows)]
    return listed([f"{target!r} (first: {part.loaded.place(cells.index(target))})" for target in targets])


def _targets_like_labels(part: TrainingSet) -> list[str]:
    """The targets of free text, row by row, if each may be a label and few are distinct; else none."""
    targets: list[str] = []
    if part.task.value_kind != "text":
        return targets
    distinct_targets = set()
    for row in rows_of_batches(part.rows):
        target = value_at(row, part.task.entry["label_column_name"])
        if not isinstance(target, str) or not target.strip() or len(target) > LONGEST_LABEL:
            return []
        distinct_targets.add(target)
        if len(distinct_targets) > MOST_LABELS:
            return []
        targets.append(target)
    return targets
