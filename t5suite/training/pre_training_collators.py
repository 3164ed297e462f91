"""The collators of pre-training objectives: numbered blocks of tokens -> inputs and targets, noise from (seed, index).

>>> collator = collator_of_objective("span_corruption", tokenizer, model, inputs_length=512, seed=42)
>>> collator.tokens_lengths, collator.targets_length
([568], 114)
"""

import logging
from dataclasses import asdict
from functools import partial

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import load_object
from t5suite.data.batches.pre_training_collator import CausalLMCollator, MaskedLMCollator, T5DataCollator, pack_examples
from t5suite.data.objectives import OBJECTIVES, sentinel_ids
from t5suite.data.objectives.vocabulary import (
    marked_word_flags,
    mask_vocabulary,
    sentence_end_flags,
    word_start_flags,
    word_start_flags_if_shown,
)
from t5suite.models.config_limits import check_length, check_resumes
from t5suite.models.families import recognize_family
from t5suite.training.pre_training_evaluation import EVALUATION_SEED

logger = logging.getLogger(__name__)

# So many examples of every denoiser show whether examples share rows; they are of a token of text.
TRIED_EXAMPLES = 64
NO_SPECIAL_TOKEN = 5
# The --mask_units that are made of words; others are made of tokens where a tokenizer does not show its words.
UNITS_OF_WORDS = ("word", "ngram")
# Settings by name that belong to every seq2seq objective, or to every masked one.
SHAPED = ("targets_length", "pack")
PAIRED = ("sentence_pairs",)
# Objective flags that are no settings of a collator.
NOT_OF_THE_COLLATOR = ("document_separator", "sentence_language", "mode_tokens")


def pre_training_collators(objective_args, tokenizer, model, seed: int):
    """`(for training, for evaluation)`: the latter's noise is the same in every run, and its rows are not packed."""
    settings = asdict(objective_args)
    for name in NOT_OF_THE_COLLATOR:
        del settings[name]
    if objective_args.modes:
        ids = tokenizer.convert_tokens_to_ids(list(objective_args.modes))
        settings["mode_token_ids"] = dict(zip("RSX", ids, strict=True))
    unpacked = settings | {"pack": None}
    train_collator = collator_of_objective(tokenizer=tokenizer, model=model, seed=seed, **settings)
    is_packed = settings["pack"] and OBJECTIVES[objective_args.objective].family == "seq2seq"
    if is_packed and not shares_rows(train_collator):
        logger.warning(
            "--pack has no effect: no two examples of --objective %s fit into a row of %d inputs and %d targets",
            objective_args.objective,
            train_collator.row_inputs_length,
            train_collator.row_targets_length,
        )
    eval_collator = collator_of_objective(tokenizer=tokenizer, model=model, seed=EVALUATION_SEED, **unpacked)
    return train_collator, eval_collator


def shares_rows(collator: T5DataCollator) -> bool:
    """Whether any two of some examples of every denoiser would share a row."""
    examples = []
    for denoiser, num_tokens in enumerate(collator.tokens_lengths):
        block = {"input_ids": np.full(num_tokens, NO_SPECIAL_TOKEN), "denoiser": denoiser}
        examples += [{**block, "index": index} for index in range(TRIED_EXAMPLES)]
    inputs, targets = collator.corrupt(examples)
    lengths_B2 = np.stack([inputs.lengths, targets.lengths], axis=1)
    rows_B = pack_examples(lengths_B2, (collator.row_inputs_length, collator.row_targets_length))
    return len(np.unique(rows_B)) < len(examples)


def collator_of_objective(objective: str, tokenizer, model, *, inputs_length: int, seed: int, **settings):
    """The collator of an objective's family, its noise drawn from (seed, index).

    Args:
      settings: what the objective uses (noise_density, mask_units, ...), and for seq2seq `SHAPED`; others, and those
        that are None, are ignored.

    Raises:
      ConfigError: the model is of another family; too few sentinels; lengths that do not fit.
    """
    family = recognize_family(model).name
    check_family(objective, family)
    check_length(model.config, inputs_length, "--inputs_length")
    check_resumes(model.config, inputs_length)
    if family == "causal":
        return CausalLMCollator(inputs_length)
    used_names = (*OBJECTIVES[objective].uses, *(SHAPED if family == "seq2seq" else PAIRED))
    used = {name: settings[name] for name in used_names if settings.get(name) is not None}
    if "collocations" in used:
        load_collocations = load_object("t5suite.contrib.collocations:load_collocations", "--collocations")
        used["collocations"] = load_collocations(used["collocations"], tokenizer)
    if family == "seq2seq":
        collator = seq2seq_collator(
            objective,
            tokenizer,
            inputs_length,
            seed,
            decoder_start_token_id=model.config.decoder_start_token_id,
            pad_token_id=model.config.pad_token_id,
            **used,
        )
        check_length(model.config, collator.targets_length, "--targets_length", "decoder")
        return collator
    return MaskedLMCollator(
        mask_vocabulary(tokenizer, need_words=used.get("mask_units") in UNITS_OF_WORDS),
        inputs_length,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
        seed=seed,
        **used,
    )


def check_family(objective: str, family: str) -> None:
    """Refuses an objective for models of another family, and names those that suit."""
    needed = OBJECTIVES[objective].family
    if family != needed:
        suited = ", ".join(name for name, entry in OBJECTIVES.items() if entry.family == family)
        raise ConfigError(f"--objective {objective} is for {needed} models, not {family}: choose {suited}")


def seq2seq_collator(objective: str, tokenizer, inputs_length: int, seed: int = 0, **settings) -> T5DataCollator:
    """A seq2seq objective's collator with what it needs from the tokenizer, for any T5 that uses that tokenizer.

    >>> seq2seq_collator("span_corruption", tokenizer, inputs_length=512).tokens_lengths
    [568]
    """
    needs = OBJECTIVES[objective].needs
    makers = {"sentinel_ids": sentinel_ids, "word_start_V": word_start_flags, "sentence_end_V": sentence_end_flags}
    if objective == "sentence_deshuffling":
        makers["word_start_V"] = partial(marked_word_flags, remedy=f"--objective {objective} needs it; choose another")
    elif settings.get("mask_units", "word") not in UNITS_OF_WORDS:
        makers["word_start_V"] = word_start_flags_if_shown
    needed = {name: make(tokenizer) for name, make in makers.items() if name in needs}
    return T5DataCollator(
        objective=objective,
        eos_token_id=tokenizer.eos_token_id,
        inputs_length=inputs_length,
        seed=seed,
        **{**settings, **needed},
    )
