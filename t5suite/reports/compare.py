"""Two runs on the same rows: differences with their p-values, and the examples that flipped.

>>> found = compare_runs("runs/rte-small", "runs/rte-base")
>>> found["scores"][0]["task"], found["scores"][0]["a"], found["scores"][0]["b"], found["scores"][0]["mcnemar"]["p"]
('rte', 66.8, 71.1, 0.0215)

Rows are known by the data's `idx`, else by their place in a file, or their number in the source; runs that were scored
on different subsets of one source are compared on the rows that both have.
"""

from rich import box
from rich.table import Table

from t5suite.base.errors import DataError
from t5suite.base.redaction import printable
from t5suite.base.terminal import Terminal
from t5suite.reports.evaluations import Evaluation, evaluations_of, shortened, verdict_of
from t5suite.reports.intervals import mcnemar, paired_bootstrap, right_units, statistic_of
from t5suite.reports.results import read_run
from t5suite.reports.tables import NOTHING, escaped, escaped_table, named, points
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
    found = [{e.name: e for e in evaluations_of(run["directory"], data_dir)} for run in runs]
    for run, tasks in zip(runs, found):
        if not tasks:
            raise DataError(f"{run['directory']}: no finished run with predictions (looked in its folder predictions/)")
    if runs[0]["benchmark"] != runs[1]["benchmark"]:
        raise DataError(f"{a} is of {runs[0]['benchmark']}, {b} of {runs[1]['benchmark']}: they have no task in common")
    common = [task for task in found[0] if task in found[1]]
    if not common:
        said = " and ".join(f"{run['name']} has {', '.join(tasks)}" for run, tasks in zip(runs, found))
        raise DataError(f"t5suite compare: no task that both have predictions for: {said}")
    scores, flips, notes = [], [], []
    for task in common:
        pair = found[0][task], found[1][task]
        _check_same_rows(*pair, runs)
        compared = compared_scores(*pair)
        if compared is None:
            notes.append(f"{task}: no labels that the scores can be computed from again; only flips are shown")
        scores += compared or []
        notes += [f"{run['name']}: {side.note}" for run, side in zip(runs, pair) if side.note]
        flips += flipped(*pair)
    only = [[task for task in found[side] if task not in common] for side in (0, 1)]
    return {"a": names[0], "b": names[1], "scores": scores, "flips": flips, "only_a": only[0], "only_b": only[1],
            "notes": notes}  # fmt: skip


def _check_same_rows(a: Evaluation, b: Evaluation, runs: list[dict]) -> None:
    """Refuses two evaluations whose rows are not of one source, naming the task and the first row that differs."""
    contents = _contents(a), _contents(b)
    names = f"{a.name}: {runs[0]['name']} and {runs[1]['name']}"
    common = [(key, contents[0][key], contents[1][key]) for key in contents[0] if key in contents[1]]
    if not common:
        why = "".join(f"; {run['name']}: {side.note}" for run, side in zip(runs, (a, b)) if side.note)
        raise DataError(f"{names} were scored on different rows: none in common{why}")
    for (key, _), of_a, of_b in common:
        for what in ("target", "inputs"):
            known = what == "target" or None not in (of_a[what], of_b[what])
            if known and of_a[what] != of_b[what]:
                row = key if key.startswith("row ") else f"row {key}"
                differ = f"{row} has {what} {of_a[what]!r:.80} and {of_b[what]!r:.80}"
                raise DataError(f"{names} were scored on different rows: {differ}")
    if all(example["inputs"] is not None for example in (*a.examples, *b.examples)):
        return
    # Without texts the manifests must decide: one fingerprint, and the same subset where rows have no `idx`.
    split = f"{a.task.name}.{a.split}"
    prints = [run["fingerprints"].get(split) for run in runs]
    if prints[0] != prints[1]:
        raise DataError(f"{names} were scored on different rows: fingerprints {prints[0]} and {prints[1]}")
    drawn = any("subset" in run["marks"].get(a.name, []) or split in run["held_out"] for run in runs)
    if drawn and runs[0]["seed"] != runs[1]["seed"] and any(e["key"].startswith("row ") for e in a.examples):
        raise DataError(
            f"{names} were scored on subsets drawn with seeds {runs[0]['seed']} and {runs[1]['seed']}, and without the "
            "rows' texts or an idx they cannot be told apart; give --data_dir DIR"
        )


def _contents(evaluation: Evaluation) -> dict:
    """`{(key, how many examples of that key came before): example}`."""
    found: dict = {}
    for example in evaluation.examples:
        number = 0
        while (example["key"], number) in found:
            number += 1
        found[example["key"], number] = example
    return found


def compared_scores(a: Evaluation, b: Evaluation) -> list[dict] | None:
    """One entry a metric; None where the labels are not known."""
    if a.judged is None or b.judged is None or not a.unit_keys or not b.unit_keys:
        return None
    common = set(a.unit_keys) & set(b.unit_keys)
    common = [key for key in a.unit_keys if key in common]
    judged = []
    for side in (a, b):
        place = {key: at for at, key in enumerate(side.unit_keys)}
        judged.append(Judged(*([of[place[key]] for key in common] if of else None for of in side.judged)))
    entries = []
    for name, function in metric_functions(a.task.entry).items():
        if name not in a.scores or name not in b.scores:
            continue
        of_a, of_b = (statistic_of(function, one, a.num_classes) for one in judged)
        entry = {"task": a.name, "metric": name, "a": of_a.value(), "b": of_b.value(), "rows": len(common),
                 "rows_a": len(a.unit_keys), "rows_b": len(b.unit_keys), "bootstrap": paired_bootstrap(of_a, of_b),
                 "mcnemar": None}  # fmt: skip
        right_a, right_b = right_units(of_a), right_units(of_b)
        if right_a is not None and right_b is not None:
            only = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
            entry["mcnemar"] = {"only_a": only[0], "only_b": only[1], "p": mcnemar(*only)}
        entries.append({key: None if value != value else value for key, value in entry.items()})
    return entries


def flipped(a: Evaluation, b: Evaluation) -> list[dict]:
    """The examples that one has right and the other has not, in the rows' order."""
    found, others = [], _contents(b)
    for key, example in _contents(a).items():
        if key not in others:
            continue
        other = others[key]
        verdicts = verdict_of(a, example), verdict_of(b, other)
        if "unlabelled" not in verdicts and (verdicts[0] == "right") != (verdicts[1] == "right"):
            found.append({
                "task": a.name, "key": example["key"], "row": example["row"],
                "direction": "lost" if verdicts[0] == "right" else "gained",
                "inputs": shortened(example["inputs"] or other["inputs"]), "target": shortened(example["target"]),
                "a": shortened(example["prediction"]), "b": shortened(other["prediction"]),
            })  # fmt: skip
    return found


DIRECTIONS = {"lost": "right in A, not in B", "gained": "right in B, not in A"}
HEADER = ["task", "metric", "A", "B", "B - A", "95 % interval", "p (bootstrap)", "p McNemar (A/B)", "rows"]
METHOD = (
    "Paired bootstrap over rows, two-sided; McNemar's exact test over the rows that only one of the two has right "
    "(their numbers in brackets). Points, 0 to 100."
)


def json_lines(found: dict) -> list[dict]:
    """One object with the names, one a score, one a flip."""
    names = {key: found[key] for key in ("a", "b", "only_a", "only_b")}
    return [names, *found["scores"], *({"flip": flip.pop("direction"), **flip} for flip in map(dict, found["flips"]))]


def print_comparison(found: dict, most_flips: int) -> None:
    """A table of scores, then the flips, at most so many each way and task."""
    console = Terminal(width=None if Terminal().is_terminal else 118, markup=False, emoji=False, highlight=False)
    console.print(f"A: {found['a']}\nB: {found['b']}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in HEADER:
        table.add_column(name, justify="left" if name in ("task", "metric") else "right")
    for entry in found["scores"]:
        table.add_row(*_score_row(entry))
    console.print(table)
    for note in notes_of(found):
        console.print(note)
    for title, flips in _flips_by_task(found):
        console.print(f"\n{title}")
        for flip in flips[:most_flips]:
            console.print(f"  {flip['key']}: target {flip['target']!r}, A {flip['a']!r}, B {flip['b']!r}")
            if flip["inputs"]:
                console.print(f"    {flip['inputs'][:200]}")
        if len(flips) > most_flips:
            console.print(f"  ... {len(flips) - most_flips} more (--max_flips)")


def comparison_markdown(found: dict, most_flips: int) -> str:
    """The same as Markdown."""
    lines = [f"# {escaped(found['a'])} (A) and {escaped(found['b'])} (B)", ""]
    lines += escaped_table(HEADER, map(_score_row, found["scores"]))
    lines += [*(f"- {escaped(note)}" for note in notes_of(found)), "", METHOD, ""]
    for title, flips in _flips_by_task(found):
        rows = [[f["key"], f["inputs"] or NOTHING, f["target"], f["a"], f["b"]] for f in flips[:most_flips]]
        lines += [f"## {escaped(title)}", "", *escaped_table(["row", "input", "target", "A", "B"], rows)]
        lines += [f"{len(flips) - most_flips} more.", ""] if len(flips) > most_flips else []
    return printable("\n".join(lines).rstrip()) + "\n"


def _score_row(entry: dict) -> list[str]:
    found, test = entry["bootstrap"], entry["mcnemar"]
    p_value = lambda p: "<0.0001" if p < 0.0001 else f"{p:.4f}"
    shown = [NOTHING] * 3
    if found:
        shown = [f"{found['difference']:+.2f}", f"{found['low']:+.2f} to {found['high']:+.2f}", p_value(found["p"])]
    paired = f"{p_value(test['p'])} ({test['only_a']}/{test['only_b']})" if test else NOTHING
    return [entry["task"], entry["metric"], points(entry["a"]), points(entry["b"]), *shown, paired, str(entry["rows"])]


def notes_of(found: dict) -> list[str]:
    notes = list(found["notes"])
    for entry in {entry["task"]: entry for entry in found["scores"]}.values():
        if entry["rows"] < max(entry["rows_a"], entry["rows_b"]):
            kept = f"{entry['rows']} rows in common, of {entry['rows_a']} in A and {entry['rows_b']} in B"
            notes.append(f"{entry['task']}: {kept}; the scores here are those of the common rows")
    return notes + [f"only {side.upper()} has {', '.join(found[f'only_{side}'])}"
                    for side in ("a", "b") if found[f"only_{side}"]]  # fmt: skip


def _flips_by_task(found: dict):
    """`(title, flips)` of each task and direction that there are."""
    for task in dict.fromkeys(flip["task"] for flip in found["flips"]):
        for direction, said in DIRECTIONS.items():
            flips = [flip for flip in found["flips"] if (flip["task"], flip["direction"]) == (task, direction)]
            if flips:
                yield f"{task}: {len(flips)} {said}", flips
