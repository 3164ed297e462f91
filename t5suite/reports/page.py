"""A report's files: one HTML page that needs nothing else, Markdown, data and plots.

>>> page = html_page(data, plots, {plot.name: render(plot) for plot in plots})
>>> page.startswith("<!doctype html>"), "http://" in page
(True, False)

A Content-Security-Policy in the page allows exactly its own style and script, by their hashes, and no network at all.
Texts of the data are escaped wherever they stand; examples are put into the page as text, never as HTML. Without
scripts everything can be read but the examples.
"""

import base64
import contextlib
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from t5suite.base.errors import ConfigError
from t5suite.base.files import whole_file
from t5suite.base.lookup import find
from t5suite.base.redaction import printable
from t5suite.reports.plots import Plot, render, write_figures
from t5suite.reports.sections import Part, sections_of, summary
from t5suite.reports.tables import block, escaped, escaped_table
from t5suite.runs.directory import read_json, write_json

FORMATS = ("html", "md", "json")
PLOTS_FOLDER = "plots"
LIST = ".report_files.json"


def html_page(data: dict, plots: list[Plot], rendered: dict[str, dict[str, bytes]]) -> str:
    """The whole page.

    Args:
      rendered: plot's name -> what `plots.render` made of it.

    Raises:
      ValueError: a number that JSON has none for.
    """
    folder = Path(__file__).parent
    pages = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    pages.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    encoded = {name: base64.b64encode(forms["svg"]).decode() for name, forms in rendered.items()}
    return pages.get_template("page.html.jinja").render(
        data=data,
        sections=sections_of(data, plots),
        summary=summary(data),
        pictures={name: f"data:image/svg+xml;base64,{text}" for name, text in encoded.items()},
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        repr=repr,
    )


def _hash(text: str) -> str:
    """A CSP source expression."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


def parse_formats(text: str) -> list[str]:
    """`--format` as a list; `none` is no file at all.

    Raises:
      ConfigError: no such format, or none beside others.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--format is empty; name some of {', '.join(FORMATS)}, or none")
    for name in names:
        find(name, {known: known for known in (*FORMATS, "none")}, "format", where="--format")
    if "none" in names and len(names) > 1:
        raise ConfigError(f"--format {text}: none stands alone")
    return [name for name in names if name != "none"]


class Written(NamedTuple):
    """The files of a report, and those of an earlier one in its place that are gone."""

    paths: list[Path]
    removed: list[Path]


def write_report(data: dict, plots: list[Plot], directory, formats: list[str]) -> Written:
    """Writes the files of these formats, and the plots.

    Raises:
      ConfigError: the directory is a file, or holds what no report wrote.
    """
    directory = Path(directory)
    before = files_of_report(directory)
    directory.mkdir(parents=True, exist_ok=True)
    names = [*(f"report.{name}" for name in formats)]
    names += [f"{PLOTS_FOLDER}/{plot.name}.{form}" for plot in plots for form in ("png", "svg")]
    # Whatever happens from here on, the next report knows all of this for a report's.
    write_json(directory / LIST, {"files": sorted({*before, *names})})
    rendered = {plot.name: render(plot) for plot in plots}
    drawn = write_figures(rendered, directory / PLOTS_FOLDER) if plots else []
    paths = []
    for name in formats:
        path = directory / f"report.{name}"
        with whole_file(path) as temporary:
            temporary.write_text(_text(name, data, plots, rendered), encoding="utf-8")
        paths.append(path)
    removed = _remove(directory, [name for name in before if name not in names])
    write_json(directory / LIST, {"files": sorted(names)})
    return Written([*paths, *drawn], removed)


def files_of_report(directory) -> list[str]:
    """The files in a folder that a report wrote, relative to it; none where it is new or empty.

    Raises:
      ConfigError: it is a file, or holds what no report wrote.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--output {directory}: there is a file of that name; give a directory")
    if not directory.is_dir():
        return []
    there = [path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if not path.is_dir()]
    there = [name for name in there if not any(part.startswith(".") for part in name.split("/"))]
    listed = _listed(directory / LIST)
    foreign = [name for name in there if name not in listed]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ConfigError(
            f"--output {directory}: {', '.join(foreign[:3])}{more} in it is of no report that {directory / LIST} "
            "knows, and nothing is written over or beside it; give another --output, or move it away"
        )
    return there


def _listed(path: Path) -> set[str]:
    """The names in a list that is there and whole; a broken one knows nothing."""
    try:
        names = read_json(path)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _remove(directory: Path, names: list[str]) -> list[Path]:
    removed = [directory / name for name in names]
    for path in removed:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in removed} - {directory}:
        with contextlib.suppress(OSError):  # others are in it
            folder.rmdir()
    return removed


def _text(name: str, data: dict, plots: list[Plot], rendered: dict) -> str:
    """A report's file of a format."""
    if name == "html":
        return html_page(data, plots, rendered)
    if name == "md":
        return markdown(data, plots, PLOTS_FOLDER)
    return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def markdown(data: dict, plots: list[Plot], folder: str) -> str:
    """The whole report, but for the answers one by one.

    Args:
      folder: of the plots' files, beside the report's.
    """
    lines = [f"# {escaped(data['title'])}", "", summary(data), ""]
    for section in sections_of(data, plots):
        if section.id != "examples":
            lines += [f"## {escaped(section.title)}", ""]
            for part in section.parts:
                lines += _part(part, folder)
    return printable("\n".join(lines).rstrip()) + "\n"


def _part(part: Part, folder: str) -> list[str]:
    """A part of a section; meanings of words, which the page explains, are left out."""
    if part.kind == "note":
        return [escaped(part.content), ""]
    if part.kind == "table":
        title = [f"**{escaped(part.content.caption)}**", ""]
        cells = [[f"{cell.text}{cell.small}" for cell in row] for row in part.content.rows]
        return [*title, *escaped_table([column.header for column in part.content.columns], cells)]
    if part.kind == "plots":
        return [*(f"![{escaped(plot.title)}]({folder}/{plot.name}.png)" for plot in part.content), ""]
    if part.kind == "code":
        return [part.title, "", *block("", [part.content]), ""]
    if part.kind == "facts":
        return [*(f"- {escaped(name)}: {escaped(text)}" for name, text in part.content), ""]
    if part.kind == "run":
        facts = [f"- {escaped(name)}: {escaped(text)}" for name, text in part.content["facts"]]
        return [f"### {escaped(part.title)}", "", *block("", [part.content["command"]]), "", *facts, ""]
    return []
