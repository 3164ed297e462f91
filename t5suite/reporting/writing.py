"""A report's files: `report.html`, `report.md`, `report.json` and `plots/`.

>>> written = write_report(data, plots, "report", ["html", "md"])
>>> written.paths, written.removed
([PosixPath('report/report.html'), PosixPath('report/report.md'), PosixPath('report/plots/scores.png'), ...], [])

A folder is written to that is new, empty, or a report's own: `.report_files.json` in it lists what a report wrote. What
an earlier report wrote and this one does not is removed; a folder with anything else in it is refused.
"""

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.files import whole_file
from t5suite.reporting.figures import Plot, render, write_figures
from t5suite.reporting.html_page import html_page
from t5suite.reporting.markdown import markdown
from t5suite.runs.directory import read_json, write_json

PLOTS_FOLDER = "plots"
LIST = ".report_files.json"


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
            temporary.write_text(WRITERS[name](data, plots, rendered), encoding="utf-8")
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


def _markdown(data: dict, plots: list[Plot], rendered) -> str:
    pictures = [(plot.title, f"{PLOTS_FOLDER}/{plot.name}.png") for plot in plots if plot.section != "confusions"]
    return markdown(data, pictures)


# The names are those of `formats.FORMATS`.
WRITERS = {
    "html": html_page,
    "md": _markdown,
    "json": lambda data, plots, rendered: json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n",
}
