"""What `t5suite corpus show` shows: counts, lengths, and blocks before and after corruption."""

from collections.abc import Iterator

import numpy as np

from t5suite.base.errors import DataError
from t5suite.data.corpora.block_layout import BlockLayout
from t5suite.data.corpora.store import TokenStore
from t5suite.data.corpora.tally import Tally

PERCENTILES = (0, 5, 25, 50, 75, 95, 100)


def describe_corpus(store: TokenStore) -> dict:
    """The facts of a corpus, as plain data.

    >>> facts = describe_corpus(store)
    >>> facts["sources"], facts["left_out"]
    (130, '3 documents without text (books/a.txt:7, books/a.txt:9, books/b.txt:12)')
    """
    manifest = store.manifest
    tally = Tally()
    for source in manifest["sources"]:
        tally.add(Tally(source["documents"], source["left_out"], source["named"]))
    splits = {}
    for name, counts in manifest["splits"].items():
        splits[name] = dict(counts)
        if counts["tokens"]:
            splits[name] |= _figures_of_split(store.split(name), counts)
    return {
        "directory": str(store.directory),
        **{name: manifest[name] for name in ("tokenizer", "dtype", "settings")},
        "splits": splits,
        "sources": len(manifest["sources"]),
        "form": manifest.get("adopted", {}).get("form"),
        "sources_without_documents": [source["name"] for source in manifest["sources"] if not source["documents"]],
        "left_out": tally.summary(),
        "seconds": manifest["build"]["seconds"],
    }


def _figures_of_split(tokens, counts: dict) -> dict:
    """Bytes a token, the share of unknown tokens, and the lengths of documents."""
    length_D = np.diff(np.asarray(tokens.documents), append=len(tokens))
    lengths = np.percentile(length_D, PERCENTILES, method="nearest").astype(int).tolist()
    figures = {}
    if "bytes" in counts:  # of the text, which an adopted corpus does not have
        figures["bytes_per_token"] = round(counts["bytes"] / counts["tokens"], 4)
    return figures | {
        "unk_rate": round(counts["unk"] / counts["tokens"], 6),
        "mean_length": round(counts["tokens"] / counts["documents"], 2),
        "length_percentiles": dict(zip(map(str, PERCENTILES), lengths, strict=True)),
    }


def sample_blocks(tokens, collator, num_examples: int) -> Iterator[dict]:
    """Blocks from all over a split, each with the inputs and targets from the collator's objective.

    >>> next(sample_blocks(store.split("train"), collator, 3)).keys()
    dict_keys(['block', 'tokens', 'inputs', 'targets'])
    """
    length = max(collator.tokens_lengths)
    num_blocks = len(tokens) // length
    count = min(num_examples, num_blocks)
    for example in range(count):
        block = example * num_blocks // count
        denoiser = example % len(collator.tokens_lengths)
        start = block * length
        ids = tokens[start : start + collator.tokens_lengths[denoiser]]
        inputs, targets = collator.corrupt([{"input_ids": ids, "index": block, "denoiser": denoiser}])
        yield {
            "block": block,
            "tokens": ids.tolist(),
            "inputs": inputs.values.tolist(),
            "targets": targets.values.tolist(),
        }


def describe_blocks(store: TokenStore, collator) -> dict:
    """The number of blocks per epoch, by split.

    >>> describe_blocks(store, collator)
    {'tokens_length': [568], 'inputs_length': 512, 'targets_length': 114, 'train': 5357, 'validation': 55}
    """
    return {
        "tokens_length": list(collator.tokens_lengths),
        "inputs_length": collator.inputs_length,
        "targets_length": collator.targets_length,
        **{name: _num_blocks(counts["tokens"], collator) for name, counts in store.manifest["splits"].items()},
    }


def _num_blocks(num_tokens: int, collator) -> int:
    """As many as training makes of a text."""
    try:
        return BlockLayout(num_tokens, collator.tokens_lengths, collator.weights).num_blocks
    except DataError:  # the text is shorter than a block
        return 0
