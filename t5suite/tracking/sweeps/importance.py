"""How much of a sweep's outcome each parameter explains.

    >>> importances(read_sweep("runs/sweeps/glue_rte"))
    {'learning_rate': 0.83, 'warmup_steps': 0.11, 'lr_scheduler_type': 0.06}

Functional ANOVA (Hutter et al. 2014, proceedings.mlr.press/v32/hutter14) by Optuna: a random forest is fitted to the
finished trials, and its variance divided among the parameters. With few trials these are hints, not findings.
"""

import warnings

from t5suite.tracking.sweeps.records import Sweep, is_number

FEWEST_TRIALS = 4


def importances(sweep: Sweep) -> dict[str, float]:
    """`{parameter: share of the variance}`, the greatest first; empty where there is nothing to tell.

    Only finished trials count, and parameters that all of them have: a trial that was stopped early has a value of
    another kind.

    Raises:
      ImportError: Optuna is not installed.
    """
    import optuna

    trials = [trial for trial in sweep.valued() if trial.state == "complete"]
    names = [name for name in sweep.varied() if all(name in trial.parameters for trial in trials)]
    names = [name for name in names if len({str(trial.parameters[name]) for trial in trials}) > 1]
    if len(trials) < FEWEST_TRIALS or not names or len({trial.value for trial in trials}) == 1:
        return {}
    distributions = {name: _distribution(sweep, [trial.parameters[name] for trial in trials], name) for name in names}
    study = _quiet_study(optuna, sweep.goal)
    for trial in trials:
        chosen = {name: _value(trial.parameters[name], distributions[name]) for name in names}
        study.add_trial(optuna.create_trial(params=chosen, distributions=distributions, value=trial.value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


def _quiet_study(optuna, goal: str):
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        return optuna.create_study(direction=goal)
    finally:
        optuna.logging.set_verbosity(before)


def _distribution(sweep: Sweep, values: list, name: str):
    """What the values may have been drawn from, as far as it can be told from them."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if all(map(is_number, values)):
        return FloatDistribution(min(values), max(values), log=sweep.is_logarithmic(name))
    return CategoricalDistribution(sorted({str(value) for value in values}))


def _value(value, distribution):
    return float(value) if hasattr(distribution, "low") else str(value)
