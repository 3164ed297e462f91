"""The plots of a sweep: every trial's score in order, and over each parameter.

A new plot is one entry of PLOTS at the end of this file.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from t5suite.launch.commands import TASK
from t5suite.launch.sweep_tables import cell_text
from t5suite.reports.formatting import is_plain_number, shortened
from t5suite.reports.plot_style import BLUE, GREEN, INCHES, INK, ORANGE, add_legend, literal, use_ink
from t5suite.reports.sweeps import is_logarithmic, searched, valued

# The most panels of a sweep's parameters.
MOST_PANELS = 9
# A parameter with more values than this has a numeric axis.
FEW_VALUES = 5
# state of a trial -> colour, marker, name in the legend
STATES = {
    "complete": (BLUE, "o", "finished"), "pruned": (INK, "v", "stopped early"),
    "preempted": (INK, "s", "preempted"), "running": (GREEN, "D", "running"), "failed": (ORANGE, "X", "failed"),
}  # fmt: skip


class SweepPlot(NamedTuple):
    """A kind of plot.

    Attributes:
      title: what it shows.
      draw: (matplotlib figure, sweep) -> None.
      applies: sweep -> whether there is something to draw.
    """

    title: str
    draw: Callable
    applies: Callable


def running_best(sweep: dict) -> list[tuple[int, float]]:
    """`(trial, the best value so far)`, in the order of the trials' numbers."""
    trials = valued(sweep)
    numbers = [trial["number"] for trial in trials]
    values = [trial["value"] for trial in trials]
    better = min
    if sweep["goal"] == "maximize":
        better = max
    best_values = itertools.accumulate(values, better)
    return list(zip(numbers, best_values, strict=True))


def has_objective(sweep: dict) -> bool:
    """Whether the trials' values can be compared: a grid's are of several settings or tasks."""
    return bool(valued(sweep)) and not sweep["groups"]


def draw_objective(figure, sweep: dict) -> None:
    """Every trial's value, and the best so far."""
    axes = figure.add_subplot()
    axes.step(*zip(*running_best(sweep), strict=True), where="post", color=GREEN, linewidth=1.5, label="best so far")
    draw_trials(axes, sweep, {trial["number"]: trial["number"] for trial in sweep["trials"]})
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="trial", ylabel=literal(sweep["metric"]))
    axes.set_title("Every trial, and the best so far", fontsize=10)
    use_ink(axes)
    add_legend(axes)


def draw_trials(axes, sweep: dict, places: dict[int, float]) -> None:
    """Every trial's value at its place, marked by its state, and a ring around the best, but not among replicates."""
    trials = [trial for trial in valued(sweep) if trial["number"] in places]
    for state in STATES:
        members = [trial for trial in trials if trial["state"] == state]
        points = [(places[trial["number"]], trial["value"]) for trial in members]
        if points:
            draw_points(axes, points, state)
    if sweep["groups"]:
        return
    for trial in trials:
        if trial["number"] == sweep["best"]:
            draw_ring(axes, places[trial["number"]], trial)


def draw_points(axes, points: list[tuple[float, float]], state: str) -> None:
    """The trials of one state: only those that are complete are filled."""
    colour, marker, title = STATES[state]
    filling = "none"
    if state == "complete":
        filling = colour
    axes.scatter(
        *zip(*points, strict=True),
        s=32,
        marker=marker,
        edgecolors=colour,
        facecolors=filling,
        label=f"{title} ({len(points)})",
        zorder=3,
    )


def draw_ring(axes, place: float, trial: dict) -> None:
    """A ring around the best trial."""
    label = f"best: trial {trial['number']}, {trial['value']:.4g}"
    ring = {"edgecolors": ORANGE, "facecolors": "none", "linewidths": 2, "zorder": 4}
    axes.scatter([place], [trial["value"]], s=130, label=label, **ring)


def has_parameters(sweep: dict) -> bool:
    """Whether scores are of one task and a parameter varies; a grid over seeds shows one only beside another."""
    if TASK in sweep["varied"]:
        return False
    num_axes = len(drawn_parameters(sweep))
    if sweep["groups"]:
        return num_axes >= 2
    return num_axes >= 1


def drawn_parameters(sweep: dict) -> list[str]:
    """The searched parameters that some trial with a value has."""
    trials = valued(sweep)
    return [name for name in searched(sweep) if any(name in trial["parameters"] for trial in trials)]


def draw_parameters(figure, sweep: dict) -> None:
    """The value over each parameter, one panel per parameter; few values are shown as categories."""
    all_names = drawn_parameters(sweep)
    names = all_names[:MOST_PANELS]
    columns = min(2, len(names))
    rows = math.ceil(len(names) / columns)
    figure.set_size_inches(INCHES, 0.9 + 2.3 * rows)
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels, names, strict=False):
        draw_trials(axes, sweep, parameter_places(axes, sweep, name))
        axes.set_xlabel(literal(shortened(name, 30)), fontsize=9)
        use_ink(axes)
    title = f"{sweep['metric']} over each parameter"
    num_hidden = len(all_names) - len(names)
    if num_hidden:
        title += f" ({num_hidden} more are not shown)"
    figure.suptitle(literal(title), fontsize=10, color=INK)
    add_legend(panels[0])


def parameter_places(axes, sweep: dict, name: str) -> dict[int, float]:
    """Sets an axis for a parameter; returns each trial's place on it, by number."""
    trials = [trial for trial in valued(sweep) if name in trial["parameters"]]
    numbers = [trial["number"] for trial in trials]
    values = [trial["parameters"][name] for trial in trials]
    are_numbers = all(map(is_plain_number, values))
    if are_numbers and len(set(values)) > FEW_VALUES:
        scale = "linear"
        if is_logarithmic(sweep, name):
            scale = "log"
        axes.set_xscale(scale)
        return dict(zip(numbers, values, strict=True))
    if not are_numbers:
        values = list(map(str, values))
    categories = sorted(set(values))
    width = max(5, 30 // len(categories))
    labels = [literal(shortened(cell_text(category), width)) for category in categories]
    axes.set_xticks(range(len(categories)), labels)
    axes.set_xlim(-0.5, len(categories) - 0.5)
    return dict(zip(numbers, map(categories.index, values), strict=True))


PLOTS = {
    "objective": SweepPlot("Every trial and the best so far", draw_objective, has_objective),
    "parameters": SweepPlot("Score over each parameter", draw_parameters, has_parameters),
}
