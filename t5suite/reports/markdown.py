"""Markdown: the report for a repository or a message, and the few forms that cards are made of.

>>> print(markdown(data).splitlines()[0])
# glue: rte, cola
>>> table(["task", "points"], [["rte", "71.10"]])
['| task | points |', '|---|---|', '| rte | 71.10 |']
"""

import re
from collections.abc import Iterable, Sequence

from t5suite.base.redaction import printable
from t5suite.reports.tables import NOTHING, RATES, interval, points, short_number, significant


def table(head: Sequence[str], rows: Iterable[Sequence]) -> list[str]:
    """The lines of a table; bars and line ends in cells do not end them."""
    rule = f"|{'---|' * len(head)}"
    above, *below = [f"| {' | '.join(map(cell, line))} |" for line in [head, *rows]]
    return [above, rule, *below]


def cell(value) -> str:
    """A table's cell.

    >>> cell("a | b\\nc")
    'a \\\\| b c'
    """
    return re.sub(r"\s+", " ", str(value)).strip().replace("|", "\\|")


def code(text: str) -> str:
    """Text in a line, as it stands.

    >>> code("a `b` c")
    '`` a `b` c ``'
    """
    text = re.sub(r"\s+", " ", text).strip()
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (1 + max(map(len, re.findall("`+", text))))
    return f"{fence} {text} {fence}"


def block(language: str, lines: Iterable[str]) -> list[str]:
    """A block of code, behind a fence that its lines do not end."""
    lines = list(lines)
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    return [fence + language, *lines, fence]


def shortened(text: str, most: int = 160) -> str:
    """The beginning of a long text.

    >>> shortened("It rains.", 5)
    'It ra…'
    """
    return text if len(text) <= most else f"{text[:most]}…"


def markdown(data: dict, plots=()) -> str:
    """The whole report.

    Args:
      plots: `(title, path beside the file)` of the pictures.
    """
    lines = [f"# {escaped(data['title'])}", "", summary(data), ""]
    lines += _scores(data) + _averages(data) + _runs(data) + _curves(plots) + _confusions(data)
    for sweep in data["sweeps"]:
        lines += _sweep(sweep)
    lines += _speed(data) + _commands(data) + _method(data)
    return printable("\n".join(lines).rstrip()) + "\n"


def summary(data: dict) -> str:
    """How much there is, in one line."""
    finished = sum(run["status"] == "finished" for run in data["runs"])
    runs, settings = len(data["runs"]), len(data["settings"])
    trials = sum(len(sweep["trials"]) for sweep in data["sweeps"])
    parts = [f"{trials} trials"] if trials else []
    if runs:
        parts.append(_plural(runs, "run") + (f", {finished} finished" if finished < runs else ""))
        parts.append(_plural(settings, "setting"))
    return f"{'; '.join(parts)}. Made by t5suite {data['version']}."


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def escaped(text) -> str:
    """Text in which nothing is Markdown or HTML.

    >>> escaped("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    text = str(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "|*_`[]":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def escaped_table(header: list[str], rows: list[list]) -> list[str]:
    """A Markdown table; the first column is text, the others are numbers where they look like it."""
    cells = [[escaped(cell) for cell in row] for row in rows]
    right = [at > 0 and all(_is_number(row[at]) for row in rows) for at in range(len(header))]
    rule = ["---:" if is_right else "---" for is_right in right]
    return ["| " + " | ".join(line) + " |" for line in ([escaped(name) for name in header], rule, *cells)] + [""]


def _is_number(cell) -> bool:
    return all(letter in "0123456789.,-– " for letter in str(cell))


def _scores(data: dict) -> list[str]:
    """Every setting, task and metric; the rate of invalid answers stands beside them."""
    if not data["scores"]:
        return []
    with_settings = any(setting["label"] for setting in data["settings"])
    header = ["task", "metric", *(["setting"] if with_settings else []), "runs", "mean", "sd", "95 % interval", "over",
              "majority", "published T5 (test)", "invalid %", "rows"]  # fmt: skip
    invalid = {(e["setting"], e["benchmark"], e["task"]): e["mean"] for e in data["scores"] if e["metric"] in RATES}
    rows = []
    for entry in (entry for entry in data["scores"] if entry["metric"] not in RATES):
        published = f"{points(entry['published'])} ({entry['size']})" if entry["published"] is not None else NOTHING
        rate = invalid.get((entry["setting"], entry["benchmark"], entry["task"]))
        rows.append([
            entry["task"], entry["metric"], *([entry["setting"]] if with_settings else []), entry["n"],
            points(entry["mean"]), points(entry["std"]), interval(entry["interval"]),
            (entry["interval"] or {}).get("over", NOTHING), points(entry["majority"]), published, points(rate),
            entry["rows"] or NOTHING,
        ])  # fmt: skip
    return ["## Scores", "", "Points, 0 to 100 (nll: nats per token).", "", *escaped_table(header, rows)]


def _averages(data: dict) -> list[str]:
    if not data["averages"]:
        return []
    rows = [
        [e["suite"], e["setting"] or "–", e["n"], points(e["mean"]), points(e["std"]), interval(e["interval"]),
         points(e["published"])]
        for e in data["averages"]
    ]  # fmt: skip
    header = ["suite", "setting", "runs", "mean", "sd", "95 % interval over seeds", "published T5 (test)"]
    return ["## Suite averages", "", *escaped_table(header, rows)]


def _runs(data: dict) -> list[str]:
    rows = []
    for run in data["runs"]:
        for task, scores in run["results"].items():
            for metric, value in scores.items():
                found = run["intervals"].get(task, {}).get(metric)
                rows.append([run["name"], task, metric, points(value), interval(found), run["seed"] or "–"])
        if not run["results"]:
            rows.append([run["name"], run["dataset_name"] or "–", run["status"], "–", "–", run["seed"] or "–"])
    if not rows:
        return []
    return ["## Runs", "", *escaped_table(["run", "task", "metric", "score", "95 % interval over rows", "seed"], rows)]


def _curves(plots) -> list[str]:
    if not plots:
        return []
    return ["## Plots", "", *(f"![{escaped(title)}]({path})" for title, path in plots), ""]


def _confusions(data: dict) -> list[str]:
    lines = ["## Confusion matrices", "", "Labels down, answers across.", ""] if data["confusions"] else []
    for matrix in data["confusions"]:
        lines += [f"### {escaped(matrix['task'])}, {escaped(matrix['run'])}", ""]
        rows = [[label, *counts] for label, counts in zip(matrix["labels"], matrix["counts"])]
        lines += escaped_table(["label \\ answer", *matrix["answers"]], rows)
    return lines


def _sweep(sweep: dict) -> list[str]:
    lines = [f"## Sweep {escaped(sweep['name'])}", "", f"{escaped(sweep['method'])}, {escaped(sweep['metric'])}.", ""]
    header = ["trial", sweep["metric"], *sweep["varied"], "state", "step"]
    rows = [
        [f"{trial['number']}{' (best)' if trial['number'] == sweep['best'] else ''}", significant(trial["value"]),
         *(_shown(trial["parameters"].get(name)) for name in sweep["varied"]), trial["state"],
         trial["last_step"] or "–"]
        for trial in sweep["trials"]
    ]  # fmt: skip
    lines += escaped_table(header, rows)
    if sweep["importances"]:
        shares = [[name, f"{100 * share:.0f} %"] for name, share in sweep["importances"].items()]
        lines += escaped_table(["parameter", "share of the variance (fANOVA)"], shares)
    if sweep["command"]:
        lines += ["The best trial's command:", "", "```", sweep["command"], "```", ""]
    return lines


def _shown(value) -> str:
    return "–" if value is None else significant(value) if isinstance(value, float) else str(value)


def _speed(data: dict) -> list[str]:
    names = list(dict.fromkeys(name for run in data["runs"] for name in run["speed"]))
    if not names:
        return []
    rows = [
        [run["name"], short_number(run["model"]["parameters"]),
         *(significant((run["speed"].get(name) or {}).get("median")) for name in names)]
        for run in data["runs"]
    ]  # fmt: skip
    return [
        "## Speed and memory",
        "",
        *escaped_table(["run", "parameters", *(n.removeprefix("train/") for n in names)], rows),
    ]


def _commands(data: dict) -> list[str]:
    lines = ["## Commands", ""]
    for run in data["runs"]:
        environment = run["environment"]
        versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
        lines += [f"### {escaped(run['name'])}", "", "```", environment["command"] or "(not recorded)", "```", ""]
        lines += [escaped(versions), "", escaped(hardware_of(environment)), ""]
        lines += [f"- {escaped(note)}" for note in run["notes"]] + ([""] if run["notes"] else [])
    return lines


def hardware_of(environment: dict) -> str:
    """The machine in one line.

    >>> hardware_of({"hardware": {"platform": "Linux", "cores": 2, "gpus": ["NVIDIA H200"]}, "commit": {}})
    '2 cores, NVIDIA H200, Linux'
    """
    hardware, commit = environment["hardware"], environment["commit"].get("commit")
    cores = f"{hardware['cores']} cores" if hardware.get("cores") else ""
    gpus = ", ".join(gpu if isinstance(gpu, str) else str(gpu.get("name", gpu)) for gpu in hardware.get("gpus") or [])
    parts = [cores, gpus, hardware.get("platform"), f"commit {commit[:12]}" if commit else ""]
    return ", ".join(part for part in parts if part)


def _method(data: dict) -> list[str]:
    return ["## How these numbers were made", "", *(f"- {escaped(text)}" for text in data["method"].values()), ""]
