"""How fast text becomes batches for span corruption: read on the fly (C2), and from a corpus that was tokenized (C3).

    python -m benchmarks.text_batches

The peers are what examples for pre-training do today with `datasets` and a `DataLoader`: a stream of documents that is
tokenized by a map, joined and cut into blocks of 568 tokens by another map, and shuffled in a buffer; or those blocks
from an Arrow file. Their collator works row by row (`plain_span_corruption`). Ours are the stream and the memory map of
`pre_train_t5.py`, with the loaders that it makes. All run in one process, on one thread, without workers.
"""

import itertools
import json
import shutil
import sys
import tempfile
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
from datasets import Dataset, disable_progress_bars, load_dataset
from torch.utils.data import DataLoader

from benchmarks.harness import Goal, Work, run
from benchmarks.plain_span_corruption import EOS, plain_collate
from benchmarks.texts import documents, t5_tokenizer
from t5suite.data.batches.pre_training_collator import T5DataCollator
from t5suite.data.batches.samplers import GlobalBatchSampler
from t5suite.data.corpora.blocks import BlockDataset, BlockLayout
from t5suite.data.corpora.building import build_corpus
from t5suite.data.corpora.stream_loader import StreamCorpus, StreamLoader, StreamSettings
from t5suite.data.corpora.stream_sources import open_source, stream_encoder
from t5suite.data.objectives import sentinel_ids
from t5suite.training.pre_training import epoch_blocks
from t5suite.training.trainer import EpochDataLoader

BATCH_SIZE, LENGTH, BUFFER = 128, 568, 256
disable_progress_bars()


class Corpus:
    """Documents in a file, and what both sides need beside them; the folder goes with it."""

    def __init__(self, megabytes: float):
        self.folder = Path(tempfile.mkdtemp())
        self.end = weakref.finalize(self, shutil.rmtree, self.folder)
        self.tokenizer, self.texts = t5_tokenizer(), documents(megabytes)
        self.file = self.folder / "documents.jsonl"
        self.file.write_text("".join(json.dumps({"text": text}) + "\n" for text in self.texts), encoding="utf-8")
        self.rng = np.random.default_rng(0)
        sentinels = sentinel_ids(self.tokenizer)
        self.collator = T5DataCollator(sentinel_ids=sentinels, eos_token_id=EOS)

    def tokenized(self, texts):
        """As the peers do it."""
        return self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

    def plain_collator(self, examples):
        """Row by row."""
        return plain_collate(examples, self.rng)


def joined_and_cut(rows: dict) -> dict:
    """Lists of ids -> blocks; what is left of a batch of rows is dropped."""
    ids = list(itertools.chain.from_iterable(rows["input_ids"]))
    return {"input_ids": [ids[start : start + LENGTH] for start in range(0, len(ids) - LENGTH + 1, LENGTH)]}


def last_of(loader, batches: int) -> dict:
    """Takes so many batches, each in place of that before it, as training does."""
    number = 0
    for number, batch in enumerate(itertools.islice(loader, batches), start=1):  # noqa: B007
        pass
    assert number == batches, f"{number} batches of {batches}"
    return batch


def streaming(device: str, megabytes=6.0, batches=14) -> Work:
    """C2. Both go through the same documents, in an order of their own, and begin anew with every call."""
    corpus = Corpus(megabytes)
    source = open_source([str(corpus.file)])
    encode = stream_encoder(corpus.tokenizer, [source])
    settings = StreamSettings((LENGTH,), num_virtual_streams=8, buffer_size=BUFFER)

    def ours():
        loader = StreamLoader([StreamCorpus(source)], encode, settings, corpus.collator, BATCH_SIZE)
        last = last_of(loader, batches)
        loader.close()
        return last

    def plain():
        rows = load_dataset("json", data_files=str(corpus.file), split="train", streaming=True)
        rows = rows.map(lambda part: {"input_ids": corpus.tokenized(part["text"])}, batched=True, remove_columns="text")
        rows = rows.map(joined_and_cut, batched=True).shuffle(seed=0, buffer_size=BUFFER)
        loader = DataLoader(rows, batch_size=BATCH_SIZE, collate_fn=corpus.plain_collator)
        return last_of(loader, batches)

    read = sum(len(ids) for ids in encode(corpus.texts))
    assert read > batches * BATCH_SIZE * LENGTH, f"{read} tokens do not last"
    same = encode(corpus.texts[:200]) == corpus.tokenized(corpus.texts[:200])
    assert same, "the engines give other ids"
    contenders = {"ours": ours, "HF stream, row by row": plain}
    return _work("text file -> batch", contenders, 0.17, batches, corpus)


def from_corpus(device: str, megabytes=6.0, batches=16) -> Work:
    """C3. The Arrow file holds the very blocks of the memory map."""
    corpus = Corpus(megabytes)
    store = build_corpus([str(corpus.file)], corpus.folder / "corpus", corpus.tokenizer, validation_fraction=0.0)
    tokens = store.split("train")
    layout = BlockLayout(len(tokens), (LENGTH,))
    dataset = BlockDataset(tokens, layout, 0, sys.maxsize)
    assert layout.num_blocks >= batches * BATCH_SIZE, f"{layout.num_blocks} blocks do not last"
    blocks_NL = np.asarray(tokens)[: layout.num_blocks * LENGTH].reshape(-1, LENGTH)
    Dataset.from_dict({"input_ids": blocks_NL.astype(np.int32)}).save_to_disk(str(corpus.folder / "arrow"))
    arrow = Dataset.load_from_disk(str(corpus.folder / "arrow")).with_format("numpy")

    def ours():
        sampler = GlobalBatchSampler(epoch_blocks(layout.num_blocks), BATCH_SIZE, 1)
        return last_of(EpochDataLoader(dataset, batch_sampler=sampler, collate_fn=corpus.collator), batches)

    def plain():
        loader = DataLoader(arrow, batch_size=BATCH_SIZE, shuffle=True, collate_fn=corpus.plain_collator)
        return last_of(loader, batches)

    assert Counter(row.tobytes() for row in blocks_NL) == Counter(
        dataset[j]["input_ids"].tobytes() for j in range(layout.num_blocks)
    )
    contenders = {"ours": ours, "Arrow, DataLoader, row by row": plain}
    return _work("tokens -> batch", contenders, 0.04, batches, corpus)


def _work(name: str, contenders: dict, goal: float, batches: int, corpus: Corpus) -> Work:
    shapes = [{name: tensor.shape for name, tensor in call().items()} for call in contenders.values()]
    assert shapes[0] == shapes[1], shapes
    (peer,) = [contender for contender in contenders if contender != "ours"]
    return Work(
        f"{name}, {BATCH_SIZE} x {LENGTH}",
        contenders,
        {peer: Goal(goal)},
        "equal ids, equal blocks, batches of equal shapes",
        calls=batches,
        figures={"tokens": BATCH_SIZE * LENGTH, "documents": len(corpus.texts), "batches": batches},
    )


WORKS = {"C2": streaming, "C3": from_corpus}

if __name__ == "__main__":
    run(__doc__, WORKS)
