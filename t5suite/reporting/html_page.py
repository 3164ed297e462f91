"""The report data as one HTML file that needs nothing else: styles, script, plots and numbers are inside.

>>> page = html_page(data, plots, {plot.name: render(plot) for plot in plots})
>>> page.startswith("<!doctype html>"), "http://" in page.replace("http://www.w3.org/", "")
(True, False)

A Content-Security-Policy in the page allows exactly its own style and script, by their hashes, and no network at all.
Texts of the data are escaped wherever they stand; examples are put into the page as text, never as HTML. Without
scripts everything can be read but the examples.
"""

import base64
import hashlib
import json
from pathlib import Path

from t5suite.reporting import html_tables as tables
from t5suite.reporting.confusion_svg import confusion_picture
from t5suite.reporting.figures import COLOURS, Plot, colours_of
from t5suite.reporting.html_parts import Markup, element, embedded_json
from t5suite.reporting.inline_svg import inline
from t5suite.reporting.markdown import hardware_of, summary


def html_page(data: dict, plots: list[Plot], rendered: dict[str, dict[str, bytes]]) -> str:
    """The whole page.

    Args:
      rendered: plot's name -> what `figures.render` made of it.
    """
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = [section for section in _sections(data, _Figures(plots, rendered)) if section is not None]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{data['title']} · t5suite report"),
        element("style", Markup(style)),
    )
    body = element(
        "body",
        element("a", "Skip to the scores", href="#main", class_="skip"),
        _header(data),
        element(
            "nav",
            [element("a", IN_NAV.get(title, title), href=f"#{id_}") for id_, title, _ in sections],
            aria_label="Sections",
        ),
        element("main", [_section(*section) for section in sections], id="main", tabindex="-1"),
        element("footer", f"Made by t5suite {data['version']}. ", "Everything on this page is inside this file."),
        embedded_json(data, "report-data"),
        element("script", Markup(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """A CSP source expression."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


def _header(data: dict) -> Markup:
    buttons = [
        element("button", word, type="button", data_theme_choice=word.lower(), aria_pressed=str(word == "Auto").lower())
        for word in ("Auto", "Light", "Dark")
    ]
    theme = element("div", buttons, class_="theme", role="group", aria_label="Colours", hidden=True)
    title = element("div", element("h1", data["title"]), element("p", summary(data)))
    return element("header", title, theme)


def _section(id_: str, title: str, content) -> Markup:
    return element("section", element("h2", title, id=f"{id_}-title"), content, id=id_, aria_labelledby=f"{id_}-title")


class _Figures:
    """The plots by section, as elements."""

    def __init__(self, plots: list[Plot], rendered: dict[str, dict[str, bytes]]):
        self.plots, self.rendered = plots, rendered

    def of(self, section: str, title: str = "", wide: bool = False) -> list[Markup]:
        """Those of a section whose title begins so."""
        mine = [plot for plot in self.plots if plot.section == section and plot.title.startswith(title)]
        return [_figure(plot, self.rendered[plot.name]["inline"], wide) for plot in mine]


def _sections(data: dict, figures: _Figures) -> list:
    """`(id, title, content)` of each section that there is something for."""
    curves = figures.of("curves")
    speed = tables.speed_table(data)
    groups = tables.groups_tables(data)
    return [
        ("scores", "Scores", [_scores_key(data), tables.scores_table(data), tables.score_words(data)])
        if data["scores"]
        else None,
        ("averages", "Suite averages", tables.averages_table(data)) if data["averages"] else None,
        *(_sweep_section(at, sweep, figures) for at, sweep in enumerate(data["sweeps"])),
        ("curves", "Learning curves", _curves(data, curves)) if curves else None,
        ("runs", "Runs", [tables.runs_table(data), tables.run_words(data)]) if data["runs"] else None,
        ("parts", "Parts of tasks", groups) if groups else None,
        ("confusions", "Confusion matrices", _confusions(data)) if data["confusions"] else None,
        ("examples", "Examples", _examples(data)) if data["examples"] else None,
        ("speed", "Speed and memory", [speed, _para(data["method"]["speed"])]) if speed else None,
        ("commands", "Commands and environment", _commands(data)) if data["runs"] else None,
        ("method", "How these numbers were made", _method(data)),
    ]


def _para(text: str) -> Markup:
    return element("p", text, class_="note")


def _scores(data: dict) -> list:
    return [_scores_key(data), tables.scores_table(data), tables.score_words(data)]


def _scores_key(data: dict) -> Markup:
    """What the small pictures show."""
    draw = lambda inner: element("svg", inner, viewBox="0 0 16 16", class_="key", aria_hidden="true")
    mean = [element("line", x1=0, x2=16, y1=8, y2=8, class_="range"), element("circle", cx=8, cy=8, r=4, class_="mean")]
    keys = [(mean, "mean and 95 % interval")]
    if any(entry["majority"] is not None for entry in data["scores"]):
        keys.append((element("line", x1=8, x2=8, y1=2, y2=14, class_="majority"), "majority label"))
    if any(entry["published"] is not None for entry in data["scores"]):
        keys.append((element("path", d="M8 3L13 8L8 13L3 8Z", class_="published"), "published T5 (test set)"))
    said = [element("span", draw(inner), words) for inner, words in keys]
    return element("p", said, " Hold the pointer over a number for all of its digits.", class_="note keys")


def _curves(data: dict, figures: list[Markup]) -> list:
    colours = colours_of(data)
    several = len(data["settings"]) > 1
    keys = [
        element("li", element("span", _dash(at), class_=f"swatch s{at + 1}"), label)
        for label, (at, _, _) in colours.items()
    ]
    others = len(data["settings"]) - len(colours)
    if others:
        keys.append(element("li", element("span", _dash(0), class_="swatch grey"), f"{others} others"))
    seeds = any(len(setting["runs"]) > 1 for setting in data["settings"])
    note = "Thin lines are runs, thick ones the mean of a setting's finished runs." if seeds else "Each line is a run."
    return [
        _para(f"{note} Every point is a line of metrics.jsonl."),
        element("ul", keys, class_="legend") if several else None,
        element("div", figures, class_="panels"),
    ]


def _dash(at: int) -> Markup:
    """A piece of line as the plots draw it."""
    dashes = (None, "6 3", "6 2 1.5 2", "1.5 2", "8 2", "4 1.5 1.5 1.5", "1.5 1.5")
    line = element("line", x1=0, x2=28, y1=5, y2=5, stroke="currentColor", stroke_width=3, stroke_dasharray=dashes[at])
    return element("svg", line, viewBox="0 0 28 10", aria_hidden="true")


def _figure(plot: Plot, svg: bytes, wide: bool = False) -> Markup:
    svg = inline(svg, plot.title, plot.name, themed=plot.ink)
    frame = element("div", Markup(svg), class_="plot" if plot.ink else "plot drawn", tabindex="0" if wide else None)
    said = [element("b", plot.title.rpartition(": ")[2]), f" plots/{plot.name}.svg, .png"]
    caption = element("figcaption", said) if wide else None
    return element("figure", frame, caption, class_="wide" if wide else None)


def _confusions(data: dict) -> Markup:
    made = [_confusion(matrix) for matrix in data["confusions"]]
    shown, others = made[:MOST_OPEN], made[MOST_OPEN:]
    more = element("summary", f"{len(others)} more")
    folded = element("details", more, element("div", others, class_="matrices"), class_="more-matrices")
    return element("div", shown, folded if others else None, class_="matrices")


def _confusion(matrix: dict) -> Markup:
    """The picture, and its numbers as a table for those who want them so."""
    picture = element("div", confusion_picture(matrix), class_="plot", tabindex="0", role="group")
    rows = element("details", element("summary", "as a table"), tables.confusion_table(matrix))
    return element("figure", element("figcaption", f"{matrix['task']}, {matrix['run']}"), picture, rows)


def _sweep_section(at: int, sweep: dict, figures: _Figures):
    mine = figures.of("sweeps", f"{sweep['name']}: ", wide=True)
    content = [
        _para(f"{sweep['method']}, {sweep['goal']} {sweep['metric']}, {len(sweep['trials'])} trials."),
        tables.trials_table(sweep),
        [_para(note) for note in sweep["notes"]],
        element("div", mine, class_="wides"),
        [element("h3", f"The best trial's command (trial {sweep['best']})"), _code(sweep["command"])]
        if sweep["command"]
        else None,
    ]
    return f"sweep-{at + 1}", f"Sweep {sweep['name']}", content


def _examples(data: dict) -> list:
    runs = list(dict.fromkeys(part["run"] for part in data["examples"]))
    tasks = list(dict.fromkeys(part["task"] for part in data["examples"]))
    shown = sum(part["shown"] for part in data["examples"])
    total = sum(part["total"] for part in data["examples"])
    verdicts = list(dict.fromkeys(verdict for part in data["examples"] for verdict in part["verdicts"]))
    said = f"{shown:,} of {total:,} answers are in this page" if shown < total else f"All {total:,} answers"
    kinds = "; invalid and wrong ones come first." if shown < total else "."
    controls = [
        _select("filter-task", "Task", tasks),
        _select("filter-run", "Run", runs),
        _select("filter-verdict", "Verdict", verdicts),
        element("label", "Text ", element("input", type="search", id="filter-text", placeholder="in input or answer")),
    ]
    without = [
        f"{part['run']}, {part['task']}, without texts: {part['note']}" for part in data["examples"] if part["note"]
    ]
    return [
        _para(said + kinds + " predictions/ in the run's directory has them all."),
        *map(_para, without),
        element("div", controls, class_="filters", role="search", aria_label="Filter examples"),
        element("p", "", id="examples-count", class_="note", role="status", aria_live="polite"),
        element("ol", id="examples-list", class_="examples"),
        element("button", "Show more", type="button", id="examples-more", class_="more", hidden=True),
        element("noscript", element("p", "Examples are filtered by a script, which this browser does not run.")),
    ]


def _select(id_: str, label: str, choices: list[str]) -> Markup:
    options = [element("option", "all", value=""), *(element("option", c, value=c) for c in choices)]
    return element("label", f"{label} ", element("select", options, id=id_))


def _code(text: str) -> Markup:
    copy = element("button", "Copy", type="button", class_="copy", hidden=True)
    return element("div", copy, element("pre", element("code", text), tabindex="0"), class_="code")


def _commands(data: dict) -> list:
    return [_run_details(run, is_open=len(data["runs"]) <= 2) for run in data["runs"]]


def _run_details(run: dict, is_open: bool) -> Markup:
    environment = run["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    model = run["model"]
    facts = {
        "Status": run["status"],
        "Model": ", ".join(filter(None, [model["name"], model["class"]])),
        "Adapter": json.dumps(model["adapter"]) if model["adapter"] else None,
        "Machine": hardware_of(environment),
        "Versions": versions,
        "Started": environment["started"],
        "Finished": environment["finished"],
        "Directory": run["directory"],
        "Notes": "; ".join(run["notes"]),
    }
    rows = [[element("dt", name), element("dd", value)] for name, value in facts.items() if value]
    settings = {name: value for name, value in run["settings"].items() if value not in (None, False, [], {}, "")}
    given = element("details", element("summary", f"{len(settings)} settings"), _code(json.dumps(settings, indent=1)))
    summary_line = element("summary", element("b", run["name"]), f" {run['setting']}" if run["setting"] else "")
    return element(
        "details", summary_line, _code(environment["command"] or "(not recorded)"), element("dl", rows), given,
        open=is_open or None, class_="run",
    )  # fmt: skip


def _method(data: dict) -> Markup:
    names = {"interval": "Intervals", "std": "Standard deviation", "majority": "Majority baseline",
             "published": "Published scores", "speed": "Speed"}  # fmt: skip
    rows = [[element("dt", names.get(name, name)), element("dd", text)] for name, text in data["method"].items()]
    return element("dl", rows)


# Confusion matrices that are not folded away.
MOST_OPEN = 12
# Shorter words for the bar at the top.
IN_NAV = {
    "Suite averages": "Averages",
    "Learning curves": "Curves",
    "Confusion matrices": "Confusions",
    "Speed and memory": "Speed",
    "Commands and environment": "Commands",
    "How these numbers were made": "Method",
}
assert len(COLOURS) == 7, "page.css has a variable for each colour, and `_dash` a dash"
