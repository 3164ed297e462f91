"""A tokenizer in figures: how many pieces, how long texts become, how much of them it does not know.

>>> measure(tokenizer, ["Fellow citizens, I am again called upon ..."])
{'documents': 1, 'words': 24, 'tokens': 31, 'tokens_per_word': 1.29, 'bytes_per_token': 4.2, 'unk_rate': 0.0}
"""

SPECIAL_TOKENS = ("pad_token", "eos_token", "bos_token", "unk_token", "cls_token", "sep_token", "mask_token")
SAMPLE_WORDS = 12


def measure(tokenizer, texts) -> dict:
    """Figures over texts; `unk_rate` is in points: of 100 tokens, how many are unknown. Special tokens do not count."""
    totals = {"documents": 0, "words": 0, "tokens": 0, "bytes": 0, "unknown": 0}
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        totals["documents"] += 1
        totals["words"] += len(text.split())
        totals["bytes"] += len(text.encode())
        totals["tokens"] += len(ids)
        totals["unknown"] += ids.count(tokenizer.unk_token_id)
    tokens = max(totals["tokens"], 1)
    return {
        **{name: totals[name] for name in ("documents", "words", "tokens")},
        "tokens_per_word": round(totals["tokens"] / max(totals["words"], 1), 4),
        "bytes_per_token": round(totals["bytes"] / tokens, 4),
        "unk_rate": round(100 * totals["unknown"] / tokens, 4),
    }


def special_ids(tokenizer) -> dict[str, int]:
    """The special tokens' ids, by the token: `{'<pad>': 0, '</s>': 1, '<unk>': 2, '<extra_id_0>': 32099, ...}`."""
    named = [getattr(tokenizer, name) for name in SPECIAL_TOKENS]
    tokens = dict.fromkeys(token for token in [*named, *tokenizer.all_special_tokens] if token is not None)
    return {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}


def sample_encoding(tokenizer, text: str) -> dict:
    """The beginning of a text, its tokens and ids, and what they decode to."""
    text = " ".join(text.split()[:SAMPLE_WORDS])
    ids = tokenizer(text)["input_ids"]
    return {
        "text": text,
        "tokens": tokenizer.convert_ids_to_tokens(ids),
        "ids": ids,
        "decoded": tokenizer.decode(ids, skip_special_tokens=True),
    }
