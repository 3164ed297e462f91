"""Words of the user's own in the vocabulary: `--add_tokens`.

>>> words = parse_tokens("<turn>,<speaker>")
>>> ids = add_words(tokenizer, words)
>>> set_rows_to_mean(model, ids)
>>> warn_of_frozen_rows(model)
"""

import logging
import os
from pathlib import Path

import torch
from transformers import AddedToken

from t5suite.base.errors import ConfigError
from t5suite.models.adapters import trained_rows
from t5suite.models.t5.output_layer import gathered

logger = logging.getLogger(__name__)

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
    tokens = _read_tokens(text) if is_file else text.split(",")
    for number, token in enumerate(tokens, 1):
        if not token or token != token.strip():
            raise ConfigError(
                f"{FLAG} {text}: token {number} is {token!r}; give words without white space at their ends"
            )
    if not tokens:
        raise ConfigError(f"{FLAG} {text}: it contains no token")
    return ["\n" if token == r"\n" else token for token in dict.fromkeys(tokens)]


def _read_tokens(path: str) -> list[str]:
    """The lines of a file, without empty ones at its end."""
    try:
        tokens = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{FLAG} {path}: cannot be read as UTF-8 text ({error})") from None
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens


def add_words(tokenizer, tokens: list[str]) -> list[int]:
    """Adds the tokens that the tokenizer lacks, as words that decoding keeps; returns their ids."""
    if not tokens:
        return []
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in tokens if token not in vocabulary]
    if len(missing) < len(tokens):
        present = [token for token in tokens if token in vocabulary]
        logger.warning("%s: the tokenizer has %s already", FLAG, ", ".join(present[:10]))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in missing])
    return tokenizer.convert_tokens_to_ids(missing)


def set_rows_to_mean(model, ids: list[int]) -> None:
    """Gives the rows of added tokens the mean of the rows before them, in the embeddings and the output layer.

    transformers already draws new rows around that mean; rows that existed unused before (T5's 28) hold noise. The
    model notes their ids in `rows_at_mean`, for an adapter that freezes them later.
    """
    if not ids:
        return
    model.rows_at_mean = ids
    matrices = [model.get_input_embeddings().weight]
    output = model.get_output_embeddings()
    if output is not None and output.weight is not matrices[0]:
        matrices.append(output.weight)
    for matrix_VD in matrices:
        with torch.no_grad(), gathered(matrix_VD):
            if not matrix_VD.is_meta:
                rows = torch.tensor(ids, device=matrix_VD.device)
                matrix_VD[rows] = matrix_VD[: min(ids)].mean(dim=0)


def warn_of_frozen_rows(model) -> None:
    """Warns of added tokens whose rows are frozen, in the embeddings or in an output layer of its own.

    They stay at the mean, one row for all of them.
    """
    if not getattr(model, "rows_at_mean", ()):
        return
    rows_of_adapter = trained_rows(model)
    embeddings = model.get_input_embeddings()
    frozen_ids = {"embeddings": []}
    if rows_of_adapter or not _is_trained(embeddings):
        at_mean = _ids_at_mean(model, embeddings)
        frozen_ids["embeddings"] = [token_id for token_id in at_mean if token_id not in rows_of_adapter]
    output = model.get_output_embeddings()
    if output is not None and _matrix(output) is not _matrix(embeddings) and not _is_trained(output):
        frozen_ids["rows of the output layer"] = _ids_at_mean(model, output)
    parts = [part for part, ids in frozen_ids.items() if ids]
    if not parts:
        return
    ids = ",".join(map(str, sorted(set().union(*frozen_ids.values()))))
    cure = f"train the {' and '.join(parts)} (without --adapter, without --freeze)"
    if getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        cure += f', or these rows: --adapter lora --adapter_args "trainable_token_indices=({ids},)"'
    logger.warning(
        "%s: the %s of the new tokens (ids %s) are frozen at the mean of the others, one row for all; %s",
        FLAG,
        " and ".join(parts),
        ids,
        cure,
    )


def _is_trained(module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _matrix(module) -> torch.Tensor:
    """The model's own matrix, also below an adapter's rows."""
    return next(module.parameters())


def _ids_at_mean(model, module) -> list[int]:
    """The ids in `rows_at_mean` whose rows are still the mean of the rows before them; training moves them."""
    ids = model.rows_at_mean
    matrix_VD = _matrix(module)
    with torch.no_grad(), gathered(matrix_VD):
        if matrix_VD.is_meta:
            return list(ids)
        rows_ND = matrix_VD[torch.tensor(ids, device=matrix_VD.device)]
        mean_D = matrix_VD[: min(ids)].mean(dim=0)
        are_at_mean = torch.isclose(rows_ND, mean_D, atol=1e-6).all(dim=1).tolist()
    return [token_id for token_id, is_at_mean in zip(ids, are_at_mean, strict=True) if is_at_mean]
