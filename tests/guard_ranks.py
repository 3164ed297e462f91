"""What two ranks do about failures on one of them.

python tests/guard_ranks.py folder [scenario ...]

A fresh process that forks: for every scenario two ranks over gloo, which write `<scenario>-<rank>.json`.
"""

import hashlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import torch
from guarded_trainer import at_steps, examples_in, incidents, limit_rows, losses, make
from torch import nn

SECONDS = 60


def digest_of(weights: dict[str, torch.Tensor]) -> str:
    content = b"".join(value.contiguous().numpy().tobytes() for value in weights.values())
    return hashlib.sha256(content).hexdigest()


def report(trainer) -> dict:
    return {
        "losses": losses(trainer),
        "digests": [digest_of(states[0]) for _, states in sorted(trainer.recorder.at.items())],
        "pieces": trainer.updates.micro_batches.pieces,
        "incidents": incidents(trainer),
        "skipped": trainer.updates.skipped_updates,
        "examples_in_3": examples_in(trainer, 3),
    }


def train(batch_size=2, accumulation=2, prepare=lambda trainer: None, **settings):
    """A run of two ranks, after `prepare(trainer)`."""
    trainer = make(batch_size, accumulation, **settings)
    trainer.args.output_dir = os.environ["GUARD_OUTPUT"]
    trainer.updates.incidents.path = Path(os.environ["GUARD_OUTPUT"]) / "incidents.jsonl"
    prepare(trainer)
    trainer.train()
    return report(trainer)


def on_rank(rank, change):
    """`change(trainer)` on one rank alone."""
    return lambda trainer: change(trainer) if trainer.args.process_index == rank else None


def undisturbed():
    return train()


def undisturbed_at_once():
    return train(4, 1)


def nan_on_one_rank():
    return train(prepare=on_rank(1, lambda trainer: at_steps(trainer, {3}, lambda loss: loss * float("nan"))))


def flipped_bit_on_one_rank():
    def flip(trainer):
        settle = trainer.updates.settle

        def settle_and_flip(model, *args, **kwargs):
            settle(model, *args, **kwargs)
            if trainer.state.global_step == 2:
                bits = trainer.model.get_input_embeddings().weight.data.view(torch.int32)
                bits[3, 5] ^= 1

        trainer.updates.settle = settle_and_flip

    return train(prepare=on_rank(1, flip))


def idle_weight(**settings):
    idle = lambda trainer: trainer.model.register_parameter("idle", nn.Parameter(torch.zeros(2)))
    return train(prepare=idle, **settings)


def idle_weight_that_is_looked_for():
    return idle_weight(ddp_find_unused_parameters=True)


def memory_in_model():
    """The micro-batch whose gradients are not yet exchanged; so are the next two."""
    return train(prepare=on_rank(1, lambda trainer: limit_rows(trainer, 1, from_step=3, where="model")))


def memory_in_loss():
    return train(prepare=on_rank(1, lambda trainer: limit_rows(trainer, 1, from_step=3)))


def memory_in_backward():
    limit = lambda trainer: limit_rows(trainer, 1, from_step=3, where="backward", first=True)
    return train(prepare=on_rank(1, limit))


def memory_in_first_piece_at_once():
    """Micro-batches are already cut in two, and gradients are exchanged in the second piece alone."""

    def prepare(trainer):
        trainer.updates.micro_batches.pieces = 2
        on_rank(1, lambda trainer: limit_rows(trainer, 1, from_step=3))(trainer)

    return train(4, 1, prepare=prepare)


def memory_in_model_at_once():
    return train(4, 1, prepare=on_rank(1, lambda trainer: limit_rows(trainer, 2, from_step=3, where="model")))


def memory_in_loss_at_once():
    return train(4, 1, prepare=on_rank(1, lambda trainer: limit_rows(trainer, 2, from_step=3)))


def memory_in_backward_at_once():
    return train(4, 1, prepare=on_rank(1, lambda trainer: limit_rows(trainer, 2, from_step=3, where="backward")))


def memory_with_buffers(**settings):
    """Buffers are broadcast in an update's first forward pass, though gradients are not yet exchanged in it."""

    def prepare(trainer):
        trainer.model.register_buffer("positions", torch.arange(4.0))
        on_rank(1, lambda trainer: limit_rows(trainer, 1, from_step=3, where="model"))(trainer)

    return train(prepare=prepare, **settings)


def memory_with_buffers_of_each_rank():
    return memory_with_buffers(ddp_broadcast_buffers=False)


SCENARIOS = (
    undisturbed, undisturbed_at_once, nan_on_one_rank, flipped_bit_on_one_rank, memory_in_model,
    memory_in_loss, memory_in_backward, memory_in_first_piece_at_once, memory_in_model_at_once, memory_in_loss_at_once,
    memory_in_backward_at_once, memory_with_buffers, memory_with_buffers_of_each_rank, idle_weight,
    idle_weight_that_is_looked_for,
)  # fmt: skip


def rank_process(scenario, rank, port, folder) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        signal.alarm(SECONDS)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ["GUARD_OUTPUT"] = str(folder / scenario.__name__)
        try:
            outcome = scenario()
        except Exception as error:
            outcome = {"error": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
        (folder / f"{scenario.__name__}-{rank}.json").write_text(json.dumps(outcome))
        code = 0
    finally:
        # Without leaving the process group: a rank that has failed goes as it would, at once.
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def main(folder, *names, scenarios=SCENARIOS):
    make()
    for scenario in scenarios:
        if names and scenario.__name__ not in names:
            continue
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for process in [rank_process(scenario, rank, port, Path(folder)) for rank in range(2)]:
            os.waitpid(process, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
