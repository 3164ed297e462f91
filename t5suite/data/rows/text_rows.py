"""Running text, for models that continue a text (`--data_format text`): blocks of documents as rows.

    >>> pieces("a b c d e", 2, word_tokenizer)
    ['a b', ' c d', ' e']

Documents are packed into blocks of at most `block_size` tokens, end-of-sequence included, with a line break between two
documents; one that is longer continues in the next block. Only empty documents are dropped.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t5suite.base.errors import DataError
from t5suite.data.corpora.readers import BadLine, TextOptions, file_records
from t5suite.data.rows.file_rows import rows_of_files
from t5suite.data.rows.own_rows import Rows
from t5suite.tasks.cut_marks import place_after
from t5suite.tasks.tokens import encoded

# White space between two words.
GAP = re.compile(r"(?<=\S)\s+(?=\S)")
# So many characters for each token are looked at, more than words have.
CHARACTERS_A_TOKEN = 16


@dataclass(frozen=True)
class RunningText(TextOptions):
    """How the files of `--data_format text` are split into documents."""

    column_flag: ClassVar[str] = "--text_column"


@dataclass(frozen=True)
class TextRows:
    """Blocks of text from files.

    Attributes:
      options: what a document is, and its column in files that have columns.
    """

    files: dict[str, tuple[Path, ...]]
    options: RunningText
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
        rows: list[dict] = []
        places: list[str] = []
        for place, block in self._blocks(role, tokenizer):
            rows.append({self.options.text_column_name: block})
            places.append(place)
        if not rows:
            raise DataError(f"{', '.join(map(str, self.files[role]))}: no text")
        return rows_of_files(self.files[role], rows, places)

    def _blocks(self, role: str, tokenizer) -> Iterator[tuple[str, str]]:
        room = self.block_size - max(1, tokenizer.num_special_tokens_to_add())
        block = ""
        block_length = 0
        block_place = None
        for place, piece in self._pieces(role, room, tokenizer):
            joined = f"{block}\n{piece}" if block else piece
            if block and not _fits(block_length, piece, joined, room, tokenizer):
                yield block_place, block
                block = ""
                joined = piece
            if not block:
                block_place = place
            block = joined
            block_length = count_tokens(block, tokenizer)
        if block:
            yield block_place, block

    def _pieces(self, role: str, room: int, tokenizer) -> Iterator[tuple[str, str]]:
        """The documents, those that are longer than a block in several pieces."""
        for place, document in self._documents(role):
            for piece in pieces(document, room, tokenizer):
                yield place, piece

    def _documents(self, role: str) -> Iterator[tuple[str, str]]:
        for path in self.files[role]:
            for record in file_records(path, self.options):
                if isinstance(record, BadLine):
                    raise DataError(f"{path}:{record.line}: {record.problem}")
                if record.text.strip():
                    yield f"{path}:{record.line}", record.text


def pieces(text: str, count: int, tokenizer) -> list[str]:
    """The text split into consecutive pieces, each at most `count` tokens when tokenized separately.

    >>> pieces("a b c d e", 2, word_tokenizer)
    ['a b', ' c d', ' e']
    """
    if not tokenizer.is_fast:
        return _pieces_without_offsets(text, count, tokenizer)
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    starts = [start for start, _ in offsets]
    borders = [0, *starts[1:], len(text)]
    parts = []
    first = 0
    while first < len(starts):
        end = min(first + count, len(starts))
        while end > first + 1 and count_tokens(text[borders[first] : borders[end]], tokenizer) > count:
            end -= 1
        parts.append(text[borders[first] : borders[end]])
        first = end
    return parts


def _pieces_without_offsets(text: str, count: int, tokenizer) -> list[str]:
    """As `pieces`; a piece ends before a word, or within one that is longer than a piece."""
    parts = []
    start = 0
    end_of_words = len(text.rstrip())
    while start < end_of_words:
        window = text[start : start + count * CHARACTERS_A_TOKEN]
        end = start + max(place_after(tokenizer, window, count), 1)
        if end < end_of_words:
            gaps = list(GAP.finditer(text[start : end + 1]))
            if gaps:
                end = start + gaps[-1].end()
        else:
            end = len(text)
        parts.append(text[start:end])
        start = end
    return parts


def _fits(block_length: int, piece: str, joined: str, room: int, tokenizer) -> bool:
    """Whether a block has room for another piece; the quick sum spares most blocks the tokenization of the whole."""
    return block_length + count_tokens(piece, tokenizer) <= room and count_tokens(joined, tokenizer) <= room


def count_tokens(text: str, tokenizer) -> int:
    """Number of tokens of a text, without special tokens."""
    return len(encoded(tokenizer, [text], add_special_tokens=False)["input_ids"][0])
