"""Models, functions and callbacks such as a user brings along (`module:Name`), for the tests of plug-ins."""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, T5ForConditionalGeneration, TrainerCallback
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.t5.modeling_t5 import T5LayerNorm

from t5suite.tasks.formatters import FORMATTERS, Example
from t5suite.testing import read_rows
from t5suite.training.plug_ins import row_generators


class ReaderConfig(PreTrainedConfig):
    """A type that transformers does not know."""

    model_type = "own_reader"
    vocab_size: int = 100
    hidden_size: int = 16


class Reader(PreTrainedModel):
    """A classifier: the mean of the words' embeddings, doubled by a buffer that is not saved."""

    config_class = ReaderConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.num_labels)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.post_init()

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        pooled = (self.embed(input_ids) * mask).sum(1) / mask.sum(1)
        return SequenceClassifierOutput(logits=self.out(pooled) * self.scale)


class GatedNorm(T5LayerNorm):
    def __init__(self, size):
        super().__init__(size)
        self.gate = nn.Parameter(torch.zeros(size))

    def forward(self, hidden_states):
        return super().forward(hidden_states) * (1 + self.gate)


class OwnT5(T5ForConditionalGeneration):
    """transformers' T5 with a part of its own."""

    def __init__(self, config):
        super().__init__(config)
        self.decoder.final_layer_norm = GatedNorm(config.d_model)
        self.post_init()


def hide_words(batch):
    ids_BS = batch["input_ids"].clone()
    for row, generator in enumerate(row_generators(batch, seed=3)):
        hidden_S = torch.rand(512, generator=generator)[: ids_BS.shape[1]] < 0.2
        ids_BS[row, hidden_S & (ids_BS[row] > 1)] = 2
    return {**batch, "input_ids": ids_BS}


def hide_words_at_random(batch):
    hidden_BS = torch.rand(batch["input_ids"].shape) < 0.2
    return {**batch, "input_ids": batch["input_ids"].masked_fill(hidden_BS, 2)}


def certainty(outputs, batch):
    assert batch["labels"].shape == outputs["logits"].shape[:-1]
    certain = outputs["logits"].softmax(-1).amax(-1)
    return {"certainty": certain, "input_length": batch["attention_mask"].sum(1)}


def first_letter(predictions, targets, rows):
    assert len(predictions) == len(targets) == len(rows)
    return {"first_letter": 100 * sum(a[:1] == b[:1] for a, b in zip(predictions, targets)) / len(targets)}


class CountSteps(TrainerCallback):
    """Counts, and logs the count where it can be seen: a resumed run must go on counting."""

    def __init__(self):
        self.steps = 0

    def remember(self):
        return {"steps": self.steps}

    def recall(self, remembered):
        self.steps = remembered["steps"]

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and "loss" in logs:
            logs["counted_steps"] = self.steps


# ---------------------------------------------------------------------------------------------------------------------
# Whole runs with them; `torchrun --nproc_per_node 2 tests/plug_in_modules.py out.json` makes them on two ranks.

COMMON = """--dataset_name entailment --max_train_samples 21 --max_eval_samples 13 --num_train_epochs 2 --optim sgd
    --learning_rate 0.05 --train_sampling_strategy random --logging_steps 1 --use_cpu --disable_tqdm True
    --save_strategy no --load_best_model_at_end False --seed 0 --batch_transform plug_in_modules:hide_words
    --batch_metrics plug_in_modules:certainty""".split()
PLUG_INS = {
    "labels": ["--model_class", "plug_in_modules:OwnT5", "--dropout_rate", "0"],
    "classes": ["--model_class", "plug_in_modules:Reader", "--model_family", "masked"],
}


def history(kind: str, batch_size: int, accumulation: int) -> dict:
    """Losses, gradient norms and batch metrics of every update; the loss of the evaluation; predictions."""
    import fine_tune_t5

    directory = Path(os.environ.get("PLUG_IN_RUNS") or tempfile.mkdtemp()) / f"{kind}-{batch_size}x{accumulation}"
    sizes = ["--per_device_train_batch_size", str(batch_size), "--gradient_accumulation_steps", str(accumulation)]
    results = fine_tune_t5.main(
        [*COMMON, *PLUG_INS[kind], *sizes, "--per_device_eval_batch_size", "4", "--output_dir", str(directory)]
    )
    lines = read_rows(directory / "metrics.jsonl")
    steps = [line for line in lines if "train/loss" in line]
    found = {name: [line[f"train/{name}"] for line in steps] for name in ("loss", "grad_norm", *MEASURED)}
    found["eval_loss"] = [line["eval/loss"] for line in lines if "eval/loss" in line]
    [predictions] = (directory / "predictions").iterdir()
    return {**found, "rows": [line["row"] for line in read_rows(predictions)], "results": results}


MEASURED = ("certainty", "input_length")


def main(out):
    report = {kind: history(kind, 4, 1) for kind in PLUG_INS}
    if int(os.environ.get("RANK", 0)) == 0:
        Path(out).write_text(json.dumps(report))


if __name__ == "__main__":
    os.environ["PLUG_IN_RUNS"] = str(Path(sys.argv[1]).parent)
    main(sys.argv[1])


def second_label_is_learned(row, entry, split):
    """Trains on rows of one label only, as WSC does."""
    if split == "train" and row["label"] != 1:
        return []
    return [Example("text: " + row["text"], "good" if row["label"] == 1 else "bad")]


def in_context(row, entry, split):
    """Reads a column that no entry names, and drops what tells rows apart in the other."""
    return [Example(row["input"].strip() + row["context"], row["output"])]


def own_running_text(row, entry, split):
    """Learns texts that follow nothing."""
    return [Example("", row["text"])]


FORMATTERS |= {
    "own_running_text": own_running_text,
    "second_label_is_learned": second_label_is_learned,
    "in_context": in_context,
}


class RowsInContext:
    """Rows of `--data_class`, two with each input that `in_context` makes."""

    entry = {"formatter": "in_context"}

    def __init__(self, path, config):
        pass

    def rows(self, split):
        if split != "train":
            return None
        spaces = ["", " "]
        return [{"input": "Sum up: " + spaces[i % 2], "context": str(i // 2), "output": "x"} for i in range(80)]
