"""A report's files: `report.html`, `report.md`, `report.json` and `plots/`.

>>> write_report(data, plots, "report", ["html", "md"])
[PosixPath('report/report.html'), PosixPath('report/report.md'), PosixPath('report/plots/scores.png'), ...]
"""

import json
import os
from pathlib import Path

from t5suite.errors import ConfigError
from t5suite.reporting.figures import Plot, render, write_figures
from t5suite.reporting.html_page import html_page
from t5suite.reporting.markdown import markdown

PLOTS_FOLDER = "plots"


def write_report(data: dict, plots: list[Plot], directory, formats: list[str]) -> list[Path]:
    """Writes the files of these formats, and the plots.

    Raises:
      ConfigError: the directory is a file.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--output {directory}: there is a file of that name; give a directory")
    directory.mkdir(parents=True, exist_ok=True)
    rendered = {plot.name: render(plot) for plot in plots}
    drawn = write_figures(rendered, directory / PLOTS_FOLDER) if plots else []
    paths = []
    for name in formats:
        path = directory / f"report.{name}"
        temporary = directory / f".report.{name}.tmp"
        temporary.write_text(WRITERS[name](data, plots, rendered), encoding="utf-8")
        os.replace(temporary, path)
        paths.append(path)
    return [*paths, *drawn]


def _markdown(data: dict, plots: list[Plot], rendered) -> str:
    pictures = [(plot.title, f"{PLOTS_FOLDER}/{plot.name}.png") for plot in plots if plot.section != "confusions"]
    return markdown(data, pictures)


# The names are those of `formats.FORMATS`.
WRITERS = {
    "html": html_page,
    "md": _markdown,
    "json": lambda data, plots, rendered: json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n",
}
