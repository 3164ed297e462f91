"""Rich's console for text that may hold anything.

>>> Terminal(width=118).print("\\x1b]0;owned\\x07")
\\u001b]0;owned\\u0007
"""

from rich.console import Console

from t5suite.base.redaction import printable, redacted


class Terminal(Console):
    """One that shows control characters as `\\u001b` and no secrets in lines, tables and titles; notebooks get text."""

    def __init__(self, **options):
        super().__init__(**{"force_jupyter": False, **options})

    def render_str(self, text: str, **options):
        """Whatever is printed comes through here, unless it is rich's `Text`."""
        return super().render_str(printable(redacted(text)), **options)
