"""A unigram tokenizer's ids in one compiled pass over the bytes, where numba is installed (`t5suite[speed]`).

    >>> engine = CompiledEngine(tokenizer.backend_tokenizer.to_str(), reference)
    >>> engine.encode_flat(["The end.", "It's"])
    (array([ 37, 414,   5,  94,  31,   7], dtype=int32), array([0, 3, 6]))

`tokenizers` normalises a text, splits it at white space and looks for the best pieces of every word by itself: so does
this, with the same scores in the same float64, the same order of equals, and a memory of words. What it cannot do
by itself is the reference's, whole words at a time:

* characters outside of ALONE, of which several may make one (accents that are typed apart, Indic scripts, emoji), with
  all words up to the next space between ASCII characters, over which no rule of normalisation reaches;
* words of thousands of bytes; texts in which an added token might be found (`added_tokens`).

What becomes of every other character is asked of the tokenizer's own normaliser, character by character, when the
engine is made. Source: `tokenizers`, models/unigram/model.rs, `encode_optimized`; normalizers/precompiled.rs.

Shape suffixes: V pieces, N places for nodes, T texts, R regions; of ids, too, N.
"""

import base64
import importlib.util
import itertools
import json
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.compiled_loops import announce_compilation

INSTALL = "pip install 't5suite[speed]'"
WORDS_KEPT = 1 << 18  # places for words; half of them are used
IDS_KEPT = 1 << 20
LONGEST_WORD = 4096  # bytes
BYTES_AT_ONCE = 1 << 20
PLACES_A_BYTE = 4  # of the pieces, at most
MOST_BYTES, MOST_CHARACTERS = 32, 4  # of what one character becomes
PADDING = b"\n" * 17  # what may be read behind the last text
UNK_PENALTY = 10.0  # below the lowest score, models/unigram/model.rs
UNDERLINE = "\u2581"
# First and last characters that stand alone: of two of them, or of one and an ASCII character, none makes a cluster
# (UAX 29) with the other.
ALONE = (
    (0xA0, 0xAC), (0xAE, 0x2FF),  # Latin; U+00AD is left out
    (0x370, 0x482), (0x48A, 0x58F),  # Greek, Cyrillic, Armenian
    (0x5D0, 0x5EA), (0x620, 0x64A), (0x10A0, 0x10FF),  # letters of Hebrew, Arabic, Georgian
    (0x1E00, 0x1FFF), (0x2000, 0x200A), (0x2010, 0x2027), (0x202F, 0x205F), (0x2070, 0x20CF),  # punctuation, currency
    (0x2100, 0x2580), (0x2582, 0x2BFF),  # symbols, without U+2581
    (0x3000, 0x3029), (0x3030, 0x3096), (0x309B, 0x30FF), (0x3105, 0x318E), (0x3200, 0x33FF),  # kana and others
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFF01, 0xFF9D), (0xFFE0, 0xFFE6),  # Han, Hangul, wide forms
)  # fmt: skip
# Where words end (White_Space of Unicode, as Rust has it; Python also counts U+001C to U+001F).
WHITE_SPACE = frozenset("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | frozenset(
    map(chr, range(0x2000, 0x200B))
)
# Pre-tokenizers that split at white space and begin every word with U+2581.
SPLIT = {"type": "WhitespaceSplit"}
WORD_START = {"type": "Metaspace", "replacement": UNDERLINE, "prepend_scheme": "always", "split": True}

Encode = Callable[[Sequence[str]], list[list[int]]]


class CompiledEngine:
    """Texts -> ids of a `tokenizers` JSON of T5's form; `reference` encodes what this cannot.

    Threads take turns: the memory of words is shared.

    Raises:
      ConfigError: numba cannot be used, or the tokenizer has another form (`why_not`).
    """

    def __init__(self, backend: str, reference: Encode):
        settings = json.loads(backend)
        if reason := why_not(settings):
            raise ConfigError(reason)
        from t5suite.data.text import numba_pieces

        announce_compilation()
        self.reference = reference
        self._encode_bytes = numba_pieces.encode_bytes
        self._rules = character_rules(settings["normalizer"], numba_pieces)
        self._trie = trie_of(settings["model"], numba_pieces)
        self._added = pattern_of(settings["added_tokens"])
        self._memory = (
            np.zeros((WORDS_KEPT, 4), np.uint64), np.zeros(IDS_KEPT, np.int32), np.zeros(2, np.int64),
        )  # fmt: skip
        room = LONGEST_WORD + numba_pieces.ROOM
        self._scratch = (np.zeros(room), np.zeros(room, np.int32), np.zeros(room, np.int32))
        self._word = np.zeros(room, np.uint8)
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, without special tokens at its ends."""
        ids_N, offsets = self.encode_flat(texts)
        ids, offsets = ids_N.tolist(), offsets.tolist()
        return [ids[start:end] for start, end in itertools.pairwise(offsets)]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """`(ids [N], offsets [T + 1])`: text i has the ids from offsets[i] to offsets[i + 1]."""
        parts = [self._encode_part(*part) for part in parts_of(texts)]
        if not parts:
            return np.zeros(0, np.int32), np.zeros(1, np.int64)
        counts = np.concatenate([counts for _, counts in parts])
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([[0], np.cumsum(counts)])

    def forget(self) -> None:
        """Empties the memory of words."""
        with self._lock:
            self._memory[0][:, 3] = 0
            self._memory[2][:] = 0

    def share_left(self, texts: Sequence[str]) -> float:
        """The share of the texts' bytes that the reference has to encode."""
        left = total = 0
        for part, raw in parts_of(texts):
            left += sum(len(raw[number]) for number in self._with_added_tokens(part))
            total += sum(map(len, raw))
            regions_R = self._compiled(*joined(raw))[2]
            left += int((regions_R[:, 1] - regions_R[:, 0]).sum())
        return left / max(total, 1)

    def _encode_part(self, texts: Sequence[str], raw: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """`(ids, their numbers in each text)`."""
        whole = self._with_added_tokens(texts)
        for number in whole:
            raw[number] = b""
        data, bounds_T = joined(raw)
        ids_N, ends_T, regions_R = self._compiled(data, bounds_T)
        counts_T = np.diff(ends_T, prepend=0)
        if not len(regions_R) and not whole:
            return ids_N, counts_T
        text_R = np.searchsorted(bounds_T, regions_R[:, 0], side="right") - 1
        left = [data[start:end].tobytes().decode("utf-8", "surrogatepass") for start, end in regions_R[:, :2].tolist()]
        found = self.reference(left + [texts[number] for number in whole])
        text_R = np.concatenate([text_R, whole]).astype(np.int64)
        np.add.at(counts_T, text_R, [len(ids) for ids in found])
        places_R = np.concatenate([regions_R[:, 2], ends_T[np.array(whole, np.int64)]])
        order = np.lexsort((text_R, places_R))  # several texts may have no ids but these
        return inserted(ids_N, places_R[order].tolist(), [found[number] for number in order]), counts_T

    def _with_added_tokens(self, texts: Sequence[str]) -> list[int]:
        if self._added is None or not self._added.search("\0".join(texts)):
            return []
        return [number for number, text in enumerate(texts) if self._added.search(text)]

    def _compiled(self, data, bounds_T):
        """Ids, the number of them at the end of each text, and the regions that are left out."""
        eights = np.ndarray((len(data) - 7,), np.uint64, data, 0, (1,))
        ids = np.empty(MOST_CHARACTERS * len(data), np.int32)  # untouched memory costs nothing
        ends_T = np.empty(len(bounds_T) - 1, np.int64)
        regions_R = np.empty((len(data) // 2 + len(bounds_T), 3), np.int64)
        with self._lock:
            count, num_regions = self._encode_bytes(
                data, eights, bounds_T, self._rules, self._trie, self._memory, self._scratch, self._word, ids, ends_T,
                regions_R,
            )  # fmt: skip
        return ids[:count].copy(), ends_T, regions_R[:num_regions]


def installed() -> bool:
    """Whether numba is there; it is not imported yet."""
    return importlib.util.find_spec("numba") is not None


def why_not(settings: dict) -> str | None:
    """What a `tokenizers` JSON has that the compiled pass does not do, in words; None where it does all.

    >>> why_not({**t5_settings, "pre_tokenizer": {"type": "ByteLevel"}})
    'it splits words by ByteLevel'
    """
    model, normalizer = settings["model"], settings["normalizer"] or {"type": "Precompiled"}
    if model["type"] != "Unigram" or model.get("byte_fallback") or model.get("unk_id") is None:
        return f"its model is {model['type']}{' with pieces for bytes' if model.get('byte_fallback') else ''}"
    if model.get("alpha"):
        return "its model draws pieces at random"
    if normalizer["type"] != "Precompiled":
        return f"it normalises by {normalizer['type']}"
    if not _splits_at_spaces(settings["pre_tokenizer"]):
        return f"it splits words by {(settings['pre_tokenizer'] or {'type': 'nothing'})['type']}"
    if any(token["normalized"] for token in settings["added_tokens"]):
        return "tokens were added that are looked for in normalised text"
    return None


def _splits_at_spaces(pre_tokenizer: dict | None) -> bool:
    parts = (pre_tokenizer or {}).get("pretokenizers", [])
    return [{**WORD_START, **part} if part["type"] == "Metaspace" else part for part in parts] == [SPLIT, WORD_START]


def pattern_of(added_tokens: list[dict]) -> re.Pattern | None:
    """Finds any of the added tokens in a text; None where there are none."""
    contents = sorted(token["content"] for token in added_tokens)
    return re.compile("|".join(map(re.escape, contents))) if contents else None


def character_rules(normalizer: dict | None, kernel) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """What becomes of each character: `(kinds of ASCII, places of others, what these become, whether ASCII is plain)`.

    A character that becomes several words, too much, or U+2581 is left to the reference.
    """
    normalised = _normaliser(normalizer)
    kinds = np.full(128, kernel.UNKNOWN, np.uint8)
    for code in range(1, 128):
        found = normalised(chr(code))
        kinds[code] = (
            kernel.KEEP if found == chr(code) and found not in WHITE_SPACE
            else kernel.SPACE if found in WHITE_SPACE
            else kernel.UNKNOWN if found
            else kernel.DROP
        )  # fmt: skip
    if normalised("a\r\nb")[1:-1].strip("".join(WHITE_SPACE)):
        kinds[[ord("\r"), ord("\n")]] = kernel.UNKNOWN
    places, written = np.full(1 << 16, -1, np.int32), bytearray()
    for first, last in ALONE:
        for code in range(first, last + 1):
            found = "".join(" " if c in WHITE_SPACE else c for c in normalised(chr(code)))
            as_bytes = found.encode("utf-8")
            if len(found) > MOST_CHARACTERS or len(as_bytes) > MOST_BYTES or UNDERLINE in found or "\0" in found:
                continue
            if unicodedata.category(chr(code)) != "Cn":  # what is not assigned yet may become a mark
                places[code] = len(written) << 8 | len(as_bytes)
                written += as_bytes
    is_plain = bool((kinds[33:127] == kernel.KEEP).all() and (kinds[[10, 32]] == kernel.SPACE).all())
    return kinds, places, np.frombuffer(bytes(written) or b"\0", np.uint8), is_plain


def _normaliser(normalizer: dict | None) -> Callable[[str], str]:
    if normalizer is None:
        return str
    import tokenizers

    return tokenizers.normalizers.Precompiled(base64.b64decode(normalizer["precompiled_charsmap"])).normalize_str


def trie_of(model: dict, kernel) -> tuple[np.ndarray, np.ndarray, int, float]:
    """`(nodes, scores, id of the unknown, its score)`.

    Raises ConfigError where the pieces need too much room.
    """
    numbers = {piece.encode("utf-8", "surrogatepass"): number for number, (piece, _) in enumerate(model["vocab"])}
    pieces = sorted(numbers)
    scores_V = np.array([score for _, score in model["vocab"]], dtype=np.float64)
    data, bounds_V = np.frombuffer(b"".join(pieces), np.uint8), _offsets([len(piece) for piece in pieces])
    nodes_N = np.zeros((PLACES_A_BYTE * len(data) + 1024, kernel.NODE), np.int32)
    num_places = kernel.fill_trie(data, bounds_V, np.array([numbers[piece] for piece in pieces], np.int32), nodes_N)
    if num_places < 0:
        raise ConfigError("its pieces need too much room")
    return nodes_N[: num_places + 256].copy(), scores_V, model["unk_id"], float(scores_V.min()) - UNK_PENALTY


def parts_of(texts: Sequence[str]) -> Iterator[tuple[Sequence[str], list[bytes]]]:
    """Texts with their bytes, of about BYTES_AT_ONCE together.

    >>> [part for part in parts_of(["ab", "c"])]
    [(['ab', 'c'], [b'ab', b'c'])]
    """
    raw, size, first = [], 0, 0
    for number, text in enumerate(texts):
        raw.append(text.encode("utf-8", "surrogatepass"))
        size += len(raw[-1])
        if size >= BYTES_AT_ONCE:
            yield texts[first : number + 1], raw
            raw, size, first = [], 0, number + 1
    if raw:
        yield texts[first:], raw


def joined(raw: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """`(bytes, where each text begins)`: texts with a line's end behind each, and more of them behind the last.

    >>> joined([b"ab", b"c"])[1]
    array([0, 3, 5])
    """
    return np.frombuffer(b"\n".join(raw) + PADDING, np.uint8), _offsets([len(text) + 1 for text in raw])


def inserted(ids_N: np.ndarray, places: Sequence[int], rows: Sequence[Sequence[int]]) -> np.ndarray:
    """The ids with each row put in before the id at its place; places ascend.

    >>> inserted(np.array([1, 2, 3]), [0, 2], [[7], [8, 9]])
    array([7, 1, 2, 8, 9, 3])
    """
    parts, before = [], 0
    for place, row in zip(places, rows, strict=True):
        parts += [ids_N[before:place], np.asarray(row, ids_N.dtype)]
        before = place
    return np.concatenate([*parts, ids_N[before:]])


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
