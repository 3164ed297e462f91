"""Published sizes of T5, as the settings of a configuration: `--config_name t5-v1_1-base` needs no network.

    >>> PRESETS["t5-v1_1-base"]["d_ff"], PRESETS["t5-v1_1-base"]["tie_word_embeddings"]
    (2048, False)

Three generations differ in more than their sizes:

* `t5-*` (arXiv:1910.10683): ReLU, output layer tied to the embeddings, 32128 rows of vocabulary;
* `t5-v1_1-*` (arXiv:2002.05202, google-research/t5x): gated GELU, a separate output layer;
* `mt5-*` (arXiv:2010.11934): v1.1 with 250112 rows.

Every preset has a dropout rate of 0.1, as in fine-tuning; v1.1 and mT5 were pre-trained with `--dropout_rate 0`.
"""

T5_VOCABULARY = 32128
MT5_VOCABULARY = 250112


def t5(d_model, d_ff, num_layers, num_heads, d_kv=64) -> dict:
    """A T5 of the first generation; `num_layers` in the encoder and as many in the decoder.

    >>> t5(512, 2048, 6, 8)["feed_forward_proj"]
    'relu'
    """
    return {
        "model_type": "t5",
        "vocab_size": T5_VOCABULARY,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
        "d_model": d_model,
        "d_kv": d_kv,
        "d_ff": d_ff,
        "num_layers": num_layers,
        "num_heads": num_heads,
    }


def t5_v1_1(d_model, d_ff, num_layers, num_heads) -> dict:
    """A T5 v1.1: gated GELU, and an output layer that is not the embedding matrix.

    >>> t5_v1_1(512, 1024, 8, 6)["feed_forward_proj"]
    'gated-gelu'
    """
    return {**t5(d_model, d_ff, num_layers, num_heads), "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def mt5(d_model, d_ff, num_layers, num_heads) -> dict:
    """An mT5: v1.1 for a hundred languages.

    >>> mt5(512, 1024, 8, 6)["vocab_size"]
    250112
    """
    return {**t5_v1_1(d_model, d_ff, num_layers, num_heads), "model_type": "mt5", "vocab_size": MT5_VOCABULARY}


PRESETS = {
    "t5-small": t5(512, 2048, 6, 8),
    "t5-base": t5(768, 3072, 12, 12),
    "t5-large": t5(1024, 4096, 24, 16),
    "t5-3b": t5(1024, 16384, 24, 32, d_kv=128),
    "t5-11b": t5(1024, 65536, 24, 128, d_kv=128),
    "t5-v1_1-small": t5_v1_1(512, 1024, 8, 6),
    "t5-v1_1-base": t5_v1_1(768, 2048, 12, 12),
    "t5-v1_1-large": t5_v1_1(1024, 2816, 24, 16),
    "t5-v1_1-xl": t5_v1_1(2048, 5120, 24, 32),
    "t5-v1_1-xxl": t5_v1_1(4096, 10240, 24, 64),
    "mt5-small": mt5(512, 1024, 8, 6),
    "mt5-base": mt5(768, 2048, 12, 12),
    "mt5-large": mt5(1024, 2816, 24, 16),
    "mt5-xl": mt5(2048, 5120, 24, 32),
    "mt5-xxl": mt5(4096, 10240, 24, 64),
    # For laptops: T5's vocabulary takes 4.1 of its 5.7 million parameters, which is why its output layer is tied.
    "mini": {**t5(128, 256, 4, 4, d_kv=32), "feed_forward_proj": "gated-gelu"},
}
