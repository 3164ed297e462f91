"""Whether the numbers in `results.json` follow from the recorded answers: scores, their groups, averages.

>>> problems_of_scores("sentiment", {"accuracy": 91.4}, {"accuracy": 92.4})
['sentiment: accuracy is 91.40 by the recorded answers, and 92.40 in results.json']

Each problem is one sentence.
"""

import math
from collections.abc import Mapping, Sequence

from t5suite.reports.averages import SplitFigure, averaged_tasks, averages_of, figure_of
from t5suite.reports.evaluations import TOLERANCE
from t5suite.reports.formatting import points
from t5suite.reports.run_records import RunRecord
from t5suite.runs.directory import RESULTS, tasks_named


def problems_of_scores(name: str, scores: Mapping, reported: Mapping, names_of_losses: Sequence[str] = ()) -> list[str]:
    """Scores in `results.json` that the recorded answers do not give.

    >>> problems_of_scores("sentiment", {"accuracy": 91.4}, {"accuracy": 92.4})
    ['sentiment: accuracy is 91.40 by the recorded answers, and 92.40 in results.json']

    Args:
      scores: those of the recorded answers.
      reported: those in `results.json`.
      names_of_losses: other names that `results.json` may have, whose values answers do not give.
    """
    problems = []
    for metric, score in scores.items():
        if metric not in reported:
            problems.append(f"{name}: {RESULTS} has no {metric}, which is {points(score, 'nan')} by the answers")
        elif not is_same(score, reported[metric]):
            problems.append(
                f"{name}: {metric} is {points(score, 'nan')} by the recorded answers, and "
                f"{points(reported[metric], 'nan')} in {RESULTS}"
            )
    for metric in sorted(reported.keys() - {*scores, *names_of_losses}):
        problems.append(f"{name}: {RESULTS} has {metric}, which the recorded answers do not give")
    return problems


def problems_of_groups(name: str, groups: Mapping, reported: Mapping) -> list[str]:
    """Scores of parts of a split (`report_by`) in `results.json` that the recorded answers do not give.

    Args:
      groups: `{column: {value: {metric: points}}}` by the recorded answers; reported: those in `results.json`.
    """
    problems = []
    for column in sorted({*groups, *reported}):
        parts = groups.get(column, {})
        reported_parts = reported.get(column, {})
        for value in sorted({*parts, *reported_parts}):
            place = f"{name}, {column} {value}"
            problems += problems_of_scores(place, parts.get(value, {}), reported_parts.get(value, {}))
    return problems


def is_same(score: float, reported: float | None, share: float = TOLERANCE) -> bool:
    """Whether two numbers are one score, but for a share; None and NaN both mean that a score is not defined."""
    if reported is None:
        return math.isnan(score)
    return is_near(score, reported, share * max(1.0, abs(reported)))


def have_same_scores(scores: Mapping, reported: Mapping) -> bool:
    """Whether two tables have the same names, and one score (`is_same`) for each."""
    return scores.keys() == reported.keys() and all(is_same(score, reported[name]) for name, score in scores.items())


def is_near(number: float, second_number: float, distance: float) -> bool:
    """Whether two numbers are at most so far apart; NaN is near NaN."""
    if math.isnan(number) or math.isnan(second_number):
        return math.isnan(number) and math.isnan(second_number)
    return abs(number - second_number) <= distance


def problems_of_names(record: RunRecord) -> list[str]:
    """Names in `results.json` that are of no split that was answered."""
    answered = {split.name for split in record.splits}
    names = dict.fromkeys((*record.results["tasks"], *groups_of_results(record)))
    return [f"{name}: {RESULTS} has scores, but nothing was answered for it" for name in names if name not in answered]


def groups_of_results(record: RunRecord) -> Mapping:
    """The scores of parts of splits, by the splits' names."""
    return record.results.get("groups") or {}


def problems_of_averages(record: RunRecord) -> list[str]:
    """Averages in `results.json` that do not follow from its scores, neither as now nor as in earlier versions."""
    figures = []
    for split in record.splits:
        scored = split.scored
        metrics = {name: nan_for_none(score) for name, score in record.results["tasks"].get(split.name, {}).items()}
        figure = figure_of(metrics, scored.task.optimised)
        figures.append(SplitFigure(split.name, scored.task, scored.role, figure))
    benchmark, dataset_name = tasks_named(record.manifest)
    average_over, published = averaged_tasks(benchmark, dataset_name, record.manifest.get("tasks") or {})
    averages = averages_of(figures, benchmark, average_over, published)
    earlier_averages = averages_of(figures, benchmark, average_over, published, with_errors=True)
    reported = record.results["averages"]
    if have_same_scores(earlier_averages, reported):
        return []
    problems = []
    for suite, average in averages.items():
        mean = points(average, "nan")
        if suite not in reported:
            problems.append(f"{suite}: {RESULTS} has no average, and the mean of the tasks is {mean}")
        elif not is_same(average, reported[suite]):
            score = points(reported[suite], "nan")
            problems.append(f"{suite}: the mean of the tasks is {mean}, and {score} in {RESULTS}")
    for suite in sorted(reported.keys() - averages.keys()):
        problems.append(f"{suite}: {RESULTS} has an average, which the run's tasks do not give")
    return problems


def nan_for_none(score: float | None) -> float:
    """A score of `results.json`, in which None stands for NaN."""
    return math.nan if score is None else score
