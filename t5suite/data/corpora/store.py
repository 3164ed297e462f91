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
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from t5suite.base.errors import ConfigError, DataError, os_error_text
from t5suite.base.files import read_json, write_json
from t5suite.base.lookup import check_name
from t5suite.data.corpora.sharded_array import ShardedArray, TokenSequence
from t5suite.data.rows.jsonl import file_sha256

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
        note = self.directory / CHECKED
        files = dict(self._files())
        changed_at = {name: (self.directory / name).stat().st_ctime_ns for name in files}  # time of any write or copy
        checked_at = read_json(note) if note.is_file() else {}
        unchecked_names = [name for name in files if checked_at.get(name) != changed_at[name]]
        if not unchecked_names:
            return self
        gigabytes = sum(files[name]["size"] for name in unchecked_names) / 1e9
        logger.info(
            "%s: comparing the SHA-256 of %d files (%.1f GB), once", self.directory, len(unchecked_names), gigabytes
        )
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            checks = [
                pool.submit(_check_file, self.directory / name, files[name], check_hashes=True)
                for name in unchecked_names
            ]
        for check in checks:
            check.result()
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
        token_counts = [shard["splits"][name]["tokens"] for shard in self.manifest["shards"]]
        starts = np.cumsum([0, *token_counts])[:-1]
        documents = ShardedArray(self._parts(name, "documents.npy", "documents"), "<i8", starts)
        sentences = None
        if self.manifest["settings"]["split_sentences"]:
            sentences = ShardedArray(self._parts(name, "sentences.npy", "sentences"), "<i8", starts)
        return TokenSequence(self._parts(name, "tokens.bin", "tokens"), self.manifest["dtype"], documents, sentences)

    def _parts(self, split: str, ending: str, unit: str) -> list[tuple[str, int]]:
        """`(file, units in it)` of each shard; the unit is 'tokens', 'documents' or 'sentences'."""
        parts = []
        for shard in self.manifest["shards"]:
            path = self.directory / shard["name"] / f"{split}.{ending}"
            parts.append((str(path), shard["splits"][split].get(unit, 0)))
        return parts

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
        has_shards = directory.is_dir() and any(directory.glob("shard-*"))
        hint = "`t5suite corpus build` makes one"
        if has_shards:
            hint = "its build is not finished: run it again to resume"
        raise DataError(f"{directory}: no corpus ({MANIFEST} is not there); {hint}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        version = manifest.get("version") if isinstance(manifest, dict) else None
        raise DataError(f"{path}: not a corpus of version {VERSION} (found {version!r:.60}); build it again")
    try:
        _check_manifest(manifest, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a complete manifest ({type(error).__name__}: {error}); build it again") from None
    return manifest


def _check_manifest(manifest: dict, path: Path) -> None:
    """Checks what reading a split needs: counts and sizes are numbers, shards and files are names inside the corpus."""
    counts_of_splits = list(manifest["splits"].values())
    numbers = []
    for shard in manifest["shards"]:
        for name in (shard["name"], *shard["files"]):
            check_name(name, "file", str(path), DataError)
        numbers += [facts["size"] for facts in shard["files"].values()]
        counts_of_splits += [shard["splits"][split] for split in manifest["splits"]]
    for counts in counts_of_splits:
        numbers += [counts["tokens"], counts["documents"]]
    for number in numbers:
        if type(number) is not int or number < 0:
            raise TypeError(f"a count is {number!r:.60}")
    if manifest["dtype"] not in ("uint16", "uint32"):
        raise TypeError(f"the dtype is {manifest['dtype']!r:.60}")
    if "split_sentences" not in manifest["settings"]:
        raise KeyError("split_sentences")


def _check_file(path: Path, facts: dict, check_hashes: bool) -> None:
    if not path.is_file():
        raise DataError(f"{path}: the file is missing; delete its folder and {MANIFEST}, and build again")
    size = path.stat().st_size
    if size != facts["size"]:
        raise DataError(
            f"{path}: the file has {size} bytes instead of {facts['size']}; delete its folder and {MANIFEST}, and "
            "build again"
        )
    if check_hashes and file_sha256(path) != facts["sha256"]:
        raise DataError(f"{path}: the file has changed (SHA-256); delete its folder and {MANIFEST}, and build again")
