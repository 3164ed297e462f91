"""The README's picture, light and dark: what the demo's three runs learned, from their own files.

t5suite demo && python -m docs.builders.demo_picture runs/demo
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

from t5suite.commands.demo import DEMO, baselines
from t5suite.tasks.registry import load_task

IMAGES = Path(__file__).resolve().parent.parent / "images"
# Ground, text, lines of the axes, the model, its baselines.
THEMES = {
    "light": ("#ffffff", "#1f2328", "#d1d9e0", "#0550ae", "#818b98"),
    "dark": ("#0d1117", "#f0f6fc", "#3d444d", "#4493f8", "#9198a1"),
}


def drawn(folder: Path, theme: str) -> Figure:
    """One panel a task: its score at every evaluation, with the most frequent answer and a bag of words."""
    ground, text, axis, model, others = THEMES[theme]
    figure = Figure(figsize=(10, 3.2), dpi=160, facecolor=ground, layout="constrained")
    for axes, name in zip(figure.subplots(1, len(DEMO), sharey=True), DEMO):
        task = load_task("mini", name)
        metric = next(iter(task.entry["metric_names"]))
        lines = map(json.loads, (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        points = [(line["step"], line[f"eval/{metric}"]) for line in lines if f"eval/{metric}" in line]
        steps, scores = zip(*points)
        axes.plot(steps, scores, color=model, linewidth=2.2, marker="o", markersize=4)
        axes.annotate(f"{scores[-1]:.1f}", points[-1], (-4, 6), textcoords="offset points", ha="right", color=model)
        lines = (("most frequent answer", ":", -11), ("bag of words", "--", 3))
        for (word, style, away), found in zip(lines, baselines(task)):
            if found[metric] == found[metric]:
                axes.axhline(found[metric], color=others, linestyle=style, linewidth=1.2)
                axes.annotate(word, (0.99, found[metric]), (0, away), xycoords=("axes fraction", "data"),
                              textcoords="offset points", ha="right", color=others, fontsize=8)  # fmt: skip
        axes.set_title(f"{name}: {metric}", color=text, fontsize=11)
        axes.set(ylim=(0, 105), xlim=(0, None), xlabel="updates", facecolor=ground)
        axes.xaxis.label.set_color(text)
        axes.tick_params(colors=text)
        axes.grid(axis="y", color=axis, linewidth=0.6)
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_color(axis if side in ("left", "bottom") else "none")
    return figure


if __name__ == "__main__":
    for theme in THEMES:
        drawn(Path(sys.argv[1]), theme).savefig(IMAGES / f"demo_{theme}.png")
