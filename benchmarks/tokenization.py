"""How fast text becomes ids, against Hugging Face's T5 tokenizer.

    python -m benchmarks.tokenization

Both encode the same documents of about 3,000 characters each on one thread, into lists of ids; these are compared
first, document by document. C4: SentencePiece's encoder, as corpora and streams of less than 20 MB use it. C4b: the one
that numba compiles, with no word in its memory at the beginning of a turn (the peer keeps 10,000). C4f: rows of MNLI
(or the bundled task) through `Dataset.map`, as fine-tuning has it: texts made of columns, cut, with end-of-sequence, as
arrays of training; the peer is the loop of the examples for `Seq2SeqTrainer`.
"""

import gzip
import itertools
import json

from datasets import Dataset, disable_progress_bars

from benchmarks.harness import Goal, Work, run
from benchmarks.texts import SHARED, documents, t5_tokenizer
from t5suite.data.encodings import TextEncoding, bind_encoding, with_row_tokenizer
from t5suite.data.features import TokenArrays
from t5suite.data.sources import DataOptions, load_split
from t5suite.data.text import compiled_pieces
from t5suite.data.text.encoding import make_text_encoder
from t5suite.tasks.registry import Lengths, load_task


def tokenization(device: str, megabytes=2.0, engine="sentencepiece") -> Work:
    """C4."""
    tokenizer, texts = t5_tokenizer(), documents(megabytes)
    encoder = make_text_encoder(tokenizer, engine)

    def ours() -> list[list[int]]:
        encoder.forget()
        return encoder.encode(texts)

    contenders = {
        "ours": ours,
        "HF's T5Tokenizer": lambda: tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"],
    }
    found, theirs = (call() for call in contenders.values())
    different = [number for number, pair in enumerate(zip(found, theirs, strict=True)) if pair[0] != pair[1]]
    assert not different, f"{len(different)} of {len(texts)} documents have other ids, the first: {different[0]}"
    num_tokens = sum(map(len, found))
    return Work(
        f"tokenize {num_tokens / 1e3:.0f}k tokens ({encoder.engine})",
        contenders,
        {"HF's T5Tokenizer": Goal(0.12)},
        f"equal ids of {len(texts)} documents",
        figures={"tokens": num_tokens, "characters": sum(map(len, texts))},
    )


def tokenization_compiled(device: str) -> Work | None:
    """C4b."""
    if not compiled_pieces.installed():
        print("C4b  numba is not installed")
        return None
    return tokenization(device, engine="numba")


def rows(device: str, num_rows=4000) -> Work | None:
    """C4f."""
    if not compiled_pieces.installed():
        print("C4f  numba is not installed")
        return None
    disable_progress_bars()
    tokenizer, task, columns = t5_tokenizer(), *some_rows(num_rows)
    texts = Dataset.from_dict(columns)
    encoding = with_row_tokenizer(TextEncoding(tokenizer, Lengths(512, 16)), "numba")
    prefixes, names = task.entry["prefix"], task.entry["text_column_name"]
    calls = itertools.count()  # a fingerprint for each call: nothing is found in a cache

    def plain(batch: dict) -> dict:
        each = zip(*(batch[name] for name in names), strict=True)
        inputs = [" ".join(map("".join, zip(prefixes, parts, strict=True))) for parts in each]
        targets = [task.label_words[label] for label in batch["label"]]
        found = tokenizer(inputs, max_length=512, truncation=True)
        found["labels"] = tokenizer(text_target=targets, max_length=16, truncation=True)["input_ids"]
        return found

    def mapped(function) -> Dataset:
        named = {"remove_columns": texts.column_names, "new_fingerprint": f"rows-{next(calls)}"}
        return texts.map(function, batched=True, **named)

    contenders = {
        "ours": lambda: TokenArrays.from_dataset(mapped(bind_encoding(encoding, task, "train"))),
        "the tokenizer in Dataset.map": lambda: mapped(plain),
    }
    ours, theirs = (call() for call in contenders.values())
    for name in ("input_ids", "labels"):
        same = [row.tolist() for row in getattr(ours, name)] == [list(row) for row in theirs[name]]
        assert same, f"other {name}"
    return Work(
        f"tokenize {num_rows} rows of {task.name} for fine-tuning",
        contenders,
        {"the tokenizer in Dataset.map": Goal(0.25)},
        f"equal ids of {num_rows} rows, inputs and targets",
        figures={"rows": num_rows, "tokens": len(ours.input_ids.values)},
    )


def some_rows(count: int) -> tuple:
    """`(task, {column: values})`: real rows of MNLI where they are at hand, else the bundled task's of that form."""
    file = SHARED / "glue" / "mnli" / "train.9999.jsonl.gz"
    task = load_task("glue", "mnli") if file.is_file() else load_task("mini", "entailment")
    if file.is_file():
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            found = [json.loads(line) for line in itertools.islice(lines, count)]
    else:
        found = list(itertools.islice(itertools.cycle(load_split(task, "train", DataOptions()).rows), count))
    names = [*task.entry["text_column_name"], "label"]
    return task, {name: [row[name] for row in found] for name in names}


WORKS = {"C4": tokenization, "C4b": tokenization_compiled, "C4f": rows}

if __name__ == "__main__":
    run(__doc__, WORKS)
