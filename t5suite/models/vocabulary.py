"""A tokenizer's pieces and a model's rows for them: more sentinels, mode tokens, embeddings to match.

    >>> tokenizer = load_tokenizer("google/t5-v1_1-small")
    >>> add_sentinels(tokenizer, 128), len(tokenizer)
    (28, 32128)

Rows come in multiples of 128, as T5's do (32100 pieces, 32128 rows): which suits matrix units. A trained
vocabulary never shrinks.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import AddedToken

from t5suite.base.errors import ConfigError
from t5suite.models.t5.output_layer import whole

logger = logging.getLogger(__name__)

MULTIPLE = 128
SENTINEL = "<extra_id_{}>"
# UL2's modes (arXiv:2205.05131, section 3.1.2): regular spans, a sequence's continuation, extreme corruption.
MODE_TOKENS = ("[R]", "[S]", "[X]")


def rows_for(num_pieces: int) -> int:
    """The rows of an embedding matrix for this many pieces.

    >>> rows_for(32100), rows_for(32128)
    (32128, 32128)
    """
    return -(-num_pieces // MULTIPLE) * MULTIPLE


def add_tokens(tokenizer, tokens: Iterable[str]) -> int:
    """Adds the tokens that the tokenizer lacks, as special tokens that are never split; returns how many.

    They get the ids after the last piece, are saved with the tokenizer and dropped by `skip_special_tokens`.

    >>> add_tokens(tokenizer, MODE_TOKENS)
    3
    """
    known = tokenizer.get_vocab()
    missing = [token for token in tokens if token not in known]
    if missing:
        tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in missing])
        logger.info("%d tokens are added to the tokenizer: %s ... %s", len(missing), missing[0], missing[-1])
    return len(missing)


def add_sentinels(tokenizer, num_sentinels: int) -> int:
    """Adds the missing ones of `<extra_id_0>` to `<extra_id_{num_sentinels - 1}>`; returns how many.

    T5 has 100; mT5's begin with U+2581. Ids are looked up by name: the added ones come after all others, while T5's own
    count downwards.

    Raises:
      ConfigError: fewer than one, or fewer than the tokenizer has: they cannot be removed.
    """
    known = tokenizer.get_vocab()
    has = [not known.keys().isdisjoint((name, "\u2581" + name)) for name in map(SENTINEL.format, range(len(known)))]
    if num_sentinels < max(1, sum(has)):
        raise ConfigError(
            f"--num_sentinels {num_sentinels}: the tokenizer has {sum(has)}, and none can be removed; "
            f"give {max(1, sum(has))} or more"
        )
    return add_tokens(tokenizer, (SENTINEL.format(n) for n in range(num_sentinels) if n >= len(has) or not has[n]))


def ensure_padding(tokenizer) -> None:
    """Gives a tokenizer without a padding token (GPT-2's) its end token instead: masks distinguish the two."""
    if tokenizer.pad_token is not None:
        return
    if tokenizer.eos_token is None:
        raise ConfigError("the tokenizer has neither a padding token nor an end token; rows cannot be padded")
    tokenizer.pad_token = tokenizer.eos_token


def fit_config(config, tokenizer, fixed: bool = False) -> None:
    """Gives a configuration for random weights the rows that the tokenizer needs.

    It keeps a number of rows that equals the tokenizer's pieces, which was made for it, and one that the user has set
    (`fixed`), unless that is too small (ConfigError).
    """
    num_pieces, rows = len(tokenizer), rows_for(len(tokenizer))
    if config.vocab_size == num_pieces or (fixed and config.vocab_size > num_pieces):
        return
    if fixed:
        raise ConfigError(
            f"--config_overrides vocab_size={config.vocab_size}: the tokenizer has {num_pieces} pieces; "
            f"leave vocab_size out to get {rows} rows"
        )
    if config.vocab_size != rows:
        logger.info("the configuration's vocabulary of %d becomes %d for the tokenizer", config.vocab_size, rows)
    config.vocab_size = rows


def grow_embeddings(model, num_pieces: int) -> int:
    """Gives a trained model rows for added pieces; returns how many were added.

    New rows are drawn around the mean of the old ones (transformers' `mean_resizing`), so that none of them stands out.
    """
    rows = model.config.get_text_config().vocab_size
    if rows >= num_pieces:
        return 0
    model.resize_token_embeddings(rows_for(num_pieces), mean_resizing=True)
    added = rows_for(num_pieces) - rows
    logger.info("the embeddings grow from %d to %d rows for %d pieces", rows, rows + added, num_pieces)
    return added


def set_special_tokens(config, tokenizer, names: Iterable[str], scratch: bool) -> None:
    """Writes the tokenizer's ids of special tokens into the configuration; trained weights keep theirs.

    T5 starts its decoder with padding, BART with its end token: the configuration says which, if it is set; a
    fresh T5's names no start token.
    """
    is_seq2seq = getattr(config, "is_encoder_decoder", False)
    start = getattr(config, "decoder_start_token_id", None)
    starts_with_end = start is not None and start == getattr(config, "eos_token_id", None)
    for name in names:
        key = f"{name}_token_id"
        if hasattr(config, key) and (scratch or getattr(config, key) is None):
            setattr(config, key, getattr(tokenizer, key, None))
    for name in ("bos", "eos"):
        # BART's configuration forces id 2 at the end of an answer, whatever a new vocabulary has there.
        if scratch and getattr(config, f"forced_{name}_token_id", None) is not None:
            setattr(config, f"forced_{name}_token_id", getattr(config, f"{name}_token_id"))
    if is_seq2seq and (scratch or start is None):
        config.decoder_start_token_id = config.eos_token_id if scratch and starts_with_end else config.pad_token_id


def set_generation_tokens(model) -> None:
    """Generation pads, ends and starts with what the configuration names."""
    generation = getattr(model, "generation_config", None)
    if generation is None:
        return
    forced = ("forced_bos_token_id", "forced_eos_token_id")
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", *forced):
        value = getattr(model.config, key, None)
        if value is not None:
            setattr(generation, key, value)


# What transformers 5 does for single rows only, with a tokenizer or another model at hand, or in code of the hub; with
# the values that have no effect.
OTHER_DECODING = {
    **dict.fromkeys("prompt_lookup_num_tokens assistant_early_exit dola_layers penalty_alpha constraints".split()),
    **dict.fromkeys("force_words_ids diversity_penalty stop_strings guidance_scale".split()),
    **dict.fromkeys("use_mtp low_memory token_healing".split(), False),
    "num_beam_groups": 1,
}


def leave_out_other_decoding(generation, place: str) -> list[str]:
    """Resets settings of a model's generation for which `generate` fails on a batch; warns, and returns their names.

    >>> leave_out_other_decoding(GenerationConfig(dola_layers="high"), "t5")
    ['dola_layers']
    """
    names = []
    for name, neutral in OTHER_DECODING.items():
        if getattr(generation, name, neutral) not in (None, neutral):
            setattr(generation, name, neutral)
            names.append(name)
    if names:
        logger.warning("%s: generation_config.json: not used here: %s", place, ", ".join(names))
    return names


FLAG = "--add_tokens"


def parse_tokens(text: str | None) -> list[str]:
    r"""The tokens of a comma list, or of a file's lines; each once, in their order; `\n` alone is a line break.

    >>> parse_tokens(r"<turn>,\n,<turn>")
    ['<turn>', '\n']

    Raises:
      ConfigError: a file that has none or is not text, a token that is empty or has white space at an end.
    """
    if text is None:
        return []
    is_file = os.path.isfile(text)
    if text.endswith(".txt") and not is_file:
        raise ConfigError(f"{FLAG} {text}: no such file")
    if is_file:
        try:
            tokens = Path(text).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{FLAG} {text}: cannot be read as UTF-8 text ({error})") from None
        while tokens and not tokens[-1]:
            tokens.pop()
    else:
        tokens = text.split(",")
    for number, token in enumerate(tokens, 1):
        if not token or token != token.strip():
            raise ConfigError(
                f"{FLAG} {text}: token {number} is {token!r}; give words without white space at their ends"
            )
    if not tokens:
        raise ConfigError(f"{FLAG} {text}: it contains no token")
    return ["\n" if token == r"\n" else token for token in dict.fromkeys(tokens)]


def add_words(tokenizer, tokens: list[str]) -> list[int]:
    """Adds the tokens that the tokenizer lacks, as words that decoding keeps; returns their ids."""
    if not tokens:
        return []
    known = tokenizer.get_vocab()
    missing = [token for token in tokens if token not in known]
    if len(missing) < len(tokens):
        present = [token for token in tokens if token in known]
        logger.warning("%s: the tokenizer has %s already", FLAG, ", ".join(present[:10]))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in missing])
    return tokenizer.convert_tokens_to_ids(missing)


def begin_at_mean(model, ids: list[int]) -> None:
    """Gives the rows of added tokens the mean of the rows before them, in the embeddings and the output layer.

    transformers already draws new rows around that mean; rows that existed unused before (T5's 28) hold noise.
    """
    if not ids:
        return
    output = model.get_output_embeddings()
    matrices = [model.get_input_embeddings().weight, *([] if output is None else [output.weight])]
    rows = torch.tensor(ids)
    for matrix_VD in {id(matrix): matrix for matrix in matrices}.values():
        with torch.no_grad(), whole(matrix_VD):
            if not matrix_VD.is_meta:
                matrix_VD[rows.to(matrix_VD.device)] = matrix_VD[: min(ids)].mean(dim=0)
