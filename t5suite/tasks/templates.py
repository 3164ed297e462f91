"""The task's own texts around inputs and targets: `input_format` and `output_format`.

>>> fill("sst2 sentence: __input__", INPUT, "It is good.")
'sst2 sentence: It is good.'
>>> unfilled("answer: yes", {"output_format": "answer: __output__"})
'yes'
"""

import re

from t5suite.base.errors import ConfigError
from t5suite.tasks.targets import UNKNOWN_TARGET

INPUT = "__input__"
OUTPUT = "__output__"
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}
SENTINEL = re.compile(r"<extra_id_\d+>")
LAST_SENTINELS = re.compile(r"(\s*<extra_id_\d+>)*\s*$")


def unescaped(text: str | None) -> str | None:
    r"""Unescapes a text from the shell: `\n` is a line break, `\t` a tab, `\\` one backslash; None stays None.

    >>> unescaped(r"a\n__input__"), unescaped(r"\\nabla \d")
    ('a\n__input__', '\\nabla \\d')
    """
    if text is None:
        return None
    return re.sub(r"\\[nt\\]", lambda match: ESCAPES[match[0]], text)


def check_template(text: str, place: str, where: str) -> str:
    """The template, unchanged.

    Args:
      place: INPUT or OUTPUT, which it must contain exactly once.
      where: the flag or entry, for the message.

    Raises:
      ConfigError: it does not contain the place exactly once.
    """
    count = text.count(place) if isinstance(text, str) else 0
    if count != 1:
        raise ConfigError(f"{where}: {text!r:.200} must have {place} in it once, not {count} times")
    return text


def fill(template: str | None, place: str, text: str) -> str:
    """The template with the text inserted at its place.

    >>> fill("sst2 sentence: __input__", INPUT, "It is good.")
    'sst2 sentence: It is good.'
    """
    return text if template is None else template.replace(place, text, 1)


def filled(example, entry):
    """An example with the entry's texts around its inputs and targets; an unknown target stays unknown."""
    inputs = fill(entry.get("input_format"), INPUT, example.inputs)
    targets = example.targets
    if targets != UNKNOWN_TARGET:
        targets = fill(entry.get("output_format"), OUTPUT, targets)
    return example._replace(inputs=inputs, targets=targets)


def text_of_row(inputs: str, entry) -> str:
    """Inputs without the texts that a task puts around its rows, or the whole inputs if they do not have that form.

    >>> text_of_row("review: Good!", {"input_format": "review: __input__!", "prefix": ""})
    'Good'
    """
    before, _, after = (entry.get("input_format") or INPUT).partition(INPUT)
    if isinstance(entry.get("prefix"), str):  # a list has one for each column
        before += entry["prefix"]
    is_filled = len(inputs) >= len(before) + len(after) and inputs.startswith(before) and inputs.endswith(after)
    return inputs[len(before) : len(inputs) - len(after)] if is_filled else inputs


def unfilled(text: str, entry) -> str:
    """The part of the text at `__output__`, or the whole text if it does not have the template's form.

    >>> unfilled("answer: yes", {"output_format": "answer: __output__"})
    'yes'
    >>> unfilled("<extra_id_0>yes", {"output_format": "<extra_id_0> __output__"})
    'yes'

    Where the template is sentinels and the answer, white space around the answer does not count, as in seqio's
    `*_1_sentinel` tasks (`experimental.add_task_with_sentinels`).
    """
    sentinels = leading_sentinels(entry)
    if sentinels:
        match = re.match(r"\s*".join(map(re.escape, sentinels)), text)
        return text[match.end() :].strip() if match else text
    if not has_form(text, entry):
        return text
    before, after = _texts_around_output(entry)
    return text[len(before) : len(text) - len(after)]


def has_form(text: str, entry) -> bool:
    """Whether a generated text starts and ends as the output template does; sentinels before it may be missing."""
    if leading_sentinels(entry):
        return True
    before, after = _texts_around_output(entry)
    return len(text) >= len(before) + len(after) and text.startswith(before) and text.endswith(after)


def leading_sentinels(entry) -> list[str]:
    """The sentinels of an output template that is sentinels and the answer; empty for any other.

    >>> leading_sentinels({"output_format": "<extra_id_0> __output__"})
    ['<extra_id_0>']
    """
    before, after = _texts_around_output(entry)
    is_sentinels_and_answer = not after and not SENTINEL.sub("", before).strip()
    return SENTINEL.findall(before) if is_sentinels_and_answer else []


def _texts_around_output(entry) -> tuple[str, str]:
    before, _, after = (entry.get("output_format") or OUTPUT).partition(OUTPUT)
    return before, after


def kept_tokens(entry) -> int:
    """How many last tokens inputs and targets keep when truncated: the sentinels at the end of `input_format`.

    >>> kept_tokens({"input_format": "__input__ <extra_id_0>", "output_format": "<extra_id_0> __output__"})
    1

    So does seqio 0.0.20 in its `*_1_sentinel` tasks (`experimental.add_task_with_sentinels`), targets included.
    """
    return LAST_SENTINELS.search(entry.get("input_format") or "")[0].count("<")
