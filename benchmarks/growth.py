"""What must not grow with the corpus and the run: time and memory of a batch, and the start of a resumed run.

    python -m benchmarks.growth

* A step on a corpus of 10 GB, beside one on a corpus of 1 MB, and its batch alone (128 blocks of 568 tokens, 40 from a
  random place of an epoch, the finding of that place included). The file is sparse: 10 GB that take no disk. Pages that
  nobody has read cost their first reader about 10 us each, which is all that differs.
* The memory that the batches take at their peak, as `tracemalloc` counts it (mapped pages are the system's).
* A run of `pre_train_t5.py` that goes on from step 1,000,000, in the middle of the first epoch of 10 GB, with a
  `metrics.jsonl` of a million lines, beside a fresh one: from the call to the end, with one step, one evaluation, one
  checkpoint and the reports of each. The ratio is to the fresh run's processor seconds plus the 2 that it may take.
"""

import contextlib
import io
import itertools
import json
import os
import shutil
import tempfile
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
from transformers import TrainerState

from benchmarks.harness import OURS, Goal, Work, run
from benchmarks.timing import processor_time, summary
from t5suite.data.batches.pre_training_collator import T5DataCollator
from t5suite.data.batches.samplers import GlobalBatchSampler
from t5suite.data.corpora.blocks import BlockDataset, BlockLayout
from t5suite.data.corpora.building import build_corpus
from t5suite.data.corpora.documents import bundled_text
from t5suite.data.corpora.store import MANIFEST, TokenStore
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.runs.directory import read_json, write_json
from t5suite.training.checkpoints.manifests import Manifest, hash_file
from t5suite.training.checkpoints.states import load_state, save_state
from t5suite.training.pre_training import epoch_blocks
from t5suite.training.processes.signals import catching_signals
from t5suite.training.trainer import EpochDataLoader

SMALL, LARGE = 10**6, 10**10  # bytes of tokens
BATCH_SIZE, BATCHES = 128, 40
STEP = 1_000_000
REPETITIONS = 7
MOST_SECONDS = 2.0
FLAT = Goal(1.1, 1.25)


@cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="t5suite-growth-")


def scratch() -> Path:
    """A folder for all that is made here; it goes with the process."""
    return Path(_folder().name)


@cache
def corpus(num_bytes: int) -> Path:
    """A corpus of the bundled text, its tokens stretched to so many bytes by a hole in the file."""
    folder = scratch() / f"corpus-{num_bytes}"
    with contextlib.redirect_stderr(io.StringIO()):
        build_corpus([str(bundled_text("train"))], folder, load_tokenizer(None), validation_fraction=0.05)
    manifest = read_json(folder / MANIFEST)
    (shard,) = manifest["shards"]
    manifest["splits"]["train"]["tokens"] = shard["splits"]["train"]["tokens"] = num_bytes // 2
    shard["files"]["train.tokens.bin"]["size"] = num_bytes
    os.truncate(folder / shard["name"] / "train.tokens.bin", num_bytes)
    write_json(folder / MANIFEST, manifest)
    return folder


# ---------------------------------------------------------------------------------------------------------------------
# A batch


def read_batches(num_bytes: int, epoch: int, share: float, count: int = BATCHES) -> list[dict]:
    """Batches of an epoch from a share of it on (0 to 1), as a trainer's loader makes them."""
    collator = T5DataCollator(sentinel_ids=list(range(620, 520, -1)), eos_token_id=1)
    tokens = TokenStore.open(corpus(num_bytes)).split("train")
    layout = BlockLayout(len(tokens), (collator.tokens_length,))
    dataset = BlockDataset(tokens, layout, seed=0, num_examples=2**62)
    sampler = GlobalBatchSampler(epoch_blocks(layout.num_blocks), BATCH_SIZE, 1)
    sampler.set_epoch(epoch)
    sampler.pass_over(int(share * len(sampler)))
    batches = (batch for batch in sampler if batch is not None)
    loader = EpochDataLoader(dataset, batch_sampler=_Endless(batches, sampler, epoch), collate_fn=collator)
    return list(itertools.islice(loader, count))


class _Endless:
    """Batches of an epoch and of those that follow: 1 MB has seven an epoch."""

    def __init__(self, batches, sampler, epoch):
        self.batches, self.sampler, self.epoch = batches, sampler, epoch

    def __iter__(self):
        yield from self.batches
        while True:
            self.epoch += 1
            self.sampler.set_epoch(self.epoch)
            yield from self.sampler


def batches(device: str) -> Work:
    """Processor time of batches alone, new places every time; told without a goal, for a batch is a part of a step."""
    rng = np.random.default_rng(0)
    shapes = [
        {name: tensor.shape for name, tensor in read_batches(size, 0, 0.5)[-1].items()} for size in (SMALL, LARGE)
    ]
    assert shapes[0] == shapes[1], shapes
    return Work(
        f"batch of {BATCH_SIZE} x 568, corpus of 10 GB",
        {
            OURS: lambda: read_batches(LARGE, int(rng.integers(1, 1000)), rng.random()),
            "1 MB": lambda: read_batches(SMALL, int(rng.integers(1, 1000)), rng.random()),
        },
        {},
        "equal shapes",
        calls=BATCHES,
    )


def steps(device: str) -> Work:
    """Processor time of steps of the bundled model with one such batch each, cut to four rows: a step of 0.2 s."""
    model = load_model(None, tokenizer=load_tokenizer(None)).to(device)
    rng = np.random.default_rng(0)

    def train(num_bytes):
        for batch in read_batches(num_bytes, int(rng.integers(1, 1000)), rng.random(), 4):
            model(**{name: tensor[:4].to(device) for name, tensor in batch.items()}).loss.backward()

    peers = {OURS: lambda: train(LARGE), "1 MB": lambda: train(SMALL)}
    return Work("a step of the bundled model, corpus of 10 GB", peers, {"1 MB": FLAT}, "equal shapes", calls=4)


def peak_memory(num_bytes: int) -> float:
    """MiB that the batches of a corpus take at their peak."""
    read_batches(num_bytes, 0, 0.0)
    tracemalloc.start()
    try:
        read_batches(num_bytes, 7, 0.5, 3)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def memory(device: str) -> dict:
    """The same batches, in MiB."""
    times = {OURS: [], "1 MB": []}
    for _ in range(REPETITIONS):
        times[OURS].append(peak_memory(LARGE))
        times["1 MB"].append(peak_memory(SMALL))
    return found_of("G3", "host memory of these batches, corpus of 10 GB", times, "1 MB", FLAT, unit="MiB")


# ---------------------------------------------------------------------------------------------------------------------
# A resumed run


def flags(output_dir: Path, max_steps: int) -> list[str]:
    """A run of batches of 8, of which a corpus of 10 GB has 1.1 million an epoch."""
    return (
        f"--train_corpus {corpus(LARGE)} --inputs_length 512 --output_dir {output_dir} --max_steps {max_steps} "
        "--per_device_train_batch_size 8 --max_eval_samples 8 --logging_steps 1 --save_steps 1 --save_total_limit 1 "
        "--eval_strategy no --use_cpu --disable_tqdm True --report_to none"
    ).split()


@cache
def interrupted_run() -> Path:
    """A run that was stopped after its first step, its step then said to be 1,000,000, with as many lines."""
    import pre_train_t5
    from t5suite.base.errors import Preempted

    folder = scratch() / "interrupted"
    with catching_signals() as stop, contextlib.suppress(Preempted), quiet():
        stop.request()
        pre_train_t5.main(flags(folder, STEP + 1))
    stop.requested = False
    old, checkpoint = folder / "checkpoint-1", folder / f"checkpoint-{STEP}"
    old.rename(checkpoint)
    line = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({**line, "step": step}) + "\n" for step in range(1, STEP + 1))
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    state.global_step = STEP
    state.log_history *= 1000
    state.save_to_json(str(checkpoint / "trainer_state.json"))
    _change(checkpoint / "position.json", examples=8 * STEP)
    schedule = load_state(checkpoint, "scheduler")
    save_state(checkpoint, "scheduler", {**schedule, "last_epoch": STEP, "_step_count": STEP + 1})
    progress = read_json(checkpoint / "progress.json")
    progress["callbacks"]["MetricsCallback"]["num_lines"] = STEP
    write_json(checkpoint / "progress.json", {**progress, "logged_step": STEP})
    _certify(checkpoint)
    return folder


def _change(path: Path, **values) -> None:
    write_json(path, {**read_json(path), **values})


def _certify(checkpoint: Path) -> None:
    manifest = Manifest.read(checkpoint)
    files = {name: hash_file(checkpoint / name) for name in manifest.files}
    Manifest(STEP, manifest.run_id, manifest.world_size, files, manifest.details).write(checkpoint)


@contextlib.contextmanager
def quiet():
    """Without the lines and tables of the runs."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def seconds_of_run(name: str, resumed: bool) -> float:
    """Processor seconds of a run that trains one step."""
    import pre_train_t5

    folder = scratch() / name
    if resumed:
        shutil.copytree(interrupted_run(), folder)
        with (folder / "metrics.jsonl").open("rb") as file:
            os.fsync(file.fileno())  # or the run's own first fsync would wait for this copy
    started = processor_time()
    with quiet():
        pre_train_t5.main(flags(folder, STEP + 1 if resumed else 1))
    seconds = processor_time() - started
    lines = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    assert lines == (STEP + 3 if resumed else 3), f"{lines} lines"
    shutil.rmtree(folder)
    return seconds


def resuming(device: str) -> dict:
    """Whole runs by turns; the fresh one may take 2 s more."""
    times = {OURS: [], "fresh run + 2 s": []}
    for turn in range(REPETITIONS + 1):
        resumed = seconds_of_run(f"resumed-{turn}", resumed=True)
        fresh = seconds_of_run(f"fresh-{turn}", resumed=False)
        if turn:
            times[OURS].append(1e3 * resumed)
            times["fresh run + 2 s"].append(1e3 * (fresh + MOST_SECONDS))
    return found_of("G4", "start of a run at step 1,000,000, 1 step", times, "fresh run + 2 s", Goal(1.0))


def found_of(name: str, work: str, times: dict, peer: str, goal: Goal, unit: str = "ms") -> dict:
    """What the harness says of a work, of measurements that are not its own clock's."""
    ratio = summary([ours / theirs for ours, theirs in zip(times[OURS], times[peer], strict=True)])
    told = {"milliseconds": summary(times[peer]), "ratio": ratio, "goal": goal.wanted, "passing": goal.passing}
    return {
        "id": name,
        "work": work,
        "checked": "the same batches' shapes; the same lines and steps",
        "repetitions": len(times[OURS]),
        "device": "cpu",
        "unit": unit,
        "milliseconds": summary(times[OURS]),
        "peers": {peer: {**told, "verdict": goal.verdict(ratio["median"])}},
        "figures": {"clock": "processor" if unit == "ms" else "tracemalloc"},
    }


WORKS = {"G1": steps, "G2": batches, "G3": memory, "G4": resuming}

if __name__ == "__main__":
    run(__doc__, WORKS)
