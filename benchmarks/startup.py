"""How long commands take to answer, and a warm fine-tuning to its end, from the start of the process, on the wall.

    python -m benchmarks.startup
    python -m benchmarks.startup --only S1 S2

The peer of a command is the time that it may take; that of a script's help also the help of a script over Hugging
Face's `HfArgumentParser` and `Seq2SeqTrainingArguments`, in turns. The fine-tuning is `mini.yaml` cut to one step and
one evaluation of eight rows, its data tokenized before; all of it must be over when its first step was to be done.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import OURS, Goal, run
from benchmarks.timing import processor_time, summary

ROOT = Path(__file__).resolve().parent.parent
REPETITIONS = 7
PLAIN = (
    "from transformers import HfArgumentParser, Seq2SeqTrainingArguments as Arguments\n"
    "HfArgumentParser(Arguments).parse_args(['--help'])"
)
HF_HELP = "HfArgumentParser's --help"
STEP = (
    "mini.yaml --max_train_samples 128 --max_eval_samples 8 --max_steps 1 --per_device_train_batch_size 8 "
    "--save_strategy no --load_best_model_at_end False --use_cpu --disable_tqdm True --report_to none"
).split()


def seconds_of(words: list[str]) -> float:
    """Seconds on the wall of one process; it must succeed."""
    with tempfile.TemporaryDirectory(prefix="t5suite-startup-") as folder:
        output = ["--output_dir", f"{folder}/run"] if "mini.yaml" in words else []
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, *words, *output], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True
        )
        return time.perf_counter() - started


def answering(name: str, words: list[str], most_seconds: float, device: str, peers: dict | None = None) -> dict:
    """A row for the time that the command may take, and one for each peer, after one run of each that is not counted.

    Args:
      peers: `{name: words}` of other programs that take their turns.
    """
    times, processor = {OURS: [], **{peer: [] for peer in peers or {}}}, []
    for turn in range(REPETITIONS + 1):
        for contender, command in {OURS: words, **(peers or {})}.items():
            before = processor_time()
            seconds = seconds_of(command)
            processor += [processor_time() - before] if turn and contender == OURS else []
            if turn:
                times[contender].append(1e3 * seconds)
    times[f"{most_seconds:g} s"] = [1e3 * most_seconds] * REPETITIONS
    told = {}
    for peer in [contender for contender in times if contender != OURS]:
        ratio = summary([ours / theirs for ours, theirs in zip(times[OURS], times[peer], strict=True)])
        told[peer] = {"milliseconds": summary(times[peer]), "ratio": ratio}
        if peer not in (peers or {}):
            told[peer] |= {"goal": 1.0, "passing": None, "verdict": Goal(1.0).verdict(ratio["median"])}
    return {
        "id": name,
        "work": " ".join([*words[:3], "..."] if len(words) > 4 else words).replace("-m t5suite", "t5suite"),
        "checked": "ends with 0",
        "repetitions": REPETITIONS,
        "device": device,
        "milliseconds": summary(times[OURS]),
        "peers": told,
        "figures": {
            "clock": "wall",
            "processor_seconds": statistics.median(processor),
            "fastest_seconds": min(times[OURS]) / 1e3,
            "load": os.getloadavg()[0],
        },
    }


WORKS = {
    "S1": partial(answering, "S1", ["-m", "t5suite", "--help"], 0.5),
    "S2": partial(answering, "S2", ["-m", "t5suite", "tasks"], 1.0),
    "S3": partial(answering, "S3", ["-m", "t5suite", "score", "--help"], 1.0),
    "S4": partial(answering, "S4", ["fine_tune_t5.py", "--help"], 0.5, peers={HF_HELP: ["-c", PLAIN]}),
    "S5": partial(answering, "S5", ["pre_train_t5.py", "--help"], 0.5),
    "S6": partial(answering, "S6", ["fine_tune_t5.py", *STEP], 10.0),
}

if __name__ == "__main__":
    run(__doc__, WORKS)
