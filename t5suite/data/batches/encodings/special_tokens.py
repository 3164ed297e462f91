"""The special tokens that a tokenizer puts around a text."""


def leading_ids(tokenizer) -> list[int]:
    """The special tokens that a tokenizer puts before a text: Llama's <s>, OPT's </s>; none for GPT-2.

    >>> leading_ids(opt_tokenizer)
    [2]
    """
    return around(tokenizer)[0]


def around(tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before a text, and after it.

    >>> around(bert_tokenizer)
    ([101], [102])
    """
    whole = tokenizer("a")["input_ids"]
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    start = next((i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare), 0)
    return whole[:start], whole[start + len(bare) :]


def first_id(tokenizer, eos: int) -> int:
    """The first token of a text that has no prompt: BOS, else EOS."""
    return eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id
