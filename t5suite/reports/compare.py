"""Two runs on the same rows: differences with their p-values, and the examples that flipped.

>>> found = compare_runs("runs/rte-small", "runs/rte-base")
>>> found["scores"][0]["task"], found["scores"][0]["a"], found["scores"][0]["b"], found["scores"][0]["mcnemar"]["p"]
('rte', 66.8, 71.1, 0.0215)

Rows are identified by the data's `idx`, else by their place in a file, or their number in the source; runs that were
scored on different subsets of one source are compared on the rows that both have.
"""

from t5suite.base.errors import DataError
from t5suite.base.terminal import Terminal
from t5suite.reports.evaluations import Evaluation, evaluations_of, numbered, verdict_of
from t5suite.reports.formatting import NOTHING, points, short_names
from t5suite.reports.intervals import mcnemar, paired_bootstrap
from t5suite.reports.resampled_metrics import right_units, statistic_of
from t5suite.reports.results import read_run
from t5suite.reports.tables import new_table
from t5suite.tasks.entry_metrics import metric_functions
from t5suite.tasks.postprocessors import Judged
from t5suite.tasks.tokens import without_cut


def compare_runs(a, b, data_dir: str | None = None) -> dict:
    """`{"a", "b", "scores": [...], "flips": [...], "only_a": tasks, "only_b": tasks, "notes": [...]}`.

    Args:
      data_dir: where the rows are now, if not where the runs had them.

    Raises:
      DataError: a directory without finished predictions, no task that both have, or rows that are not the same.
    """
    names = list(short_names([a, b]).values())
    if len(names) < 2:
        raise DataError(f"t5suite compare: {a} is given twice; name two runs")
    runs = [read_run(directory, name) for directory, name in zip((a, b), names)]
    found = [{e.name: e for e in evaluations_of(run["directory"], data_dir)} for run in runs]
    for run, tasks in zip(runs, found):
        if not tasks:
            raise DataError(f"{run['directory']}: no finished run with predictions (looked in its folder predictions/)")
    same = runs[0]["benchmark"] == runs[1]["benchmark"]
    common = [task for task in found[0] if same and task in found[1]]
    if not common:
        has = [f"{run['name']} has {run['benchmark']}: {', '.join(tasks)}" for run, tasks in zip(runs, found)]
        raise DataError(f"t5suite compare: no task that both have predictions for: {'; '.join(has)}")
    scores, flips, notes = [], [], []
    for task in common:
        pair = found[0][task], found[1][task]
        _check_same_rows(*pair, runs)
        compared = compared_scores(*pair)
        if compared is None:
            notes.append(f"{task}: the scores cannot be recomputed without labels; only flips are shown")
        scores += compared or []
        notes += [f"{run['name']}: {side.note}" for run, side in zip(runs, pair) if side.note]
        flips += flipped(*pair)
    only = [[task for task in found[side] if task not in common] for side in (0, 1)]
    return {
        "a": names[0],
        "b": names[1],
        "scores": scores,
        "flips": flips,
        "only_a": only[0],
        "only_b": only[1],
        "notes": notes,
    }


def _check_same_rows(a: Evaluation, b: Evaluation, runs: list[dict]) -> None:
    """Rejects two evaluations whose rows are not of one source, naming the task and the first row that differs."""
    contents = _contents(a), _contents(b)
    names = f"{a.name}: {runs[0]['name']} and {runs[1]['name']}"
    common = [(key, contents[0][key], contents[1][key]) for key in contents[0] if key in contents[1]]
    if not common:
        why = "".join(f"; {run['name']}: {side.note}" for run, side in zip(runs, (a, b)) if side.note)
        raise DataError(f"{names} were scored on different rows: none in common{why}")
    for (key, _), of_a, of_b in common:
        for what in ("target", "inputs"):
            known = what == "target" or None not in (of_a[what], of_b[what])
            texts = [of_row[what] and without_cut(of_row[what]) for of_row in (of_a, of_b)]
            if known and texts[0] != texts[1]:
                row = key if key.startswith("row ") else f"row {key}"
                differ = f"{row} has {what} {of_a[what]!r:.80} and {of_b[what]!r:.80}"
                raise DataError(f"{names} were scored on different rows: {differ}")
    if all(example["inputs"] is not None for example in (*a.examples, *b.examples)):
        return
    # Without texts the manifests decide: the same fingerprint, and the same subset if rows have no `idx`.
    split = f"{a.task.name}.{a.split}"
    prints = [run["fingerprints"].get(split) for run in runs]
    if prints[0] != prints[1]:
        raise DataError(f"{names} were scored on different rows: fingerprints {prints[0]} and {prints[1]}")
    drawn = any("subset" in run["marks"].get(a.name, []) or split in run["held_out"] for run in runs)
    if drawn and runs[0]["seed"] != runs[1]["seed"] and any(e["key"].startswith("row ") for e in a.examples):
        raise DataError(
            f"{names} were scored on subsets drawn with seeds {runs[0]['seed']} and {runs[1]['seed']}, and without the "
            "rows' texts or an idx the rows cannot be matched; give --data_dir DIR"
        )


def _contents(evaluation: Evaluation) -> dict:
    """`{(key, how many examples of that key came before): example}`."""
    return dict(zip(numbered([example["key"] for example in evaluation.examples]), evaluation.examples))


def compared_scores(a: Evaluation, b: Evaluation) -> list[dict] | None:
    """One entry per metric; None if the labels are not known."""
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
        entry = {
            "task": a.name,
            "metric": name,
            "a": of_a.value(),
            "b": of_b.value(),
            "rows": len(common),
            "rows_a": len(a.unit_keys),
            "rows_b": len(b.unit_keys),
            "bootstrap": paired_bootstrap(of_a, of_b),
            "mcnemar": None,
        }
        right_a, right_b = right_units(of_a), right_units(of_b)
        if right_a is not None and right_b is not None:
            only = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
            entry["mcnemar"] = {"only_a": only[0], "only_b": only[1], "p": mcnemar(*only)}
        entries.append({key: None if value != value else value for key, value in entry.items()})
    return entries


def flipped(a: Evaluation, b: Evaluation) -> list[dict]:
    """The examples that one run has right and the other wrong, in the rows' order."""
    found, others = [], _contents(b)
    for key, example in _contents(a).items():
        if key not in others:
            continue
        other = others[key]
        verdicts = verdict_of(a, example), verdict_of(b, other)
        if "unlabelled" not in verdicts and (verdicts[0] == "right") != (verdicts[1] == "right"):
            found.append(
                {
                    "task": a.name,
                    "key": example["key"],
                    "row": example["row"],
                    "direction": "lost" if verdicts[0] == "right" else "gained",
                    "inputs": example["inputs"] or other["inputs"],
                    "target": example["target"],
                    "a": example["prediction"],
                    "b": other["prediction"],
                }
            )
    return found


def json_lines(found: dict) -> list[dict]:
    """One object with the names, one per score, one per flip."""
    names = {key: found[key] for key in ("a", "b", "only_a", "only_b")}
    return [names, *found["scores"], *({"flip": flip.pop("direction"), **flip} for flip in map(dict, found["flips"]))]


def print_comparison(found: dict, most_flips: int) -> None:
    """A table of scores, then the flips, at most `most_flips` for each direction and task."""
    console = Terminal(width=None if Terminal().is_terminal else 118, markup=False, emoji=False, highlight=False)
    console.print(f"A: {found['a']}\nB: {found['b']}")
    right = ("A", "B", "B - A", "95 % interval", "p (bootstrap)", "p McNemar (A/B)", "rows")
    table = new_table(None, ("task", "metric", *right), right)
    p_value = lambda p: "<0.0001" if p < 0.0001 else f"{p:.4f}"
    notes, by_task = list(found["notes"]), {}
    for entry in found["scores"]:
        drawn, test, shown, paired = entry["bootstrap"], entry["mcnemar"], [NOTHING] * 3, NOTHING
        if drawn:
            interval = f"{drawn['low']:+.2f} to {drawn['high']:+.2f}"
            shown = [f"{drawn['difference']:+.2f}", interval, p_value(drawn["p"])]
        if test:
            paired = f"{p_value(test['p'])} ({test['only_a']}/{test['only_b']})"
        table.add_row(
            entry["task"], entry["metric"], points(entry["a"]), points(entry["b"]), *shown, paired, str(entry["rows"])
        )
        if entry["rows"] < max(entry["rows_a"], entry["rows_b"]):
            kept = f"{entry['rows']} rows in common, of {entry['rows_a']} in A and {entry['rows_b']} in B"
            by_task[entry["task"]] = f"{entry['task']}: {kept}; the scores here are those of the common rows"
    notes += by_task.values()
    notes += [f"only {side.upper()} has {', '.join(found[f'only_{side}'])}" for side in "ab" if found[f"only_{side}"]]
    console.print(table)
    for note in notes:
        console.print(note)
    for task in dict.fromkeys(flip["task"] for flip in found["flips"]):
        for direction, said in (("lost", "right in A, not in B"), ("gained", "right in B, not in A")):
            flips = [flip for flip in found["flips"] if (flip["task"], flip["direction"]) == (task, direction)]
            if flips:
                console.print(f"\n{task}: {len(flips)} {said}")
            for flip in flips[:most_flips]:
                console.print(f"  {flip['key']}: target {flip['target']!r}, A {flip['a']!r}, B {flip['b']!r}")
                if flip["inputs"]:
                    console.print(f"    {flip['inputs'][:200]}")
            if len(flips) > most_flips:
                console.print(f"  ... {len(flips) - most_flips} more (--max_flips)")
