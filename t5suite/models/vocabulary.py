"""A tokenizer's pieces and a model's rows for them: more sentinels, mode tokens, embeddings to match.

    >>> tokenizer = load_tokenizer("google/t5-v1_1-small")
    >>> add_sentinels(tokenizer, 128), len(tokenizer)
    (28, 32128)

Rows come in multiples of 128, as T5's do (32100 pieces, 32128 rows): which suits matrix units. A trained
vocabulary never shrinks.
"""

import logging
from collections.abc import Iterable

from transformers import AddedToken

from t5suite.base.errors import ConfigError
from t5suite.models.configs import config_parts

logger = logging.getLogger(__name__)

ROW_MULTIPLE = 128
SENTINEL = "<extra_id_{}>"
# SentencePiece's mark, with which mT5's sentinels begin.
WORD_BEGINNING = "\u2581"
# UL2's modes (arXiv:2205.05131, section 3.1.2): regular spans, a sequence's continuation, extreme corruption.
MODE_TOKENS = ("[R]", "[S]", "[X]")


def embedding_rows(num_pieces: int) -> int:
    """The rows of an embedding matrix for this many pieces.

    >>> embedding_rows(32100), embedding_rows(32128)
    (32128, 32128)
    """
    return -(-num_pieces // ROW_MULTIPLE) * ROW_MULTIPLE


def add_tokens(tokenizer, tokens: Iterable[str]) -> int:
    """Adds the tokens that the tokenizer lacks, as special tokens that are never split; returns how many.

    They get the ids after the last piece, are saved with the tokenizer and dropped by `skip_special_tokens`.

    >>> add_tokens(tokenizer, MODE_TOKENS)
    3
    """
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in missing])
        logger.info("%d tokens are added to the tokenizer: %s ... %s", len(missing), missing[0], missing[-1])
    return len(missing)


def add_sentinels(tokenizer, num_sentinels: int) -> int:
    """Adds the missing ones of `<extra_id_0>` to `<extra_id_{num_sentinels - 1}>`; returns how many.

    T5 has 100; mT5's begin with U+2581. Ids are looked up by name: the added ones come after all others, while T5's own
    count downwards.

    Raises:
      ConfigError: fewer than one, or fewer than the tokenizer has: they cannot be removed; ByT5's tokenizer.
    """
    if type(tokenizer).__name__ == "ByT5Tokenizer":
        raise ConfigError(
            f"--num_sentinels {num_sentinels}: ByT5's sentinels are its last 100 bytes, and there are no more; leave "
            "the flag out (for fewer spans lower --noise_density or --inputs_length, or raise --mean_span_length)"
        )
    vocabulary = tokenizer.get_vocab()
    present = set()
    for number in range(len(vocabulary)):
        name = SENTINEL.format(number)
        if name in vocabulary or WORD_BEGINNING + name in vocabulary:
            present.add(number)
    if num_sentinels < max(1, len(present)):
        raise ConfigError(
            f"--num_sentinels {num_sentinels}: the tokenizer has {len(present)}, and none can be removed; "
            f"give {max(1, len(present))} or more"
        )
    missing = [number for number in range(num_sentinels) if number not in present]
    return add_tokens(tokenizer, map(SENTINEL.format, missing))


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
    num_pieces = len(tokenizer)
    rows_before = config.get_text_config().vocab_size
    rows = num_pieces if rows_before == num_pieces else embedding_rows(num_pieces)
    if fixed:
        if config.vocab_size < num_pieces:
            raise ConfigError(
                f"--config_overrides vocab_size={config.vocab_size}: the tokenizer has {num_pieces} pieces; "
                f"leave vocab_size out to get {embedding_rows(num_pieces)} rows"
            )
        rows = config.vocab_size
    elif rows != rows_before:
        logger.info("the configuration's vocabulary of %d becomes %d for the tokenizer", rows_before, rows)
    set_vocabulary(config, rows_before, rows)
    config.vocab_size = rows  # in T5Gemma's it may differ from those of its two stacks


def set_vocabulary(config, rows: int, new_rows: int) -> None:
    """Sets the number of pieces in a configuration, and in those inside of it that have the same."""
    for part in config_parts(config):
        if getattr(part, "vocab_size", None) == rows:
            part.vocab_size = new_rows


def grow_embeddings(model, num_pieces: int) -> int:
    """Gives a trained model rows for added pieces; returns how many were added.

    New rows are drawn around the mean of the old ones (transformers' `mean_resizing`), so that none of them stands out.
    """
    rows = model.config.get_text_config().vocab_size
    if rows >= num_pieces:
        return 0
    model.resize_token_embeddings(embedding_rows(num_pieces), mean_resizing=True)
    added = embedding_rows(num_pieces) - rows
    logger.info("the embeddings grow from %d to %d rows for %d pieces", rows, rows + added, num_pieces)
    return added
