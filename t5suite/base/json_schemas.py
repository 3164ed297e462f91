"""JSON schemas, as `jsonschema` checks them, in which a subschema's `description` says what would be right.

    >>> schema = {"properties": {"accuracy": {"type": "number", "description": "a finite number"}}}
    >>> first_problem({"accuracy": "75"}, schema)
    "'accuracy' is '75', not a finite number"

A "number" is finite and far from the largest float, and 2.0 is no "integer". A "float number" is one that a float can
hold. The type "json number" has no bound, but NaN and infinities are none.
"""

import functools
import math
import sys

TABLE = {"type": "object", "description": "a table"}


def is_finite_number(value) -> bool:
    """Whether it is a number that one can compute with; True is none."""
    return is_json_number(value) and abs(value) < 1e300


def is_json_number(value) -> bool:
    """Whether JSON has a form of the number: NaN and the infinities have none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < math.inf


def is_float_number(value) -> bool:
    """Whether a float can hold the number: 1e305 and not 10**400, NaN or an infinity."""
    return is_json_number(value) and abs(value) <= sys.float_info.max


def is_whole_number(value) -> bool:
    """Whether it is an integer, not one like 2.0."""
    return isinstance(value, int) and is_finite_number(value)


def problems_of(value, schema: dict):
    """`jsonschema`'s errors of a value, in the schema's order."""
    return _validator_class()(schema).iter_errors(value)


def first_problem(value, schema: dict) -> str:
    """The first part of a value that does not fit a schema of types, bounds and needed keys; empty if all fit."""
    for error in problems_of(value, schema):
        place = ".".join(map(str, error.absolute_path))
        if error.validator == "required":
            missing = next(name for name in error.validator_value if name not in error.instance)
            return f"{place!r} has no {missing!r}"
        return f"{place!r} is {error.instance!r:.60}, not {error.schema['description']}"
    return ""


@functools.cache
def _validator_class():
    from jsonschema import Draft202012Validator, validators

    checker = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "number": lambda _, value: is_finite_number(value),
            "float number": lambda _, value: is_float_number(value),
            "json number": lambda _, value: is_json_number(value),
            "integer": lambda _, value: is_whole_number(value),
        }
    )
    return validators.extend(Draft202012Validator, type_checker=checker)
