"""Rows that cost what a classification task's rows cost: random ids of MNLI's lengths, and a label of some tokens.

>>> mnli_like_rows(2, vocabulary=100, seed=0)
[{'input_ids': [...], 'attention_mask': [1, ...], 'labels': [17, 2, 1]}, ...]
"""

import numpy as np
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

# Of 9,999 training rows of MNLI in T5's form and vocabulary: median 49 tokens, standard deviation of logarithms 0.39,
# the longest 298; "entailment" is 5 tokens, "neutral" and "contradiction" are 2.
MEDIAN, SPREAD, LONGEST = 49, 0.39, 300
LABEL_LENGTHS = (5, 2, 2)
FIRST_ID, END = 3, 1


def mnli_like_lengths(num_rows: int, seed: int) -> np.ndarray:
    """Log-normal lengths in tokens, int64 [num_rows]."""
    drawn = np.random.default_rng((seed, 0)).normal(np.log(MEDIAN), SPREAD, num_rows)
    return np.clip(np.exp(drawn), 8, LONGEST).astype(np.int64)


def mnli_like_rows(num_rows: int, vocabulary: int, seed: int) -> list[dict]:
    """Rows as a tokenizer would give them; the label depends on the first token, so that it can be learned."""
    rng = np.random.default_rng((seed, 1))
    words = [[*rng.integers(FIRST_ID, vocabulary, n - 1).tolist(), END] for n in LABEL_LENGTHS]
    rows = []
    for length in mnli_like_lengths(num_rows, seed):
        ids = [*rng.integers(FIRST_ID, vocabulary, length - 1).tolist(), END]
        rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": words[ids[0] % len(words)]})
    return rows


def padding_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer for collators that ask one how to pad: with 0, on the right."""
    pieces = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
