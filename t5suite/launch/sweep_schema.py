"""A sweep file against W&B's own rules.

    >>> for finding in check_file(read_sweep("my_sweep.yaml")):
    ...     print(finding)
    my_sweep.yaml:3: method: 'bayesian' is none of grid, random, bayes, custom
    my_sweep.yaml:9: learning_rate: min '1e-5' is text in YAML; write 1.0e-5

The rules are the schema of W&B's `sweeps` package (`config/schema.json`, 0.3.0): a closed table at the top, TOP_LEVEL.
"""

from t5suite.base.lookup import suggestion
from t5suite.launch.sweep_files import (
    Finding,
    SweepFile,
    is_number,
    is_whole,
    not_a_number,
    parameters_of,
    walk_parameters,
)

METHODS = ("grid", "random", "bayes", "custom")
GOALS = ("minimize", "maximize")
GRID_DISTRIBUTIONS = ("constant", "categorical", "int_uniform", "q_uniform")


def check_file(sweep: SweepFile) -> list[Finding]:
    """All that W&B's schema would refuse, in the order of lines."""
    found = [*_check_top_level(sweep), *_check_metric(sweep), *_check_early_terminate(sweep), *_check_scheduler(sweep)]
    found += [finding for _, findings in walk_parameters(sweep) for finding in findings]
    found += _check_method(sweep)
    return sorted(set(found), key=lambda finding: (finding.line, finding.message))


def _check_top_level(sweep: SweepFile) -> list[Finding]:
    found = []
    for key, value in sweep.content.items():
        if key not in TOP_LEVEL:
            found.append(sweep.finding((key,), f"unknown key {key!r:.60}; {suggestion(key, TOP_LEVEL)}"))
        else:
            problem = KINDS[TOP_LEVEL[key]](value)
            if problem:
                found.append(sweep.finding((key,), f"{key}: {value!r:.60} {problem}"))
    if "method" not in sweep.content:
        found.append(sweep.finding((), f"method is missing; choose from {', '.join(METHODS)}"))
    if "parameters" not in sweep.content and sweep.content.get("method") != "custom":
        found.append(sweep.finding((), "parameters is missing: nothing is searched"))
    found += _check_choice(sweep, ("method",), METHODS)
    found += _check_choice(sweep, ("controller", "type"), ("local", "cloud"))
    for i, word in enumerate(_of(list, sweep.content.get("command"))):
        if isinstance(word, (dict, list)) or word is None:
            found.append(sweep.finding(("command", i), f"command: {word!r:.60} is no word; put it in quotes"))
    return found


def _check_choice(sweep: SweepFile, keys: tuple, choices) -> list[Finding]:
    value = sweep.content
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return []
        value = value[key]
    if isinstance(value, str) and value in choices:
        return []
    return [sweep.finding(keys, f"{'.'.join(keys)}: {value!r:.60} is none of {', '.join(choices)}")]


def _check_closed(sweep: SweepFile, place: str, allowed) -> list[Finding]:
    """Refuses unknown keys of the table at `place`."""
    table = _of(dict, sweep.content.get(place))
    return [
        sweep.finding((place, key), f"{place}: unknown key {key!r:.60}; {suggestion(key, allowed)}")
        for key in table
        if key not in allowed
    ]


def _check_metric(sweep: SweepFile) -> list[Finding]:
    found = _check_closed(sweep, "metric", ("name", "goal", "target", "impute", "impute_while_running"))
    metric = sweep.content.get("metric")
    needing = [name for name in ("early_terminate",) if name in sweep.content]
    needing += ["method: bayes"] if sweep.content.get("method") == "bayes" else []
    if metric is None and needing:
        found.append(sweep.finding((), f"metric is missing, which {needing[0]} needs: name and goal"))
    if not isinstance(metric, dict):
        return found
    if not (isinstance(metric.get("name"), str) and metric["name"].strip()):
        found.append(sweep.finding(("metric", "name"), "metric: name is missing: the metric that runs log"))
    if "target" in metric and not is_number(metric["target"]):
        found.append(sweep.finding(("metric", "target"), f"metric.target: {not_a_number(metric['target'])}"))
    found += _check_choice(sweep, ("metric", "goal"), GOALS)
    found += _check_choice(sweep, ("metric", "impute"), ("latest", "best", "worst"))
    found += _check_choice(sweep, ("metric", "impute_while_running"), ("latest", "best", "worst", "false"))
    return found


def _check_early_terminate(sweep: SweepFile) -> list[Finding]:
    place = "early_terminate"
    rule = sweep.content.get(place)
    if not isinstance(rule, dict):
        return []
    found = _check_closed(sweep, place, ("type", "min_iter", "max_iter", "s", "eta", "strict"))
    if "type" not in rule:
        found.append(sweep.finding((place,), f"{place}: type is missing; W&B has hyperband"))
    found += _check_choice(sweep, (place, "type"), ("hyperband",))
    if "min_iter" not in rule and not {"max_iter", "s"} <= set(rule):
        found.append(sweep.finding((place,), f"{place}: give min_iter, or max_iter and s"))
    for key, smallest in {"min_iter": 1, "max_iter": 1, "s": 1}.items():
        if key in rule and not (is_whole(rule[key]) and rule[key] >= smallest):
            found.append(
                sweep.finding((place, key), f"{place}.{key}: {rule[key]!r:.60} is no whole number above {smallest - 1}")
            )
    if "eta" in rule and not (is_number(rule["eta"]) and rule["eta"] > 1):
        found.append(sweep.finding((place, "eta"), f"{place}.eta: {rule['eta']!r:.60} is no number above 1"))
    if "strict" in rule and not isinstance(rule["strict"], bool):
        found.append(sweep.finding((place, "strict"), f"{place}.strict: {rule['strict']!r:.60} is not true or false"))
    return found


def _check_scheduler(sweep: SweepFile) -> list[Finding]:
    content, found = sweep.content, []
    if "scheduler" in content and "early_terminate" in content:
        found.append(sweep.finding(("scheduler",), "scheduler cannot stand beside early_terminate"))
    if "metrics" in content and "metric" in content:
        found.append(sweep.finding(("metrics",), "metrics cannot stand beside metric"))
    if "metrics" in content and content.get("method") != "custom":
        found.append(sweep.finding(("metrics",), "metrics needs method: custom"))
    engine = _of(dict, content.get("scheduler")).get("engine")
    if "scheduler" in content:
        found += _check_closed(sweep, "scheduler", ("engine", "source", "optimizer", "search_space"))
        if engine not in ("optuna", "ax", "wandb"):
            found.append(
                sweep.finding(("scheduler", "engine"), f"scheduler.engine: {engine!r:.60} is none of optuna, ax, wandb")
            )
    return found


def _check_method(sweep: SweepFile) -> list[Finding]:
    """A grid has no continuous parameters."""
    if sweep.content.get("method") != "grid":
        return []
    return [
        Finding(sweep.path, p.line, f"{p.name}: a grid cannot go through {p.distribution}; give values: [...]")
        for p in parameters_of(sweep)
        if p.distribution not in GRID_DISTRIBUTIONS
    ]


def _of(kind, value):
    """The value if it is of that kind, else an empty one."""
    return value if isinstance(value, kind) else kind()


KINDS = {
    "text": lambda value: None if isinstance(value, str) else "is no text; put it in quotes",
    "table": lambda value: None if isinstance(value, dict) else "is no table",
    "list": lambda value: None if isinstance(value, list) and value else "is no list with at least one item",
    "count": lambda value: None if is_whole(value) and value > 0 else "is no whole number above 0",
}

TOP_LEVEL = {
    "method": "text",
    "metric": "table",
    "metrics": "list",
    "parameters": "table",
    "early_terminate": "table",
    "command": "list",
    "program": "text",
    "run_cap": "count",
    "name": "text",
    "project": "text",
    "entity": "text",
    "description": "text",
    "controller": "table",
    "scheduler": "table",
    "job": "text",
    "image_uri": "text",
    "apiVersion": "text",
    "kind": "text",
}
