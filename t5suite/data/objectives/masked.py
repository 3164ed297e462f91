"""Masked language modelling: some tokens are hidden, the model is to say which they were.

    tokens      [101, 1996, 2415, 1997, 1996, 2103, 2003, 2214,  102]     [CLS] the centre of the city is old [SEP]
    mask        [  0,    0,    1,    0,    0,    0,    0,    1,    0]
    input_ids   [101, 1996,  103, 1997, 1996, 2103, 2003, 8739,  102]     80% become [MASK], 10% another, 10% stay
    labels      [-100,-100, 2415, -100, -100, -100, -100, 2214, -100]

Shape suffixes: B rows, L tokens of a row.
"""

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.objectives.ragged import Ragged
from t5suite.data.objectives.random_numbers import below, bernoulli, random_keys
from t5suite.data.objectives.word_masks import MASK_UNITS, check_ids, choose_units, unit_starts

IGNORED = -100  # what torch's cross-entropy passes over
MASKED, RANDOM = 0.8, 0.1  # shares of the chosen tokens; the rest stays as it is (arXiv:1810.04805 sec. 3.1)


def masked_lm(tokens, rng, vocabulary, **settings):
    """One row with its special tokens -> (input_ids, labels), both int64 [L].

    >>> from t5suite.data.objectives import datum_rng
    >>> from t5suite.data.objectives.vocabulary import MaskVocabulary
    >>> vocabulary = MaskVocabulary(mask_token_id=4, special_V=np.arange(30) < 5)
    >>> input_ids, labels = masked_lm([2, 11, 12, 13, 14, 15, 3], datum_rng(0, 0), vocabulary, noise_density=0.3)
    >>> input_ids.tolist(), labels.tolist()
    ([2, 11, 12, 4, 14, 15, 3], [-100, -100, -100, 13, 14, -100, -100])

    `settings` are those of `masked_lm_batch`, which is this for many rows.
    """
    input_ids, labels = masked_lm_batch(np.asarray(tokens)[None], rng, vocabulary, **settings)
    return input_ids.values, labels.values


def masked_lm_batch(
    tokens_BL, rng, vocabulary, *, noise_density=0.15, mask_units="token", exact_count=True, lengths_B=None, **units
):
    """`masked_lm` for B rows at once: (input_ids, labels), both `Ragged` of rows of L, int64.

    Args:
      tokens_BL: rows with their special tokens, padded at the end.
      rng: what `random_keys` takes: one Generator, one for each row, or `DatumRngs`; 4 keys a place are drawn.
      vocabulary: a `MaskVocabulary`; its special tokens are never chosen and never put in another's place.
      noise_density: share of the tokens that is chosen (Hugging Face's mlm_probability), special tokens counted in.
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
    mask_BL = choose_units(starts_BL, choosable_BL, noise_density, keys_B4L[:, 1], lengths_B, exact_count)
    action_BL = keys_B4L[:, 2]
    if MASK_UNITS[mask_units].replaced_together:
        action_BL = _first_of_unit(action_BL, starts_BL)
    input_ids_BL = hide(tokens_BL, mask_BL, vocabulary, action_BL, keys_B4L[:, 3])
    return Ragged.of(input_ids_BL), Ragged.of(np.where(mask_BL, tokens_BL, IGNORED).astype(np.int64))


def hide(tokens_BL, mask_BL, vocabulary, action_keys_BL, token_keys_BL):
    """The chosen tokens replaced: 80% by [MASK], 10% by a random token that is not special, 10% by themselves.

    Args:
      action_keys_BL: uint32, which of the three; equal keys meet the same fate.
      token_keys_BL: uint32, which random token.
    """
    replacements = vocabulary.replacement_ids()
    if len(replacements) == 0:
        raise ConfigError("every id of the vocabulary is special: there is no token to put in another's place")
    masked_BL = mask_BL & bernoulli(action_keys_BL, MASKED)
    random_BL = mask_BL & ~masked_BL & bernoulli(action_keys_BL, MASKED + RANDOM)
    input_ids_BL = tokens_BL.astype(np.int64)
    input_ids_BL[masked_BL] = vocabulary.mask_token_id
    input_ids_BL[random_BL] = replacements[below(token_keys_BL[random_BL], len(replacements))]
    return input_ids_BL


def _first_of_unit(values_BL, starts_BL):
    """Every token gets the value of its unit's first token."""
    places_BL = np.where(starts_BL, np.arange(starts_BL.shape[1]), 0)
    return np.take_along_axis(values_BL, np.maximum.accumulate(places_BL, axis=1), axis=1)
