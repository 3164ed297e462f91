"""What people use today, as one competent script: `datasets.map`, `DataCollatorForSeq2Seq`, `Seq2SeqTrainer`, `generate`.

    python -m benchmarks.stock fine_tune --model m --train train.jsonl.gz --validation validation.jsonl.gz --columns sentence1 sentence2
    python -m benchmarks.stock pre_train --model m --text text.txt.gz         # nanoT5's data path in a plain loop
    python -m benchmarks.stock corpus --model m --text text.txt.gz

The peer of `benchmarks.jobs`, which gives it the suite's texts, rates and batches. It uses nothing of the suite.
"""  # noqa: E501

import argparse
import itertools
import os
import tempfile

import datasets
import numpy as np
import torch
import transformers

from benchmarks.plain_span_corruption import plain_collate


def load(options):
    """The model and its fast tokenizer."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(options.model)
    return model, transformers.AutoTokenizer.from_pretrained(options.model)


def rows_of(path: str, tokenizer, options, limit: int | None):
    """Tokenized rows of a file, as examples of transformers make them."""
    rows = datasets.load_dataset("json", data_files=path, split="train")
    rows = rows.select(range(min(limit or len(rows), len(rows))))

    def tokenize(batch):
        texts = zip(*(batch[column] for column in options.columns), strict=True)
        named = [" ".join(f"{name}: {text}" for name, text in zip(options.columns, row)) for row in texts]
        found = tokenizer([f"{options.task} {text}" for text in named], max_length=512, truncation=True)
        found["labels"] = tokenizer(text_target=[options.labels[label] for label in batch["label"]]).input_ids
        return found

    return rows.map(tokenize, batched=True, remove_columns=rows.column_names)


def fine_tune(options) -> None:
    """Trains (`--epochs`, `--max_steps`) and evaluates by generation, as far as files are given; saves the model."""
    model, tokenizer = load(options)
    train = options.train and rows_of(options.train, tokenizer, options, options.max_train_samples)
    validation = options.validation and rows_of(options.validation, tokenizer, options, None)

    def accuracy(prediction):
        written, labels = (np.where(ids < 0, tokenizer.pad_token_id, ids) for ids in prediction)
        decoded = [tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (written, labels)]
        return {"accuracy": 100 * float(np.mean([a.strip() == b.strip() for a, b in zip(*decoded)]))}

    args = transformers.Seq2SeqTrainingArguments(
        output_dir=options.output_dir,
        num_train_epochs=options.epochs,
        max_steps=options.max_steps,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=options.eval_batch_size,
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant",
        train_sampling_strategy=options.sampling,
        eval_strategy="no",
        save_strategy="no",
        predict_with_generate=True,
        generation_max_length=16,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    trainer = transformers.Seq2SeqTrainer(
        model=model, args=args, train_dataset=train, eval_dataset=validation, compute_metrics=accuracy,
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, model=model), processing_class=tokenizer,
    )  # fmt: skip
    if train:
        trainer.train()
    if validation:
        print(trainer.evaluate())
    if train:
        trainer.save_model()


def blocks_of(path: str, tokenizer, length: int):
    """Documents one after the other, each with its end token, cut into blocks."""
    text = datasets.load_dataset("text", data_files=path, split="train")
    ids = text.map(lambda batch: {"input_ids": tokenizer(batch["text"]).input_ids}, batched=True, remove_columns="text")

    def cut(batch):
        joined = list(itertools.chain.from_iterable(batch["input_ids"]))
        whole = len(joined) // length * length
        return {"input_ids": [joined[i : i + length] for i in range(0, whole, length)]}

    return ids.map(cut, batched=True)


def pre_train(options) -> None:
    """Span corruption row by row in a DataLoader, AdamW, a plain loop that reads every loss."""
    torch.manual_seed(0)
    model, tokenizer = load(options)
    blocks, rng = blocks_of(options.text, tokenizer, options.length), np.random.default_rng(0)
    loader = torch.utils.data.DataLoader(
        blocks, batch_size=options.batch_size, shuffle=True, drop_last=True,
        collate_fn=lambda rows: plain_collate(rows, rng, start_id=model.config.decoder_start_token_id),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    model.train()
    for _, batch in zip(range(options.max_steps), itertools.chain.from_iterable(itertools.repeat(loader))):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    model.save_pretrained(options.output_dir)


def corpus(options) -> None:
    """Tokenized blocks on the disk."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    blocks_of(options.text, tokenizer, options.length).save_to_disk(options.output_dir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("fine_tune", "pre_train", "corpus"))
    parser.add_argument("--model", required=True)
    for name in ("train", "validation", "text", "task"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--columns", nargs="+", default=["sentence"])
    parser.add_argument("--labels", nargs="+", default=["negative", "positive"])
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--max_steps", type=int, default=-1)
    parser.add_argument("--max_train_samples", type=int)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--eval_batch_size", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--sampling", default="random")
    parser.add_argument("--output_dir", default=os.path.join(tempfile.gettempdir(), "stock"))
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    {"fine_tune": fine_tune, "pre_train": pre_train, "corpus": corpus}[options.job](options)


if __name__ == "__main__":
    main()
