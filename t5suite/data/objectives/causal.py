"""Causal language modelling: every token is to be told from those before it.

    tokens      [464, 7372, 286, 262, 1748]       "The centre of the city"
    input_ids   [464, 7372, 286, 262, 1748]
    labels      [7372, 286, 262, 1748, -100]      what stands one to the right; the last token predicts nothing

Text is concatenated and cut into blocks, as GPT does (OpenAI 2018; arXiv:2005.14165 sec. 2.2): documents follow one
another, parted by a separator if there is one, attention goes across it and positions run on.

Shape suffixes: B rows, L tokens of a block.
"""

import numpy as np

from t5suite.data.objectives.masked import IGNORED
from t5suite.data.objectives.ragged import Ragged


def causal_lm(tokens, rng=None):
    """One block -> (input_ids, labels), both int64 [L]. There is no chance in it: `rng` is not used.

    >>> input_ids, labels = causal_lm([464, 7372, 286, 262, 1748])
    >>> labels.tolist()
    [7372, 286, 262, 1748, -100]

    The labels are shifted already: our loss compares logits and labels place by place. Hugging Face's causal models
    shift within their own loss, so these labels must never be given to them (`model(**batch)` with "labels" in it
    would train each token to be told from those before the one before it).
    """
    input_ids, labels = causal_lm_batch(np.asarray(tokens)[None], rng)
    return input_ids.values, labels.values


def causal_lm_batch(tokens_BL, rng=None):
    """`causal_lm` for B rows at once: (input_ids, labels), both `Ragged` of rows of L, int64."""
    input_ids_BL = tokens_BL.astype(np.int64)
    labels_BL = np.full_like(input_ids_BL, IGNORED)
    labels_BL[:, :-1] = input_ids_BL[:, 1:]
    return Ragged.of(input_ids_BL), Ragged.of(labels_BL)


def join_documents(documents, separator_id=None):
    """Documents' token ids as one row, each followed by the separator, if there is one.

    >>> join_documents([[5, 6], [7]], separator_id=1).tolist()
    [5, 6, 1, 7, 1]

    GPT-2's separator is <|endoftext|>, its `eos_token_id`. Documents without tokens add nothing.
    """
    ending = [] if separator_id is None else [separator_id]
    parts = [np.concatenate([np.asarray(ids, dtype=np.int64), ending]) for ids in documents if len(ids)]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)
