"""Faults drawn over the code by a seed, and which of them the tests catch.

    make mutants N=60 SEED=4dc07eb0
    python -m tools.mutants map                              # once: which quick tests execute a line (minutes)
    python -m tools.mutants map --slow                       # the slow ones, too (an hour or two)
    python -m tools.mutants draw --count 60 --seed 4dc07eb0  # the faults alone, to be read before they are tried
    python -m tools.mutants run --count 60 --seed 4dc07eb0 --equivalent 12 31

A fault that survives the quick tests is tried with the slow ones where their map has been made. Faults are of the
commit that is checked out. So must the maps be: in a file that has changed since, lines have moved.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tools.mutants.coverage_map import make_map, read_map
from tools.mutants.faults import Fault, draw_faults
from tools.mutants.trials import Outcome, Trees

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "mutants"
MARKS = {"quick": "not slow", "slow": "slow"}


def main(argv=None) -> int:
    """Makes a map, or prints the faults, or tries them. A fault that survives is no failure of this command."""
    options = parse_arguments(argv)
    if options.command == "map":
        for speed in ("quick", "slow") if options.slow else ("quick",):
            make_map(ROOT, FOLDER / speed, MARKS[speed], options.processes, options.files)
        return 0
    faults = draw_faults(ROOT, options.count, options.seed)
    for number, fault in enumerate(faults, start=1):
        print(f"{number:3}  {fault.path}:{fault.line}  {fault.change}")
    if options.command == "draw":
        return 0
    if uncommitted_changes():
        print("the code has changes that are not committed: faults are tried in clones of the commit", file=sys.stderr)
        return 1
    report = try_faults(faults, options.processes, set(options.equivalent))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"seed": options.seed, "faults": report}, indent=1) + "\n", encoding="utf-8")
    print_summary(report)
    return 0


def parse_arguments(argv) -> argparse.Namespace:
    """The command and its options."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map", help="run the tests under coverage")
    mapping.add_argument("--slow", action="store_true", help="the slow tests, too")
    mapping.add_argument("files", nargs="*", help="of these test files alone")
    drawing = commands.add_parser("draw", help="print the faults")
    running = commands.add_parser("run", help="print the faults, and try them")
    for command in (drawing, running):
        command.add_argument("--count", type=int, default=60, help="how many faults (default: %(default)s)")
        command.add_argument("--seed", required=True, help="any text; eight digits of a commit by custom")
    running.add_argument(
        "--equivalent", type=int, nargs="*", default=[], metavar="NUMBER", help="faults that change no behaviour"
    )
    running.add_argument("--json", type=Path, default=FOLDER / "report.json", help="default: %(default)s")
    for command in (mapping, running):
        command.add_argument("--processes", type=int, default=2, help="at once (default: %(default)s)")
    return parser.parse_args(argv)


def uncommitted_changes() -> bool:
    """Whether files that git tracks differ from the commit."""
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False)
    return changed.returncode != 0


def try_faults(faults: list[Fault], processes: int, equivalent: set[int]) -> list[dict]:
    """One row of the report a fault; prints each as soon as it is known."""
    trees = Trees(ROOT, FOLDER / "trees", processes)
    quick_map = read_map(ROOT, FOLDER / "quick")
    has_slow_map = (FOLDER / "slow" / "coverage").is_file()
    slow_map = read_map(ROOT, FOLDER / "slow") if has_slow_map else None
    tried = [(number, fault) for number, fault in enumerate(faults, start=1) if number not in equivalent]
    report = []
    quick_outcomes = trees.try_all([fault for _, fault in tried], quick_map)
    for (number, _), outcome in zip(tried, quick_outcomes, strict=True):
        row = report_row(number, "quick", outcome)
        report.append(row)
        print_row(row)
    survivors = [(row, fault) for row, (_, fault) in zip(report, tried, strict=True) if row["caught_by"] is None]
    if slow_map is not None and survivors:
        slow_outcomes = trees.try_all([fault for _, fault in survivors], slow_map)
        for (row, _), outcome in zip(survivors, slow_outcomes, strict=True):
            row.update(report_row(row["number"], "slow", outcome))
            print_row(row)
    for number in sorted(equivalent):
        fault = faults[number - 1]
        report.append({"number": number, "tests": "equivalent", **described(fault), "caught_by": None})
    return report


def report_row(number: int, speed: str, outcome: Outcome) -> dict:
    """What the report says of a fault."""
    row = {"number": number, "tests": speed, **described(outcome.fault)}
    return row | {
        "caught_by": outcome.caught_by,
        "num_tests": outcome.num_tests,
        "unsound_tests": list(outcome.unsound_tests),
    }


def described(fault: Fault) -> dict:
    """A fault without the code of its file."""
    fields = asdict(fault)
    del fields["code"]
    return fields


def print_row(row: dict) -> None:
    """One line a fault."""
    if row["caught_by"]:
        outcome = f"caught by {row['caught_by']}"
    elif row["num_tests"]:
        outcome = f"SURVIVED {row['num_tests']} {row['tests']} tests"
    else:
        outcome = f"SURVIVED: no {row['tests']} test executes it"
    print(f"{row['number']:3}  {row['path']}:{row['line']}  {outcome}  [{row['change']}]", flush=True)


def print_summary(report: list[dict]) -> None:
    """How many faults were caught by which tests."""
    rows = [row for row in report if row["tests"] != "equivalent"]
    quick = sum(row["caught_by"] is not None and row["tests"] == "quick" for row in rows)
    slow = sum(row["caught_by"] is not None and row["tests"] == "slow" for row in rows)
    caught = f"{quick} caught by quick tests, {slow} more by slow ones"
    print(f"{len(rows)} faults: {caught}, {len(rows) - quick - slow} survived; {len(report) - len(rows)} equivalent")


if __name__ == "__main__":
    sys.exit(main())
