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
from t5suite.launch.sweep_scripts import (
    check_command,
    check_flags,
    check_model_is_named,
    check_rows_of_seeds,
    script_of,
)
from t5suite.launch.sweep_search import no_counterpart

# Distributions whose min and max are exponents of e.
EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")
# The power of e with a larger exponent overflows.
MAX_EXPONENT = 700
DEFAULT_ETA = 3
GRID_DISTRIBUTIONS = ("constant", "categorical", "int_uniform", "q_uniform")


class Finding(NamedTuple):
    """A problem in a sweep file.

    Attributes:
      level: "error", or "note" for what runs, but is hardly meant so.
      needs_server: W&B's server can do it, and a search without it cannot (also a note).
    """

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
    """All problems, in the order of lines, each once."""
    problems = [*sweep.schema_problems, *_check_grid(sweep), *check_command(sweep)]
    for parameter in parameters_of(sweep):  # without those in which the schema has found a problem
        problems += [*_check_range(parameter), *_check_values(parameter)]
    has_errors = any(problem.level != "note" for problem in problems)
    if not has_errors:  # what needs a server, or stops nothing, is worth saying of a file that is valid
        problems += [*_check_rungs(sweep), *_check_needs_server(sweep)]
    script = script_of(sweep)
    if script is not None:
        problems += [*check_flags(sweep, script), *check_model_is_named(sweep, script), *check_metric(sweep, script)]
        problems += check_rows_of_seeds(sweep, script)
    findings = set()
    for problem in problems:
        line = sweep.line(*problem.keys)
        findings.add(Finding(sweep.path, line, problem.message, problem.level, problem.needs_server))
    return sorted(findings, key=lambda finding: (finding.line, finding.message))


def _check_grid(sweep: SweepFile) -> Iterator[Problem]:
    """The parameters of a grid whose values cannot be counted."""
    if sweep.content.get("method") != "grid":
        return
    for parameter in parameters_of(sweep):
        if parameter.distribution not in GRID_DISTRIBUTIONS:
            message = f"{parameter.name}: a grid cannot go through {parameter.distribution}; give values: [...]"
            yield Problem(parameter.keys, message)


def _check_range(parameter: Parameter) -> Iterator[Problem]:
    """A min and max that are no range of the distribution, or hardly the one that is meant."""
    if not {"min", "max"} <= parameter.settings.keys():
        return
    name = parameter.name
    distribution = parameter.distribution
    low = parameter.settings["min"]
    high = parameter.settings["max"]
    if low >= high:
        yield Problem((*parameter.keys, "min"), f"{name}: min {low} is not below max {high}")
    elif distribution.endswith("log_uniform_values") and low <= 0:
        yield Problem((*parameter.keys, "min"), f"{name}: min {low}: {distribution} needs values above 0")
    elif distribution in EXPONENTS:
        yield from _check_exponents(parameter, low, high)


def _check_exponents(parameter: Parameter, low: float, high: float) -> Iterator[Problem]:
    """A min and max that can be no exponents of e, or that look like the values themselves."""
    name = parameter.name
    distribution = parameter.distribution
    if max(abs(low), abs(high)) > MAX_EXPONENT:
        message = f"min and max of {distribution} are exponents of e; for values take {distribution}_values"
        yield Problem(parameter.keys, f"{name}: {message}")
    elif low > 0 and high < 1:  # 1e-4 to 0.1 are rather the values themselves
        values = f"values from {math.exp(low):.5g} to {math.exp(high):.5g}"
        message = f"min and max of {distribution} are exponents of e: {values}; for values take {distribution}_values"
        yield Problem(parameter.keys, f"{name}: {message}", "note")


def _check_values(parameter: Parameter) -> Iterator[Problem]:
    """Values that are given twice, that lack a probability, or that are texts and look like numbers."""
    name = parameter.name
    values = parameter.settings.get("values", [])
    probabilities = parameter.settings.get("probabilities")
    if probabilities is not None and len(probabilities) != len(values):
        message = f"{name}: {len(probabilities)} probabilities for {len(values)} values"
        yield Problem((*parameter.keys, "probabilities"), message)
    elif probabilities is not None and not math.isclose(sum(probabilities), 1, rel_tol=1e-5):
        message = f"{name}: probabilities sum to {sum(probabilities):.6g}, not 1"
        yield Problem((*parameter.keys, "probabilities"), message)
    for number, value in enumerate(values):
        keys = (*parameter.keys, "values", number)
        if any(_is_same_value(value, earlier_value) for earlier_value in values[:number]):
            yield Problem(keys, f"{name}: {value!r:.60} is given twice")
        if isinstance(value, str) and NUMBER_LIKE.fullmatch(value):
            yield Problem(keys, f"{name}: {number_for_yaml(value)}", "note")


def _is_same_value(value, earlier_value) -> bool:
    """Whether two values are equal and of one type: 1 and true, or 1 and 1.0, are two."""
    return type(value) is type(earlier_value) and value == earlier_value


def _check_rungs(sweep: SweepFile) -> Iterator[Problem]:
    """An `early_terminate` whose every rung is below the first logged value."""
    early_terminate = sweep.table("early_terminate")
    eta = early_terminate.get("eta", DEFAULT_ETA)
    max_iter = early_terminate.get("max_iter", eta)
    if max_iter < eta:
        message = f"early_terminate: max_iter {max_iter} is below eta {eta}, so that no trial is ever stopped"
        yield Problem(("early_terminate", "max_iter"), message, "note")


def _check_needs_server(sweep: SweepFile) -> Iterator[Problem]:
    """What W&B's server can do, and a search on this machine, by Optuna, cannot."""
    for parameter in parameters_of(sweep):
        reason = no_counterpart(parameter)
        if reason:
            yield _needs_server(parameter.keys, f"{parameter.name}: {reason}")
    for key in ("scheduler", "metrics"):
        if key in sweep.content:
            yield _needs_server((key,), f"{key} needs W&B's server")
    if sweep.content.get("method") == "custom":
        yield _needs_server(("method",), "method custom needs W&B's server")
    if sweep.table("early_terminate").get("strict"):
        yield _needs_server(("early_terminate", "strict"), "early_terminate.strict needs W&B's server")
    eta = sweep.table("early_terminate").get("eta", DEFAULT_ETA)
    if not float(eta).is_integer():
        message = f"early_terminate.eta {eta}: without W&B's server it must be a whole number"
        yield _needs_server(("early_terminate", "eta"), message)
    for key in ("impute", "impute_while_running"):
        if sweep.table("metric").get(key) in ("latest", "best"):
            yield _needs_server(("metric",), f"metric.{key} other than worst needs W&B's server")


def _needs_server(keys: tuple, message: str) -> Problem:
    return Problem(keys, message, level="note", needs_server=True)
