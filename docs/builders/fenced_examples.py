"""A griffe extension: examples in docstrings become code blocks of the API page.

    >>> unfenced = "Adds.\\n\\n>>> 1 + 1\\n2\\n\\nThe end."
    >>> print(fenced(unfenced))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    The end.

Docstrings here have examples without fences, as Python's own do; Markdown would read `>>>` as three quotations.
"""

import griffe


def fenced(text: str) -> str:
    """`text` with each run of lines that begins with `>>>`, at any depth, in a fence of its own."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>> "):
            depth = len(line) - len(line.lstrip())
            lines += ["```pycon"]
            inside = True
        elif inside and not line.strip():
            lines += ["```"]
            inside = False
        lines.append(line[depth:] if inside else line)
    return "\n".join([*lines, "```"] if inside else lines)


class FencedExamples(griffe.Extension):
    """Applied to the docstring of every module, class and function that the page shows."""

    def on_object(self, *, obj: griffe.Object, **_) -> None:
        """Rewrites the docstring in place."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
