"""Shell completion of the entry scripts' flags, also behind `python`, `accelerate launch` and the like in bash.

    source <(t5suite completion bash --script fine_tune_t5)
    python fine_tune_t5.py --optimi<TAB> ada<TAB>                # --optimizer adafactor

A parser is made from the table of flags (`t5suite.base.script_flags`), so that no torch is loaded, and shtab makes
the script of it. In bash the launchers' own completion begins anew at the script's name; where no script of ours
stands, they complete file names. zsh's `_python` does so by itself.
"""

import argparse

from t5suite.base.files import shipped_folder
from t5suite.launch.flag_themes import REST
from t5suite.launch.script_help import flags_by_theme, values_of

SCRIPTS = ("fine_tune_t5", "pre_train_t5")
# Programs that a script's name may stand behind.
LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed")


def script_parser(script: str, shows_all: bool = False) -> argparse.ArgumentParser:
    """The flags of an entry script as a parser to be completed, not to parse by.

    >>> script_parser("fine_tune_t5").prog
    'fine_tune_t5.py'

    Args:
      shows_all: Hugging Face's rarely used flags, too, as in `--help_all`.
    """
    parser = argparse.ArgumentParser(prog=f"{script}.py", add_help=False)
    recipes = sorted(path.name for path in shipped_folder("recipes").glob("*.yaml"))
    parser.add_argument("config_file", nargs="?", choices=recipes, help="a YAML file, or a recipe")
    for flag in ("--help", "--help_all", "--version"):
        parser.add_argument(flag, action="store_true", help="shown before anything is loaded")
    for theme, flags in flags_by_theme(script).items():
        for name, entry in flags.items() if shows_all or theme != REST else ():
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
