"""`--help`, `--help_all` and `--version` of the entry scripts, printed from the table of flags before torch is loaded.

    >>> answer(["--help"], "fine_tune_t5", "Fine-tunes a language model.")
    usage: fine_tune_t5.py [config.yaml] [--flag value | --flag=value ...]
    ...

`--help` shows the flags that most runs need (marked `common`), by theme and as wide as the terminal; `--help_all` shows
all of them.
"""

import argparse
import functools
import importlib.metadata
import platform
import shutil
import textwrap

from t5suite.base.programs import discard_output
from t5suite.base.provenance import PACKAGES, code_title
from t5suite.base.script_flags import THEMES, flags_of, offered_choices

QUESTIONS = ("-h", "--help", "--help_all", "--help-all", "--version")
# Columns: the limits of the width of lines, whatever the terminal has.
WIDEST, NARROWEST = 120, 40
# The column where the texts begin, by the least width for it; a longer flag has its text on the next line.
TEXT_COLUMNS = {100: 34, 72: 28, 0: 8}
# Choices of more characters are not shown after the flag.
LONGEST_CHOICES = 44
METAVARS = {"int": "N", "float": "X", "str": "TEXT", "dict": "KEY=VALUE,..."}
# By the flag's name, or its end.
ENDINGS = {
    "_dir": "DIR", "_file": "FILE", "_name_or_path": "NAME", "_path": "PATH", "_name": "NAME", "_regex": "REGEX",
    "_column": "COLUMN", "benchmark": "NAME", "rows": "FILE", "predictions": "FILE", "deepspeed": "NAME",
    "fsdp_config": "FILE",
}  # fmt: skip
# A longer list of choices is shown by `--help_all` alone.
MANY_CHOICES = 12
ENDING = (
    "A YAML file of the same names may come first, or as --config FILE; flags override it. A flag that is on by "
    "default is turned off by --flag False."
)
# Shown only if they are installed: runs do not need them.
OPTIONAL = ("deepspeed", "peft", "bitsandbytes", "optuna", "wandb", "tensorboard", "trackio", "aim", "onnxruntime")


def answer(argv: list[str], script: str, description: str, program: str | None = None) -> None:
    """Prints the help or versions that the command line asks for and exits with 0; returns if it asks for neither."""
    question = next((word for word in argv if word in QUESTIONS), None)
    if question is None:
        return
    if question == "--version":
        text = versions_text()
    else:
        text = help_text(script, description, shows_all=question.endswith("all"), program=program)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard_output()
    raise SystemExit(0)


def help_text(script: str, description: str, shows_all: bool, program: str | None) -> str:
    """The whole help, as wide as the terminal, within limits.

    Args:
      script: 'fine_tune_t5' or 'pre_train_t5'.
      shows_all: every flag.
      program: the program's name; None: the script's file.
    """
    width = max(NARROWEST, min(shutil.get_terminal_size((80, 24)).columns, WIDEST))
    flags = flags_of(script)
    shown_flags = {name: entry for name, entry in flags.items() if shows_all or "common" in entry["marks"]}
    epilog = ENDING
    if not shows_all:
        epilog += f" {len(flags) - len(shown_flags)} more flags, Hugging Face's among them: --help_all."
    text_column = next(column for least, column in TEXT_COLUMNS.items() if width >= least)
    program = program or f"{script}.py"
    parser = argparse.ArgumentParser(
        usage=f"{program} [config.yaml] [--flag value | --flag=value ...]",
        description=_filled(description, width),
        epilog=textwrap.fill(epilog, width),
        add_help=False,
        formatter_class=functools.partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=text_column, width=width
        ),
    )
    _add_flags(parser, shown_flags, shows_all)
    return parser.format_help().rstrip()


def _filled(description: str, width: int) -> str:
    """The description with its paragraphs filled; indented examples are unchanged."""
    paragraphs = []
    for paragraph in description.strip().split("\n\n"):
        if not paragraph.startswith(" "):
            paragraph = textwrap.fill(" ".join(paragraph.split()), width)
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def _add_flags(parser: argparse.ArgumentParser, flags: dict[str, dict], shows_all: bool) -> None:
    """Adds the flags by theme, in the order in which the themes come up."""
    groups = {}
    for name, entry in flags.items():
        theme = THEMES[entry["theme"]]
        if theme not in groups:
            groups[theme] = parser.add_argument_group(theme)
        placeholder = values_of(name, entry)
        text = text_of(entry, placeholder, shows_all).replace("%", "%%")
        if placeholder:
            groups[theme].add_argument(f"--{name}", help=text, metavar=placeholder)
        else:
            groups[theme].add_argument(f"--{name}", help=text, action="store_true")


def values_of(name: str, entry: dict) -> str:
    """What follows the flag: its choices, or a placeholder for its type; nothing for a flag without a value."""
    placeholder = _placeholder(name, entry)
    if entry["list"]:
        return f"{placeholder} ..."
    return placeholder


def _placeholder(name: str, entry: dict) -> str:
    """`{yes,no}`, `N` or `FILE`."""
    if entry["type"] == "bool":
        if entry.get("default") is False:
            return ""
        return "{True,False}"
    if entry["choices"]:
        choices = "{" + ",".join(map(str, entry["choices"])) + "}"
        if len(choices) > LONGEST_CHOICES:
            return "NAME"
        return choices
    for ending, placeholder in ENDINGS.items():
        if name.endswith(ending):
            return placeholder
    return METAVARS[entry["type"]]


def text_of(entry: dict, values: str, shows_all: bool = False) -> str:
    """What a flag means, its choices and its default.

    >>> text_of(flags_of("fine_tune_t5")["max_train_samples"], "N")
    'Largest number of training rows a task.'

    Args:
      values: what follows the flag; choices shown there, and long lists of choices, are omitted.
      shows_all: shows long lists, too.
    """
    text = entry.get("help", "")
    sentences = [text, _choices_in_words(entry, values, shows_all)]
    if "efault: " not in text:
        sentences.append(_default_in_words(entry))
    return " ".join(filter(None, sentences))


def _choices_in_words(entry: dict, values: str, shows_all: bool) -> str:
    if not entry["choices"] or values.startswith("{"):
        return ""
    choices = offered_choices(entry)
    if len(choices) > MANY_CHOICES and not shows_all:
        return ""
    return f"One of {', '.join(map(str, choices))}."


def _default_in_words(entry: dict) -> str:
    """`(default: 5e-05)`; nothing for a flag that is off by default."""
    default = entry.get("default")
    is_off = default is None or default is False or default == ""
    if is_off:
        return ""
    if isinstance(default, float):
        return f"(default: {default:g})"
    return f"(default: {default})"


def versions_text() -> str:
    """t5suite, Python and the packages, one line each; `t5suite doctor` reports GPUs, for which it imports torch."""
    lines = [code_title(), f"python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    for package in (*PACKAGES[1:], *OPTIONAL):
        try:
            lines.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            if package in PACKAGES:
                lines.append(f"{package} is not installed")
    return "\n".join(lines)
