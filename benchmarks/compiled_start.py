"""The start of a compiled fine-tuning with what an earlier run has compiled, against one with nothing kept (S7).

    python -m benchmarks.compiled_start

Both train `mini.yaml` for one step with `--torch_compile`, in batches of one shape; processor seconds of the process
and all that it starts, the compiler included. Three turns, for a start with nothing kept takes a minute: it is not part
of `make bench`. Checked, too: both end with the same loss.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import OURS, Goal, run
from benchmarks.startup import ROOT, STEP
from benchmarks.timing import processor_time, summary
from t5suite.training.compile_cache import VARIABLE, folder_bytes

REPETITIONS = 3
ANEW = "nothing kept"
COMPILED = [*STEP, "--torch_compile", "--length_buckets", "1", "--logging_steps", "1", "--dropout_rate", "0"]


def start(cache: str) -> tuple[float, float]:
    """`(processor seconds, loss)` of one run that keeps its compiled code there."""
    with tempfile.TemporaryDirectory(prefix="t5suite-startup-") as folder:
        words = [sys.executable, "fine_tune_t5.py", *COMPILED, "--output_dir", f"{folder}/run"]
        before = processor_time()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        subprocess.run(words, cwd=ROOT, env={**os.environ, VARIABLE: cache}, check=True, **quiet)
        seconds = processor_time() - before
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses = [json.loads(line)["train/loss"] for line in lines if '"train/loss"' in line]
        return seconds, losses[0]


def started(device: str) -> dict:
    """S7."""
    times, losses, kept_bytes = {OURS: [], ANEW: []}, set(), 0
    with tempfile.TemporaryDirectory(prefix="t5suite-compiled-") as kept:
        losses.add(start(kept)[1])
        kept_bytes = folder_bytes(Path(kept))
        for _ in range(REPETITIONS):
            with tempfile.TemporaryDirectory(prefix="t5suite-compiled-") as empty:
                for contender, cache in ((OURS, kept), (ANEW, empty)):
                    seconds, loss = start(cache)
                    times[contender].append(1e3 * seconds)
                    losses.add(loss)
    assert len(losses) == 1, losses
    ratio, goal = summary([ours / anew for ours, anew in zip(times[OURS], times[ANEW], strict=True)]), Goal(0.5)
    told = {"goal": goal.wanted, "passing": None, "verdict": goal.verdict(ratio["median"])}
    return {
        "id": "S7",
        "work": "start of a compiled mini fine-tuning",
        "checked": f"equal losses: {statistics.mean(losses):.4f}",
        "repetitions": REPETITIONS,
        "device": device,
        "milliseconds": summary(times[OURS]),
        "peers": {ANEW: {"milliseconds": summary(times[ANEW]), "ratio": ratio, **told}},
        "figures": {"kept bytes": kept_bytes},
    }


WORKS = {"S7": started}

if __name__ == "__main__":
    run(__doc__, WORKS)
