"""Texts to build corpora of, `t5suite corpus build` as a function, and its files as they stand on disk."""

import contextlib
import gzip
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from support import folder
from transformers import ByT5Tokenizer

from t5suite.testing import bundled_model, run_cli

PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
SPECIAL_BYTE_IDS = 3  # ids of ByT5 that stand before those of the bytes


def write_packed(name, content: bytes, where=None) -> Path:
    """A file with this content, packed as its name says."""
    path = (where or folder()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACKED[path.suffix if path.suffix in PACKED else ""](content))
    return path


def write_lines(lines, name="a.txt", where=None) -> Path:
    return write_packed(name, "\n".join(lines).encode(), where)


def parquet(texts, column="text", row_group_size=2) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(len(texts)), column: texts}), sink, row_group_size=row_group_size)
    return sink.getvalue().to_pybytes()


def json_lines(texts, column="text") -> bytes:
    return "".join(json.dumps({column: text}) + "\n" for text in texts).encode()


def byte_tokenizer(where=None) -> str:
    """The folder of a tokenizer that keeps every byte of a text."""
    path = where or folder() / "bytes"
    ByT5Tokenizer().save_pretrained(path)
    return str(path)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document is held out: by BLAKE2b of its text without white space around it, little-endian."""
    return document_hash(text) < fraction * 2**64


def document_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.strip().encode(), digest_size=8).digest(), "little")


def files_of(directory) -> dict:
    """Every file's bytes; of the manifest, all but how it was built."""
    contents = {}
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file() and path.name not in (".lock", ".checked.json"):
            contents[str(path.relative_to(directory))] = path.read_bytes()
    manifest = json.loads(contents["corpus.json"])
    manifest.pop("build")
    return {**contents, "corpus.json": manifest}


class Corpus:
    """A built corpus: its manifest, and the tokens of its shards one after the other."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.manifest = json.loads((self.directory / "corpus.json").read_text())
        self.shards = [self.directory / shard["name"] for shard in self.manifest["shards"]]

    def tokens(self, split: str) -> list[int]:
        return [token for document in self.documents(split) for token in document]

    def documents(self, split: str) -> list[list[int]]:
        return self.parts(split, "documents")

    def parts(self, split: str, kind: str) -> list[list[int]]:
        """The tokens of every document, or of every sentence."""
        parts = []
        for shard in self.shards:
            file = shard / f"{split}.tokens.bin"
            tokens = np.fromfile(file, self.manifest["dtype"]) if file.exists() else np.zeros(0, int)
            if len(tokens):
                starts = np.load(shard / f"{split}.{kind}.npy")
                assert starts[0] == 0
                parts += [part.tolist() for part in np.split(tokens, starts[1:])]
        return parts

    def texts(self, split: str = "train") -> list[str]:
        """The documents of a corpus of `byte_tokenizer`."""
        return [bytes(token - SPECIAL_BYTE_IDS for token in document).decode() for document in self.documents(split)]


def build_corpus(inputs, directory=None, tokenizer=None, **flags) -> Corpus | None:
    """Builds a corpus by the command, in this process; None if other jobs' shares are missing."""
    corpus, _ = build_with_messages(inputs, directory, tokenizer, **flags)
    return corpus


def build_with_messages(inputs, directory=None, tokenizer=None, **flags) -> tuple[Corpus | None, str]:
    """The corpus, and what the command says on standard error."""
    directory = directory or folder()
    inputs = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    words = ["--input", *inputs, "--output_dir", directory, "--tokenizer_name", tokenizer or bundled_model()]
    for name, value in flags.items():
        words += [f"--{name}", value]
    messages = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(messages):
        run_cli("corpus", "build", *words)
    corpus = Corpus(directory) if (Path(directory) / "corpus.json").exists() else None
    return corpus, messages.getvalue()
