"""What the README shows of the demo: curves and report page, light and dark, and the table, all from the same runs.

t5suite demo && python -m docs.builders.demo_picture runs/demo

The table goes to docs/images/demo.txt, from which `python -m docs.builders` writes the README's, and into the pictures
of the curves. The report page is taken by Chromium.
"""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

from matplotlib.figure import Figure

from t5suite.base.terminal import Terminal
from t5suite.commands.demo import DEMO, baselines, score_table
from t5suite.tasks.registry import load_task

README = Path(__file__).resolve().parent.parent.parent / "README.md"
# The table's lines, after a line of heads in a block of their own.
README_TABLE = re.compile(r"(Scores are points, 100 is best:\n\n```\n).*?(```)", re.S)
IMAGES = Path(__file__).resolve().parent.parent / "images"
TABLE = IMAGES / "demo.txt"
# Chromium's numbers of the schemes that a page may ask for.
SCHEMES = {"dark": 0, "light": 1}
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


def shown_table(folder: Path) -> str:
    """The demo's table as the terminal shows it."""
    console = Terminal(width=100, file=io.StringIO())
    console.print(score_table(str(folder)))
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


def readme() -> str:
    """The README with the table of docs/images/demo.txt."""
    text = README.read_text(encoding="utf-8")
    table = TABLE.read_text(encoding="utf-8")
    return README_TABLE.sub(lambda match: f"{match[1]}{table}{match[2]}", text)


def picture_page(page: Path, theme: str) -> None:
    """A picture of the top of the report page."""
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1280,860"]
    scheme = f"--blink-settings=preferredColorScheme={SCHEMES[theme]}"
    target = f"--screenshot={IMAGES / f'report_{theme}.png'}"
    subprocess.run(["chromium", *options, scheme, target, page.resolve().as_uri()], check=True)


def main(folder: Path) -> None:
    """Draws and writes everything."""
    table = shown_table(folder)
    TABLE.write_text(table, encoding="utf-8")
    for theme in THEMES:
        metadata = {"Description": table}
        drawn(folder, theme).savefig(IMAGES / f"demo_{theme}.png", metadata=metadata)
        picture_page(folder / "report" / "report.html", theme)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
