"""The plots of a report, by matplotlib.

>>> data = report_data(["runs/rte"])                               # reports.results
>>> [plot.name for plot in report_plots(data)]
['scores', 'curve-rte-accuracy', 'curve-rte-training-loss', 'sweep-rates-objective', ...]
"""

import functools
import io
import itertools
import re
import textwrap
from collections.abc import Callable, Collection
from typing import NamedTuple

from t5suite.reports.formatting import names_of_benchmarks, shortened_in_the_middle, task_title
from t5suite.reports.learning_curves import curve_panels, draw_panel
from t5suite.reports.plot_style import INCHES, INK, literal, setting_styles, use_ink
from t5suite.reports.seeds import label_of_runs
from t5suite.reports.sweep_plots import PLOTS
from t5suite.reports.sweeps import sweep_titles
from t5suite.reports.units import AS_RETURNED, metric_unit
from t5suite.tasks.entry_metrics import RATES
from t5suite.tasks.metrics import ERRORS, METRIC_ALIASES, METRICS

LONGEST_FILE_NAME = 120
# Characters of the name of a setting's runs (`rte-s1 and 2 more`), where a label has it.
LONGEST_RUNS = 28
# Of a line below the plot of scores.
LEGEND_CHARACTERS = 65


class Plot(NamedTuple):
    """One plot of a report: its file's name, its title, how it is drawn.

    Attributes:
      draw: matplotlib figure -> None.
      size: inches.
      section: scores, curves, or sweeps.
      sweep: its number in the report, from 1; 0 for other plots.
    """

    name: str
    title: str
    draw: Callable
    size: tuple[float, float]
    section: str
    sweep: int = 0


def report_plots(data: dict) -> list[Plot]:
    """Every plot of a report, under names that every file system accepts: scores, learning curves, those of sweeps.

    Args:
      data: all that the report shows, as `results.report_data` makes it.
    """
    styles = setting_styles(data)
    plots = score_plots(data, styles)
    for panel in curve_panels(data):
        draw = functools.partial(draw_panel, panel=panel, styles=styles)
        plots.append(Plot(panel["name"], panel["title"], draw, (3.75, 2.5), "curves"))
    sweeps = data["sweeps"]
    for number, (sweep, title) in enumerate(zip(sweeps, sweep_titles(sweeps), strict=True), 1):
        plots += sweep_plots(sweep, title, number)
    return with_file_names(plots)


def sweep_plots(sweep: dict, title: str, number: int) -> list[Plot]:
    """The plots of one sweep.

    Args:
      title: what the report calls the sweep.
      number: which of the report's sweeps it is, from 1.
    """
    plots = []
    for name, kind in PLOTS.items():
        if kind.applies(sweep):
            draw = functools.partial(kind.draw, sweep=sweep)
            plots.append(Plot(f"sweep-{title}-{name}", f"{title}: {kind.title}", draw, (INCHES, 3.6), "sweeps", number))
    return plots


def with_file_names(plots: list[Plot]) -> list[Plot]:
    """The plots under names that every file system accepts, no two alike."""
    named: list[Plot] = []
    for plot in plots:
        name = free_file_name(plot.name, [earlier.name for earlier in named])
        named.append(plot._replace(name=name))
    return named


def free_file_name(name: str, taken_names: Collection[str]) -> str:
    """A file's name made of this one: short, of plain characters, and a number behind it if the name is taken.

    >>> free_file_name("curve-rte: f1", ["Curve-RTE-f1"])               # one name to some file systems
    'curve-rte-f1-2'
    """
    plain_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    lower_case_names = {taken_name.lower() for taken_name in taken_names}
    for number in itertools.count(1):
        ending = f"-{number}" if number > 1 else ""
        file_name = plain_name[: LONGEST_FILE_NAME - len(ending)] + ending
        if file_name.lower() not in lower_case_names:
            return file_name


def score_plots(data: dict, styles: dict) -> list[Plot]:
    """The plot of the scores in points, if there are any."""
    # `ERRORS`, such as the mean absolute error, have the targets' unit; a metric of the user's may have any.
    metrics_in_points = (METRICS.keys() | METRIC_ALIASES.keys()) - ERRORS
    scores = [entry for entry in data["scores"] if entry["metric"] in metrics_in_points]
    defined = [entry for entry in scores if entry["mean"] is not None]  # a correlation may be undefined
    if not defined:
        return []
    metrics = dict.fromkeys(entry["metric"] for entry in data["scores"])
    other_metrics = [metric for metric in metrics if metric not in metrics_in_points and metric not in RATES]
    benchmarks = names_of_benchmarks(data["runs"])
    titled = [{**entry, "task": task_title(entry["benchmark"], entry["task"], benchmarks)} for entry in defined]
    draw = functools.partial(draw_scores, entries=titled, styles=styles, other_metrics=other_metrics)
    return [Plot("scores", "Scores by task", draw, (INCHES, 1.2 + 0.28 * len(defined)), "scores")]


def draw_scores(figure, entries: list[dict], styles: dict, other_metrics: list[str]) -> None:
    """Means with their intervals, one line per score; a bar marks the majority baseline, a diamond the published T5.

    Args:
      styles: `{setting: (colour, dash)}`, as `setting_styles` makes them; other settings are grey.
      other_metrics: those that have no place among points, for the legend.
    """
    axes = figure.add_subplot()
    for row, entry in enumerate(entries):
        colour, _ = styles.get(entry["setting"], (INK, "-"))
        if entry["interval"]:
            ends = [entry["interval"]["low"], entry["interval"]["high"]]
            axes.plot(ends, [row, row], color=colour, linewidth=2.2, alpha=0.6)
        axes.plot([entry["mean"]], [row], "o", color=colour, markersize=6)
        if entry["majority"] is not None:
            axes.plot([entry["majority"]], [row], "|", color=INK, markersize=13, markeredgewidth=2)
        if entry["published"] is not None:
            axes.plot([entry["published"]], [row], "D", color=INK, markersize=5, fillstyle="none")
    axes.set_yticks(range(len(entries)), [literal(label) for label in score_labels(entries)], fontsize=8)
    axes.invert_yaxis()
    # Below the whole figure: long labels leave the axes too narrow for it.
    figure.supxlabel(literal(legend_of_scores(entries, other_metrics)), fontsize=8, color=INK)
    use_ink(axes)


def legend_of_scores(entries: list[dict], other_metrics: list[str]) -> str:
    """What the marks of a plot of scores are, and which scores it lacks.

    >>> print(legend_of_scores([{"interval": None, "majority": 50.0, "published": None}], ["nll", "word_share"]))
    points: mean
    | majority label
    not shown (not in points): nll
    not shown (your own metrics may have any range): word_share
    """
    has_intervals = any(entry["interval"] for entry in entries)
    lines = ["points: mean and 95 % interval" if has_intervals else "points: mean"]
    marks = []
    if any(entry["majority"] is not None for entry in entries):
        marks.append("| majority label")
    if any(entry["published"] is not None for entry in entries):
        marks.append("◇ published T5 (test)")
    if marks:
        lines.append("   ".join(marks))
    own_metrics = [metric for metric in other_metrics if metric_unit(metric) == AS_RETURNED]
    in_other_units = [metric for metric in other_metrics if metric not in own_metrics]
    reasons = {"not in points": in_other_units, "your own metrics may have any range": own_metrics}
    for reason, metrics in reasons.items():
        if metrics:
            lines += textwrap.wrap(f"not shown ({reason}): {', '.join(metrics)}", LEGEND_CHARACTERS)
    return "\n".join(lines)


def score_labels(entries: list[dict]) -> list[str]:
    """Each score's task and metric; where two scores have the same ones, all have the names of their runs, too.

    >>> score_labels([{"task": "rte", "metric": "accuracy", "values": {name: 70.1}} for name in ("rte-s1", "rte-s2")])
    ['rte accuracy (rte-s1)', 'rte accuracy (rte-s2)']
    """
    labels = [f"{entry['task']} {entry['metric']}" for entry in entries]
    if len(set(labels)) == len(labels):
        return labels
    names = [label_of_runs(list(entry["values"])) for entry in entries]
    short_names = {name: shortened_in_the_middle(name, LONGEST_RUNS) for name in names}
    are_distinct = len(set(short_names.values())) == len(short_names)
    if are_distinct:
        names = [short_names[name] for name in names]
    return [f"{label} ({name})" for label, name in zip(labels, names, strict=True)]


def render_plot(plot: Plot) -> dict[str, bytes]:
    """A plot as `png` and `svg`; the same data give the same bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=plot.size, dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    images = {}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": plot.name, "font.size": 9}):
        plot.draw(figure)
        # The PNG lays the figure out. The SVG, whose texts have other widths, keeps that layout.
        for form in ("png", "svg"):
            file = io.BytesIO()
            metadata = {}
            if form == "svg":
                metadata["Date"] = None
            figure.savefig(file, format=form, transparent=True, metadata=metadata)
            figure.set_layout_engine("none")
            images[form] = file.getvalue()
    return images
