"""Whether the scores on a run's card are those of its `results.json`.

>>> problems_of_card(record)
['README.md: sentiment: accuracy is 99.00 on the card, and 91.40 in results.json']

A card has them twice: in the metadata for the hub, and in a table for people. People add to cards, so that what is no
score there is not judged.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from t5suite.base.hub_statements import CARD, header_of_file
from t5suite.reports.formatting import average_title, points
from t5suite.reports.run_records import RunRecord
from t5suite.reports.score_checks import is_near, nan_for_none
from t5suite.reports.units import AS_RETURNED, POINTS
from t5suite.runs.directory import RESULTS

# Points by which a number on a card may differ from one in results.json: its table has two decimals.
CARD_TOLERANCE = 0.00501


def problems_of_card(record: RunRecord) -> list[str]:
    """Scores on the card that are not those of `results.json`; a card without scores says nothing wrong."""
    path = record.folder / CARD
    if not path.is_file():
        return []
    problems = []
    for name, metric, value in [*scores_in_header(path), *scores_in_table(path)]:
        reported = reported_score(record.results, name, metric)
        number = number_on_card(value)
        is_right = None not in (number, reported) and is_near(number, reported, CARD_TOLERANCE)
        if not is_right:
            shown_value = f"{value!r:.60}" if number is None else points(number, "nan")
            score = points(reported, "none")
            problems.append(f"{CARD}: {name}: {metric} is {shown_value} on the card, and {score} in {RESULTS}")
    return list(dict.fromkeys(problems))


def number_on_card(value) -> float | None:
    """A score on a card, which may be quoted; None if it is not a number.

    >>> number_on_card("66.79"), number_on_card("**66.79**")
    (66.79, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def reported_score(results: Mapping, name: str, metric: str) -> float | None:
    """A score by its name and metric on a card; NaN where it is not defined, None where there is none."""
    if metric == "average":
        scores = {average_title(suite): average for suite, average in results["averages"].items()}
        key = name
    else:
        scores = results["tasks"].get(name, {})
        key = metric
    if key not in scores:
        return None
    return nan_for_none(scores[key])


def scores_in_header(path: Path) -> Iterator[tuple[str, str, object]]:
    """`(task, metric, value)` of the hub's metadata in a card; what is no table there is no score."""
    for model in tables_in(header_of_file(path).get("model-index")):
        for result in tables_in(model.get("results")):
            task = result.get("task")
            name = task.get("name") if isinstance(task, Mapping) else task
            for metric in tables_in(result.get("metrics")):
                title = str(metric.get("name") or metric.get("type"))
                if metric.get("value") is not None:
                    yield str(name), title.partition(" (")[0], metric["value"]


def tables_in(value) -> list[Mapping]:
    """The tables in a list; none in what is no list.

    >>> tables_in([{"name": "rte"}, "rte"]), tables_in("rte")
    ([{'name': 'rte'}], [])
    """
    if not isinstance(value, list):
        return []
    return [part for part in value if isinstance(part, Mapping)]


def scores_in_table(path: Path) -> Iterator[tuple[str, str, str]]:
    """`(task, metric, value)` of the table of scores in a card, whose values have two decimals or more."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 6 and cells[5] in (POINTS, AS_RETURNED):
            yield cells[0], cells[3], cells[4]
