"""The estimator of memory against the allocator's own record: `t5suite.models.memory` and what a step really takes.

    python -m benchmarks.memory                      # every case below, on the CPU
    python -m benchmarks.memory --case t5-small/adamw --json memory.json

Measured: the second update of a real model with random weights (forward, backward, optimizer), while torch's profiler
(`profile_memory`) records every block that the CPU's allocator gives out and takes back: bytes exactly, without noise,
scratch of the kernels included. The peak is the largest sum of these, over the weights and optimizer states that were
there before. Estimated: the same step of shapes alone, with a CPU's attention (`estimate(..., gpu=False)`).
"""

import argparse
import gc
import json
from dataclasses import dataclass, field

import torch
from torch.profiler import ProfilerActivity, profile

from t5suite.models.configs import load_config
from t5suite.models.freezing import freeze
from t5suite.models.loading import load_model, load_model_shapes
from t5suite.models.memory import estimate
from t5suite.optim.optimizers import make_optimizer
from t5suite.training.memory_summary import Load, RowsOnly, training_step

MIB = 2**20


@dataclass(frozen=True)
class Case:
    """A model, how much of it is trained by what, and a batch."""

    config: str
    load: Load
    optimizer: str = "adamw"
    frozen: str | None = None
    overrides: dict = field(default_factory=dict)
    rows: int = 32128


def measure(case: Case) -> int:
    """Bytes at the worst moment of the second update."""
    torch.manual_seed(0)
    settings = settings_of(case)
    config = load_config(case.config, settings["config_overrides"], from_scratch=True)
    model = load_model(tokenizer=RowsOnly(case.rows, config), **settings)
    step = training_step(prepared(model, case), case.load, autocast=case.load.bf16)
    optimizer = make_optimizer(case.optimizer, model, 1e-4)
    update(model, step, optimizer, case.load.micro_batches)
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    before = sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers(), *states])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        update(model, step, optimizer, case.load.micro_batches)
    return before + highest(recorded)


def update(model, step, optimizer, micro_batches: int) -> None:
    """One update; the graph of each micro-batch is gone before the next one's."""
    for _ in range(micro_batches):
        step(model).backward()
    optimizer.step()


def highest(recorded) -> int:
    """The largest sum of what was allocated and not given back, in bytes."""
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def predict(case: Case) -> int:
    """What the estimator says of the same update."""
    model = load_model_shapes(tokenizer=RowsOnly(case.rows), **settings_of(case))
    step = training_step(prepared(model, case), case.load, autocast=case.load.bf16)
    return estimate(model, step, optimizer=case.optimizer, gpu=False, micro_batches=case.load.micro_batches)["peak"]


def settings_of(case: Case) -> dict:
    """The settings of `load_model`."""
    changes = ",".join(f"{name}={value}" for name, value in case.overrides.items())
    return {"config_name": case.config, "config_overrides": changes or None}


def prepared(model, case: Case):
    """Frozen and checkpointed as the case says, and in training."""
    freeze(model, case.frozen)
    if case.load.gradient_checkpointing:
        model.activation_checkpointing_enable()
    return model.train()


def main(argv=None) -> list[dict]:
    """Prints a line for each case, and the largest error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args(argv)
    found = []
    print(f"{'case':<44}{'estimated MiB':>14}{'measured MiB':>14}{'error':>8}")
    for name in arguments.case or CASES:
        estimated, measured = predict(CASES[name]), measure(CASES[name])
        error = 100 * (estimated / measured - 1)
        found.append({"case": name, "estimated": estimated, "measured": measured, "error_percent": error})
        print(f"{name:<44}{estimated / MIB:>14.1f}{measured / MIB:>14.1f}{error:>7.1f}%", flush=True)
    print(f"largest error: {max(abs(line['error_percent']) for line in found):.1f}%")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    return found


SMALL = Load(4, 128, 32)
LONG = Load(2, 256, 64)
CASES = {
    "t5-small/adamw": Case("t5-small", SMALL),
    "t5-small/adamw/checkpointing": Case("t5-small", Load(4, 128, 32, gradient_checkpointing=True)),
    "t5-small/adamw/bf16": Case("t5-small", Load(4, 128, 32, bf16=True)),
    "t5-small/adamw/bf16/checkpointing": Case("t5-small", Load(4, 128, 32, bf16=True, gradient_checkpointing=True)),
    "t5-small/adafactor": Case("t5-small", SMALL, "adafactor"),
    "t5-small/adafactor/checkpointing": Case("t5-small", Load(4, 128, 32, gradient_checkpointing=True), "adafactor"),
    "t5-small/adamw_rms": Case("t5-small", SMALL, "adamw_rms"),
    "t5-small/adamw/frozen encoder": Case("t5-small", SMALL, frozen="encoder"),
    "t5-small/adamw/frozen embeddings": Case("t5-small", SMALL, frozen="embeddings"),
    "t5-small/adamw/two micro-batches": Case("t5-small", Load(4, 128, 32, micro_batches=2)),
    "t5-v1_1-small/adamw": Case("t5-v1_1-small", LONG),
    "t5-v1_1-small/adamw/bf16": Case("t5-v1_1-small", Load(2, 256, 64, bf16=True)),
    "t5-v1_1-small/adafactor/checkpointing": Case(
        "t5-v1_1-small", Load(2, 256, 64, gradient_checkpointing=True), "adafactor"
    ),
    "t5-base/adamw": Case("t5-base", Load(2, 128, 32)),
    "t5-base/adafactor/frozen embeddings/checkpointing": Case(
        "t5-base", Load(4, 256, 64, gradient_checkpointing=True), "adafactor", "embeddings"
    ),
    "gpt2/adamw": Case("gpt2", Load(2, 96, 32), overrides={"n_layer": 4}, rows=50257),
    "bert/adamw": Case("bert", Load(2, 96, 32), overrides={"num_hidden_layers": 4}, rows=30522),
    "bart/adamw": Case("bart", Load(2, 96, 32), overrides={"encoder_layers": 2, "decoder_layers": 2}, rows=50265),
}

if __name__ == "__main__":
    main()
