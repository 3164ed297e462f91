"""Tiny random models of each family in a folder of their own, rows for them, and what `t5suite predict` answers."""

import functools
import tempfile
from pathlib import Path

import torch

from t5suite import load_task
from t5suite.testing import read_rows, run_cli, save_model, tiny_model, tiny_rows, write_rows

TINY = {
    "seq2seq": (None, "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"),
    "causal": ("gpt2", "n_embd=32,n_layer=2,n_head=2,n_positions=128"),
    "masked": ("bert", "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48"),
    "encoder": (None, "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"),
}
SOURCE_LENGTH, ANSWER_LENGTH = 64, 6


def random_model(family: str = "seq2seq", *tasks: str):
    """A model in memory whose tokens are less alike than at the start of training."""
    config_name, overrides = TINY[family]
    loaded = [load_task("mini", name) for name in tasks or ("sentiment",)]
    model = tiny_model(config_name, overrides, family=family, tasks=loaded, scale=1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    return model


def saved(model, *tasks: str) -> str:
    """The folder of a model that says it was trained on these tasks of `mini`."""
    loaded = [load_task("mini", name) for name in tasks]
    folder = tempfile.mkdtemp()
    save_model(folder, model, tasks=loaded, source_length=SOURCE_LENGTH, target_length=ANSWER_LENGTH)
    return folder


@functools.cache
def model_folder(family: str = "seq2seq", *tasks: str) -> str:
    """A saved model of the bundled tokenizer that says it was trained on these tasks of `mini`."""
    tasks = tasks or ("sentiment",)
    return saved(random_model(family, *tasks), *tasks)


@functools.cache
def mini_rows(name: str = "sentiment", count: int = 22) -> tuple[dict, ...]:
    return tuple(tiny_rows(name, count=count))


def rows_file(name: str = "sentiment", count: int = 22) -> str:
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    write_rows(path, mini_rows(name, count))
    return str(path)


def output_path() -> Path:
    return Path(tempfile.mkdtemp()) / "answers.jsonl"


def predict_words(*flags: str, output=None, model=None, rows=None, family: str = "seq2seq") -> list[str]:
    """The command line of `t5suite`: a model's folder, files, and words of flags.

    >>> predict_words("--num_beams 3 --scores", rows="rows.jsonl", output="answers.jsonl")
    """
    words = ["predict", "--model_name_or_path", str(model or model_folder(family)), "--use_cpu"]
    words += ["--input", str(rows)] if rows is not None else []
    words += ["--output", str(output)] if output is not None else []
    return [*words, *(word for flag in flags for word in flag.split())]


def answers(*flags: str, rows=None, **settings) -> list[dict]:
    """The lines that the command writes; default: for 22 rows of `mini/sentiment`."""
    path = output_path()
    run_cli(*predict_words(*flags, rows=rows_file() if rows is None else rows, output=path, **settings))
    return read_rows(path)
