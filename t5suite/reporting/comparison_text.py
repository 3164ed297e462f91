"""A comparison of two runs on the terminal, as Markdown and as JSON lines.

>>> print_comparison(compare_runs("runs/rte-small", "runs/rte-base"), most_flips=5)
"""

from rich import box
from rich.table import Table

from t5suite.base.redaction import printable
from t5suite.base.terminal import Terminal
from t5suite.reporting.cells import NOTHING, points
from t5suite.reporting.markdown import escaped, table

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
    lines += table(HEADER, [score_row(entry) for entry in found["scores"]])
    lines += [f"- {escaped(note)}" for note in notes_of(found)] + [""]
    lines += [f"{METHOD}", ""]
    for task, direction, flips in flips_by_task(found):
        lines += [f"## {escaped(task)}: {len(flips)} {DIRECTIONS[direction]}", ""]
        rows = [[f["key"], f["inputs"] or NOTHING, f["target"], f["a"], f["b"]] for f in flips[:most_flips]]
        lines += table(["row", "input", "target", "A", "B"], rows)
        if len(flips) > most_flips:
            lines += [f"{len(flips) - most_flips} more.", ""]
    return printable("\n".join(lines).rstrip()) + "\n"


HEADER = ["task", "metric", "A", "B", "B - A", "95 % interval", "p (bootstrap)", "p McNemar (A/B)", "rows"]
METHOD = (
    "Paired bootstrap over rows, two-sided; McNemar's exact test over the rows that only one of the two has right "
    "(their numbers in brackets). Points, 0 to 100."
)
