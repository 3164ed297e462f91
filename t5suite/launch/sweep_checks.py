"""All that is wrong in a sweep file: by W&B's schema, in itself, for Optuna, and for the script that it runs.

>>> for finding in check_sweep(read_sweep("my_sweep.yaml")):
...     print(finding)
my_sweep.yaml:3: metric: fine_tune_t5.py logs no 'accuracy'; did you mean eval/accuracy?
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from t5suite.launch.schema_problems import NUMBER_LIKE, Problem, number_for_yaml
from t5suite.launch.sweep_files import Parameter, SweepFile, parameters_of
from t5suite.launch.sweep_metrics import check_metric
from t5suite.launch.sweep_scripts import check_command, check_flags, check_model_is_named, script_of
from t5suite.launch.sweep_search import no_counterpart

# Their min and max are exponents of e.
EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")
# e to a larger one is no float.
MAX_EXPONENT = 700
GRID_DISTRIBUTIONS = ("constant", "categorical", "int_uniform", "q_uniform")


class Finding(NamedTuple):
    """A problem in a sweep file: an "error", or a "note" for what runs but is hardly intended or `needs_server`."""

    path: str
    line: int
    message: str
    level: str = "error"
    needs_server: bool = False

    def __str__(self) -> str:
        if self.level == "error":
            return f"{self.path}:{self.line}: {self.message}"
        return f"{self.path}:{self.line}: {self.level}: {self.message}"


def check_sweep(sweep: SweepFile) -> list[Finding]:
    """All problems, in the order of lines.

    Raises:
      ConfigError: the file's values are nested too deeply.
    """
    problems = [*sweep.schema_problems, *_check_grid(sweep), *check_command(sweep)]
    for parameter in parameters_of(sweep):
        problems += [*_check_range(parameter), *_check_values(parameter)]
    if all(problem.level == "note" for problem in problems):
        problems += _check_search(sweep)
    script = script_of(sweep)
    if script is not None:
        problems += [*check_flags(sweep, script), *check_model_is_named(sweep, script), *check_metric(sweep, script)]
    findings = set()
    for keys, message, level, needs_server in problems:
        findings.add(Finding(sweep.path, sweep.line(*keys), message, level, needs_server))
    return sorted(findings, key=lambda finding: (finding.line, finding.message))


def _check_grid(sweep: SweepFile) -> Iterator[Problem]:
    """Whether a grid's parameters have values that can be counted."""
    if sweep.content.get("method") != "grid":
        return
    for parameter in parameters_of(sweep):
        if parameter.distribution not in GRID_DISTRIBUTIONS:
            message = f"{parameter.name}: a grid cannot go through {parameter.distribution}; give values: [...]"
            yield Problem(parameter.keys, message)


def _check_range(parameter: Parameter) -> Iterator[Problem]:
    """Whether min and max are a range of the distribution."""
    if not {"min", "max"} <= parameter.settings.keys():
        return
    name = parameter.name
    distribution = parameter.distribution
    low = parameter.settings["min"]
    high = parameter.settings["max"]
    if low > high:
        yield Problem((*parameter.keys, "min"), f"{name}: min {low} is above max {high}")
    elif distribution.endswith("log_uniform_values") and low <= 0:
        yield Problem((*parameter.keys, "min"), f"{name}: min {low}: {distribution} needs values above 0")
    elif distribution in EXPONENTS:
        yield from _check_exponents(parameter, low, high)


def _check_exponents(parameter: Parameter, low: float, high: float) -> Iterator[Problem]:
    """Whether min and max can be exponents of e, rather than the values that they look like."""
    name = parameter.name
    distribution = parameter.distribution
    if max(abs(low), abs(high)) > MAX_EXPONENT:
        message = f"min and max of {distribution} are exponents of e; for values take {distribution}_values"
        yield Problem(parameter.keys, f"{name}: {message}")
    elif low > 0 and high < 1:
        values = f"values from {math.exp(low):.5g} to {math.exp(high):.5g}"
        message = f"min and max of {distribution} are exponents of e: {values}; for values take {distribution}_values"
        yield Problem(parameter.keys, f"{name}: {message}", "note")


def _check_values(parameter: Parameter) -> Iterator[Problem]:
    """Whether a parameter's values differ, have a probability each, and are what they look like."""
    name = parameter.name
    values = parameter.settings.get("values", [])
    probabilities = parameter.settings.get("probabilities")
    if probabilities is not None and len(probabilities) != len(values):
        message = f"{name}: {len(probabilities)} probabilities of {len(values)} values"
        yield Problem((*parameter.keys, "probabilities"), message)
    for i, value in enumerate(values):
        if _is_among(value, values[:i]):
            yield Problem((*parameter.keys, "values", i), f"{name}: {value!r:.60} is given twice")
        if isinstance(value, str) and NUMBER_LIKE.fullmatch(value):
            yield Problem((*parameter.keys, "values", i), f"{name}: {number_for_yaml(value)}", "note")


def _is_among(value, values: list) -> bool:
    """Whether a value is one of these, of the same type: 1, 1.0 and True differ."""
    return any(type(value) is type(item) and value == item for item in values)


def _check_search(sweep: SweepFile) -> list[Problem]:
    """What W&B's server can search and Optuna cannot."""
    reasons = {}
    for parameter in parameters_of(sweep):
        reason = no_counterpart(parameter)
        if reason:
            reasons[parameter.keys] = f"{parameter.name}: {reason}"
    for key in ("scheduler", "metrics"):
        if key in sweep.content:
            reasons[key,] = f"{key} needs W&B's server"
    if sweep.content.get("method") == "custom":
        reasons["method",] = "method custom needs W&B's server"
    eta = sweep.table("early_terminate").get("eta", 3)
    if not float(eta).is_integer():
        reasons["early_terminate", "eta"] = f"early_terminate.eta {eta}: without W&B's server it must be a whole number"
    metric = sweep.table("metric")
    imputed = {metric.get("impute"), metric.get("impute_while_running")}
    if imputed & {"latest", "best"}:
        reasons["metric",] = "metric.impute other than worst needs W&B's server"
    return [Problem(keys, reason, "note", True) for keys, reason in reasons.items()]
