"""A tokenizer for the rows of tasks: the same ids, compiled by numba once there are many texts.

    >>> rows = RowTokenizer(tokenizer)
    >>> rows(["sst2 sentence: Good."], max_length=512, truncation=True)["input_ids"]
    [[3, 7, 7, 17, 357, 7142, 10, 1804, 5, 1]]

It is called as the tokenizer is, for lists of texts that are cut on the right and end with end-of-sequence; special
tokens that stand in a text are found, as the tokenizer finds them. All else, and the first texts of a run, go to the
tokenizer: to load what numba compiled takes a second. Ids come as arrays from then on.
"""

import json
import logging
from collections.abc import Sequence

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.data.text.compiled_pieces import INSTALL, CompiledEngine, installed, why_not

logger = logging.getLogger(__name__)

ENGINES = dict.fromkeys(("auto", "numba", "tokenizers"))
CHARACTERS_BEFORE_NUMBA = 2 * 10**6  # about what the tokenizer does in the second that loading takes
PROBES = (
    "stsb sentence1: The house is wonderful. It's 3,500 years old! sentence2: x",
    "", " ", "two  spaces,\ta tab\r\nand a line", "Straße ﬁne ½ … “quoted” – naïve", "日本語 हिन्दी 😀 \u2581a",
    "a </s> b<pad>c <extra_id_0>. <unk>", "not_entailment",
)  # fmt: skip


class RowTokenizer:
    """A Hugging Face tokenizer with a faster way for many texts.

    Args:
      engine: `tokenizers`, the tokenizer's own; `numba` from the first text on; `auto`: numba after
        CHARACTERS_BEFORE_NUMBA, where it is installed and gives the same.

    Raises:
      ConfigError: `numba` where it is not installed, or where the tokenizer has another form or other ids.
    """

    def __init__(self, tokenizer, engine: str = "auto"):
        find(engine, ENGINES, "engine", where="--tokenizer_engine")
        self.tokenizer = tokenizer
        self._left = CHARACTERS_BEFORE_NUMBA if engine == "auto" and installed() else None
        self._compiled = None
        if engine == "numba":
            self._compiled, problem = compiled_engine(tokenizer)
            if problem:
                raise ConfigError(f"--tokenizer_engine numba: {problem}; leave the flag out, or give tokenizers")

    @property
    def engine(self) -> str:
        """'numba' or 'tokenizers': what encodes now."""
        return "tokenizers" if self._compiled is None else "numba"

    def __call__(self, texts=None, *, text_target=None, max_length=None, truncation=False, **settings) -> dict:
        """What the tokenizer gives; of lists that are cut, `input_ids` alone."""
        given = texts if text_target is None else text_target
        if isinstance(given, str) or not truncation or settings:
            settings |= {"truncation": truncation, "max_length": max_length}
            return self.tokenizer(texts, text_target=text_target, **settings)
        if self._compiled is None and self._left is not None:
            self._count(given)
        if self._compiled is None:
            return self.tokenizer(texts, text_target=text_target, max_length=max_length, truncation=True)
        return {"input_ids": ended(*self._compiled.encode_flat(given), max_length, self.tokenizer.eos_token_id)}

    def _count(self, texts: Sequence[str]) -> None:
        self._left -= sum(map(len, texts))
        if self._left < 0:
            self._left = None
            self._compiled, problem = compiled_engine(self.tokenizer)
            if problem:
                logger.debug("numba does not tokenize rows: %s", problem)


def compiled_engine(tokenizer) -> tuple[CompiledEngine | None, str | None]:
    """The engine of the tokenizer's backend, special tokens included, or why there is none."""
    name = getattr(tokenizer, "name_or_path", None) or "the tokenizer"
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not installed():
        return None, f"numba is not installed; {INSTALL}"
    if backend is None:
        return None, f"{name} is written in Python"
    settings = backend.to_str()
    if reason := why_not(json.loads(settings)):
        return None, f"{name} is not of T5's form: {reason}"
    try:
        engine = CompiledEngine(settings, lambda texts: _ids_alone(tokenizer, texts))
    except (ImportError, RuntimeError) as error:  # for a NumPy newer than it knows; where nothing can be kept
        logger.warning("numba cannot be used (%s): the tokenizer itself encodes rows", error)
        return None, f"numba cannot be used ({error})"
    found = engine.encode_flat(PROBES)
    for max_length in (1, 5, 512):
        ids = [row.tolist() for row in ended(*found, max_length, tokenizer.eos_token_id)]
        for words in ({"text": list(PROBES)}, {"text_target": list(PROBES)}):
            if tokenizer(**words, max_length=max_length, truncation=True)["input_ids"] != ids:
                return None, f"{name} ends or cuts texts otherwise than T5's"
    return engine, None


def ended(ids_N: np.ndarray, offsets: np.ndarray, max_length: int, eos_id: int) -> list[np.ndarray]:
    """Each text's ids, cut on the right to `max_length`, the end-of-sequence token included; int64.

    >>> ended(np.array([7, 8, 9, 5]), np.array([0, 3, 4]), 3, eos_id=1)
    [array([7, 8, 1]), array([5, 1])]
    """
    lengths = np.minimum(np.diff(offsets), max_length - 1)
    ends = np.cumsum(lengths + 1)
    starts = ends - lengths - 1
    rows = np.full(ends[-1] if len(ends) else 0, eos_id, np.int64)
    is_text = np.ones(len(rows), bool)
    is_text[ends - 1] = False
    kept_before = np.cumsum(lengths) - lengths
    rows[is_text] = ids_N[np.arange(int(lengths.sum())) + np.repeat(offsets[:-1] - kept_before, lengths)]
    return [rows[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _ids_alone(tokenizer, texts) -> list[list[int]]:
    return tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if len(texts) else []
