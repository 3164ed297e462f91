"""A trial for tests of sweeps: it logs a curve as a training script does, stops at SIGTERM with 75, and goes on later.

    python sweep_trial.py --learning_rate=0.001 --steps=9 --sleep=0.02

Each flag is `--name=value`. `fail_at`: it ends with `exit_code` at that step; `launcher`: the work is done by a child,
and the parent dies of SIGTERM at once, as launchers do; `stubborn`: SIGTERM is ignored; `late`: it is heard after the last step; `log`: the metric's name;
`falling`: it logs a second metric, too, which falls with every step;
`scores`: seconds after the last step, before results.json, in which SIGTERM still stops it; its manifest has the steps.
What it did is in its run directory: `steps.log`, a line a step and start.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STOP = []


def main(words) -> int:
    flags = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    if flags.pop("launcher", "") == "True":
        return subprocess.call([sys.executable, __file__, *(word for word in words if "launcher" not in word)])
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in flags else lambda *seen: STOP.append(1))
    folder = Path(os.environ["T5SUITE_RUN_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "state.json"
    step = json.loads(state.read_text())["step"] if state.is_file() else 0
    (folder / "manifest.json").write_text(json.dumps({"total_steps": int(flags.get("steps", 9))}))
    note(folder, f"start {step} {os.environ['WANDB_RUN_ID']} {json.dumps(words)}")
    with (folder / "metrics.jsonl").open("a") as metrics:
        while step < int(flags.get("steps", 9)):
            time.sleep(float(flags.get("sleep", 0.02)))
            step += 1
            if step == int(flags.get("fail_at", -1)):
                return int(flags.get("exit_code", 1))
            line = {"step": step, "seconds": 1.0, flags.get("log", "eval/accuracy"): value_of(flags, step)}
            if "falling" in flags:
                line |= {"eval/pearson": 100.0 - step, "eval/loss": 1.0, "eval/invalid_rate": float(step)}
            print(json.dumps(line), file=metrics, flush=True)
            state.write_text(json.dumps({"step": step}))
            note(folder, f"step {step}")
            if STOP and "late" not in flags:
                return 75
    time.sleep(float(flags.get("scores", 0)))
    if STOP:
        return 75
    (folder / "results.json").write_text("{}")
    return 0


def value_of(flags, step: int) -> float | None:
    """Rises with the steps; best at a learning rate of 1e-3. A rate of 1 gives NaN."""
    rate = float(flags.get("learning_rate", 1e-3))
    return None if rate == 1 else 100 - 10 * abs(math.log10(rate) + 3) - 20 / step + int(flags.get("seed", 0))


def note(folder: Path, text: str) -> None:
    with (folder / "steps.log").open("a") as file:
        print(text, file=file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
