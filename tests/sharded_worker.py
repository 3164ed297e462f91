"""Trains a tiny T5 on two ranks (or four) in every way of sharding, and writes down what happened; run by torchrun.

torchrun --nproc_per_node 2 tests/sharded_worker.py out.json ddp fsdp zero2 zero3
"""

import dataclasses
import json
import os
import sys
import tempfile

import datasets
import torch
from safetensors.torch import load_file
from support import damaged_files
from transformers import TrainerCallback
from transformers.utils import logging as transformers_logging

from t5suite import load_task
from t5suite.testing import evaluate_rows, exits_with, tiny_rows, tiny_trainer

# 21 rows in updates of 8: the last one of an epoch has 5, and the second rank one row less than the first.
ROWS, STEPS, SAVED_AT = 21, 20, 7
SETTINGS = {"alone": {}, "ddp": {}, "fsdp": {"fsdp": True}, "hsdp": {"fsdp": True}}
SETTINGS |= {name: {"deepspeed": name} for name in ("zero1", "zero2", "zero2_offload", "zero3", "zero3_offload")}


def make_trainer(mode: str, folder: str, **settings):
    """A trainer over 21 rows of differing length, the same updates however many ranks there are."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    flags = {
        "output_dir": folder, "per_device_train_batch_size": 4 // world_size, "gradient_accumulation_steps": 2,
        "max_steps": STEPS, "learning_rate": 1e-3, "optimizer": "adamw", "weight_decay": 0.01, "schedule": "linear",
        "warmup_steps": 3, "save_strategy": "steps", "save_steps": SAVED_AT, "save_total_limit": 9,
    }  # fmt: skip
    return tiny_trainer(tiny_rows("entailment", count=ROWS), **flags | SETTINGS[mode] | settings)


def course(trainer) -> dict[str, list[float]]:
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {name: [line[name] for line in lines] for name in ("loss", "grad_norm", "learning_rate")}


def evaluations(trainer) -> dict:
    """Metrics, loss and predictions of 13 rows, by method; 13 rows are three batches of five for two ranks."""
    results = {}
    for name in ("entailment", "similarity"):
        for method in ("generate", "score"):
            result = evaluate_rows(trainer, tiny_rows(name, count=13), load_task("mini", name), method, batch_size=5)
            metrics = {key: repr(value) for key, value in result.metrics.items()}
            scored = {"rows": result.num_rows, "predictions": result.predictions, "metrics": metrics}
            results[f"{name} {method}"] = {**scored, "loss": result.loss}
    return results


def weights_of(trainer, folder) -> dict[str, torch.Tensor]:
    trainer.save_model(folder)
    return load_file(f"{folder}/model.safetensors")


def same_bits(here: dict, there: dict) -> bool:
    return here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here)


class StopOnOneRank(TrainerCallback):
    """Asks the last rank alone to stop, in the middle of a run."""

    def __init__(self, trainer):
        self.stop = trainer.stop

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == SAVED_AT + 2 and args.process_index == args.world_size - 1:
            self.stop.request("SIGTERM")


def train_in_every_way(mode: str, folder: str) -> dict:
    """An uninterrupted run, two that go on from its checkpoint, and one that is stopped and goes on."""
    whole = make_trainer(mode, f"{folder}/whole")
    whole.train()
    shares = [_held_share(parameter) for parameter in whole.model.parameters()]
    weights = weights_of(whole, f"{folder}/whole")
    report = {**course(whole), "evaluations": evaluations(whole), "kind": whole.accelerator.distributed_type.value}
    report["in_pieces"] = sum(share < 1 for share in shares) / len(shares)
    report["damage"] = damaged_files(f"{folder}/whole/checkpoint-{SAVED_AT}")
    report["exported"] = {name: value.double().abs().sum().item() for name, value in weights.items()}
    again = make_trainer(mode, f"{folder}/again")
    again.train(resume_from_checkpoint=f"{folder}/whole/checkpoint-{SAVED_AT}")
    report["resumed_exactly"] = same_bits(weights, weights_of(again, f"{folder}/again"))
    report["resumed_course"] = course(again) == course(whole)
    other_flags = {"learning_rate": 2e-3, "weight_decay": 0.5, "max_grad_norm": 0.5, "save_strategy": "no"}
    changed = make_trainer(mode, f"{folder}/changed", **other_flags)
    changed.train(start=dataclasses.replace(again.start, restart=True))
    report["changed_course"] = course(changed)
    report.update(stopped_and_resumed(mode, folder, weights))
    return report


def _held_share(parameter) -> float:
    if hasattr(parameter, "ds_numel"):
        return parameter.numel() / parameter.ds_numel
    return parameter.to_local().numel() / parameter.numel() if hasattr(parameter, "to_local") else 1.0


def stopped_and_resumed(mode: str, folder: str, weights) -> dict:
    """A rank is asked to stop: all commit one checkpoint at the same step, and go on from it."""
    stopped = make_trainer(mode, f"{folder}/stopped", save_strategy="no")
    stopped.add_callback(StopOnOneRank(stopped))
    try:
        with exits_with(75):
            stopped.train()
    finally:
        stopped.stop._forget()
    step = stopped.state.global_step
    checkpoint = f"{folder}/stopped/checkpoint-{step}"
    again = make_trainer(mode, f"{folder}/stopped", save_strategy="no")
    again.train(resume_from_checkpoint=checkpoint)
    same = same_bits(weights, weights_of(again, f"{folder}/stopped"))
    return {"stopped_at": step, "stopped_damage": damaged_files(checkpoint), "stop_changes_nothing": same}


def breaking(trainer, steps):
    """The trainer's loss, which is not a number in some steps, on one rank alone."""
    sound = trainer.compute_loss_func

    def loss(outputs, labels, num_items_in_batch=None):
        broken = trainer.state.global_step + 1 in steps and trainer.args.process_index == trainer.args.world_size - 1
        return sound(outputs, labels, num_items_in_batch) * (float("nan") if broken else 1.0)

    return loss


def broken_updates(mode: str, folder: str) -> dict:
    """Updates 3 and 4 have no finite loss: nothing of them reaches the weights, and the third in a row ends the run."""
    two = make_trainer(mode, f"{folder}/broken_two", save_strategy="no", max_steps=6)
    two.compute_loss_func = breaking(two, (3, 4))
    two.train()
    weights = weights_of(two, f"{folder}/broken_two")
    three = make_trainer(mode, f"{folder}/broken_three", save_strategy="no", max_steps=6)
    three.compute_loss_func = breaking(three, (3, 4, 5))
    with exits_with(70) as failure:
        three.train()
    return {
        "finite": all(bool(value.isfinite().all()) for value in weights.values()),
        "skipped": two.updates.skipped_updates,
        "rates": course(two)["learning_rate"],
        "weights": {name: value.double().abs().sum().item() for name, value in weights.items()},
        "ended": failure.message,
    }


def clipped_course(mode: str, folder: str) -> list[float]:
    """The losses of six updates whose gradients are clipped element by element."""
    trainer = make_trainer(mode, f"{folder}/clipped", save_strategy="no", max_steps=6, clip_grad_value=1e-3)
    trainer.train()
    return course(trainer)["loss"]


def main():
    out, *modes = sys.argv[1:]
    folder = os.environ.get("SHARDED_FOLDER") or tempfile.mkdtemp()
    report = {}
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for mode in modes:
        if mode == "hsdp":
            sizes = {"DP_REPLICATE": "2", "DP_SHARD": "2", "TP": "1", "CP": "1", "SP": "1"}
            os.environ["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true"
            os.environ.update({f"PARALLELISM_CONFIG_{name}_SIZE": size for name, size in sizes.items()})
        report[mode] = train_in_every_way(mode, f"{folder}/{mode}")
        report[mode]["broken"] = broken_updates(mode, f"{folder}/{mode}")
        if "deepspeed" not in SETTINGS[mode]:
            report[mode]["clipped"] = clipped_course(mode, f"{folder}/{mode}")
    if int(os.environ.get("RANK", "0")) == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(report, file)


if __name__ == "__main__":
    main()
