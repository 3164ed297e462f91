"""Fast paths, and the plain code that `--reference_code all` or `--reference_code NAME,...` runs instead of them.

>>> sorted(reference_code("quick_decoding,quick_attention"))
['quick_attention', 'quick_decoding']
>>> reference_code("quick_decodng")
ConfigError: --reference_code: unknown fast path 'quick_decodng'; did you mean quick_decoding?

Both compute the same up to rounding, on the same rows, order and batches (`tests/test_reference_code.py`); dropout
draws other elements.
docs/performance.md reports what each saves a whole job.
"""

from t5suite.base.lookup import find


def reference_code(text: str | None) -> frozenset[str]:
    """The fast paths that the flag's value turns off.

    Raises:
      ConfigError: a name that is not a fast path.
    """
    words = [word.strip() for word in (text or "").split(",")]
    names = [word for word in words if word]
    for name in names:
        find(name, {"all": None, **FAST_PATHS}, "fast path", where="--reference_code")
    if "all" in names:
        return frozenset(FAST_PATHS)
    return frozenset(names)


# What runs instead of each.
FAST_PATHS = {
    "candidate_trees": "a T5's candidates are scored one by one, not as one tree",
    "quick_decoding": "a T5's greedy answers are written by transformers' generate",
    "loss_chunks": "a T5's loss is made of the logits of the whole batch",
    "quick_attention": "a T5's position bias and mask are joined in every layer, by transformers",
    "quick_dropout": "dropout on CPUs is torch's",
    "quick_tokenizer": "ids of pre-training text are made by the tokenizer itself, not by SentencePiece's encoder",
}
