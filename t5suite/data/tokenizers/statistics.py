"""Statistics of a tokenizer: the number of pieces, the length of texts, the share of unknown tokens."""

from t5suite.data.corpora.encoding import make_text_encoder

SPECIAL_TOKENS = ("pad_token", "eos_token", "bos_token", "unk_token", "cls_token", "sep_token", "mask_token")


def measure(tokenizer, texts) -> dict:
    """Statistics over texts, encoded as in a corpus: a text that spells out `<unk>` gives characters, not the token.

    `unk_rate` is in points: of 100 tokens, how many are unknown. Special tokens are not added or counted.
    """
    texts = list(texts)
    encoder = make_text_encoder(tokenizer)
    ids_of_texts = encoder.encode(texts)
    words = sum(len(text.split()) for text in texts)
    tokens = sum(map(len, ids_of_texts))
    unknown = sum(ids.count(encoder.unk_id) for ids in ids_of_texts)
    return {
        "documents": len(texts),
        "words": words,
        "tokens": tokens,
        "tokens_per_word": round(tokens / max(words, 1), 4),
        "bytes_per_token": round(sum(len(text.encode()) for text in texts) / max(tokens, 1), 4),
        "unk_rate": round(100 * unknown / max(tokens, 1), 4),
    }


def special_ids(tokenizer) -> dict[str, int]:
    """The special tokens' ids, by the token: `{'<pad>': 0, '</s>': 1, '<unk>': 2, '<extra_id_0>': 32099, ...}`."""
    named = [getattr(tokenizer, name) for name in SPECIAL_TOKENS]
    tokens = dict.fromkeys(token for token in [*named, *tokenizer.all_special_tokens] if token is not None)
    return {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}
