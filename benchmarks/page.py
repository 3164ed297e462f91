"""What `make bench` found, as the table of docs/performance.md.

    python -m benchmarks --page docs/performance.md

The table stands between two comments of the page, and says on what machine, with which versions and at which commit.
"""

import re
from pathlib import Path

from t5suite.base.errors import ConfigError

PACKAGES = ("python", "torch", "transformers", "tokenizers", "numpy")
BEGIN, END = "<!-- {device}: what make bench found -->", "<!-- {device}: end -->"


def markdown(report: dict) -> str:
    """The table of a report with a line on where it was made.

    >>> print(markdown(json.loads(Path("build/bench.json").read_text())))
    """
    results = report["results"]
    has_goals = any("goal" in comparison for result in results for comparison in result["peers"].values())
    heads = ["", "work", "ours", "against", "theirs", "ratio (quartiles)"]
    if has_goals:
        heads += ["goal", ""]
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|" + "---|" * len(heads)]
    for result in results:
        for peer, comparison in result["peers"].items():
            lines.append(_line(result, peer, comparison, has_goals))
    checks = [f"* {result['id']} {result['work']}: {result['checked']}." for result in results]
    return "\n".join([where(report), "", *lines, "", "Checked before anything was timed:", "", *checks])


def _line(result: dict, peer: str, comparison: dict, has_goals: bool) -> str:
    """The table's line of a piece of work against one of its peers."""
    unit = result.get("unit", "ms")
    ratio = comparison["ratio"]
    quartiles = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
    line = (
        f"| {result['id']} | {result['work']} | {_time(result['milliseconds'], unit)} | {peer} "
        f"| {_time(comparison['milliseconds'], unit)} | **{ratio['median']:.3f}** ({quartiles}) |"
    )
    if has_goals:
        goal = comparison.get("goal")
        shown_goal = "" if goal is None else f"≤ {goal:g}"
        line += f" {shown_goal} | {comparison.get('verdict', '')} |"
    return line


def where(report: dict) -> str:
    """Hardware, versions and commit in a sentence."""
    environment = report["environment"]
    hardware, versions, commit = environment["hardware"], environment["versions"], environment["commit"]
    machine = environment.get("gpu") or f"{hardware['processor']}, {hardware['cores']} cores, one thread used"
    packages = ", ".join(
        f"{name} {versions[name]}" for name in ("python", "torch", "transformers", "tokenizers", "numpy")
    )
    changed = " with changes" if commit and commit["changed"] else ""
    code = f"commit {commit['commit'][:7]}{changed}" if commit else "no checkout"
    # Times alone: memory is counted.
    turns = [result["repetitions"] for result in report["results"] if result.get("unit", "ms") == "ms"]
    return f"{machine}; {packages}; {code}; {min(turns, default=2)} turns or more."


def write(page: Path, report: dict) -> None:
    """Puts the table where the page has its comments for this device.

    Raises:
      ConfigError: the page has no such comments.
    """
    device = report["results"][0]["device"]
    begin, end = BEGIN.format(device=device), END.format(device=device)
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise ConfigError(f"{page} has no place for the table: the lines {begin!r} and {end!r}")
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    page.write_text(between.sub(lambda _: f"{begin}\n{markdown(report)}\n{end}", text), encoding="utf-8")


def _time(milliseconds: dict, unit: str = "ms") -> str:
    median = milliseconds["median"]
    if unit != "ms":
        return f"{median:.2f} {unit}"
    if median >= 1e3:
        return f"{median / 1e3:.2f} s"
    return f"{median:.2f} ms" if median >= 0.1 else f"{1e3 * median:.1f} µs"
