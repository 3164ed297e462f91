"""How numbers, names of runs and remarks are written in tables, pages and cards.

>>> points(71.119), significant(117028.6), average_title("glue")
('71.12', '117,000', 'average glue')
"""

import math
from collections.abc import Collection, Iterable
from pathlib import Path

from t5suite.runs.trained_splits import TRAINED_ON_MARK

NOTHING = "–"
# So many steps whose evaluation is equal to the best one are named.
MOST_EQUAL_STEPS = 5
MEANINGS = {
    "invalid %": "answers that are no label or number of the task, and count as wrong",
    "cut off %": "answers that reach the greatest length without an end",
    "train s": "seconds of training, of all starts of a run",
    "scored labels": "the likeliest label is the answer",
    "chosen on these rows": "the checkpoint is the one that scored best on them",
    TRAINED_ON_MARK: "the score is not one of unseen rows",
    "nothing selected": "no evaluation during training gave a number: these are the last weights",
    "subset": "not all rows were scored",
    "different rows": "the runs were scored on different rows (each seed draws its own): the mean is over rows, too",
    "train subset": "not all training rows were used",
    "step N": "with the weights of that update, the task's best",
}


def points(value, unknown: str = NOTHING, digits: int = 2) -> str:
    """Two decimals; `unknown` for NaN and None."""
    if value is None or not math.isfinite(value):
        return unknown
    return f"{value:.{digits}f}"


def is_plain_number(value) -> bool:
    """Whether a value is a finite number (True is not)."""
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float)) and math.isfinite(value)


def significant(value, digits: int = 4) -> str:
    """A number of any size.

    >>> significant(0.00031234), significant(117028.6)
    ('0.0003123', '117,000')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    rounded = f"{value:.{digits}g}"
    if abs(value) >= 1000:
        return f"{float(rounded):,.0f}"
    return rounded


def shortened(text, max_length: int) -> str:
    """The beginning of a long text.

    >>> shortened("It rains.", 6)
    'It ra…'
    """
    text = str(text)
    if len(text) <= max_length:
        return text
    return f"{text[: max_length - 1]}…"


def shortened_in_the_middle(text: str, max_length: int) -> str:
    """A long text without its middle: names that begin alike often differ at the end.

    >>> shortened_in_the_middle("runs-of-spring-7", 9)
    'runs…ng-7'
    """
    if len(text) <= max_length:
        return text
    end_length = (max_length - 1) // 2
    beginning_length = max_length - 1 - end_length
    return f"{text[:beginning_length]}…{text[len(text) - end_length :]}"


def average_title(name: str) -> str:
    """An average's name; for tasks of no published suite it is just 'average', with which tasks it is of.

    >>> average_title("glue"), average_title("average"), average_title("average of glue/cola,rte")
    ('average glue', 'average', 'average of glue/cola,rte')
    """
    if name == "average" or name.startswith("average of "):
        return name
    return f"average {name}"


def names_of_benchmarks(runs: Iterable[dict]) -> list[str]:
    """The benchmarks of a report's runs; pre-training has none."""
    return list(dict.fromkeys(run["benchmark"] for run in runs if run["benchmark"]))


def task_title(benchmark: str | None, task: str, benchmarks: Collection[str]) -> str:
    """A task's name, with its benchmark before it where a report has several, which may have tasks of one name.

    >>> task_title("glue", "rte", ["glue"]), task_title("glue", "rte", ["glue", "super_glue"])
    ('rte', 'glue/rte')
    """
    if benchmark is None or len(benchmarks) < 2:
        return task
    return f"{benchmark}/{task}"


def explained(columns: Iterable[str], remarks: Iterable[str]) -> list[tuple[str, str]]:
    """`(word, its meaning)` of the columns and remarks that MEANINGS has, each once."""
    words = list(columns)
    for remark in remarks:
        if remark.startswith("step "):
            words.append("step N")
        else:
            words.append(remark)
    return [(word, MEANINGS[word]) for word in dict.fromkeys(words) if word in MEANINGS]


def choice_line(choice: dict, last_step: int | None = None) -> str:
    """Which weights a run keeps, and why these.

    >>> choice_line({"task": None, "step": 20, "by": "accuracy", "equal_steps": [40, 60]}, 60)
    'kept: step 20 of 60, the best by accuracy; steps 40 and 60 are equal to it'
    >>> choice_line({"task": "rte", "step": 20, "by": "accuracy", "equal_steps": []}, 60)
    'kept for rte: step 20 of 60, the best by accuracy'
    >>> choice_line({"task": None, "step": 20, "by": "rougeL", "equal_steps": [40, 60], "all_equal": True}, 60)
    'kept: step 20 of 60, the best by rougeL; all evaluations are equal: choose by --metric_for_best_model loss'
    >>> choice_line({"task": None, "step": 60, "by": "loss", "equal_steps": [], "best_at_the_end": True}, 60)
    'kept: step 60 of 60, the best by loss; the last evaluation was the best: more updates (--max_steps) may help'
    >>> fewest = {"step": 60, "invalid_rate": 0.0}
    >>> choice_line({"task": None, "step": 20, "by": "pearson", "equal_steps": [], "invalid_rate": 96.7,
    ...              "fewest_invalid": fewest})
    'kept: step 20, the best by pearson; 96.7% of its answers were invalid, the fewest (0.0%) at step 60'
    """
    line = "kept"
    if choice["task"] is not None:
        line += f" for {choice['task']}"
    line += f": step {choice['step']}"
    if last_step is not None:
        line += f" of {last_step}"
    line += f", the best by {choice['by']}"
    if choice.get("all_equal") and choice["by"] != "loss":
        line += "; all evaluations are equal: choose by --metric_for_best_model loss"
    elif choice["equal_steps"]:
        line += f"; {_equal_steps(choice['equal_steps'])} equal to it"
    if choice.get("best_at_the_end"):
        line += "; the last evaluation was the best: more updates (--max_steps) may help"
    return line + _invalid_answers(choice)


def _invalid_answers(choice: dict) -> str:
    """The share of invalid answers in the evaluation that chose, if there were any; else nothing."""
    if not choice.get("invalid_rate"):
        return ""
    text = f"; {choice['invalid_rate']:.1f}% of its answers were invalid"
    fewest = choice.get("fewest_invalid")
    if fewest:
        text += f", the fewest ({fewest['invalid_rate']:.1f}%) at step {fewest['step']}"
    return text


def _equal_steps(steps: list[int]) -> str:
    """
    >>> _equal_steps([40]), _equal_steps([40, 60]), _equal_steps([10, 20, 30, 40, 50, 60, 70])
    ('step 40 is', 'steps 40 and 60 are', 'steps 10, 20, 30, 40, 50 and 2 more are')
    """
    if len(steps) == 1:
        return f"step {steps[0]} is"
    names = [str(step) for step in steps[:MOST_EQUAL_STEPS]]
    if len(steps) > MOST_EQUAL_STEPS:
        names.append(f"{len(steps) - MOST_EQUAL_STEPS} more")
    return f"steps {', '.join(names[:-1])} and {names[-1]} are"


def short_names(directories) -> dict[str, str]:
    """`{directory: a name for it}`: its last part, and as many before it as distinguish it from the others.

    >>> short_names(["runs/a/s1", "runs/b/s1", "runs/c"])
    {'runs/a/s1': 'a/s1', 'runs/b/s1': 'b/s1', 'runs/c': 'c'}
    """
    parts = {str(directory): Path(directory).resolve().parts for directory in directories}
    names = {}
    for directory, path in parts.items():
        other_paths = [other_path for other_path in parts.values() if other_path != path]
        depth = _distinguishing_depth(path, other_paths)
        names[directory] = "/".join(path[-depth:])
    return names


def _distinguishing_depth(path: tuple[str, ...], other_paths: list[tuple[str, ...]]) -> int:
    """How many of a path's last parts no other path has; all of them if none suffice."""
    for depth in range(1, len(path)):
        if all(other_path[-depth:] != path[-depth:] for other_path in other_paths):
            return depth
    return len(path)
