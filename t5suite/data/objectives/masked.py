"""Masks that hide whole units of a row: tokens, words, n-grams, spans, collocations.

    tokens   ▁in  ▁New  ▁York  ▁City  ▁un  believ  able  .
    token    |    |     |      |      |    |       |     |
    word     |    |     |      |      |                  |
    pmi      |    |                   |                  |        "▁New ▁York ▁City" is in the table

A row is first split into units (`unit_starts`), then whole units are chosen (`choose_units`). `masked_lm_batch` does
both for a masked language model, and `unit_masks` for T5, whose `corrupt_ragged` takes such masks.

Shape suffixes: B rows, L tokens of a row, V ids of the vocabulary, and K the tokens of a row in random order, which is
that of their keys: each has a random number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find, load_object
from t5suite.data.objectives.corruption import Ragged
from t5suite.data.objectives.random_numbers import below, bernoulli, random_keys


def unit_masks(tokens_BL, noise_density, rng, mask_units="word", *, choosable_BL=None, exact_count=True, **units):
    """`(which tokens of each row to hide, where its units begin)`, bool [B, L]: units are hidden as a whole.

    Those too long to be hidden are split into tokens, as in `choose_units`.

    >>> from t5suite.data.objectives import datum_rng
    >>> starts = np.array([True, True, True, False])                      # id 3 continues a word
    >>> tokens_1L = np.array([[0, 1, 2, 3, 1, 2, 3, 0]])
    >>> mask_1L, starts_1L = unit_masks(tokens_1L, 0.25, datum_rng(0, 3), "word", word_start_V=starts)
    >>> mask_1L.astype(int).tolist(), starts_1L.astype(int).tolist()
    ([[0, 1, 0, 0, 0, 0, 0, 1]], [[1, 1, 1, 0, 1, 1, 0, 1]])

    Args:
      rng: as in `random_keys`: one Generator, one for each row, or `DatumRngs`.
      mask_units: a key of `MASK_UNITS`.
      choosable_BL: tokens that may be hidden; units are split at those that may not. None: all.
      units: settings of `unit_starts`: word_start_V, collocations, mean_span_length.
    """
    batch, length = tokens_BL.shape
    keys_B2L = random_keys(batch, 2 * length, rng).reshape(batch, 2, length)
    starts_BL = unit_starts(tokens_BL, keys_B2L[:, 0], mask_units, **units)
    if choosable_BL is None:
        choosable_BL = np.ones(tokens_BL.shape, dtype=bool)
    return choose_units(starts_BL, choosable_BL, noise_density, keys_B2L[:, 1], exact_count=exact_count)


# -------------------------------------------------------------------------------------------- splitting rows into units


def unit_starts(tokens_BL, keys_BL, mask_units, word_start_V=None, collocations=None, mean_span_length=5.0):
    """Where the units of each row begin, bool [B, L]; the first token of a row always begins one.

    >>> tokens_1L = np.array([[7, 8, 9, 8]])
    >>> unit_starts(tokens_1L, None, "word", word_start_V=np.arange(10) != 8).astype(int).tolist()
    [[1, 0, 1, 0]]

    Args:
      keys_BL: uint32, the randomness for units that need it (ngram, span).
      word_start_V: which ids begin a word (`word_start_flags`). N-grams, spans and text outside of collocations
        then consist of whole words; without it, of tokens.
      collocations: the table of "pmi" (`t5suite.contrib.collocations`).
      mean_span_length: mean of the geometric distribution of span lengths, before it is truncated at 10 words
        (SpanBERT's 5 becomes 3.8).

    Raises ConfigError for an unknown `mask_units`, and for units whose needs are not given.
    """
    unit = find(mask_units, MASK_UNITS, "unit", where="--mask_units")
    tables = {"word_start_V": word_start_V, "collocations": collocations}
    for name in unit.needs:
        if tables[name] is None:
            raise ConfigError(f"--mask_units {mask_units} needs {WHERE_FROM[name]}")
    word_starts_BL = np.ones(tokens_BL.shape, dtype=bool)
    if word_start_V is not None:
        check_ids(tokens_BL, len(word_start_V))
        word_starts_BL[:, 1:] = word_start_V[tokens_BL[:, 1:]]
    starts = unit.starts
    if isinstance(starts, str):  # a function of contrib, as module:name
        starts = load_object(starts, "MASK_UNITS")
    return starts(word_starts_BL, tokens_BL, keys_BL, collocations, mean_span_length)


def check_ids(tokens_BL, vocab_size):
    """Raises DataError for a token id that the vocabulary does not have."""
    lowest = int(tokens_BL.min(initial=0))
    highest = int(tokens_BL.max(initial=0))
    if lowest < 0:
        raise DataError(f"token id {lowest}: ids begin at 0")
    if highest >= vocab_size:
        raise DataError(
            f"token id {highest}, but the tokenizer has {vocab_size} ids: the text was encoded with another tokenizer"
        )


WHERE_FROM = {
    "word_start_V": "a tokenizer whose pieces show where words begin, which this one's do not: use --mask_units token",
    "collocations": "a table of collocations (--collocations), which `t5suite corpus collocations` makes",
}


# ---------------------------------------------------------------------------------------------------- choosing units


def choose_units(starts_BL, choosable_BL, noise_density, keys_BL, lengths_B=None, exact_count=True):
    """`(chosen, where units begin)`, bool [B, L]: all tokens of units chosen at random, none of any other.

    >>> starts_1L = np.array([[1, 1, 0, 0, 1, 1, 1, 0]], dtype=bool)
    >>> keys_1L = np.array([[9, 3, 0, 0, 7, 8, 5, 0]], dtype=np.uint32)       # the unit of least key comes first
    >>> chosen_1L, _ = choose_units(starts_1L, np.ones((1, 8), dtype=bool), 0.5, keys_1L)
    >>> chosen_1L.astype(int).tolist()
    [[0, 1, 1, 1, 1, 0, 0, 0]]

    `exact_count`: units are taken in random order until the allowance max(1, round(noise_density x length)) is used up;
    one that no longer fits is skipped, as in BERT's data script. A unit longer than the allowance is split into tokens,
    which are units then. Without `exact_count` every unit is chosen with probability noise_density (as in RoBERTa and
    Hugging Face), and a row may have none.

    Args:
      choosable_BL: tokens that may be chosen; units are split at those that may not. Padding may not.
      keys_BL: uint32, one for each position; that of a unit's first token decides.
      lengths_B: tokens of each row without padding, of which the allowance is a share; None: all.
    """
    if not 0 < noise_density < 1:
        raise ConfigError(f"--noise_density {noise_density}: it must be above 0 and below 1 (BERT: 0.15)")
    batch, length = starts_BL.shape
    # A token that may not be chosen is a unit of its own. The caller's array stays: `masked_lm_batch` needs it.
    starts_BL = starts_BL | ~choosable_BL
    starts_BL[:, 1:] |= ~choosable_BL[:, :-1]
    starts_BL[:, :1] = True
    if exact_count:
        lengths_B = np.full(batch, length) if lengths_B is None else np.asarray(lengths_B)
        allowance_B = np.maximum(np.rint(lengths_B * noise_density).astype(np.int64), 1)
        starts_BL |= _tokens_of_unit(starts_BL) > allowance_B[:, None]
        chosen_BL = _fill_allowance(starts_BL, choosable_BL, allowance_B, keys_BL)
    else:
        chosen_BL = bernoulli(keys_BL, noise_density) & choosable_BL
    return _of_unit(chosen_BL, starts_BL), starts_BL


def _tokens_of_unit(starts_BL):
    """For each token, the number of tokens of its unit. Every row begins with a unit, so that none crosses rows."""
    sizes = np.diff(np.flatnonzero(starts_BL), append=starts_BL.size)
    return np.repeat(sizes, sizes).reshape(starts_BL.shape)


def _of_unit(values_BL, starts_BL):
    """Every token gets the value of its unit's first token."""
    sizes = np.diff(np.flatnonzero(starts_BL), append=starts_BL.size)
    return np.repeat(values_BL[starts_BL], sizes).reshape(starts_BL.shape)


def without_cut_units(mask_BL, cut_BL, starts_BL):
    """The mask without the units of which a token is cut off.

    >>> mask_1L, starts_1L = np.array([[1, 1, 1, 0]], dtype=bool), np.array([[1, 1, 0, 0]], dtype=bool)
    >>> without_cut_units(mask_1L, np.array([[0, 0, 0, 1]], dtype=bool), starts_1L).astype(int).tolist()
    [[1, 0, 0, 0]]
    """
    firsts = np.flatnonzero(starts_BL)
    is_cut = np.logical_or.reduceat(cut_BL.reshape(-1), firsts)
    sizes = np.diff(firsts, append=starts_BL.size)
    return mask_BL & ~np.repeat(is_cut, sizes).reshape(mask_BL.shape)


def _fill_allowance(starts_BL, choosable_BL, allowance_B, keys_BL):
    """The first tokens of the chosen units: in order of their keys, those that fit.

    The same as one unit after the other, in a few passes over all rows at once. A pass takes units, in order, until one
    no longer fits what is left. That unit is then too large for good, since what is left only gets less, and so are all
    as large: the next pass looks at smaller ones only, of which those before it have been taken.
    """
    order_BK = _positions_by_key(keys_BL)
    sizes_BL = np.where(starts_BL & choosable_BL, _tokens_of_unit(starts_BL), 0)  # 0: no unit begins here
    waiting_BK = np.take_along_axis(sizes_BL, order_BK, axis=1)
    left_B = allowance_B.copy()
    taken_BK = np.zeros_like(starts_BL)
    while True:
        is_small_enough_BK = (waiting_BK > 0) & (waiting_BK <= left_B[:, None])
        total_so_far_BK = np.cumsum(np.where(is_small_enough_BK, waiting_BK, 0), axis=1)
        is_taken_now_BK = is_small_enough_BK & (total_so_far_BK <= left_B[:, None])
        if not is_taken_now_BK.any():
            break
        taken_BK |= is_taken_now_BK
        left_B -= np.where(is_taken_now_BK, waiting_BK, 0).sum(axis=1)
        waiting_BK[is_taken_now_BK] = 0
    chosen_BL = np.empty_like(taken_BK)
    np.put_along_axis(chosen_BL, order_BK, taken_BK, axis=1)
    return chosen_BL


def _positions_by_key(keys_BL):
    """The positions of each row in the order of their keys, equal keys from left to right.

    Key and position are sorted as one number, the key in front: faster than `argsort(kind="stable")`.
    """
    positions_L = np.arange(keys_BL.shape[1], dtype=np.uint64)
    keys_and_positions_BL = (keys_BL.astype(np.uint64) << np.uint64(32)) | positions_L
    keys_and_positions_BL.sort(axis=1)
    return (keys_and_positions_BL & np.uint64(2**32 - 1)).astype(int)


@dataclass(frozen=True)
class MaskUnit:
    """A kind of unit.

    Attributes:
      starts: (word_starts_BL, tokens_BL, keys_BL, collocations, mean_span_length) -> where units begin, bool [B, L]; a
        function, or `module:name` of one that is loaded when it is used.
      needs: which of word_start_V and collocations must be given.
      replaced_together: whether a unit's tokens all become [MASK], all random or all stay (SpanBERT, PMI-masking),
        instead of each independently (BERT, ALBERT).
    """

    starts: Callable | str
    needs: tuple[str, ...] = ()
    replaced_together: bool = False


MASK_UNITS = {
    "token": MaskUnit(lambda word_starts_BL, *_: np.ones_like(word_starts_BL)),
    "word": MaskUnit(lambda word_starts_BL, *_: word_starts_BL, needs=("word_start_V",)),
    "ngram": MaskUnit("t5suite.contrib.mask_units:ngrams"),
    "span": MaskUnit("t5suite.contrib.mask_units:spans", replaced_together=True),
    "pmi": MaskUnit("t5suite.contrib.mask_units:collocation_starts", needs=("collocations",), replaced_together=True),
}


# ---------------------------------------------------------------------------------------------------------------------
# Masked language modelling: some tokens are hidden, and the model predicts them.


IGNORED = -100  # what torch's cross-entropy ignores
MASKED, RANDOM = 0.8, 0.1  # shares of the chosen tokens; the rest is unchanged (arXiv:1810.04805 sec. 3.1)


def masked_lm_batch(
    tokens_BL, rng, vocabulary, *, noise_density=0.15, mask_units="token", exact_count=True, lengths_B=None, **units
):
    """Rows with their special tokens -> (input_ids, labels), both `Ragged` of rows of L, int64.

    >>> from t5suite.data.objectives import datum_rng
    >>> from t5suite.data.objectives.vocabulary import MaskVocabulary
    >>> vocabulary = MaskVocabulary(mask_token_id=4, special_V=np.arange(30) < 5)
    >>> row = np.array([[2, 11, 12, 13, 14, 15, 3]])
    >>> input_ids, labels = masked_lm_batch(row, datum_rng(0, 0), vocabulary, noise_density=0.3)
    >>> input_ids.values.tolist(), labels.values.tolist()
    ([2, 11, 12, 4, 14, 15, 3], [-100, -100, -100, 13, 14, -100, -100])

    Args:
      tokens_BL: rows with their special tokens, padded at the end.
      rng: as in `random_keys`: one Generator, one for each row, or `DatumRngs`; 4 keys per position are drawn.
      vocabulary: a `MaskVocabulary`; its special tokens are never chosen and never used as replacements.
      noise_density: share of the tokens that is chosen (Hugging Face's mlm_probability). With `exact_count` it is a
        share of all tokens of the row, special ones included; without, every unit is chosen with that probability.
      mask_units: which tokens are chosen together, a key of `MASK_UNITS`.
      exact_count: as many as the share says, at least 1 (BERT's data script), or each with that probability.
      lengths_B: tokens of each row without padding; None: L.
      units: collocations (for "pmi"), mean_span_length (for "span").

    Raises ConfigError as `unit_starts` and `choose_units` do, DataError for an id outside the vocabulary.
    Source: arXiv:1810.04805 sec. 3.1; whole words as in BERT's later whole-word models.
    """
    batch, length = tokens_BL.shape
    check_ids(tokens_BL, len(vocabulary.special_V))
    keys_B4L = random_keys(batch, 4 * length, rng).reshape(batch, 4, length)
    starts_BL = unit_starts(tokens_BL, keys_B4L[:, 0], mask_units, vocabulary.word_start_V, **units)
    choosable_BL = ~vocabulary.special_V[tokens_BL]
    mask_BL, _ = choose_units(starts_BL, choosable_BL, noise_density, keys_B4L[:, 1], lengths_B, exact_count)
    action_BL = keys_B4L[:, 2]
    if MASK_UNITS[mask_units].replaced_together:
        # By the units as they were before `choose_units` split them: their parts are replaced alike, too.
        action_BL = _of_unit(action_BL, starts_BL)
    input_ids_BL = hide(tokens_BL, mask_BL, vocabulary, action_BL, keys_B4L[:, 3])
    labels_BL = np.where(mask_BL, tokens_BL.astype(np.int64), IGNORED)
    return Ragged.of(input_ids_BL), Ragged.of(labels_BL)


def hide(tokens_BL, mask_BL, vocabulary, action_keys_BL, token_keys_BL):
    """The chosen tokens replaced: 80% by [MASK], 10% by a random token that is not special, 10% unchanged.

    The first uint32 keys decide which of the three, the second which random token.
    """
    replacements = vocabulary.replacement_ids()
    if len(replacements) == 0:
        raise ConfigError("every id of the vocabulary is special: there is no token to use as a random replacement")
    # A key is below 0.8, or from 0.8 to 0.9, or above: `bernoulli` compares the same key with both.
    masked_BL = mask_BL & bernoulli(action_keys_BL, MASKED)
    random_BL = mask_BL & ~masked_BL & bernoulli(action_keys_BL, MASKED + RANDOM)
    input_ids_BL = tokens_BL.astype(np.int64)
    input_ids_BL[masked_BL] = vocabulary.mask_token_id
    input_ids_BL[random_BL] = replacements[below(token_keys_BL[random_BL], len(replacements))]
    return input_ids_BL


# ---------------------------------------------------------------------------------------------------------------------
# Causal language modelling: every token is predicted from those before it.
#
# Text is concatenated and cut into blocks, as GPT does (OpenAI 2018; arXiv:2005.14165 sec. 2.2): documents follow one
# another, with a separator if there is one; attention crosses it and positions continue.


def causal_lm_batch(tokens_BL, rng=None):
    """Blocks -> (input_ids, labels), both `Ragged` of rows of L, int64. Deterministic: `rng` is not used.

    >>> causal_lm_batch(np.array([[464, 7372, 286, 262, 1748]]))[1].values.tolist()
    [7372, 286, 262, 1748, -100]

    The labels are already shifted: our loss compares logits and labels by position. Hugging Face's causal models
    shift within their own loss, so they must never get these labels.
    """
    input_ids_BL = tokens_BL.astype(np.int64)
    labels_BL = np.full_like(input_ids_BL, IGNORED)
    labels_BL[:, :-1] = input_ids_BL[:, 1:]
    return Ragged.of(input_ids_BL), Ragged.of(labels_BL)
