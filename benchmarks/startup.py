"""How long commands take to answer, from the start of the process to its end, beside those of other suites.

    python -m benchmarks.startup --repetitions 7
    python -m benchmarks.startup --json

The peers are the `--help` of a script over Hugging Face's `HfArgumentParser` and `Seq2SeqTrainingArguments`, and the
help of `accelerate`, `wandb` and `hf` where they are installed. Every contender runs in every round; wall seconds.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAIN = (
    "from transformers import HfArgumentParser, Seq2SeqTrainingArguments as Arguments\n"
    "HfArgumentParser(Arguments).parse_args(['--help'])"
)
OURS = {
    "t5suite --help": ["-m", "t5suite", "--help"],
    "t5suite --version": ["-m", "t5suite", "--version"],
    "t5suite tasks": ["-m", "t5suite", "tasks"],
    "t5suite score --help": ["-m", "t5suite", "score", "--help"],
    "t5suite completion bash": ["-m", "t5suite", "completion", "bash"],
    "fine_tune_t5.py --help": ["fine_tune_t5.py", "--help"],
    "fine_tune_t5.py --help_all": ["fine_tune_t5.py", "--help_all"],
    "pre_train_t5.py --help": ["pre_train_t5.py", "--help"],
}
PEERS = {"accelerate --help": "accelerate", "wandb --help": "wandb", "hf --help": "hf"}


def commands() -> dict[str, list[str]]:
    """`{name: words}` of all contenders that this machine has."""
    bin_folder = Path(sys.executable).parent
    found = {name: [sys.executable, *words] for name, words in OURS.items()}
    found["python -c pass"] = [sys.executable, "-c", "pass"]
    found["HfArgumentParser --help"] = [sys.executable, "-c", PLAIN]
    for name, program in PEERS.items():
        path = shutil.which(program, path=str(bin_folder)) or shutil.which(program)
        if path:
            found[name] = [path, "--help"]
    return found


def seconds_of(words: list[str]) -> float:
    """Wall seconds of one run; it must succeed."""
    started = time.perf_counter()
    subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    return time.perf_counter() - started


def measure(repetitions: int) -> dict[str, dict[str, float]]:
    """`{name: {"median", "low", "high"}}` in seconds, after one run of each that is not counted."""
    contenders = commands()
    times = {name: [] for name in contenders}
    for turn in range(repetitions + 1):
        for name, words in contenders.items():
            seconds = seconds_of(words)
            if turn:
                times[name].append(seconds)
    return {
        name: {"median": statistics.median(values), "low": min(values), "high": max(values)}
        for name, values in times.items()
    }


def main(argv=None) -> None:
    """Prints the table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    found = measure(arguments.repetitions)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{'seconds':28} {'median':>7} {'low':>7} {'high':>7}")
    for name, row in found.items():
        print(f"{name:28} {row['median']:7.3f} {row['low']:7.3f} {row['high']:7.3f}")


if __name__ == "__main__":
    main()
