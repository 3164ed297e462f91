"""What it costs that a checkpoint is hashed, brought to the disk and committed by a rename.

    python -m benchmarks.checkpoints                                  # 252M parameters, 3 GB with AdamW's state
    python -m benchmarks.checkpoints --size small --folder /dev/shm   # a smaller one, on another file system

Ours (`commit_checkpoint`: weights and AdamW's state hashed, every file and folder brought to the
disk, manifest, rename) takes turns with the stock trainer's way (`save_pretrained` and `torch.save`) followed by fsync
of its files, and with the plain stock way, which leaves the bytes in memory for the system to write at some time. Wall
clock; before each save the disk is quiet (`sync`) and the last checkpoint gone. The rate of verification is that of
reading a checkpoint which the page cache may still hold.

A second thread hashes, so others on the machine are not all alike to all contenders: each save waits for a quiet moment
and is done again if other processes took more than a twentieth of the processors meanwhile. A virtual machine's memory
that was given back to its host costs ten times as much to write to at first (0.2 s and 2.1 s for 0.8 GB, measured), so
as much memory as a checkpoint takes is touched and freed before each save.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

from t5suite.base.files import sync_file, sync_folder
from t5suite.training.checkpoints.committing import commit_checkpoint
from t5suite.training.checkpoints.manifests import Manifest, damage, files_below
from t5suite.training.checkpoints.saving import save_state

SIZES = {
    "tiny": {"d_model": 128, "d_ff": 512, "num_layers": 2, "num_heads": 4},
    "small": {"d_model": 512, "d_ff": 1024, "num_layers": 8, "num_heads": 6},
    # T5 v1.1 base with its head tied and three more decoder layers
    "base": {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_decoder_layers": 15, "num_heads": 12},
}


def make(size: str):
    """`(model, optimizer)` of random weights and moments; nothing is trained."""
    torch.manual_seed(0)
    config = T5Config(**SIZES[size], d_kv=64, feed_forward_proj="gated-gelu", decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for parameter in model.parameters():
        moments = {name: torch.randn_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(100.0), **moments}
    return model, optimizer


def ours(model, optimizer, folder: Path) -> Path:
    """As the trainer commits a checkpoint."""

    def write(target):
        model.save_pretrained(target)
        save_state(target, "optimizer", optimizer.state_dict())

    return commit_checkpoint(folder, 100, write, run_id="benchmark")


def stock(model, optimizer, folder: Path) -> Path:
    """As transformers 5.23's trainer saves one."""
    place = folder / "checkpoint-100"
    model.save_pretrained(place)
    torch.save(optimizer.state_dict(), place / "optimizer.pt")
    return place


def stock_synced(model, optimizer, folder: Path) -> Path:
    """The same, and every file brought to the disk."""
    place = stock(model, optimizer, folder)
    for name in files_below(place):
        sync_file(place / name)
    sync_folder(place)
    return place


MOST_ATTEMPTS, MOST_DISTURBED = 10, 0.05
PROCESSES = Path("/proc/stat")
CONTENDERS = {"ours": ours, "stock, then fsync": stock_synced, "stock": stock}


def measure(size: str, repetitions: int, folder: Path) -> dict:
    """Seconds of each save and of verification, contenders taking turns after one round that is not counted."""
    disable_progress_bar()
    model, optimizer = make(size)
    saves = {name: [] for name in CONTENDERS}
    verifying = []
    for turn in range(-1, repetitions):
        for name, save in CONTENDERS.items():
            call = partial(save, model, optimizer, folder)
            checkpoint, seconds, share = quietly(call, folder, 13 * count_parameters(model))
            if turn >= 0:
                saves[name].append((seconds, share))
            if name == "ours":
                started = time.perf_counter()
                assert damage(checkpoint) is None
                verifying.append(time.perf_counter() - started)
                size_in_bytes = sum(record.size for record in Manifest.read(checkpoint).files.values())
    seconds = {name: [second for second, _ in times] for name, times in saves.items()}
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "parameters": count_parameters(model),
        "bytes": size_in_bytes,
        "seconds": seconds,
        "shares_of_others": {name: [round(share, 3) for _, share in times] for name, times in saves.items()},
        "medians": medians,
        "overhead": medians["ours"] / medians["stock, then fsync"] - 1,
        "verifying": statistics.median(verifying),
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
    }


def count_parameters(model) -> int:
    """Of all tensors, shared ones once; four bytes each, and eight more for their moments."""
    return sum(p.numel() for p in model.parameters())


def quietly(save, folder: Path, memory: int):
    """`(checkpoint, seconds, others' share of the processors)` of a save that was hardly disturbed, if there is one."""
    best = None
    for _ in range(MOST_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.sync()
        wait_for_quiet()
        torch.ones(memory, dtype=torch.uint8)
        before, started = others_seconds(), time.perf_counter()
        checkpoint = save()
        seconds = time.perf_counter() - started
        share = (others_seconds() - before) / seconds / os.cpu_count()
        if best is None or share < best[2]:
            best = checkpoint, seconds, share
        if share < MOST_DISTURBED:
            break
    return best


def wait_for_quiet() -> None:
    """Returns when nobody else has run for some moments, or after a while."""
    quiet, deadline = 0, time.monotonic() + 20
    while quiet < 6 and time.monotonic() < deadline:
        text = PROCESSES.read_text() if PROCESSES.is_file() else "procs_running 1"
        running = int(text.partition("procs_running ")[2].split()[0])
        quiet = quiet + 1 if running <= 1 else 0
        time.sleep(0.03)


def others_seconds() -> float:
    """Processor seconds that other processes have taken; 0 where the system does not say."""
    if not PROCESSES.is_file():
        return 0.0
    user, nice, system, _, _, interrupts, soft, *_ = map(int, PROCESSES.read_text().split()[1:9])
    own = os.times()
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def main(argv=None):
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--folder", help="on the file system to be measured; default: the temporary folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        report = measure(args.size, args.repetitions, Path(folder) / "run")
    if args.json:
        print(json.dumps(report))
        return
    print(f"{report['parameters'] / 1e6:.0f}M parameters, {report['bytes'] / 1e9:.2f} GB, {report['cores']} cores")
    for name, median in report["medians"].items():
        times = report["seconds"][name]
        spread = f"{min(times):.2f} to {max(times):.2f}"
        print(f"{name:20} {median:6.2f} s   ({spread})   {report['bytes'] / median / 1e6:6.0f} MB/s")
    print(f"{'verification':20} {report['verifying']:6.2f} s   {report['bytes'] / report['verifying'] / 1e6:.0f} MB/s")
    most = max(max(shares) for shares in report["shares_of_others"].values())
    print(f"other processes took {most:.0%} of the processors at most")
    print(f"overhead over the stock save that is synced: {report['overhead']:+.1%}")


if __name__ == "__main__":
    main()
