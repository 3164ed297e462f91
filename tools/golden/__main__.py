"""Records golden traces of a checkout, or compares two records.

    python -m tools.golden record build/golden/before --root ../before    # another checkout, such as a worktree
    python -m tools.golden record build/golden/after
    python -m tools.golden compare build/golden/before build/golden/after

A trace is bitwise: it holds for one machine and one set of libraries. `--quick` takes the three runs that are compared
before every commit of a change that must change nothing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.golden.cases import CASES, Case
from tools.golden.observing import differences, trace_of

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = Path(__file__).parent / "site"
# Seconds that a command may take.
LONGEST = 600


def main(argv=None) -> int:
    """1 if a run failed, or two traces differ."""
    options = parse_arguments(argv)
    if options.command == "compare":
        return compare(options.before, options.after)
    options.folder.mkdir(parents=True, exist_ok=True)
    has_failed = False
    for name, case in CASES.items():
        if (options.quick and not case.is_quick) or (options.only and name not in options.only):
            continue
        started = time.monotonic()
        try:
            trace = record(case, options.root.resolve())
        except RuntimeError as error:
            has_failed = True
            print(f"{name}: {error}", file=sys.stderr)
            continue
        path = options.folder / f"{name.replace(' ', '_')}.json"
        path.write_text(json.dumps(trace, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {len(trace['metrics'])} lines of metrics, {time.monotonic() - started:.0f} s", flush=True)
    return int(has_failed)


def parse_arguments(argv) -> argparse.Namespace:
    """The command and its options."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the cases and write a trace of each")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--root", type=Path, default=ROOT, help="the checkout whose code runs")
    recording.add_argument("--quick", action="store_true")
    recording.add_argument("--only", nargs="*", choices=list(CASES), metavar="CASE")
    comparing = commands.add_parser("compare", help="say where two records differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    return parser.parse_args(argv)


def record(case: Case, root: Path) -> dict:
    """Runs a case's commands and returns its trace.

    Raises:
      RuntimeError: a command ended with an unexpected code; the message has the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        directory, effects = Path(folder) / "run", Path(folder) / "effects"
        effects.touch()
        logs = []
        for number, command in enumerate(case.commands):
            stop_after = case.stop_after_step if number == 0 else None
            logs.append(run_command(case, command, root, directory, effects, stop_after))
        return trace_of(directory, logs, effects.read_text(encoding="utf-8"))


def run_command(case: Case, command, root: Path, directory: Path, effects: Path, stop_after: int | None) -> str:
    """Runs one command and returns its log."""
    script, *flags = command
    launcher = [sys.executable]
    if case.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(case.ranks)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SITE), str(root), str(ROOT)]),
        "T5SUITE_GOLDEN_RUN": str(directory),
        "T5SUITE_GOLDEN_EFFECTS": str(effects),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "T5SUITE_GOLDEN_SCALER": "1" if case.has_scaler else "",
    }
    has_output = any(flag.startswith("--output_dir") for flag in flags)
    output = [] if has_output else ["--output_dir", str(directory)]
    log = directory.parent / "log"
    with log.open("w") as log_file:
        process = subprocess.Popen(
            [*launcher, str(root / script), *flags, *output],
            env=environment,
            cwd=directory.parent,
            stdout=log_file,
            stderr=subprocess.STDOUT,
        )
        if stop_after is not None:
            wait_for_step(process, directory / "metrics.jsonl", stop_after)
            process.send_signal(signal.SIGTERM)
        code = process.wait(LONGEST)
    text = log.read_text(encoding="utf-8", errors="replace")
    expected_code = 0 if stop_after is None else 75
    if code != expected_code:
        raise RuntimeError(f"exit code {code}, expected {expected_code}:\n{text[-3000:]}")
    return text


def wait_for_step(process: subprocess.Popen, metrics: Path, step: int) -> None:
    """Until metrics.jsonl has a line of this step, or the process has ended."""
    while process.poll() is None:
        if metrics.exists() and f'"step": {step},' in metrics.read_text(encoding="utf-8"):
            return
        time.sleep(0.01)


def compare(before: Path, after: Path) -> int:
    """Prints where traces of the same case differ; 1 if any does, or if one lacks a case of the other."""
    names = sorted({path.name for path in before.glob("*.json")} | {path.name for path in after.glob("*.json")})
    num_different = 0
    for name in names:
        if not (before / name).exists() or not (after / name).exists():
            lines = ["recorded on one side alone"]
        else:
            lines = differences(json.loads((before / name).read_text()), json.loads((after / name).read_text()))
        num_different += bool(lines)
        print(f"{name}: {'equal' if not lines else f'{len(lines)} differences'}")
        for line in lines[:10]:
            print(f"  {line}")
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
