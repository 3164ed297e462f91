"""The suite's results as a live line, a table, JSON and Markdown.

>>> print(summary(results))
44 checks: 43 passed, 0 failed, 1 pending
"""

import datetime
import json
import shutil
import textwrap
from dataclasses import asdict
from pathlib import Path

from faults.suite import Result

# What the stock trainer did under the same faults (transformers 5.23; "-": not asked, or not measured).
STOCK = {
    "R1": "exact", "R2": "2 of 10 exact", "R3": "10 of 12 exact", "R4": "0 of 3 exact", "R5": "replays pass 1",
    "R6": "weights exact, history not", "R7": "stops at 14, not 10", "R8": "trains step 11 of 10", "R9": "crashes",
    "R10": "resumes the other run", "R11": "2 of 6 refused", "R12": "-",
    "C1": "2 of 17", "C2": "5 of 40", "C3": "0 of 25 fall back, 7 silent", "C4": "-", "C5": "0 of 7", "C6": "-",
    "C7": "both write",
    "S1": "no checkpoint", "S2": "-", "S3": "9 of 17, the others hang", "S4": "two checkpoints", "S5": "-", "S6": "-",
    "N1": "2 to 4 times the gradient", "N2": "2 of 10", "N3": "up to 0.4% off", "N4": "saves NaN, exit 0",
    "N5": "no such thing", "N6": "steps redone on spoilt weights", "N7": "-",
    "D1": "2 of 12", "D2": "8 of 10", "D3": "0 of 4",
    "T1": "dies after 103 s", "T2": "dies", "T3": "-",
    "X1": "none executed", "X2": "refused", "X3": "-", "X4": "-", "X5": "token in training_args.bin",
    "X6": "-",
}  # fmt: skip
WIDTHS = {"check": 5, "injected": 34, "expected": 26, "observed": 44, "pass": 7}


def word(result: Result) -> str:
    """What stands in the last column."""
    if result.passed:
        return "yes"
    return "pending" if result.pending else "NO"


def line(result: Result) -> str:
    """The live line of a result."""
    note = f" (pending: {result.pending})" if result.pending else ""
    mark = {"yes": "pass", "NO": "FAIL"}.get(word(result), "pending")
    return f"{result.check:<4}{mark:<8}{result.seconds:6.1f} s  {result.observed}{note}"


def summary(results: list[Result]) -> str:
    """One line about all."""
    counts = {name: sum(word(result) == name for result in results) for name in ("yes", "NO", "pending")}
    failed = " (" + ", ".join(r.check for r in results if word(r) == "NO") + ")" if counts["NO"] else ""
    parts = f"{counts['yes']} passed, {counts['NO']} failed{failed}, {counts['pending']} pending"
    return f"{len(results)} checks: {parts}"


def table(results: list[Result]) -> str:
    """The table for a terminal; long cells are wrapped."""
    spare = max(0, shutil.get_terminal_size((140, 24)).columns - sum(WIDTHS.values()) - 2 * len(WIDTHS))
    widths = {**WIDTHS, "observed": WIDTHS["observed"] + spare}
    rows = [dict(zip(widths, (name for name in widths)))]
    rows += [{**cells(result), "check": result.check, "pass": word(result)} for result in results]
    shown = []
    for row in rows:
        wrapped = [textwrap.wrap(row[name], width) or [""] for name, width in widths.items()]
        for i in range(max(map(len, wrapped))):
            parts = [cell[i] if i < len(cell) else "" for cell in wrapped]
            shown.append("  ".join(part.ljust(width) for part, width in zip(parts, widths.values())).rstrip())
    rule = "  ".join("-" * width for width in widths.values())
    return "\n".join([shown[0], rule, *shown[1:]])


def cells(result: Result) -> dict[str, str]:
    """The three texts of a row."""
    observed = result.observed + (f" (pending: {result.pending})" if result.pending else "")
    return {"injected": result.injected, "expected": result.expected, "observed": observed}


def markdown(report: dict) -> str:
    """The table for the documentation, from what `write_json` wrote."""
    results = [Result(**{k: v for k, v in entry.items() if k != "pass"}) for entry in report["checks"]]
    rows = ["| check | injected | expected | stock trainer | observed | pass |", "|---|---|---|---|---|---|"]
    for result in results:
        injected, expected, observed = (text.replace("|", "\\|") for text in cells(result).values())
        stock = STOCK.get(result.check, "-")
        rows.append(f"| {result.check} | {injected} | {expected} | {stock} | {observed} | {word(result)} |")
    return "\n".join([*rows, "", summary(results) + f" in {report['seconds']:.0f} s."])


def write_json(path, results: list[Result], *, seconds: float, settings: dict) -> None:
    """`faults.json`: every result, with what it was found with."""
    from t5suite.base.provenance import git_commit, versions

    report = {
        "summary": summary(results),
        "passed": sum(result.passed for result in results),
        "total": len(results),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        **settings,
        "commit": git_commit(),
        "versions": versions(),
        "checks": [asdict(result) for result in results],
    }
    Path(path).write_text(json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
