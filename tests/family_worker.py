"""Tiny models of every family, trained and evaluated; run in this process, or by torchrun on two ranks.

torchrun --nproc_per_node 2 tests/family_worker.py out.json
"""

import functools
import json
import os
import sys
import tempfile

import torch
from law_worker import trainer_of
from transformers import AutoConfig, set_seed

from t5suite import Task, load_task
from t5suite.data.batches.training_data import tokenize_split
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.models.loading import encoding_for, load_model
from t5suite.models.vocabulary import ensure_padding
from t5suite.tasks.registry import Lengths
from t5suite.testing import tiny_tokenizer
from t5suite.training.eval_sets import make_eval_set, method_for
from t5suite.training.fine_tuning import make_collator, make_evaluator
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments
from t5suite.training.losses import SquaredLoss
from t5suite.training.trainer import SuiteTrainer

LENGTHS = Lengths(64, 16)
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


def tokenizer_and_model(name: str, task, seed: int = 0):
    """The bundled tokenizer, and random weights large enough that outputs differ from row to row."""
    tokenizer = tiny_tokenizer()
    ensure_padding(tokenizer)
    set_seed(seed)
    model = load_model(tokenizer=tokenizer, config_name=config_folder(name), tasks=[task])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return tokenizer, model.eval()


# Every word of a sentence of the bundled rows has a label: whether it begins with a vowel.
VOWELS = Task("mini", "sentiment", {
    "prefix": "", "formatter": "token_labels", "text_column_name": "sentence", "label_column_name": "vowels",
    "labels": ["no", "yes"], "metric_names": ["token_accuracy"], "metric_to_optimize": "token_accuracy",
})  # fmt: skip


def task_of(name: str) -> Task:
    return VOWELS if name == "vowels" else load_task("mini", name)


def rows_of(task, count: int):
    rows = load_split(load_task("mini", task.name), "validation", "validation", DataOptions()).rows.select(range(count))
    vowels = lambda row: {"vowels": [int(word[0].lower() in "aeiou") for word in row["sentence"].split()]}
    return rows.map(vowels) if task is VOWELS else rows


def make_trainer(name: str, batch_size: int, accumulation: int, task_name: str = "entailment") -> SuiteTrainer:
    """A trainer over 21 rows of differing length, three updates an epoch at an update size of 8."""
    task = task_of(task_name)
    tokenizer, model = tokenizer_and_model(name, task)
    encoding = encoding_for(model, tokenizer, LENGTHS)
    features = tokenize_split(rows_of(task, TRAINING_ROWS), task, encoding, "train")
    args = SuiteTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation,
        num_train_epochs=1, learning_rate=1e-2, optim="sgd", logging_steps=1, eval_strategy="no", save_strategy="no",
        disable_tqdm=True, use_cpu=True, seed=0,
    )  # fmt: skip
    loss = SquaredLoss() if model.config.problem_type == "regression" else None
    return trainer_of(model, args, features, tokenizer, loss)


def train_history(name: str, batch_size: int, accumulation: int, task_name: str = "entailment") -> dict:
    trainer = make_trainer(name, batch_size, accumulation, task_name)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {key: [line[key] for line in lines] for key in ("loss", "grad_norm")}


def evaluation(name: str, method: str = "generate", task_name: str = "entailment", batch_size: int = 4) -> dict:
    trainer = make_trainer(name, 8, 1, task_name)
    tokenizer, task = trainer.processing_class, task_of(task_name)
    encoding = encoding_for(trainer.model, tokenizer, LENGTHS)
    evaluator = make_evaluator(make_collator(trainer.model), tokenizer, trainer.args, trainer.accelerator, False)
    evaluator.batch_size = batch_size
    how = method_for(encoding, method, task, True)
    rows = rows_of(task, EVALUATED_ROWS)
    eval_set = make_eval_set(task_name, task, "validation", rows, encoding, how)
    result = evaluator.evaluate(trainer.model, [eval_set]).results[task_name]
    return {"predictions": result.predictions, "loss": result.loss, "rows": result.num_rows}


# One model of each way to learn, for the laws over ranks.
LEARNERS = [("bart", "entailment"), ("gpt2", "entailment"), ("bert", "entailment"), ("bert", "similarity")]
LEARNERS += [("t5_encoder", "similarity"), ("t5_encoder", "vowels")]


def main(out):
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
