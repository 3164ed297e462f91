"""Which learning curves stand together: one panel a task and metric, the seeds of each setting as lines in it.

>>> [(panel["title"], [line["setting"] for line in panel["lines"]]) for panel in panels_of(data)]
[('rte: accuracy', ['', '']), ('rte: training loss', ['', ''])]
"""

# What is logged beside the scores and says nothing that a curve would show.
LEFT_OUT = (
    "average",
    "perplexity",
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "gender_parity",
)
MOST_PANELS = 60
# Shares of answers in percent, which say nothing as long as they are 0 in every run.
SHARES = {"invalid_rate": "invalid answers", "truncated_rate": "answers cut off"}
LOSSES = ("loss", "nll")


def panels_of(data: dict) -> list[dict]:
    """`[{"name", "title", "unit", "lines": [{"run", "setting", "finished", "points"}], "means": {setting: points}}]`.

    The mean stands at the steps that all finished runs of a setting logged, and only where there are several.
    """
    found: dict[tuple[str, str], list] = {}
    for run in data["runs"]:
        for name, points in run["curves"].items():
            place = _place(name, run)
            if place is not None:
                finished = run["status"] == "finished"
                line = {"run": run["name"], "setting": run["setting"], "finished": finished, "points": points}
                found.setdefault(place, []).append(line)
    found = {place: lines for place, lines in found.items() if place[1] not in SHARES.values() or _ever_above_0(lines)}
    panels = [
        {
            "name": "curve-" + "-".join(part.replace("/", "-").replace(" ", "-") for part in place if part),
            "title": f"{place[0]}: {place[1]}" if place[0] else place[1],
            "unit": unit_of(place[1]),
            "lines": lines,
            "means": means_of(lines),
        }
        for place, lines in found.items()
    ]
    order = list(dict.fromkeys(place[0] for place in found))
    places = {id(panel): place for panel, place in zip(panels, found)}
    panels.sort(key=lambda panel: (order.index(places[id(panel)][0]), _rank(places[id(panel)][1])))
    return panels[:MOST_PANELS]


def _rank(metric: str) -> int:
    """Scores first, then shares of answers, then losses."""
    return 2 if "loss" in metric else int(metric in SHARES.values())


def _ever_above_0(lines: list[dict]) -> bool:
    return any(value > 0 for line in lines for _, value in line["points"])


def _place(name: str, run: dict) -> tuple[str, str] | None:
    """`(task, metric)` of a logged name; None for what is no learning curve."""
    parts = name.split("/")
    task = run["dataset_name"] if run["benchmark"] else "pre-training"
    if parts[0] == "train":
        return (str(task), "training loss") if parts[1:] == ["loss"] else None
    if parts[0] != "eval" or parts[-1] in LEFT_OUT:
        return None
    leaf = "held-out loss" if parts[-1] == "loss" else SHARES.get(parts[-1], parts[-1])
    if len(parts) == 3:
        return parts[1], leaf
    # A pre-training run's loss is its nll.
    return None if leaf == "held-out loss" and "eval/nll" in run["curves"] else (str(task), leaf)


def unit_of(metric: str) -> str:
    """What an axis counts in.

    >>> unit_of("accuracy"), unit_of("training loss"), unit_of("answers cut off")
    ('points', 'nats per token', '%')
    """
    if metric in SHARES.values():
        return "%"
    return "nats per token" if any(word in metric for word in LOSSES) else "points"


def means_of(lines: list[dict]) -> dict[str, list]:
    """`{setting: [[step, mean], ...]}` of settings that have several finished runs: those that the tables average."""
    means = {}
    for setting in dict.fromkeys(line["setting"] for line in lines):
        seeds = [dict(map(tuple, line["points"])) for line in lines if line["setting"] == setting and line["finished"]]
        steps = sorted(set.intersection(*(set(points) for points in seeds))) if len(seeds) > 1 else []
        if steps:
            means[setting] = [[step, sum(points[step] for points in seeds) / len(seeds)] for step in steps]
    return means


def shown_settings(data: dict, most: int) -> list[str]:
    """The settings that have a colour of their own: all, or those with the best mean score where there are too many."""
    labels = [setting["label"] for setting in data["settings"]]
    if len(labels) <= most:
        return labels
    best: dict[str, list] = {label: [] for label in labels}
    for entry in data["scores"]:
        if entry["metric"] != "invalid_rate" and entry["mean"] is not None:
            best[entry["setting"]].append(entry["mean"])
    mean = {label: sum(values) / len(values) if values else float("-inf") for label, values in best.items()}
    chosen = sorted(labels, key=lambda label: -mean[label])[: most - 1]
    return [label for label in labels if label in chosen]
