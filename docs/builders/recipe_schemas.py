"""JSON schemas of recipes, for editors: names, types, choices and bounds of a script's flags, from the table of flags.

An editor with the YAML language server completes and checks a file that begins with
`# yaml-language-server: $schema=PATH/recipes/fine_tune.schema.json`.
"""

import json
import math
import re

from t5suite.base.script_flags import ENDS, flags_of, offered_choices

TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "dict": "object"}


def schema_of(script: str) -> str:
    """The text of a script's schema, one line a flag."""
    flags = {name: json.dumps(entry_of(flag)) for name, flag in sorted(flags_of(script).items())}
    lines = ",\n".join(f'  "{name}": {text}' for name, text in flags.items())
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"a recipe of {script}.py"}
    head |= {"type": "object", "additionalProperties": False}
    return f'{json.dumps(head)[:-1]}, "properties": {{\n{lines}\n}}}}\n'


def entry_of(flag: dict) -> dict:
    """A flag's schema.

    >>> entry_of({"type": "int", "bounds": "[2, inf) tokens", "help": "Longest target in tokens."})
    {'description': 'Longest target in tokens.', 'type': 'integer', 'minimum': 2.0}
    """
    one = {"enum": offered_choices(flag)} if flag.get("choices") else {"type": TYPES[flag["type"]]}
    if one.get("type") in ("string", "object"):  # numbers and words are texts, too; a table may be text
        one = {"type": ["string", "number", "boolean", "object"]}
    if flag.get("bounds"):
        opening, ends, closing = re.match(r"([\[(])(.*?)([\])])", flag["bounds"]).groups()
        least, largest = (math.inf if end.strip() in ENDS else float(end) for end in ends.split(","))
        one |= {} if math.isinf(least) else {"minimum" if opening == "[" else "exclusiveMinimum": least}
        one |= {} if math.isinf(largest) else {"maximum" if closing == "]" else "exclusiveMaximum": largest}
    kinds = [one, *([{"const": flag["also"]}] if flag.get("also") is not None else [])]
    kinds += [{"type": "array", "items": one}] if flag.get("list") else []
    kinds += [{"type": "null"}, {"const": "None"}] if flag.get("none") else []
    return {"description": flag["help"], **(one if len(kinds) == 1 else {"anyOf": kinds})}
