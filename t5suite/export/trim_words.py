"""Pieces that are kept whatever the text: those that the user names, and those of a run's tasks.

>>> read_piece_names("pieces.txt")
[(1, '▁Haus'), (2, '▁Garten')]
"""

from collections.abc import Mapping
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.tasks.task_card import TaskCard
from t5suite.tasks.templates import OUTPUT, fill

# Fields of a task's entry whose words its model reads or writes.
FIELDS_OF_TEXT = ("prefix", "labels", "input_format", "output_format")


def read_piece_names(path: str | None) -> list[tuple[int, str]]:
    """The pieces of `--keep_pieces`, one a line, each with its line; empty lines are skipped.

    Raises:
      DataError: no such file, not UTF-8, or empty.
    """
    if path is None:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--keep_pieces {path}: cannot be read as UTF-8 text ({error})") from None
    names = [(number, line) for number, line in enumerate(lines, 1) if line]
    if not names:
        raise DataError(f"--keep_pieces {path}: it has no piece; give one a line, such as \u2581Haus")
    return names


def named_ids(path: str | None, ids_by_piece: Mapping[str, int]) -> list[int]:
    """The ids of the pieces of `--keep_pieces`.

    Raises:
      DataError: a piece that the vocabulary does not have; names its line.
    """
    ids = []
    for number, piece in read_piece_names(path):
        if piece not in ids_by_piece:
            likely = f"\u2581{piece}"
            hint = f"; did you mean {likely}?" if likely in ids_by_piece else "; give pieces as the tokenizer has them"
            raise DataError(f"{path}:{number}: {piece!r} is no piece of the model's vocabulary{hint}")
        ids.append(ids_by_piece[piece])
    return ids


def task_words(card: TaskCard | None) -> list[str]:
    """The prefixes, label words and templates of a run's tasks: its model reads and writes them, whatever the text.

    A label is there in its template, too: `<yes>` has other pieces than `yes` alone.
    """
    if card is None:
        return []
    words = []
    for task in card.tasks.values():
        for field in FIELDS_OF_TEXT:
            value = task.entry.get(field)
            parts = value if isinstance(value, list) else [value]
            words += [part for part in parts if isinstance(part, str) and part]
        words += [fill(task.entry.get("output_format"), OUTPUT, label) for label in task.label_words or []]
    return words


def tasks_with_unlisted_targets(card: TaskCard | None) -> list[str]:
    """A run's tasks whose targets `task.json` does not list: text, numbers, sets of labels."""
    if card is None:
        return []
    return [name for name, task in card.tasks.items() if not task.entry.get("labels")]
