"""First weights: what transformers leaves wrong about T5's.

    >>> model = random_model(AutoModelForSeq2SeqLM, config)
    >>> initialize(model)  # T5 v1.1 small: the loss of its first batch falls from about 110 to 10.9 nats

T5's initialisation (Mesh TensorFlow, t5x), by standard deviation times `initializer_factor`:

| weight | standard deviation | transformers 5.23 |
|---|---|---|
| embeddings | 1 | the same |
| query | (d_model d_kv)^-0.5: no division by sqrt(d_kv) later | the same |
| key, value, wi | d_model^-0.5 | the same |
| attention's output | (num_heads d_kv)^-0.5 | the same |
| wo | d_ff^-0.5 | the same |
| layer norm | constant 1 | the same |
| relative attention bias | Glorot's uniform, about 0.21 | d_model^-0.5; kept, as its peers are trained so |
| output layer of its own (v1.1, mT5) | d_model^-0.5 | **1: logits of standard deviation sqrt(d_model)** |

The last row is what is mended. Final states have mean square 1, so logits have variance 1, and the first loss is that
of standard normal logits: ln V + 1/2. A tied output layer sees states scaled by d_model^-0.5, with the same variance;
there the token that the decoder has just read also gets a logit of up to sqrt(d_model), which costs some tenths more.
"""

import math
from contextlib import nullcontext

import torch
from transformers.integrations import is_deepspeed_zero3_enabled

from t5suite.models.head_tying import T5_TYPES


def initialize(model) -> None:
    """Gives a fresh T5 the output layer that its published initialisation has; other models are left as they are."""
    config = model.config
    if config.model_type not in T5_TYPES or config.tie_word_embeddings:
        return
    weight_VD = model.lm_head.weight
    if weight_VD.is_meta:
        return
    with torch.no_grad(), whole(weight_VD):
        weight_VD.normal_(mean=0.0, std=config.initializer_factor * config.d_model**-0.5)


def expected_first_loss(vocab_size: int, logit_variance: float = 1.0) -> float:
    """Mean cross-entropy in nats of independent normal logits: ln V + variance / 2.

    >>> round(expected_first_loss(32128), 3)
    10.877
    """
    return math.log(vocab_size) + logit_variance / 2


def whole(weight):
    """ZeRO-3 keeps a part of each weight on every rank: here it is put together, and rank 0's values are shared."""
    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([weight], modifier_rank=0)
