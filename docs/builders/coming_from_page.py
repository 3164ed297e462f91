"""docs/coming_from.md: the names of other systems' flags and commands here, from `coming_from/*.yaml`.

>>> systems()[0]["flags"][0]
['lr', '`--learning_rate`', '']
"""

from pathlib import Path

from docs.builders.markdown import MADE, code, table
from t5suite.base.yaml_files import read_yaml

FOLDER = Path(__file__).parent / "coming_from"
# The tables of a system, in the page's order: key of the file, title, head of its first column.
TABLES = {"commands": ("Commands", "there"), "flags": ("Flags", "there"), "gin": ("Gin bindings", "there")}


def page() -> str:
    """The page's text."""
    parts = [MADE.format(sources="docs/builders/coming_from/*.yaml"), INTRODUCTION]
    for system in systems():
        parts += [f"## {system['system']}", system["about"].strip() + "."]
        for key, (title, head) in TABLES.items():
            if key in system:
                rows = [[_names(theirs, key), ours, note] for theirs, ours, note in system[key]]
                parts += [f"**{title}**", table([head, "here", ""], rows)]
    return "\n\n".join(parts) + "\n"


def systems() -> list[dict]:
    """The files, in the order of their names."""
    return [read_yaml(str(path)).content for path in sorted(FOLDER.glob("*.yaml"))]


def _names(theirs: str, key: str) -> str:
    """Names of flags as code; other cells mark code themselves."""
    return theirs if "`" in theirs or key != "flags" else ", ".join(code(name) for name in theirs.split(", "))


INTRODUCTION = """# Coming from another system

What its flags and commands are called here. Names are those of the versions given; `–` means that there is no
counterpart, with the reason next to it. A test checks that all names in the second column exist."""
