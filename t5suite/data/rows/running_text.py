"""Running text as rows to write: for models that go on with a text (`--data_format text`).

    >>> TextRows({"train": (Path("book.txt"),)}, "line", block_size=256).read("train", tokenizer).rows[0]
    {'text': 'The centre of the city is old.\nIt was built ...'}

Documents follow each other in blocks of at most `block_size` tokens, end-of-sequence included, a line end between two
of them; a document that is longer goes on in the next block. Nothing is left out but empty documents.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.data.corpora.readers import BadLine, TextOptions, file_records
from t5suite.data.rows.own_rows import Rows, files_fingerprint, hashed_files


@dataclass(frozen=True)
class TextRows:
    """Blocks of the texts of files.

    Attributes:
      options: what a document is, and the column that holds it where files have columns.
    """

    files: dict[str, tuple[Path, ...]]
    options: TextOptions
    block_size: int

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that have files."""
        return tuple(self.files)

    def read(self, role: str, tokenizer=None) -> Rows:
        """All blocks of a split.

        Raises:
          DataError: a line cannot be read, or there is no text.
        """
        rows, places = [], []
        for place, block in self._blocks(role, tokenizer):
            rows.append({self.options.text_column_name: block})
            places.append(place)
        if not rows:
            raise DataError(f"{', '.join(map(str, self.files[role]))}: no text")
        hashes = hashed_files(self.files[role])
        origin = f"{self.files[role][0].parent} ({len(hashes)} files)" if len(hashes) > 1 else next(iter(hashes))
        return Rows(rows, places, origin, files_fingerprint(hashes), hashes)

    def _blocks(self, role: str, tokenizer) -> Iterator[tuple[str, str]]:
        room = self.block_size - max(1, tokenizer.num_special_tokens_to_add())
        start, block, used = None, "", 0
        for place, document in self._documents(role):
            for piece in pieces(document, room, tokenizer):
                joined = f"{block}\n{piece}" if block else piece
                if block and (used + count_tokens(piece, tokenizer) > room or count_tokens(joined, tokenizer) > room):
                    yield start, block
                    block, joined = "", piece
                start = place if not block else start
                block, used = joined, count_tokens(joined, tokenizer)
        if block:
            yield start, block

    def _documents(self, role: str) -> Iterator[tuple[str, str]]:
        for path in self.files[role]:
            for record in file_records(path, self.options):
                if isinstance(record, BadLine):
                    raise DataError(f"{path}:{record.line}: {record.problem}")
                if record.text.strip():
                    yield f"{path}:{record.line}", record.text


def pieces(text: str, count: int, tokenizer) -> list[str]:
    """The text in pieces, one behind the other, each of `count` tokens at most when it is tokenized by itself.

    >>> pieces("a b c d e", 2, word_tokenizer)
    ['a b', ' c d', ' e']
    """
    starts = _token_starts(text, tokenizer)
    found, at = [], 0
    while at < len(starts):
        size = min(count, len(starts) - at)
        piece = _piece(text, starts, at, size)
        while size > 1 and len(_ids(piece, tokenizer)) > count:
            size -= 1
            piece = _piece(text, starts, at, size)
        found.append(piece)
        at += size
    return found


def _piece(text: str, starts: list[int], at: int, size: int) -> str:
    """From the start of token `at` to that of token `at + size`, so that pieces make up the whole text."""
    end = starts[at + size] if at + size < len(starts) else len(text)
    return text[0 if at == 0 else starts[at] : end]


def _token_starts(text: str, tokenizer) -> list[int]:
    """Where each token begins in the text; for a tokenizer that does not know, where each word does."""
    if tokenizer.is_fast:
        return [
            start
            for start, _ in tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        ]
    return [match.start() for match in re.finditer(r"\S+", text)]


def count_tokens(text: str, tokenizer) -> int:
    """Tokens of a text, end-of-sequence and the like not counted."""
    return len(_ids(text, tokenizer))


def _ids(text: str, tokenizer) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
