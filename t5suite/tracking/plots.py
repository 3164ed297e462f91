"""Plots of a run, from its own `metrics.jsonl`.

>>> loss_curve("runs/pre_train-tiny")
PosixPath('runs/pre_train-tiny/loss_curve.png')
"""

import os
from pathlib import Path

from t5suite.data.jsonl import read_jsonl

LOSS_CURVE = "loss_curve.png"
# name in metrics.jsonl -> label, colour (two that colour-blind readers tell apart), form
CURVES = {
    "train/loss": ("training loss", "#0072B2", {"linewidth": 1.2}),
    "eval/nll": ("held-out NLL", "#D55E00", {"linewidth": 1.5, "marker": "o", "markersize": 3}),
}


def loss_curve(directory, title: str = "") -> Path | None:
    """Draws training loss and held-out NLL over the steps into `loss_curve.png`; None where nothing was logged yet."""
    directory = Path(directory)
    path = directory / "metrics.jsonl"
    lines = list(read_jsonl(path)) if path.is_file() else []
    curves = {name: [(line["step"], line[name]) for line in lines if line.get(name) is not None] for name in CURVES}
    if not any(curves.values()):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for name, points in curves.items():
        if points:
            label, colour, form = CURVES[name]
            axes.plot(*zip(*points), label=f"{label} (last: {points[-1][1]:.3f})", color=colour, **form)
    axes.set_xlabel("update")
    axes.set_ylabel("nats per target token")
    axes.set_title(title or directory.name, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    temporary = directory / f".{LOSS_CURVE}.tmp"
    FigureCanvasAgg(figure).print_png(str(temporary))
    os.replace(temporary, directory / LOSS_CURVE)
    return directory / LOSS_CURVE
