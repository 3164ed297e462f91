"""What `t5suite corpus show` says of a corpus: counts, lengths, and blocks before and after corruption.

    >>> describe_split(store, "train")["documents"]
    126309

Shape suffixes: D documents.
"""

from collections.abc import Iterator

import numpy as np

from t5suite.data.corpora.store import TokenStore
from t5suite.data.text.documents import Tally

PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
# 8 bytes a document are sorted in memory; beyond that duplicates are not counted.
MAX_SORTED = 50_000_000


def describe_corpus(store: TokenStore) -> dict:
    """The facts of a corpus, as plain data.

    >>> facts = describe_corpus(store)
    >>> facts["sources"], facts["duplicates"], facts["left_out"]
    (130, 54, '3 documents without text (books/a.txt:7, books/a.txt:9, books/b.txt:12)')
    """
    manifest, tally = store.manifest, Tally()
    for source in manifest["sources"]:
        tally.add(Tally(source["documents"], source["left_out"], source["named"]))
    return {
        "directory": str(store.directory),
        "tokenizer": manifest["tokenizer"],
        "dtype": manifest["dtype"],
        "settings": manifest["settings"],
        "splits": {name: describe_split(store, name) for name in manifest["splits"]},
        "sources": len(manifest["sources"]),
        "sources_without_documents": [source["name"] for source in manifest["sources"] if not source["documents"]],
        "left_out": tally.summary(),
        "duplicates": count_duplicates(store),
        "seconds": manifest["build"]["seconds"],
    }


def describe_split(store: TokenStore, name: str) -> dict:
    """Counts of a split, and percentiles of its documents' lengths in tokens."""
    counts = dict(store.manifest["splits"][name])
    if not counts["tokens"]:
        return counts
    tokens = store.split(name)
    length_D = np.diff(np.asarray(tokens.documents), append=len(tokens))
    lengths = np.percentile(length_D, PERCENTILES, method="nearest").astype(int).tolist()
    return counts | {
        "bytes_per_token": round(counts["bytes"] / counts["tokens"], 4),
        "unk_rate": round(counts["unk"] / counts["tokens"], 6),
        "mean_length": round(counts["tokens"] / counts["documents"], 2),
        "length_percentiles": dict(zip(map(str, PERCENTILES), lengths, strict=True)),
    }


def count_duplicates(store: TokenStore) -> int | None:
    """Documents whose text another one before had, on either side; None where there are too many documents to sort."""
    if sum(counts["documents"] for counts in store.manifest["splits"].values()) > MAX_SORTED:
        return None
    hash_D = np.concatenate([np.asarray(store.hashes(name)) for name in store.manifest["splits"]])
    return len(hash_D) - len(np.unique(hash_D))


def sample_blocks(tokens, collator, num_examples: int) -> Iterator[dict]:
    """Blocks from all over a split, each with the inputs and targets that the collator's objective makes of it.

    >>> next(sample_blocks(store.split("train"), collator, 3)).keys()
    dict_keys(['block', 'tokens', 'inputs', 'targets'])
    """
    length = max(collator.tokens_lengths)
    num_blocks = len(tokens) // length
    count = min(num_examples, num_blocks)
    for example in range(count):
        block = example * num_blocks // count
        denoiser = example % len(collator.tokens_lengths)
        ids = tokens[block * length : block * length + collator.tokens_lengths[denoiser]]
        inputs, targets = collator.corrupt([{"input_ids": ids, "index": block, "denoiser": denoiser}])
        yield {
            "block": block,
            "tokens": ids.tolist(),
            "inputs": inputs.values.tolist(),
            "targets": targets.values.tolist(),
        }


def describe_blocks(store: TokenStore, collator) -> dict:
    """How many blocks an epoch has, by split.

    >>> describe_blocks(store, collator)
    {'tokens_length': [568], 'inputs_length': 512, 'targets_length': 114, 'train': 5357, 'validation': 55}
    """
    found = {
        "tokens_length": list(collator.tokens_lengths),
        "inputs_length": collator.inputs_length,
        "targets_length": collator.targets_length,
    }
    mean_length = float(np.dot(collator.tokens_lengths, collator.weights) / sum(collator.weights))
    for name, counts in store.manifest["splits"].items():
        found[name] = int(counts["tokens"] / mean_length)
    return found
