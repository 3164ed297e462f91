"""The page for users of other systems: what it names exists, and its flags can be written as it writes them."""

import re
import shlex

import pytest
from absl.testing import parameterized
from documented import FOLDERS, ROOT, SCRIPTS, choices_of, is_flag, is_name, problems
from jsonschema import Draft202012Validator

from docs.builders.coming_from_page import TABLES, systems
from t5suite.testing import parse_flags

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
    @pytest.mark.quick_cases(1)
    def test_flags_can_be_written_as_the_page_writes_them(self, name):
        """Each mapped form, alone on a command line of the script that has its flags, and as a shell splits it."""
        system = next(system for system in SYSTEMS if system["system"] == name)
        for theirs, ours, _ in system["flags"] + system.get("gin", []):
            for form in CODE.findall(ours):
                if form.startswith("--") and "{" not in form and not PLAIN.fullmatch(form) and not _compiles(form):
                    self.assertEqual(_problem_of_form(form), "", f"{theirs}: {form}")

    @pytest.mark.slow
    def test_flags_that_let_deepspeed_compile_can_be_written_as_the_page_writes_them(self):
        """On a machine where DeepSpeed has not compiled yet, half a minute of processor time."""
        spans = [span for system in SYSTEMS for row in system["flags"] for span in CODE.findall(row[1])]
        forms = [span for span in spans if _compiles(span)]
        self.assertNotEmpty(forms)
        for form in forms:
            self.assertEqual(_problem_of_form(form), "", form)

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


# What is lacking beside a flag (another flag, a GPU) is no mistake in how the page writes it.
LACKING = re.compile(r"which is not given|has no effect without|there is no --deepspeed|requires Ampere")
# Values for flags that the page names without one.
PAGE_VALUES = ({}, 8, 0.5, 8.0, "word")
NAMED_VALUES = {
    **dict.fromkeys(("tf32", "add_task_name", "add_task_definition", "add_explanation", "tk_instruct"), "True"),
    "objective": "span_corruption",
}


def _problem_of_form(form: str) -> str:
    """What is wrong with flags written as on the page, "" if a script takes them.

    The errors are those before anything is read: names, values, and settings of optimizers and schedules.
    """
    if re.search(r"[()]", re.sub(r"'[^']*'", "", form)):
        return "a shell takes brackets only in quotes"
    words = shlex.split(form)
    flags = [word.removeprefix("--") for word in words if word.startswith("--")]
    script = next((script for script in SCRIPTS if set(flags) <= set(SCRIPTS[script])), "fine_tune_t5")
    argv = []
    for word, next_word in zip(words, [*words[1:], "--"]):
        argv.append(word)
        if word.startswith("--") and next_word.startswith("--"):
            argv += _value_of(script, word.removeprefix("--"))
    try:
        parse_flags(script, [*argv, "--use_cpu"])
    except ValueError as error:
        return "" if LACKING.search(str(error)) else str(error)
    return ""


def _compiles(form: str) -> bool:
    return form.startswith("--deepspeed ")


def _value_of(script: str, name: str) -> list[str]:
    """A value that a flag takes, by its entry in the schema; none for a switch."""
    if name in NAMED_VALUES:
        return [NAMED_VALUES[name]]
    entry = SCRIPTS[script].get(name, {"type": "boolean"})
    validator = Draft202012Validator(entry)
    if validator.is_valid(True) and not validator.is_valid("word"):
        return []
    value = next(value for value in (*choices_of(entry), *PAGE_VALUES) if validator.is_valid(value))
    return [str(value)]


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
