"""Token files as datatrove and Megatron write them, by the description of their forms; adopted corpora as they stand on
disk.

>>> write_datatrove(folder, "00000_00000_doc_shuffled", [[37, 1], [8, 414, 1]])
>>> write_megatron(folder, "crawl_text_document", [[37, 1], [8, 414, 1]])
"""

import hashlib
import json
import struct
from pathlib import Path

import numpy as np

MEGATRON_CODES = {"<u2": 8, "<i4": 4, "<i8": 5}


def write_datatrove(folder, name, documents, dtype="<u2", metadata=True) -> Path:
    """`NAME.ds`, its index of uint64 ends, and the metadata that are there unless `save_final_metadata=False`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.array([token for document in documents for token in document], dtype)
    path = folder / f"{name}.ds"
    path.write_bytes(tokens.tobytes())
    ends = np.cumsum([len(document) for document in documents]).astype("<u8")
    Path(f"{path}.index").write_bytes(ends.tobytes())
    if metadata:
        count = len(tokens)
        Path(f"{path}.metadata").write_text(f"some/tokenizer|{tokens.itemsize}\n{count}\n{count} T")
    return path


def write_megatron(folder, name, documents, dtype="<u2", sequences=1) -> Path:
    """`NAME.bin` and `NAME.idx`; each document consists of this many sequences."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [part for document in documents for part in np.array_split(np.array(document, dtype), sequences)]
    lengths = np.array([len(part) for part in parts], "<i4")
    path = folder / f"{name}.bin"
    path.write_bytes(b"".join(part.tobytes() for part in parts))
    places = (np.cumsum(lengths) - lengths) * np.dtype(dtype).itemsize
    borders = sequences * np.arange(len(documents) + 1)
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, MEGATRON_CODES[dtype], len(parts), len(borders))
    content = header + lengths.tobytes() + places.astype("<i8").tobytes() + borders.astype("<i8").tobytes()
    path.with_suffix(".idx").write_bytes(content)
    return path


def is_held_out(document, fraction: float) -> bool:
    """By BLAKE2b of its ids but the last, each four bytes, little-endian."""
    content = b"".join(struct.pack("<I", token) for token in document[:-1])
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") < fraction * 2**64


def documents_of(corpus, split: str) -> list[list[int]]:
    """The documents of an adopted corpus, read from the files of tokens by what its own files say of them."""
    corpus = Path(corpus)
    manifest = json.loads((corpus / "corpus.json").read_text())
    documents = []
    for shard in manifest["shards"]:
        tokens = np.fromfile(corpus / manifest["adopted"]["folder"] / shard["token_file"], manifest["dtype"])
        starts, places = np.load(corpus / shard["name"] / f"{split}.runs.npy")
        count = shard["splits"][split]["tokens"]
        ends = [*starts[1:], count][: len(starts)]
        row = [
            token
            for start, end, place in zip(starts, ends, places, strict=True)
            for token in tokens[place : place + end - start].tolist()
        ]
        assert len(row) == count
        first_tokens = np.load(corpus / shard["name"] / f"{split}.documents.npy").tolist()
        documents += [row[start:end] for start, end in zip(first_tokens, [*first_tokens[1:], count])]
    return documents
