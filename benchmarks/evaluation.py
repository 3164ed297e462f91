"""How fast a fine-tuned T5 is evaluated, against `Seq2SeqTrainer` as its examples use it.

    python -m benchmarks.evaluation
    python -m benchmarks.evaluation --device cuda --only H5

C6: 512 rows of MNLI's lengths and labels; a T5 of 4 + 4 layers of width 128 and 32,128 pieces, trained for a moment on
such rows; one thread. The peers are `Seq2SeqTrainer.evaluate` with `predict_with_generate`, its own collator and order
of rows, at its default batch of 8 and at 64. Ours is `Evaluator` by `generate`, which writes the same texts, and, in a
row of its own (C6s), by `score`. H5: as many rows as MNLI's validation split has, a T5 of base size, on a GPU in
bfloat16; on a CPU it is tried with little. The peers are the trainer as it comes, and in bfloat16 at 128 rows.

Before anything is timed it is checked that all find the same accuracy, and a good one. Rows are drawn, not read; their
lengths are log-normal, with MNLI's mean (50 pieces) and its share of padding in unsorted batches.
"""

import copy
import functools
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

from benchmarks.harness import Goal, Work, run
from t5suite.cli import parse_command_line
from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.data.batches.encodings import TextEncoding
from t5suite.export.exporting import export_model
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.exported import EncodingSettings
from t5suite.inference.model_loading import load_predictor
from t5suite.tasks.registry import load_task
from t5suite.tasks.tokenization import Lengths
from t5suite.training.eval_sets import make_eval_set
from t5suite.training.evaluation import Evaluator, EvaluatorSettings, batch_tokens
from t5suite.training.process_setup import leave_out_cudnn_attention

ROWS, PIECES = 512, 32128
LENGTHS = Lengths(128, 16)
GOOD = 95.0  # points: who guesses has 33
WIDTH = dict(d_model=128, d_kv=32, d_ff=512, num_layers=4, num_heads=4)
BASE = dict(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12)
# Rows, sizes and updates of H5: MNLI's validation split; a trial.
H5 = {"cuda": (9815, BASE, 400, 3e-4), "cpu": (48, WIDTH, 40, 1e-3)}
# T5's own pieces of the three labels.
LABEL_PIECES = ["▁en", "tail", "ment", "▁neutral", "▁contradiction"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """T5's number of pieces; words are w0, w1, ..., labels have as many pieces as T5's."""
    words = ["▁mnli", "▁premise:", "▁hypothesis:", *LABEL_PIECES]
    words += [f"▁w{i}" for i in range(PIECES - len(words) - 3)]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((word, -10.0) for word in words)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )


def make_rows(number: int, seed: int, premise: float = 3.3, hypothesis: float = 2.6) -> datasets.Dataset:
    """Rows whose hypotheses give the label away: a third of their words is one of the ten that only it has.

    Args:
      premise, hypothesis: the logarithms of their median lengths, in words.
    """
    rng = np.random.default_rng(seed)
    sizes_N2 = np.exp(rng.normal([premise, hypothesis], [0.55, 0.4], (number, 2))).astype(int).clip(2, [90, 30])
    labels_N = rng.integers(0, 3, number)

    def words(size: int, label: int | None = None) -> str:
        drawn = rng.integers(30, 30_000, size)
        if label is not None:
            drawn[::3] = 10 * label + rng.integers(0, 10, len(drawn[::3]))
        return " ".join(f"w{word}" for word in drawn)

    return datasets.Dataset.from_dict(
        {
            "premise": [words(size) for size, _ in sizes_N2],
            "hypothesis": [words(size, label) for label, (_, size) in zip(labels_N, sizes_N2, strict=True)],
            "label": labels_N.tolist(),
            "idx": list(range(number)),
        }
    )


def train_a_moment(model, features, collator, steps: int, rate: float, batch_size: int = 32) -> None:
    """AdamW on short rows, embeddings left alone, until the label is found."""
    model.shared.weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=0.0)
    rng = np.random.default_rng(0)
    model.train()
    for _ in range(steps):
        batch = collator([features[int(i)] for i in rng.integers(0, len(features), batch_size)])
        loss = model(**{name: values.to(model.device) for name, values in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


class Trained(NamedTuple):
    """A model that answers well, and rows that it has not seen."""

    model: T5ForConditionalGeneration
    tokenizer: PreTrainedTokenizerFast
    rows: datasets.Dataset


@functools.cache
def trained(device: str) -> Trained:
    """What C6 evaluates."""
    return make_trained(device, ROWS, WIDTH, 40, 1e-3)


def make_trained(device: str, num_rows: int, sizes: dict, steps: int, rate: float) -> Trained:
    """A new model of these sizes, after so many updates, and so many rows."""
    torch.manual_seed(0)
    tokenizer, task = make_tokenizer(), load_task("glue", "mnli")
    config = T5Config(vocab_size=PIECES, **sizes, dropout_rate=0.0, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).to(device)
    short = make_eval_set("train", task, "validation", make_rows(1024, 1, 1.0, 1.8), TextEncoding(tokenizer, LENGTHS))
    train_a_moment(model, short.features, Seq2SeqCollator(0, 0), steps, rate)
    return Trained(model, tokenizer, make_rows(num_rows, 0))


def ours(device: str, of: Trained, method: str, loss: bool = False, reference: frozenset = frozenset()):
    """Evaluates with our evaluator, without the fast paths in `reference`; returns the accuracy."""
    model, tokenizer, rows = of
    eval_set = make_eval_set(
        "mnli", load_task("glue", "mnli"), "validation", rows, TextEncoding(tokenizer, LENGTHS), method
    )
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision="no" if device == "cpu" else "bf16")
    settings = EvaluatorSettings(loss=loss, batch_tokens=batch_tokens(accelerator.device), reference=reference)
    collator = Seq2SeqCollator(0, 0, 1 if device == "cpu" else 8)
    evaluator = Evaluator(collator, tokenizer, settings, 64, accelerator)
    return lambda: evaluator.evaluate(model, [eval_set]).results["mnli"].metrics["accuracy"]


def seq2seq_trainer(device: str, of: Trained, batch_size: int, **settings):
    """Evaluates with the library's trainer; returns the accuracy."""
    model, tokenizer, rows = of
    task = load_task("glue", "mnli")
    texts = [task.examples(row, "validation")[0] for row in rows.to_list()]
    encoded = tokenizer([text.inputs for text in texts], text_target=[text.targets for text in texts])
    data = datasets.Dataset.from_dict({name: encoded[name] for name in ("input_ids", "attention_mask", "labels")})

    def accuracy(found):
        labels = tokenizer.batch_decode(np.where(found.label_ids < 0, 0, found.label_ids), skip_special_tokens=True)
        written = np.where(found.predictions < 0, 0, found.predictions)
        written = tokenizer.batch_decode(written, skip_special_tokens=True)
        return {"accuracy": 100 * np.mean([one == other for one, other in zip(written, labels, strict=True)])}

    arguments = Seq2SeqTrainingArguments(
        tempfile.mkdtemp(), per_device_eval_batch_size=batch_size, predict_with_generate=True, disable_tqdm=True,
        report_to="none", use_cpu=device == "cpu", **settings,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(
        model, arguments, DataCollatorForSeq2Seq(tokenizer, model), eval_dataset=data, compute_metrics=accuracy,
        processing_class=tokenizer,
    )  # fmt: skip
    trainer.log = lambda *_, **__: None
    return lambda: trainer.evaluate()["eval_accuracy"]


def evaluation(device: str) -> Work:
    """C6: labels as `generate` writes them."""
    of = trained(device)
    contenders = {
        "ours": ours(device, of, "generate"),
        "Seq2SeqTrainer, 8 rows": seq2seq_trainer(device, of, 8),
        "Seq2SeqTrainer, 64 rows": seq2seq_trainer(device, of, 64),
    }
    found = accuracies({**contenders, "ours, with the loss": ours(device, of, "generate", True)})
    goals = {"Seq2SeqTrainer, 8 rows": Goal(0.33, 0.36), "Seq2SeqTrainer, 64 rows": Goal(0.21, 0.24)}
    return Work(f"evaluate {ROWS} rows", contenders, goals, f"equal accuracy, {found['ours']:.1f}", figures=found)


def scoring(device: str) -> Work:
    """C6s: the likeliest label."""
    of, peer = trained(device), "Seq2SeqTrainer, 64 rows"
    contenders = {"ours": ours(device, of, "score"), peer: seq2seq_trainer(device, of, 64)}
    found = accuracies({**contenders, "ours, with the loss": ours(device, of, "score", True)})
    checked = f"equal accuracy, {found['ours']:.1f}"
    return Work(f"score {ROWS} rows' labels", contenders, {peer: Goal(0.21, 0.24)}, checked, figures=found)


def whole_split(device: str) -> Work:
    """H5."""
    num_rows, sizes, steps, rate = H5[device]
    leave_out_cudnn_attention()
    of = make_trained(device, num_rows, sizes, steps, rate)
    tuned = of._replace(model=copy.deepcopy(of.model))
    contenders = {"ours": ours(device, of, "generate"), "Seq2SeqTrainer, 8 rows": seq2seq_trainer(device, of, 8)}
    goals = {}
    if device == "cuda":
        contenders["Seq2SeqTrainer, 128 rows, bf16"] = seq2seq_trainer(device, tuned, 128, bf16_full_eval=True)
        contenders["1 s"] = lambda: time.sleep(1)  # on the wall, where a GPU is told
        goals = {"Seq2SeqTrainer, 8 rows": Goal(0.03), "Seq2SeqTrainer, 128 rows, bf16": Goal(0.1), "1 s": Goal(1.0)}
    answering = {name: call for name, call in contenders.items() if name != "1 s"}
    # bfloat16 may turn an answer or two
    found = accuracies({**answering, "ours, by score": ours(device, of, "score")}, 0 if device == "cpu" else 0.5)
    checked = f"equal accuracy, {found['ours']:.1f}"
    return Work(f"evaluate {num_rows} rows, width {sizes['d_model']}", contenders, goals, checked, figures=found)


def exported(device: str) -> Work:
    """C7: greedy answers of files that `t5suite export` wrote; ours are CTranslate2's."""
    of, place = trained(device), Path(tempfile.mkdtemp())
    for part in (of.model, of.tokenizer):
        part.save_pretrained(place / "torch")
    texts = [load_task("glue", "mnli").examples(row)[0].inputs for row in of.rows]
    kinds = {"torch": None, "ours": "ctranslate2", "ONNX files": "onnx", "ours, int8": "ctranslate2 --quantize int8"}
    predict = ["predict", *(["--use_cpu"] if device == "cpu" else []), "--model_name_or_path"]
    contenders, flags = {}, ["export", "--model_name_or_path", str(place / "torch"), "--output_dir"]
    for name, kind in kinds.items():
        if kind:
            export_model(parse_command_line([*flags, str(place / name), "--format", *kind.split()]))
        predictor = load_predictor(
            parse_command_line([*predict, str(place / name)]), EncodingSettings(LENGTHS), batch_size=64
        )
        contenders[name] = functools.partial(predictor.answers, texts, DecodingSettings(), 8)
    found = {name: [answer.text for (answer,) in call()] for name, call in contenders.items()}
    assert found["torch"] == found["ours"] == found["ONNX files"], "answers differ"
    equal = np.mean([a == b for a, b in zip(found["ours"], found["ours, int8"], strict=True)])
    return Work(f"write {ROWS} rows' answers", contenders, {}, f"equal answers; of int8's {equal:.1%} are")


def accuracies(contenders: dict, apart: float = 1e-6) -> dict[str, float]:
    """What all find, points; it must be good, and equal to so many points."""
    found = {name: float(call()) for name, call in contenders.items()}
    assert np.ptp(list(found.values())) <= apart and min(found.values()) > GOOD, found
    return found


WORKS = {"C6": evaluation, "C6s": scoring, "C7": exported, "H5": whole_split}

if __name__ == "__main__":
    run(__doc__, WORKS)
