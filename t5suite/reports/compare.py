"""Two runs on the same rows: differences with their p-values, and the examples that flipped.

>>> comparison = compare_runs("runs/rte-small", "runs/rte-base")
>>> score = comparison["scores"][0]
>>> score["task"], score["a"], score["b"], score["mcnemar"]["p"]
('rte', 66.8, 71.1, 0.0215)

Rows are identified by the data's `idx`, else by their place in a file, or their number in the source, and must have the
same texts, without those that each run's text format puts around them; runs that were scored on different subsets of
one source are compared on the rows that both have.
"""

import itertools
import math
from collections.abc import Iterable
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.base.script_flags import changes_of_flags
from t5suite.base.terminal import Terminal
from t5suite.data.rows.jsonl import without_nan
from t5suite.reports.answers import example_verdict
from t5suite.reports.evaluations import TaskEvaluation, notes_on_tasks_left_out, numbered, read_evaluations
from t5suite.reports.formatting import NOTHING, short_names, shortened
from t5suite.reports.intervals import mcnemar, paired_bootstrap
from t5suite.reports.resampled_metrics import Statistic, right_units, statistic_of
from t5suite.reports.run_facts import read_run
from t5suite.reports.tables import new_console, new_table
from t5suite.reports.units import metric_text
from t5suite.runs.settings import changed_between, idle_length, is_changed
from t5suite.tasks.cut_marks import without_cut
from t5suite.tasks.entry_metrics import LOSSES, RATES, metric_functions
from t5suite.tasks.postprocessors import Judged
from t5suite.tasks.registry import Task
from t5suite.tasks.templates import text_of_row

# Columns of numbers.
NUMBER_COLUMNS = ("A", "B", "B - A", "95 % interval", "p (bootstrap)", "p McNemar (A/B)", "rows")
DIRECTIONS = {"lost": "right in A, not in B", "gained": "right in B, not in A"}
SMALLEST_P = 0.0001
# Characters of a flipped example's input, and of a list of labels.
LONGEST_INPUT = 200
# Settings that differ: so many are shown, and so many characters of a value.
MOST_SETTINGS = 10
LONGEST_VALUE = 40
# What a task's entry has of the texts that a model reads and writes for a row.
TEXT_FORMAT = ("output_format", "text_column_name", "label_column_name", "labels")
TEXTS_AROUND_INPUTS = ("prefix", "input_format")
# Of a text that differs between two runs: characters of it, and of those before its first difference.
LONGEST_TEXT = 80
SHOWN_BEFORE_DIFFERENCE = 20
# How answers are made (`--eval_method`), as a note says it.
METHODS = {"score": "by the likeliest label", "generate": "by its written answers"}


def compare_runs(a, b, data_dir: str | None = None) -> dict:
    """`{"a", "b", "settings", "scores": [...], "flips": [...], "only_a": tasks, "only_b": tasks, "notes": [...]}`.

    `settings` is `{name: [value in A, value in B]}` of those that differ.

    Args:
      data_dir: where the rows are now, if not where the runs had them.

    Raises:
      DataError: a directory without finished predictions, no task that both have, or rows that are not the same.
    """
    if Path(a).resolve() == Path(b).resolve():
        raise DataError(f"t5suite compare: {a} is given twice; name two runs")
    names = list(short_names([a, b]).values())
    runs = [read_run(directory, name) for directory, name in zip((a, b), names, strict=True)]
    (tasks_a, notes_a), (tasks_b, notes_b) = [evaluations_by_task(run, data_dir) for run in runs]
    common = common_tasks(runs, tasks_a, tasks_b)
    scores = []
    flips = []
    notes = []
    for task in common:
        first = tasks_a[task]
        second = tasks_b[task]
        check_same_rows(first, second, runs)
        compared = compared_scores(first, second)
        if compared is None:
            notes.append(
                f"{task}: no score can be recomputed, without labels or a metric of the suite; only flips are shown"
            )
        elif not compared:
            notes.append(
                f"{task}: no score can be compared, without a metric that both runs have; only flips are shown"
            )
        else:
            scores += compared
        notes += notes_on_metrics_left_out(first, second)
        notes += format_notes(first, second)
        notes += evaluation_notes(runs, (first, second))
        notes += method_notes(runs, task)
        if compared:
            notes += label_notes(first, second)
        notes += notes_on_own_values(first, second)
        flips += flipped_examples(first, second)
    notes += notes_a + notes_b
    return {
        "a": names[0],
        "b": names[1],
        "settings": settings_that_differ(runs[0]["settings"], runs[1]["settings"]),
        "scores": scores,
        "flips": flips,
        "only_a": [task for task in tasks_a if task not in common],
        "only_b": [task for task in tasks_b if task not in common],
        "notes": notes,
    }


def settings_that_differ(a: dict, b: dict) -> dict[str, list]:
    """`{name: [value in A, value in B]}`: settings that affect a result, then those of the layout over devices.

    Those that only say where a run executes and what it prints (`--output_dir`) are left out; a length without effect
    is None.

    >>> settings_that_differ({"seed": 1, "output_dir": "a"}, {"seed": 2, "output_dir": "b"})
    {'seed': [1, 2]}
    """
    a = {name: value for name, value in a.items() if name != idle_length(a)}
    b = {name: value for name, value in b.items() if name != idle_length(b)}
    differing = {name: list(values) for name, values in changed_between(a, b).items()}
    for name, change in changes_of_flags().items():
        if change == "layout" and is_changed(name, a, b):
            differing[name] = [a.get(name), b.get(name)]
    return differing


def method_notes(runs: list[dict], task: str) -> list[str]:
    """That a task's answers were made in two ways, if they were: such scores are not of the models alone."""
    method_a, method_b = [run["methods"].get(task) for run in runs]
    if method_a == method_b or not {method_a, method_b} <= METHODS.keys():
        return []
    return [f"{task}: A was scored {METHODS[method_a]}, B {METHODS[method_b]} (--eval_method)"]


def label_notes(a: TaskEvaluation, b: TaskEvaluation) -> list[str]:
    """That two runs with scores had other labels, or in another order: F1 of two labels is that of the second."""
    if a.task.label_words == b.task.label_words:
        return []
    lists = [", ".join(evaluation.task.label_words or ["none"]) for evaluation in (a, b)]
    labels_a, labels_b = [shortened(labels, LONGEST_INPUT) for labels in lists]
    return [
        f"{a.name}: the labels of A are {labels_a}, those of B {labels_b}; both runs are scored by those of A, so that "
        "a score of B may differ from its results.json; a flip is by each run's own"
    ]


def notes_on_metrics_left_out(a: TaskEvaluation, b: TaskEvaluation) -> list[str]:
    """The metrics that only one of two runs has."""
    notes = []
    for side, scores, other_scores in (("A", a.scores, b.scores), ("B", b.scores, a.scores)):
        metrics = [name for name in scores if name not in {*other_scores, *RATES, *LOSSES}]
        if metrics:
            notes.append(f"{a.name}: only {side} has {', '.join(metrics)}")
    return notes


def notes_on_own_values(a: TaskEvaluation, b: TaskEvaluation) -> list[str]:
    """The values of code of the user's in both runs: it is not run again, so that they have no test."""
    own_values = a.scores.keys() - metric_functions(a.task.entry).keys() - {*RATES, *LOSSES}
    notes = []
    for name in sorted(own_values & b.scores.keys()):
        value_a = metric_text(a.scores[name], name)
        value_b = metric_text(b.scores[name], name)
        notes.append(
            f"{a.name}: {name} is {value_a} in A and {value_b} in B, by results.json; it has no test, as the code of "
            "its metric is not run here"
        )
    return notes


def evaluation_notes(runs: list[dict], evaluations: tuple[TaskEvaluation, TaskEvaluation]) -> list[str]:
    """Why there are no texts, or no labels, in the runs' evaluations of a task."""
    notes = []
    for run, evaluation in zip(runs, evaluations, strict=True):
        if evaluation.note:
            notes.append(f"{run['name']}: {evaluation.note}")
    return notes


def evaluations_by_task(run: dict, data_dir: str | None) -> tuple[dict[str, TaskEvaluation], list[str]]:
    """A run's evaluations by their names in results, and why others are left out."""
    evaluations = {evaluation.name: evaluation for evaluation in read_evaluations(run["directory"], data_dir)}
    reasons = notes_on_tasks_left_out(run["directory"])
    if not evaluations:
        no_predictions = (
            f"no finished run with predictions (status: {run['status']}; looked in its folder predictions/)"
        )
        raise DataError(f"{run['directory']}: {'; '.join(reasons) or no_predictions}")
    return evaluations, [f"{run['name']}: {reason}" for reason in reasons]


def common_tasks(runs: list[dict], tasks_a: dict, tasks_b: dict) -> list[str]:
    """The tasks of one benchmark that both runs have predictions for."""
    common = [task for task in tasks_a if task in tasks_b]
    is_same_benchmark = runs[0]["benchmark"] == runs[1]["benchmark"]
    if common and is_same_benchmark:
        return common
    sides = zip(runs, (tasks_a, tasks_b), strict=True)
    contents = [f"{run['name']} has {run['benchmark']}: {', '.join(tasks)}" for run, tasks in sides]
    raise DataError(
        f"t5suite compare: no task that both have predictions for: {'; '.join(contents)}; to compare them on one file, "
        "score each: t5suite evaluate --model_name_or_path RUN --validation_file FILE"
    )


def check_same_rows(a: TaskEvaluation, b: TaskEvaluation, runs: list[dict]) -> None:
    """Checks that the rows of two evaluations are of one source, as far as they are known.

    Raises:
      DataError: they are not; names the task, the first row that differs, and what shows both runs' scores.
    """
    title = f"{a.name}: {runs[0]['name']} and {runs[1]['name']}"
    examples_a = examples_by_key(a)
    examples_b = examples_by_key(b)
    common = [key for key in examples_a if key in examples_b]
    if common:
        problems = (text_that_differs(key[0], (examples_a[key], examples_b[key]), (a.task, b.task)) for key in common)
        problem = next(filter(None, problems), "")
    else:
        problem = "; ".join(["none in common", *evaluation_notes(runs, (a, b))])
    if problem:
        raise DataError(
            f"{title} {how_rows_differ(a.task, b.task)}: {problem}; t5suite report {runs[0]['directory']} "
            f"{runs[1]['directory']} shows the scores of both, each on its own rows"
        )
    lacks_texts = any(example["inputs"] is None for example in (*a.examples, *b.examples))
    if lacks_texts:
        check_same_source(title, a, runs)


def how_rows_differ(task_a: Task, task_b: Task) -> str:
    """What two runs did whose rows have other texts: they read them in two text formats, or they are other rows."""
    differences = parts_that_differ(task_a, task_b, TEXT_FORMAT)
    if differences:
        return f"read rows in different text formats ({'; '.join(differences)})"
    texts_around = parts_that_differ(task_a, task_b, TEXTS_AROUND_INPUTS)
    if texts_around:
        return f"were scored on different rows, or with other texts around them ({'; '.join(texts_around)})"
    return "were scored on different rows"


def parts_that_differ(task_a: Task, task_b: Task, names: Iterable[str]) -> list[str]:
    """The fields of an entry, of these, that differ between two tasks, each with both values."""
    differences = []
    for name in names:
        part_a = task_a.entry.get(name)
        part_b = task_b.entry.get(name)
        if part_a != part_b:
            texts = [shortened(repr(part), LONGEST_TEXT) for part in (part_a, part_b)]
            differences.append(f"{name} {' and '.join(texts)}")
    return differences


def format_notes(a: TaskEvaluation, b: TaskEvaluation) -> list[str]:
    """That two runs put other texts around the same rows, if they did."""
    differences = parts_that_differ(a.task, b.task, TEXTS_AROUND_INPUTS)
    if not differences:
        return []
    return [f"{a.name}: A and B read the same rows with other texts around them ({'; '.join(differences)})"]


def text_that_differs(key: str, examples: tuple[dict, dict], tasks: tuple[Task, Task]) -> str:
    """The target, or else the input, that an example has in two runs; empty where these are the same, or not known.

    Inputs are the same, too, where they are without the texts that each run put around its rows.
    """
    target_a, target_b = [without_cut(str(example["target"])) for example in examples]
    if target_a != target_b:
        return f"{_row_title(key)} has target {_both_shown(target_a, target_b)}"
    if None in (examples[0]["inputs"], examples[1]["inputs"]):
        return ""
    inputs = [without_cut(example["inputs"]) for example in examples]
    texts = [text_of_row(text, task.entry) for text, task in zip(inputs, tasks, strict=True)]
    if inputs[0] == inputs[1] or texts[0] == texts[1]:
        return ""
    return f"{_row_title(key)} has inputs {_both_shown(*texts)}"


def _both_shown(text_a: str, text_b: str) -> str:
    """Two texts, from a few words before their first difference.

    >>> _both_shown("It rains.", "It snows.")
    "'It rains.' and 'It snows.'"
    """
    pairs = zip(text_a, text_b, strict=False)
    num_common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = max(0, num_common - SHOWN_BEFORE_DIFFERENCE)
    beginning = "…" if start else ""
    texts = [repr(shortened(beginning + text[start:], LONGEST_TEXT)) for text in (text_a, text_b)]
    return " and ".join(texts)


def _row_title(key: str) -> str:
    if key.startswith("row "):
        return key
    return f"row {key}"


def check_same_source(title: str, evaluation: TaskEvaluation, runs: list[dict]) -> None:
    """Without texts the manifests decide: the same fingerprint, and the same subset if rows have no `idx`."""
    split = f"{evaluation.task.name}.{evaluation.scored.split}"
    fingerprint_a, fingerprint_b = [run["fingerprints"].get(split) for run in runs]
    if fingerprint_a != fingerprint_b:
        raise DataError(f"{title} were scored on different rows: fingerprints {fingerprint_a} and {fingerprint_b}")
    seed_a, seed_b = [run["seed"] for run in runs]
    if seed_a == seed_b:
        return
    is_subset = any("subset" in run["marks"].get(evaluation.name, []) for run in runs)
    is_held_out = any(split in run["held_out"] for run in runs)
    is_drawn = is_subset or is_held_out
    has_only_numbers = any(example["key"].startswith("row ") for example in evaluation.examples)
    if is_drawn and has_only_numbers:
        raise DataError(
            f"{title} were scored on subsets drawn with seeds {seed_a} and {seed_b}, and without the "
            "rows' texts or an idx the rows cannot be matched; give --data_dir DIR"
        )


def examples_by_key(evaluation: TaskEvaluation) -> dict[tuple, dict]:
    """`{(key, how many examples of that key came before): example}`."""
    keys = numbered([example["key"] for example in evaluation.examples])
    return dict(zip(keys, evaluation.examples, strict=True))


def compared_scores(a: TaskEvaluation, b: TaskEvaluation) -> list[dict] | None:
    """One entry per metric that both have; None if the labels are not known."""
    if not has_judged_units(a) or not has_judged_units(b):
        return None
    in_both = set(a.unit_keys) & set(b.unit_keys)
    keys = [key for key in a.unit_keys if key in in_both]
    judged_a = judged_of_keys(a, keys)
    judged_b = judged_of_keys(b, keys)
    if a.task.label_words != b.task.label_words:
        judged_b = judged_a._replace(predictions=answers_read_as(a.task, b, keys))
    entries = []
    for metric, function in metric_functions(a.task.entry).items():
        if metric not in a.scores or metric not in b.scores:
            continue
        statistic_a = statistic_of(function, judged_a, a.num_classes)
        statistic_b = statistic_of(function, judged_b, a.num_classes)
        entry = {
            "task": a.name,
            "metric": metric,
            "a": without_nan(statistic_a.value()),
            "b": without_nan(statistic_b.value()),
            "rows": len(keys),
            "rows_a": len(a.unit_keys),
            "rows_b": len(b.unit_keys),
            "bootstrap": paired_bootstrap(statistic_a, statistic_b),
            "mcnemar": mcnemar_test(statistic_a, statistic_b),
        }
        entries.append(entry)
    return entries


def has_judged_units(evaluation: TaskEvaluation) -> bool:
    """Whether the labels are known, and what each judged prediction is of."""
    return evaluation.judged is not None and bool(evaluation.unit_keys)


def judged_of_keys(evaluation: TaskEvaluation, keys: list) -> Judged:
    """What was judged of some units, in their order."""
    place_of_key = {key: place for place, key in enumerate(evaluation.unit_keys)}
    places = [place_of_key[key] for key in keys]
    judged = evaluation.judged
    groups = None
    if judged.groups is not None:
        groups = [judged.groups[place] for place in places]
    return Judged(
        predictions=[judged.predictions[place] for place in places],
        references=[judged.references[place] for place in places],
        groups=groups,
    )


def answers_read_as(task: Task, evaluation: TaskEvaluation, keys: list) -> list:
    """A run's answers to some units, read by another run's task: its label words have other numbers."""
    examples = examples_by_key(evaluation)
    return [task.parse(examples[key]["prediction"]) for key in keys]


def mcnemar_test(a: Statistic, b: Statistic) -> dict | None:
    """`{"only_a", "only_b", "p"}`: how many units only one has right; None where a unit is not right or wrong."""
    right_a = right_units(a)
    right_b = right_units(b)
    if right_a is None or right_b is None:
        return None
    only_a = int((right_a & ~right_b).sum())
    only_b = int((right_b & ~right_a).sum())
    return {"only_a": only_a, "only_b": only_b, "p": mcnemar(only_a, only_b)}


def flipped_examples(a: TaskEvaluation, b: TaskEvaluation) -> list[dict]:
    """The examples that one run has right and the other wrong, in the rows' order."""
    examples_b = examples_by_key(b)
    flips = []
    for key, example_a in examples_by_key(a).items():
        if key not in examples_b:
            continue
        example_b = examples_b[key]
        direction = flip_direction(example_verdict(a, example_a), example_verdict(b, example_b))
        if direction is None:
            continue
        flip = {
            "task": a.name,
            "key": example_a["key"],
            "row": example_a["row"],
            "direction": direction,
            "inputs": example_a["inputs"] or example_b["inputs"],
            "target": example_a["target"],
            "a": example_a["prediction"],
            "b": example_b["prediction"],
        }
        flips.append(flip)
    return flips


def flip_direction(verdict_a: str, verdict_b: str) -> str | None:
    """Which of DIRECTIONS an example went; None if it did not flip.

    >>> flip_direction("right", "invalid"), flip_direction("wrong", "right"), flip_direction("wrong", "invalid")
    ('lost', 'gained', None)
    """
    if "unlabelled" in (verdict_a, verdict_b):
        return None
    if verdict_a == "right" and verdict_b != "right":
        return "lost"
    if verdict_b == "right" and verdict_a != "right":
        return "gained"
    return None


def json_lines(comparison: dict) -> list[dict]:
    """One object with the names, the settings that differ and notes; one per score, one per flip."""
    names = {key: comparison[key] for key in ("a", "b", "only_a", "only_b", "settings", "notes")}
    flips = []
    for flip in comparison["flips"]:
        facts = {name: value for name, value in flip.items() if name != "direction"}
        flips.append({"flip": flip["direction"], **facts})
    return [names, *comparison["scores"], *flips]


def print_comparison(comparison: dict, most_flips: int) -> None:
    """A table of scores, then the flips, at most `most_flips` for each direction and task."""
    console = new_console(highlight=False)
    console.print(f"A: {comparison['a']}\nB: {comparison['b']}")
    for line in lines_of_settings(comparison["settings"]):
        console.print(line, soft_wrap=True)
    table = new_table(None, ("task", "metric", *NUMBER_COLUMNS), NUMBER_COLUMNS)
    for entry in comparison["scores"]:
        table.add_row(*score_cells(entry))
    console.print(table)
    for note in (*comparison["notes"], *notes_on_rows(comparison["scores"]), *notes_on_tasks(comparison)):
        console.print(note)
    for task in dict.fromkeys(flip["task"] for flip in comparison["flips"]):
        task_flips = [flip for flip in comparison["flips"] if flip["task"] == task]
        for direction in DIRECTIONS:
            flips = [flip for flip in task_flips if flip["direction"] == direction]
            print_flips(console, flips, most_flips)


def lines_of_settings(settings: dict[str, list]) -> list[str]:
    """The settings that differ, at most MOST_SETTINGS of them.

    >>> lines_of_settings({"learning_rate": [0.001, 0.01]})
    ['settings that differ (A / B):', '  learning_rate 0.001 / 0.01']
    """
    if not settings:
        return ["no setting differs that affects a result"]
    lines = ["settings that differ (A / B):"]
    for name, (value_a, value_b) in list(settings.items())[:MOST_SETTINGS]:
        lines.append(f"  {name} {value_text(value_a)} / {value_text(value_b)}")
    if len(settings) > MOST_SETTINGS:
        lines.append(f"  ... {len(settings) - MOST_SETTINGS} more (--json)")
    return lines


def value_text(value) -> str:
    """A setting's value in one line; `-` for none.

    >>> value_text(0.001), value_text(["train", "test"]), value_text(None), value_text("a\\nb")
    ('0.001', 'train, test', '-', 'a\\\\nb')
    """
    if value is None:
        return "-"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return shortened(in_one_line(str(value)), LONGEST_VALUE)


def in_one_line(text: str) -> str:
    """A text with its line breaks shown.

    >>> in_one_line("Two\\nlines")
    'Two\\\\nlines'
    """
    return text.replace("\r", "\\r").replace("\n", "\\n")


def score_cells(entry: dict) -> list[str]:
    """A score's row of the table."""
    metric = entry["metric"]
    difference, interval, bootstrap_p = [NOTHING] * 3
    bootstrap = entry["bootstrap"]
    if bootstrap:
        low, high, difference = (
            metric_text(bootstrap[name], metric, sign="+") for name in ("low", "high", "difference")
        )
        interval = f"{low} to {high}"
        bootstrap_p = bootstrap_p_text(bootstrap["p"], bootstrap["smallest_p"])
    mcnemar_p = NOTHING
    test = entry["mcnemar"]
    if test:
        mcnemar_p = f"{p_text(test['p'])} ({test['only_a']}/{test['only_b']})"
    numbers = [
        metric_text(entry["a"], metric),
        metric_text(entry["b"], metric),
        difference,
        interval,
        bootstrap_p,
        mcnemar_p,
    ]
    return [entry["task"], metric, *numbers, str(entry["rows"])]


def p_text(p: float) -> str:
    """A p-value.

    >>> p_text(0.0215), p_text(1e-9)
    ('0.0215', '<0.0001')
    """
    if p < SMALLEST_P:
        return f"<{SMALLEST_P:.4f}"
    return f"{p:.4f}"


def bootstrap_p_text(p: float, smallest_p: float) -> str:
    """A p-value of a bootstrap; where no resample lay on the rarer side, only that it is below what so many can show.

    >>> bootstrap_p_text(0.0594, smallest_p=2 / 101), bootstrap_p_text(2 / 101, smallest_p=2 / 101)
    ('0.0594', '<0.02')
    """
    if p > smallest_p:
        return p_text(p)
    unit = 10 ** math.floor(math.log10(smallest_p))
    rounded_up = math.ceil(smallest_p / unit) * unit
    return f"<{rounded_up:.1g}"


def notes_on_rows(scores: list[dict]) -> list[str]:
    """Which tasks were compared on a part of their rows."""
    notes = {}
    for entry in scores:
        if entry["rows"] < max(entry["rows_a"], entry["rows_b"]):
            notes[entry["task"]] = (
                f"{entry['task']}: {entry['rows']} rows in common, of {entry['rows_a']} in A and {entry['rows_b']} in B"
                "; the scores here are those of the common rows"
            )
    return list(notes.values())


def notes_on_tasks(comparison: dict) -> list[str]:
    """Which tasks only one of the runs has."""
    notes = []
    for side in ("a", "b"):
        tasks = comparison[f"only_{side}"]
        if tasks:
            notes.append(f"only {side.upper()} has {', '.join(tasks)}")
    return notes


def print_flips(console: Terminal, flips: list[dict], max_flips: int) -> None:
    """The flips of one task in one direction, at most so many."""
    if not flips:
        return
    console.print(f"\n{flips[0]['task']}: {len(flips)} {DIRECTIONS[flips[0]['direction']]}")
    for flip in flips[:max_flips]:
        console.print(f"  {flip['key']}: target {flip['target']!r}, A {flip['a']!r}, B {flip['b']!r}")
        if flip["inputs"]:
            console.print(f"    {in_one_line(flip['inputs'][:LONGEST_INPUT])}")
    if len(flips) > max_flips:
        console.print(f"  ... {len(flips) - max_flips} more (--max_flips)")
