"""Texts -> how often each piece occurs in them, and whether a trimmed tokenizer reads them as before.

    >>> reader = PieceReader(vocabulary.settings, vocabulary.ids, spiece_files)
    >>> counts = count_pieces(reader, texts)
    >>> counts.total[vocabulary.ids["▁the"]]
    5231

A tenth of the texts, by a hash of each, is counted apart: what text costs that the vocabulary was not made from is
measured on it, with a vocabulary made from the other nine tenths.
"""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from t5suite.data.corpora.byte_files import numbered_byte_lines
from t5suite.data.corpora.documents import documents_with_text, refuse_no_documents
from t5suite.data.corpora.held_out import is_held_out
from t5suite.data.corpora.hub_documents import open_stream
from t5suite.data.corpora.readers import TextOptions, parquet_file, text_suffix
from t5suite.data.corpora.sources import is_hub_name, list_sources
from t5suite.data.corpora.tally import Tally

TEXTS_AT_ONCE = 1000
TENTH = 0.1


@dataclass(frozen=True)
class TextFiles:
    """Texts in files, read again at each call of `batches`.

    Attributes:
      columns: those of tables (.jsonl, .json, .parquet, the hub's) that hold text; each cell is a text.
      options: how files are split into texts, whatever column they name.
    """

    inputs: list[str]
    columns: tuple[str, ...]
    options: TextOptions

    def batches(self, tally: Tally | None = None) -> Iterator[list[str]]:
        """Lists of texts.

        Raises:
          DataError: no such file or column, or one that cannot be read; no text.
        """
        texts = self._texts(Tally() if tally is None else tally)
        while batch := list(itertools.islice(texts, TEXTS_AT_ONCE)):
            yield batch

    def _texts(self, tally: Tally) -> Iterator[str]:
        sources = list_sources(self.inputs)
        for source in sources:
            columns = self.columns if _is_table(source) else self.columns[:1]
            for column in columns:
                options = replace(self.options, text_column_name=column)
                for document in documents_with_text(source, options, tally):
                    yield document.text
        refuse_no_documents(sources, tally)

    def unread_columns(self) -> list[str] | None:
        """The columns of the tables that are not read; None if there is no table."""
        tables = [source for source in list_sources(self.inputs, logs_skipped=False) if _is_table(source)]
        if not tables:
            return None
        names = dict.fromkeys(name for table in tables for name in _columns_of_table(table))
        return [name for name in names if name not in self.columns]


def _is_table(source: str) -> bool:
    return is_hub_name(source) or text_suffix(Path(source)) != ".txt"


def _columns_of_table(source: str) -> list[str]:
    """The columns that a data set of the hub or a parquet file has, or the first row of a .jsonl file."""
    if is_hub_name(source):
        return list(open_stream(source).column_names or ())
    if text_suffix(Path(source)) == ".parquet":
        return parquet_file(Path(source)).schema_arrow.names
    for _, _, line in numbered_byte_lines(Path(source)):
        with contextlib.suppress(ValueError):  # a bad line, which the reading of all names
            row = json.loads(line)
            if isinstance(row, dict):
                return list(row)
    return []


class PieceReader:
    """A tokenizer, and SentencePiece's models beside it, as functions of texts.

    Attributes:
      has_space_forms: whether the first word of a text has other pieces than one after a space, as Gemma's does.
    """

    def __init__(self, settings: Mapping, ids: Mapping[str, int], spiece_files: Mapping[str, bytes]):
        """
        Args:
          settings: the content of `tokenizer.json`.
          ids: by piece.
          spiece_files: SentencePiece's models, by file name.
        """
        self._backend = Tokenizer.from_str(json.dumps(settings))
        self._backend.no_truncation()
        self._backend.no_padding()
        self._processors = {}
        self._spiece_ids = {}
        for name, content in spiece_files.items():
            processor = SentencePieceProcessor(model_proto=content)
            pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
            self._processors[name] = processor
            # A piece that tokenizer.json lacks has no row.
            self._spiece_ids[name] = [ids.get(piece, -1) for piece in pieces]
        self.has_space_forms = self.encode(["a b"]) != self.encode([" a b"])

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of every text by `tokenizer.json`, without special tokens."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_by_spiece(self, texts: list[str]) -> dict[str, list[list[int]]]:
        """The same ids (-1 for a piece without one), as each of SentencePiece's models segments the texts."""
        rows = {}
        for name, processor in self._processors.items():
            ids = self._spiece_ids[name]
            rows[name] = [[ids[number] for number in numbers] for numbers in processor.encode(texts, num_threads=1)]
        return rows

    def all_rows(self, texts: list[str]) -> list[list[list[int]]]:
        """For each text, its ids in each way that it is read: by `tokenizer.json`, after a space, by SentencePiece."""
        ways = [self.encode(texts)]
        if self.has_space_forms:
            ways.append(self.encode([f" {text}" for text in texts]))
        ways += self.encode_by_spiece(texts).values()
        return [list(rows) for rows in zip(*ways, strict=True)]


@dataclass(frozen=True)
class PieceCounts:
    """How often each id occurs.

    Attributes:
      most, tenth: [V], in nine tenths of the texts and in the other one.
      num_texts, num_tenth: the number of texts, and of those in the tenth.
    """

    most: np.ndarray
    tenth: np.ndarray
    num_texts: int
    num_tenth: int

    @property
    def total(self) -> np.ndarray:
        """In all texts."""
        return self.most + self.tenth


def count_pieces(reader: PieceReader, size: int, batches: Iterable[list[str]]) -> PieceCounts:
    """Counts the pieces of texts, in each way that they are read.

    Args:
      size: one above the highest id.
    """
    counts = np.zeros((2, size), dtype=np.int64)
    num_texts = np.zeros(2, dtype=np.int64)
    for texts in batches:
        for text, rows in zip(texts, reader.all_rows(texts), strict=True):
            part = int(is_held_out(text, TENTH))
            num_texts[part] += 1
            for ids in rows:
                np.add.at(counts[part], [number for number in ids if number >= 0], 1)
    return PieceCounts(counts[0], counts[1], int(num_texts.sum()), int(num_texts[1]))


@dataclass(frozen=True)
class SegmentationFigures:
    """What a trimmed tokenizer does with texts.

    Attributes:
      texts: how many.
      equal: how many of them are segmented as by the untrimmed one, in each way that they are read.
      tokens, tokens_before: of `tokenizer.json`.
      unknown, unknown_before: how many of these are the unknown token.
    """

    texts: int
    equal: int
    tokens: int
    tokens_before: int
    unknown: int
    unknown_before: int

    def as_dict(self) -> dict:
        """The counts, with the share of equal texts and the growth in tokens, in points."""
        return asdict(self) | {
            "equal_percent": round(100 * self.equal / max(self.texts, 1), 2),
            "more_tokens_percent": round(100 * (self.tokens / max(self.tokens_before, 1) - 1), 2),
        }


def compare_readers(
    before: PieceReader, after: PieceReader, kept_ids: np.ndarray, unk_id, batches
) -> SegmentationFigures:
    """How a trimmed tokenizer reads texts, against the untrimmed one.

    Args:
      kept_ids: the id, before, of each id.
      unk_id: before; None without an unknown token.
    """
    old_ids = kept_ids.tolist()
    figures = dict.fromkeys(SegmentationFigures.__dataclass_fields__, 0)
    for texts in batches:
        for rows_before, rows_after in zip(before.all_rows(texts), after.all_rows(texts), strict=True):
            rows = [[old_ids[number] if number >= 0 else -1 for number in ids] for ids in rows_after]
            figures["texts"] += 1
            figures["equal"] += rows == rows_before
            figures["tokens"] += len(rows[0])
            figures["tokens_before"] += len(rows_before[0])
            figures["unknown"] += rows[0].count(unk_id)
            figures["unknown_before"] += rows_before[0].count(unk_id)
    return SegmentationFigures(**figures)
