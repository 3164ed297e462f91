"""What two ranks come to whose updates are looked at late, and the same runs with `--update_checks now`.

python tests/late_ranks.py folder [scenario ...]

Two ranks over gloo, in the way of `guard_ranks`: every scenario writes `<scenario>-<rank>.json`.
"""

import functools
import math
import sys

from device_reads import reading
from guard_ranks import main, on_rank, report, train
from guarded_trainer import at_steps, limit_rows, make

from t5suite.base.errors import NumericsError, Preempted
from t5suite.training.processes.signals import StopRequests

STEPS = 6
GIVEN = {"optimizer": "adamw_rms", "logging_steps": 4, "z_loss": 1e-4}


def run(checks, prepare=lambda trainer: None, folder=None, **settings):
    """Two epochs of two micro-batches an update and rank; from a checkpoint on, if a `folder` is named."""

    def prepared(trainer):
        prepare(trainer)
        if folder:
            trainer.train = functools.partial(trainer.train, f"{trainer.args.output_dir}/{folder}")

    return train(prepare=prepared, update_checks=checks, **{**GIVEN, **settings})


def sound(checks):
    return run(checks)


def nan_on_one_rank(checks):
    return run(checks, on_rank(1, lambda trainer: at_steps(trainer, {2, 3}, lambda loss: loss * math.nan)))


def loss_alone_on_one_rank(checks):
    """A loss that is no number, with gradients that are: only the ranks together know that the update is broken."""
    return run(checks, on_rank(1, lambda trainer: at_steps(trainer, {3}, lambda loss: loss + math.inf)))


def too_many(checks):
    kept = []

    def prepare(trainer):
        on_rank(0, lambda trainer: at_steps(trainer, {2, 3}, lambda loss: loss + math.inf))(trainer)
        kept.append(trainer)

    try:
        run(checks, prepare, max_skipped_updates=2)
    except NumericsError as error:
        return {**report(kept[0]), "message": str(error)}


def memory_on_one_rank(checks):
    return run(checks, on_rank(1, lambda trainer: limit_rows(trainer, 1, from_step=3)))


def stop_on_one_rank(checks):
    """One rank is asked to stop in step 2; then the run goes on from what was kept, to its end."""
    kept = []

    def prepare(trainer):
        trainer.stop = StopRequests()
        trainer.stop_requested = lambda: trainer.args.process_index == 1 and trainer.state.global_step + 1 == 2
        kept.append(trainer)

    try:
        run(checks, prepare)
    except Preempted as error:
        stopped = str(error)
    step = kept[0].state.global_step
    found = run(checks, folder=f"checkpoint-{step}")
    return {**found, "stopped": stopped, "step": step}


def reads(checks):
    """What is asked of tensors between two logs of an epoch, with clipping, accumulation and z-loss."""
    read = []

    def notice(name):
        if 0 < trainer.state.global_step < STEPS - 1:
            read.append(name)

    settings = {**GIVEN, "logging_steps": STEPS, "num_train_epochs": 1, "max_grad_norm": 0.5}
    trainer = make(1, 2, update_checks=checks, **settings)
    trainer.remove_callback(trainer.recorder)
    with reading(notice):
        trainer.train()
    return {"read": read, "steps": trainer.state.global_step}


def named(scenario, checks):
    """A scenario without arguments, by a name of its own."""
    found = functools.partial(scenario, checks)
    found.__name__ = f"{scenario.__name__}_{checks}"
    return found


ALL = (sound, nan_on_one_rank, loss_alone_on_one_rank, too_many, memory_on_one_rank, stop_on_one_rank, reads)
SCENARIOS = tuple(named(scenario, checks) for scenario in ALL for checks in ("now", "late"))

if __name__ == "__main__":
    main(*sys.argv[1:], scenarios=SCENARIOS)
