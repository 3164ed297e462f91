"""Plots of a run, from its own `metrics.jsonl`.

>>> loss_curve("runs/pre_train-tiny")
PosixPath('runs/pre_train-tiny/loss_curve.png')
>>> learning_curves("runs/glue-rte-t5-small")
PosixPath('runs/glue-rte-t5-small/learning_curves.png')
"""

from pathlib import Path

from t5suite.base.files import whole_file
from t5suite.tracking.metric_lines import thinned_lines

LOSS_CURVE, LEARNING_CURVES = "loss_curve.png", "learning_curves.png"
# name in metrics.jsonl -> label, colour (two that colour-blind readers tell apart), form
CURVES = {
    "train/loss": ("training loss", "#0072B2", {"linewidth": 1.2}),
    "eval/nll": ("held-out NLL", "#D55E00", {"linewidth": 1.5, "marker": "o", "markersize": 3}),
}
# Okabe and Ito's, for lines that are told apart by their dashes besides.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", "--", "-.", ":")
# Of a mixture with more scores than this the average alone is drawn.
MOST_SCORES = 10
NO_SCORES = ("loss", "invalid_rate", "truncated_rate", "runtime", "samples_per_second", "steps_per_second")


def loss_curve(directory, title: str = "") -> Path | None:
    """Draws training loss and held-out NLL over the steps into `loss_curve.png`; None where nothing was logged yet."""
    directory = Path(directory)
    curves = _curves(directory)
    if not any(name in curves for name in CURVES):
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for name, (label, colour, form) in CURVES.items():
        if name in curves:
            points = curves[name]
            axes.plot(*zip(*points), label=f"{label} (last: {points[-1][1]:.3f})", color=colour, **form)
    _finish(axes, "nats per target token")
    axes.set_title(title or directory.name, fontsize=10)
    return _saved(figure, directory / LOSS_CURVE)


def learning_curves(directory, title: str = "") -> Path | None:
    """Draws losses and scores over the steps, side by side, into `learning_curves.png`.

    Returns:
      None where no curve has two points, which would be no curve.
    """
    directory = Path(directory)
    curves = _curves(directory)
    losses = {name: points for name, points in curves.items() if name == "train/loss" or _is(name, ("loss",))}
    scores = shown_scores(curves)
    if not any(len(points) > 1 for part in (losses, scores) for points in part.values()):
        return None
    from matplotlib.figure import Figure

    parts = [(losses, "nats per target token"), (scores, "points")]
    parts = [(lines, unit) for lines, unit in parts if lines]
    figure = Figure(figsize=(4.5 * len(parts), 3.4), dpi=110, layout="constrained")
    for axes, (lines, unit) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts):
        for at, (name, points) in enumerate(lines.items()):
            form = {"color": COLOURS[at % len(COLOURS)], "linestyle": DASHES[at % len(DASHES)]}
            marker = "o" if len(points) <= 30 else ""
            axes.plot(*zip(*points), label=_label(name), marker=marker, markersize=3, linewidth=1.4, **form)
        _finish(axes, unit)
    figure.suptitle((title or directory.name).replace("$", r"\$"), fontsize=10)
    return _saved(figure, directory / LEARNING_CURVES)


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


def _finish(axes, unit: str) -> None:
    axes.set_xlabel("update")
    axes.set_ylabel(unit)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def _saved(figure, path: Path) -> Path:
    """Writes through a temporary sibling, without a display and without global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with whole_file(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path
