"""`t5suite completion`: the script that lets a shell complete sub-commands, flags and values.

    source <(t5suite completion bash)          # then: t5suite score --bench<TAB> su<TAB> -> --benchmark super_glue

shtab makes the script from the parser itself, so that a key press starts no Python. Values are completed where they are
one of a list (tasks, presets, objectives) or a file or folder.
"""

import argparse

from t5suite.base.errors import ConfigError
from t5suite.base.files import shipped_folder
from t5suite.base.script_flags import flag_table, flags_of
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.launch.script_help import values_of

EXAMPLES = """examples:
  t5suite completion bash > ~/.local/share/bash-completion/completions/t5suite
  t5suite completion zsh > ~/.zfunc/_t5suite              # with `fpath+=~/.zfunc` before compinit in .zshrc
  t5suite completion fish > ~/.config/fish/completions/t5suite.fish
  source <(t5suite completion bash --script fine_tune_t5)       # python fine_tune_t5.py --optimi<TAB>"""
# Completes `python SCRIPT --fl<TAB>` by shtab's function for the script, which gets the words from the script on.
BEHIND_LAUNCHERS = """
_t5suite_behind_launcher() {
  local i function
  for ((i = 1; i < COMP_CWORD; i++)); do
    function="_shtab_${COMP_WORDS[i]##*/}"
    function="${function%.py}_py"
    if declare -F -- "$function" > /dev/null; then
      COMP_WORDS=("${COMP_WORDS[@]:i}")
      COMP_CWORD=$((COMP_CWORD - i))
      "$function"
      return
    fi
  done
  COMPREPLY=()
}
complete -o default -F _t5suite_behind_launcher python python3 torchrun accelerate deepspeed
"""


def completion_flags(parser) -> None:
    """Flags of `t5suite completion`."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose language the script is in")
    scripts = ("fine_tune_t5", "pre_train_t5")
    parser.add_argument("--script", choices=scripts, help="complete the flags of this script, in place of t5suite's")


def complete(arguments) -> None:
    """Prints the script; `arguments.parser` is the parser of the whole command."""
    try:
        import shtab
    except ImportError:
        raise ConfigError("t5suite completion needs shtab: pip install 't5suite[completion]'") from None

    parser = script_parser(arguments.script) if arguments.script else arguments.parser
    for sub in [] if arguments.script else parser._subparsers._group_actions:
        for name in ("fine_tune", "evaluate", "pre_train"):
            script_parser("pre_train_t5" if name == "pre_train" else "fine_tune_t5", sub.choices[name])
    prepare(parser, closed_values())
    print(shtab.complete(parser, arguments.shell))
    if arguments.script and arguments.shell == "bash":
        print(BEHIND_LAUNCHERS)


def script_parser(script: str, parser=None) -> argparse.ArgumentParser:
    """The flags of an entry script as a parser to be completed, not to parse by; without Hugging Face's rare ones.

    Args:
      parser: that of a sub-command which gets them.
    """
    parser = parser or argparse.ArgumentParser(prog=f"{script}.py")
    recipes = sorted(path.name for path in shipped_folder("recipes").glob("*.yaml"))
    parser.add_argument("config_file", nargs="?", choices=recipes, help="a YAML file, or a recipe")
    for flag in ("--help_all", "--version"):
        parser.add_argument(flag, action="store_true", help="shown before anything is loaded")
    for name, entry in flags_of(script).items():
        if entry["theme"] != "rest":
            choices = ["True", "False"] if entry["type"] == "bool" else list(map(str, entry["choices"] or [])) or None
            nargs = "*" if entry["list"] else "?" if entry["type"] == "bool" else None
            help_text = (entry.get("help") or name).partition(". ")[0].replace("%", "%%")  # argparse formats it
            metavar = values_of(name, entry) or name.upper()
            parser.add_argument(f"--{name}", nargs=nargs, choices=choices, metavar=metavar, help=help_text)
    return parser


def prepare(parser: argparse.ArgumentParser, choices: dict[str, list[str]]) -> None:
    """Sets for every value of the parser and its sub-commands what it is completed to."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                prepare(sub, choices)
        elif not action.choices and action.nargs != 0:
            word = action.metavar or values_of(action.dest, {"type": "str", "choices": None, "list": False})
            if action.dest in choices:
                action.choices = choices[action.dest]
            elif word in ("DIR", "RUN"):
                action.complete = shtab.DIRECTORY
            elif word in ("FILE", "PATH", "INPUT") or action.dest.endswith("_name_or_path"):
                action.complete = shtab.FILE


def closed_values() -> dict[str, list[str]]:
    """`{flag: values}` of the flags whose values are found in a table when they are used.

    >>> closed_values()["dataset_name"][:3]
    ['all', 'ax', 'axb']
    """
    from t5suite.commands.models import FORMATS, PRECISIONS
    from t5suite.launch.slurm import KINDS
    from t5suite.models.presets import PRESETS

    entries = [item for flags in flag_table()["scripts"].values() for item in flags.items()]
    return {name: list(map(str, entry["choices"])) for name, entry in entries if "choices" in entry} | {
        "benchmark": sorted(DATASET_VALS),
        "dataset_name": sorted(
            {name for table in (DATASET_VALS, MIXTURES) for names in table.values() for name in names}
        ),
        "split": ["train", "validation", "test"], "config_name": list(PRESETS), "format": list(FORMATS),
        "kind": list(KINDS), "dtype": list(PRECISIONS),
    }  # fmt: skip
