"""SentencePiece's own encoder, made to give the tokenizer's ids: short pieces of text, and no ties.

    >>> engine = SentencePieceEngine(Path("spiece.model").read_bytes(), reference)
    >>> engine.encode(["The end."])
    [[37, 414, 5]]

`tokenizers` looks for the best pieces of every word by itself, in float64. SentencePiece looks for those of the whole
text at once and adds their scores up in float32, where after 20,000 characters a score is known to 0.004 only: of two
ways to cut a word that are as near as that, it takes either (`comprising` in one of 125 speeches). So

* texts are cut at spaces into pieces of at most PIECE characters, which are encoded by themselves, where the model's
  pieces never reach over a space (measured: 10 of 350 long documents differ whole, none in pieces of 1000);
* words with true ties are the tokenizer's: `............` is `....` and `........`, in one order or the other. So are
  words of more than PIECE characters.

Whoever encodes a corpus still compares now and then (`text.encoding`).
"""

import base64
import itertools
import json
import logging
import re
import unicodedata
from collections.abc import Callable, Container, Sequence

import numpy as np

logger = logging.getLogger(__name__)

PIECE = 500
LONGEST_RUN = 64
SPACED = (("a", "b"), ("The end.", "It's"), ("x ", " y"), ("1", "\u00e9"))
SPACE = "\u2581"
SENTINEL = re.compile(r"▁?<extra_id_\d+>")
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE_PIECE = 1, 2, 3, 4, 6
# Spaces, compatibility forms (ligatures, fractions), letters without a piece, and what looks like markup. No tabs: a
# model without normalization reads them as letters, and tokenizer.json as spaces.
TEXTS = (
    "the film was good.",
    "  two  spaces ",
    "ﬁne ½ naïve Ångström ＡＢＣ １２３",
    "don't stop: 3.14, (yes) <b>no</b> 你好 🙂",
    "",
)

Encode = Callable[[Sequence[str]], list[list[int]]]


class SentencePieceEngine:
    """Texts -> ids by a SentencePiece model; `reference` encodes the texts that have ties.

    Raises RuntimeError where the bytes are no model.
    """

    def __init__(self, model: bytes, reference: Encode):
        import sentencepiece

        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.reference = reference
        names = [self.processor.id_to_piece(number) for number in range(self.processor.get_piece_size())]
        self.ties = tied_runs(names, reference)  # a few dozen
        self.can_be_cut = not any(SPACE in name.lstrip(SPACE) for name in names) and self._adds_up()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, without special tokens."""
        if not self.can_be_cut:
            return self._encode(list(texts))
        parts, counts, tied = [], [], []
        for text in texts:
            cut = pieces_of(text) if len(text) > PIECE else [text]
            runs = self._ties_in(text)
            if runs or len(text) > PIECE:
                places = enumerate(cut, start=len(parts))
                tied += [place for place, part in places if len(part) > PIECE or _has_one(part, runs)]
            parts += cut
            counts.append(len(cut))
        ids = self._encode(parts)
        for place, exact in zip(tied, self.reference([parts[place] for place in tied]) if tied else ()):
            ids[place] = exact
        each = iter(ids)
        return [next(each) if count == 1 else _joined(itertools.islice(each, count)) for count in counts]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.processor.encode(texts, out_type=int, num_threads=1)

    def _ties_in(self, text: str) -> list[str]:
        characters = repeated_characters(text)
        runs = [run for run in self.ties if run[0] in characters]
        return [run for run in runs if _has_one(text, [run])]

    def _adds_up(self) -> bool:
        pairs = [self._encode([one, other, f"{one} {other}"]) for one, other in SPACED]
        return all(first + second == whole for first, second, whole in pairs)


def pieces_of(text: str, size: int = PIECE) -> list[str]:
    """The text cut at spaces, which are left out, into parts of at most so many characters where it has spaces.

    >>> pieces_of("the end of it", size=8)
    ['the end', 'of it']
    """
    parts, start = [], 0
    while len(text) - start > size:
        end = text.rfind(" ", start + 1, start + size + 1)
        if end < 0:
            end = text.find(" ", start + size)
        if end < 0:
            break
        parts.append(text[start:end])
        start = end + 1
    return [*parts, text[start:]]


def tied_runs(names: Sequence[str], reference: Encode) -> tuple[str, ...]:
    """For each character of which several runs are pieces, the shortest run that takes two different pieces.

    >>> tied_runs(["a", ".", "...", "...."], reference)        # ....... is ... and ...., or the other way round
    ('.....',)
    """
    runs = {}
    for name in names:
        text = name.lstrip(SPACE)
        if len(set(text)) == 1:
            runs.setdefault(text[0], set()).add(len(text))
    found = []
    for character in sorted(character for character, lengths in runs.items() if len(lengths) > 1):
        # Behind another letter, for a run at the beginning of a word has a piece of its own.
        letter, *ids = reference(["x", *(f"x{character * length}" for length in range(1, LONGEST_RUN))])
        tied = (length for length, cut in enumerate(ids, start=1) if length > 2 and len(set(cut[len(letter) :])) > 1)
        found += [character * length for length in itertools.islice(tied, 1)]
    return tuple(found)


def repeated_characters(text: str) -> Container[str]:
    """ASCII characters that come three times in a row; all, where others come twice, for one `…` is three dots.

    >>> repeated_characters("wait..."), repeated_characters("wait. ")
    ({'.'}, set())

    It looks at all of the text at once, in a hundredth of the time in which SentencePiece encodes it.
    """
    units = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    if not text.isascii() and any(_in_a_row(units[n:] == units[:-n], units[n:] > 127, n).any() for n in (2, 3, 4)):
        return ANY
    three = _in_a_row(units[1:] == units[:-1], units[1:] > ord(" "), 2)
    return set(units[np.flatnonzero(three)].tobytes().decode("ascii", "ignore"))


def _in_a_row(equal, counts, length):
    """Where so many in a row are equal and count."""
    both = equal & counts
    for _ in range(length - 1):
        both = both[1:] & both[:-1]
    return both


class _Any:
    """Contains every character."""

    def __contains__(self, character):
        return True


def _has_one(text: str, runs: list[str]) -> bool:
    if runs and not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return any(run in text for run in runs)


def _joined(parts) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


ANY = _Any()


# ---------------------------------------------------------------------------------------------------------------------
# The model of a tokenizer that has tokenizer.json alone


def spiece_of(tokenizer) -> bytes | None:
    """sentencepiece's file of a tokenizer, which transformers 5 does not write: tokenizer.json -> `spiece.model`.

    >>> content = spiece_of(tokenizer)
    >>> SentencePieceProcessor(model_proto=content).encode("the film was good.")
    [4, 304, 501, 513, 509, 503, 9, 325, 3]

    None where it is not of T5's kind, a unigram model with the sentinels behind its pieces, or would read TEXTS
    otherwise. Field numbers and types of pieces: sentencepiece's `sentencepiece_model.proto`.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = json.loads(backend.to_str()) if backend is not None else {}
    normalizer = content.get("normalizer")
    known = normalizer is None or (normalizer["type"] == "Precompiled" and normalizer["precompiled_charsmap"])
    if content.get("model", {}).get("type") != "Unigram" or not known:
        return None
    made = _proto(content["model"], normalizer, tokenizer).SerializeToString()
    differing = next((text for text in TEXTS if _ids_by(made, text) != _own_ids(tokenizer, text)), None)
    if differing is not None:
        logger.warning("no spiece.model can be made of tokenizer.json: it would read %r otherwise", differing)
        return None
    return made


def _proto(model: dict, normalizer: dict | None, tokenizer):
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    special = {token for token in (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token) if token}
    unknown = model["unk_id"]
    pieces = list(model["vocab"])
    while pieces and SENTINEL.fullmatch(pieces[-1][0]):
        pieces.pop()
    for number, (piece, score) in enumerate(pieces):
        kind = UNKNOWN if number == unknown else CONTROL if piece in special else NORMAL
        kind = BYTE_PIECE if model.get("byte_fallback") and BYTE.fullmatch(piece) else kind
        proto.pieces.add(piece=piece, score=score, type=USER_DEFINED if SENTINEL.fullmatch(piece) else kind)
    places = {piece: number for number, (piece, _) in enumerate(pieces)}
    trainer = proto.trainer_spec
    trainer.model_type, trainer.vocab_size, trainer.byte_fallback = 1, len(pieces), bool(model.get("byte_fallback"))
    trainer.unk_id, trainer.unk_piece = unknown, pieces[unknown][0]
    for name in ("pad", "eos", "bos"):
        token = getattr(tokenizer, f"{name}_token")
        setattr(trainer, f"{name}_id", places.get(token, -1))
        if token in places:
            setattr(trainer, f"{name}_piece", token)
    settings = proto.normalizer_spec
    settings.add_dummy_prefix = settings.remove_extra_whitespaces = settings.escape_whitespaces = True
    if normalizer is not None:
        settings.name, settings.precompiled_charsmap = "nmt_nfkc", base64.b64decode(normalizer["precompiled_charsmap"])
    else:
        settings.name = "identity"
    return proto


def _ids_by(content: bytes, text: str) -> list[int]:
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_proto=content).encode(text)


def _own_ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
