"""Trains a tiny T5 on two ranks (or four) in every way of sharding, and writes down what happened; run by torchrun.

torchrun --nproc_per_node 2 tests/sharded_worker.py out.json ddp fsdp zero2 zero3
"""

import json
import os
import sys
import tempfile

import datasets
import torch
import torch.distributed as dist
from law_worker import LENGTHS, tiny_model, trainer_of
from transformers import TrainerCallback
from transformers.utils import logging as transformers_logging

from t5suite import load_task
from t5suite.base.errors import NumericsError, Preempted
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.training_data import tokenize_split
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.models.weights import read_weights
from t5suite.testing import tiny_tokenizer
from t5suite.training.checkpoints.manifests import damage
from t5suite.training.eval_sets import make_eval_set
from t5suite.training.fine_tuning import make_evaluator
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.processes.signals import stop_requests
from t5suite.training.trainer import SuiteTrainer

# 21 rows in updates of 8: the last one of an epoch has 5, and the second rank one row less than the first.
ROWS, STEPS, SAVED_AT = 21, 20, 7
SETTINGS = {"alone": {}, "ddp": {}, "fsdp": {"fsdp": True}, "hsdp": {"fsdp": True}}
SETTINGS |= {name: {"deepspeed": name} for name in ("zero1", "zero2", "zero2_offload", "zero3", "zero3_offload")}


def make_trainer(mode: str, folder: str, **settings) -> SuiteTrainer:
    """A trainer over 21 rows of differing length, the same updates however many ranks there are."""
    tokenizer = tiny_tokenizer()
    task = load_task("mini", "entailment")
    rows = load_split(task, "validation", "validation", DataOptions()).rows.select(range(ROWS))
    features = tokenize_split(rows, task, TextEncoding(tokenizer, LENGTHS), "train")
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    flags = {
        "output_dir": folder, "per_device_train_batch_size": 4 // world_size, "gradient_accumulation_steps": 2,
        "max_steps": STEPS, "learning_rate": 1e-3, "optimizer": "adamw", "weight_decay": 0.01, "schedule": "linear",
        "warmup_steps": 3, "logging_steps": 1, "eval_strategy": "no", "save_strategy": "steps", "save_steps": SAVED_AT,
        "save_total_limit": 9, "disable_tqdm": True, "use_cpu": True, "seed": 0, **SETTINGS[mode], **settings,
    }  # fmt: skip
    args = SuiteTrainingArguments(**flags)  # before the model: while another ZeRO-3 trainer lives, it would be sharded
    return trainer_of(tiny_model(tokenizer), args, features, tokenizer)


def course(trainer) -> dict[str, list[float]]:
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {name: [line[name] for line in lines] for name in ("loss", "grad_norm", "learning_rate")}


def evaluations(trainer) -> dict:
    """Metrics, loss and predictions of 13 rows, by method; 13 rows are three batches of five for two ranks."""
    tokenizer, found = trainer.processing_class, {}
    evaluator = make_evaluator(trainer.data_collator, tokenizer, trainer.args, trainer.accelerator, False)
    evaluator.batch_size = 5
    for name in ("entailment", "similarity"):
        task = load_task("mini", name)
        rows = load_split(task, "validation", "validation", DataOptions()).rows
        part = datasets.Dataset.from_list(rows.select(range(13)).to_list())
        for method in ("generate", "score"):
            eval_set = make_eval_set(name, task, "validation", part, TextEncoding(tokenizer, LENGTHS), method)
            result = evaluator.evaluate(trainer.model, [eval_set]).results[name]
            metrics = {key: repr(value) for key, value in result.metrics.items()}
            scored = {"rows": result.num_rows, "predictions": result.predictions, "metrics": metrics}
            found[f"{name} {method}"] = {**scored, "loss": result.loss}
    return found


def weights_of(trainer, folder) -> dict[str, torch.Tensor]:
    trainer.save_model(folder)
    return read_weights(folder)


def same_bits(here: dict, there: dict) -> bool:
    return here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here)


class StopOnOneRank(TrainerCallback):
    """Asks the last rank alone to stop, in the middle of a run."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == SAVED_AT + 2 and args.process_index == args.world_size - 1:
            stop_requests().request("SIGTERM")


def train_in_every_way(mode: str, folder: str) -> dict:
    """An uninterrupted run, one that goes on from its checkpoint, and one that is stopped and goes on."""
    whole = make_trainer(mode, f"{folder}/whole")
    whole.train()
    shares = [_held_share(parameter) for parameter in whole.model.parameters()]
    weights = weights_of(whole, f"{folder}/whole")
    found = {**course(whole), "evaluations": evaluations(whole), "kind": whole.accelerator.distributed_type.value}
    found["in_pieces"] = sum(share < 1 for share in shares) / len(shares)
    found["damage"] = damage(f"{folder}/whole/checkpoint-{SAVED_AT}")
    found["exported"] = {name: value.double().abs().sum().item() for name, value in weights.items()}
    again = make_trainer(mode, f"{folder}/again")
    again.train(resume_from_checkpoint=f"{folder}/whole/checkpoint-{SAVED_AT}")
    found["resumed_exactly"] = same_bits(weights, weights_of(again, f"{folder}/again"))
    found["resumed_course"] = course(again) == course(whole)
    found.update(stopped_and_resumed(mode, folder, weights))
    return found


def _held_share(parameter) -> float:
    if hasattr(parameter, "ds_numel"):
        return parameter.numel() / parameter.ds_numel
    return parameter.to_local().numel() / parameter.numel() if hasattr(parameter, "to_local") else 1.0


def stopped_and_resumed(mode: str, folder: str, weights) -> dict:
    """A rank is asked to stop: all commit one checkpoint at the same step, and go on from it."""
    stopped = make_trainer(mode, f"{folder}/stopped", save_strategy="no")
    stopped.add_callback(StopOnOneRank())
    try:
        stopped.train()
        return {"stopped_at": None}
    except Preempted:
        step = stopped.state.global_step
    finally:
        stop_requests()._forget()
    checkpoint = f"{folder}/stopped/checkpoint-{step}"
    again = make_trainer(mode, f"{folder}/stopped", save_strategy="no")
    again.train(resume_from_checkpoint=checkpoint)
    same = same_bits(weights, weights_of(again, f"{folder}/stopped"))
    return {"stopped_at": step, "stopped_damage": damage(checkpoint), "stop_changes_nothing": same}


def breaking(trainer, steps):
    """The trainer's loss, which is not a number in some steps, on one rank alone."""
    sound = trainer.compute_loss_func

    def loss(outputs, labels, num_items_in_batch=None):
        broken = trainer.state.global_step + 1 in steps and trainer.args.process_index == trainer.args.world_size - 1
        return sound(outputs, labels, num_items_in_batch) * (float("nan") if broken else 1.0)

    return loss


def broken_updates(mode: str, folder: str) -> dict:
    """Updates 3 and 4 have no finite loss: nothing of them reaches the weights, and the third in a row ends the run."""
    found = {}
    for name, broken in (("two", (3, 4)), ("three", (3, 4, 5))):
        trainer = make_trainer(mode, f"{folder}/broken_{name}", save_strategy="no", max_steps=6)
        trainer.compute_loss_func = breaking(trainer, broken)
        try:
            trainer.train()
            weights = weights_of(trainer, f"{folder}/broken_{name}")
            found["finite"] = all(bool(value.isfinite().all()) for value in weights.values())
            found["skipped"] = trainer.updates.skipped_updates
            found["rates"] = course(trainer)["learning_rate"]
            found["weights"] = {key: value.double().abs().sum().item() for key, value in weights.items()}
        except NumericsError as error:
            found["ended"] = str(error)
    return found


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
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
