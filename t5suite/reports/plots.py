"""Plots of runs, by matplotlib: a run's own curves beside its card, and those of a report.

>>> learning_curves("runs/glue-rte-t5-small")
PosixPath('runs/glue-rte-t5-small/learning_curves.png')
>>> write_figures({plot.name: render(plot) for plot in figures_of(data)}, "report/plots")
[PosixPath('report/plots/scores.png'), PosixPath('report/plots/scores.svg'), ...]

A report's plots have a transparent background and grey ink that can be read on white and on black. Colours are Okabe
and Ito's, which colour-blind readers tell apart, and every setting has a dash of its own besides.
"""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from t5suite.base.files import whole_file
from t5suite.reports.results import panels_of, shown_settings
from t5suite.reports.tables import shortened
from t5suite.tasks.metrics import METRICS
from t5suite.tracking.metric_lines import thinned_lines

LOSS_CURVE, LEARNING_CURVES = "loss_curve.png", "learning_curves.png"
CURVES = {"train/loss": "training loss", "eval/nll": "held-out NLL"}
NATS = "nats per target token"
# Of a mixture with more scores than this the average alone is drawn.
MOST_SCORES = 10
NO_SCORES = ("loss", "invalid_rate", "truncated_rate", "runtime", "samples_per_second", "steps_per_second")


def loss_curve(directory, title: str = "") -> Path | None:
    """Draws training loss and held-out NLL over the steps into `loss_curve.png`; None where nothing was logged yet."""
    curves = _curves(Path(directory))
    lines = {
        f"{label} (last: {curves[name][-1][1]:.3f})": curves[name] for name, label in CURVES.items() if name in curves
    }
    return _drawn(Path(directory), LOSS_CURVE, title, [(lines, NATS)] if lines else [])


def learning_curves(directory, title: str = "") -> Path | None:
    """Draws losses and scores over the steps, side by side, into `learning_curves.png`.

    Returns:
      None where no curve has two points, which would be no curve.
    """
    curves = _curves(Path(directory))
    losses = {name: points for name, points in curves.items() if name == "train/loss" or _is(name, ("loss",))}
    parts = [(losses, NATS), (shown_scores(curves), "points")]
    named = [({_label(name): points for name, points in lines.items()}, unit) for lines, unit in parts if lines]
    has_lines = any(len(points) > 1 for lines, _ in named for points in lines.values())
    return _drawn(Path(directory), LEARNING_CURVES, title, named if has_lines else [])


def _drawn(directory: Path, name: str, title: str, parts: list[tuple[dict, str]]) -> Path | None:
    """A panel for each `({label: points}, unit)`, in one picture."""
    if not parts:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(parts) if len(parts) > 1 else 7, 3.6), dpi=120, layout="constrained")
    for axes, (lines, unit) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts):
        for at, (label, points) in enumerate(lines.items()):
            form = {"color": COLOURS[at % len(COLOURS)], "linestyle": DASHES[at % len(DASHES)]}
            marker = "o" if len(points) <= 30 else ""
            axes.plot(*zip(*points), label=label, marker=marker, markersize=3, linewidth=1.4, **form)
        axes.set_xlabel("update")
        axes.set_ylabel(unit)
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(literal(title or directory.name), fontsize=10)
    return _saved(figure, directory / name)


def shown_scores(curves: dict[str, list]) -> dict[str, list]:
    """The scores that are drawn: all of a run's, or the average where they are too many.

    >>> list(shown_scores({"eval/accuracy": [[10, 60.0]], "eval/average": [[10, 60.0]], "eval/loss": [[10, 1.2]]}))
    ['eval/accuracy']
    """
    scores = {name: points for name, points in curves.items() if name.startswith("eval/") and not _is(name, NO_SCORES)}
    single = {name: points for name, points in scores.items() if name != "eval/average"}
    if len(single) > MOST_SCORES:
        return {name: points for name, points in scores.items() if name == "eval/average"}
    return scores if any(name.count("/") == 2 for name in single) else single


def _is(name: str, leaves: tuple[str, ...]) -> bool:
    """Whether an evaluation's name ends in one of these."""
    return name.startswith("eval/") and name.rpartition("/")[2] in leaves


def _label(name: str) -> str:
    """
    >>> _label("eval/rte/accuracy"), _label("train/loss"), _label("eval/loss")
    ('rte accuracy', 'training loss', 'held-out loss')
    """
    room, _, rest = name.partition("/")
    rest = rest.replace("/", " ")
    return f"{'training' if room == 'train' else 'held-out'} {rest}" if rest == "loss" else rest


def _curves(directory: Path) -> dict[str, list]:
    """`{name: [(step, value), ...]}` of numbers that were logged, very many thinned out; the last of a step counts."""
    found: dict[str, dict] = {}
    for line in thinned_lines(directory / "metrics.jsonl"):
        for name, value in line.items():
            if "/" in name and isinstance(value, (int, float)):
                found.setdefault(name, {})[line["step"]] = value
    return {name: list(points.items()) for name, points in found.items()}


def _saved(figure, path: Path) -> Path:
    """Writes through a temporary sibling, without a display and without global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with whole_file(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


# 4.5 to 1 on white and on black.
INK = "#767676"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B65A93", "#9A7B00", "#7570B3", "#56789A")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
DPI = 160
LONGEST_LABEL = 60


class Plot(NamedTuple):
    """One plot: what it is called, what it shows in words, how it is drawn.

    Attributes:
      draw: matplotlib figure -> None.
      size: inches.
      ink: drawn in INK on a transparent background; else black on white.
    """

    name: str
    title: str
    draw: Callable
    size: tuple[float, float]
    section: str
    ink: bool = True


def figures_of(data: dict, sweep_plots=()) -> list[Plot]:
    """Every plot of a report: scores, learning curves, confusion matrices, and those of sweeps."""
    colours = colours_of(data)
    plots = []
    if data["scores"]:
        rows = [entry for entry in data["scores"] if entry["metric"] in METRICS and entry["mean"] is not None]
        if rows:
            draw = lambda figure: draw_scores(figure, rows, colours)
            plots.append(Plot("scores", "Scores by task", draw, (7.5, 1.2 + 0.28 * len(rows)), "scores"))
    for panel in panels_of(data):
        draw = lambda figure, panel=panel: draw_panel(figure, panel, colours)
        plots.append(Plot(panel["name"], panel["title"], draw, (3.75, 2.5), "curves"))
    for matrix in data["confusions"]:
        name = f"confusion-{matrix['run']}-{matrix['task']}".replace("/", "-")
        draw = lambda figure, matrix=matrix: draw_confusion(figure, matrix)
        size = 1.6 + 0.75 * len(matrix["answers"]), 1.2 + 0.45 * len(matrix["labels"])
        plots.append(Plot(name, f"{matrix['task']}, {matrix['run']}", draw, size, "confusions"))
    return with_file_names([*plots, *sweep_plots])


def with_file_names(plots: list[Plot]) -> list[Plot]:
    """The plots under names that every file system takes, each another.

    >>> [plot.name for plot in with_file_names([a_b_plot, a_slash_b_plot])]
    ['a-b', 'a-b-2']
    """
    used: set[str] = set()
    renamed = []
    for plot in plots:
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", plot.name)[:120]
        name = next(n for n in (safe, *(f"{safe}-{i}" for i in range(2, len(plots) + 2))) if n not in used)
        used.add(name)
        renamed.append(plot._replace(name=name))
    return renamed


def colours_of(data: dict) -> dict[str, tuple]:
    """`{setting: (number, colour, dash)}`; settings beyond the palette are left out, and drawn in grey."""
    labels = shown_settings(data, len(COLOURS))
    return {label: (at, COLOURS[at], DASHES[at]) for at, label in enumerate(labels)}


def draw_panel(figure, panel: dict, colours: dict) -> None:
    """Seeds as thin lines, the mean of each setting as a thick one; a lone seed is drawn as a mean is."""
    axes = figure.add_subplot()
    for line in panel["lines"]:
        _, colour, dash = colours.get(line["setting"], (None, INK, "-"))
        alone = line["setting"] not in panel["means"]
        form = {"linewidth": 1.8, "alpha": 1.0} if alone and line["setting"] in colours else THIN
        marker = "o" if len(line["points"]) == 1 or (len(line["points"]) <= 12 and alone) else ""
        axes.plot(*zip(*line["points"]), color=colour, linestyle=dash, marker=marker, markersize=3, **form)
    for setting, points in panel["means"].items():
        _, colour, dash = colours.get(setting, (None, INK, "-"))
        marker = "o" if len(points) <= 12 else ""
        axes.plot(*zip(*points), color=colour, linestyle=dash, linewidth=2.0, marker=marker, markersize=3)
    axes.set_title(literal(panel["title"]), fontsize=10)
    axes.set_xlabel("update", fontsize=9)
    axes.set_ylabel(panel["unit"], fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    plain(axes)
    shown = list(dict.fromkeys(line["setting"] for line in panel["lines"]))
    if any(shown) and len(shown) > 1:
        _legend(figure, axes, [label for label in shown if label in colours], colours)


def _legend(figure, axes, labels: list[str], colours: dict) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linestyle=dash, linewidth=2, label=shortened(label, LONGEST_LABEL))
        for label, (_, colour, dash) in ((label, colours[label]) for label in labels)
    ]
    figure.set_size_inches(figure.get_figwidth() * 1.5, figure.get_figheight() + 0.2 * len(handles))
    figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8, labelcolor=INK)


def draw_scores(figure, rows: list[dict], colours: dict) -> None:
    """Means with their intervals, one line a score; a bar marks the majority baseline, a diamond the published T5."""
    axes = figure.add_subplot()
    for at, entry in enumerate(rows):
        _, colour, _ = colours.get(entry["setting"], (None, INK, "-"))
        interval = entry["interval"]
        if interval:
            axes.plot([interval["low"], interval["high"]], [at, at], color=colour, linewidth=2.2, alpha=0.6)
        axes.plot([entry["mean"]], [at], "o", color=colour, markersize=6)
        if entry["majority"] is not None:
            axes.plot([entry["majority"]], [at], "|", color=INK, markersize=13, markeredgewidth=2)
        if entry["published"] is not None:
            axes.plot([entry["published"]], [at], "D", color=INK, markersize=5, fillstyle="none")
    labels = [
        f"{e['task']} {e['metric']}" + (f" ({shortened(e['setting'], 28)})" if e["setting"] else "") for e in rows
    ]
    axes.set_yticks(range(len(rows)), [literal(label) for label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("points: mean and 95 % interval;  | majority label,  ◇ published T5 (test)", fontsize=8)
    plain(axes)


def draw_confusion(figure, matrix: dict) -> None:
    """Labels down, answers across, each cell its count; the shade is the share of its row."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    axes = figure.add_subplot()
    counts = np.array(matrix["counts"])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    colours = LinearSegmentedColormap.from_list("blues", ["#d8e6f1", "#0b4f80"])
    axes.imshow(shares, cmap=colours, vmin=0, vmax=1, aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        colour = "white" if shares[row, column] > 0.55 else "#111111"
        axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(len(matrix["answers"])), [literal(shortened(x, 16)) for x in matrix["answers"]], fontsize=8)
    axes.set_yticks(range(len(matrix["labels"])), [literal(shortened(x, 16)) for x in matrix["labels"]], fontsize=8)
    axes.set_xlabel("answer", fontsize=9)
    axes.set_ylabel("label", fontsize=9)
    axes.set_title(literal(f"{matrix['task']}, {matrix['run']}"), fontsize=9)
    plain(axes, grid=False)


def plain(axes, grid: bool = True) -> None:
    """Ink that both themes bear, and no more lines than are needed."""
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))
    axes.tick_params(colors=INK, labelsize=8)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.title.set_color(INK)
    if grid:
        axes.grid(color=INK, alpha=0.25, linewidth=0.6)


def render(plot: Plot) -> dict[str, bytes]:
    """A plot as `png` and `svg`; the same data give the same bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=plot.size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    made = {}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": plot.name, "font.size": 9}):
        plot.draw(figure)
        for form in ("png", "svg"):
            file = io.BytesIO()
            metadata = {"Date": None} if form == "svg" else {}
            figure.savefig(file, format=form, transparent=plot.ink, metadata=metadata)
            figure.set_layout_engine("none")  # laid out by now
            made[form] = file.getvalue()
    return made


def write_figures(rendered: dict[str, dict[str, bytes]], directory) -> list[Path]:
    """Every rendered plot as PNG and SVG."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, forms in rendered.items():
        for form in ("png", "svg"):
            path = directory / f"{name}.{form}"
            with whole_file(path) as temporary:
                temporary.write_bytes(forms[form])
            paths.append(path)
    return paths


def literal(text: str) -> str:
    """A label in which dollars are dollars, and do not set what stands between them as a formula."""
    return text.replace("$", r"\$")


THIN = {"linewidth": 0.8, "alpha": 0.55}
