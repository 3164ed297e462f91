"""Measurements of speed against peers, each in a process of its own: one table, and one JSON file.

python -m benchmarks                                  # `make bench`: whole jobs, J1 to J7
python -m benchmarks --only optimizers loss           # parts of them
python -m benchmarks --device cuda                    # what a GPU can tell: steps, the loss, evaluation
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import page
from benchmarks.harness import HEADER, rows_of

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    "jobs": "whole jobs from start to end (J1 to J7)",
    "optimizers": "an update of AdamW with RMS scaling (C9)",
    "loss": "output layer and loss (L)",
    "host_cost": "what a step costs beside its arithmetic (C8)",
    "step": "a step of pre-training and of fine-tuning (H1, H4; on a CPU a trial)",
    "fine_tuning": "an epoch of fine-tuning (C5)",
    "collator": "span corruption of a batch (C1)",
    "fast_paths": "each fast path switched off: a step of pre-training (P1), of fine-tuning (P2), an evaluation (P3)",
    "evaluation": "a fine-tuned T5's answers to 512 rows (C6); to a split, on a GPU (H5; on a CPU a trial)",
}
# What a decision is made by; the others say where the time goes.
LEADING = {"cpu": ("jobs",), "cuda": ("step", "loss", "evaluation")}


def run_module(module: str, repetitions: int, device: str, folder: Path) -> dict | None:
    """What a module found, or None where it failed; its own words go to standard error."""
    found = folder / f"{module}.json"
    words = [sys.executable, "-m", f"benchmarks.{module}", "--repetitions", str(repetitions), "--device", device]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    run = subprocess.run([*words, "--json", str(found)], cwd=ROOT, stdout=subprocess.DEVNULL, env=environment)
    return json.loads(found.read_text(encoding="utf-8")) if run.returncode == 0 else None


def main(argv=None) -> int:
    """Prints a table line as soon as it is known; 1 where a module failed. A goal that is missed is no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", choices=tuple(MODULES), metavar="MODULE")
    parser.add_argument("--json", default="build/bench.json", metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table into docs/performance.md")
    options = parser.parse_args(argv)
    report, failed, started = {"environment": None, "results": []}, [], time.monotonic()
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for module in options.only or LEADING[options.device]:
            found = run_module(module, options.repetitions, options.device, Path(folder))
            if found is None:
                failed.append(module)
                continue
            report["environment"] = found["environment"]
            report["results"] += found["results"]
            for result in found["results"]:
                print("\n".join(rows_of(result)), flush=True)
    report["seconds"] = round(time.monotonic() - started, 1)
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(report, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    if options.page and report["results"]:
        page.write(options.page, report)
    verdicts = Counter(
        peer["verdict"] for found in report["results"] for peer in found["peers"].values() if "verdict" in peer
    )
    print(f"{', '.join(f'{n} {name}' for name, n in verdicts.items())}; {report['seconds']} s; all in {options.json}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
