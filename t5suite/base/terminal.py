"""Rich's console for untrusted text.

>>> Terminal(width=118).print("\\x1b]0;owned\\x07")
\\u001b]0;owned\\u0007
"""

import contextlib
import contextvars
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from t5suite.base.programs import discard_output
from t5suite.base.redaction import printable, redacted

# The width of text that is printed for other places than a terminal, in columns; tables may be wider.
PLAIN_WIDTH = 118
WIDEST_TABLE = 100_000
_SILENT = contextvars.ContextVar("silent", default=False)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Shows nothing of the suite's own on standard output inside the block; what the user's code prints is shown."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


def show(text: str) -> None:
    """Prints a line of the suite's own, unless `silent`."""
    if not _SILENT.get():
        print(text, flush=True)


class Terminal(Console):
    """Shows control characters as `\\u001b` and no secrets in lines, tables and titles; notebooks get plain text.

    What looks like markup or an emoji's name in a text is text: `.*\\.[qv]$`, `[/INST]`, `:x:`.
    """

    def __init__(self, **options):
        super().__init__(**{"force_jupyter": False, "markup": False, "emoji": False, **options})

    def print(self, *objects, **options) -> None:
        """Shows nothing on standard output inside `silent`; in a file or pipe tables are as wide as they need."""
        if _SILENT.get() and self.file is sys.stdout:
            return
        is_shown = self.is_terminal or in_notebook()  # a notebook breaks long lines
        if is_shown or not any(isinstance(part, Table) for part in objects):
            super().print(*objects, **options)
            return
        width = self.width
        self.width = WIDEST_TABLE
        try:
            super().print(*objects, **options)
        finally:
            self.width = width

    def on_broken_pipe(self) -> None:
        """Discards what the reader of a closed pipe no longer takes; rich would end the program, as a failure."""
        discard_output()

    def render_str(self, text: str, **options):
        """All printed text passes through here, except rich's `Text`."""
        return super().render_str(printable(redacted(text)), **options)


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this process, and not only a library that talks to kernels.

    `tqdm.autonotebook` tells kernels by the same setting.
    """
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def short_time(seconds: float) -> str:
    """A duration in few characters.

    >>> [short_time(seconds) for seconds in (7, 392, 8100)]
    ['7s', '6m32s', '2h15m']
    """
    seconds = round(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    if seconds >= 60:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds}s"
