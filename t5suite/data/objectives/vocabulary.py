"""What masking needs from a vocabulary: its [MASK], its special tokens, and which pieces begin a word.

    piece          ▁The  ▁un  believ  able  .      unigram: sentencepiece's ▁ precedes a word
    begins a word     1    1       0     0  1

Shape suffix: V ids of the vocabulary.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from t5suite.base.errors import ConfigError


@dataclass(frozen=True, eq=False)
class MaskVocabulary:
    """The token ids that masked language modelling needs.

    >>> vocabulary = MaskVocabulary(mask_token_id=4, special_V=np.arange(9) < 5)
    >>> vocabulary.replacement_ids().tolist()
    [5, 6, 7, 8]

    `special_V` (bool [V]) marks ids that are never chosen and never used as replacements, `word_start_V` those that
    begin a word; None if the tokenizer does not show it.
    """

    mask_token_id: int
    special_V: np.ndarray
    word_start_V: np.ndarray | None = None

    def replacement_ids(self) -> np.ndarray:
        """The ids that a random token is drawn from: all that are not special."""
        return np.flatnonzero(~self.special_V)


def mask_vocabulary(tokenizer, need_words: bool = False) -> MaskVocabulary:
    """The `MaskVocabulary` of a Hugging Face tokenizer.

    >>> mask_vocabulary(bert_tokenizer).mask_token_id                    # doctest: +SKIP
    103

    Raises ConfigError if it has no mask token, or if `need_words` and its pieces do not show where words begin.
    """
    if tokenizer.mask_token_id is None:
        raise ConfigError(
            f"the tokenizer {_name(tokenizer)} has no mask token, which --objective masked_lm needs: use a masked "
            "language model's (BERT, RoBERTa), or add one with `tokenizer.add_special_tokens({'mask_token': '[MASK]'})`"
        )
    special_V = np.zeros(1 + max(tokenizer.get_vocab().values()), dtype=bool)
    special_V[list(tokenizer.all_special_ids)] = True
    word_start_V = word_start_flags(tokenizer) if need_words else word_start_flags_if_shown(tokenizer)
    return MaskVocabulary(tokenizer.mask_token_id, special_V, word_start_V)


WORD_START, CONTINUATION = "starts a word", "continues a word"
BYTE_LEVEL = "\u0120"
MARKERS = {"\u2581": WORD_START, BYTE_LEVEL: WORD_START, "##": CONTINUATION}  # sentencepiece, byte-level BPE, wordpiece
# What a piece begins with whose text begins with a tab or the end of a line: as it is, or as a byte of sentencepiece or
# of byte-level BPE. In other vocabularies, the latter are letters.
OTHER_SPACES = ("\t", "\n", "\v", "\f", "\r", "<0x09>", "<0x0A>", "<0x0B>", "<0x0C>", "<0x0D>")
BYTE_LEVEL_SPACES = ("\u0109", "\u010a", "\u010b", "\u010c", "\u010d")

STOPS, CLOSING = ".!?\u2026\u3002\uff01\uff1f", "\"')]\u201d\u2019"


def word_start_flags(tokenizer, remedy: str = "use --mask_units token") -> np.ndarray:
    """Which ids of a tokenizer begin a word, bool [V].

    >>> class Wordpieces:
    ...     all_special_ids = [0]
    ...     def get_vocab(self): return {"[CLS]": 0, "un": 1, "##believ": 2, "##able": 3, ".": 4}
    >>> word_start_flags(Wordpieces()).tolist()
    [True, True, False, False, True]

    The pieces' marks show it: "##" continues a word (wordpiece), "▁" (sentencepiece) and "Ġ" (byte-level BPE) begin
    one. With the latter two, pieces without a letter or digit are separate words, as in
    wordpiece: they follow a word without a space. Special tokens are separate words, too.
    Raises ConfigError if few pieces have any mark (byte or character vocabularies).
    """
    word_start_V = marked_word_flags(tokenizer, remedy)
    vocabulary = tokenizer.get_vocab()
    marker = _marker(vocabulary)
    if MARKERS[marker] == WORD_START:
        for piece, token_id in vocabulary.items():
            word_start_V[token_id] |= not _has_letter(piece, tokenizer, marker)
    word_start_V[list(tokenizer.all_special_ids)] = True
    return word_start_V


def marked_word_flags(tokenizer, remedy: str) -> np.ndarray:
    """Which ids begin with a word's mark or other white space, bool [V]; of wordpieces, those without "##".

    >>> class Pieces:
    ...     def get_vocab(self): return {"</s>": 0, "\u2581etc": 1, ".": 2, ",": 3, "\u2581was": 4, "\\n": 5}
    >>> marked_word_flags(Pieces(), "").tolist()
    [False, True, False, False, True, True]

    The text of such a piece begins with a space or the end of a line; "." and "," of "etc., was" have none. Raises as
    `word_start_flags`.
    """
    vocabulary = tokenizer.get_vocab()
    marker = _marker(vocabulary)
    if marker is None:
        raise ConfigError(
            f"the pieces of the tokenizer {_name(tokenizer)} do not show where a word begins (none of the marks "
            f"{', '.join(MARKERS)}): {remedy}"
        )
    spaces = BYTE_LEVEL_SPACES if marker == BYTE_LEVEL else OTHER_SPACES
    is_marked_V = np.zeros(1 + max(vocabulary.values()), dtype=bool)
    for piece, token_id in vocabulary.items():
        has_mark = piece.startswith(marker) == (MARKERS[marker] == WORD_START)
        is_marked_V[token_id] = has_mark or piece.startswith(spaces)
    return is_marked_V


def word_start_flags_if_shown(tokenizer) -> np.ndarray | None:
    """As `word_start_flags`; None if the pieces do not show where words begin."""
    return word_start_flags(tokenizer) if _marker(tokenizer.get_vocab()) else None


def sentence_end_flags(tokenizer) -> np.ndarray:
    """Which ids of a tokenizer end a sentence if white space follows, bool [V]: end punctuation, and end-of-text.

    >>> class Pieces:
    ...     eos_token_id = 0
    ...     def get_vocab(self): return {"</s>": 0, "Dr": 1, ".": 2, "?!": 3, ".'": 4, "...a": 5}
    >>> sentence_end_flags(Pieces()).tolist()
    [True, False, True, True, True, False]

    A heuristic: an abbreviation's full stop ends a sentence, too, unless punctuation follows it ("etc., was").
    Raises ConfigError if no piece ends a sentence.
    """
    vocabulary = tokenizer.get_vocab()
    sentence_end_V = np.zeros(1 + max(vocabulary.values()), dtype=bool)
    for piece, token_id in vocabulary.items():
        text = piece.lstrip("".join(marker for marker, kind in MARKERS.items() if kind == WORD_START))
        sentence_end_V[token_id] = text[:1] in tuple(STOPS) and not text.strip(STOPS + CLOSING)
    if not sentence_end_V.any():
        raise ConfigError(
            f"no piece of the tokenizer {_name(tokenizer)} ends a sentence (one of {' '.join(STOPS)}), which "
            "--objective sentence_deshuffling needs"
        )
    if tokenizer.eos_token_id is not None:
        sentence_end_V[tokenizer.eos_token_id] = True
    return sentence_end_V


def _marker(vocabulary) -> str | None:
    """The most frequent mark, if at least one piece in a hundred has it."""
    marked = ((marker, piece) for marker in MARKERS for piece in vocabulary if piece.startswith(marker))
    counts = Counter(marker for marker, piece in marked if piece != marker)
    marker, count = max(counts.items(), key=lambda item: item[1], default=(None, 0))
    return marker if count * 100 >= len(vocabulary) else None


def _has_letter(piece: str, tokenizer, marker: str) -> bool:
    """Whether a piece without a mark has a letter or digit; part of a character (bytes) counts as one."""
    text = tokenizer.convert_tokens_to_string([piece]) if marker == BYTE_LEVEL else piece
    return any(character.isalnum() or character == "\ufffd" for character in text)


def _name(tokenizer) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
