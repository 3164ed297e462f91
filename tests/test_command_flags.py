"""Every flag of every sub-command and script: as it is described, arriving where the work is done, changing the result.

The descriptions are `command_flags.yaml`, the places where the work is done `flag_arrivals.yaml`; both are literal.
"""

import argparse
import contextlib
import enum
import functools
import importlib
import inspect
import io
import json
import os
import re
import shlex
import tempfile
import typing
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
import transformers
import yaml
from absl.testing import parameterized
from tiny_predictor import model_folder
from token_folders import write_datatrove

import fine_tune_t5
import pre_train_t5
from t5suite import cli
from t5suite.base.script_flags import OTHER_NAMES, flags_of
from t5suite.base.script_flags import SCRIPTS as SCRIPTS_OF_COMMANDS
from t5suite.data.rows.subsets import HeldOutRows
from t5suite.launch.changed_flags import certain_changes, changed_flags
from t5suite.launch.command_line import flag_values
from t5suite.runs.settings import changed_between
from t5suite.testing import exits_with, parse_flags, run_cli, tiny_rows, tiny_tokenizer, write_rows
from t5suite.training import pre_training_data
from t5suite.training.fine_tuning import warn_of_idle_flags
from t5suite.training.flags.parser import SuiteArgumentParser, changed_settings, parse_arguments
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS
from t5suite.training.flags.table import SCRIPTS, TABLE_FILE, json_of_table, make_table
from t5suite.training.pre_training import warn_of_idle_pre_training_flags

HERE = Path(__file__).resolve().parent
FLAGS = yaml.safe_load((HERE / "command_flags.yaml").read_text(encoding="utf-8"))
COMMANDS = FLAGS["commands"]
SCRIPT_FLAGS = {
    name: {**FLAGS["scripts"]["both"], **FLAGS["scripts"][name]} for name in ("fine_tune_t5", "pre_train_t5")
}
MAIN = {"fine_tune_t5": fine_tune_t5, "pre_train_t5": pre_train_t5}


@functools.cache
def whole_parser():
    """The parser of all sub-commands."""
    return cli._parser(cli.COMMANDS)


def all_sub_parsers(parser, name=""):
    """`("corpus build", parser)` of every sub-command, of those that have actions, and of the actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice, sub in action.choices.items():
                words = f"{name} {choice}".strip()
                yield words, sub
                yield from all_sub_parsers(sub, words)


def sub_parsers(parser) -> dict:
    """`{"corpus build": parser}` of every sub-command that takes flags, with those of its actions."""
    return {words: sub for words, sub in all_sub_parsers(parser) if described(sub)}


def described(parser) -> dict[str, dict]:
    """A parser's flags, as `command_flags.yaml` writes them."""
    entries = {}
    for action in parser._actions:
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            name = action.option_strings[0].removeprefix("--") if action.option_strings else action.dest
            assert name == action.dest and len(action.option_strings) < 2, action.option_strings
            entries[name] = described_action(action)
    return entries


def described_action(action) -> dict:
    is_switch = action.nargs == 0
    entry = {"type": f"switch {action.const}".removesuffix(" True")} if is_switch else {}
    if action.type is not None:
        entry["type"] = action.type.__name__
    if isinstance(action, argparse._AppendAction):
        entry["repeated"] = "extend" if isinstance(action, argparse._ExtendAction) else "append"
    if not action.option_strings:
        entry["positional"] = True
    facts = {"nargs": action.nargs or None, "bare": None if is_switch else action.const, "choices": action.choices}
    facts |= {"required": action.required and bool(action.option_strings)}
    entry |= {name: list(fact) if name == "choices" else fact for name, fact in facts.items() if fact}
    if action.default is not (False if is_switch else None):
        entry["default"] = action.default
    return entry


class DescriptionTest(parameterized.TestCase):
    """What the parsers take is what the table says, in both directions."""

    def test_no_sub_command_is_missing_or_new(self):
        self.assertCountEqual(sub_parsers(whole_parser()), COMMANDS)

    @parameterized.parameters(*COMMANDS)
    def test_a_sub_command_has_these_flags(self, command):
        self.assertEqual(described(sub_parsers(whole_parser())[command]), COMMANDS[command])

    def test_every_flag_of_a_command_is_explained_by_its_help(self):
        """The scripts' flags, which some commands take as well, are explained by their own table."""
        of_scripts = set().union(*SCRIPT_FLAGS.values())
        for command, parser in all_sub_parsers(whole_parser()):
            unexplained = {action.dest for action in parser._actions if action.option_strings and not action.help}
            self.assertEmpty(unexplained - of_scripts, command)

    def test_every_flag_stands_under_a_heading_of_its_command_s_help(self):
        for command, parser in all_sub_parsers(whole_parser()):
            for group in parser._action_groups:
                flags = [action.option_strings for action in group._group_actions]
                self.assertTrue(group.title or not flags, f"{command}: {flags}")

    @parameterized.parameters(*SCRIPT_FLAGS)
    def test_a_script_has_these_flags_of_ours(self, script):
        self.assertEqual(described_script(script), SCRIPT_FLAGS[script])

    @parameterized.parameters(*SCRIPT_FLAGS)
    def test_a_script_s_parser_holds_all_of_argparse_s_actions(self, script):
        parser = SuiteArgumentParser(SCRIPTS[script])
        self.assertEqual(parser.actions, parser._actions)

    @parameterized.parameters(*SCRIPT_FLAGS)
    def test_both_spellings_and_the_negation_of_a_script_s_flag_are_taken(self, script):
        taken = set(SuiteArgumentParser(SCRIPTS[script]).action_by_option())
        for name, entry in SCRIPT_FLAGS[script].items():
            spellings = {f"--{name}", f"--{name.replace('_', '-')}"}
            negations = {f"--no_{name}", f"--no-{name.replace('_', '-')}"}
            self.assertContainsSubset(spellings, taken)
            self.assertEqual(negations <= taken, entry.get("default") is True, name)


# The scripts' flags that Hugging Face's training arguments do not have, written out.
LISTED = [
    line for line in (HERE / "script_flags.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")
]
MOST_FLAGS = 141


def flags_of_the_suite(script: str) -> set[str]:
    """A script's flags that are no field of Hugging Face's training arguments."""
    return flags_of(script).keys() - transformers.Seq2SeqTrainingArguments.__dataclass_fields__.keys()


class ListTest(parameterized.TestCase):
    """The scripts' flags do not become more by accident."""

    @parameterized.parameters(*SCRIPT_FLAGS)
    def test_a_new_flag_is_listed(self, script):
        new = sorted(flags_of_the_suite(script) - set(LISTED))
        self.assertEmpty(
            new,
            f"new flags of {script}: {', '.join(new)}. A new flag needs a recipe, an example or a guide that uses it, and "
            f"a line in CHANGELOG.md; then add it to tests/script_flags.txt, which may have {MOST_FLAGS} lines",
        )

    def test_a_listed_flag_exists(self):
        self.assertEqual(LISTED, sorted(set.union(*map(flags_of_the_suite, SCRIPT_FLAGS))))

    def test_there_are_few_enough(self):
        self.assertLessEqual(len(LISTED), MOST_FLAGS)


def without_library_helps(table: dict) -> dict:
    """The table without help texts in transformers' own words (the theme "rest"): each release rewords some of them."""
    scripts = {}
    for script, entries in table["scripts"].items():
        reworded = {name for name, entry in entries.items() if entry["theme"] == "rest" and not entry.get("ours")}
        scripts[script] = {
            name: {**entry, "help": None} if name in reworded else entry for name, entry in entries.items()
        }
    return {**table, "scripts": scripts}


class TableTest(parameterized.TestCase):
    def test_the_file_is_what_the_dataclasses_make(self):
        """In its order, too, which is the help's."""
        written = without_library_helps(json.loads(TABLE_FILE.read_text(encoding="utf-8")))
        is_current = json_of_table(written) == json_of_table(without_library_helps(make_table()))
        self.assertTrue(is_current, "flags have changed; run: python -m t5suite.training.flags.table")

    def test_the_file_written_again_is_the_same_with_one_flag_a_line(self):
        text = TABLE_FILE.read_text(encoding="utf-8")
        self.assertEqual(json_of_table(json.loads(text)), text)
        small = {
            "scripts": {"a": {"x": {"help": "é"}, "y": {}}, "b": {"z": {}}},
            "elsewhere": {"lr": ["--learning_rate"]},
        }
        written = json_of_table(small)
        self.assertEqual(json.loads(written), small)
        self.assertIn("é", written)
        for name in ("x", "y", "z", "lr"):
            self.assertLen([line for line in written.splitlines() if f'"{name}": ' in line and line[-1] in ",}]"], 1)


TYPE_NAMES = {"string_to_bool": "bool", "read_table": "dict", "table_text": "dict", "settings_text": "pairs"}


def described_script(script: str) -> dict[str, dict]:
    """A script's flags that the suite defines or redefines, as `command_flags.yaml` writes them."""
    entries = {}
    for kind in SCRIPTS[script]:
        actions = {
            action.option_strings[0].removeprefix("--"): action for action in SuiteArgumentParser([kind]).actions
        }
        hints = typing.get_type_hints(kind)
        ours = [base for base in kind.__mro__ if base.__module__.startswith("t5suite.")]
        names = {name for base in ours for name in vars(base).get("__annotations__", {})}
        for name, field in kind.__dataclass_fields__.items():
            if name in names and field.init:
                entries[name] = described_field(actions[name], field, hints[name])
    return entries


def described_field(action, field, hint) -> dict:
    default = field.default.value if isinstance(field.default, enum.Enum) else field.default
    kind = "str" if action.choices or action.type is None else action.type.__name__
    entry = {"type": TYPE_NAMES.get(kind, kind)}
    entry = {} if entry == {"type": "str"} else entry
    is_optional = action.nargs == "?" and action.const is True
    assert is_optional == (entry.get("type") == "bool" and default is not None), field.name
    if action.nargs == "+":
        entry["list"] = True
    if default is not None:
        entry["default"] = default
        entry |= {"none": True} if type(None) in typing.get_args(hint) else {}
    if action.choices:
        entry["choices"] = [choice.value if isinstance(choice, enum.Enum) else choice for choice in action.choices]
    return entry


def words_and_value(name: str, entry: dict, number: int) -> tuple[list[str], object]:
    """Words of a command line after a flag, unlike its default and every other flag's, and the value that they mean."""
    kind, nargs, repeated = entry.get("type", "str"), entry.get("nargs"), entry.get("repeated")
    if kind == "switch":
        return [], True
    if "choices" in entry:
        word = [choice for choice in entry["choices"] if choice != entry.get("default")][-1]
        return [word], word
    samples = {"int": (f"{1000 + number}", 1000 + number), "float": (f"{number}.5", number + 0.5)}
    word, value = samples.get(kind, (f"{name}-{number}", f"{name}-{number}"))
    if nargs in ("+", "*"):
        return [word, f"{word}-b"], [value, f"{value}-b"]
    return [word], [value] if repeated else value


def command_line(command: str) -> tuple[list[str], dict[str, object]]:
    """A command with every one of its flags, and what arrives."""
    positionals, flags, values = [], [], {}
    for number, (name, entry) in enumerate(COMMANDS[command].items()):
        words, values[name] = words_and_value(name, entry, number)
        if entry.get("positional"):
            positionals += words
        else:
            flags += [f"--{name}", *words]
    return [*command.split(), *positionals, *flags], values


# What a sub-command's arguments have besides its own flags.
UNLISTED = ("command", "version", "words", "takes_words")


def arriving(argv: list[str]) -> dict[str, object]:
    """What `t5suite` hands to the function of a sub-command, by flag."""
    recorder = mock.Mock()
    with mock.patch.dict(cli.COMMANDS, {argv[0]: cli.COMMANDS[argv[0]]._replace(run=recorder)}):
        cli.main(argv)
    arguments = vars(recorder.call_args.args[0])
    return {name: value for name, value in arguments.items() if name not in UNLISTED}


def needed_words(command: str) -> tuple[list[str], dict[str, object]]:
    """The least command line of a sub-command, and what arrives: its positionals, required flags and defaults."""
    words, values = command.split(), {}
    for number, (name, entry) in enumerate(COMMANDS[command].items()):
        values[name] = entry.get("default", False if entry.get("type") == "switch" else None)
        needed = entry.get("positional") or entry.get("required")
        if needed and entry.get("nargs") != "*":
            after, values[name] = words_and_value(name, entry, number)
            words += after if entry.get("positional") else [f"--{name}", *after]
    values |= {"files": []} if command == "sweep" else {}
    return words, values


class BatchScriptTest(parameterized.TestCase):
    @parameterized.parameters("fine_tune", "pre_train")
    def test_every_name_of_an_entry_script_starts_on_each_gpu(self, kind):
        script = (HERE.parent / f"slurm/{kind}.sbatch").read_text(encoding="utf-8")
        (pattern,) = re.findall("^for_each_gpu='(.*)'$", script, re.MULTILINE)
        names = {*SCRIPTS_OF_COMMANDS, *OTHER_NAMES}
        names |= {name.replace("_", "-") for name in names}
        unknown = [name for name in sorted(names) if not re.search(pattern, f"t5suite {name}")]
        self.assertEmpty(unknown)


class ArrivalTest(parameterized.TestCase):
    """Every flag of a sub-command arrives at its function, by value and type."""

    def check(self, argv, command, values):
        expected = values if command in cli.COMMANDS else {**values, "action": command.split()[1]}
        arrived = arriving(argv)
        self.assertEqual(arrived, expected)
        self.assertEqual(kinds(arrived), kinds(expected))

    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict("os.environ"))
        os.environ.pop("T5SUITE_DATA_DIR", None)

    @parameterized.parameters(*COMMANDS)
    def test_every_value_arrives(self, command):
        argv, values = command_line(command)
        self.check(argv, command, values)

    @parameterized.parameters(*COMMANDS)
    def test_every_default_arrives(self, command):
        argv, values = needed_words(command)
        self.check(argv, command, values)

    @parameterized.parameters(*COMMANDS)
    def test_dashes_and_equals_signs_mean_the_same(self, command):
        argv, values = command_line(command)
        single = {name for name, entry in COMMANDS[command].items() if not isinstance(values[name], (bool, list))}
        words = []
        for word in argv:
            if (
                words
                and words[-1].startswith("--")
                and "=" not in words[-1]
                and words[-1][2:].replace("-", "_") in single
            ):
                words[-1] += f"={word}"
            else:
                words.append(word.replace("_", "-") if word.startswith("--") else word)
        self.check(words, command, values)

    @parameterized.parameters(
        (f"{command} --{name}", name, entry["bare"])
        for command, flags in COMMANDS.items() for name, entry in flags.items() if "bare" in entry
    )  # fmt: skip
    def test_a_flag_without_its_value_means_what_the_table_says(self, line, name, bare):
        command, _, flag = line.rpartition(" ")
        needed, values = needed_words(command)
        self.check([*needed, flag], command, {**values, name: bare})

    @parameterized.parameters(("slurm render fine_tune", "--env", "append"), ("sweep", "--grid", "extend"))
    def test_a_flag_that_is_repeated_has_all_of_its_values(self, command, flag, repeated):
        words = [flag, "a=1", *(["b=2"] if repeated == "extend" else []), flag, "c=3"]
        expected = ["a=1", "b=2", "c=3"] if repeated == "extend" else ["a=1", "c=3"]
        self.assertEqual(arriving([*command.split(), *words])[flag[2:]], expected)

    @parameterized.parameters("preview", "submit", "report", "compare")
    def test_the_data_directory_of_the_environment_is_the_default(self, command):
        os.environ["T5SUITE_DATA_DIR"] = "elsewhere"
        argv, values = needed_words(command)
        self.check(argv, command, {**values, "data_dir": "elsewhere"})
        self.check([*argv, "--data_dir", "here"], command, {**values, "data_dir": "here"})

    @parameterized.parameters(*COMMANDS)
    def test_what_a_flag_does_not_take_is_refused(self, command):
        self.enter_context(mock.patch.object(cli, "_parser", lambda names: whole_parser()))
        for name, entry in COMMANDS[command].items():
            if entry.get("type") in ("int", "float") or "choices" in entry:
                needed, _ = needed_words(command)
                words = [*command.split(), "x"] if entry.get("positional") else [*needed, f"--{name}=x"]
                with self.subTest(name), exits_with(78):
                    arriving(words)


@functools.cache
def examples() -> list[tuple[str, str]]:
    """`("corpus build", "t5suite corpus build ...")` of every command line that a sub-command's help gives."""
    command_lines = []
    for command, parser in all_sub_parsers(whole_parser()):
        for line in (parser.epilog or "").replace("\\\n", " ").splitlines():
            line = re.split(r"\s+[#>] ?", line)[0].strip()
            command_lines += [(command, line)] if line.startswith("t5suite ") else []
    return command_lines


class ExamplesTest(parameterized.TestCase):
    @parameterized.parameters(*(command for command, _ in all_sub_parsers(whole_parser())))
    def test_every_sub_command_has_an_example_of_its_own(self, command):
        lines = [line for name, line in examples() if command.startswith(name)]
        self.assertTrue(any(line.startswith(f"t5suite {command}") for line in lines), command)

    @parameterized.parameters(*(line for _, line in examples()))
    def test_every_example_is_taken(self, line):
        _, command, *words = shlex.split(line.replace("$?", "0"))
        if command in SCRIPT_OF_COMMAND:
            parse_flags(SCRIPT_OF_COMMAND[command], words)
        else:
            arriving([command, *words])


# The sub-commands that run a script.
SCRIPT_OF_COMMAND = {"fine_tune": "fine_tune_t5", "pre_train": "pre_train_t5", "evaluate": "fine_tune_t5"}


def kinds(values: dict) -> dict:
    """The types of values, and of the items of lists."""
    items = lambda value: [type(item) for item in value] if isinstance(value, list) else type(value)
    return {name: items(value) for name, value in values.items()}


ARRIVALS = yaml.safe_load((HERE / "flag_arrivals.yaml").read_text(encoding="utf-8"))
ELSEWHERE = ARRIVALS.pop("elsewhere")


class Ended(BaseException):
    """The last function of a list was called."""


def recorded_calls(words: list[str], looked_at: dict[str, list[str]], replaced=()) -> dict[str, dict]:
    """`{function: {path: value}}` of the first call of each function, by a command that the last one ends.

    Args:
      looked_at: the paths of each function's arguments (`part_of`), read before it does its work.
    """
    calls, places = {}, list(looked_at)

    def recorder(place, function):
        def record(*args, **kwargs):
            if place not in calls:
                arguments = with_defaults(function, args, kwargs)
                calls[place] = {path: part_of(arguments, path) for path in looked_at[place]}
            if place == places[-1]:
                raise Ended
            return mock.MagicMock() if place in replaced else function(*args, **kwargs)

        return record

    with contextlib.ExitStack() as patches:
        for place in places:
            *parents, name = place.split(".")
            owner = find_object(parents)
            patches.enter_context(mock.patch.object(owner, name, recorder(place, getattr(owner, name))))
        for place in set(replaced) - set(places):
            patches.enter_context(mock.patch(place))
        for stream in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            patches.enter_context(stream(io.StringIO()))
        with contextlib.suppress(Ended):
            run(words)
    return calls


def run(words: list[str]):
    """A command of `t5suite`, or a script by its name, whose figures are returned."""
    return MAIN[words[0]].main(words[1:]) if words[0] in MAIN else cli.main(words)


def shown(words: list[str]) -> tuple[object, str]:
    """`(what a script returns, or the JSON lines and their number of a command that prints them; the text)`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        figures = run(words)
    if "--json" in words:
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        figures = {"lines": len(lines), **{str(number): line for number, line in enumerate(lines)}}
    return figures, out.getvalue()


def find_object(names: list[str]):
    """The module, or the class in one, of a dotted name."""
    for count in range(len(names), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            return functools.reduce(getattr, names[count:], importlib.import_module(".".join(names[:count])))
    raise LookupError(".".join(names))


def with_defaults(function, args, kwargs) -> dict:
    """The arguments of a call by name; those that it passes on (`**settings`) stand beside the others, too."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    passed_on = [name for name, part in bound.signature.parameters.items() if part.kind is part.VAR_KEYWORD]
    return {**bound.arguments, **(bound.arguments[passed_on[0]] if passed_on else {})}


def part_of(value, path: str):
    """`job.decoding.seed` of the arguments of a call, and so on."""
    for name in path.split("."):
        if isinstance(value, (dict, inspect.BoundArguments)):
            value = value[name]
        elif isinstance(value, (list, tuple)) and name.isdigit():
            value = value[int(name)]
        else:
            value = getattr(value, name)
    return plain(value)


def plain(value):
    """As YAML has it: no paths, no tuples, no enumerations, no types of torch."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, (Path, torch.dtype)) else value


def working_folder() -> str:
    """The files that the command lines name."""
    place = Path(tempfile.mkdtemp())
    (place / "tiny").symlink_to(model_folder())
    repository = place / "hub" / "models--lab--tiny"  # as the hub's client keeps lab/tiny
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/r1").write_text("a" * 40)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / ("a" * 40)).symlink_to(model_folder())
    rows = tiny_rows(count=4)
    write_rows(place / "rows.jsonl", rows)
    (place / "rows.csv").write_text("review;label\n" + "".join(f"{row['sentence']};1\n" for row in rows))
    (place / "tasks.yaml").write_text(TASKS)
    (place / "sweep.yaml").write_text(SWEEP)
    for name in ("a.txt", "b.txt"):
        (place / name).write_text("".join(f"{word} is a word\n" for word in "one two three four five".split()))
    for name in ("weights.pth", "a.yaml"):
        (place / name).write_text("")
    moods = [{"sentence": "Fine.", "label": 1}, {"sentence": "Sad.", "label": 0}]
    write_rows(place / "two.jsonl", moods)
    for split in ("train", "validation"):
        write_rows(place / f"data/extra/moods/{split}.jsonl", moods)
    write_rows(place / "data/extra/moods/test.jsonl", [{"sentence": "Elsewhere.", "label": 0}])
    write_rows(place / "one_right.jsonl", ["good", "good"])
    write_rows(place / "both_right.jsonl", ["good", "bad"])
    write_rows(place / "one.jsonl", ["Mark"])
    names = {"text": "Mark told Pete that he won .", "span1_text": "Mark", "span2_index": 4, "span2_text": "he"}
    write_rows(place / "wsc.jsonl", [{**names, "label": 1}, {**names, "label": 0}])
    (place / "adapter").mkdir()
    (place / "adapter/adapter_config.json").write_text('{"peft_type": "LORA"}')
    (place / "adapter/adapter_model.safetensors").write_bytes(b"")
    answers = [{"row": number, "idx": number, "prediction": "entailment"} for number in range(3)]
    for folder, name, count in (("pred", "rte", 2), ("run/predictions", "rte", 3), ("wsc", "wsc", 3)):
        (place / folder).mkdir(parents=True)
        write_rows(place / folder / f"{name}.test.jsonl", answers[:count])
    (place / "text.txt").write_text("".join(f"The {n}th word is not the {n + 1}th one.\n" for n in range(200)))
    write_datatrove(place / "tokens", "a", [[5, 1]])
    corpus = ["--input", place / "text.txt", "--output_dir", place / "corpus", "--validation_fraction", 0.1]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_cli("corpus", "build", "--tokenizer_name", place / "tiny", *corpus)
    return str(place)


TASKS = """
extra:
  moods:
    prefix: "moods sentence: "
    text_column_name: sentence
    label_column_name: label
    labels: [bad, good]
    metric_to_optimize: accuracy
    metric_names: [accuracy]
    hub_path: someone/moods
"""
SWEEP = """
name: tried
method: grid
command: ["${env}", "python", "fine_tune_t5.py", "${args}"]
parameters:
  seed: {values: [1, 2]}
"""


class WorkTest(parameterized.TestCase):
    """What a flag says arrives where the work is done, and its default if it is not given."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = working_folder()
        cls.enterClassContext(mock.patch("huggingface_hub.constants.HF_HUB_CACHE", f"{cls.folder}/hub"))

    @parameterized.parameters((command, number) for command, lines in ARRIVALS.items() for number in range(len(lines)))
    def test_a_command_line_arrives_where_the_work_is_done(self, command, number):
        line = ARRIVALS[command][number]
        words = shlex.split(line["words"])
        with contextlib.chdir(self.folder):
            if "calls" in line:
                self.check_calls(words, **{name: value for name, value in line.items() if name != "words"})
            else:
                figures, text = shown(words)
                expected = line.get("shows", {})
                self.check_parts({path: part_of(figures, path) for path in expected}, expected, "shown")
                self.assertIn(line.get("prints", ""), text)

    def check_calls(self, words, calls, replaced=(), uncalled=()):
        recorded = recorded_calls(words, {**dict.fromkeys(uncalled, ()), **calls}, replaced)
        self.assertNoCommonElements(uncalled, recorded)
        for place, expected in calls.items():
            self.assertIn(place, recorded)
            self.check_parts(recorded[place], expected, place)

    def check_parts(self, arrived, expected, place):
        self.assertEqual(arrived, expected, place)
        self.assertEqual(kinds(arrived), kinds(expected), place)

    @parameterized.parameters(
        "predict --input rows.jsonl",
        "serve --port 0",
        "export --output_dir out",
        "adapt --output_dir out --tokenizer_name tiny",
        "trim --output_dir out --text a.txt",
        "summary",
    )
    def test_a_revision_of_a_folder_is_refused(self, words):
        message = "--model_revision v2 has no effect: --model_name_or_path tiny is a folder"
        with contextlib.chdir(self.folder), exits_with(78, message):
            run_cli(*words.split(), "--model_name_or_path", "tiny", "--model_revision", "v2")

    def test_every_held_out_document_of_a_stream_ends_with_the_separator(self):
        words = "pre_train_t5 --output_dir streamed --streaming --max_steps 2 --train_file a.txt --inputs_length 8"
        words += " --validation_fraction 0.5 --document_separator eos"
        place = "t5suite.training.pre_training_data.BlocksInOrder"
        with contextlib.chdir(self.folder):
            calls = recorded_calls(words.split(), {place: ["texts"]})
            texts = Path("a.txt").read_text().splitlines()
        (tokens,) = calls[place]["texts"]
        tokenizer = tiny_tokenizer()
        *documents, rest = tokenizer.decode(tokens).split(tokenizer.eos_token)
        self.assertEqual(rest, "")
        self.assertNotEmpty(documents)
        self.assertContainsSubset([document.strip() for document in documents], texts)

    @parameterized.parameters(*COMMANDS, *SCRIPT_FLAGS)
    def test_every_flag_is_seen_at_work(self, command):
        flags = {**COMMANDS, **SCRIPT_FLAGS}[command]
        lines = [shlex.split(line["words"].partition(" -- ")[0]) for line in ARRIVALS[command]]
        used = {word.removeprefix("--").partition("=")[0] for line in lines for word in line if word[:2] == "--"}
        unseen = [name for name in flags if name not in used and not flags[name].get("positional")]
        self.assertCountEqual(unseen, ELSEWHERE.get(command, ()))
        for name in unseen:
            self.assertIn(name, (HERE / ELSEWHERE[command][name]).read_text(encoding="utf-8"))


PLAIN = ["--eval_strategy=steps", "--use_cpu"]
LINES = {name: [*FLAGS["lines"]["both"], *FLAGS["lines"][name]] for name in SCRIPT_FLAGS}
# What the scripts make of flags that are not given.
DERIVED = {
    "fine_tune_t5": {"output_dir": "runs", "metric_for_best_model": None, "per_device_eval_batch_size": 64},
    "pre_train_t5": {"output_dir": "runs", "inputs_length": 64},
}
# What nobody gives another value than the default: pre-training reads blocks in random order alone, and trains matrices.
FIXED = {"pre_train_t5": ["train_sampling_strategy", "load_in_8bit", "load_in_4bit"], "fine_tune_t5": []}
# DeepSpeed is not among the test's libraries everywhere: the configurations of tests/test_deepspeed_configs.py.
NOT_ON_A_LINE = ["deepspeed", "deepspeed_overrides"]


def words_of_line(script: str, line: dict) -> list[str]:
    """The words of a mapping of flags; true, where that is possible, is a flag without a value."""
    words = []
    for name, value in line.items():
        if name != "otherwise":
            is_bare = value is True and "default" in SCRIPT_FLAGS[script][name]
            values = value if isinstance(value, list) else [value]
            words += [f"--{name}", *([] if is_bare else map(str, values))]
    if line.get("streaming"):
        words += ["--max_steps", "3"]  # a stream has no end of its own
    return words


def settings_of(script: str, argv: list[str]) -> dict[str, object]:
    """The flags of a run, where its steps take them."""
    step = FIRST_STEPS[script]
    parts = recorded_calls([script, *argv], {step: ["arguments"]})[step]["arguments"]
    names = SCRIPT_FLAGS[script]
    return {name: plain(getattr(part, name)) for part in parts for name in names if hasattr(part, name)}


# The first function that has all flags.
FIRST_STEPS = {"fine_tune_t5": "fine_tune_t5.plan_for", "pre_train_t5": "pre_train_t5.all_settings"}


def is_given_twice(words: list[str]) -> bool:
    """Whether a flag stands twice on a line."""
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    return len(flags) != len(set(flags))


class ScriptArrivalTest(parameterized.TestCase):
    """Every flag of a script arrives in its run, by value and type."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = Path(tempfile.mkdtemp())
        (cls.folder / "tiny").symlink_to(model_folder())
        cls.settings_by_line = {}

    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict("os.environ"))
        for name in ("T5SUITE_DATA_DIR", "T5SUITE_RUN_DIR", "WANDB_SWEEP_ID"):
            os.environ.pop(name, None)
        self.enter_context(contextlib.chdir(self.folder))

    def settings_of_line(self, script, words):
        """`settings_of`, once a line: the environment is the same in all tests that use this."""
        line = (script, *words)
        if line not in self.settings_by_line:
            self.settings_by_line[line] = settings_of(script, words)
        return dict(self.settings_by_line[line])

    @parameterized.parameters((script, number) for script, lines in LINES.items() for number in range(len(lines)))
    def test_every_value_of_a_line_arrives_and_every_other_default(self, script, number):
        line = dict(LINES[script][number])
        defaults = {name: entry.get("default") for name, entry in SCRIPT_FLAGS[script].items()}
        arrived = self.settings_of_line(script, words_of_line(script, line))
        expected = defaults | DERIVED[script] | line | line.get("otherwise", {})
        expected.pop("otherwise", None)
        self.assertEqual(arrived, expected)
        self.assertEqual(kinds(arrived), kinds(expected))

    @parameterized.parameters(
        *((script, words_of_line(script, line)) for script, lines in LINES.items() for line in lines),
        ("fine_tune_t5", ["--eval_strategy=steps", "--save_strategy=epoch"]),
        ("pre_train_t5", [*PLAIN, "--inputs_length=64"]),
    )
    def test_what_is_refused_before_a_run_the_run_would_refuse(self, script, words):
        for then, now in ((words, PLAIN), (PLAIN, words), (words, words), (words, [*words, "--save_strategy=steps"])):
            if is_given_twice(now):
                continue
            settings = self.settings_of_line(script, then)
            manifest = {"command": [script, *then], "working_directory": os.getcwd(), "settings": settings}
            values = flag_values(script, now)
            refused = certain_changes(changed_flags(script, manifest, values), values)
            self.assertLessEqual(refused.keys(), changed_between(settings, self.settings_of_line(script, now)).keys())

    @parameterized.parameters(
        (50, {}, []), (25, {}, ["eval_steps"]), (50, {"load_best_model_at_end": False}, ["save_steps"])
    )
    def test_checkpoints_that_follow_evaluations_make_no_other_run(self, eval_steps, settings, expected):
        """Without --eval_steps, an earlier version evaluated every 50 steps, and kept save_steps at 500."""
        now = {
            "load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps", "eval_steps": eval_steps,
            "save_steps": eval_steps, **settings,
        }  # fmt: skip
        before = {**now, "eval_steps": 50, "save_steps": 500}
        self.assertEqual(list(changed_between(before, now)), expected)

    @parameterized.parameters(([], "elsewhere"), (["--data_dir", "here"], "here"))
    def test_the_data_directory_of_the_environment_is_the_default(self, words, expected):
        os.environ["T5SUITE_DATA_DIR"] = "elsewhere"
        self.assertEqual(settings_of("fine_tune_t5", words or ["--use_cpu"])["data_dir"], expected)

    @parameterized.parameters(
        ("fine_tune_t5", [], "runs/mini-sentiment-tiny"),
        (
            "fine_tune_t5",
            ["--benchmark=glue", "--dataset_name=rte,mrpc", "--model_name_or_path=tiny"],
            "runs/glue-rte+mrpc-tiny",
        ),
        ("fine_tune_t5", ["--eval_only"], "runs/mini-sentiment-tiny-eval"),
        ("fine_tune_t5", ["--predict_only"], "runs/mini-sentiment-tiny-predict"),
        ("pre_train_t5", [], "runs/pre_train-tiny"),
        ("pre_train_t5", ["--config_name=mini", "--eval_only"], "runs/pre_train-mini-eval"),
        ("pre_train_t5", ["--objective=ul2"], "runs/pre_train-tiny-ul2"),
        ("pre_train_t5", ["--objective=ul2", "--eval_only"], "runs/pre_train-tiny-ul2-eval"),
    )
    def test_a_run_without_a_directory_is_named_by_task_model_and_objective(self, script, words, expected):
        step = f"{script}.choose_output_dir"
        self.assertEqual(recorded_calls([script, *words, "--use_cpu"], {step: ["default"]})[step]["default"], expected)

    @parameterized.parameters("fine_tune_t5", "pre_train_t5")
    def test_the_run_directory_of_a_sweep_is_the_default(self, script):
        os.environ["T5SUITE_RUN_DIR"] = "of_a_trial"
        self.assertEqual(settings_of(script, ["--use_cpu"])["output_dir"], "of_a_trial")
        self.assertEqual(settings_of(script, ["--output_dir", "own"])["output_dir"], "own")

    @parameterized.parameters(*LINES)
    def test_every_flag_is_given_another_value_than_its_default_on_a_line(self, script):
        changed = {
            name
            for line in LINES[script]
            for name, value in line.items()
            if name != "otherwise" and value != SCRIPT_FLAGS[script][name].get("default")
        }
        self.assertCountEqual([*changed, *FIXED[script], *NOT_ON_A_LINE], SCRIPT_FLAGS[script])


class IdleFlagsTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--validation_fraction", "0.1"], ["validation_fraction"]),
        (["--validation_fraction", "0.1", "--train_file", "a.txt"], []),
        (["--text_column_name", "body", "--train_file", "a.txt.gz"], ["text_column_name"]),
        (["--text_column_name", "body", "--train_file", "a.jsonl.gz"], []),
        (["--eval_only", "--learning_rate", "1e-2"], ["learning_rate"]),
        (["--train_file", "a.txt", "--eval_only"], []),
        (["--train_file", "a.txt", "--corpus_weights", "3"], ["corpus_weights"]),
        (["--train_file", "a.txt", "b.txt", "--corpus_weights", "3", "1"], []),
        (["--eval_only", "--reference_code", "loss_chunks"], ["reference_code"]),
        (["--train_file", "a.txt", "--validation_file", "b.txt", "--eval_only"], ["train_file"]),
        (["--text_unit", "file", "--train_file", "a.jsonl"], ["text_unit"]),
        (["--text_unit", "file", "--train_file", "crawl/*.gz"], []),
        (["--text_unit", "file", "--train_file", tempfile.mkdtemp(suffix=".2024")], []),
        ("--objective masked_lm --collocations c --mean_span_length 4".split(), ["mean_span_length", "collocations"]),
        ("--objective masked_lm --mask_units pmi --collocations c".split(), []),
        ("--objective unit_denoising --mask_units span --collocations c --mean_span_length 4".split(), ["collocations"]),
        ("--mean_span_length 4".split(), []),
        (["--mode_tokens", "[NLU], [S2S], [NLG]"], ["mode_tokens"]),
        (
            "--objective masked_lm --sentence_pairs next --sentence_language de --train_corpus c".split(),
            ["sentence_language"],
        ),
        # What an objective does not use is named, and no more.
        (
            "--objective causal_lm --inputs_length 64 --noise_density 0.5 --document_separator eos --train_file a.txt"
            .split(), ["noise_density"],
        ),
        (
            "--include_num_input_tokens_seen True --dataloader_drop_last True --do_train False --do_eval False".split(),
            ["do_train", "do_eval", "include_num_input_tokens_seen", "dataloader_drop_last"],
        ),
        ("--eval_strategy epoch --eval_steps 5".split(), ["eval_steps"]),
        ("--eval_steps 5".split(), []),
        ("--logging_strategy epoch --logging_steps 5 --aim_repo a".split(), ["logging_steps", "aim_repo"]),
        ("--push_to_hub --hub_model_id a/b --enable_jit_checkpoint True".split(), ["enable_jit_checkpoint"]),
    )  # fmt: skip
    def test_flags_without_effect_are_named(self, flags, expected):
        arguments = parse_arguments(
            PRE_TRAINING_ARGUMENTS, ["--use_cpu", *flags], prog="pre_train_t5.py", description=""
        )
        _, _, objective_args, run_args, _ = arguments
        trains = not run_args.eval_only
        named = warn_of_idle_pre_training_flags(changed_settings(arguments), trains, objective_args.objective)
        self.assertCountEqual(named, expected)

    @parameterized.parameters(
        ("causal_lm", "eos", "none", 1), ("full_lm", "eos", "none", 1), ("causal_lm", "eos", "eos", 0),
        ("causal_lm", "eos", "[SEP]", 0), ("causal_lm", "none", "none", 0), ("span_corruption", "none", "none", 0),
    )  # fmt: skip
    def test_a_corpus_without_the_ends_that_an_objective_learns_is_named(self, objective, separator, built, num_lines):
        corpus = {"path": "corpora/a", "settings": {"document_separator": built}}
        lines = []
        with mock.patch.object(pre_training_data.logger, "warning", lambda *words: lines.append(words)):
            described = {"train-0": corpus, "train-1": {**corpus, "settings": {"document_separator": "eos"}}}
            pre_training_data.warn_of_missing_ends(described | {"validation": corpus}, objective, separator)
        self.assertEqual([words[1:] for words in lines], [("corpora/a", objective)] * num_lines)

    @parameterized.parameters(
        ("none", "eos", ["train-0"]), ("eos", "none", ["train-0", "train-1"]), ("</s>", "eos", []),
        ("<extra_id_0>", "eos", ["train-0"]),
    )  # fmt: skip
    def test_a_corpus_whose_documents_end_otherwise_than_the_validation_file_s_is_named(self, built, scored, expected):
        """The second corpus's documents end with </s>, as the adopted ones do."""
        described = {}
        for name, separator in (("train-0", built), ("train-1", "eos"), ("validation", scored)):
            described[name] = {"path": name, "settings": {"document_separator": separator}}
        lines = []
        with mock.patch.object(pre_training_data.logger, "warning", lambda *words: lines.append(words)):
            pre_training_data.warn_of_other_separators(described, tiny_tokenizer())
            del described["validation"]
            pre_training_data.warn_of_other_separators(described, tiny_tokenizer())
        self.assertEqual([words[1] for words in lines], expected)

    def test_mode_tokens_are_those_between_commas_and_spaces(self):
        words = ["--use_cpu", "--objective", "ul2", "--mode_tokens", "[NLU], [S2S] ,[NLG]"]
        arguments = parse_arguments(PRE_TRAINING_ARGUMENTS, words, prog="pre_train_t5.py", description="")
        self.assertEqual(arguments[2].modes, ("[NLU]", "[S2S]", "[NLG]"))

    @parameterized.parameters(
        ({"mixing": "equal", "select": "per_task"}, {}, ["mixing", "select"]),
        ({"mixing": "equal", "select": "per_task"}, {"num_tasks": 2}, []),
        ({"train_sampling_strategy": "sequential"}, {"num_tasks": 2}, ["train_sampling_strategy"]),
        ({"train_sampling_strategy": "random"}, {"num_tasks": 2}, []),
        ({"train_sampling_strategy": "sequential"}, {}, []),
        ({"mixing": "equal", "mixing_temperature": 2.0}, {"num_tasks": 2}, ["mixing_temperature"]),
        ({"mixing_limit": 9.0, "mixing_temperature": 2.0}, {"num_tasks": 2}, []),
        ({"learning_rate": 0.1, "max_eval_samples": 5}, {"trains": False}, ["learning_rate"]),
        ({"max_predict_samples": 5}, {}, ["max_predict_samples"]),
        ({"max_predict_samples": 5}, {"predicts": True}, []),
        ({"eval_strategy": "no", "max_eval_samples": 5, "eval_method": "score"}, {}, ["max_eval_samples", "eval_method"]),
        ({"eval_strategy": "no", "max_eval_samples": 5, "eval_method": "score"}, {"predicts": True}, ["max_eval_samples"]),
        ({"generation_num_beams": 2}, {}, []),
        ({"generation_num_beams": 2, "eval_method": "score"}, {}, ["generation_num_beams"]),
        ({"generation_num_beams": 2, "eval_method": "loss"}, {}, ["generation_num_beams"]),
        ({"batch_eval_metrics": True}, {}, ["batch_eval_metrics"]),
        ({"eval_steps": 5}, {}, ["eval_steps"]),
        ({"eval_steps": 5, "eval_strategy": "no"}, {}, ["eval_steps"]),
        ({"eval_steps": 5, "eval_strategy": "steps"}, {}, []),
        ({"eval_steps": 5, "eval_strategy": "steps"}, {"trains": False}, ["eval_steps"]),
        ({"logging_steps": 5, "logging_strategy": "no"}, {}, ["logging_steps"]),
        ({"logging_steps": 5, "logging_strategy": "steps"}, {}, []),
        # Evaluations come every --logging_steps where there are no --eval_steps.
        ({"logging_steps": 5, "logging_strategy": "epoch", "eval_strategy": "steps", "eval_steps": 5}, {}, []),
        ({"logging_steps": 5, "logging_strategy": "epoch", "eval_strategy": "steps", "eval_steps": 9}, {}, ["logging_steps"]),
        # Rows of the training file are scored where some of them are held out.
        ({"train_file": "a.csv"}, {"trains": False}, ["train_file"]),
        ({"train_file": "a.csv"}, {"trains": False, "holds_out": True}, []),
        # A test file is scored where there are no validation rows.
        ({"test_file": "a.csv"}, {"trains": False}, ["test_file"]),
        ({"test_file": "a.csv"}, {"trains": False, "roles": ["test"]}, []),
        ({"reference_code": "quick_attention"}, {}, []),
        ({"reference_code": "quick_tokenizer"}, {}, ["reference_code"]),
        ({"reference_code": "loss_chunks"}, {}, []),
        ({"reference_code": "loss_chunks"}, {"trains": False}, ["reference_code"]),
        ({"reference_code": "candidate_trees"}, {}, ["reference_code"]),
        ({"reference_code": "candidate_trees", "eval_method": "score"}, {}, []),
        ({"reference_code": "quick_decoding"}, {}, []),
        ({"reference_code": "quick_decoding", "eval_method": "score"}, {}, ["reference_code"]),
        ({"reference_code": "quick_decoding", "eval_method": "score"}, {"num_tasks": 2}, []),
        ({"reference_code": "quick_decoding", "eval_strategy": "no"}, {}, ["reference_code"]),
        ({"reference_code": "quick_decoding,loss_chunks", "eval_strategy": "no"}, {}, []),
    )  # fmt: skip
    def test_flags_without_effect_in_fine_tuning_are_named(self, flags, run, expected):
        run = {"num_tasks": 1, "trains": True, "predicts": False, "holds_out": False, "roles": ["validation"], **run}
        sources = {"a": HeldOutRows.__new__(HeldOutRows)} if run["holds_out"] else {}
        task = SimpleNamespace(splits=lambda role: [role] if role in run["roles"] else [])
        tasks = [task] * run["num_tasks"]
        plan = SimpleNamespace(train=tasks, evaluate=tasks, alone=len(tasks) == 1, sources=sources)
        named = warn_of_idle_flags(flags, plan, run["trains"], run["predicts"])
        self.assertCountEqual(named, expected)
