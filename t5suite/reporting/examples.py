"""A run's answers one by one: what it read, wrote and should have written, and whether that is right.

>>> shown = examples_of(evaluation, most=100)
>>> shown["verdicts"], shown["shown"], shown["examples"][0]["verdict"]
({'right': 180, 'wrong': 95, 'invalid': 2}, 100, 'invalid')
"""

import collections
import re

from t5suite.reporting.evaluations import Evaluation
from t5suite.tasks.verdicts import verdict

# Of the examples that are shown, at most this share may be right ones where there are enough others.
SHARE_RIGHT = 0.4
LONGEST_TEXT = 1200


def examples_of(evaluation: Evaluation, most: int) -> dict:
    """`{"total", "verdicts": {verdict: how many}, "shown", "examples": [...]}`, at most `most` of them.

    Invalid and wrong ones come first, then right ones; each kind in the rows' order.
    """
    verdicts = [verdict_of(evaluation, example) for example in evaluation.examples]
    counts = collections.Counter(verdicts)
    examples = [
        {
            "row": example["row"],
            "key": example["key"],
            "where": where(example),
            "inputs": shortened(example["inputs"]),
            "target": shortened(example["target"]),
            "prediction": shortened(example["prediction"]),
            "verdict": found,
        }
        for example, found in zip(evaluation.examples, verdicts)
    ]
    chosen = chosen_examples(examples, most)
    return {
        "total": len(examples),
        "verdicts": {name: counts[name] for name in VERDICTS if counts[name]},
        "shown": len(chosen),
        "examples": chosen,
    }


def verdict_of(evaluation: Evaluation, example: dict) -> str:
    """'right', 'wrong', 'invalid' (`tasks.verdicts`), or 'unlabelled'; the metrics may see texts more finely."""
    target = example["target"]
    return "unlabelled" if target is None else verdict(evaluation.task, example["prediction"], [target])


def where(example: dict) -> str:
    """Where an example's row stands, for a reader: in a file of one's own, else by its number in the source.

    >>> where({"key": "reviews.csv:6", "row": 4}), where({"key": "17", "row": 4})
    ('reviews.csv:6', 'row 4')
    """
    key = example["key"]
    return key if re.search(r":\d+$| (entry|row) \d+$", key) else f"row {example['row']}"


def chosen_examples(examples: list[dict], most: int) -> list[dict]:
    """At most `most`, of every kind some."""
    if len(examples) <= most:
        return examples
    kinds = {name: [e for e in examples if e["verdict"] == name] for name in VERDICTS}
    others = [*kinds["invalid"], *kinds["wrong"], *kinds["unlabelled"]]
    right = kinds["right"]
    num_right = min(len(right), max(most - len(others), round(most * SHARE_RIGHT)))
    return [*others[: most - num_right], *right[:num_right]]


def shortened(text: str | None) -> str | None:
    """A text of a length that a page can hold, with how much is left out."""
    if text is None or len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} … ({len(text) - LONGEST_TEXT} more characters)"


VERDICTS = ("invalid", "wrong", "right", "unlabelled")
