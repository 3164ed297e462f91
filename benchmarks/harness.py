"""A piece of work that we and a peer do by turns, once it has been checked that both do the same.

    def collate(device: str) -> Work:
        ...                                                      # builds both sides, checks that they agree
        return Work("collate 128 x 568", {"ours": f, "row by row": g}, {"row by row": Goal(0.05)}, "equal tokens")

    WORKS = {"C1": collate}

    if __name__ == "__main__":
        run(__doc__, WORKS)

    python -m benchmarks.collator --repetitions 15 --json found.json        python -m benchmarks.collator --profile

A ratio is ours divided by the peer's in the same turn; a table tells its median and quartiles. Each of the modules that
`benchmarks/__main__.py` lists has such a table of works; `make bench` runs them all.
"""

import argparse
import contextlib
import cProfile
import json
import pstats
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.timing import CLOCKS, interleaved, summary
from t5suite.base import provenance

OURS = "ours"
HEADER = f"{'':4} {'work':44} {'against':34} {'ours':>10} {'peer':>10} {'ratio':>7} {'quartiles':>15} {'goal':>6}"


class Goal(NamedTuple):
    """Ours divided by the peer's: what we want, and what passes where that is more."""

    wanted: float
    passing: float | None = None

    def verdict(self, ratio: float) -> str:
        """`Goal(0.05).verdict(0.04)` -> `met`; `passes` between what is wanted and what passes; else `missed`."""
        if ratio <= self.wanted:
            return "met"
        return "passes" if self.passing is not None and ratio <= self.passing else "missed"


class Work(NamedTuple):
    """What is measured.

    Attributes:
      work: what is done, in a few words with its sizes.
      contenders: `{name: call}`; `ours` and its peers. A call does the whole work once and takes no arguments.
      goals: `{peer: Goal}`; a peer without a goal is only told.
      checked: what was found equal before anything was timed.
      calls: how many works one call does; times are told of one.
      figures: more that is worth telling, of plain values.
    """

    work: str
    contenders: dict[str, Callable[[], object]]
    goals: dict[str, Goal]
    checked: str
    calls: int = 1
    figures: dict = {}


def measure(name: str, work: Work, repetitions: int, device: str = "cpu") -> dict:
    """Times of all contenders of a work by turns, and ours as a ratio of each peer's. Plain values, for JSON."""
    times = interleaved(work.contenders, repetitions, CLOCKS[device])
    each = {contender: [t / work.calls for t in turns] for contender, turns in times.items()}
    peers = {}
    for peer in [contender for contender in work.contenders if contender != OURS]:
        ratio = summary([ours / theirs for ours, theirs in zip(each[OURS], each[peer], strict=True)])
        goal = work.goals.get(peer)
        peers[peer] = {"milliseconds": summary(each[peer]), "ratio": ratio}
        if goal:
            peers[peer] |= {"goal": goal.wanted, "passing": goal.passing, "verdict": goal.verdict(ratio["median"])}
    return {
        "id": name,
        "work": work.work,
        "checked": work.checked,
        "repetitions": repetitions,
        "device": device,
        "milliseconds": summary(each[OURS]),
        "peers": peers,
        "figures": work.figures,
    }


def found_of(name: str, work: str, times: dict, peer: str, goal: Goal, unit: str = "ms") -> dict:
    """What the harness says of a work, of measurements that are not its own clock's."""
    ratio = summary([ours / theirs for ours, theirs in zip(times[OURS], times[peer], strict=True)])
    told = {"milliseconds": summary(times[peer]), "ratio": ratio, "goal": goal.wanted, "passing": goal.passing}
    return {
        "id": name,
        "work": work,
        "checked": "the same numbers",
        "repetitions": len(times[OURS]),
        "device": "cpu",
        "unit": unit,
        "milliseconds": summary(times[OURS]),
        "peers": {peer: {**told, "verdict": goal.verdict(ratio["median"])}},
        "figures": {"clock": "processor" if unit == "ms" else "tracemalloc"},
    }


def rows_of(found: dict) -> list[str]:
    """The lines of a table, one for each peer."""
    lines = []
    for peer, told in found["peers"].items():
        ratio, goal = told["ratio"], told.get("goal")
        unit = found.get("unit", "ms")
        times = f"{_time(found['milliseconds'], unit)} {_time(told['milliseconds'], unit)}"
        lines.append(
            f"{found['id']:4} {found['work']:44} {peer:34} {times} "
            f"{ratio['median']:7.3f} {ratio['low']:7.3f}-{ratio['high']:<7.3f} "
            + (f"{goal:6.3f} {told['verdict']}" if goal else "")
        )
    return lines


def _time(milliseconds: dict, unit: str = "ms") -> str:
    median = milliseconds["median"]
    return f"{median / 1e3:8.2f} s" if unit == "ms" and median >= 1e4 else f"{median:{9 - len(unit)}.2f} {unit}"


def environment(device: str = "cpu") -> dict:
    """Hardware, versions and commit that figures belong to."""
    found = {
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
        "commit": provenance.git_commit(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def profiled(call: Callable[[], object], lines: int = 20) -> None:
    """Prints where the time of a call goes, by function, after one call that is not counted."""
    call()
    profile = cProfile.Profile()
    profile.runcall(call)
    pstats.Stats(profile).sort_stats("tottime").print_stats(lines)


def parser_of(description: str) -> argparse.ArgumentParser:
    """The flags of every benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7, help="timed turns of each contender (at least 7)")
    parser.add_argument("--device", choices=tuple(CLOCKS), default="cpu", help="processor seconds, or a GPU's")
    parser.add_argument("--json", metavar="FILE", help="write what was found there; - for standard output")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these works alone")
    parser.add_argument("--profile", action="store_true", help="tell where our own time goes, and time nothing")
    return parser


def run(description: str, works: dict[str, Callable[[str], Work]], argv=None) -> dict:
    """A benchmark's command: checks, measures, prints the table; returns (and writes) all that was found.

    A builder that returns None says that its work cannot be done on this device or machine (it prints why).
    One that measures what these clocks do not tell returns what `measure` would, with a "unit" if it is not ms.
    """
    options = parser_of(description).parse_args(argv)
    torch.set_num_threads(1)
    results = []
    with contextlib.redirect_stdout(sys.stderr if options.json == "-" else sys.stdout):
        print(HEADER, flush=True)
        for name in options.only or works:
            work = works[name](options.device)
            if work is None:
                continue
            if isinstance(work, dict):
                results.append(work)
                print("\n".join(rows_of(work)), flush=True)
                continue
            if options.profile:
                profiled(work.contenders[OURS])
                continue
            found = measure(name, work, options.repetitions, options.device)
            results.append(found)
            print("\n".join(rows_of(found)), flush=True)
    report = {"environment": environment(options.device), "results": results}
    if options.json == "-":
        print(json.dumps(report, allow_nan=False))
    elif options.json:
        Path(options.json).write_text(json.dumps(report, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    return report
