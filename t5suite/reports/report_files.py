"""A report's files: the page, Markdown, data and plots, in a folder that holds nothing else.

>>> write_report(data, plots, "report", ["html", "md"])
[PosixPath('report/report.html'), PosixPath('report/report.md'), PosixPath('report/plots/glue-rte.png'), ...]
"""

import json
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import read_json, whole_file, write_json
from t5suite.base.lookup import find, listed
from t5suite.reports.page import html_page
from t5suite.reports.plots import Plot, render_plot
from t5suite.reports.report_markdown import report_as_markdown

FORMATS = ("html", "md", "json")
PLOTS_FOLDER = "plots"
LIST_FILE = ".report_files.json"


def parse_formats(text: str) -> list[str]:
    """`--format html,md` as a list; `none` writes no file.

    Raises:
      ConfigError: no such format.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        find(name, dict.fromkeys((*FORMATS, "none")), "format", where="--format")
    return [name for name in names if name != "none"]


def write_report(data: dict, plots: list[Plot], directory, formats: list[str]) -> list[Path]:
    """Writes the files of these formats, and the plots, replacing an earlier report's; returns their paths.

    Raises:
      ConfigError: the directory is a file, or holds files that no report wrote.
    """
    directory = Path(directory)
    earlier_files = files_of_report(directory)
    files = _contents(data, plots, formats)
    directory.mkdir(parents=True, exist_ok=True)
    # If this is interrupted, the next report still knows these files.
    write_json(directory / LIST_FILE, {"files": sorted({*earlier_files, *files})})
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        with whole_file(directory / name) as temporary:
            temporary.write_bytes(content)
    for name in earlier_files:
        if name not in files:
            (directory / name).unlink(missing_ok=True)
    write_json(directory / LIST_FILE, {"files": sorted(files)})
    return [directory / name for name in files]


def _contents(data: dict, plots: list[Plot], formats: list[str]) -> dict[str, bytes]:
    """The content of every file, by its name below the report's directory."""
    rendered_plots = {plot.name: render_plot(plot) for plot in plots}
    files = {}
    for name in formats:
        if name == "html":
            text = html_page(data, plots, rendered_plots)
        elif name == "md":
            text = report_as_markdown(data, plots, PLOTS_FOLDER)
        else:
            text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
        files[f"report.{name}"] = text.encode()
    for plot_name, forms in rendered_plots.items():
        for form, content in forms.items():
            files[f"{PLOTS_FOLDER}/{plot_name}.{form}"] = content
    return files


def files_of_report(directory) -> list[str]:
    """The files in a folder that a report wrote, relative to it; none if it is new or empty.

    Raises:
      ConfigError: it is a file, or holds files that no report wrote.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--output {directory}: there is a file of that name; give a directory")
    names = []
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        is_hidden = any(part.startswith(".") for part in parts)
        if not is_hidden and not path.is_dir():
            names.append("/".join(parts))
    listed_names = _listed_files(directory)
    foreign = [name for name in names if name not in listed_names]
    if foreign:
        raise ConfigError(
            f"--output {directory}: {listed(foreign)} in it was not written by a report (its list is {LIST_FILE}); "
            "give another --output, or move it away"
        )
    return names


def _listed_files(directory: Path) -> set[str]:
    """The files that the last report says it wrote."""
    try:
        return {str(name) for name in read_json(directory / LIST_FILE)["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
