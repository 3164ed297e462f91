"""A report as one self-contained HTML page.

>>> page = html_page(data, plots, {plot.name: render_plot(plot) for plot in plots})
>>> page.startswith("<!doctype html>"), "http://" in page
(True, False)

A Content-Security-Policy in the page allows exactly its own style and script, by their hashes, and no network at all.
Texts of the data are escaped everywhere. Without scripts everything can be read; tables are not sorted then.
"""

import base64
import functools
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from t5suite.reports.plots import Plot
from t5suite.reports.sections import headline, sections_of, summary_line


def html_page(data: dict, plots: list[Plot], rendered_plots: dict[str, dict[str, bytes]]) -> str:
    """The whole page.

    Args:
      rendered_plots: plot's name -> what `plots.render_plot` made of it.
    """
    folder = Path(__file__).parent
    style = (folder / "page.css").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src '{_hash_source(style)}'; script-src '{_hash_source(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    pictures = {}
    for name, forms in rendered_plots.items():
        pictures[name] = f"data:image/svg+xml;base64,{base64.b64encode(forms['svg']).decode()}"
    template = templates().get_template("page.html.jinja")
    return template.render(
        data=data,
        sections=sections_of(data, plots),
        summary=summary_line(data),
        headline=headline(data),
        pictures=pictures,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        repr=repr,
    )


@functools.cache
def templates() -> Environment:
    """The folder's templates, each compiled once in a process."""
    folder = Path(__file__).parent
    return Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )


def _hash_source(text: str) -> str:
    """What a policy calls an inline style or script: its hash."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
