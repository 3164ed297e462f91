"""What the bundled benchmark `mini` is written from: three tasks and a text, from a seed.

    >>> rows("sentiment")["train"][0]
    {'sentence': 'Other customers said that the size was very dreadful, but I disagree.', 'label': 1, 'idx': 0}

    python -m tools.mini_benchmark.grammar --check     do the bundled files equal what the grammar writes?
    python -m tools.mini_benchmark.grammar --write     write them anew

The rows are what customers write to a shop. What a row means follows from how its words are put together, more than
from which words it has:

    sentiment    the mood of a message: which clause of two is the main one, what is negated, who is agreed with
    entailment   whether one message says what another says: synonyms, antonyms, negation
    similarity   how alike two messages are: how many of five things (who, wish, colour, thing, fault) agree, 0 to 5

No template of a message is in two splits (`templates`).

The text, for pre-training, is `documents`'s.
"""

import argparse
import gzip
import json
import random
import sys
from pathlib import Path

from tools.mini_benchmark import FOLDER
from tools.mini_benchmark.documents import NUM_CHARACTERS, documents
from tools.mini_benchmark.drawing import shuffled
from tools.mini_benchmark.entailment_rows import CONTRADICTION, ENTAILMENT, NEUTRAL, entailment
from tools.mini_benchmark.sentiment_rows import sentiment
from tools.mini_benchmark.similarity_rows import similarity
from tools.mini_benchmark.templates import split_of

SEED = 2026
NUM_ROWS = {"train": 8000, "validation": 400, "test": 200}
UNLABELLED = {"sentiment": -1, "entailment": -1, "similarity": -1.0}

# task: the function that writes a row, and the values of its second argument, all equally frequent
TASKS = {
    "sentiment": (sentiment, [0, 1]),
    "entailment": (entailment, [ENTAILMENT, NEUTRAL, CONTRADICTION]),
    "similarity": (similarity, [0, 1, 2, 3, 4, 5]),
}


def rows(task) -> dict:
    """rows("sentiment") -> {'train': [{'sentence': ..., 'label': 1, 'idx': 0}, ...], 'validation': ..., 'test': ...}"""
    write, classes = TASKS[task]
    rng = random.Random(f"{SEED} {task}")
    seen, splits = set(), {}
    for split, num_rows in NUM_ROWS.items():
        drawn = [fresh(rng, write, classes[i % len(classes)], split, seen) for i in range(num_rows)]
        splits[split] = [row | {"idx": i} for i, row in enumerate(shuffled(rng, drawn))]
    for row in splits["test"]:
        row["label"] = UNLABELLED[task]
    return splits


def fresh(rng, write, label, split, seen: set) -> dict:
    """fresh(rng, sentiment, 1, "train", seen) -> a row of this split's templates that is new; adds it to `seen`"""
    while True:
        row = write(rng, label)
        messages = tuple(value for value in row.values() if isinstance(value, str))
        if messages not in seen and {split_of(message) for message in messages} == {split}:
            seen.add(messages)
            return row if "label" in row else row | {"label": label}


def contents() -> dict:
    """contents() -> {'sentiment/train.jsonl.gz': '{"sentence": ...}\\n...', ..., 'text/train.txt.gz': ...}"""
    files = {}
    for task in TASKS:
        for split, members in rows(task).items():
            files[f"{task}/{split}.jsonl.gz"] = "".join(json.dumps(row) + "\n" for row in members)
    for split in NUM_CHARACTERS:
        files[f"text/{split}.txt.gz"] = "".join(document + "\n" for document in documents(split))
    return files


def write_files(folder: Path):
    """Writes every file of `contents()` under `folder`; the same bytes each time (gzip's clock and name left out)."""
    for name, text in contents().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


def stale_files(folder: Path) -> list:
    """stale_files(folder) -> ['sentiment/test.jsonl.gz']: the files that are missing or hold something else"""
    return [name for name, text in contents().items() if read_text(folder / name) != text]


def read_text(path: Path):
    """The text of a .gz file, or None where there is no such file."""
    return gzip.decompress(path.read_bytes()).decode() if path.exists() else None


def main(argv=None) -> int:
    """`--check` exits with 1 where a bundled file differs from the grammar; `--write` mends that."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files lie")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare the files with the grammar")
    action.add_argument("--write", action="store_true", help="write the files")
    options = parser.parse_args(argv)
    if options.write:
        write_files(options.folder)
    stale = stale_files(options.folder)
    for name in stale:
        print(f"{name}: not what the grammar writes; run with --write", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
