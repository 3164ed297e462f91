"""Collocations: n-grams of tokens that occur together more often than their parts would by chance.

    >>> text = [155, 20, 7, 8, 9, 155, 20, 9, 8, 7] * 20              # "New York" (155, 20), and words in any order
    >>> table = find_collocations(text, num_collocations=8, max_ngram=2)
    >>> table.ngrams_KN[0].tolist(), table.counts_K[0].item(), round(table.pmi_K[0].item(), 3)
    ([155, 20], 40, 1.614)

PMI-masking hides each of them as one unit (`--mask_units pmi`, arXiv:2010.01825).
Shape suffixes: P places of the text, K n-grams, N tokens of an n-gram, B rows, L tokens of a row.
"""

import itertools
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.corpora.store import encodes_alike, tokenizer_fingerprint
from t5suite.data.rows.jsonl import numbered_lines, write_jsonl

NONE = -1
# Of all collocations, how many have 2, 3, 4 and 5 tokens: the measure is not comparable between lengths (the paper's).
SHARES = {2: 0.5, 3: 0.25, 4: 0.125, 5: 0.125}


class NgramCounts(NamedTuple):
    """The n-grams of one n that occur often enough.

    `counts_K` is how often each occurs, `examples_K` a place where it begins; `ids_P` (int32) is the n-gram that begins
    at each place of the text, -1 for none; `num_windows` counts all n-grams, including rare ones and repetitions.
    """

    counts_K: np.ndarray
    examples_K: np.ndarray
    ids_P: np.ndarray
    num_windows: int


def count_ngrams(tokens_P, max_ngram: int = 5, min_count: int = 10, special_ids=()) -> list[NgramCounts]:
    """Counts of the n-grams of 1 to `max_ngram` tokens that occur at least `min_count` times.

    >>> [(level.counts_K.tolist(), level.num_windows) for level in count_ngrams([5, 6, 7, 5, 6], 2, min_count=2)]
    [([2, 2], 5), ([2], 4)]

    An n-gram can only be frequent where both its (n-1)-grams are, so each n sorts only what the previous n kept.
    `special_ids` (separators between documents, say): no n-gram contains one.
    A million tokens take 0.3 s and 70 MB (measured on two million).
    """
    tokens_P = np.asarray(tokens_P)
    usable_P = ~np.isin(tokens_P, list(special_ids))
    level = _frequent(tokens_P.astype(np.int64), usable_P, min_count)
    levels = [level]
    unigrams_P = level.ids_P
    window_P = usable_P
    for n in range(2, max_ngram + 1):
        shorter_P = levels[-1].ids_P
        window_P = window_P[:-1] & usable_P[n - 1 :]
        frequent_P = (shorter_P[:-1] >= 0) & (shorter_P[1:] >= 0)
        keys_P = shorter_P[:-1] * np.int64(len(levels[0].counts_K)) + unigrams_P[n - 1 :]
        levels.append(_frequent(keys_P, frequent_P, min_count)._replace(num_windows=int(window_P.sum())))
    return levels


def _frequent(keys_P, usable_P, min_count) -> NgramCounts:
    """The keys that occur at least `min_count` times at usable places, numbered in their order."""
    places = np.flatnonzero(usable_P)
    _, numbers, counts = np.unique(keys_P[places], return_inverse=True, return_counts=True)
    is_frequent = counts >= min_count
    new_numbers = np.where(is_frequent, np.cumsum(is_frequent) - 1, NONE).astype(np.int32)
    ids_P = np.full(len(keys_P), NONE, dtype=np.int32)
    ids_P[places] = new_numbers[numbers]
    examples_K = np.empty(int(is_frequent.sum()), dtype=np.int64)
    frequent_places = np.flatnonzero(ids_P >= 0)
    examples_K[ids_P[frequent_places]] = frequent_places
    return NgramCounts(counts[is_frequent], examples_K, ids_P, len(places))


def pointwise_mutual_information(levels: list[NgramCounts]) -> list[np.ndarray]:
    """PMI in nats of the n-grams of 2, 3, ... tokens, one array [K] for each n.

    PMI(w_1 ... w_n) = min over its segmentations s into two or more parts of log p(w_1 ... w_n) / prod p(part), so
    that an n-gram scores high only if no way to cut it up explains it (arXiv:2010.01825 eq. 3). p is an n-gram's
    count, divided by the number of all n-grams of that n. The best segmentation of an n-gram is a best cut into two,
    and each part is kept whole or cut further, whichever is better.
    """
    measures = []
    best_sums = []  # [n-1][k]: the larger of log p and its best segmentation's sum
    for n, level in enumerate(levels, start=1):
        log_p_K = np.log(level.counts_K / max(level.num_windows, 1))
        if n == 1:
            best_sums.append(log_p_K)
            continue
        parts_K = np.full(len(log_p_K), -np.inf)
        for cut in range(1, n):
            left_K = best_sums[cut - 1][levels[cut - 1].ids_P[level.examples_K]]
            right_K = best_sums[n - cut - 1][levels[n - cut - 1].ids_P[level.examples_K + cut]]
            parts_K = np.maximum(parts_K, left_K + right_K)
        measures.append(log_p_K - parts_K)
        best_sums.append(np.maximum(log_p_K, parts_K))
    return measures


def find_collocations(
    tokens_P,
    num_collocations: int = 800_000,
    max_ngram: int = 5,
    min_count: int = 10,
    special_ids=(),
    tokenizer: str = "",
    vocabulary_size: int | None = None,
) -> "Collocations":
    """The table of a text's strongest collocations.

    Half of them have 2 tokens, a quarter 3, an eighth each 4 and 5, each length ranked separately, as in the paper
    (800,000 for 16 GB of text); if a length has fewer with a positive PMI, all of those are taken.

    `special_ids` are ids that no collocation contains; `tokenizer`, a fingerprint, and `vocabulary_size`, its ids, are
    saved with the table. Raises ConfigError for settings that leave nothing to count, DataError if the text has no
    collocation.
    """
    if max_ngram not in SHARES or min_count < 1 or num_collocations < len(SHARES):
        raise ConfigError(
            f"max_ngram {max_ngram}, min_count {min_count}, num_collocations {num_collocations}: collocations have 2 "
            f"to {max(SHARES)} tokens, each at least once, and there are at least {len(SHARES)}"
        )
    tokens_P = np.asarray(tokens_P)
    levels = count_ngrams(tokens_P, max_ngram, min_count, special_ids)
    shares = {n: SHARES[n] for n in range(2, max_ngram + 1)}
    ngrams = []
    counts = []
    scores = []
    for n, pmi_K in enumerate(pointwise_mutual_information(levels), start=2):
        level = levels[n - 1]
        num_strongest = round(num_collocations * shares[n] / sum(shares.values()))
        strongest = np.argsort(-pmi_K, kind="stable")[:num_strongest]
        strongest = strongest[pmi_K[strongest] > 0]
        places = level.examples_K[strongest, None] + np.arange(n)
        ngrams.append(np.pad(tokens_P[places], ((0, 0), (0, max_ngram - n)), constant_values=NONE))
        counts.append(level.counts_K[strongest])
        scores.append(pmi_K[strongest])
    if sum(map(len, counts)) == 0:
        raise DataError(f"no collocation among {len(tokens_P)} tokens (min_count {min_count}): give more text")
    facts = (tokenizer, vocabulary_size)
    return Collocations(np.concatenate(ngrams), np.concatenate(counts), np.concatenate(scores), *facts)


class Collocations:
    """A table of collocations, which finds them in rows of tokens.

    `ngrams_KN` is int64 [K, 5 or less], shorter ones padded with -1; `counts_K` is how often each occurs in the
    text that the table was built from; `pmi_K` is in nats; `tokenizer` is a fingerprint, or "", `vocabulary_size` the
    number of its ids, or None.
    """

    def __init__(self, ngrams_KN, counts_K, pmi_K, tokenizer: str = "", vocabulary_size: int | None = None):
        self.ngrams_KN = np.asarray(ngrams_KN, dtype=np.int64)
        self.counts_K = counts_K
        self.pmi_K = pmi_K
        self.tokenizer = tokenizer
        self.vocabulary_size = vocabulary_size
        self.base = int(self.ngrams_KN.max(initial=0)) + 1
        self.tree = _tree(self.ngrams_KN, self.base)

    def __len__(self):
        return len(self.ngrams_KN)

    def longest_matches(self, tokens_BL) -> np.ndarray:
        """The length of the longest collocation that begins at each token, [B, L]; 1 where none does.

        >>> table = Collocations([[5, 6, -1], [5, 6, 7]], [1, 1], [1.0, 1.0])
        >>> table.longest_matches(np.array([[4, 5, 6, 7, 5, 6]])).tolist()
        [[1, 3, 1, 1, 2, 1]]
        """
        tokens_BL = np.asarray(tokens_BL, dtype=np.int64)
        batch, length = tokens_BL.shape
        tokens = tokens_BL.reshape(-1)
        base = self.base
        matches = np.ones(tokens.size, dtype=np.int64)
        places = np.flatnonzero(tokens < base)
        nodes = tokens[places]
        for n, (level_keys, is_collocation) in enumerate(self.tree, start=2):
            is_within_row = places % length + n <= length
            places = places[is_within_row]
            nodes = nodes[is_within_row]
            following = tokens[places + n - 1]
            keys = np.where(following < base, nodes * base + following, NONE)
            positions = np.minimum(np.searchsorted(level_keys, keys), len(level_keys) - 1)
            is_ngram = level_keys[positions] == keys
            places = places[is_ngram]
            nodes = positions[is_ngram]
            matches[places[is_collocation[nodes]]] = n
        return matches.reshape(batch, length)


def _tree(ngrams_KN, base: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For n = 2, 3, ... the n-grams that a collocation begins with: `(sorted keys, which are collocations)`.

    A key is base x node + last token; the node of a single token is its id, that of an n-gram the place of its key.
    """
    levels = []
    nodes_K = ngrams_KN[:, 0]
    for n in range(2, ngrams_KN.shape[1] + 1):
        longer = ngrams_KN[:, n - 1] >= 0
        keys, numbers = np.unique(nodes_K[longer] * base + ngrams_KN[longer, n - 1], return_inverse=True)
        if len(keys) == 0:
            break
        ngrams_KN = ngrams_KN[longer]
        nodes_K = numbers
        ends = np.ones(len(nodes_K), dtype=bool) if n == ngrams_KN.shape[1] else ngrams_KN[:, n] < 0
        is_collocation = np.zeros(len(keys), dtype=bool)
        is_collocation[nodes_K[ends]] = True
        levels.append((keys, is_collocation))
    return levels


def save_collocations(path, table: Collocations) -> None:
    """Writes a table as JSON lines: a header with its size and tokenizer, then one collocation a line.

    >>> save_collocations("collocations.jsonl", table)                   # doctest: +SKIP
    {"collocations": 2, "tokenizer": "5be1...", "vocabulary_size": 32100}
    {"ids": [155, 20], "count": 31, "pmi": 7.21}
    ...
    """
    ngrams = ([token for token in row if token >= 0] for row in table.ngrams_KN.tolist())
    rows = zip(ngrams, table.counts_K.tolist(), table.pmi_K.tolist())
    rows = ({"ids": ids, "count": count, "pmi": pmi} for ids, count, pmi in rows)
    head = {"collocations": len(table), "tokenizer": table.tokenizer, "vocabulary_size": table.vocabulary_size}
    write_jsonl(Path(path), itertools.chain([head], rows))


def load_collocations(path, tokenizer=None) -> Collocations:
    """Reads what `save_collocations` wrote.

    Raises DataError for a line (named) that is not a collocation, missing lines, or a table of text that `tokenizer`
    would encode otherwise (not compared if it is None, or the table has no fingerprint).
    """
    lines = numbered_lines(path)
    _, head = next(lines, (0, {}))
    if not isinstance(head.get("collocations"), int):
        raise DataError(f"{path}:1: not a header of collocations such as {json.dumps({'collocations': 2})}")
    made_with = head.get("tokenizer", "")
    vocabulary_size = head.get("vocabulary_size")
    if tokenizer is not None and made_with and not encodes_alike(tokenizer, made_with, vocabulary_size or math.inf):
        fingerprint = tokenizer_fingerprint(tokenizer)
        raise DataError(f"{path}: made with another tokenizer ({made_with}) than this run's ({fingerprint})")
    ngrams = []
    counts = []
    scores = []
    for number, row in lines:
        if not _is_collocation(row):
            expected = '{"ids": [2 to 5 token ids], "count": n, "pmi": x}'
            raise DataError(f"{path}:{number}: expected {expected}, found {json.dumps(row):.80}")
        ngrams.append(row["ids"] + [NONE] * (max(SHARES) - len(row["ids"])))
        counts.append(row["count"])
        scores.append(row["pmi"])
    if len(ngrams) != head["collocations"] or not ngrams:
        raise DataError(f"{path}: {len(ngrams)} collocations, but its header says {head['collocations']}: cut off?")
    return Collocations(np.array(ngrams), np.array(counts), np.array(scores), made_with, vocabulary_size)


def _is_collocation(row: dict) -> bool:
    """Whether a line of a file is a collocation."""
    ids = row.get("ids")
    are_ids = isinstance(ids, list) and all(type(token) is int and token >= 0 for token in ids)
    return are_ids and len(ids) in SHARES and isinstance(row.get("count"), int) and isinstance(row.get("pmi"), float)
