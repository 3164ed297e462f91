"""How W&B's searches become Optuna's: distributions, grids, proposals, and the rungs of early stopping.

    >>> rate = Parameter(("learning_rate",), "log_uniform_values", {"min": 1e-5, "max": 1e-2}, 11)
    >>> search = Search([rate], "bayes")
    >>> values = propose([], search, distributions_of(search.parameters))
    >>> trial_parameters(search.parameters, values)
    {'learning_rate': 0.00939...}

The table in docs/sweeps.md shows all of it.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from t5suite.base.errors import ConfigError
from t5suite.launch.sweep_files import Parameter

# Random trials before a sampler starts to learn from them; Optuna's default, 10, is more than many sweeps have.
FIRST_AT_RANDOM = 5
MAX_RUNGS = 30
MAX_GRID = 100_000
WITHOUT_COUNTERPART = (
    "normal",
    "log_normal",
    "beta",
    "inv_log_uniform",
    "inv_log_uniform_values",
    "q_normal",
    "q_log_normal",
    "q_beta",
    "categorical_w_probabilities",
)
MULTIPLES = ("q_uniform", "q_log_uniform", "q_log_uniform_values")


@dataclass(frozen=True)
class Search:
    """How a sweep searches.

    Attributes:
      rungs: after how many logged values trials are compared; none: no early stopping.
      eta: one of eta trials is kept at a rung.
    """

    parameters: list[Parameter]
    method: str
    goal: str = "maximize"
    target: float | None = None
    rungs: tuple[int, ...] = ()
    eta: int = 3
    sampler: str = "tpe"
    seed: int = 0


def no_counterpart(parameter: Parameter) -> str | None:
    """Why Optuna cannot search the parameter; None if it can."""
    distribution = parameter.distribution
    q = parameter.settings.get("q", 1)
    if distribution in WITHOUT_COUNTERPART:
        return f"{distribution} has no counterpart in Optuna, so it needs W&B's server"
    if distribution in ("q_log_uniform", "q_log_uniform_values") and q != 1:
        return f"{distribution} with q {q} has no counterpart in Optuna (q: 1 has), so it needs W&B's server"
    if distribution in MULTIPLES:
        first, last = multiples_of_q(parameter)
        if first > last:
            return f"no multiple of q {q} lies between min and max"
    return None


def multiples_of_q(parameter: Parameter) -> tuple[int, int]:
    """The first and the last k for which k * q is in the range; a bound missed by rounding alone counts.

    Logarithms begin at 1, however near to 0 min is.
    """
    low = parameter.settings["min"]
    high = parameter.settings["max"]
    if parameter.distribution == "q_log_uniform":
        low = math.exp(low)
        high = math.exp(high)
    q = parameter.settings.get("q", 1.0)
    first = math.ceil(round(low / q, 9))
    last = math.floor(round(high / q, 9))
    if parameter.distribution != "q_uniform":
        first = max(first, 1)
    return first, last


def distribution_of(parameter: Parameter):
    """Optuna's distribution of a parameter that is searched.

    >>> distribution_of(Parameter(("learning_rate",), "log_uniform_values", {"min": 1e-5, "max": 1e-2}, 11))
    FloatDistribution(high=0.01, log=True, low=1e-05, step=None)

    Raises:
      ConfigError: it has no counterpart.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    reason = no_counterpart(parameter)
    if reason:
        raise ConfigError(f"{parameter.name}: {reason}")
    settings = parameter.settings
    match parameter.distribution:
        case "categorical":
            return CategoricalDistribution([json.dumps(value) for value in settings["values"]])
        case "int_uniform":
            return IntDistribution(settings["min"], settings["max"])
        case "uniform":
            return FloatDistribution(float(settings["min"]), float(settings["max"]))
        case "log_uniform":
            return FloatDistribution(math.exp(settings["min"]), math.exp(settings["max"]), log=True)
        case "log_uniform_values":
            return FloatDistribution(float(settings["min"]), float(settings["max"]), log=True)
        case _:
            return _distribution_of_multiples(parameter)


def _distribution_of_multiples(parameter: Parameter):
    """Optuna's distribution of the multiples of q in a range."""
    from optuna.distributions import FloatDistribution, IntDistribution

    q = parameter.settings.get("q", 1.0)
    first, last = multiples_of_q(parameter)
    is_uniform = parameter.distribution == "q_uniform"
    if is_uniform and not isinstance(q, int):
        return FloatDistribution(_without_noise(first * q), _without_noise(last * q), step=q)
    return IntDistribution(first * int(q), last * int(q), step=int(q), log=not is_uniform)


def _without_noise(number: float) -> float:
    """0.3 rather than 0.30000000000000004."""
    return float(f"{number:.12g}")


def distributions_of(parameters: Iterable[Parameter]) -> dict[str, object]:
    """Optuna's distributions by name; constants are not searched."""
    distributions = {}
    for parameter in parameters:
        if parameter.distribution != "constant":
            distributions[parameter.name] = distribution_of(parameter)
    return distributions


def trial_parameters(parameters: Iterable[Parameter], values: dict) -> dict:
    """A trial's parameters: constants and Optuna's values, in the file's order, nested ones as tables.

    >>> trial_parameters([constant, rate], {"learning_rate": 0.001})
    {'seed': 1, 'learning_rate': 0.001}
    """
    nested: dict = {}
    for parameter in parameters:
        table = nested
        for name in parameter.path[:-1]:
            table = table.setdefault(name, {})
        table[parameter.path[-1]] = _trial_value(parameter, values)
    return nested


def _trial_value(parameter: Parameter, values: dict):
    """A parameter's value in a trial, as W&B would pass it on."""
    if parameter.distribution == "constant":
        return parameter.settings["value"]
    value = values[parameter.name]
    if parameter.distribution == "categorical":
        return json.loads(value)
    if parameter.distribution == "q_uniform" and isinstance(value, float):
        return _without_noise(value)
    return value


def grid_of(parameters: list[Parameter]) -> list[dict]:
    """Every combination of Optuna's values; the last parameter changes first.

    Raises:
      ConfigError: more than MAX_GRID.
    """
    values = {name: _grid_values(name, kind) for name, kind in distributions_of(parameters).items()}
    size = math.prod(map(len, values.values()))
    if size > MAX_GRID:
        raise ConfigError(f"the grid has {size} combinations, and {MAX_GRID} is the limit")
    combinations = itertools.product(*values.values())
    return [dict(zip(values, combination, strict=True)) for combination in combinations]


def _grid_values(name: str, distribution) -> list:
    """All values of one of Optuna's distributions."""
    from optuna.distributions import CategoricalDistribution

    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    count = round((distribution.high - distribution.low) / distribution.step) + 1
    if count > MAX_GRID:
        raise ConfigError(f"{name}: more than {MAX_GRID} values in a grid")
    numbers = [distribution.low + k * distribution.step for k in range(count)]
    if isinstance(distribution.low, float):
        return [_without_noise(number) for number in numbers]
    return numbers


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
        rung_count = min(int(early_terminate["s"]), MAX_RUNGS)
        bands = [early_terminate["max_iter"] / eta**k for k in range(1, rung_count + 1)]
    else:
        bands = [early_terminate["min_iter"] * eta**k for k in range(MAX_RUNGS)]
    return sorted({int(band) for band in bands if band >= 1})


def propose(trials: list, search: Search, distributions: dict) -> dict:
    """Optuna's values for the next trial, after these `FrozenTrial`s.

    They are proposed in a copy in memory, so that the journal gets a trial with all its values in one line or not at
    all. Each trial number has its own seed, so that a killed sweep resumes with the same proposals. TPE is
    arXiv:2304.11127; running trials count as bad (constant liar), so that workers propose different values.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    digest = hashlib.sha256(f"{search.seed} {len(trials)}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    if search.method == "random":
        sampler = optuna.samplers.RandomSampler(seed=seed)
    elif search.sampler == "gp":
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=FIRST_AT_RANDOM)
        trials = _with_values(trials, search.goal)
    else:
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=FIRST_AT_RANDOM, constant_liar=True)
    study = optuna.create_study(direction=search.goal, sampler=sampler)
    study.add_trials(trials)
    return study.ask(distributions).params


def _with_values(trials: list, goal: str) -> list:
    """The trials, of which the pruned ones are complete with a value: GPSampler passes others over.

    One that was stopped early has its best value until then. One that failed, or whose metric was never a number, has
    the worst of all trials' values.
    """
    from optuna.trial import TrialState, create_trial

    values = [_value_of(trial) for trial in trials]
    numbers = [value for value in values if value is not None]
    if not numbers:
        return trials
    worst = min(numbers)
    if goal == "minimize":
        worst = max(numbers)
    trials_with_values = []
    for trial, value in zip(trials, values, strict=True):
        if trial.state == TrialState.PRUNED:
            if value is None:
                value = worst
            trial = create_trial(
                state=TrialState.COMPLETE, params=trial.params, distributions=trial.distributions, value=value
            )
        trials_with_values.append(trial)
    return trials_with_values


def _value_of(trial) -> float | None:
    """The value of a trial that is complete or was stopped early; None for others, and where it is no finite number."""
    from optuna.trial import TrialState

    if trial.state == TrialState.COMPLETE:
        return trial.value
    status = trial.user_attrs.get("status", {})
    value = status.get("value")
    has_number = value is not None and math.isfinite(value)
    if status.get("state") == "pruned" and has_number:
        return value
    return None
