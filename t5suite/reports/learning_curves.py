"""Learning curves: losses and scores over the updates, of a run for its card, and of several runs for a report.

>>> write_learning_curves("runs/glue-rte-t5-small")
PosixPath('runs/glue-rte-t5-small/learning_curves.png')
>>> [panel["title"] for panel in curve_panels(data)]
['rte: accuracy', 'rte: training loss']
"""

from pathlib import Path
from typing import NamedTuple

from t5suite.base.files import whole_file
from t5suite.reports.formatting import shortened
from t5suite.reports.plot_style import COLOURS, DASHES, INK, literal, use_ink
from t5suite.reports.run_facts import curves_of
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
# In the order of a report.
POINTS, PERCENT, NATS = UNITS = ("points", "%", "nats per token")
LONGEST_LABEL = 60


class Curve(NamedTuple):
    """What a logged value is the curve of.

    Attributes:
      task: empty if the run has one task, and for training.
      title: what it is called.
      unit: one of UNITS.
    """

    task: str
    title: str
    unit: str


def curve_of_metric(name: str, logged) -> Curve | None:
    """The curve of a logged value; None if it is not worth one.

    >>> curve_of_metric("eval/rte/accuracy", ()), curve_of_metric("eval/runtime", ())
    (Curve(task='rte', title='accuracy', unit='points'), None)
    >>> curve_of_metric("eval/loss", ())
    Curve(task='', title='held-out loss', unit='nats per token')

    Args:
      logged: the names of all values.
    """
    if name == "train/loss":
        return Curve("", "training loss", NATS)
    section, *task, metric = name.split("/")
    is_same_as_nll = metric == "loss" and "eval/nll" in logged
    if section != "eval" or metric in NO_SCORES or is_same_as_nll:
        return None
    if metric in LOSSES:
        return Curve("/".join(task), LOSSES[metric], NATS)
    if metric in SHARES:
        return Curve("/".join(task), SHARES[metric], PERCENT)
    return Curve("/".join(task), metric, POINTS)


def write_learning_curves(directory, title: str = "") -> Path | None:
    """Draws a run's losses and scores over the updates, side by side, into its folder; None without a curve."""
    panels = card_panels(curves_of(list(thinned_lines(Path(directory, METRICS)))))
    if not any(len(points) > 1 for lines in panels.values() for points in lines.values()):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = 4.5 * len(panels) if len(panels) > 1 else 7
    figure = Figure(figsize=(width, 3.6), dpi=120, layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (unit, lines) in zip(all_axes, panels.items(), strict=True):
        draw_card_panel(axes, unit, lines)
    path = Path(directory, LEARNING_CURVES)
    figure.suptitle(literal(title or path.parent.name), fontsize=10)
    with whole_file(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


def card_panels(logged: dict[str, list]) -> dict[str, dict[str, list]]:
    """`{unit: {label: points}}` of the losses, then of the scores."""
    panels: dict[str, dict[str, list]] = {NATS: {}, POINTS: {}}
    for name, points in logged.items():
        curve = curve_of_metric(name, logged)
        if curve and curve.unit in panels:
            panels[curve.unit][f"{curve.task} {curve.title}".strip()] = points
    panels[POINTS] = readable_scores(panels[POINTS])
    return {unit: lines for unit, lines in panels.items() if lines}


def readable_scores(scores: dict[str, list]) -> dict[str, list]:
    """Of many scores the average alone; of one task, which is its own average, the scores without it."""
    average = {label: points for label, points in scores.items() if label == "average"}
    task_scores = {label: points for label, points in scores.items() if label != "average"}
    if len(task_scores) > MOST_SCORES:
        return average
    is_one_task = not any(" " in label for label in task_scores)
    return task_scores if task_scores and is_one_task else scores


def draw_card_panel(axes, unit: str, lines: dict[str, list]) -> None:
    """The curves of one unit."""
    for number, (label, points) in enumerate(lines.items()):
        axes.plot(
            *zip(*points, strict=True),
            label=label,
            marker="o" if len(points) <= 30 else "",
            markersize=3,
            linewidth=1.4,
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number % len(DASHES)],
        )
    axes.set(xlabel="update", ylabel=unit)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def curve_panels(data: dict) -> list[dict]:
    """The learning curves: `[{"name", "title", "unit", "lines": [...], "means": {setting: points}}]`.

    A line is `{"run", "setting", "points", "finished"}`; a single point is not a curve. Shares of answers have a curve
    if they are ever above 0.
    """
    lines_of_curve: dict[Curve, list[dict]] = {}
    for run in data["runs"]:
        for curve, points in curves_of_run(run):
            line = {"run": run["name"], "setting": run["setting"], "points": points}
            line["finished"] = run["status"] == "finished"
            lines_of_curve.setdefault(curve, []).append(line)
    tasks = list(dict.fromkeys(curve.task for curve in lines_of_curve))
    ordered = sorted(lines_of_curve, key=lambda curve: (tasks.index(curve.task), UNITS.index(curve.unit)))
    panels = []
    for curve in ordered[:MOST_CURVES]:
        lines = lines_of_curve[curve]
        if any(len(line["points"]) > 1 for line in lines):
            panels.append(
                {
                    "name": f"curve-{curve.task}-{curve.title}",
                    "title": f"{curve.task}: {curve.title}",
                    "unit": curve.unit,
                    "lines": lines,
                    "means": seed_means(lines),
                }
            )
    return panels


def curves_of_run(run: dict) -> list[tuple[Curve, list]]:
    """A run's curves with their points, its task's name in each; averages have none."""
    task = str(run["dataset_name"]) if run["benchmark"] else "pre-training"
    curves = []
    for name, points in run["curves"].items():
        curve = curve_of_metric(name, run["curves"])
        if curve is None or curve.title == "average" or _is_zero_share(curve, points):
            continue
        curves.append((curve._replace(task=curve.task or task), points))
    return curves


def _is_zero_share(curve: Curve, points: list) -> bool:
    return curve.unit == PERCENT and not any(value > 0 for _, value in points)


def seed_means(lines: list[dict]) -> dict[str, list]:
    """`{setting: points}`: the mean over a setting's finished runs, if there are several, where all logged."""
    means = {}
    for setting in dict.fromkeys(line["setting"] for line in lines):
        of_setting = [line for line in lines if line["setting"] == setting]
        seeds = [dict(line["points"]) for line in of_setting if line["finished"]]
        updates = sorted(set.intersection(*map(set, seeds))) if len(seeds) > 1 else []
        if updates:
            means[setting] = [[update, sum(values[update] for values in seeds) / len(seeds)] for update in updates]
    return means


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
    axes.set_xlabel("update", fontsize=9)
    axes.set_ylabel(panel["unit"], fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    use_ink(axes)
    add_setting_legend(figure, {line["setting"] for line in panel["lines"]}, styles)


def draw_line(axes, points: list, style: tuple | None, is_thick: bool) -> None:
    """A curve in its setting's colour and dash; grey without one."""
    colour, dash = style or (INK, "-")
    weight = {"linewidth": 1.9} if is_thick else {"linewidth": 0.8, "alpha": 0.55}
    has_markers = len(points) == 1 or (len(points) <= 12 and is_thick)
    marker = "o" if has_markers else ""
    axes.plot(*zip(*points, strict=True), color=colour, linestyle=dash, marker=marker, markersize=3, **weight)


def add_setting_legend(figure, settings: set[str], styles: dict) -> None:
    """Which line is of which setting, below a figure that grows by it; nothing for one setting."""
    from matplotlib.lines import Line2D

    if len(settings) < 2:
        return
    handles = [
        Line2D([], [], color=colour, linestyle=dash, linewidth=2, label=shortened(label, LONGEST_LABEL))
        for label, (colour, dash) in styles.items()
        if label in settings
    ]
    figure.set_size_inches(figure.get_figwidth() * 1.5, figure.get_figheight() + 0.2 * len(handles))
    figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8, labelcolor=INK)
