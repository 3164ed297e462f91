"""An objective, a tokenizer and a model -> the collator that makes batches of them.

    >>> collator = make_collator("span_corruption", tokenizer, model, inputs_length=512, seed=42)
    >>> collator.tokens_lengths, collator.targets_length
    ([568], 114)

Settings that an objective does not heed are refused by nothing here: `unheeded_settings` names them.
"""

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.collocations import load_collocations
from t5suite.data.corpora.store import tokenizer_fingerprint
from t5suite.data.language_model_collators import CausalLMCollator, MaskedLMCollator
from t5suite.data.objectives import OBJECTIVES, sentinel_ids
from t5suite.data.objectives.vocabulary import mask_vocabulary, sentence_end_flags, word_start_flags
from t5suite.data.pre_training_collator import T5DataCollator
from t5suite.models.configs import check_length, check_resumes
from t5suite.models.families import family_of_model

# Settings by name that belong to every seq2seq objective, or to every masked one.
PACKING = ("pack", "row_inputs_length", "row_targets_length")
SHAPED = ("targets_length", *PACKING)
# Objectives whose noise a compiled pass can make.


def make_collator(objective: str, tokenizer, model, *, inputs_length: int, seed: int, **settings):
    """The collator of an objective's family, its noise drawn from (seed, index).

    Args:
      settings: what the objective heeds (noise_density, mask_units, ...), and for seq2seq `SHAPED`; None counts as not
        given, and so does whatever else the objective has no use for.

    Raises:
      ConfigError: the model is of another family; too few sentinels; lengths that do not fit.
    """
    check_family(objective, family_of_model(model))
    check_length(model.config, inputs_length, "--inputs_length")
    check_resumes(model.config, inputs_length)
    given = {name: value for name, value in settings.items() if value is not None}
    if "collocations" in given and "collocations" in OBJECTIVES[objective].heeds:
        given["collocations"] = load_collocations(given["collocations"], tokenizer_fingerprint(tokenizer))
    return COLLATORS[OBJECTIVES[objective].family](objective, tokenizer, model, inputs_length, seed, given)


def seq2seq_collator(objective: str, tokenizer, inputs_length: int, seed: int = 0, **settings) -> T5DataCollator:
    """A seq2seq objective's collator with what it needs of the tokenizer, for whatever T5 reads with that.

    >>> seq2seq_collator("span_corruption", tokenizer, inputs_length=512).tokens_lengths
    [568]
    """
    entry = OBJECTIVES[objective]
    heeded = dict(settings)
    if "sentinel_ids" in entry.needs:
        heeded["sentinel_ids"] = sentinel_ids(tokenizer)
    if "replacement_ids" in entry.needs:
        heeded["replacement_ids"] = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
    if "word_start_V" in entry.needs:
        heeded["word_start_V"] = word_start_flags(tokenizer)
    if "sentence_end_V" in entry.needs:
        heeded["sentence_end_V"] = sentence_end_flags(tokenizer)
    return T5DataCollator(
        objective=objective, eos_token_id=tokenizer.eos_token_id, inputs_length=inputs_length, seed=seed, **heeded
    )


def _seq2seq(objective, tokenizer, model, inputs_length, seed, given):
    ids = {name: getattr(model.config, name) for name in ("decoder_start_token_id", "pad_token_id")}
    heeded = {name: given[name] for name in (*OBJECTIVES[objective].heeds, *SHAPED) if name in given}
    return seq2seq_collator(objective, tokenizer, inputs_length, seed, **ids, **heeded)


def _masked(objective, tokenizer, model, inputs_length, seed, given):
    heeded = {name: given[name] for name in (*OBJECTIVES[objective].heeds, "sentence_pairs") if name in given}
    units = heeded.get("mask_units", "token")
    return MaskedLMCollator(
        mask_vocabulary(tokenizer, need_words=units in ("word", "ngram")),
        inputs_length,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
        seed=seed,
        **heeded,
    )


def _causal(objective, tokenizer, model, inputs_length, seed, given):
    return CausalLMCollator(inputs_length)


def check_family(objective: str, family: str) -> None:
    """An objective is learnt by one kind of model."""
    wanted = OBJECTIVES[objective].family
    if family != wanted:
        suited = ", ".join(name for name, entry in OBJECTIVES.items() if entry.family == family)
        raise ConfigError(f"--objective {objective} is for {wanted} models, but the model is {family}: choose {suited}")


def unheeded_settings(objective: str, names) -> list[str]:
    """Those of the settings that have no effect under an objective.

    >>> unheeded_settings("causal_lm", ["noise_density", "pack"])
    ['noise_density', 'pack']
    """
    entry = OBJECTIVES[objective]
    of_family = {"seq2seq": SHAPED, "masked": ("sentence_pairs", "sentence_language"), "causal": ()}[entry.family]
    return [name for name in names if name not in (*entry.heeds, *of_family)]


COLLATORS = {
    "seq2seq": _seq2seq,
    "masked": _masked,
    "causal": _causal,
}
