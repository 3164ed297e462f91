"""Tokens that a vocabulary lacks: `--add_tokens '<turn>,<speaker>'`, or a file with one in each line.

    >>> ids = add_words(tokenizer, parse_tokens("<turn>,<speaker>"))
    >>> begin_at_mean(model, ids)           # trained weights: the new rows begin as the mean of the old ones
    >>> tokenizer.tokenize("<turn>Hello")
    ['<turn>', '▁Hello']

Added tokens are words like others: they are written by `decode`, saved with the tokenizer, and have rows in the
embeddings and in an output layer of its own. T5's 32128 rows for 32100 pieces take the first 28 of them; then the
matrix grows by 128 rows at a time (`vocabulary.grow_embeddings`). No row is ever taken away.
"""

import logging
import os
from pathlib import Path

import torch
from transformers import AddedToken

from t5suite.base.errors import ConfigError
from t5suite.models.initialization import whole

logger = logging.getLogger(__name__)

FLAG = "--add_tokens"


def parse_tokens(text: str | None) -> list[str]:
    """The tokens of a comma list, or of a file's lines; each once, in their order.

    >>> parse_tokens("<turn>,<speaker>,<turn>")
    ['<turn>', '<speaker>']

    Raises:
      ConfigError: a file that has none or is no text, a token that is empty or has white space at an end.
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
        raise ConfigError(f"{FLAG} {text}: no token is in it")
    return list(dict.fromkeys(tokens))


def add_words(tokenizer, tokens: list[str]) -> list[int]:
    """Adds the tokens that the tokenizer lacks behind its last piece; returns their ids."""
    if not tokens:
        return []
    known = tokenizer.get_vocab()
    missing = [token for token in tokens if token not in known]
    if present := [token for token in tokens if token in known]:
        logger.warning("%s: the tokenizer has %s already", FLAG, ", ".join(present[:10]))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in missing])
    return tokenizer.convert_tokens_to_ids(missing)


def begin_at_mean(model, ids: list[int]) -> None:
    """Gives the rows of added tokens the mean of the rows before them, in the embeddings and the output layer.

    transformers draws rows that it makes around that mean already; those that were there unused (T5's 28) hold noise.
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
