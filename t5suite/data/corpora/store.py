"""A corpus on disk as tokens, memory-mapped: what `t5suite corpus build` and `adopt` make and training reads.

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

An adopted corpus has its tokens in other tools' files (`contrib.token_files`), and in place of `train.tokens.bin` there
is `train.runs.npy`, which says where the split's documents are in such a file (`RunsPart`).
"""

import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError, os_error_text
from t5suite.base.files import read_json, write_json
from t5suite.base.lookup import check_name
from t5suite.data.corpora.encoding import control_tokens
from t5suite.data.corpora.sharded_array import FilePart, RunsPart, ShardedArray, TokenSequence
from t5suite.tasks.tokens import tokenizer_of

logger = logging.getLogger(__name__)
MANIFEST = "corpus.json"
CHECKED = ".checked.json"
FORMAT = "t5suite corpus"
VERSION = 1
SPLITS = ("train", "validation")
FINGERPRINT_SAMPLE = "The 3 cafés' “owner” said: it's\ta ﬁne day.\n日本 😀 <extra_id_0> </s>"


def tokenizer_fingerprint(tokenizer, without: Collection[str] = ()) -> str:
    """SHA-256 over the vocabulary, the ids of the special tokens and those of a sample text.

    Args:
      without: added tokens; the fingerprint is the one that the tokenizer had before.
    """
    special = [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
    vocabulary = sorted((token, number) for token, number in tokenizer.get_vocab().items() if token not in without)
    content = json.dumps([vocabulary, special, _sample_ids(tokenizer, without)])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _sample_ids(tokenizer, without: Collection[str]) -> list[int]:
    """The ids of a sample text, by the tokenizer without some of its added tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not without:
        return tokenizer(FINGERPRINT_SAMPLE, add_special_tokens=False)["input_ids"]
    settings = json.loads(backend.to_str())
    settings |= {"truncation": None, "padding": None}
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["content"] not in without]
    return tokenizer_of(json.dumps(settings)).encode(FINGERPRINT_SAMPLE, add_special_tokens=False).ids


def encodes_alike(tokenizer, fingerprint: str, vocabulary_size: float) -> bool:
    """Whether text has the ids that the tokenizer of a fingerprint gave it.

    Sentinels and other control tokens may have been added since then, with ids from `vocabulary_size` on: text never
    becomes one. Added words change the ids of text.
    """
    if tokenizer_fingerprint(tokenizer) == fingerprint:
        return True
    vocabulary = tokenizer.get_vocab()
    added_controls = {name for name in control_tokens(tokenizer) if vocabulary.get(name, 0) >= vocabulary_size}
    return tokenizer_fingerprint(tokenizer, added_controls) == fingerprint


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The smallest of uint16 and uint32 that holds every id.

    >>> token_dtype(32100), token_dtype(250100)
    (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype("<u2" if vocabulary_size <= 2**16 else "<u4")


class FilePiece(NamedTuple):
    """Bytes of a file and their SHA-256."""

    start: int
    size: int
    sha256: str


class StoredFile(NamedTuple):
    """A file of a corpus, its size in bytes, the hashes of all its bytes, and what to do if it is damaged."""

    path: Path
    size: int
    pieces: tuple[FilePiece, ...]
    cure: str


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
        files = store.files().values()
        for file in files:
            _check_size(file)
        if check_hashes:
            _check_hashes(files)
        return store

    def check_once(self) -> "TokenStore":
        """Checks the SHA-256 of every file that has changed since its last check, and notes it.

        A core without SHA instructions hashes 0.4 GB/s (measured), and up to 8 share the files.
        """
        files = self.files()
        changed_at = {name: file.path.stat().st_ctime_ns for name, file in files.items()}  # time of any write or copy
        note = self.directory / CHECKED
        checked_at = read_json(note) if note.is_file() else {}
        unchecked_files = [file for name, file in files.items() if checked_at.get(name) != changed_at[name]]
        if not unchecked_files:
            return self
        gigabytes = sum(file.size for file in unchecked_files) / 1e9
        logger.info(
            "%s: comparing the SHA-256 of %d files (%.1f GB), once", self.directory, len(unchecked_files), gigabytes
        )
        _check_hashes(unchecked_files)
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
        documents = ShardedArray(self._parts(name, "documents"), "<i8", starts)
        sentences = None
        if self.manifest["settings"]["split_sentences"]:
            sentences = ShardedArray(self._parts(name, "sentences"), "<i8", starts)
        return TokenSequence(self._token_parts(name), self.manifest["dtype"], documents, sentences)

    def _parts(self, split: str, unit: str) -> list[FilePart]:
        """Where each shard's documents or sentences start; the unit is 'documents' or 'sentences'."""
        parts = []
        for shard in self.manifest["shards"]:
            path = self.directory / shard["name"] / f"{split}.{unit}.npy"
            parts.append(FilePart(str(path), shard["splits"][split].get(unit, 0)))
        return parts

    def _token_parts(self, split: str) -> list[FilePart | RunsPart]:
        """Each shard's tokens: a file of its own, or runs of an adopted one."""
        adopted_files = self._adopted_files()
        id_bytes = np.dtype(self.manifest["dtype"]).itemsize
        parts = []
        for shard in self.manifest["shards"]:
            counts = shard["splits"][split]
            folder = self.directory / shard["name"]
            if "token_file" in shard:
                file = adopted_files[shard["token_file"]]
                runs_path = str(folder / f"{split}.runs.npy")
                length = file.size // id_bytes
                parts.append(RunsPart(str(file.path), counts["tokens"], length, runs_path, counts["runs"]))
            else:
                parts.append(FilePart(str(folder / f"{split}.tokens.bin"), counts["tokens"]))
        return parts

    def check_tokenizer(self, tokenizer) -> None:
        """Raises ConfigError where the corpus was built with another tokenizer."""
        built = self.manifest["tokenizer"]
        if encodes_alike(tokenizer, built["fingerprint"], built["vocabulary_size"]):
            return
        added_tokens = [token for token, number in tokenizer.get_vocab().items() if number >= built["vocabulary_size"]]
        if tokenizer_fingerprint(tokenizer, added_tokens) == built["fingerprint"]:
            words = ", ".join(sorted(set(added_tokens) - set(control_tokens(tokenizer)))[:3])
            way_out = (
                "read the text itself (pre_train --train_file), or build a corpus with a saved tokenizer that has them"
            )
            if "adopted" in self.manifest:
                way_out = "give it without them: an adopted corpus has no text to read again"
            raise ConfigError(
                f"--tokenizer_name {tokenizer.name_or_path}: the corpus {self.directory} was written by this tokenizer "
                f"without the words that have been added to it ({words}); {way_out}"
            )
        raise ConfigError(
            f"--tokenizer_name {tokenizer.name_or_path}: the corpus {self.directory} was built with another "
            f"tokenizer ({built['name']}, {built['vocabulary_size']} ids); build it again, or give that one"
        )

    def files(self) -> dict[str, StoredFile]:
        """Every file of the corpus by its name, adopted ones included."""
        files = {}
        for shard in self.manifest["shards"]:
            for name, facts in shard["files"].items():
                pieces = (FilePiece(0, facts["size"], facts["sha256"]),)
                path = self.directory / shard["name"] / name
                files[f"{shard['name']}/{name}"] = StoredFile(path, facts["size"], pieces, self._cure)
        return files | self._adopted_files()

    def _adopted_files(self) -> dict[str, StoredFile]:
        """The files of tokens of an adopted corpus by their names in its folder; none if it was built."""
        adopted = self.manifest.get("adopted")
        if adopted is None:
            return {}
        id_bytes = np.dtype(self.manifest["dtype"]).itemsize
        pieces = {name: [] for name in adopted["files"]}
        for shard in self.manifest["shards"]:
            piece = FilePiece(id_bytes * shard["start"], id_bytes * shard["tokens"], shard["sha256"])
            pieces[shard["token_file"]].append(piece)
        folder = self.directory / adopted["folder"]
        cure = f"restore it, or delete {self.directory / MANIFEST} and adopt again"
        return {
            name: StoredFile(folder / name, size, tuple(pieces[name]), cure) for name, size in adopted["files"].items()
        }

    @property
    def _cure(self) -> str:
        """What repairs a damaged file of a shard."""
        return f"delete its folder and {MANIFEST}, and {'adopt' if 'adopted' in self.manifest else 'build'} again"


def _read_manifest(directory: Path) -> dict:
    path = directory / MANIFEST
    if not path.is_file():
        raise DataError(f"{directory}: no corpus ({MANIFEST} is not there); {_how_to_make_one(directory)}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        version = manifest.get("version") if isinstance(manifest, dict) else None
        raise DataError(f"{path}: not a corpus of version {VERSION} (found {version!r:.60}); build it again")
    try:
        _check_manifest(manifest, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a complete manifest ({type(error).__name__}: {error}); build it again") from None
    return manifest


def _how_to_make_one(directory: Path) -> str:
    if any(directory.glob("shard-*")):
        return "its build is not finished: run it again to resume"
    if any(directory.glob("*.idx")) or any(directory.glob("*.ds.index")):
        return "`t5suite corpus adopt` makes one of its files of tokens"
    return "`t5suite corpus build` makes one"


def _check_manifest(manifest: dict, path: Path) -> None:
    """Checks what reading a split needs: counts and sizes are numbers, shards and files are names inside the corpus."""
    for shard in manifest["shards"]:
        for name in (shard["name"], *shard["files"]):
            check_name(name, "file", str(path), DataError)
    for number in [*_numbers_of_shards(manifest), *_numbers_of_adopted(manifest)]:
        if type(number) is not int or number < 0:
            raise TypeError(f"a count is {number!r:.60}")
    if manifest["dtype"] not in ("uint16", "uint32"):
        raise TypeError(f"the dtype is {manifest['dtype']!r:.60}")
    if "split_sentences" not in manifest["settings"]:
        raise KeyError("split_sentences")


def _numbers_of_shards(manifest: dict) -> list:
    """The counts of all splits, of the whole and of each shard, and the sizes of files."""
    numbers = []
    counts_of_splits = list(manifest["splits"].values())
    for shard in manifest["shards"]:
        numbers += [facts["size"] for facts in shard["files"].values()]
        counts_of_splits += [shard["splits"][split] for split in manifest["splits"]]
    for counts in counts_of_splits:
        numbers += [counts["tokens"], counts["documents"]]
    return numbers


def _numbers_of_adopted(manifest: dict) -> list:
    """What must be numbers in the manifest of an adopted corpus; its files are below its folder of tokens."""
    if "adopted" not in manifest:
        return []
    sizes = manifest["adopted"]["files"]
    for name in sizes:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise TypeError(f"an adopted file is {name!r:.60}")
    numbers = list(sizes.values())
    for shard in manifest["shards"]:
        if shard["token_file"] not in sizes:
            raise KeyError(shard["token_file"])
        numbers += [shard["start"], shard["tokens"], *(counts["runs"] for counts in shard["splits"].values())]
    return numbers


def _check_size(file: StoredFile) -> None:
    if not file.path.is_file():
        raise DataError(f"{file.path}: the file is missing; {file.cure}")
    size = file.path.stat().st_size
    if size != file.size:
        raise DataError(f"{file.path}: the file has {size} bytes instead of {file.size}; {file.cure}")


def _check_hashes(files: Iterable[StoredFile]) -> None:
    """Compares the SHA-256 of files, several pieces at a time; raises DataError for the first that differs."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        checks = [pool.submit(_check_hash, file, piece) for file in files for piece in file.pieces]
    for check in checks:
        check.result()


def _check_hash(file: StoredFile, piece: FilePiece) -> None:
    digest = hashlib.sha256()
    remaining = piece.size
    with file.path.open("rb") as opened:
        opened.seek(piece.start)
        while remaining and (block := opened.read(min(remaining, 1 << 20))):
            digest.update(block)
            remaining -= len(block)
    if digest.hexdigest() != piece.sha256:
        raise DataError(f"{file.path}: the file has changed (SHA-256); {file.cure}")
