"""The steps of `t5suite adapt`: load a decoder, make an encoder-decoder of it, write, compare, and record the origins.

>>> flags = parse_command_line(["adapt", "--model_name_or_path", "gemma-tiny", "--output_dir", "adapted"])
>>> adapt_model(flags)
{'class': 'T5Gemma2ForConditionalGeneration', ..., 'parameters': {'copied': 98816, 'new': 8192, 'untrained': 72}, ...}
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from t5suite.base.errors import ConfigError
from t5suite.base.files import new_folder, read_json, write_json
from t5suite.base.hub_commits import revision_to_read
from t5suite.base.lookup import listed
from t5suite.base.provenance import versions
from t5suite.data.batches.encodings.special_tokens import around
from t5suite.export.adapt_checks import check_adapted
from t5suite.export.exporting import cast
from t5suite.export.gemma_configs import UNTRAINED_PARTS, Adaptation, adaptation_of, encoder_decoder_config
from t5suite.export.sources import model_folder, stored_dtype
from t5suite.export.tensor_origins import TensorOrigin, fill_tensors, tensor_origins
from t5suite.export.terms import ModelTerms, write_terms
from t5suite.models.adapter_files import is_adapter
from t5suite.models.configs import load_config
from t5suite.models.families import SEQ2SEQ
from t5suite.models.generation_settings import complete_special_tokens, save_with_generation_settings
from t5suite.models.loading import load_tokenizer
from t5suite.models.pretrained import trained_weights
from t5suite.models.t5.output_layer import random_model
from t5suite.models.tokenizer_checks import TOKENIZER_KEY, check_trained_with, describe_tokenizer
from t5suite.models.vocabulary import add_sentinels, embedding_rows

FLAG = "--model_name_or_path"
RECORD = "adapt.json"


@dataclass(frozen=True)
class Decoder:
    """What is adapted, before its weights are read.

    Attributes:
      name: of the hub, or the folder that holds the weights.
      revision: the commit of the hub, or the branch or tag where no commit is known; of no effect for a folder.
      tokenizer: with the sentinels.
      num_sentinels: how many were added to it.
      adaptation: which model it becomes, and the paper that describes the way.
    """

    name: str
    revision: str | None
    config: Any
    tokenizer: Any
    num_sentinels: int
    adaptation: Adaptation


def adapt_model(flags) -> dict:
    """Writes `output_dir` as a whole or not at all; returns the content of its `adapt.json` but for `versions`.

    Args:
      flags: those of `t5suite adapt`.

    Raises:
      ConfigError: no such decoder, or one that has no encoder-decoder; a folder that is not empty.
      DataError: weights that are damaged or incomplete.
      CheckpointError: what was written fails its check.
    """
    with new_folder(flags.output_dir) as folder:
        decoder = read_decoder(flags)
        options = {"dtype": torch.float32, "revision": decoder.revision}
        decoder_model = trained_weights(AutoModelForCausalLM, decoder.name, decoder.config, options)
        adapted = random_model(AutoModelForSeq2SeqLM, adapted_config(decoder))
        origins = tensor_origins(adapted, decoder_model)
        fill_tensors(adapted, decoder_model, origins)
        del decoder_model
        complete_special_tokens(adapted, decoder.tokenizer, SEQ2SEQ.special_tokens)
        cast(adapted, stored_dtype(decoder.config))
        save_with_generation_settings(adapted, folder)
        decoder.tokenizer.save_pretrained(folder)
        record = {**adaptation_record(decoder, adapted, origins), "source": flags.model_name_or_path}
        record["terms_files"] = write_terms(folder, decoder_terms(decoder, flags.model_name_or_path), record)
        if flags.check:
            record["check"] = check_adapted(decoder.name, folder, decoder.revision)
        write_json(folder / RECORD, {**record, "versions": versions()})
    return record


def plan_adaptation(flags) -> dict:
    """What `adapt_model` would record of tensors and tokenizer, from shapes alone."""
    decoder = read_decoder(flags)
    with torch.device("meta"):
        decoder_model = random_model(AutoModelForCausalLM, decoder.config)
        adapted = random_model(AutoModelForSeq2SeqLM, adapted_config(decoder))
    origins = tensor_origins(adapted, decoder_model)
    return {**adaptation_record(decoder, adapted, origins), "source": flags.model_name_or_path}


def check_again(flags) -> dict:
    """Compares an earlier output with its decoder; returns its `adapt.json` with the new comparison. Writes nothing.

    Raises:
      CheckpointError: it does not hold the decoder, by a setting or by a number.
    """
    record = read_json(Path(flags.output_dir) / RECORD)
    decoder = read_decoder(flags)
    return {**record, "check": check_adapted(decoder.name, flags.output_dir, decoder.revision)}


def read_decoder(flags) -> Decoder:
    """The decoder that the flags name: everything but its weights.

    Raises:
      ConfigError: it cannot be adapted, or its tokenizer is another model's.
    """
    name = flags.model_name_or_path
    revision = flags.model_revision
    if Path(name).is_dir():
        name = str(model_folder(name))
    if is_adapter(name):
        raise ConfigError(f"{FLAG} {name}: an adapter; merge it first: t5suite export --model_name_or_path {name}")
    config = load_config(name, revision=revision)
    adaptation = adaptation_of(config, name)
    tokenizer_flag = FLAG
    tokenizer_name = name
    if flags.tokenizer_name:
        tokenizer_flag = "--tokenizer_name"
        tokenizer_name = flags.tokenizer_name
    tokenizer = load_tokenizer(tokenizer_name, revision, flag=tokenizer_flag)  # --model_revision holds for both names
    place_of_tokenizer = f"{tokenizer_flag} {tokenizer_name}"
    if Path(name).is_dir():
        check_trained_with(name, tokenizer)  # a folder may record the tokenizer of its training
    else:
        revision = revision_to_read("model", name, revision)
    check_pieces(tokenizer, config, place_of_tokenizer)
    make_end_texts(tokenizer, place_of_tokenizer)
    num_sentinels = add_sentinels(tokenizer, flags.num_sentinels)
    return Decoder(name, revision, config, tokenizer, num_sentinels, adaptation)


def check_pieces(tokenizer, config, place: str) -> None:
    """Refuses a tokenizer with pieces that the decoder has no embeddings for, or without one of the control tokens.

    Added tokens may lack embeddings, as Gemma 3's <image_soft_token> does in text models: the adapted model gets rows
    for them (`adapted_config`).

    Args:
      place: the flag and the name that the tokenizer is from, for messages.

    Raises:
      ConfigError: another tokenizer than the decoder's.
    """
    num_rows = config.vocab_size
    added_ids = tokenizer.added_tokens_decoder.keys()
    pieces_without_rows = []
    for piece, piece_id in tokenizer.get_vocab().items():
        if piece_id >= num_rows and piece_id not in added_ids:
            pieces_without_rows.append(piece)
    if pieces_without_rows:
        raise ConfigError(
            f"{place}: the decoder has embeddings for {num_rows} pieces, and this tokenizer has {len(tokenizer)}: "
            f"{listed(sorted(pieces_without_rows))} have none; give the decoder's own --tokenizer_name"
        )
    for token in ("bos", "pad", "eos"):
        if getattr(tokenizer, f"{token}_token_id") is None:
            raise ConfigError(f"{place}: the tokenizer has no {token}_token; give a --tokenizer_name of Gemma's kind")


def make_end_texts(tokenizer, place: str) -> None:
    """Changes the tokenizer: texts end with its end token, and begin with no token, as T5's do.

    A Gemma's texts begin with <bos> and have no end, so that an encoder-decoder would never learn to stop.

    Raises:
      ConfigError: it cannot be made so.
    """
    tokenizer.add_bos_token = False
    tokenizer.add_eos_token = True
    ids_before, ids_after = around(tokenizer)
    if ids_before or ids_after != [tokenizer.eos_token_id]:
        tokens_before = " ".join(tokenizer.convert_ids_to_tokens(ids_before)) or "nothing"
        tokens_after = " ".join(tokenizer.convert_ids_to_tokens(ids_after)) or "nothing"
        raise ConfigError(
            f"{place}: a {type(tokenizer).__name__} puts {tokens_before} before a text and {tokens_after} behind it, "
            f"where an encoder-decoder needs {tokenizer.eos_token} behind it alone, and add_eos_token has no effect; "
            "give a --tokenizer_name of Gemma's kind"
        )


def adapted_config(decoder: Decoder):
    """The adapted model's configuration, with a row for each piece, and some more to a round number."""
    num_rows = embedding_rows(max(decoder.config.vocab_size, len(decoder.tokenizer)))
    return encoder_decoder_config(decoder.config, num_rows)


def adaptation_record(decoder: Decoder, adapted, origins: Sequence[TensorOrigin]) -> dict:
    """The record of an adaptation.

    A parameter is copied from the decoder (its origin has a source); or untrained, of a part such as a vision tower,
    through which no text goes; or new.
    """
    # Of these parts' tensors none has a source: the decoder has no such part.
    untrained = sum(origin.size for origin in origins if origin.name.startswith(UNTRAINED_PARTS))
    copied = sum(origin.size for origin in origins if origin.source is not None)
    total = sum(origin.size for origin in origins)
    return {
        "class": type(adapted).__name__,
        "model_type": decoder.adaptation.model_type,
        "paper": decoder.adaptation.paper,
        "num_sentinels": decoder.num_sentinels,
        "new_rows": adapted.config.vocab_size - decoder.config.vocab_size,
        "parameters": {"copied": copied, "new": total - copied - untrained, "untrained": untrained},
        TOKENIZER_KEY: describe_tokenizer(decoder.tokenizer),
        "tensors": [{"name": origin.name, "shape": list(origin.shape), "origin": origin.origin} for origin in origins],
    }


def decoder_terms(decoder: Decoder, name: str) -> ModelTerms:
    """What the decoder's card and files say of its terms.

    Args:
      name: as the user gave it.
    """
    if Path(decoder.name).is_dir():
        return ModelTerms.of_folder(name, Path(decoder.name))
    return ModelTerms.of_hub(name, decoder.revision)
