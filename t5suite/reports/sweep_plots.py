"""Pictures of a sweep, 1280 pixels wide.

    >>> draw_plots(read_sweep("runs/sweeps/glue_rte"), {"learning_rate": 0.8, "seed": 0.2})
    [PosixPath('runs/sweeps/glue_rte/plots/objective.png'), ...]

A new plot is one entry of PLOTS at the end of this file: a function that draws into a figure, or returns False where
there is nothing to draw. Colours are Okabe and Ito's, which colour-blind readers tell apart.
"""

import math
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from t5suite.base.files import whole_file
from t5suite.reports.plots import Plot, literal
from t5suite.reports.sweeps import (
    Sweep,
    Trial,
    group_label,
    importances,
    is_number,
    read_sweep,
    sweep_data,
    wrapped,
)
from t5suite.reports.tables import shortened

FOLDER = "plots"
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"
# state -> colour, marker, what the legend says
STATES = {
    "complete": (BLUE, "o", "finished"),
    "pruned": (GREY, "v", "stopped early"),
    "preempted": (GREY, "s", "preempted"),
    "running": (GREEN, "D", "running"),
    "failed": (ORANGE, "X", "failed"),
}
INCHES, DPI = 10, 128
# Scatter plots and parallel axes that can be read at this width; the most important parameters are shown.
MOST_PANELS, MOST_AXES = 9, 8
MOST_GROUPS = 24
# Over five parameters of which one decides, fANOVA named it in 7 of 10 samples of 13 trials, in 10 of 10 of 24.
MANY_TRIALS = 24


def draw_plots(sweep: Sweep, importances: dict[str, float]) -> list[Path]:
    """Draws every plot that the sweep has data for into `plots/`; those without are removed, should they be there.

    Args:
      importances: parameter -> share, the most important first (`importance`).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    folder = sweep.directory / FOLDER
    paths = []
    for name, draw in PLOTS.items():
        figure = Figure(figsize=(INCHES, 5.5), dpi=DPI, layout="constrained")
        path = folder / f"{name}.png"
        if draw(figure, sweep, importances) is False:
            path.unlink(missing_ok=True)
            continue
        folder.mkdir(exist_ok=True)
        with whole_file(path) as temporary:
            FigureCanvasAgg(figure).print_png(str(temporary))
        paths.append(path)
    return paths


def label_of(metric: str) -> str:
    """The metric with its unit, for an axis.

    >>> label_of("eval/rte/accuracy"), label_of("eval/nll")
    ('eval/rte/accuracy (points)', 'eval/nll (nats per token)')
    """
    from t5suite.tasks.metrics import METRICS

    leaf = metric.rpartition("/")[2]
    if leaf in ("loss", "nll"):
        return f"{metric} (nats per token)"
    return f"{metric} (points)" if leaf in METRICS or leaf == "average" else metric


def running_best(sweep: Sweep) -> list[tuple[int, float]]:
    """`(trial, the best value so far)`, in the order of the trials' numbers."""
    better = max if sweep.goal == "maximize" else min
    found, best = [], None
    for trial in sorted(sweep.valued(), key=lambda trial: trial.number):
        best = trial.value if best is None else better(best, trial.value)
        found.append((trial.number, best))
    return found


def panel_names(sweep: Sweep, importances: dict[str, float], most: int) -> list[str]:
    """The varied parameters, the most important first, and no more than can be shown."""
    known = [name for name in importances if name in sweep.varied()]
    return [*known, *(name for name in sweep.varied() if name not in known)][:most]


def draw_objective(figure, sweep: Sweep, importances) -> bool | None:
    """Every trial's value, and the best so far."""
    if not sweep.valued():
        return False
    axes = figure.add_subplot()
    best = running_best(sweep)
    axes.step(*zip(*best), where="post", color=GREEN, linewidth=1.5, label="best so far")
    for state, (colour, marker, said) in STATES.items():
        points = [(t.number, t.value) for t in sweep.valued() if t.state == state]
        if points:
            fill = colour if state == "complete" else "none"
            label = f"{said} ({len(points)})"
            axes.scatter(*zip(*points), s=36, marker=marker, edgecolors=colour, facecolors=fill, label=label, zorder=3)
    lost = [trial.number for trial in sweep.trials if trial.value is None]
    if lost:
        label = f"without a value ({len(lost)})"
        axes.scatter(
            lost, [0.02] * len(lost), marker="x", color=ORANGE, label=label, transform=axes.get_xaxis_transform()
        )
    _mark_best(axes, sweep)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _finish(axes, sweep, "trial", label_of(sweep.metric))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def draw_learning_curves(figure, sweep: Sweep, importances) -> bool | None:
    """Every trial's evaluations over its updates, coloured by what the trial came to; the best one is drawn thick."""
    trials = [trial for trial in sweep.valued() if trial.curve]
    if not trials:
        return False
    axes = figure.add_subplot()
    shade = _shades(figure, axes, sweep, trials)
    for trial in sorted(trials, key=lambda trial: trial.number == sweep.best):
        is_best, early = trial.number == sweep.best, trial.state != "complete"
        form = {"color": ORANGE if is_best else shade(trial.value), "linewidth": 2.6 if is_best else 1.1}
        marker = "o" if len(trial.curve) == 1 else ""
        axes.plot(*zip(*trial.curve), linestyle="--" if early else "-", marker=marker, markersize=4, **form)
        axes.plot(*trial.curve[-1], marker="v" if early else "o", markersize=5, color=form["color"])
    _finish(axes, sweep, "update", label_of(sweep.metric))
    _legend_of_lines(axes, sweep, trials)


def draw_parameters(figure, sweep: Sweep, importances) -> bool | None:
    """The value over each parameter, one panel a parameter."""
    names = panel_names(sweep, importances, MOST_PANELS)
    if not sweep.valued() or not names:
        return False
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure.set_size_inches(INCHES, 1.0 + 3.0 * rows)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for place, axes in enumerate(panels.flat):
        if place >= len(names):
            axes.set_visible(False)
            continue
        _draw_parameter(axes, sweep, names[place])
        if place % columns == 0:
            axes.set_ylabel(label_of(sweep.metric), fontsize=9)
    _title(figure, sweep, len(sweep.varied()) - len(names))
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def _draw_parameter(axes, sweep: Sweep, name: str) -> None:
    trials = [trial for trial in sweep.valued() if name in trial.parameters]
    values = [trial.parameters[name] for trial in trials]
    if all(map(is_number, values)):
        places = values
        if sweep.is_logarithmic(name):
            axes.set_xscale("log")
    else:
        words = sorted({str(value) for value in values})
        places = [words.index(str(value)) for value in values]
        axes.set_xticks(
            range(len(words)), [literal(wrapped(word, max(5, 44 // len(words)))) for word in words], fontsize=8
        )
        axes.set_xlim(-0.5, len(words) - 0.5)
    for state, (colour, marker, said) in STATES.items():
        points = [(x, t.value) for x, t in zip(places, trials) if t.state == state]
        fill = colour if state == "complete" else "none"
        if any(trial.state == state for trial in sweep.valued()):
            xs, ys = zip(*points) if points else ((), ())
            axes.scatter(xs, ys, s=26, marker=marker, edgecolors=colour, facecolors=fill, alpha=0.85, label=said)
    best = sweep.best_trial()
    if best is not None and best in trials:
        at = places[trials.index(best)]
        axes.scatter([at], [best.value], s=110, marker="o", edgecolors=ORANGE, facecolors="none", label="best")
    axes.set_xlabel(literal(shortened(name, 36)), fontsize=9)
    axes.grid(alpha=0.3)


def draw_parallel_coordinates(figure, sweep: Sweep, importances) -> bool | None:
    """One line a trial through an axis for each parameter and one for the value."""
    names = panel_names(sweep, importances, MOST_AXES)
    trials = [trial for trial in sweep.valued() if all(name in trial.parameters for name in names)]
    if len(trials) < 2 or not names:
        return False
    axes = figure.add_subplot()
    shade = _shades(figure, axes, sweep, trials)
    scales = [_scale(sweep, name, [trial.parameters[name] for trial in trials]) for name in names]
    scales.append(_number_scale([trial.value for trial in trials], False))
    for trial in sorted(trials, key=lambda trial: trial.number == sweep.best):
        values = [*(trial.parameters[name] for name in names), trial.value]
        heights = [place(value) for (place, _), value in zip(scales, values)]
        is_best = trial.number == sweep.best
        colour, width = (ORANGE, 2.6) if is_best else (shade(trial.value), 1.1)
        style = "-" if trial.state == "complete" else "--"
        axes.plot(range(len(heights)), heights, color=colour, linewidth=width, linestyle=style)
    for at, (_, ticks) in enumerate(scales):
        axes.axvline(at, color="black", linewidth=0.8)
        for height, text in ticks:
            box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
            axes.text(at + 0.02, height, literal(shortened(text, 16)), fontsize=8, va="center", bbox=box, zorder=5)
    axes.set_xticks(range(len(scales)), [literal(wrapped(name)) for name in (*names, sweep.metric)], fontsize=9)
    axes.set_yticks([])
    axes.set_xlim(-0.25, len(scales) - 1 + 0.4)
    axes.set_ylim(-0.06, 1.06)
    _title(figure, sweep, len(sweep.varied()) - len(names))
    _legend_of_lines(axes, sweep, trials)


def _scale(sweep: Sweep, name: str, values: list) -> tuple[Callable, list]:
    """`(value -> height from 0 to 1, [(height, text)])` of a parameter's axis."""
    if all(map(is_number, values)):
        return _number_scale(values, sweep.is_logarithmic(name))
    words = sorted({str(value) for value in values})
    heights = {word: (at + 0.5) / len(words) for at, word in enumerate(words)}
    return (lambda value: heights[str(value)]), [(height, word) for word, height in heights.items()]


def _number_scale(values: list, logarithmic: bool) -> tuple[Callable, list]:
    bend, back = (math.log, math.exp) if logarithmic else (float, float)
    low, high = bend(min(values)), bend(max(values))
    width = high - low or 1.0
    distinct = sorted(set(values))
    shown = distinct if len(distinct) <= 4 else [back(low + width * share) for share in (0, 0.25, 0.5, 0.75, 1)]
    height = lambda value: (bend(value) - low) / width
    return height, [(height(value), f"{value:.3g}") for value in shown]


def draw_importance(figure, sweep: Sweep, importances) -> bool | None:
    """How much of the variance each parameter explains."""
    if not importances:
        return False
    names = list(importances)[::-1][-15:]
    figure.set_size_inches(INCHES, 1.6 + 0.4 * len(names))
    axes = figure.add_subplot()
    shares = [100 * importances[name] for name in names]
    bars = axes.barh([literal(shortened(name, 40)) for name in names], shares, color=BLUE)
    axes.bar_label(bars, labels=[f"{share:.0f} %" for share in shares], padding=3, fontsize=9)
    axes.set_xlim(0, max(shares) * 1.12)
    finished = sum(trial.state == "complete" for trial in sweep.valued())
    hint = " (few: a hint only)" if finished < MANY_TRIALS else ""
    axes.set_xlabel(f"share of the variance of {sweep.metric} (%), fANOVA over {finished} finished trials{hint}")
    axes.set_title(_title_text(sweep), fontsize=11)
    axes.grid(alpha=0.3, axis="x")


def draw_groups(figure, sweep: Sweep, importances) -> bool | None:
    """A grid's means with standard deviations, one colour a task."""
    groups = [group for group in sweep.groups if is_number(group.get("mean"))]
    if not groups:
        return False
    settings = list(dict.fromkeys(group_label(group["parameters"]) for group in groups))[:MOST_GROUPS]
    tasks = list(dict.fromkeys(group["task"] for group in groups))
    figure.set_size_inches(INCHES, 2.0 + 0.32 * len(settings) * max(1, len(tasks) / 2))
    axes = figure.add_subplot()
    colours = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000", GREY)
    for at, task in enumerate(tasks):
        mine = [g for g in groups if g["task"] == task and group_label(g["parameters"]) in settings]
        rows = [
            settings.index(group_label(g["parameters"])) + (at - (len(tasks) - 1) / 2) * 0.7 / len(tasks) for g in mine
        ]
        axes.errorbar(
            [g["mean"] for g in mine],
            rows,
            xerr=[g.get("std") or 0.0 for g in mine],
            fmt="o",
            capsize=3,
            color=colours[at % len(colours)],
            label=f"{task} (n = {'/'.join(map(str, sorted({g['n'] for g in mine})))})",
        )
    axes.set_yticks(range(len(settings)), [literal(shortened(text, 44)) for text in settings], fontsize=9)
    axes.invert_yaxis()
    _finish(axes, sweep, f"{label_of(sweep.metric)}, mean and standard deviation", "")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _shades(figure, axes, sweep: Sweep, trials: list[Trial]):
    """Value -> colour, with the bar that explains it; better ones are darker."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    values = [trial.value for trial in trials]
    colours = colormaps["viridis_r" if sweep.goal == "maximize" else "viridis"]
    scale = ScalarMappable(Normalize(min(values), max(values)), colours)
    figure.colorbar(scale, ax=axes, label=label_of(sweep.metric), pad=0.02)
    return scale.to_rgba


def _legend_of_lines(axes, sweep: Sweep, trials: list[Trial]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    best = sweep.best_trial()
    if best in trials:
        handles.append(Line2D([], [], color=ORANGE, linewidth=2.6, label=f"best: trial {best.number}"))
    if any(trial.state == "complete" for trial in trials):
        handles.append(Line2D([], [], color=GREY, label="finished"))
    if any(trial.state != "complete" for trial in trials):
        handles.append(Line2D([], [], color=GREY, linestyle="--", label="stopped early or not finished"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)


def _mark_best(axes, sweep: Sweep) -> None:
    best = sweep.best_trial()
    if best is not None and best.value is not None:
        label = f"best: trial {best.number}, {best.value:.4g}"
        axes.scatter(
            [best.number],
            [best.value],
            s=130,
            edgecolors=ORANGE,
            facecolors="none",
            linewidths=2,
            label=label,
            zorder=4,
        )


def _finish(axes, sweep: Sweep, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(_title_text(sweep), fontsize=11)
    axes.grid(alpha=0.3)


def _title(figure, sweep: Sweep, left_out: int) -> None:
    said = f" — {left_out} more parameters are not shown" if left_out > 0 else ""
    figure.suptitle(_title_text(sweep) + said, fontsize=11)


def _title_text(sweep: Sweep) -> str:
    return literal(f"{sweep.name}: {len(sweep.trials)} trials, {sweep.method}, {sweep.goal} {sweep.metric}")


PLOTS = {
    "objective": draw_objective,
    "learning_curves": draw_learning_curves,
    "parameters": draw_parameters,
    "parallel_coordinates": draw_parallel_coordinates,
    "importance": draw_importance,
    "groups": draw_groups,
}
TITLES = {
    "objective": "Every trial and the best so far",
    "learning_curves": "Learning curves of the trials",
    "parameters": "Score over each parameter",
    "parallel_coordinates": "Parallel coordinates",
    "importance": "Parameter importance",
    "groups": "Means over seeds",
}


def sweep_report(directory) -> tuple[dict, list[Plot]]:
    """`(the sweep's part of the report data, its plots)`.

    Raises:
      DataError: no sweep there, or no trial of it yet.
    """
    sweep = read_sweep(directory)
    try:
        shares, lack = importances(sweep), ""
    except ImportError:
        shares, lack = {}, "parameter importance needs Optuna: python -m pip install 't5suite[sweeps]'"
    return sweep_data(sweep, shares, lack), sweep_plots(sweep, shares)


def sweep_plots(sweep: Sweep, shares: dict[str, float]) -> list[Plot]:
    """The plots that the sweep has data for."""
    plots = []
    for name, draw in PLOTS.items():
        if draw(Figure(figsize=(INCHES, 5.5), layout="constrained"), sweep, shares) is False:
            continue
        drawn = lambda figure, draw=draw: draw(figure, sweep, shares)
        title = f"{sweep.name}: {TITLES.get(name, name)}"
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in sweep.name)
        plots.append(Plot(f"sweep-{safe}-{name}", title, drawn, (INCHES, 5.5), "sweeps", ink=False))
    return plots


def draw_sweep(sweep: Sweep) -> tuple[list[Path], str | None]:
    """`(the pictures written beside the sweep, why one is missing)`."""
    try:
        shares, lack = importances(sweep), None
    except ImportError:
        shares, lack = {}, "importance.png needs Optuna: python -m pip install 't5suite[sweeps]'"
    return draw_plots(sweep, shares), lack
