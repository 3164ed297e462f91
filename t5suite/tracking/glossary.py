"""What columns and remarks of the tables of scores mean, for the line below them and the page's legend.

>>> explained(["cut off %", "invalid %"], ["selected on", "step 30"])[1]
('selected on', 'these rows chose the checkpoint, too')
"""

from collections.abc import Iterable


def explained(columns: Iterable[str], remarks: Iterable[str]) -> list[tuple[str, str]]:
    """`(word, what it means)` of those that there is something to say of, each once."""
    words = [*columns, *("step N" if remark.startswith("step ") else remark for remark in remarks)]
    return [(word, MEANINGS[word]) for word in dict.fromkeys(words) if word in MEANINGS]


def one_line(columns: Iterable[str], remarks: Iterable[str]) -> str:
    """The same for a terminal.

    >>> one_line(["seconds"], ["subset"])
    'subset: not all rows were scored'
    """
    return "; ".join(f"{word}: {meaning}" for word, meaning in explained(columns, remarks))


MEANINGS = {
    "invalid %": "answers that are no label of the task, and count as wrong",
    "cut off %": "answers without an end at the greatest length",
    "train s": "seconds of training",
    "scored labels": "the likeliest label is the answer",
    "selected on": "these rows chose the checkpoint, too",
    "subset": "not all rows were scored",
    "train subset": "not all training rows were used",
    "step N": "with the weights of that update, the task's best",
}
