"""How fast text becomes ids, against Hugging Face's T5 tokenizer.

    python -m benchmarks.tokenization

Both encode the same documents of about 3,000 characters each on one thread, into lists of ids; these are compared
first, document by document. C4: SentencePiece's encoder, as corpora and streams of less than 20 MB use it. C4b: the one
that numba compiles, once it is loaded; it remembers words, as the peer does.
"""

from benchmarks.harness import Goal, Work, run
from benchmarks.texts import documents, t5_tokenizer
from t5suite.data.text import compiled_pieces
from t5suite.data.text.encoding import make_text_encoder


def tokenization(device: str, megabytes=2.0, engine="sentencepiece") -> Work:
    """C4."""
    tokenizer, texts = t5_tokenizer(), documents(megabytes)
    encoder = make_text_encoder(tokenizer, engine)
    contenders = {
        "ours": lambda: encoder.encode(texts),
        "HF's T5Tokenizer": lambda: tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"],
    }
    ours, theirs = (call() for call in contenders.values())
    different = [number for number, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
    assert not different, f"{len(different)} of {len(texts)} documents have other ids, the first: {different[0]}"
    num_tokens = sum(map(len, ours))
    return Work(
        f"tokenize {num_tokens / 1e3:.0f}k tokens ({encoder.engine})",
        contenders,
        {"HF's T5Tokenizer": Goal(0.12)},
        f"equal ids of {len(texts)} documents",
        figures={"tokens": num_tokens, "characters": sum(map(len, texts))},
    )


def tokenization_compiled(device: str) -> Work | None:
    """C4b."""
    if not compiled_pieces.installed():
        print("C4b  numba is not installed")
        return None
    return tokenization(device, engine="numba")


WORKS = {"C4": tokenization, "C4b": tokenization_compiled}

if __name__ == "__main__":
    run(__doc__, WORKS)
