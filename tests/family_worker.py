"""Tiny models of every family, trained and evaluated; run in this process, or by torchrun on two ranks.

torchrun --nproc_per_node 2 tests/family_worker.py out.json
"""

import functools
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoConfig

import fine_tune_t5
from t5suite import Task, load_task
from t5suite.testing import read_rows, save_model, tiny_model, tiny_rows, tiny_tokenizer, write_rows

TRAINING_ROWS = 21  # 8 + 8 + 5: the last update is not full
EVALUATED_ROWS = 13


T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 96, "dropout": 0.0,
}  # fmt: skip
WIDTH = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 96,
}  # fmt: skip
BERT = {**WIDTH, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LONG = {**T5, "model_type": "longt5", "local_radius": 7}
GEMMA = {
    "vocab_size": 640, **WIDTH, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 64,
    "layer_types": ["full_attention"],
}  # fmt: skip
# By name, which is the model type where the settings name no other: family, and a tiny configuration without dropout.
MODELS = {
    "t5": ("seq2seq", T5),
    "mt5": ("seq2seq", T5),
    "umt5": ("seq2seq", T5),
    "longt5": ("seq2seq", {**LONG, "encoder_attention_type": "local"}),
    "longt5_global": ("seq2seq", {**LONG, "encoder_attention_type": "transient-global", "global_block_size": 4}),
    "bart": ("seq2seq", BART),
    "pegasus": ("seq2seq", BART),
    "t5gemma": ("seq2seq", {"encoder": GEMMA, "decoder": GEMMA, "dropout_rate": 0.0, "attention_dropout": 0.0}),
    "gpt2": ("causal", {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 96, "resid_pdrop": 0.0,
                        "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "opt": ("causal", {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32,
                       "word_embed_proj_dim": 32, "max_position_embeddings": 96, "dropout": 0.0}),
    "bloom": ("causal", {"hidden_size": 32, "n_layer": 1, "n_head": 2}),
    "llama": ("causal", WIDTH),
    "bert": ("masked", BERT),
    "t5_encoder": ("encoder", {**T5, "model_type": "t5", "architectures": ["T5EncoderModel"]}),
    "roberta": ("masked", {**BERT, "pad_token_id": 0}),
    "distilbert": ("masked", {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 96,
                              "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}),
    "modernbert": ("masked", {**WIDTH, "pad_token_id": 0, "reference_compile": False}),
}  # fmt: skip


def config_of(name: str):
    return AutoConfig.for_model(**{"model_type": name, "vocab_size": 640, **MODELS[name][1]})


@functools.cache
def config_folder(name: str) -> str:
    """A folder with the configuration of a model of MODELS."""
    folder = tempfile.mkdtemp()
    config_of(name).save_pretrained(folder)
    return folder


def model_of(name: str, task, seed: int = 0):
    """Random weights large enough that outputs differ from row to row."""
    model = tiny_model(config_folder(name), "", seed=seed, scale=1.0, tasks=[task])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model.eval()


# Every word of a sentence of the bundled rows has a label: whether it begins with a vowel.
VOWELS = Task("mini", "sentiment", {
    "prefix": "", "formatter": "token_labels", "text_column_name": "sentence", "label_column_name": "vowels",
    "labels": ["no", "yes"], "metric_names": ["token_accuracy"], "metric_to_optimize": "token_accuracy",
})  # fmt: skip


def task_of(name: str) -> Task:
    return VOWELS if name == "vowels" else load_task("mini", name)


def rows_of(task, count: int) -> list[dict]:
    rows = tiny_rows(task.name, count=count)
    if task is VOWELS:
        rows = [
            {**row, "vowels": [int(word[0].lower() in "aeiou") for word in row["sentence"].split()]} for row in rows
        ]
    return rows


# Where models, rows and runs go: the same for all ranks.
PLACE = Path(tempfile.mkdtemp())


def place_of(name: str, task_name: str) -> Path:
    """A folder with a model, the rows of a task, and a file of tasks."""
    place, task = PLACE / f"{name} {task_name}", task_of(task_name)
    if place.exists():
        return place
    if os.environ.get("RANK", "0") != "0":  # the first rank makes it; in a process group others save no model
        while not place.exists():
            time.sleep(0.1)
        return place
    draft = Path(tempfile.mkdtemp(dir=PLACE)) / "place"
    save_model(draft / "model", model_of(name, task), tiny_tokenizer())
    write_rows(draft / "train.jsonl", rows_of(task, TRAINING_ROWS))
    write_rows(draft / "validation.jsonl", rows_of(task, EVALUATED_ROWS))
    (draft / "tasks.yaml").write_text(json.dumps({"own": {"vowels": dict(VOWELS.entry)}}))
    draft.rename(place)
    return place


def run_of(name: str, task_name: str, *flags) -> Path:
    """The directory of a run of 21 rows of differing length, three updates at an update size of 8."""
    place = place_of(name, task_name)
    task = ["--benchmark=own", f"--task_file={place / 'tasks.yaml'}"] if task_name == "vowels" else ["--benchmark=mini"]
    digest = hashlib.sha256(" ".join([name, task_name, *flags]).encode()).hexdigest()[:16]
    output_dir = PLACE / f"run-{digest}"
    fine_tune_t5.main(
        [
            *task, f"--dataset_name={task_name}", f"--model_name_or_path={place / 'model'}",
            "--max_source_length=64", "--max_target_length=16",
            "--logging_steps=1", "--disable_tqdm=True", "--use_cpu", "--seed=0", *flags, f"--output_dir={output_dir}",
        ]
    )  # fmt: skip
    return output_dir


def train_history(name: str, batch_size: int, accumulation: int, task_name: str = "entailment") -> dict:
    """Losses and gradient norms of the updates."""
    run = run_of(
        name, task_name, f"--train_file={place_of(name, task_name) / 'train.jsonl'}",
        f"--per_device_train_batch_size={batch_size}", f"--gradient_accumulation_steps={accumulation}",
        "--num_train_epochs=1", "--learning_rate=1e-2", "--optim=sgd", "--no_eval",
    )  # fmt: skip
    lines = [line for line in read_rows(run / "metrics.jsonl") if "train/loss" in line]
    return {key: [line[f"train/{key}"] for line in lines] for key in ("loss", "grad_norm")}


def evaluation(name: str, method: str = "generate", task_name: str = "entailment", batch_size: int = 4) -> dict:
    flags = [] if method == "classify" else [f"--eval_method={method}"]
    rows = f"--validation_file={place_of(name, task_name) / 'validation.jsonl'}"
    run = run_of(name, task_name, rows, "--eval_only", f"--per_device_eval_batch_size={batch_size}", *flags)
    lines = read_rows(run / "predictions" / f"{task_name}.validation.jsonl")
    loss = next(line["final/loss"] for line in read_rows(run / "metrics.jsonl") if "final/loss" in line)
    return {"predictions": [line["prediction"] for line in lines], "loss": loss, "rows": len(lines)}


# One model of each way to learn, for the laws over ranks.
LEARNERS = [("bart", "entailment"), ("gpt2", "entailment"), ("bert", "entailment"), ("bert", "similarity")]
LEARNERS += [("t5_encoder", "similarity"), ("t5_encoder", "vowels")]


def main(out):
    global PLACE
    PLACE = Path(out).parent
    report = {}
    for name, task_name in LEARNERS:
        report[f"{name} {task_name}"] = {
            "train": train_history(name, 2, 2, task_name),
            "evaluations": {
                method: evaluation(name, method, task_name)
                for method in (("generate", "score") if MODELS[name][0] in ("seq2seq", "causal") else ("classify",))
            },
        }
    if int(os.environ.get("RANK", 0)) == 0:
        with open(out, "w") as file:
            json.dump(report, file)


if __name__ == "__main__":
    main(sys.argv[1])
