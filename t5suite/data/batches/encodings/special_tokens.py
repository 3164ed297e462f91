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
    ids = tokenizer("a")["input_ids"]
    text_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    start = 0
    for place in range(len(ids) - len(text_ids) + 1):
        if ids[place : place + len(text_ids)] == text_ids:
            start = place
            break
    return ids[:start], ids[start + len(text_ids) :]


def first_id(tokenizer, eos: int) -> int:
    """The first token of a text that has no prompt: BOS, else EOS."""
    return eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def end_id(tokenizer) -> int | None:
    """The token that ends a target: EOS, else SEP; None where a tokenizer has neither."""
    return tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
