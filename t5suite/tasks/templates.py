"""Texts around an input and a target: what `--input_format` and `--output_format` say.

    >>> entry = {"input_format": "question: __input__ answer:", "output_format": "<__output__>"}
    >>> filled(Example("Why?", "because"), entry)
    Example(inputs='question: Why? answer:', targets='<because>')
    >>> unfilled("<because>", entry)
    'because'

The model writes the whole target; what metrics compare is what stands in the place of `__output__`. A text that does
not have the form is no label, and free text is then compared as it stands.
"""

import re

from t5suite.base.errors import ConfigError
from t5suite.tasks.targets import UNKNOWN_TARGET

INPUT, OUTPUT = "__input__", "__output__"
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def unescaped(text: str | None) -> str | None:
    r"""A text as a shell passes it: `\n` is a line break, `\t` a tab, `\\` one backslash; None stays None.

    >>> unescaped(r"a\n__input__"), unescaped(r"\\nabla \d")
    ('a\n__input__', '\\nabla \\d')
    """
    return None if text is None else re.sub(r"\\[nt\\]", lambda found: ESCAPES[found[0]], text)


def check_template(text: str, place: str, where: str) -> str:
    """The template as it is.

    Args:
      place: INPUT or OUTPUT, which must stand in it once.
      where: the flag or entry, for the message.

    Raises:
      ConfigError: the place is not in it, or more than once.
    """
    if not isinstance(text, str) or text.count(place) != 1:
        count = text.count(place) if isinstance(text, str) else 0
        raise ConfigError(f"{where}: {text!r:.200} must have {place} in it once, not {count} times")
    return text


def fill(template: str | None, place: str, text: str) -> str:
    """The template with the text in its place.

    >>> fill("sst2 sentence: __input__", INPUT, "It is good.")
    'sst2 sentence: It is good.'
    """
    return text if template is None else template.replace(place, text, 1)


def filled(example, entry):
    """An example with the entry's texts around its inputs and targets; an unknown target stays unknown."""
    targets = example.targets
    if targets != UNKNOWN_TARGET:
        targets = fill(entry.get("output_format"), OUTPUT, targets)
    return example._replace(inputs=fill(entry.get("input_format"), INPUT, example.inputs), targets=targets)


def unfilled(text: str, entry) -> str:
    """What stands in the place of `__output__`, or the text itself where it does not have that form."""
    template = entry.get("output_format")
    if template is None or not has_form(text, entry):
        return text
    before, _, after = template.partition(OUTPUT)
    return text[len(before) : len(text) - len(after)]


def kept_tokens(entry) -> int:
    """How many last tokens both sides keep when they are cut: the sentinels at the end of `input_format`.

    >>> kept_tokens({"input_format": "__input__ <extra_id_0>", "output_format": "<extra_id_0> __output__"})
    1

    So does seqio 0.0.20 in its `*_1_sentinel` tasks (`experimental.add_task_with_sentinels`), targets included.
    """
    return re.search(r"(\s*<extra_id_\d+>)*\s*$", entry.get("input_format") or "")[0].count("<")


def has_form(text: str, entry) -> bool:
    """Whether a written text has what the output's template puts around it."""
    before, _, after = (entry.get("output_format") or OUTPUT).partition(OUTPUT)
    return len(text) >= len(before) + len(after) and text.startswith(before) and text.endswith(after)
