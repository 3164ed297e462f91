"""A tokenizer's files without some of its pieces: `tokenizer.json`, and SentencePiece's model beside it.

    >>> vocabulary = read_vocabulary(tokenizer, "--model_name_or_path t5-small")
    >>> trimmed_settings(vocabulary, [0, 1, 2, 37, 32099])["model"]["vocab"]
    [['<pad>', 0.0], ['</s>', 0.0], ['<unk>', 0.0], ['▁the', -3.2], ['<extra_id_0>', 0.0]]

Pieces keep their order, so special tokens, T5's sentinels (counting down) and codes of languages stay where their
tokenizer's class looks for them; ids are numbered anew without gaps.
"""

import copy
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.export.trim_types import REFUSED_TOKENIZERS, types_in_words

SPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model")
KINDS = ("Unigram", "BPE")
SENTINEL = re.compile(r"\u2581?<extra_id_\d+>")
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# SentencePiece's numbers for pieces that no text gives by their scores: unknown, control, user-defined, byte.
TYPES_WITHOUT_TEXT = (2, 3, 4, 6)


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's pieces.

    Attributes:
      settings: the content of its `tokenizer.json`.
      ids: by piece, added tokens included.
      special_ids: those of special and added tokens, sentinels, codes of languages and bytes.
    """

    settings: dict
    ids: dict[str, int]
    special_ids: frozenset[int]

    @property
    def kind(self) -> str:
        """Unigram or BPE."""
        return self.settings["model"]["type"]

    @cached_property
    def pieces(self) -> dict[int, str]:
        """By id."""
        return {piece_id: piece for piece, piece_id in self.ids.items()}

    @cached_property
    def size(self) -> int:
        """One above the highest id."""
        return max(self.pieces) + 1


def read_vocabulary(tokenizer, place: str) -> Vocabulary:
    """The vocabulary of a tokenizer whose kind can be trimmed.

    Raises:
      ConfigError: it is of another kind; says what works.
    """
    tokenizer_class = type(tokenizer).__name__
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if tokenizer_class in REFUSED_TOKENIZERS or backend is None:
        reason = REFUSED_TOKENIZERS.get(tokenizer_class, f"{tokenizer_class} has no tokenizer.json")
        raise ConfigError(f"{place}: {reason}; the vocabularies of {types_in_words()} are trimmed")
    settings = json.loads(backend.to_str())
    kind = settings["model"]["type"]
    if kind not in KINDS:
        raise ConfigError(
            f"{place}: its vocabulary is of the kind {kind}, and only {' and '.join(KINDS)} are trimmed: those of "
            f"{types_in_words()}"
        )
    return Vocabulary(settings, tokenizer.get_vocab(), frozenset(_special_ids(tokenizer)))


def _special_ids(tokenizer) -> set[int]:
    ids = tokenizer.get_vocab()
    names = {token.content for token in tokenizer.added_tokens_decoder.values()}
    names.update(tokenizer.all_special_tokens)
    names.update(piece for piece in ids if SENTINEL.fullmatch(piece) or BYTE.fullmatch(piece))
    return {ids[name] for name in names if name in ids}


def trimmed_settings(vocabulary: Vocabulary, kept_ids) -> dict:
    """The content of `tokenizer.json` with these pieces alone.

    Args:
      kept_ids: ascending; the n-th gets the id n.
    """
    new_ids = {int(old_id): new_id for new_id, old_id in enumerate(kept_ids)}
    # Copied by parts: a copy of a whole vocabulary takes seconds.
    settings = {**vocabulary.settings, "truncation": None, "padding": None}
    settings["model"] = _trimmed_pieces(vocabulary, new_ids)
    settings["added_tokens"] = [{**token, "id": new_ids[token["id"]]} for token in settings["added_tokens"]]
    if settings["post_processor"] is not None:
        settings["post_processor"] = copy.deepcopy(settings["post_processor"])
        _renumber_processor(settings["post_processor"], new_ids)
    return settings


def _trimmed_pieces(vocabulary: Vocabulary, new_ids: dict[int, int]) -> dict:
    """The part `model` of `tokenizer.json` with the pieces of these ids."""
    model = dict(vocabulary.settings["model"])
    if vocabulary.kind == "Unigram":
        model["vocab"] = [entry for piece_id, entry in enumerate(model["vocab"]) if piece_id in new_ids]
        if model["unk_id"] is not None:
            model["unk_id"] = new_ids[model["unk_id"]]
        return model
    pieces = model["vocab"]
    model["vocab"] = {piece: new_ids[piece_id] for piece, piece_id in pieces.items() if piece_id in new_ids}
    model["merges"] = [merge for merge in model["merges"] if _is_within(merge, model["vocab"])]
    return model


def merge_parts(merge) -> tuple[str, str]:
    """The two pieces of a merge, in either form of the file.

    >>> merge_parts("▁t h"), merge_parts(["▁t", "h"])
    (('▁t', 'h'), ('▁t', 'h'))
    """
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _is_within(merge, pieces: dict[str, int]) -> bool:
    first, second = merge_parts(merge)
    return first in pieces and second in pieces and first + second in pieces


def _renumber_processor(processor: dict, new_ids: dict[int, int]) -> None:
    """Gives the new ids to what a post-processor puts around a text."""
    for part in processor.get("processors", ()):
        _renumber_processor(part, new_ids)
    special_tokens = processor.get("special_tokens")
    if isinstance(special_tokens, dict):
        for token in special_tokens.values():
            token["ids"] = [new_ids[token_id] for token_id in token["ids"]]
    for name in ("sep", "cls"):
        if isinstance(processor.get(name), list):
            token, token_id = processor[name]
            processor[name] = [token, new_ids[token_id]]


def read_spiece_files(folder) -> dict[str, bytes]:
    """SentencePiece's models in a folder, by file name; none for None."""
    if folder is None:
        return {}
    paths = [Path(folder) / name for name in SPIECE_FILES]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def pieces_without_text(content: bytes) -> set[str]:
    """The pieces of SentencePiece's model that no score gives to a text: unknown, control, user-defined, bytes."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    return {piece.piece for piece in model.pieces if piece.type in TYPES_WITHOUT_TEXT}


def trimmed_spiece(content: bytes, kept_pieces) -> bytes:
    """SentencePiece's model with these pieces alone, in their order."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    entries = [piece for piece in model.pieces if piece.piece in kept_pieces]
    del model.pieces[:]
    model.pieces.extend(entries)
    model.trainer_spec.vocab_size = len(entries)
    ids = {entry.piece: number for number, entry in enumerate(entries)}
    for name in ("unk", "bos", "eos", "pad"):
        piece = getattr(model.trainer_spec, f"{name}_piece")
        if getattr(model.trainer_spec, f"{name}_id") >= 0:
            setattr(model.trainer_spec, f"{name}_id", ids.get(piece, -1))
    return model.SerializeToString()
