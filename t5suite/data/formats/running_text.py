"""Running text as rows to write: for models that go on with a text (`--data_format text`).

    >>> TextRows({"train": (Path("book.txt"),)}, "line", block_size=256).read("train", tokenizer).rows[0]
    {'text': 'The centre of the city is old.\nIt was built ...'}

Documents follow each other in blocks of at most `block_size` tokens, end-of-sequence included, a line end between two
of them; a document that is longer goes on in the next block. Nothing is left out but empty documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.data.formats.rows import Rows, files_fingerprint, hashed_files
from t5suite.data.formats.token_cuts import count_tokens, pieces
from t5suite.data.text.readers import BadLine, TextOptions, file_records


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
