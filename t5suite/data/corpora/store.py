"""A corpus on disk as tokens, memory-mapped: what `t5suite corpus build` writes and training reads.

    >>> store = TokenStore.open("corpus")
    >>> tokens = store.split("train")
    >>> len(tokens), tokens[1000:1005]
    (61203311, array([ 8,  414,   13,   8, 1937], dtype=int32))
    >>> tokens.documents[:3]
    array([  0, 187, 455])

The folder:

    corpus.json                                  the manifest: tokenizer, settings, sources, counts, shards
    shard-00000-of-00008/train.tokens.bin        token ids, little endian, uint16 where the vocabulary fits, else uint32
                         train.documents.npy     int64: the token at which each document starts, from the shard's first
                         train.sentences.npy     int64: the token at which each sentence starts (--split_sentences)
                         validation. ...         the same for the held-out documents
                         shard.json              counts, and the files' sizes and SHA-256

There is nothing between documents without a separator; a separator belongs to the document before it.
"""

import hashlib
import json
import logging
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from t5suite.base.errors import ConfigError, DataError, os_error_text
from t5suite.base.lookup import check_name
from t5suite.data.corpora.documents import Tally
from t5suite.data.rows.jsonl import file_sha256
from t5suite.runs.directory import read_json, write_json

logger = logging.getLogger(__name__)

MANIFEST = "corpus.json"
CHECKED = ".checked.json"
FORMAT = "t5suite corpus"
VERSION = 1
SPLITS = ("train", "validation")
FINGERPRINT_SAMPLE = "The 3 cafés' “owner” said: it's\ta ﬁne day.\n日本 😀 <extra_id_0> </s>"


def tokenizer_fingerprint(tokenizer) -> str:
    """SHA-256 over the vocabulary, the ids of the special tokens and those of a sample text."""
    special = [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
    sample = tokenizer(FINGERPRINT_SAMPLE, add_special_tokens=False)["input_ids"]
    content = json.dumps([sorted(tokenizer.get_vocab().items()), special, sample])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The smallest of uint16 and uint32 that holds every id.

    >>> token_dtype(32100), token_dtype(250100)
    (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype("<u2" if vocabulary_size <= 2**16 else "<u4")


@dataclass
class TokenStore:
    """An opened corpus; its manifest describes its contents."""

    directory: Path
    manifest: dict

    @classmethod
    def open(cls, directory, check_hashes: bool = False) -> "TokenStore":
        """The corpus in a folder, after a check of every file's size.

        Raises DataError if there is no (finished) corpus, it is of another format, or a file (named) is
        missing, cut off or, with `check_hashes` (which reads all of it), changed.
        """
        directory = Path(directory)
        store = cls(directory, _read_manifest(directory))
        for name, facts in store._files():
            _check_file(directory / name, facts, check_hashes)
        return store

    def check_once(self) -> "TokenStore":
        """Checks the SHA-256 of every file that has changed since its last check, and notes it.

        A core without SHA instructions hashes 0.4 GB/s (measured), and up to 8 share the files.
        """
        note, files = self.directory / CHECKED, dict(self._files())
        changed_at = {name: (self.directory / name).stat().st_ctime_ns for name in files}  # time of any write or copy
        known = read_json(note) if note.is_file() else {}
        unchecked = [name for name in files if known.get(name) != changed_at[name]]
        if unchecked:
            size = sum(files[name]["size"] for name in unchecked) / 1e9
            logger.info("%s: comparing the SHA-256 of %d files (%.1f GB), once", self.directory, len(unchecked), size)
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                list(pool.map(lambda name: _check_file(self.directory / name, files[name], True), unchecked))
            try:
                write_json(note, changed_at)
            except OSError as error:
                logger.warning("%s: every run will check all files again: %s", self.directory, os_error_text(error))
        return self

    def split(self, name: str) -> "TokenSequence":
        """The tokens of 'train' or 'validation', as one long row; raises DataError if that split has no document."""
        counts = self.manifest["splits"].get(name)
        if not counts or not counts["tokens"]:
            sides = ", ".join(split for split, count in self.manifest["splits"].items() if count["tokens"])
            raise DataError(f"{self.directory}: the corpus has no {name} documents; it has {sides}")
        starts = np.cumsum([0, *[shard["splits"][name]["tokens"] for shard in self.manifest["shards"]]])[:-1]
        kinds = ["documents", *(["sentences"] if self.manifest["settings"]["split_sentences"] else [])]
        of_kinds = [ShardedArray(self._parts(name, f"{kind}.npy", kind), "<i8", starts) for kind in kinds]
        return TokenSequence(self._parts(name, "tokens.bin", "tokens"), self.manifest["dtype"], *of_kinds)

    def _parts(self, split: str, ending: str, counted: str) -> list[tuple[str, int]]:
        shards = [(self.directory / shard["name"], shard["splits"][split]) for shard in self.manifest["shards"]]
        return [(str(folder / f"{split}.{ending}"), counts.get(counted, 0)) for folder, counts in shards]

    def check_tokenizer(self, tokenizer, flag: str = "--tokenizer_name") -> None:
        """Raises ConfigError where the corpus was built with another tokenizer."""
        built = self.manifest["tokenizer"]
        if tokenizer_fingerprint(tokenizer) != built["fingerprint"]:
            raise ConfigError(
                f"{flag} {tokenizer.name_or_path}: the corpus {self.directory} was built with another tokenizer "
                f"({built['name']}, {built['vocabulary_size']} ids); build it again, or give that one"
            )

    def _files(self):
        for shard in self.manifest["shards"]:
            for name, facts in shard["files"].items():
                yield f"{shard['name']}/{name}", facts


def _read_manifest(directory: Path) -> dict:
    path = directory / MANIFEST
    if not path.is_file():
        begun = any(directory.glob("shard-*")) if directory.is_dir() else False
        hint = "its build is not finished: run it again to resume" if begun else "`t5suite corpus build` makes one"
        raise DataError(f"{directory}: no corpus ({MANIFEST} is not there); {hint}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        found = manifest.get("version") if isinstance(manifest, dict) else None
        raise DataError(f"{path}: not a corpus of version {VERSION} (found {found!r:.60}); build it again")
    try:  # what reading a split needs: counts and sizes are numbers, shards and files are names inside the corpus
        counted = [*manifest["splits"].values()]
        sizes = []
        for shard in manifest["shards"]:
            for name in (shard["name"], *shard["files"]):
                check_name(name, "file", str(path), DataError)
            sizes += [facts["size"] for facts in shard["files"].values()]
            counted += [shard["splits"][split] for split in manifest["splits"]]
        numbers = sizes + [counts[key] for counts in counted for key in ("tokens", "documents")]
        wrong = [number for number in numbers if type(number) is not int or number < 0]
        if wrong or manifest["dtype"] not in ("uint16", "uint32") or "split_sentences" not in manifest["settings"]:
            raise TypeError(f"a count, a dtype or a setting is {wrong[0] if wrong else manifest['dtype']!r:.60}")
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a complete manifest ({type(error).__name__}: {error}); build it again") from None
    return manifest


def _check_file(path: Path, facts: dict, check_hashes: bool) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size != facts["size"]:
        found = "is missing" if size is None else f"has {size} bytes instead of {facts['size']}"
        raise DataError(f"{path}: the file {found}; delete its folder and {MANIFEST}, and build again")
    if check_hashes and file_sha256(path) != facts["sha256"]:
        raise DataError(f"{path}: the file has changed (SHA-256); delete its folder and {MANIFEST}, and build again")


class ShardedArray:
    """Files of numbers, one after the other, as one read-only row; a slice is read from disk on demand.

    >>> array = ShardedArray([("a.tokens.bin", 3), ("b.tokens.bin", 2)], "<u2")
    >>> array[2:4]
    array([13,  8], dtype=uint16)

    Args:
      parts: `(file, numbers in it)`; only `.npy` files have a header.
      starts: added to the numbers of each file, such as the tokens before it.
      out_dtype: the type of slices.

    It pickles as the list of files, so worker processes map them again.
    """

    def __init__(self, parts, dtype, starts=None, out_dtype=None):
        self._paths = [path for path, count in parts if count]
        self._lengths = np.array([count for _, count in parts if count], dtype=np.int64)
        self._ends = np.cumsum(self._lengths)
        kept = [index for index, (_, count) in enumerate(parts) if count]
        self._starts = None if starts is None else np.asarray(starts, dtype=np.int64)[kept]
        self.dtype = np.dtype(out_dtype or dtype)
        self._stored = np.dtype(dtype)
        self._maps = {}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index):
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step < 1:
                raise ValueError(f"step {step}: the row is read forwards")
            return self._read(start, stop)[::step]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index {index} of {len(self)}")
        return self._read(position, position + 1)[0]

    def __array__(self, dtype=None, copy=None):
        return self._read(0, len(self)).astype(dtype or self.dtype, copy=False)

    def _read(self, start: int, stop: int) -> np.ndarray:
        """A copy of the numbers from `start` to `stop`."""
        out = np.empty(max(stop - start, 0), dtype=self.dtype)
        done = 0
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while done < len(out):
            first = start + done - int(self._ends[shard] - self._lengths[shard])
            part = self._map(shard)[first : first + len(out) - done]
            out[done : done + len(part)] = part
            if self._starts is not None:
                out[done : done + len(part)] += self._starts[shard]
            done += len(part)
            shard += 1
        return out

    def _map(self, shard: int) -> np.ndarray:
        if shard in self._maps:
            return self._maps[shard]
        path = self._paths[shard]
        if path.endswith(".npy"):
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            mapped = np.memmap(path, dtype=self._stored, mode="r")
        if hasattr(mmap, "MADV_RANDOM"):
            # For a row of 1 KB the OS would read 128 KB ahead: 5120 rows of 10 GB took 2.2 s, and 0.03 s without.
            mapped.base.madvise(mmap.MADV_RANDOM)
        if len(mapped) != self._lengths[shard]:
            raise DataError(f"{path}: holds {len(mapped)} numbers, but the corpus says {self._lengths[shard]}")
        self._maps[shard] = mapped
        return mapped

    def __getstate__(self):
        return {**self.__dict__, "_maps": {}}


class TokenSequence(ShardedArray):
    """The tokens of a split: `len`, `[start:stop]` -> int32 array, and where documents and sentences start.

    >>> tokens.document(1)
    array([  37, 6423,   19, ...,    5], dtype=int32)
    """

    def __init__(self, parts, dtype, documents: ShardedArray, sentences: ShardedArray | None = None):
        super().__init__(parts, dtype, out_dtype="int32")
        self.documents, self._sentences = documents, sentences

    @property
    def sentences(self) -> ShardedArray:
        """The token at which each sentence starts; raises ConfigError for a corpus built without them."""
        if self._sentences is None:
            raise ConfigError("the corpus has no sentences: build it with --split_sentences")
        return self._sentences

    def document(self, number: int) -> np.ndarray:
        """The tokens of one document."""
        last = number in (len(self.documents) - 1, -1)
        return self[int(self.documents[number]) : len(self) if last else int(self.documents[number + 1])]


# ---------------------------------------------------------------------------------------------------------------------
# What `t5suite corpus show` shows: counts, lengths, and blocks before and after corruption.


PERCENTILES = (0, 5, 25, 50, 75, 95, 100)


def describe_corpus(store: TokenStore) -> dict:
    """The facts of a corpus, as plain data.

    >>> facts = describe_corpus(store)
    >>> facts["sources"], facts["left_out"]
    (130, '3 documents without text (books/a.txt:7, books/a.txt:9, books/b.txt:12)')
    """
    manifest, tally, splits = store.manifest, Tally(), {}
    for source in manifest["sources"]:
        tally.add(Tally(source["documents"], source["left_out"], source["named"]))
    for name, counts in manifest["splits"].items():
        splits[name] = dict(counts)
        if counts["tokens"]:
            tokens = store.split(name)
            length_D = np.diff(np.asarray(tokens.documents), append=len(tokens))
            lengths = np.percentile(length_D, PERCENTILES, method="nearest").astype(int).tolist()
            splits[name] |= {
                "bytes_per_token": round(counts["bytes"] / counts["tokens"], 4),
                "unk_rate": round(counts["unk"] / counts["tokens"], 6),
                "mean_length": round(counts["tokens"] / counts["documents"], 2),
                "length_percentiles": dict(zip(map(str, PERCENTILES), lengths, strict=True)),
            }
    return {
        "directory": str(store.directory),
        **{name: manifest[name] for name in ("tokenizer", "dtype", "settings")},
        "splits": splits,
        "sources": len(manifest["sources"]),
        "sources_without_documents": [source["name"] for source in manifest["sources"] if not source["documents"]],
        "left_out": tally.summary(),
        "seconds": manifest["build"]["seconds"],
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
        block, denoiser = example * num_blocks // count, example % len(collator.tokens_lengths)
        ids = tokens[block * length : block * length + collator.tokens_lengths[denoiser]]
        inputs, targets = collator.corrupt([{"input_ids": ids, "index": block, "denoiser": denoiser}])
        texts = {"tokens": ids, "inputs": inputs.values, "targets": targets.values}
        yield {"block": block, **{name: found.tolist() for name, found in texts.items()}}


def describe_blocks(store: TokenStore, collator) -> dict:
    """The number of blocks per epoch, by split.

    >>> describe_blocks(store, collator)
    {'tokens_length': [568], 'inputs_length': 512, 'targets_length': 114, 'train': 5357, 'validation': 55}
    """
    mean_length = float(np.dot(collator.tokens_lengths, collator.weights) / sum(collator.weights))
    return {
        "tokens_length": list(collator.tokens_lengths),
        "inputs_length": collator.inputs_length,
        "targets_length": collator.targets_length,
        **{name: int(counts["tokens"] / mean_length) for name, counts in store.manifest["splits"].items()},
    }
