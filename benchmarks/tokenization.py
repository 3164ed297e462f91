"""How fast text becomes ids, against Hugging Face's T5 tokenizer.

    python -m benchmarks.tokenization

C4: both encode the same documents of about 3,000 characters each on one thread, into lists of ids; these are compared
first, document by document. Ours is SentencePiece's encoder, as corpora and streams use it.
"""

from benchmarks.harness import Goal, Work, run
from benchmarks.texts import documents, t5_tokenizer
from t5suite.data.corpora.encoding import make_text_encoder


def tokenization(device: str, megabytes=2.0) -> Work:
    """C4."""
    tokenizer, texts = t5_tokenizer(), documents(megabytes)
    encoder = make_text_encoder(tokenizer)
    contenders = {
        "ours": lambda: encoder.encode(texts),
        "HF's T5Tokenizer": lambda: tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"],
    }
    found, theirs = (call() for call in contenders.values())
    different = [number for number, pair in enumerate(zip(found, theirs, strict=True)) if pair[0] != pair[1]]
    assert not different, f"{len(different)} of {len(texts)} documents have other ids, the first: {different[0]}"
    num_tokens = sum(map(len, found))
    return Work(
        f"tokenize {num_tokens / 1e3:.0f}k tokens ({encoder.engine})",
        contenders,
        {"HF's T5Tokenizer": Goal(0.2)},
        f"equal ids of {len(texts)} documents",
        figures={"tokens": num_tokens, "characters": sum(map(len, texts))},
    )


WORKS = {"C4": tokenization}

if __name__ == "__main__":
    run(__doc__, WORKS)
