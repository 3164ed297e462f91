"""A report as Markdown: every section; of the answers in the page, those that are not right.

>>> print(report_as_markdown(data, plots, "plots"))
# runs/rte

- average glue: **77.4**
...
"""

from t5suite.base.redaction import printable
from t5suite.reports.markdown import block, escaped, escaped_table
from t5suite.reports.page_parts import Cell, Part, Section, Table
from t5suite.reports.plots import Plot
from t5suite.reports.sections import headline, sections_of, summary_line


def report_as_markdown(data: dict, plots: list[Plot], plots_folder: str) -> str:
    """The whole report, except right answers; `plots_folder` has the plots' files."""
    lines = [f"# {escaped(data['title'])}", ""]
    lines += [f"- {escaped(name)}: **{escaped(text)}**" for name, text in headline(data)]
    lines += ["", summary_line(data), ""]
    for section in sections_of(data, plots):
        lines += [f"## {escaped(section.title)}", ""]
        for part in section.parts:
            lines += _lines_of_part(part, section, plots_folder)
    return printable("\n".join(lines).rstrip()) + "\n"


def _lines_of_part(part: Part, section: Section, plots_folder: str) -> list[str]:
    match part.kind:
        case "note":
            return [escaped(part.content), ""]
        case "table":
            return _lines_of_table(part.content, section)
        case "plots":
            pictures = [f"![{escaped(plot.title)}]({plots_folder}/{plot.name}.png)" for plot in part.content]
            return [*pictures, ""]
        case "code":
            return [part.title, "", *block("", [part.content]), ""]
        case "facts":
            return _lines_of_facts(part.content)
        case "examples":
            return _lines_of_examples(part)
        case "run":
            title = f"### {escaped(part.title)}"
            command = block("", [part.content["command"]])
            return [title, "", *command, "", *_lines_of_facts(part.content["facts"])]
        case _:
            return []


def _lines_of_table(table: Table, section: Section) -> list[str]:
    lines = []
    if table.caption != section.title:
        lines += [f"**{escaped(table.caption)}**", ""]
    headers = [column.header for column in table.columns]
    rows = [_texts_of_row(row) for row in table.rows]
    return lines + escaped_table(headers, rows)


def _lines_of_examples(part: Part) -> list[str]:
    """The answers of one run to one task that are not right, if there are any."""
    listed = [example for example in part.content["examples"] if example["verdict"] not in ("right", "unlabelled")]
    if not listed:
        return []
    rows = [[example[name] or "" for name in ("where", "inputs", "target", "prediction")] for example in listed]
    return [f"**{escaped(part.title)}**", "", *escaped_table(["row", "text", "target", "answer"], rows)]


def _texts_of_row(row: list[Cell]) -> list[str]:
    return [f"{cell.text}{cell.small}" for cell in row]


def _lines_of_facts(facts: list[tuple[str, str]]) -> list[str]:
    if not facts:
        return []
    lines = [f"- {escaped(name)}: {escaped(text)}" for name, text in facts]
    return [*lines, ""]
