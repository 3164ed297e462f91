"""The `t5suite` command: thin sub-commands over the other packages.

    t5suite tasks --benchmark glue
    t5suite preview --benchmark glue --dataset_name rte --rows rows.jsonl --json

Commands that print data take `--json`: JSON lines on standard output, everything else on standard error. What a
sub-command needs is imported when it runs, so that `--help` and `tasks` answer at once. A new sub-command is one entry
of COMMANDS at the end of this file.
"""

import argparse
import functools
import gc
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import closest, in_plain_words
from t5suite.base.programs import discard_output, open_missing_streams, run_command
from t5suite.base.script_flags import SCRIPTS, script_command
from t5suite.commands import (
    adapt,
    compare,
    corpus,
    demo,
    doctor,
    export,
    mirror,
    predict,
    preview,
    report,
    score,
    serve,
    slurm,
    submit,
    summary,
    sweep,
    tasks,
    tokenizer,
    trim,
    verify,
)
from t5suite.commands.startup import run_script
from t5suite.launch.command_line import check_is_text, without_launcher_flags
from t5suite.launch.script_help import values_of

# With more flags than these, the usage line is too long to read.
MANY_FLAGS = 6
# Flags that may be repeated.
REPEATABLE = ("--env", "--grid")


class Command(NamedTuple):
    """A sub-command: the flags it takes, what it does with them (None: a script's), a line of help, an example."""

    add_flags: Callable[[argparse.ArgumentParser], None] | None
    run: Callable[[argparse.Namespace], None] | None
    help: str
    example: str


def run() -> None:
    """The console script: `main` on the command line, user errors as one message, the exit code of the error."""
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        # Text of any language prints in any locale; half a surrogate pair as \udXXX, which JSON can read.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    # Importing makes no garbage: collecting after every 700 objects took an eighth of a command that needs torch.
    gc.set_threshold(50_000)
    code = run_command(main)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    if "triton" not in sys.modules:  # its 3.9 and later reports every object that the last collection does not find
        # The interpreter's last collection goes through all of torch: a second, in which nothing is found.
        gc.freeze()
    sys.exit(code)


def main(argv=None) -> None:
    """Runs one sub-command.

    >>> main(["tasks", "--benchmark", "mini"])

    Raises:
      ConfigError, DataError: what the user gave is wrong.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    name = script_command(argv[0]) if argv else None
    try:
        if name is not None:
            command = COMMANDS[name]
            description = f"{command.help}; an example:\n\n    {command.example}"
            words = [*argv[1:], "--eval_only"] if name == "evaluate" else argv[1:]
            run_script(SCRIPTS[name], words, description, f"t5suite {name}")
        arguments = parse_command_line(argv)
        if arguments is not None:
            COMMANDS[arguments.command].run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def parse_command_line(argv: list[str]) -> argparse.Namespace | None:
    """The flags of a sub-command; without any argument, prints the help and returns None.

    Raises:
      ConfigError: an unknown sub-command, flag or choice (with the closest ones), a flag without its value.
    """
    check_is_text(argv)
    if not argv:
        _parser(COMMANDS).print_help()
        return None
    if argv[0] == "--version":
        from t5suite.launch.script_help import versions_text

        print(versions_text(), flush=True)
        return None
    argv, words = _split_words(argv)
    argv = [_with_underscores(token) for token in without_launcher_flags(argv)]
    parser = _checked_parser(argv)
    arguments, unexpected = parser.parse_known_args(argv)
    command = parser.parsers[arguments.command]
    if unexpected and not command.parsers:
        # With flags between a command's words (`sweep lint --json FILE`), argparse takes the first words alone.
        with_command = argparse.Namespace(command=arguments.command)
        arguments, unexpected = command.parse_known_intermixed_args(argv[1:], with_command)
    place = f"t5suite {arguments.command}"
    if unexpected:
        raise ConfigError(
            f"{place}: unexpected {unexpected[0]!r}; flags come after the command, values after their flag"
        )
    if words and not getattr(arguments, "takes_words", False):
        raise ConfigError(f"{place} takes no command after `--`: {words[0]!r}")
    arguments.words = words
    return arguments


def _checked_parser(argv: list[str]) -> "CommandParser":
    """The parser of these words, once its sub-command and its flags are known to be there.

    Raises:
      ConfigError: a flag before the command, a command of another program, an unknown or repeated flag.
    """
    first_word = argv[0] if argv else ""
    if first_word.startswith("--") and first_word not in ("--help", "--"):
        raise ConfigError(
            f"t5suite: {first_word} before the command; write t5suite COMMAND {first_word} ...: t5suite --help"
        )
    if first_word in HINTS:
        raise ConfigError(f"t5suite: unknown sub-command {first_word!r}; {HINTS[first_word]}")
    if first_word not in COMMANDS:
        return _parser(COMMANDS)  # it names them all
    parser = _parser([first_word])
    # Before argparse, which would report a mistyped required flag as missing.
    action = " ".join(argv[:2])
    command = action if action in parser.flags_of else first_word
    _check_flags(command, argv[1:], parser.flags_of[command])
    return parser


def _split_words(argv: list[str]) -> tuple[list[str], list[str]]:
    """The flags, and the words of another command after the first `--`."""
    if "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _with_underscores(token: str) -> str:
    """A flag in the spelling of our tables: `--data-dir=x` is `--data_dir=x`."""
    name, equals, text = token.partition("=")
    if not name.startswith("--"):
        return token
    return f"--{name[2:].replace('-', '_')}{equals}{text}"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines, values are named by their kind, defaults that the help does not state are added."""

    def _get_default_metavar_for_optional(self, action):
        kind = {int: "int", float: "float"}.get(action.type, "str")
        return values_of(action.dest, {"choices": None, "list": False, "type": kind})

    def _get_help_string(self, action):
        default = action.default
        is_value = isinstance(default, (str, int, float)) and not isinstance(default, bool)
        if not is_value or default == argparse.SUPPRESS or "default" in action.help:
            return action.help
        return f"{action.help} (default: %(default)s)"


class CommandParser(argparse.ArgumentParser):
    """`ArgumentParser` whose errors are `ConfigError`s with the closest choices.

    Attributes:
      flags_of: by sub-command, and by its actions (`corpus build`), its flags, and whether each takes a list.
      parsers: those of its sub-commands, by name.
      actions: what `add_argument` has returned, for itself and for its groups.
    """

    def __init__(self, **kwargs):
        self.actions: list[argparse.Action] = []  # argparse adds --help at once
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **kwargs)
        self.flags_of: dict[str, dict[str, bool]] = {}
        self.parsers: dict[str, CommandParser] = {}

    def add_argument(self, *names, **kwargs):
        action = super().add_argument(*names, **kwargs)
        self.actions.append(action)
        return action

    def add_argument_group(self, *args, **kwargs):
        group = super().add_argument_group(*args, **kwargs)
        group.add_argument = functools.partial(self._add_to_group, group.add_argument)
        return group

    def _add_to_group(self, add_argument, *names, **kwargs):
        action = add_argument(*names, **kwargs)
        self.actions.append(action)
        return action

    def add_subparsers(self, **kwargs):
        subparsers = super().add_subparsers(**kwargs)
        self.parsers = subparsers.choices
        self.actions.append(subparsers)
        return subparsers

    def error(self, message):
        message = re.sub(r"^(COMMAND|ACTION): unknown choice", "unknown sub-command", in_plain_words(message))
        raise ConfigError(f"{self.prog}: {message}")

    def print_help(self, file=None):
        super().print_help(file)
        sys.stdout.flush()  # here, where a closed pipe is still caught


def _parser(names: Iterable[str]) -> CommandParser:
    """The parser of the command with these sub-commands: one, where it is known which; making all takes 20 ms."""
    parser = CommandParser(
        prog="t5suite",
        description="Fine-tune, pre-train and compare text-to-text models.",
        epilog="`t5suite COMMAND --help` shows a command's flags and an example.",
    )
    parser.add_argument("--version", action="store_true", help="show the versions of this, Python and the libraries")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        command = COMMANDS[name]
        sub = commands.add_parser(
            name, help=command.help, description=command.help, epilog=f"example:\n  {command.example}"
        )
        if name not in SCRIPTS:
            command.add_flags(sub)
        _prepare(sub, name, parser.flags_of)
    return parser


def _prepare(parser, name: str, flags_of: dict) -> None:
    """Notes the flags of a sub-command and of its actions; of many flags, the usage names those that must be given."""
    flags = {}
    for action in parser.actions:
        for flag in action.option_strings:
            if flag.startswith("--"):
                flags[flag] = action.nargs in ("+", "*")
    flags_of[name] = flags
    for choice, sub in parser.parsers.items():
        _prepare(sub, f"{name} {choice}", flags_of)
    if len(flags) > MANY_FLAGS:
        needed = [action for action in parser.actions if action.required]
        formatter = parser.formatter_class(prog=parser.prog)
        formatter.add_usage(None, needed, [], prefix="")
        parser.usage = f"{' '.join(formatter.format_help().split())} [--flag value ...]"


def _check_flags(command: str, tokens: list[str], flags: Mapping[str, bool]) -> None:
    """Refuses unknown flags, with the closest ones, and a flag that is given for the second time with other values.

    Args:
      flags: those of the command, and whether each takes a list.
    """
    words_by_flag: dict[str, list[str]] = {}
    for place, token in enumerate(tokens):
        flag, equals, value = token.partition("=")
        if not flag.startswith("--") or flag == "--":
            continue
        if flag not in flags:
            hint = FLAG_HINTS.get((command, flag)) or _hint_at_flags(flag, flags)
            raise ConfigError(f"t5suite {command}: unknown flag {flag}; {hint}")
        if flag in REPEATABLE:
            continue
        words = [value]
        if not equals:
            words = list(itertools.takewhile(lambda token: not token.startswith("--"), tokens[place + 1 :]))
            if not flags[flag]:
                words = words[:1]  # what follows belongs to the command
        earlier_words = words_by_flag.setdefault(flag, words)
        if earlier_words != words:
            raise ConfigError(
                f"t5suite {command}: {flag} is given twice: {' '.join(earlier_words)} and {' '.join(words)}"
            )
        is_last = place + 1 == len(tokens)
        if flag == "--output_dir" and not "".join(words).strip() and (equals or not is_last):
            raise ConfigError(f"t5suite {command}: --output_dir is empty (a shell variable that is not set?)")


def _hint_at_flags(flag: str, flags: Iterable[str]) -> str:
    """What an unknown flag may have meant; all flags if none is similar."""
    likely = [name for name in flags if name in LIKELIEST.get(flag, ())]
    similar = likely or closest(flag, flags)
    return f"did you mean {', '.join(similar)}?" if similar else f"it takes {', '.join(flags)}"


# What a shorter name most likely means, where several flags are as close.
LIKELIEST = {
    "--model": ("--model_name_or_path",), "--file": ("--input", "--train_file"), "--data": ("--input", "--train_file"),
    "--tokenizer": ("--tokenizer_name",),
}  # fmt: skip
OWN_ROWS_AS_READ = "t5suite fine_tune --train_file FILE ... --dry_run shows rows of your own as the model reads them"
# Flags of another command that this one cannot have, and what does that here.
FLAG_HINTS = {
    ("serve", "--text_column"): "clients name the task's columns in each row of a request",
    ("preview", "--train_file"): OWN_ROWS_AS_READ,
    ("preview", "--text_column"): OWN_ROWS_AS_READ,
}
# Sub-commands of other programs, and what does that here.
HINTS = {
    "sft": "it is t5suite fine_tune",
    "chat": "t5suite predict --web asks a model in a browser, t5suite predict --input FILE answers the rows of a file",
    "merge": "t5suite export writes a model with its adapter merged",
}
COMMANDS = {
    "fine_tune": Command(None, None,
        "fine-tune a model on a task or a mixture of tasks, and score it",
        "t5suite fine_tune --benchmark glue --dataset_name rte --model_name_or_path google/t5-v1_1-small"),
    "pre_train": Command(None, None,
        "pre-train a model on text",
        "t5suite pre_train --train_file articles.jsonl.gz --config_name t5-v1_1-small --tokenizer_name t5-small"),
    "evaluate": Command(None, None,
        "score a model: fine_tune with --eval_only",
        "t5suite evaluate --benchmark glue --dataset_name rte --model_name_or_path runs/glue-rte-t5-v1_1-small"),
    "demo": Command(demo.demo_flags, demo.demo,
        "train the bundled tiny T5 on its three tasks and show what it learned: three to five minutes, no network",
        "t5suite demo"),
    "tasks": Command(tasks.tasks_flags, tasks.show_tasks,
        "list the tasks: splits with their official counts, and metrics",
        "t5suite tasks --benchmark super_glue --dataset_name copa"),
    "preview": Command(preview.preview_flags, preview.preview,
        "show the text pairs that rows become",
        "t5suite preview --benchmark glue --dataset_name mnli --rows rows.jsonl --split validation --json"),
    "score": Command(score.score_flags, score.score,
        "score predictions, in points from 0 to 100",
        "t5suite score --benchmark super_glue --dataset_name boolq --rows rows.jsonl --predictions predictions.jsonl"),
    "predict": Command(predict.predict_flags, predict.predict,
        "answer rows with a trained model: greedy, beams, sampling, label probabilities; resumable",
        "t5suite predict --model_name_or_path runs/mini-sentiment --input rows.jsonl --output answers.jsonl"),
    "serve": Command(serve.serve_flags, serve.serve,
        "answer clients over HTTP with a trained model: rows, or OpenAI's completions",
        "t5suite serve --model_name_or_path runs/mini-sentiment"),
    "submit": Command(submit.submit_flags, submit.submit,
        "write the leaderboard files of a benchmark from test predictions",
        "t5suite submit --benchmark glue --run_dir runs/glue-all-t5-base --output_dir submission"),
    "report": Command(report.report_flags, report.report,
        "show runs, or sweeps, in one table, and write a page, Markdown and plots of them",
        "t5suite report runs/mini-sentiment runs/mini-entailment runs/mini-similarity"),
    "compare": Command(compare.compare_flags, compare.compare,
        "compare two runs on the same rows: differences with p-values, examples that flipped",
        "t5suite compare runs/glue-rte-t5-small runs/glue-rte-t5-base"),
    "verify": Command(verify.verify_flags, verify.verify,
        "check a run's scores: fetch its rows, answer every one again with its model, compare",
        "t5suite verify runs/mini-sentiment"),
    "sweep": Command(sweep.sweep_flags, sweep.run_sweep,
        "search hyperparameters with a W&B sweep file, without a server; check sweep files",
        "t5suite sweep sweeps/mini_sentiment_sweep.yaml --count 8 --workers 2"),
    "export": Command(export.export_flags, export.export,
        "write a trained model for other programs: a Hugging Face folder, ONNX or CTranslate2 files",
        "t5suite export --model_name_or_path runs/mini-sentiment --output_dir exported"),
    "adapt": Command(adapt.adapt_flags, adapt.adapt,
        "make an encoder-decoder of a decoder: T5Gemma 2 of Gemma 3, T5Gemma of Gemma 2",
        "t5suite adapt --model_name_or_path google/gemma-3-270m --dry_run"),
    "trim": Command(trim.trim_flags, trim.trim,
        "drop the pieces of a model's vocabulary that your text does not use",
        "t5suite trim --model_name_or_path google/mt5-small --text articles.txt --output_dir mt5-small-de --check"),
    "mirror": Command(mirror.mirror_flags, mirror.run_mirror,
        "copy a benchmark from the hub for machines without a network",
        "t5suite mirror --benchmark glue --dataset_name all --output_dir data"),
    "summary": Command(summary.summary_flags, summary.summary,
        "count a model's parameters and estimate the memory of training it, before anything is loaded",
        "t5suite summary --config_name t5-3b --batch_size 8 --optimizer adafactor --bf16 --gradient_checkpointing"),
    "tokenizer": Command(tokenizer.tokenizer_flags, tokenizer.run_tokenizer,
        "train a tokenizer on your own text: T5's, BERT's or GPT-2's kind",
        "t5suite tokenizer train --type unigram --input articles.jsonl.gz --vocab_size 32000 --output_dir tokenizer"),
    "corpus": Command(corpus.corpus_flags, corpus.run_corpus,
        "tokenize text into files that training maps into memory, and show what they hold",
        "t5suite corpus build --input crawl/ --tokenizer_name google/t5-v1_1-base --output_dir corpus --num_workers 8"),
    "doctor": Command(doctor.doctor_flags, doctor.run_doctor,
        "check what this machine and environment lack, and how to fix it",
        "t5suite doctor --output_dir /scratch/runs"),
    "slurm": Command(slurm.slurm_flags, slurm.run_slurm,
        "write batch scripts for Slurm and submit them: fine-tuning, pre-training, sweeps, corpora",
        "t5suite slurm submit fine_tune --account lab --partition gpu --gpus_per_node 4 -- python fine_tune_t5.py"),
}  # fmt: skip
