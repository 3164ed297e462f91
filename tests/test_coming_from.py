"""The page for users of other systems: what it names exists, and its flags can be written as it writes them."""

import re
import shlex
from types import SimpleNamespace

from absl.testing import parameterized
from documented import FOLDERS, ROOT, is_flag, is_name, problems

from docs.builders.coming_from_page import TABLES, systems
from t5suite.base.errors import ConfigError
from t5suite.base.script_flags import ABSENT, bounds_problem, flags_of
from t5suite.launch.command_line import asked_for, options_of
from t5suite.optim.schedules import schedule_settings
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.parser import SuiteArgumentParser
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS
from t5suite.training.optimization import resolve_names

SYSTEMS = systems()
# How many flags the predecessors have, by system: each has a row.
PREDECESSORS = {
    "t2t-tuner": 39, "t5-experiments": 57, "nanoT5": 60, "dolomite-engine (2023)": 66, "principled-pre-training": 50,
}  # fmt: skip
CODE = re.compile(r"`([^`]+)`")
# Code in a cell that is no command, flag, file or Python name of ours: settings inside a value, files of the reader's.
PLAIN = re.compile(
    r"[A-Z][A-Z_]+|module:(Class|function)|module\.|[a-z_0-9]+|wmt1\S+|mt5-\.\.\.|t5-\S+|<\S+>|__\w+__|key: value|\+\+key=value"
    r"|--flag value|--key value|config\.yaml|spiece\.model|results\.json|splits/|runs/<benchmark>-<task>-<model>"
    r"|train\(valid=False\)|python"
)


class ComingFromTest(parameterized.TestCase):
    @parameterized.parameters(*((system["system"],) for system in SYSTEMS))
    def test_every_row_has_three_parts_and_what_things_are_called_here_exists(self, name):
        system = next(s for s in SYSTEMS if s["system"] == name)
        for rows in (system.get(key, []) for key in TABLES):
            self.assertTrue(all(len(row) == 3 and row[0] and row[1] for row in rows))
            self.assertCountEqual([row[0] for row in rows], {row[0] for row in rows})
            for theirs, ours, note in rows:
                spans = [span for span in CODE.findall(note) if span.startswith(("--", "t5suite", "python "))]
                self.assertEmpty([wrong for span in CODE.findall(ours) + spans for wrong in _missing(span)], theirs)
                self.assertTrue(note if ours == "–" else CODE.search(ours), theirs)
        theirs = {word for row in system["flags"] for word in re.split(r"[, ]+", row[0])}
        self.assertGreaterEqual(len(theirs), PREDECESSORS.get(name, 0), "a flag of theirs has no row any more")

    @parameterized.parameters(*((system["system"],) for system in SYSTEMS))
    def test_flags_can_be_written_as_the_page_writes_them(self, name):
        """Each mapped form, alone on a command line of the script that has its flags, and as a shell splits it."""
        system = next(system for system in SYSTEMS if system["system"] == name)
        for theirs, ours, _ in system["flags"] + system.get("gin", []):
            for form in CODE.findall(ours):
                if form.startswith("--") and "{" not in form and not PLAIN.fullmatch(form):
                    self.assertEqual(_problem_of_form(form), "", f"{theirs}: {form}")

    def test_a_form_that_cannot_be_written_is_found(self):
        self.assertRegex(_problem_of_form("--optim_args betas=(0.9,0.95)"), "in quotes")
        self.assertRegex(_problem_of_form("--optim_args 'betas=(0.9,0.95),eps=1e-8'"), "--adam_beta1, --adam_beta2")
        self.assertRegex(_problem_of_form("--optimizer adamw --optim_args beta=0.9"), "no setting 'beta'")
        self.assertRegex(_problem_of_form("--learning_rate fast"), "invalid float value")
        self.assertRegex(_problem_of_form("--early_stopping_patience 3 --inputs_length 8"), "belongs to")

    def test_what_is_missing_is_found(self):
        self.assertContainsSubset(PREDECESSORS, [system["system"] for system in SYSTEMS])
        for span in ("--learning_rat", "t5suite.FineTuna", "recipes/none.yaml", "t5suite predict --beams 4"):
            self.assertNotEmpty(_missing(span), span)
        self.assertEmpty(_missing("--optimizer adafactor --optim_args relative_step=True"))


SCRIPTS = {"fine_tune_t5": FINE_TUNING_ARGUMENTS, "pre_train_t5": PRE_TRAINING_ARGUMENTS}
# Values for flags that the page names without one, where a value of the type would not do.
PAGE_VALUES = {"str": ["word"], "int": [8], "float": [0.5, 8.0], "dict": ["{}"]}


def _problem_of_form(form: str) -> str:
    """What is wrong with flags written as on the page, "" if a script takes them.

    The errors are those before anything is read: names, values, and settings of optimizers and schedules.
    """
    if re.search(r"[()]", re.sub(r"'[^']*'", "", form)):
        return "a shell takes brackets only in quotes"
    words = shlex.split(form)
    flags = [word.removeprefix("--") for word in words if word.startswith("--")]
    script = next((script for script in SCRIPTS if set(flags) <= set(flags_of(script))), "fine_tune_t5")
    argv = []
    for word, next_word in zip(words, [*words[1:], "--"]):
        argv.append(word)
        if word.startswith("--") and next_word.startswith("--"):
            argv += _value_of(
                flags_of(script).get(word.removeprefix("--"), {**ABSENT, "type": "bool", "default": False})
            )
    try:
        asked_for(script, argv)
        values = vars(SuiteArgumentParser(SCRIPTS[script]).parse_args(argv))
        arguments = SimpleNamespace(**values)
        resolve_names(arguments)
        if values["schedule"] is not None:
            schedule_settings(values["schedule"], arguments.lr_scheduler_kwargs, values["learning_rate"])
    except ConfigError as error:
        return str(error)
    return ""


def _value_of(entry: dict) -> list[str]:
    """A value that a flag takes."""
    if entry["type"] == "bool":
        return [] if options_of({"flag": entry})["--flag"][1] in (0, "?") else ["True"]
    if entry["choices"]:
        return [str(entry["choices"][0])]
    if "default" in entry and not entry.get("none"):
        return [str(entry["default"])]
    return [str(next(value for value in PAGE_VALUES[entry["type"]] if not bounds_problem(entry, value)))]


def _missing(span: str) -> list[str]:
    if PLAIN.fullmatch(span):
        return []
    if span.startswith("--"):
        return [f"no flag {word}" for word in re.findall(r"--(\w+)", span) if not is_flag(word)]
    if re.fullmatch(r"t5suite(\.\w+)+", span):
        return [] if is_name(span) else [f"no name {span}"]
    if span.split("/")[0] in FOLDERS:
        folder, _, name = span.partition("/")
        return [] if (ROOT / folder / name).is_file() else [f"no file {span}"]
    if span in ("fine_tune_t5.py", "pre_train_t5.py"):
        return []
    if span.split()[0] in ("python", "t5suite", "torchrun", "accelerate", "deepspeed", "wandb") and " " in span:
        return problems(span)
    return [f"what is {span}?"]
