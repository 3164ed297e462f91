"""W&B's format of sweep files as a JSON schema (`SWEEP`); `problems_by_schema` checks files by it.

A subschema's `description` says what would be right: messages are "... is not {description}". The keys, distributions
and their settings are those of W&B's `sweeps` package (`config/schema.json`, 0.3.0).
"""

from t5suite.base.json_schemas import TABLE, is_whole_number

METHODS = ("grid", "random", "bayes", "custom")
IMPUTED = ("latest", "best", "worst")

# Each distribution's settings: those that it needs, and those that have a default.
RANGE = (("min", "max"), ())
RANGE_OF_Q = (("min", "max"), ("q",))
DISTRIBUTIONS = {
    "constant": (("value",), ()),
    "categorical": (("values",), ()),
    "categorical_w_probabilities": (("values", "probabilities"), ()),
    "int_uniform": RANGE,
    "uniform": RANGE,
    "log_uniform": RANGE,
    "log_uniform_values": RANGE,
    "inv_log_uniform": RANGE,
    "inv_log_uniform_values": RANGE,
    "q_uniform": RANGE_OF_Q,
    "q_log_uniform": RANGE_OF_Q,
    "q_log_uniform_values": RANGE_OF_Q,
    "normal": ((), ("mu", "sigma")),
    "log_normal": ((), ("mu", "sigma")),
    "q_normal": ((), ("mu", "sigma", "q")),
    "q_log_normal": ((), ("mu", "sigma", "q")),
    "beta": ((), ("a", "b")),
    "q_beta": ((), ("a", "b", "q")),
}


def one_of(words) -> dict:
    """The schema of one of several words."""
    return {"enum": list(words), "description": f"one of {', '.join(words)}"}


def _settings_of(distribution: str) -> dict:
    """The schema of a parameter, if it has this distribution."""
    needed, optional = DISTRIBUTIONS[distribution]
    settings = SETTINGS
    if distribution == "int_uniform":
        settings = {**SETTINGS, **BOUNDS_OF_INTEGERS}
    properties = {name: settings[name] for name in (*needed, *optional)}
    return {
        "if": {"properties": {"distribution": {"const": distribution}}, "required": ["distribution"]},
        "then": {
            "properties": {"distribution": True, **properties},
            "required": list(needed),
            "additionalProperties": False,
        },
    }


TEXT = {"type": "string", "description": "a text; put it in quotes"}
LIST = {"type": "array", "minItems": 1, "description": "a non-empty list"}
COUNT = {"type": "integer", "minimum": 1, "description": "a whole number above 0"}
BOOLEAN = {"type": "boolean", "description": "true or false"}
NUMBER = {"type": "number", "description": "a finite number"}
NUMBER_FROM_0 = {"type": "number", "minimum": 0, "description": "a number from 0"}
NUMBER_ABOVE_0 = {"type": "number", "exclusiveMinimum": 0, "description": "a number above 0"}
NUMBER_ABOVE_1 = {"type": "number", "exclusiveMinimum": 1, "description": "a number above 1"}
WHOLE_NUMBER = {"type": "integer", "description": "a whole number"}
# W&B stores values as JSON. "json number" is a type of `base.json_schemas`: no bound, but NaN and infinities are none.
JSON_VALUE = {
    "type": ["string", "json number", "boolean", "null", "array", "object"],
    "description": "a value of JSON; put it in quotes",
    "items": {"$ref": "#/$defs/json_value"},
    "propertyNames": TEXT,
    "additionalProperties": {"$ref": "#/$defs/json_value"},
}
SETTINGS = {
    "value": {"$ref": "#/$defs/json_value"},
    "values": {**LIST, "items": {"$ref": "#/$defs/json_value"}},
    "probabilities": {**LIST, "items": NUMBER_FROM_0},
    "min": NUMBER,
    "max": NUMBER,
    "mu": NUMBER,
    "sigma": NUMBER_FROM_0,
    "a": NUMBER_FROM_0,
    "b": NUMBER_FROM_0,
    "q": NUMBER_ABOVE_0,
}
BOUNDS_OF_INTEGERS = {"min": WHOLE_NUMBER, "max": WHOLE_NUMBER}
PARAMETERS = {
    **TABLE,
    "minProperties": 1,
    "propertyNames": {
        "type": "string",
        "pattern": r"^[A-Za-z_][A-Za-z0-9_.-]*\Z",
        "description": "a parameter's name (letters, digits, _ . -)",
    },
    "additionalProperties": {"$ref": "#/$defs/parameter"},
}
# One parameter, whose distribution is written out (`with_distributions`), or a table of nested ones.
PARAMETER = {
    "type": "object",
    "description": "a table; write value: {value}",
    "if": {"properties": {"parameters": {"type": "object"}}, "required": ["parameters"]},
    "then": {"properties": {"parameters": {"$ref": "#/$defs/parameters"}}, "maxProperties": 1},
    "else": {
        "properties": {"distribution": one_of(DISTRIBUTIONS)},
        "required": ["distribution"],
        "allOf": [_settings_of(distribution) for distribution in DISTRIBUTIONS],
    },
}
METRIC = {
    **TABLE,
    "properties": {
        "name": {"type": "string", "minLength": 1, "description": "the name of a metric that runs log"},
        "goal": one_of(("minimize", "maximize")),
        "target": NUMBER,
        "impute": one_of(IMPUTED),
        "impute_while_running": one_of((*IMPUTED, "false")),
    },
    "required": ["name"],
    "additionalProperties": False,
}
EARLY_TERMINATE = {
    **TABLE,
    "properties": {
        "type": one_of(("hyperband",)),
        "min_iter": COUNT,
        "max_iter": COUNT,
        "s": COUNT,
        "eta": NUMBER_ABOVE_1,
        "strict": BOOLEAN,
    },
    "required": ["type"],
    "additionalProperties": False,
    "if": {"type": "object"},
    "then": {
        "anyOf": [
            {"required": ["max_iter", "s"]},
            # W&B takes max_iter before min_iter.
            {"required": ["min_iter"], "properties": {"max_iter": False}},
        ],
        "description": "give min_iter, or max_iter and s; max_iter needs s",
    },
}
CONTROLLER = {**TABLE, "properties": {"type": one_of(("local", "cloud"))}, "additionalProperties": False}
SCHEDULER = {
    **TABLE,
    "properties": {
        "engine": one_of(("optuna", "ax", "wandb")),
        "source": TEXT,
        "optimizer": TABLE,
        "search_space": TABLE,
    },
    "additionalProperties": False,
}
SWEEP = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "method": one_of(METHODS),
        "metric": METRIC,
        "metrics": LIST,
        "parameters": {"$ref": "#/$defs/parameters"},
        "early_terminate": EARLY_TERMINATE,
        "run_cap": COUNT,
        "command": LIST,
        "program": TEXT,
        "name": TEXT,
        "project": TEXT,
        "entity": TEXT,
        "description": TEXT,
        "job": TEXT,
        "image_uri": TEXT,
        "apiVersion": TEXT,
        "kind": TEXT,
        "controller": CONTROLLER,
        "scheduler": SCHEDULER,
    },
    "additionalProperties": False,
    "required": ["method"],
    "dependentRequired": {"early_terminate": ["metric"]},
    "allOf": [
        {
            "if": {"properties": {"method": {"const": "custom"}}, "required": ["method"]},
            "else": {"required": ["parameters"]},
        },
        {
            "if": {"properties": {"method": {"const": "bayes"}}, "required": ["method"]},
            "then": {"required": ["metric"]},
        },
    ],
    "$defs": {"parameters": PARAMETERS, "parameter": PARAMETER, "json_value": JSON_VALUE},
}


def with_distributions(parameters: dict) -> dict:
    """A `parameters:` table in which each parameter has the distribution that W&B infers where none is given.

    >>> with_distributions({"seed": {"values": [1, 2]}, "dropout_rate": {"min": 0, "max": 0.5}})
    {'seed': {'distribution': 'categorical', 'values': [1, 2]}, 'dropout_rate': {'distribution': 'uniform', ...}}
    """
    completed = {}
    for name, entry in parameters.items():
        if not isinstance(entry, dict):
            completed[name] = entry
        elif isinstance(entry.get("parameters"), dict):
            completed[name] = {**entry, "parameters": with_distributions(entry["parameters"])}
        else:
            completed[name] = {**inferred_distribution(entry), **entry}
    return completed


def inferred_distribution(entry: dict) -> dict[str, str]:
    """`{"distribution": ...}` of a parameter by its settings; empty if they do not say it."""
    if "value" in entry:
        return {"distribution": "constant"}
    if "probabilities" in entry:
        return {"distribution": "categorical_w_probabilities"}
    if "values" in entry:
        return {"distribution": "categorical"}
    if "min" in entry or "max" in entry:
        bounds = [entry[key] for key in ("min", "max") if key in entry]
        if all(map(is_whole_number, bounds)):
            return {"distribution": "int_uniform"}
        return {"distribution": "uniform"}
    return {}
