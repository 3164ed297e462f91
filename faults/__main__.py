"""`python -m faults`: the fault suite."""

import argparse
import json
import random
import sys
import time
from pathlib import Path

from faults.fork_server import ROOT
from faults.report import line, markdown, summary, table, write_json
from faults.suite import NUMBERS, run_checks


def main(argv=None) -> int:
    """Runs the checks; 1 if one fails."""
    options = parse(argv)
    if options.markdown:
        print(markdown(json.loads(Path(options.json).read_text(encoding="utf-8"))))
        return 0
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"{len(options.only)} checks, {options.jobs} at once, seed {seed}", flush=True)
    started = time.monotonic()
    results = run_checks(
        options.only,
        quick=options.quick,
        jobs=options.jobs,
        seed=seed,
        folder=options.folder,
        report=lambda result: print(line(result), flush=True),
    )
    seconds = time.monotonic() - started
    settings = {"quick": options.quick, "jobs": options.jobs, "seed": seed}
    write_json(options.json, results, seconds=seconds, settings=settings)
    print(f"\n{table(results)}\n\n{summary(results)} in {seconds:.0f} s; see {options.json}")
    return int(any(not result.passed and not result.pending for result in results))


def parse(argv) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m faults",
        description="Injects faults into real runs. FAULTS_SLACK=4 multiplies every time limit, for a busy machine.",
    )
    parser.add_argument("--only", type=_numbers, default=list(NUMBERS), help="checks with commas between: C1,C2, or C")
    parser.add_argument("--quick", action="store_true", help="the shortest honest form of each check")
    parser.add_argument("--jobs", type=int, default=2, help="checks at once")
    parser.add_argument("--json", default=str(ROOT / "faults.json"), help="where the results go")
    parser.add_argument("--seed", type=int, help="of what is drawn at random (kill times); default: another each time")
    parser.add_argument("--folder", help="keep everything that the checks leave behind in this new folder")
    parser.add_argument("--markdown", action="store_true", help="print the results in --json as a table, run nothing")
    return parser.parse_args(argv)


def _numbers(text: str) -> list[str]:
    wanted = [part.strip().upper() for part in text.split(",") if part.strip()]
    unknown = [part for part in wanted if not any(n == part or n.rstrip("0123456789") == part for n in NUMBERS)]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is no check; choose of {', '.join(NUMBERS)}, or a letter")
    return [n for n in NUMBERS if n in wanted or n.rstrip("0123456789") in wanted]


if __name__ == "__main__":
    sys.exit(main())
