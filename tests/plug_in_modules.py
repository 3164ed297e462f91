"""Models, functions and callbacks such as a user brings along (`module:Name`), for the tests of plug-ins."""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from transformers import T5ForConditionalGeneration, TrainerCallback

from t5suite.data.rows.jsonl import read_jsonl
from t5suite.training.plug_ins import row_generators


class Pooled(nn.Module):
    """The mean of the input's embeddings beside each of the target's; dropout; a buffer that is not saved."""

    def __init__(self, vocab_size, d_model=16, tied=False, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.mix = nn.Linear(2 * d_model, d_model)
        self.out = nn.Linear(d_model, vocab_size, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        if tied:
            self.out.weight = self.embed.weight

    def logits(self, input_ids, attention_mask, decoder_input_ids):
        mask = attention_mask.unsqueeze(-1)
        pooled = (self.embed(input_ids) * mask).sum(1) / mask.sum(1)
        targets = self.embed(decoder_input_ids)
        both = torch.cat([targets, pooled.unsqueeze(1).expand_as(targets)], -1)
        return self.out(self.dropout(torch.tanh(self.mix(both)))) * self.scale

    def forward(self, input_ids, attention_mask, decoder_input_ids, labels):
        logits = self.logits(input_ids, attention_mask, decoder_input_ids)
        return {"loss": F.cross_entropy(logits.transpose(1, 2), labels), "logits": logits}


class Writer(Pooled):
    """The same, which also writes."""

    def generate(self, input_ids, attention_mask, max_new_tokens):
        ids = torch.zeros(len(input_ids), 1, dtype=torch.long)
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self.logits(input_ids, attention_mask, ids)[:, -1:].argmax(-1)], 1)
        return ids[:, 1:]


class Continuing(nn.Module):
    """A decoder alone, which sees the last token and the mean of all before it; writes what it was shown first."""

    def __init__(self, vocab_size, eos_token_id, d_model=16):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.out = nn.Linear(d_model, vocab_size)
        self.eos = eos_token_id

    def forward(self, input_ids, labels):
        states = self.embed(input_ids).cumsum(1) / torch.arange(1, input_ids.shape[1] + 1).unsqueeze(-1)
        return (F.cross_entropy(self.out(states).transpose(1, 2), labels),)

    def generate(self, input_ids, attention_mask):
        assert attention_mask[:, -1].all()  # prompts end in the last column
        return [[row[mask.bool()][0].item(), self.eos] for row, mask in zip(input_ids, attention_mask)]


class Classifier(nn.Module):
    def __init__(self, vocab_size, num_labels, d_model=16):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.out = nn.Linear(d_model, num_labels)

    def forward(self, input_ids, attention_mask, labels):
        mask = attention_mask.unsqueeze(-1)
        logits = self.out((self.embed(input_ids) * mask).sum(1) / mask.sum(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Reconstructor(nn.Module):
    """Takes no labels: its loss is a mean over rows."""

    def __init__(self, vocab_size):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, 8)
        self.back = nn.Linear(8, 8)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        pooled = (self.embed(input_ids) * mask).sum(1) / mask.sum(1)
        return ((self.back(pooled) - pooled.detach()).square().mean(),)


class OwnT5(T5ForConditionalGeneration):
    """transformers' T5 with a part of its own."""

    def __init__(self, config):
        super().__init__(config)
        self.gate = nn.Parameter(torch.zeros(config.d_model))
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
    return {"certainty": certain, "input_length": batch["attention_mask"].sum(1), "mean_loss": outputs["loss"]}


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
    "labels": ["--model_class", "plug_in_modules:Pooled"],
    "classes": ["--model_class", "plug_in_modules:Classifier", "--model_family", "masked"],
}


def history(kind: str, batch_size: int, accumulation: int) -> dict:
    """Losses, gradient norms and batch metrics of every update; the loss of the evaluation; predictions."""
    import fine_tune_t5

    directory = Path(os.environ.get("PLUG_IN_RUNS") or tempfile.mkdtemp()) / f"{kind}-{batch_size}x{accumulation}"
    sizes = ["--per_device_train_batch_size", str(batch_size), "--gradient_accumulation_steps", str(accumulation)]
    results = fine_tune_t5.main(
        [*COMMON, *PLUG_INS[kind], *sizes, "--per_device_eval_batch_size", "4", "--output_dir", str(directory)]
    )
    lines = read_jsonl(directory / "metrics.jsonl")
    steps = [line for line in lines if "train/loss" in line]
    found = {name: [line[f"train/{name}"] for line in steps] for name in ("loss", "grad_norm", *MEASURED)}
    found["eval_loss"] = [line["eval/loss"] for line in lines if "eval/loss" in line]
    [predictions] = (directory / "predictions").iterdir()
    return {**found, "rows": [line["row"] for line in read_jsonl(predictions)], "results": results}


MEASURED = ("certainty", "input_length", "mean_loss")


def main(out):
    report = {kind: history(kind, 4, 1) for kind in PLUG_INS}
    if int(os.environ.get("RANK", 0)) == 0:
        Path(out).write_text(json.dumps(report))


if __name__ == "__main__":
    os.environ["PLUG_IN_RUNS"] = str(Path(sys.argv[1]).parent)
    main(sys.argv[1])
