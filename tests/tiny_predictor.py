"""Tiny random models of each family in a folder of their own, as `t5suite predict` takes them."""

import functools
import tempfile
from pathlib import Path

import torch
from support import command_flags

from t5suite import load_task
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.inference.running import load_predictor
from t5suite.models.loading import load_model
from t5suite.tasks.registry import Lengths
from t5suite.tasks.task_card import make_task_card, write_task_card
from t5suite.testing import tiny_tokenizer, write_rows

LENGTHS = Lengths(64, 16)
TINY = {
    "seq2seq": (None, "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"),
    "causal": ("gpt2", "n_embd=32,n_layer=2,n_head=2,n_positions=128"),
    "masked": ("bert", "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48"),
    "encoder": (None, "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"),
}


@functools.cache
def model_folder(family: str = "seq2seq", *tasks: str) -> str:
    """A saved model of the bundled tokenizer that says it was trained on these tasks of `mini`."""
    torch.manual_seed(0)
    config_name, overrides = TINY[family]
    tokenizer = tiny_tokenizer()
    loaded = [load_task("mini", name) for name in tasks or ("sentiment",)]
    model = load_model(
        None, tokenizer=tokenizer, config_name=config_name, config_overrides=overrides, family=family, tasks=loaded
    )
    with torch.no_grad():  # less alike tokens than at the start of training
        for parameter in model.parameters():
            parameter.mul_(3.0) if parameter.ndim > 1 else None
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_task_card(folder, make_task_card(loaded, LENGTHS, {task.name: 6 for task in loaded}, family))
    return folder


@functools.cache
def predictor(family: str = "seq2seq"):
    source = command_flags("predict", "use_cpu", model_name_or_path=model_folder(family))
    return load_predictor(source, lengths=LENGTHS, batch_size=4, tasks=(load_task("mini", "sentiment"),))


@functools.cache
def mini_rows(name: str = "sentiment", count: int = 22) -> tuple[dict, ...]:
    rows = load_split(load_task("mini", name), "validation", "validation", DataOptions()).rows
    return tuple(rows.select(range(count)).to_list())


def rows_file(name: str = "sentiment", count: int = 22) -> str:
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    write_rows(path, mini_rows(name, count))
    return str(path)
