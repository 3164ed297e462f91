"""docs/flags.md: every flag of ours and the much used ones of Hugging Face's, out of the table of flags."""

from docs.builders.markdown import MADE, table
from t5suite.base.script_flags import THEMES, flags_of
from t5suite.launch.script_help import text_of, values_of

BEGINNING = """
# Flags

`t5suite fine_tune --help` shows the flags that most runs need, with defaults and units; `--help_all` shows every one.

A YAML file of the same names may come first (or as `--config FILE`); flags override it. A recipe that begins with
`# yaml-language-server: $schema=fine_tune.schema.json` (the schemas lie in `recipes/`) is completed and checked by
editors. `--flag value`, `--flag=value`, `True`, `False` and `None` are understood, and `1e-5` in YAML is a number. An
unknown name or value is answered with the closest ones, file and line. Refused are: a flag given twice with different
values, a name that stands twice in a file, a number out of its flag's range, and `010` or `10:12` without quotes in YAML
(read as 8 and 612). A flag that has no effect in a run is warned of, or refused. A refused run leaves nothing behind.

## fine_tune_t5.py
"""
BETWEEN = """
## pre_train_t5.py

`t5suite pre_train` has the model's flags, those of training, output, resuming, tracking and devices, too. Here are the
others, and those with another meaning or default.
"""


def page() -> str:
    """The page's text."""
    first, second = flags_of("fine_tune_t5"), flags_of("pre_train_t5")
    others = {name: entry for name, entry in second.items() if _row(name, entry) != _row(name, first.get(name, entry))}
    others |= {name: entry for name, entry in second.items() if name not in first}
    made = MADE.format(sources="the argument dataclasses (t5suite/training/flags/)")
    return "\n".join([made, BEGINNING, *_sections(first), BETWEEN, *_sections(others)]).rstrip() + "\n"


def _sections(flags: dict[str, dict]) -> list[str]:
    """A heading and a table for each theme, of the flags that are ours or have a theme of their own."""
    lines = []
    for theme, heading in THEMES.items():
        rows = [_row(name, entry) for name, entry in flags.items() if entry["theme"] == theme and theme != "rest"]
        if rows:
            title = f"[{heading[0].upper()}{heading[1:]}]({GUIDES[theme]})"
            lines += [f"### {title}", "", table(["flag", "meaning"], rows), ""]
    return lines


def _row(name: str, entry: dict) -> list[str]:
    values = values_of(name, entry)
    return [f"`{f'--{name} {values}'.strip()}`", text_of(entry, values).replace("<", "&lt;")]


# {theme: the guide that tells more}
GUIDES = {
    "data": "fine_tune.md",
    "rows": "data.md",
    "instructions": "tasks.md",
    "text": "pre_training.md",
    "objective": "pre_training.md",
    "model": "models.md",
    "adapters": "models.md",
    "training": "fine_tune.md",
    "evaluation": "fine_tune.md",
    "plug-ins": "python.md",
    "output": "results.md",
    "resuming": "reliability.md",
    "tracking": "results.md",
    "speed": "performance.md",
    "devices": "distributed.md",
}
