"""A sweep file's search -> Optuna's: distributions, samplers, grids and early stopping.

    >>> distribution_of(Parameter(("learning_rate",), "log_uniform_values", {"min": 1e-5, "max": 1e-2}, 11))
    FloatDistribution(high=0.01, log=True, low=1e-05, step=None)
    >>> rungs_of({"type": "hyperband", "min_iter": 2, "eta": 3})[:4]
    [2, 6, 18, 54]

| W&B | Optuna |
|---|---|
| `constant` | not searched |
| `categorical` | `CategoricalDistribution` over the values' JSON |
| `int_uniform` | `IntDistribution` |
| `uniform`, `log_uniform_values`, `log_uniform` (exponents of e) | `FloatDistribution`, the latter with `log=True` |
| `q_uniform` | the multiples of q in the range: `IntDistribution`, or `FloatDistribution(step=q)` where q is a float |
| `q_log_uniform_values`, `q_log_uniform` with q 1 | `IntDistribution(log=True)` |
| `bayes`, `random`, `grid` | `TPESampler` (or `GPSampler`), `RandomSampler`, every combination in order |
| `hyperband` | `SuccessiveHalvingPruner` at W&B's rungs |

What has no counterpart (`normal`, `beta`, `inv_*`, probabilities, other quantized logarithms) is refused by name.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable

from t5suite.base.errors import ConfigError
from t5suite.launch.sweep_files import Finding, Parameter, SweepFile, parameters_of

SAMPLERS = ("tpe", "gp")
# Trials at random before a sampler that learns begins; Optuna's 10 are more than many a sweep has.
FIRST_AT_RANDOM = 5
MAX_RUNGS = 30
MAX_GRID = 100_000
WITHOUT_COUNTERPART = (
    "normal", "q_normal", "log_normal", "q_log_normal", "beta", "q_beta", "inv_log_uniform", "inv_log_uniform_values",
    "categorical_w_probabilities",
)  # fmt: skip


def check_search(sweep: SweepFile) -> list[Finding]:
    """What W&B's server can search and Optuna cannot."""
    found = []
    for parameter in parameters_of(sweep):
        reason = _no_counterpart(parameter)
        if reason:
            found.append(Finding(sweep.path, parameter.line, f"{parameter.name}: {reason}", "note"))
    for key in ("scheduler", "metrics"):
        if key in sweep.content:
            found.append(sweep.finding((key,), f"{key} needs W&B's server", "note"))
    if sweep.content.get("method") == "custom":
        found.append(sweep.finding(("method",), "method custom needs W&B's server", "note"))
    eta = _table(sweep, "early_terminate").get("eta", 3)
    if isinstance(eta, float) and not eta.is_integer():
        said = f"early_terminate.eta {eta}: without W&B's server it must be a whole number"
        found.append(sweep.finding(("early_terminate", "eta"), said, "note"))
    metric = _table(sweep, "metric")
    if metric.get("impute") in ("latest", "best") or metric.get("impute_while_running") in ("latest", "best"):
        found.append(sweep.finding(("metric",), "metric.impute other than worst needs W&B's server", "note"))
    return [finding._replace(needs_server=True) for finding in found]


def _table(sweep: SweepFile, key: str) -> dict:
    value = sweep.content.get(key)
    return value if isinstance(value, dict) else {}


def _no_counterpart(parameter: Parameter) -> str | None:
    kind, settings = parameter.distribution, parameter.settings
    if kind in WITHOUT_COUNTERPART:
        return f"{kind} has no counterpart in Optuna, so it needs W&B's server"
    if kind in ("q_log_uniform", "q_log_uniform_values") and settings.get("q", 1) != 1:
        return f"{kind} with q {settings['q']} has no counterpart in Optuna (q: 1 has), so it needs W&B's server"
    if kind in ("q_uniform", "q_log_uniform", "q_log_uniform_values") and not _has_multiples(parameter):
        return f"no multiple of q {settings.get('q', 1.0)} lies between min and max"
    return None


def _has_multiples(parameter: Parameter) -> bool:
    first, last = _multiples(parameter)
    return first <= last


def _multiples(parameter: Parameter) -> tuple[int, int]:
    """The first and the last multiple of q in the range; a bound that misses one by rounding alone counts as it."""
    low, high = parameter.settings["min"], parameter.settings["max"]
    if parameter.distribution == "q_log_uniform":
        low, high = math.exp(low), math.exp(high)
    q = parameter.settings.get("q", 1.0)
    return math.ceil(round(low / q, 9)), math.floor(round(high / q, 9))


def distribution_of(parameter: Parameter):
    """Optuna's distribution of a parameter that is searched.

    Raises:
      ConfigError: it has no counterpart.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    reason = _no_counterpart(parameter)
    if reason:
        raise ConfigError(f"{parameter.name}: {reason}")
    kind, settings = parameter.distribution, parameter.settings
    low, high = settings.get("min"), settings.get("max")
    if kind == "categorical":
        return CategoricalDistribution([json.dumps(value) for value in settings["values"]])
    if kind == "int_uniform":
        return IntDistribution(low, high)
    if kind == "log_uniform":
        return FloatDistribution(math.exp(low), math.exp(high), log=True)
    if kind in ("uniform", "log_uniform_values"):
        return FloatDistribution(float(low), float(high), log=kind != "uniform")
    first, last = _multiples(parameter)
    q = settings.get("q", 1.0)
    if kind == "q_uniform" and not isinstance(q, int):
        return FloatDistribution(_multiple(first, q), _multiple(last, q), step=q)
    return IntDistribution(first * int(q), last * int(q), step=int(q), log=kind != "q_uniform")


def searched(parameters: Iterable[Parameter]) -> dict[str, object]:
    """Optuna's distributions by name; constants are not searched."""
    return {p.name: distribution_of(p) for p in parameters if p.distribution != "constant"}


def trial_parameters(parameters: Iterable[Parameter], found: dict) -> dict:
    """What a trial is given: constants and found values in the file's order, nested ones as tables.

    >>> trial_parameters([constant, rate], {"learning_rate": 0.001})
    {'seed': 1, 'learning_rate': 0.001}
    """
    given = {}
    for parameter in parameters:
        table = given
        for name in parameter.path[:-1]:
            table = table.setdefault(name, {})
        table[parameter.path[-1]] = _value(parameter, found)
    return given


def _value(parameter: Parameter, found: dict):
    kind, settings = parameter.distribution, parameter.settings
    if kind == "constant":
        return settings["value"]
    value = found[parameter.name]
    if kind == "categorical":
        return json.loads(value)
    if kind == "q_uniform" and not isinstance(settings.get("q", 1.0), int):
        return _multiple(round(value / settings.get("q", 1.0)), settings.get("q", 1.0))
    return value


def _multiple(k: int, q: float) -> float:
    """0.3 rather than 0.30000000000000004."""
    return float(f"{k * q:.12g}")


def grid_of(parameters: list[Parameter]) -> list[dict]:
    """Every combination, in Optuna's words; the last parameter changes first.

    Raises:
      ConfigError: more than MAX_GRID.
    """
    names = [p.name for p in parameters if p.distribution != "constant"]
    values = [_steps(p) for p in parameters if p.distribution != "constant"]
    size = math.prod(len(steps) for steps in values)
    if size > MAX_GRID:
        raise ConfigError(f"the grid has {size} combinations, and {MAX_GRID} is the most that is taken")
    return [dict(zip(names, combination, strict=True)) for combination in itertools.product(*values)]


def _steps(parameter: Parameter) -> list:
    distribution = distribution_of(parameter)
    if parameter.distribution == "categorical":
        return list(distribution.choices)
    if parameter.distribution == "int_uniform":
        if distribution.high - distribution.low >= MAX_GRID:
            raise ConfigError(f"{parameter.name}: more than {MAX_GRID} values in a grid")
        return list(range(distribution.low, distribution.high + 1))
    first, last = _multiples(parameter)
    if last - first >= MAX_GRID:
        raise ConfigError(f"{parameter.name}: more than {MAX_GRID} values in a grid")
    q = parameter.settings.get("q", 1.0)
    return [k * q if isinstance(q, int) else _multiple(k, q) for k in range(first, last + 1)]


def rungs_of(early_terminate: dict | None) -> list[int]:
    """After how many logged values of the metric a trial is compared with others.

    `min_iter * eta ** k`, or the `s` rungs `max_iter / eta ** k` below `max_iter`
    (W&B, `sweeps/hyperband_stopping.py`); equal ones count once.

    >>> rungs_of({"type": "hyperband", "max_iter": 27, "s": 2})
    [3, 9]
    """
    if not early_terminate:
        return []
    eta = early_terminate.get("eta", 3)
    if "max_iter" in early_terminate:
        bands = [early_terminate["max_iter"] / eta**k for k in range(1, min(int(early_terminate["s"]), MAX_RUNGS) + 1)]
    else:
        bands = [early_terminate["min_iter"] * eta**k for k in range(MAX_RUNGS)]
    return sorted({int(band) for band in bands if band >= 1})


def sampler_of(method: str, sampler: str, seed: int, number: int):
    """The sampler that proposes trial `number`: its own seed each, so that a sweep that was killed goes on alike.

    TPE is arXiv:2304.11127; trials that run count as bad ones (constant liar), so that workers do not meet.
    """
    import optuna

    own = int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big")
    if method == "random":
        return optuna.samplers.RandomSampler(seed=own)
    if sampler == "gp":
        return optuna.samplers.GPSampler(seed=own, n_startup_trials=FIRST_AT_RANDOM)
    return optuna.samplers.TPESampler(seed=own, n_startup_trials=FIRST_AT_RANDOM, constant_liar=True)


def propose(trials: list, direction: str, method: str, sampler: str, seed: int, distributions: dict) -> dict:
    """Values for the next trial, in Optuna's words, after these `FrozenTrial`s.

    They are proposed in a copy in memory, so that the journal gets a trial with all its values in one line or not at
    all: a process that is killed in between leaves no half trial.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    engine = sampler_of(method, sampler, seed, len(trials))
    study = optuna.create_study(direction=direction, sampler=engine)
    study.add_trials(trials)
    return study.ask(distributions).params
