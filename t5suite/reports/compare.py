"""Two runs on the same rows: differences with their p-values, and the examples that flipped.

>>> found = compare_runs("runs/rte-small", "runs/rte-base")
>>> found["scores"][0]["task"], found["scores"][0]["a"], found["scores"][0]["b"], found["scores"][0]["mcnemar"]["p"]
('rte', 66.8, 71.1, 0.0215)

Rows are known by the data's `idx`, else by their place in a file of one's own, or their number in the source; runs that
were scored on different subsets of one source are compared on the rows that both have. Where a row that both have reads
differently, nothing is compared.
"""

from pathlib import Path

from rich import box
from rich.table import Table

from t5suite.base.errors import DataError
from t5suite.base.redaction import printable
from t5suite.base.terminal import Terminal
from t5suite.reports.evaluations import Evaluation, evaluations_of, shortened, verdict_of
from t5suite.reports.intervals import mcnemar, paired_bootstrap, right_units, statistic_of
from t5suite.reports.results import named
from t5suite.reports.run_facts import read_run
from t5suite.reports.tables import NOTHING, escaped, escaped_table, points
from t5suite.tasks.entries import metric_functions
from t5suite.tasks.postprocessors import Judged


def compare_runs(a, b, data_dir: str | None = None) -> dict:
    """`{"a", "b", "scores": [...], "flips": [...], "only_a": tasks, "only_b": tasks, "notes": [...]}`.

    Args:
      data_dir: where the rows are now, if not where the runs had them.

    Raises:
      DataError: a directory without finished predictions, no task that both have, or rows that are not the same.
    """
    names = list(named([a, b]).values())
    if len(names) < 2:
        raise DataError(f"t5suite compare: {a} is given twice; name two runs")
    runs = [read_run(directory, name) for directory, name in zip((a, b), names)]
    found = [_by_name(run, evaluations_of(run["directory"], data_dir)) for run in runs]
    if runs[0]["benchmark"] != runs[1]["benchmark"]:
        raise DataError(f"{a} is of {runs[0]['benchmark']}, {b} of {runs[1]['benchmark']}: they have no task in common")
    common = [task for task in found[0] if task in found[1]]
    if not common:
        said = " and ".join(f"{run['name']} has {', '.join(tasks)}" for run, tasks in zip(runs, found))
        raise DataError(f"t5suite compare: no task that both have predictions for: {said}")
    scores, flips, notes = [], [], []
    for task in common:
        pair = found[0][task], found[1][task]
        check_same_rows(*pair, runs)
        compared, note = compared_scores(*pair)
        scores += compared
        notes += [note] if note else []
        notes += [f"{run['name']}: {side.note}" for run, side in zip(runs, pair) if side.note]
        flips += flipped(*pair)
    return {
        "a": names[0],
        "b": names[1],
        "scores": scores,
        "flips": flips,
        "only_a": [task for task in found[0] if task not in found[1]],
        "only_b": [task for task in found[1] if task not in found[0]],
        "notes": notes,
    }


def _by_name(run: dict, evaluations: list[Evaluation]) -> dict[str, Evaluation]:
    if not evaluations:
        folder = Path(run["directory"]) / "predictions"
        raise DataError(f"{run['directory']}: no finished run with predictions to compare (looked in {folder})")
    return {evaluation.name: evaluation for evaluation in evaluations}


def check_same_rows(a: Evaluation, b: Evaluation, runs: list[dict]) -> None:
    """Refuses two evaluations whose rows are not of one source.

    Raises:
      DataError: naming the task and the first row that differs.
    """
    contents = [_contents(evaluation) for evaluation in (a, b)]
    common = [key for key in contents[0] if key in contents[1]]
    names = f"{runs[0]['name']} and {runs[1]['name']}"
    if not common:
        why = "".join(f"; {run['name']}: {side.note}" for run, side in zip(runs, (a, b)) if side.note)
        raise DataError(f"{a.name}: {names} were scored on different rows: none in common{why}")
    for key in common:
        (inputs_a, target_a), (inputs_b, target_b) = contents[0][key], contents[1][key]
        if target_a != target_b:
            what = f"target {target_a!r:.80} and {target_b!r:.80}"
        elif None not in (inputs_a, inputs_b) and inputs_a != inputs_b:
            what = f"input {inputs_a!r:.80} and {inputs_b!r:.80}"
        else:
            continue
        raise DataError(f"{a.name}: {names} were scored on different rows: {_shown(key[0])} has {what}")
    if any(inputs is None for inputs, _ in (*contents[0].values(), *contents[1].values())):
        _check_without_texts(a, runs, names)


def _check_without_texts(a: Evaluation, runs: list[dict], names: str) -> None:
    """Where texts cannot tell, the manifests must: one fingerprint, and the same subset where rows have no `idx`."""
    told = [run["fingerprints"].get(f"{a.task.name}.{a.split}") for run in runs]
    if told[0] != told[1]:
        raise DataError(f"{a.name}: {names} were scored on different rows: fingerprints {told[0]} and {told[1]}")
    numbered = any(example["key"].startswith("row ") for example in a.examples)
    subset = "subset" in runs[0]["marks"].get(a.name, []) + runs[1]["marks"].get(a.name, [])
    drawn = subset or any(f"{a.task.name}.{a.split}" in run["held_out"] for run in runs)
    if numbered and drawn and runs[0]["seed"] != runs[1]["seed"]:
        raise DataError(
            f"{a.name}: {names} were scored on subsets drawn with seeds {runs[0]['seed']} and {runs[1]['seed']}, and "
            "without the rows' texts or an idx they cannot be told apart; give --data_dir DIR"
        )


def _contents(evaluation: Evaluation) -> dict:
    """`{(key, its how-manieth example): (inputs, target)}`."""
    found: dict = {}
    for example in evaluation.examples:
        number = 0
        while (example["key"], number) in found:
            number += 1
        found[example["key"], number] = (example["inputs"], example["target"])
    return found


def _shown(key: str) -> str:
    return key if key.startswith("row ") else f"row {key}"


def compared_scores(a: Evaluation, b: Evaluation) -> tuple[list[dict], str]:
    """`(one entry a metric, why there is none)`."""
    if a.judged is None or b.judged is None or not a.unit_keys or not b.unit_keys:
        return [], f"{a.name}: no labels that the scores can be computed from again; only flips are shown"
    places = [dict(zip(evaluation.unit_keys, range(len(evaluation.unit_keys)))) for evaluation in (a, b)]
    common = [key for key in places[0] if key in places[1]]
    judged = [_chosen(e.judged, [place[key] for key in common]) for e, place in zip((a, b), places)]
    entries = []
    for name, function in metric_functions(a.task.entry).items():
        if name not in a.scores or name not in b.scores:
            continue
        statistics = [statistic_of(name, function, one, a.num_classes) for one in judged]
        entry = {"task": a.name, "metric": name, "a": statistics[0].value(), "b": statistics[1].value()}
        entry |= {"rows": len(common), "rows_a": len(a.unit_keys), "rows_b": len(b.unit_keys)}
        entry["bootstrap"] = paired_bootstrap(*statistics)
        entry["mcnemar"] = _mcnemar(*statistics)
        entries.append({key: None if value != value else value for key, value in entry.items()})
    return entries, ""


def _mcnemar(a, b) -> dict | None:
    right = right_units(a), right_units(b)
    if right[0] is None or right[1] is None:
        return None
    only_a, only_b = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    return {"only_a": only_a, "only_b": only_b, "p": mcnemar(only_a, only_b)}


def _chosen(judged: Judged, places: list[int]) -> Judged:
    groups = None if judged.groups is None else [judged.groups[i] for i in places]
    return Judged([judged.predictions[i] for i in places], [judged.references[i] for i in places], groups)


def flipped(a: Evaluation, b: Evaluation) -> list[dict]:
    """The examples that one has right and the other has not, in the rows' order."""
    found = []
    others = dict(zip(_contents(b), b.examples))
    for key, example in zip(_contents(a), a.examples):
        other = others.get(key)
        if other is None:
            continue
        verdicts = verdict_of(a, example), verdict_of(b, other)
        if "unlabelled" in verdicts or (verdicts[0] == "right") == (verdicts[1] == "right"):
            continue
        found.append(
            {
                "task": a.name,
                "key": example["key"],
                "row": example["row"],
                "direction": "lost" if verdicts[0] == "right" else "gained",
                "inputs": shortened(example["inputs"] or other["inputs"]),
                "target": shortened(example["target"]),
                "a": shortened(example["prediction"]),
                "b": shortened(other["prediction"]),
            }
        )
    return found


WIDTH = 118
DIRECTIONS = {"lost": "right in A, not in B", "gained": "right in B, not in A"}


def json_lines(found: dict) -> list[dict]:
    """One object a score, then one a flip, then the tasks that only one of the two has."""
    lines = [{"a": found["a"], "b": found["b"], "only_a": found["only_a"], "only_b": found["only_b"]}]
    return [*lines, *found["scores"], *({"flip": flip.pop("direction"), **flip} for flip in map(dict, found["flips"]))]


def print_comparison(found: dict, most_flips: int) -> None:
    """A table of scores, then the flips, at most so many each way and task."""
    console = Terminal(width=None if Terminal().is_terminal else WIDTH, markup=False, emoji=False, highlight=False)
    console.print(f"A: {found['a']}\nB: {found['b']}")
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in HEADER:
        shown.add_column(name, justify="left" if name in ("task", "metric") else "right")
    for entry in found["scores"]:
        shown.add_row(*score_row(entry))
    console.print(shown)
    for note in notes_of(found):
        console.print(note)
    for task, direction, flips in flips_by_task(found):
        console.print(f"\n{task}: {len(flips)} {DIRECTIONS[direction]}")
        for flip in flips[:most_flips]:
            console.print(f"  {flip['key']}: target {flip['target']!r}, A {flip['a']!r}, B {flip['b']!r}")
            if flip["inputs"]:
                console.print(f"    {flip['inputs'][:200]}")
        if len(flips) > most_flips:
            console.print(f"  ... {len(flips) - most_flips} more (--max_flips)")


def score_row(entry: dict) -> list[str]:
    """One line of the table."""
    found, test = entry["bootstrap"], entry["mcnemar"]
    interval = f"{found['low']:+.2f} to {found['high']:+.2f}" if found else NOTHING
    return [
        entry["task"],
        entry["metric"],
        points(entry["a"]),
        points(entry["b"]),
        f"{found['difference']:+.2f}" if found else NOTHING,
        interval,
        p_value(found["p"]) if found else NOTHING,
        f"{p_value(test['p'])} ({test['only_a']}/{test['only_b']})" if test else NOTHING,
        str(entry["rows"]),
    ]


def p_value(p: float) -> str:
    """A p-value of a length that can be read.

    >>> p_value(0.00002), p_value(0.0213)
    ('<0.0001', '0.0213')
    """
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def notes_of(found: dict) -> list[str]:
    """What the table must be read with."""
    notes = list(found["notes"])
    for entry in {entry["task"]: entry for entry in found["scores"]}.values():
        if entry["rows"] < max(entry["rows_a"], entry["rows_b"]):
            kept = f"{entry['rows']} rows in common, of {entry['rows_a']} in A and {entry['rows_b']} in B"
            notes.append(f"{entry['task']}: {kept}; the scores here are those of the common rows")
    for side in ("a", "b"):
        if found[f"only_{side}"]:
            notes.append(f"only {side.upper()} has {', '.join(found[f'only_{side}'])}")
    return notes


def flips_by_task(found: dict):
    """`(task, direction, flips)` of those that there are."""
    for task in dict.fromkeys(flip["task"] for flip in found["flips"]):
        for direction in DIRECTIONS:
            flips = [flip for flip in found["flips"] if (flip["task"], flip["direction"]) == (task, direction)]
            if flips:
                yield task, direction, flips


def comparison_markdown(found: dict, most_flips: int) -> str:
    """The same as Markdown."""
    lines = [f"# {escaped(found['a'])} (A) and {escaped(found['b'])} (B)", ""]
    lines += escaped_table(HEADER, [score_row(entry) for entry in found["scores"]])
    lines += [f"- {escaped(note)}" for note in notes_of(found)] + [""]
    lines += [f"{METHOD}", ""]
    for task, direction, flips in flips_by_task(found):
        lines += [f"## {escaped(task)}: {len(flips)} {DIRECTIONS[direction]}", ""]
        rows = [[f["key"], f["inputs"] or NOTHING, f["target"], f["a"], f["b"]] for f in flips[:most_flips]]
        lines += escaped_table(["row", "input", "target", "A", "B"], rows)
        if len(flips) > most_flips:
            lines += [f"{len(flips) - most_flips} more.", ""]
    return printable("\n".join(lines).rstrip()) + "\n"


HEADER = ["task", "metric", "A", "B", "B - A", "95 % interval", "p (bootstrap)", "p McNemar (A/B)", "rows"]
METHOD = (
    "Paired bootstrap over rows, two-sided; McNemar's exact test over the rows that only one of the two has right "
    "(their numbers in brackets). Points, 0 to 100."
)
