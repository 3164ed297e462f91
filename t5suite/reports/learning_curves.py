"""Learning curves: losses and scores over the updates, of a run for its card, and of several runs for a report.

>>> write_learning_curves("runs/glue-rte-t5-small")
PosixPath('runs/glue-rte-t5-small/learning_curves.png')
>>> [panel["title"] for panel in curve_panels(data)]
['rte: accuracy', 'rte: training loss']
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from t5suite.base.files import whole_file
from t5suite.reports.formatting import names_of_benchmarks, shortened, task_title
from t5suite.reports.plot_style import COLOURS, DASHES, INK, literal, use_ink
from t5suite.reports.run_facts import curves_of
from t5suite.reports.units import AS_RETURNED, NATS, NO_UNIT, POINTS, TARGETS_UNIT, metric_unit
from t5suite.runs.directory import METRICS
from t5suite.tracking.metric_lines import thinned_lines

LEARNING_CURVES = "learning_curves.png"
# For a mixture with more scores than this only the average is drawn.
MOST_SCORES = 10
# The most learning curves in a report.
MOST_CURVES = 60
# What is logged besides the scores, and the names of losses and shares of answers. Shares are in percent.
NO_SCORES = ("perplexity", "runtime", "samples_per_second", "steps_per_second", "gender_parity")
LOSSES = {"loss": "held-out loss", "nll": "held-out NLL", "nll_text": "held-out NLL of text"}
SHARES = {"invalid_rate": "invalid answers", "truncated_rate": "answers cut off"}
PERCENT, LOSS = "%", "loss"
# In the order of a report.
UNITS = (POINTS, TARGETS_UNIT, AS_RETURNED, NO_UNIT, PERCENT, LOSS, NATS)
LONGEST_LABEL = 60


class Curve(NamedTuple):
    """What a logged value is the curve of.

    Attributes:
      task: empty if the run has one task, and for training.
      title: what it is called.
      unit: one of UNITS; that of losses, `loss`, where it is not known.
    """

    task: str
    title: str
    unit: str


def curve_of_metric(name: str, logged) -> Curve | None:
    """The curve of a logged value; None if it is not worth one.

    >>> curve_of_metric("eval/rte/accuracy", ()), curve_of_metric("eval/runtime", ())
    (Curve(task='rte', title='accuracy', unit='points'), None)
    >>> curve_of_metric("eval/loss", ())
    Curve(task='', title='held-out loss', unit='loss')

    Args:
      logged: the names of all values.
    """
    if name == "train/loss":
        return Curve("", "training loss", _unit_of_losses(logged))
    section, *task_parts, metric = name.split("/")
    if section != "eval" or metric in NO_SCORES:
        return None
    is_same_as_nll = metric == "loss" and "eval/nll" in logged
    if is_same_as_nll:
        return None
    task = "/".join(task_parts)
    if metric in LOSSES:
        return Curve(task, LOSSES[metric], _unit_of_losses(logged))
    if metric in SHARES:
        return Curve(task, SHARES[metric], PERCENT)
    return Curve(task, metric, metric_unit(metric))


def _unit_of_losses(logged) -> str:
    """Nats where text alone is learned, which logs `nll`; the loss of an encoder or of the user's may be any other."""
    if any(name.rpartition("/")[2] == "nll" for name in logged):
        return NATS
    return LOSS


def write_learning_curves(directory, title: str = "") -> Path | None:
    """Draws a run's losses and scores over the updates, side by side, into its folder; None without a curve."""
    lines_of_file = list(thinned_lines(Path(directory, METRICS)))
    panels = card_panels(curves_of(lines_of_file))
    if not any(_is_curve(points) for lines in panels.values() for points in lines.values()):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = 7
    if len(panels) > 1:
        width = 4.5 * len(panels)
    figure = Figure(figsize=(width, 3.6), dpi=120, layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (unit, lines) in zip(all_axes, panels.items(), strict=True):
        draw_card_panel(axes, unit, lines)
    path = Path(directory, LEARNING_CURVES)
    figure.suptitle(literal(title or path.parent.name), fontsize=10)
    with whole_file(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


def _is_curve(points: list) -> bool:
    """Whether several values are numbers."""
    return sum(value is not None for _, value in points) > 1


def card_panels(logged: dict[str, list]) -> dict[str, dict[str, list]]:
    """`{unit: {label: points}}` of the losses, then of the scores."""
    panels: dict[str, dict[str, list]] = {}
    scores: dict[str, list] = {}
    unit_of_score: dict[str, str] = {}
    for name, points in logged.items():
        curve = curve_of_metric(name, logged)
        if curve is None or curve.unit == PERCENT:
            continue
        label = f"{curve.task} {curve.title}".strip()
        if curve.unit in (LOSS, NATS):
            panels.setdefault(curve.unit, {})[label] = points
        else:
            scores[label] = points
            unit_of_score[label] = curve.unit
    for label, points in readable_scores(scores, unit_of_score).items():
        panels.setdefault(unit_of_score[label], {})[label] = points
    return panels


def readable_scores(scores: dict[str, list], unit_of_score: dict[str, str]) -> dict[str, list]:
    """Of many scores the average alone; of one task, which is its own average, the scores without it.

    Where no score is in points, the average is not, either, and is left out.
    """
    average = {label: points for label, points in scores.items() if label == "average"}
    task_scores = {label: points for label, points in scores.items() if label != "average"}
    if not any(unit_of_score[label] == POINTS for label in task_scores):
        average = {}
    if len(task_scores) > MOST_SCORES:
        return average
    is_one_task = not any(" " in label for label in task_scores)
    if is_one_task:
        return task_scores
    return {**task_scores, **average}


def draw_card_panel(axes, unit: str, lines: dict[str, list]) -> None:
    """The curves of one unit."""
    for number, (label, points) in enumerate(lines.items()):
        style = {
            "label": label,
            "linewidth": 1.4,
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": DASHES[number % len(DASHES)],
        }
        draw_curve(axes, points, len(points) <= 30, style)
    axes.set(xlabel=label_of_updates(lines.values()), ylabel=unit)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def draw_curve(axes, points: list, has_markers: bool, style: dict) -> None:
    """A curve with a gap, and a cross at the foot of the axes, where a value is None.

    Args:
      has_markers: each point is marked; if not, only those that have no neighbour to be joined with.
    """
    steps, values = zip(*points, strict=True)
    marked = range(len(points)) if has_markers else _lone_places(values)
    axes.plot(steps, values, marker="o" if marked else "", markevery=list(marked), markersize=3, **style)
    gaps = [step for step, value in points if value is None]
    if gaps:
        heights = [0.03] * len(gaps)  # of the axes
        transform = axes.get_xaxis_transform()
        axes.plot(gaps, heights, "x", markersize=4, color=style["color"], transform=transform)


def _lone_places(values: Sequence[float | None]) -> list[int]:
    """The places of numbers that have none beside them.

    >>> _lone_places([1.0, 2.0, None, 3.0, None])
    [3]
    """
    padded = [None, *values, None]
    places = []
    for place, (before, value, after) in enumerate(zip(padded, values, padded[2:], strict=False)):
        if value is not None and before is None and after is None:
            places.append(place)
    return places


def label_of_updates(curves: Iterable[list]) -> str:
    """The axis of the updates; it says what a cross is, where there is one."""
    if any(value is None for points in curves for _, value in points):
        return "update (×: not a number)"
    return "update"


def curve_panels(data: dict) -> list[dict]:
    """The learning curves: `[{"name", "title", "unit", "lines": [...], "means": {setting: points}}]`.

    A line is `{"run", "setting", "points", "finished"}`. At most MOST_CURVES of the report's curves have a panel.
    """
    panels = []
    for curve, lines in list(curves_of_report(data["runs"]).items())[:MOST_CURVES]:
        panel = {
            "name": f"curve-{curve.task}-{curve.title}",
            "title": f"{curve.task}: {curve.title}",
            "unit": curve.unit,
            "lines": lines,
            "means": seed_means(lines),
        }
        panels.append(panel)
    return panels


def curves_of_report(runs: list[dict]) -> dict[Curve, list[dict]]:
    """The lines of every curve, by task; a single point is not a curve, and neither is a share that is always 0."""
    lines_of_curve = _lines_of_curves(runs)
    tasks = list(dict.fromkeys(curve.task for curve in lines_of_curve))
    curves = [curve for curve, lines in lines_of_curve.items() if any(_is_curve(line["points"]) for line in lines)]
    ordered = sorted(curves, key=lambda curve: (tasks.index(curve.task), UNITS.index(curve.unit)))
    return {curve: lines_of_curve[curve] for curve in ordered}


def _lines_of_curves(runs: list[dict]) -> dict[Curve, list[dict]]:
    """The line of every run that logged a curve's values, by curve."""
    lines_of_curve: dict[Curve, list[dict]] = {}
    benchmarks = names_of_benchmarks(runs)
    for run in runs:
        is_finished = run["status"] == "finished"
        for curve, points in curves_of_run(run, benchmarks):
            line = {"run": run["name"], "setting": run["setting"], "points": points, "finished": is_finished}
            lines_of_curve.setdefault(curve, []).append(line)
    return lines_of_curve


def curves_of_run(run: dict, benchmarks: list[str]) -> list[tuple[Curve, list]]:
    """A run's curves with their points, its task's name in each; averages have none.

    Args:
      benchmarks: those of all runs of the report.
    """
    task_of_run = "pre-training"
    if run["benchmark"]:
        task_of_run = str(run["dataset_name"])
    curves = []
    for name, points in run["curves"].items():
        curve = curve_of_metric(name, run["curves"])
        if curve is None or curve.title == "average":
            continue
        if _is_zero_share(curve, points):
            continue
        task = task_title(run["benchmark"], curve.task or task_of_run, benchmarks)
        curves.append((curve._replace(task=task), points))
    return curves


def _is_zero_share(curve: Curve, points: list) -> bool:
    if curve.unit != PERCENT:
        return False
    return not any(value for _, value in points)


def seed_means(lines: list[dict]) -> dict[str, list]:
    """`{setting: points}`: the mean over a setting's finished runs, if there are several, where all logged.

    >>> seed = {"setting": "learning_rate 1e-3", "finished": True}
    >>> seed_means([{**seed, "points": [[10, 1.0], [20, 2.0]]}, {**seed, "points": [[20, 4.0], [30, 6.0]]}])
    {'learning_rate 1e-3': [[20, 3.0]]}
    """
    curves_of_setting: dict[str, list[dict]] = {}
    for line in lines:
        curves = curves_of_setting.setdefault(line["setting"], [])
        if line["finished"]:
            curves.append(dict(line["points"]))
    means = {}
    for setting, curves in curves_of_setting.items():
        if len(curves) > 1:
            mean = _mean_curve(curves)
            if mean:
                means[setting] = mean
    return means


def _mean_curve(curves: list[dict[int, float]]) -> list[list]:
    """The mean of several curves, `{update: value}`, at the updates of all of them; None where a curve has None."""
    updates = set(curves[0]).intersection(*curves)
    points = []
    for update in sorted(updates):
        values = [curve[update] for curve in curves]
        mean = None
        if None not in values:
            mean = sum(values) / len(values)
        points.append([update, mean])
    return points


def draw_panel(figure, panel: dict, styles: dict) -> None:
    """Seeds as thin lines, the mean of each setting as a thick one; a lone seed is drawn as a mean is."""
    axes = figure.add_subplot()
    for line in panel["lines"]:
        setting = line["setting"]
        is_thick = setting in styles and setting not in panel["means"]
        draw_line(axes, line["points"], styles.get(setting), is_thick)
    for setting, points in panel["means"].items():
        draw_line(axes, points, styles.get(setting), is_thick=True)
    axes.set_title(literal(panel["title"]), fontsize=10)
    axes.set_xlabel(label_of_updates(line["points"] for line in panel["lines"]), fontsize=9)
    axes.set_ylabel(panel["unit"], fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    use_ink(axes)
    add_setting_legend(figure, {line["setting"] for line in panel["lines"]}, styles)


def draw_line(axes, points: list, style: tuple | None, is_thick: bool) -> None:
    """A curve in its setting's colour and dash; grey without one."""
    colour, dash = style or (INK, "-")
    if is_thick:
        weight = {"linewidth": 1.9}
    else:
        weight = {"linewidth": 0.8, "alpha": 0.55}
    has_markers = is_thick and len(points) <= 12
    draw_curve(axes, points, has_markers, {"color": colour, "linestyle": dash, **weight})


def add_setting_legend(figure, settings: set[str], styles: dict) -> None:
    """Which line is of which setting, below a figure that grows by it; nothing in a report of one setting."""
    from matplotlib.lines import Line2D

    if len(styles) < 2:
        return
    handles = []
    for label, (colour, dash) in styles.items():
        if label in settings:
            text = shortened(label, LONGEST_LABEL)
            handles.append(Line2D([], [], color=colour, linestyle=dash, linewidth=2, label=text))
    figure.set_size_inches(figure.get_figwidth() * 1.5, figure.get_figheight() + 0.2 * len(handles))
    figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8, labelcolor=INK)
