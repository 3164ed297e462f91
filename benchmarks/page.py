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
    with_goals = any("goal" in told for found in report["results"] for told in found["peers"].values())
    heads = ["", "work", "ours", "against", "theirs", "ratio (quartiles)", *(["goal", ""] if with_goals else [])]
    rows = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|" + "---|" * len(heads)]
    for found in report["results"]:
        unit = found.get("unit", "ms")
        for peer, told in found["peers"].items():
            ratio, goal = told["ratio"], told.get("goal")
            quartiles = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
            rows.append(
                f"| {found['id']} | {found['work']} | {_time(found['milliseconds'], unit)} | {peer} "
                f"| {_time(told['milliseconds'], unit)} | **{ratio['median']:.3f}** ({quartiles}) |"
                + (f" {'' if goal is None else f'≤ {goal:g}'} | {told.get('verdict', '')} |" if with_goals else "")
            )
    checked = [f"* {found['id']} {found['work']}: {found['checked']}." for found in report["results"]]
    return "\n".join([where(report), "", *rows, "", "Checked before anything was timed:", "", *checked])


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
    turns = [
        found["repetitions"] for found in report["results"] if found.get("unit", "ms") == "ms"
    ]  # memory is counted
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
