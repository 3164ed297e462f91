"""What two ranks do about failures on one of them, and a process about memory that is really lacking.

python tests/guard_ranks.py folder [scenario ...]

A fresh process that forks: for every scenario two ranks over gloo, which write `<scenario>-<rank>.json`.
"""

import json
import os
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path

import guarded_trainer
import torch
from guarded_trainer import at_steps, given_in, incidents, limit_rows, losses, make

from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.weight_check import weights_digest
from t5suite.training.updates.guard import vote

SECONDS = 60


def report(trainer) -> dict:
    """What a run came to on this rank."""
    return {
        "losses": losses(trainer),
        "digest": weights_digest(trainer.model),
        "digests": [weights_digest_of(trainer.recorder.at[step][0]) for step in sorted(trainer.recorder.at)],
        "pieces": trainer.updates.micro_batches.pieces,
        "incidents": incidents(trainer),
        "skipped": trainer.updates.skipped_updates,
        "given_in_3": given_in(trainer, 3),
    }


def weights_digest_of(weights):
    """The digest of a recorder's weights."""
    from t5suite.training.processes.weight_check import digest_tensors

    return digest_tensors(list(weights.values()))


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


def stop_on_one_rank():
    ranks = Ranks.of(make().accelerator)
    totals = vote(ranks, torch.tensor(2.0 + ranks.rank), torch.tensor(0.5), stop=ranks.rank == 1)
    return {"loss": totals.loss, "grad_norm": totals.grad_norm, "stop": totals.stop, "grew": totals.grew}


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


def memory_in_loss():
    return train(prepare=on_rank(1, lambda trainer: limit_rows(trainer, 1, from_step=3)))


def memory_in_model_at_once():
    return train(4, 1, prepare=on_rank(1, lambda trainer: limit_rows(trainer, 2, from_step=3, where="model")))


def memory_in_loss_at_once():
    return train(4, 1, prepare=on_rank(1, lambda trainer: limit_rows(trainer, 2, from_step=3)))


def memory_with_buffers_at_once():
    """Buffers are broadcast in forward passes, as often on one rank as on the other."""

    def prepare(trainer):
        trainer.model.register_buffer("positions", torch.arange(4.0))
        on_rank(1, lambda trainer: limit_rows(trainer, 2, from_step=3, where="model"))(trainer)

    return train(4, 1, prepare=prepare)


def memory_in_first_backward():
    """The micro-batch whose gradients are not yet exchanged."""
    limit = lambda trainer: limit_rows(trainer, 1, from_step=3, where="backward", first=True)
    return train(prepare=on_rank(1, limit))


def memory_in_last_backward_at_once():
    return train(4, 1, prepare=on_rank(1, lambda trainer: limit_rows(trainer, 2, from_step=3, where="backward")))


def real_memory():
    """One process, its address space limited from the second update on; targets are long, so that logits are large."""
    trainer = make(8, 1, optim="sgd", num_train_epochs=1)
    collate = trainer.data_collator

    def collate_long(features):
        batch = collate(features)
        rows, width = batch["labels"].shape
        for name, value in (("labels", -100), ("decoder_input_ids", 0)):
            batch[name] = torch.cat([batch[name], torch.full((rows, LONG - width), value)], dim=1)
        return batch

    trainer.data_collator = collate_long
    begin = trainer.updates.on_step_begin

    def on_step_begin(*args, **kwargs):
        if trainer.state.global_step == 1:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        begin(*args, **kwargs)

    trainer.updates.on_step_begin = on_step_begin
    trainer.train()
    return report(trainer)


LONG = 1024
# Enough for four rows of logits and what they need beside them, and not for eight.
MEMORY = int(os.environ.get("GUARD_MEMORY", 150)) << 20
SINGLE = (real_memory,)
SCENARIOS = (
    undisturbed,
    undisturbed_at_once,
    nan_on_one_rank,
    stop_on_one_rank,
    flipped_bit_on_one_rank,
    memory_in_loss,
    memory_in_model_at_once,
    memory_in_loss_at_once,
    memory_with_buffers_at_once,
    memory_in_first_backward,
    memory_in_last_backward_at_once,
    *SINGLE,
)


def rank_process(scenario, rank, size, port, folder) -> int:
    """Forks one rank of a scenario."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        signal.alarm(SECONDS)
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        if size > 1:
            os.environ.update(dict(zip(names, map(str, (rank, rank, size, size)), strict=True)))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ["GUARD_OUTPUT"] = str(folder / scenario.__name__)
        try:
            found = scenario()
        except Exception as error:
            found = {"error": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
        (folder / f"{scenario.__name__}-{rank}.json").write_text(json.dumps(found))
        code = 0
    finally:
        # Without leaving the process group: a rank that has failed goes as it would, at once.
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(folder, *names, scenarios=SCENARIOS):
    guarded_trainer.parts()
    for scenario in scenarios:
        if names and scenario.__name__ not in names:
            continue
        size, port = 1 if scenario in SINGLE else 2, free_port()
        for process in [rank_process(scenario, rank, size, port, Path(folder)) for rank in range(size)]:
            os.waitpid(process, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
