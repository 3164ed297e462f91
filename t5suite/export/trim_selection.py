"""Which pieces of a vocabulary are kept: those of the text, and those without which a model cannot read any text.

    >>> selection = select_pieces(vocabulary, counts, min_count=1, extra_ids=(), named_ids=())
    >>> len(selection.ids), selection.reasons
    (7552, {'special tokens': 103, 'in the text': 7267, 'single characters': 107, 'others, the likeliest': 75})

Why a text is then segmented as before:

* Unigram (arXiv:1804.10959): the best segmentation is the best path through the pieces of a text. Pieces that are not
  on it can go. Its two extreme scores stay, too: the scores of unknown characters and of symbols that users have
  defined are computed from them.
* BPE (arXiv:1508.07909): the pair of the lowest rank is merged first, wherever it is. Inside a piece of the result, the
  merges are those of the piece alone, so these and the pieces that they pass through are kept. All merges that
  happened are there; others can only be fewer.

Rows come in multiples of 128, which suits matrix units; instead of rows without pieces, as T5 has, the last ones are
filled with the likeliest of the other pieces.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from t5suite.export.trim_vocabularies import Vocabulary, merge_parts
from t5suite.models.vocabulary import embedding_rows

SPECIAL = "special tokens"
IN_TEXT = "in the text"
BY_NAME = "by --keep_pieces"
SINGLE = "single characters"
SCALE = "ends of the scores"
MERGED = "on the way of merges"
FILLED = "others, the likeliest"


@dataclass(frozen=True)
class Selection:
    """The pieces that are kept.

    Attributes:
      ids: int64, ascending: the n-th is the id, before, of the piece with the id n.
      reasons: how many are kept why; each piece is counted once, under the first reason.
    """

    ids: np.ndarray
    reasons: dict[str, int]


def select_pieces(
    vocabulary: Vocabulary, counts: np.ndarray, min_count: int, extra_ids: Iterable[int], named_ids
) -> Selection:
    """The pieces that occur in the text, with those that any text needs.

    Args:
      counts: [V], how often each id occurs in the text.
      min_count: a piece is kept if it occurs at least this often.
      extra_ids: further ones that have a part of their own, such as those that a configuration names.
      named_ids: those that the user names.
    """
    single_ids = [piece_id for piece, piece_id in vocabulary.ids.items() if len(piece) == 1]
    groups = {
        SPECIAL: vocabulary.special_ids.union(extra_ids),
        IN_TEXT: np.flatnonzero(counts >= min_count).tolist(),
        BY_NAME: named_ids,
        SINGLE: single_ids,
    }
    reasons = {}
    chosen: set[int] = set()
    for reason, ids in groups.items():
        _choose(chosen, ids, reason, reasons)
    if vocabulary.kind == "Unigram":
        _choose(chosen, _extreme_scores(vocabulary), SCALE, reasons)
        candidates = _likeliest(vocabulary, counts)
    else:
        _choose(chosen, _passed_pieces(vocabulary, chosen), MERGED, reasons)
        candidates = _earliest_merges(vocabulary, chosen)
    room = min(embedding_rows(len(chosen)), len(vocabulary.ids)) - len(chosen)
    fillers = []
    for piece_id in candidates:
        if len(fillers) == room:
            break
        if piece_id not in chosen:
            fillers.append(piece_id)
            chosen.add(piece_id)
    reasons[FILLED] = len(fillers)
    return Selection(np.array(sorted(chosen), dtype=np.int64), {why: count for why, count in reasons.items() if count})


def _choose(chosen: set[int], ids: Iterable[int], reason: str, reasons: dict[str, int]) -> None:
    before = len(chosen)
    chosen.update(ids)
    reasons[reason] = len(chosen) - before


def _extreme_scores(vocabulary: Vocabulary) -> list[int]:
    """The ids of the lowest and the highest score, of all pieces and of those that are not special."""
    scores = {piece_id: score for piece_id, (_, score) in enumerate(vocabulary.settings["model"]["vocab"])}
    ordinary = [piece_id for piece_id in scores if piece_id not in vocabulary.special_ids]
    ends = []
    for ids in (ordinary, list(scores)):
        ends += [min(ids, key=scores.__getitem__), max(ids, key=scores.__getitem__)] if ids else []
    return ends


def _likeliest(vocabulary: Vocabulary, counts: np.ndarray) -> list[int]:
    """Ids by their count in the text, then by their score, the highest first."""
    scores = [score for _, score in vocabulary.settings["model"]["vocab"]]
    return sorted(range(len(scores)), key=lambda piece_id: (-counts[piece_id], -scores[piece_id], piece_id))


def _passed_pieces(vocabulary: Vocabulary, ids: set[int]) -> set[int]:
    """The ids of the pieces that are merged on the way to these."""
    merges = [merge_parts(merge) for merge in vocabulary.settings["model"]["merges"]]
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    passed: set[int] = set()
    for piece_id in ids - vocabulary.special_ids:
        for piece in merged_pieces(vocabulary.pieces[piece_id], ranks):
            if piece in vocabulary.ids:
                passed.add(vocabulary.ids[piece])
    return passed


def merged_pieces(text: str, ranks: dict[tuple[str, str], int]) -> Iterator[str]:
    """The pieces that byte-pair encoding passes through from a text's characters to its end, which is the last.

    >>> list(merged_pieces("then", {("t", "h"): 0, ("e", "n"): 1, ("th", "en"): 2}))
    ['t', 'h', 'e', 'n', 'th', 'en', 'then']
    """
    symbols = list(text)
    yield from symbols
    while len(symbols) > 1:
        pairs = list(itertools.pairwise(symbols))
        best = min(range(len(pairs)), key=lambda place: ranks.get(pairs[place], len(ranks)))
        if pairs[best] not in ranks:
            return
        symbols[best : best + 2] = ["".join(pairs[best])]
        yield symbols[best]


def _earliest_merges(vocabulary: Vocabulary, chosen: set[int]) -> Iterator[int]:
    """Ids of pieces that merge two of those that are kept, in the order of merges; `chosen` grows between them."""
    for merge in vocabulary.settings["model"]["merges"]:
        first, second = merge_parts(merge)
        merged_id = vocabulary.ids.get(first + second)
        if merged_id is None or merged_id in chosen:
            continue
        if vocabulary.ids.get(first) in chosen and vocabulary.ids.get(second) in chosen:
            yield merged_id
