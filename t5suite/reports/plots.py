"""Plots by matplotlib: a run's learning curves for its card, and the plots of a report and of its sweeps.

>>> learning_curves("runs/glue-rte-t5-small")
PosixPath('runs/glue-rte-t5-small/learning_curves.png')
>>> [plot.name for plot in figures_of(data)]
['scores', 'curve-rte-accuracy', 'curve-rte-training-loss', 'sweep-rates-objective', ...]

A report's plots have a transparent background and grey ink that can be read on white and on black. Colours are Okabe
and Ito's, which colour-blind readers can distinguish, and every setting also has its own dash. A new plot of sweeps
is one entry of PLOTS at the end of this file.
"""

import functools
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from t5suite.base.files import whole_file
from t5suite.launch.commands import TASK
from t5suite.launch.sweep_tables import cell_text
from t5suite.reports.formatting import is_number, shortened
from t5suite.reports.run_facts import curves_of
from t5suite.reports.sweeps import is_logarithmic, searched, valued
from t5suite.tasks.metrics import METRICS
from t5suite.tracking.metric_lines import thinned_lines

LEARNING_CURVES = "learning_curves.png"
# For a mixture with more scores than this only the average is drawn.
MOST_SCORES = 10
# What is logged besides the scores, and the names of losses and shares of answers. Shares are in percent.
NO_SCORES = ("perplexity", "runtime", "samples_per_second", "steps_per_second", "gender_parity")
LOSSES = {"loss": "held-out loss", "nll": "held-out NLL", "nll_text": "held-out NLL of text"}
SHARES = {"invalid_rate": "invalid answers", "truncated_rate": "answers cut off"}
# 4.5 to 1 on white and on black.
INK = "#767676"
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
COLOURS = (BLUE, ORANGE, GREEN, "#B65A93", "#9A7B00", "#7570B3", "#56789A")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# The most learning curves in a report, and the most panels of a sweep's parameters.
MOST_CURVES, MOST_PANELS = 60, 9
# Width of scores and of a sweep's plots: their letters can be read on a phone.
INCHES = 5
# A parameter with more values than this has a numeric axis.
FEW_VALUES = 5
# state of a trial -> colour, marker, name in the legend
STATES = {
    "complete": (BLUE, "o", "finished"), "pruned": (INK, "v", "stopped early"),
    "preempted": (INK, "s", "preempted"), "running": (GREEN, "D", "running"), "failed": (ORANGE, "X", "failed"),
}  # fmt: skip


class Plot(NamedTuple):
    """One plot of a report: its file's name, its title, how it is drawn.

    Attributes:
      draw: matplotlib figure -> None.
      size: inches.
      section: scores, curves, or sweeps.
    """

    name: str
    title: str
    draw: Callable
    size: tuple[float, float]
    section: str


def curve_of(name: str, logged) -> tuple[str, str, str] | None:
    """`(task, what it is called, unit)` of a logged value that is worth a curve; None of others.

    >>> curve_of("eval/rte/accuracy", ()), curve_of("eval/loss", ()), curve_of("eval/runtime", ())
    (('rte', 'accuracy', 'points'), ('', 'held-out loss', 'nats per token'), None)
    """
    room, *middle, leaf = name.split("/")
    is_same_as_nll = leaf == "loss" and "eval/nll" in logged
    if name == "train/loss":
        return "", "training loss", "nats per token"
    if room != "eval" or leaf in NO_SCORES or is_same_as_nll:
        return None
    unit = "nats per token" if leaf in LOSSES else "%" if leaf in SHARES else "points"
    return "/".join(middle), {**LOSSES, **SHARES}.get(leaf, leaf), unit


def learning_curves(directory, title: str = "") -> Path | None:
    """Draws a run's losses and scores over the updates, side by side, into its folder; None without a curve."""
    logged = curves_of(list(thinned_lines(Path(directory, "metrics.jsonl"))))
    panels: dict[str, dict] = {}
    for name, points in logged.items():
        task, said, unit = curve_of(name, logged) or ("", "", "")
        if unit in ("nats per token", "points"):
            panels.setdefault(unit, {})[f"{task} {said}".strip()] = points
    scores = panels.get("points", {})
    single = {name: points for name, points in scores.items() if name != "average"}
    if len(single) > MOST_SCORES:
        panels["points"] = {name: points for name, points in scores.items() if name == "average"}
    elif single and not any(" " in name for name in single):
        panels["points"] = single  # of one task, which is its own average
    parts = sorted((unit, lines) for unit, lines in panels.items() if lines)
    if not any(len(points) > 1 for _, lines in parts for points in lines.values()):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(parts) if len(parts) > 1 else 7, 3.6), dpi=120, layout="constrained")
    for axes, (unit, lines) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts):
        for at, (label, points) in enumerate(lines.items()):
            form = {"color": COLOURS[at % len(COLOURS)], "linestyle": DASHES[at % len(DASHES)]}
            marker = "o" if len(points) <= 30 else ""
            axes.plot(*zip(*points), label=label, marker=marker, markersize=3, linewidth=1.4, **form)
        axes.set(xlabel="update", ylabel=unit)
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    path = Path(directory, LEARNING_CURVES)
    figure.suptitle(_literal(title or path.parent.name), fontsize=10)
    with whole_file(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


def _literal(text: str) -> str:
    """A label in which dollar signs do not start a formula."""
    return text.replace("$", r"\$")


def panels_of(data: dict) -> list[dict]:
    """The learning curves: `[{"name", "title", "unit", "lines": [...], "means": {setting: points}}]`.

    A line is `{"run", "setting", "finished", "points"}`; a single point is not a curve. The mean covers the steps that
    all finished runs of a setting logged, if there are several runs. Shares of answers have a curve if they are ever
    above 0.
    """
    found: dict[tuple, list] = {}
    for run in data["runs"]:
        own_task = str(run["dataset_name"]) if run["benchmark"] else "pre-training"
        for name, points in run["curves"].items():
            task, said, unit = curve_of(name, run["curves"]) or ("", "average", "")
            if said == "average" or (unit == "%" and not any(value > 0 for _, value in points)):
                continue
            line = {"run": run["name"], "setting": run["setting"], "points": points}
            line["finished"] = run["status"] == "finished"
            found.setdefault((task or own_task, said, unit), []).append(line)
    tasks, units = list(dict.fromkeys(task for task, *_ in found)), ("points", "%", "nats per token")
    panels = []
    for task, said, unit in sorted(found, key=lambda key: (tasks.index(key[0]), units.index(key[2])))[:MOST_CURVES]:
        lines, means = found[task, said, unit], {}
        if all(len(line["points"]) < 2 for line in lines):
            continue
        for setting in dict.fromkeys(line["setting"] for line in lines):
            seeds = [dict(line["points"]) for line in lines if line["setting"] == setting and line["finished"]]
            steps = sorted(set.intersection(*map(set, seeds))) if len(seeds) > 1 else []
            if steps:
                means[setting] = [[step, sum(points[step] for points in seeds) / len(seeds)] for step in steps]
        name, title = f"curve-{task}-{said}", f"{task}: {said}"
        panels.append({"name": name, "title": title, "unit": unit, "lines": lines, "means": means})
    return panels


def figures_of(data: dict) -> list[Plot]:
    """Every plot of a report, under names that every file system accepts: scores, learning curves, those of sweeps."""
    colours, plots = colours_of(data), []
    rows = [entry for entry in data["scores"] if entry["metric"] in METRICS and entry["mean"] is not None]
    if rows:
        draw = functools.partial(draw_scores, rows=rows, colours=colours)
        plots.append(Plot("scores", "Scores by task", draw, (INCHES, 1.2 + 0.28 * len(rows)), "scores"))
    for panel in panels_of(data):
        draw = functools.partial(draw_panel, panel=panel, colours=colours)
        plots.append(Plot(panel["name"], panel["title"], draw, (3.75, 2.5), "curves"))
    for sweep in data["sweeps"]:
        for name, (draw, has_data, title) in PLOTS.items():
            if has_data(sweep):
                draw, title = functools.partial(draw, sweep=sweep), f"{sweep['name']}: {title}"
                plots.append(Plot(f"sweep-{sweep['name']}-{name}", title, draw, (INCHES, 3.6), "sweeps"))
    named: dict[str, Plot] = {}
    for plot in plots:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", plot.name)[:120]
        while name in named:
            name += "-2"
        named[name] = plot._replace(name=name)
    return list(named.values())


def colours_of(data: dict) -> dict[str, tuple]:
    """`{setting: (colour, dash)}` of the first settings; the others are drawn in grey."""
    return {setting["label"]: form for setting, form in zip(data["settings"], zip(COLOURS, DASHES))}


def draw_panel(figure, panel: dict, colours: dict) -> None:
    """Seeds as thin lines, the mean of each setting as a thick one; a lone seed is drawn as a mean is."""
    from matplotlib.lines import Line2D

    axes = figure.add_subplot()
    means = [(setting, points, True) for setting, points in panel["means"].items()]
    for setting, points, is_mean in [*((one["setting"], one["points"], False) for one in panel["lines"]), *means]:
        colour, dash = colours.get(setting, (INK, "-"))
        is_thick = is_mean or (setting in colours and setting not in panel["means"])
        form = {"linewidth": 1.9} if is_thick else {"linewidth": 0.8, "alpha": 0.55}
        marker = "o" if len(points) == 1 or (len(points) <= 12 and is_thick) else ""
        axes.plot(*zip(*points), color=colour, linestyle=dash, marker=marker, markersize=3, **form)
    axes.set_title(_literal(panel["title"]), fontsize=10)
    axes.set_xlabel("update", fontsize=9)
    axes.set_ylabel(panel["unit"], fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    _plain(axes)
    shown = {line["setting"] for line in panel["lines"]}
    if any(shown) and len(shown) > 1:
        handles = [
            Line2D([], [], color=colour, linestyle=dash, linewidth=2, label=shortened(label, 60))
            for label, (colour, dash) in colours.items()
            if label in shown
        ]
        figure.set_size_inches(figure.get_figwidth() * 1.5, figure.get_figheight() + 0.2 * len(handles))
        figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8, labelcolor=INK)


def draw_scores(figure, rows: list[dict], colours: dict) -> None:
    """Means with their intervals, one line per score; a bar marks the majority baseline, a diamond the published T5."""
    axes, labels = figure.add_subplot(), []
    for at, entry in enumerate(rows):
        colour, _ = colours.get(entry["setting"], (INK, "-"))
        if entry["interval"]:
            ends = [entry["interval"]["low"], entry["interval"]["high"]]
            axes.plot(ends, [at, at], color=colour, linewidth=2.2, alpha=0.6)
        axes.plot([entry["mean"]], [at], "o", color=colour, markersize=6)
        if entry["majority"] is not None:
            axes.plot([entry["majority"]], [at], "|", color=INK, markersize=13, markeredgewidth=2)
        if entry["published"] is not None:
            axes.plot([entry["published"]], [at], "D", color=INK, markersize=5, fillstyle="none")
        setting = f" ({shortened(entry['setting'], 28)})" if entry["setting"] else ""
        labels.append(_literal(f"{entry['task']} {entry['metric']}{setting}"))
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("points: mean and 95 % interval\n| majority label   ◇ published T5 (test)", fontsize=8)
    _plain(axes)


def _plain(axes) -> None:
    """Sets ink that is readable in both themes, and hides lines that are not needed."""
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))
    axes.tick_params(colors=INK, labelsize=8)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(INK)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)


def render(plot: Plot) -> dict[str, bytes]:
    """A plot as `png` and `svg`; the same data give the same bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=plot.size, dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    made = {}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": plot.name, "font.size": 9}):
        plot.draw(figure)
        for form in ("png", "svg"):
            file = io.BytesIO()
            metadata = {"Date": None} if form == "svg" else {}
            figure.savefig(file, format=form, transparent=True, metadata=metadata)
            figure.set_layout_engine("none")  # laid out by now
            made[form] = file.getvalue()
    return made


def running_best(sweep: dict) -> list[tuple[int, float]]:
    """`(trial, the best value so far)`, in the order of the trials' numbers."""
    better, found = max if sweep["goal"] == "maximize" else min, []
    for trial in valued(sweep):
        found.append((trial["number"], better(trial["value"], found[-1][1]) if found else trial["value"]))
    return found


def _finish(axes, title: str, x: str = "", y: str = "") -> None:
    """Labels, title, grid, and a legend below."""
    axes.set(xlabel=_literal(x), ylabel=_literal(y))
    axes.set_title(_literal(title), fontsize=10)
    _plain(axes)
    _legend(axes)


def _legend(axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        form = {"frameon": False, "fontsize": 8, "labelcolor": INK, "ncols": 3}
        axes.figure.legend(handles, labels, loc="outside lower center", **form)


def _scatter(axes, sweep: dict, places: dict[int, float]) -> None:
    """Every trial's value at its place, marked by its state, and a ring around the best, but not among replicates."""
    shown = [trial for trial in valued(sweep) if trial["number"] in places]
    for state, (colour, marker, said) in STATES.items():
        points = [(places[trial["number"]], trial["value"]) for trial in shown if trial["state"] == state]
        if points:
            fill = colour if state == "complete" else "none"
            label = f"{said} ({len(points)})"
            axes.scatter(*zip(*points), s=32, marker=marker, edgecolors=colour, facecolors=fill, label=label, zorder=3)
    for best in (trial for trial in shown if trial["number"] == sweep["best"] and not sweep["groups"]):
        label = f"best: trial {best['number']}, {best['value']:.4g}"
        form = {"edgecolors": ORANGE, "facecolors": "none", "linewidths": 2, "zorder": 4}
        axes.scatter([places[best["number"]]], [best["value"]], s=130, label=label, **form)


def draw_objective(figure, sweep: dict) -> None:
    """Every trial's value, and the best so far."""
    axes = figure.add_subplot()
    axes.step(*zip(*running_best(sweep)), where="post", color=GREEN, linewidth=1.5, label="best so far")
    _scatter(axes, sweep, {trial["number"]: trial["number"] for trial in sweep["trials"]})
    axes.xaxis.get_major_locator().set_params(integer=True)
    _finish(axes, "Every trial, and the best so far", "trial", sweep["metric"])


def draw_parameters(figure, sweep: dict) -> None:
    """The value over each parameter, one panel per parameter; few values are shown as categories."""
    names = searched(sweep)[:MOST_PANELS]
    columns = min(2, len(names))
    rows = math.ceil(len(names) / columns)
    figure.set_size_inches(INCHES, 0.9 + 2.3 * rows)
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels, names):
        trials = [trial for trial in valued(sweep) if name in trial["parameters"]]
        values = [trial["parameters"][name] for trial in trials]
        are_numbers = all(map(is_number, values))
        if are_numbers and len(set(values)) > FEW_VALUES:
            axes.set_xscale("log" if is_logarithmic(sweep, name) else "linear")
        else:
            values = values if are_numbers else list(map(str, values))
            steps = sorted(set(values))
            width = max(5, 30 // len(steps))
            axes.set_xticks(range(len(steps)), [_literal(shortened(cell_text(step), width)) for step in steps])
            axes.set_xlim(-0.5, len(steps) - 0.5)
            values = list(map(steps.index, values))
        _scatter(axes, sweep, {trial["number"]: value for trial, value in zip(trials, values)})
        axes.set_xlabel(_literal(shortened(name, 30)), fontsize=9)
        _plain(axes)
    more = len(searched(sweep)) - len(names)
    left_out = f" ({more} more are not shown)" if more else ""
    figure.suptitle(_literal(f"{sweep['metric']} over each parameter{left_out}"), fontsize=10, color=INK)
    _legend(panels[0])


# name -> how it is drawn, whether there is something to draw, title
PLOTS = {
    "objective": (
        draw_objective,
        lambda sweep: valued(sweep) and not sweep["groups"],
        "Every trial and the best so far",
    ),
    "parameters": (
        draw_parameters,
        lambda sweep: valued(sweep) and TASK not in sweep["varied"] and len(searched(sweep)) > bool(sweep["groups"]),
        "Score over each parameter",
    ),
}
