"""`t5suite completion`: the script that lets a shell complete sub-commands, flags and values.

    source <(t5suite completion bash)          # then: t5suite score --bench<TAB> su<TAB> -> --benchmark super_glue

The script is made from the parser itself by shtab, so that a key press starts no Python. Values are completed where
they are one of a list (tasks, presets, objectives) or a file or folder.
"""

import argparse

from t5suite.base.errors import ConfigError
from t5suite.base.files import shipped_folder
from t5suite.base.script_flags import flags_of
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.launch.script_help import values_of

SCRIPTS = ("fine_tune_t5", "pre_train_t5")
# Programs that a script's name may stand behind.
LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed")


def script_parser(script: str, shows_all: bool = False) -> argparse.ArgumentParser:
    """The flags of an entry script as a parser to be completed, not to parse by.

    >>> script_parser("fine_tune_t5").prog
    'fine_tune_t5.py'

    Args:
      shows_all: Hugging Face's rarely used flags, too.
    """
    parser = argparse.ArgumentParser(prog=f"{script}.py", add_help=False)
    recipes = sorted(path.name for path in shipped_folder("recipes").glob("*.yaml"))
    parser.add_argument("config_file", nargs="?", choices=recipes, help="a YAML file, or a recipe")
    for flag in ("--help", "--help_all", "--version"):
        parser.add_argument(flag, action="store_true", help="shown before anything is loaded")
    for name, entry in flags_of(script).items():
        if shows_all or entry["theme"] != "rest":
            _add(parser, name, entry)
    return parser


def _add(parser: argparse.ArgumentParser, name: str, entry: dict) -> None:
    choices = ["True", "False"] if entry["type"] == "bool" else list(map(str, entry["choices"] or [])) or None
    nargs = "*" if entry["list"] else "?" if entry["type"] == "bool" else None
    help_text = (entry.get("help") or name).partition(". ")[0].replace("%", "%%")  # argparse formats it
    parser.add_argument(
        f"--{name}", nargs=nargs, choices=choices, metavar=values_of(name, entry) or name.upper(), help=help_text
    )


def behind_launchers(script: str, function: str) -> str:
    """What bash needs to complete `python SCRIPT --fl<TAB>`: the words before the script are passed over.

    Args:
      function: shtab's, which completes the script as a command of its own.
    """
    return LAUNCHED.format(script=f"{script}.py", function=function, name=script, launchers=" ".join(LAUNCHERS))


LAUNCHED = """
# python {script} --<TAB>, and behind other launchers
_t5suite_behind_{name}() {{
  local i
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ "${{COMP_WORDS[i]##*/}}" == "{script}" ]]; then
      COMP_WORDS=("${{COMP_WORDS[@]:i}}")
      COMP_CWORD=$((COMP_CWORD - i))
      {function}
      return
    fi
  done
  COMPREPLY=()
  [[ -n "$_t5suite_next_of_{name}" ]] && "$_t5suite_next_of_{name}" "$@"
}}
# Who completed python before (the other script of ours, say) is asked next.
_t5suite_next_of_{name}="$(complete -p python 2>/dev/null | sed -n 's/.*-F \\([^ ]*\\) .*/\\1/p')"
[[ "$_t5suite_next_of_{name}" == "_t5suite_behind_{name}" ]] && _t5suite_next_of_{name}=
complete -o default -F _t5suite_behind_{name} {launchers}
"""


SHELLS = ("bash", "zsh", "fish")
# Values that name a file or a folder, by the flag.
FOLDERS = (
    "train_dir",
    "aim_repo",
    "data_dir",
    "output_dir",
    "run_dir",
    "predictions_dir",
    "sweep_dir",
    "log_dir",
    "directories",
)
FILES = (
    "task_file",
    "rows",
    "predictions",
    "input",
    "output",
    "output_file",
    "files",
    "corpus",
    "config",
    "train_file",
    "validation_file",
    "test_file",
    "accelerate_config",
    "setup",
    "model_name_or_path",
    "tokenizer_name",
    "adapter_base",
    "init_checkpoint",
)


def completion_flags(parser) -> None:
    """Flags of `t5suite completion`."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=SHELLS, help="whose language the script is in")
    parser.add_argument("--script", choices=SCRIPTS, help="complete the flags of this script, in place of t5suite's")
    parser.add_argument("--all", action="store_true", help="--script: Hugging Face's rarely used flags, too")


def complete(arguments) -> None:
    """Prints the script; `arguments.parser` is the parser of the whole command."""
    import shtab

    if arguments.all and arguments.script is None:
        raise ConfigError("--all has no effect without --script: t5suite's own flags are all completed")
    parser = script_parser(arguments.script, arguments.all) if arguments.script else arguments.parser
    prepare(parser)
    print(shtab.complete(parser, arguments.shell))
    if arguments.script and arguments.shell == "bash":
        print(behind_launchers(arguments.script, f"_shtab_{arguments.script}_py"))


def prepare(parser: argparse.ArgumentParser) -> None:
    """Gives every value of the parser and its sub-commands what it is completed to."""
    import shtab

    choices = closed_values()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                prepare(sub)
        elif action.dest in FOLDERS:
            action.complete = shtab.DIRECTORY
        elif action.dest in FILES:
            action.complete = shtab.FILE
        elif not action.choices and action.nargs != 0:
            action.choices = choices.get(action.dest)


def closed_values() -> dict[str, list[str]]:
    """`{flag: values}` of the flags whose values are looked up in a table when they are used.

    >>> closed_values()["dataset_name"][:3]
    ['all', 'ax', 'axb']
    """
    from t5suite.base.script_flags import flag_table
    from t5suite.commands.export import FORMATS
    from t5suite.launch.slurm import KINDS
    from t5suite.models.presets import PRESETS

    found = {
        name: list(map(str, entry["choices"]))
        for flags in flag_table()["scripts"].values()
        for name, entry in flags.items()
        if "choices" in entry
    }
    tasks = {name for table in (DATASET_VALS, MIXTURES) for names in table.values() for name in names}
    return found | {
        "benchmark": sorted(DATASET_VALS),
        "dataset_name": sorted(tasks),
        "split": ["train", "validation", "test"],
        "config_name": list(PRESETS),
        "format": list(FORMATS),
        "kind": list(KINDS),
        "dtype": ["float32", "bfloat16"],
    }


EXAMPLES = """examples:
  t5suite completion bash > ~/.local/share/bash-completion/completions/t5suite
  t5suite completion zsh > ~/.zfunc/_t5suite              # with `fpath+=~/.zfunc` before compinit in .zshrc
  t5suite completion fish > ~/.config/fish/completions/t5suite.fish
  source <(t5suite completion bash --script fine_tune_t5)       # python fine_tune_t5.py --optimi<TAB>"""
