"""What one looks at when something is odd: a profile, each rank's log, and no chatter around it."""

import contextlib
import functools
import io
import json
import logging
import math
import shutil
import warnings
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from support import folder
from transformers import TrainerCallback

import fine_tune_t5
from t5suite.testing import TINY_T5, exits_with, parse_flags, tiny_run, tiny_trainer

SECRET = "hf_" + "a1B2" * 8
# A run that only trains.
TRAINING = {"max_steps": 1, "no_eval": True, "save_strategy": "no", "per_device_train_batch_size": 2}


class StandInProfiler:
    """Takes torch's profiler's place where only its files' names count: torch needs a second to write its own."""

    def __init__(self, **settings):
        pass

    def start(self):
        pass

    def stop(self):
        pass

    def export_chrome_trace(self, path):
        Path(path).write_text("{}")

    def key_averages(self):
        return self

    def table(self, **settings):
        return "a table"


SAVING = {"save_strategy": "steps", "save_steps": 2}


@functools.cache
def run_of_two_steps() -> Path:
    """The directory of a run with a checkpoint; not to be changed."""
    return tiny_run(**TRAINING | SAVING | {"max_steps": 2}).directory


class ProfileTest(parameterized.TestCase):
    def test_steps_of_a_range_are_read_and_what_is_no_range_is_refused(self):
        for text in ("10:12", "7", " 3:3 "):
            self.assertEqual(parse_flags("fine_tune_t5", [f"--profile={text}"])["profile"], text)
        for text in ("12:10", "0:3", "a:b", "10-12", "10:", ":12", "1:2:3", "", "-1:4", "1.5:2"):
            with self.subTest(text), exits_with(78, "--profile .*10:12"):
                parse_flags("fine_tune_t5", [f"--profile={text}"])

    def profiled(self, directory, **flags) -> list[str]:
        """The steps in the names of the traces that a run writes."""
        tiny_run(**TRAINING | flags, output_dir=str(directory))
        return sorted(path.name.removesuffix(".rank-0.trace.json") for path in directory.glob("profile/*.trace.json"))

    @parameterized.parameters(("3:4", "steps-3-4", 2), ("3", "steps-3-3", 1))
    @pytest.mark.slow
    def test_the_range_s_trace_memory_and_table(self, steps, name, count):
        directory, output = folder() / "run", io.StringIO()
        with contextlib.redirect_stdout(output):
            self.profiled(directory, max_steps=5, profile=steps, quiet=False, disable_tqdm=True)
        table, trace = sorted((directory / "profile").iterdir())
        self.assertEqual((table.name, trace.name), (f"{name}.rank-0.table.txt", f"{name}.rank-0.trace.json"))
        names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
        self.assertEqual(names.count("Optimizer.step#AdamW.step"), count)
        self.assertRegex(output.getvalue(), r"Self CPU %.*# of Calls")

    @parameterized.parameters(
        ("2:3", 1, "trains steps 1 to 1", []),
        ("2:3", 4, None, ["steps-2-3"]),
        ("2", 4, None, ["steps-2-2"]),
        ("2:20", 2, None, ["steps-2-2"]),
    )
    @pytest.mark.quick_cases(3)
    def test_what_of_the_range_is_there(self, steps, last, warning, names):
        with self.says_of_the_range(steps, warning):
            self.assertEqual(self.profiled(folder() / "run", max_steps=last, profile=steps), names)

    @parameterized.parameters(("1:2", "trains steps 3 to 4", []), ("1:3", None, ["steps-3-3"]))
    @pytest.mark.slow
    def test_what_of_the_range_is_left_to_a_run_that_goes_on(self, steps, warning, names):
        directory = shutil.copytree(run_of_two_steps(), folder() / "run")
        with self.says_of_the_range(steps, warning):
            self.assertEqual(self.profiled(directory, **SAVING, max_steps=4, extend=True, profile=steps), names)

    @contextlib.contextmanager
    def says_of_the_range(self, steps, warning):
        """Asserts which warning there is of the range; the profiler is a stand-in."""
        with mock.patch("torch.profiler.profile", StandInProfiler), self.assertLogs("t5suite") as logs:
            yield
        warnings_of_profile = [line for line in logs.output if line.startswith("WARNING") and "--profile" in line]
        self.assertLen(warnings_of_profile, 0 if warning is None else 1)
        if warning is not None:
            self.assertIn(f"--profile {steps} has no effect: the run {warning}", warnings_of_profile[0])

    def test_a_profiler_that_fails_costs_a_warning(self):
        broken = mock.patch("torch.profiler.profile", side_effect=RuntimeError("no CUPTI"))
        with broken, self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(self.profiled(folder() / "run", max_steps=3, profile="1:2"), [])
        self.assertLen([line for line in logs.output if "no CUPTI" in line], 1)


def act_in_training():
    """What `Acts` does; tests put their own functions in its place."""


class Acts(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        act_in_training()


def run_script(directory, action, **flags) -> None:
    """A run of the script, which does something as training begins and ends with the error that this raises."""
    flags = {**TRAINING, "config_overrides": TINY_T5, "from_scratch": True, "use_cpu": True, **flags}
    flags |= {"output_dir": directory, "callbacks": f"{__name__}:Acts", "disable_tqdm": True}
    with mock.patch(f"{__name__}.act_in_training", action):
        fine_tune_t5.main([f"--{name}={value}" for name, value in flags.items()])


def log_of(directory) -> str:
    return (directory / "logs" / "rank-0.log").read_text()


class RankLogTest(parameterized.TestCase):
    def end_with(self, directory, text: str) -> None:
        """A run that ends with an error as training begins."""

        def log_and_fail():
            logging.getLogger("t5suite.somewhere").warning("within, with %s", SECRET)
            logging.getLogger("transformers.trainer").warning("theirs")
            raise OSError(text)

        with self.assertRaisesRegex(OSError, text):
            run_script(directory, log_and_fail)

    def test_lines_from_before_the_directory_is_known_and_the_end_are_there_once_and_redacted(self):
        directory = folder() / "run"
        self.end_with(directory, f"the disk {SECRET}")
        text = log_of(directory)
        pattern = r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} rank 0 WARNING t5suite.somewhere: within, with \*\*\*$"
        self.assertRegex(text, pattern)
        before_the_directory = "mini/sentiment on 1 x cpu"
        for words in (before_the_directory, "within, with", "theirs", "OSError: the disk ***", "Traceback"):
            self.assertEqual(text.count(words), 1, words)
        self.assertNotIn(SECRET, text)
        self.end_with(directory, "again")
        self.assertStartsWith(log_of(directory), text)
        self.assertEqual(log_of(directory).count("OSError: again"), 1)

    def test_a_log_on_a_full_disk_does_not_hide_why_the_run_ended(self):
        directory = folder() / "run"
        self.end_with(directory, "the first cause")
        (directory / "logs" / "rank-0.log").unlink()
        (directory / "logs" / "rank-0.log").symlink_to("/dev/full")
        with contextlib.redirect_stderr(io.StringIO()) as output:
            self.end_with(directory, "the cause")
        self.assertNotIn("Logging error", output.getvalue())

    @pytest.mark.slow
    def test_lines_between_a_script_s_run_and_another_go_to_the_other_one_s_file(self):
        first, second = folder() / "run", folder() / "run"
        self.end_with(first, "the first one's end")
        text = log_of(first)
        logging.getLogger("t5suite").warning("between")
        tiny_run(**TRAINING, output_dir=str(second))
        self.assertEqual(log_of(first), text)
        self.assertIn("between", log_of(second))

    def test_a_run_from_python_logs_to_its_file_and_leaves_the_loggers_as_they_were(self):
        directory, logger = folder() / "run", logging.getLogger("t5suite")
        with mock.patch.multiple(logger, handlers=[], propagate=True):  # as in a new process
            with mock.patch(f"{__name__}.act_in_training", lambda: logger.error("within")):
                tiny_run(**TRAINING, output_dir=str(directory), callbacks=Acts())
            self.assertEqual(logger.handlers, [])
        self.assertEqual(log_of(directory).count("rank 0 ERROR t5suite: within"), 1)


CHATTER = (
    "There were missing keys in the checkpoint model loaded: ['encoder.embed_tokens.weight'].",
    "mtime may not be reliable on this filesystem, falling back to numerical ordering",
    "Warning: The following arguments do not match the ones in the `trainer_state.json` within the checkpoint",
    "Gradient accumulation steps mismatch: GradientAccumulationPlugin has 1, DeepSpeed config has 2.",
)


class ChatterTest(parameterized.TestCase):
    @parameterized.parameters("debug", "info", "warning", "passive")  # the default: it holds for the process
    @pytest.mark.quick_cases(1)
    def test_what_libraries_say_for_no_reason_is_shown_by_a_low_log_level_alone(self, log_level):
        log_texts, warning_texts = [], []
        log, handler = logging.getLogger("transformers.trainer"), logging.Handler()
        handler.emit = lambda record: log_texts.append(record.getMessage())

        def speak():
            for message in (*CHATTER, "loud"):
                log.warning(message)
                warnings.showwarning(UserWarning(message), UserWarning, "x.py", 1)
            raise OSError("the end")

        self.addCleanup(log.removeHandler, handler)
        log.addHandler(handler)
        note_warning = lambda message, *args, **kwargs: warning_texts.append(str(message))
        with mock.patch.object(warnings, "showwarning", note_warning), self.assertRaisesRegex(OSError, "the end"):
            run_script(folder() / "run", speak, log_level=log_level)
        shown = [*CHATTER, "loud"] if log_level in ("debug", "info") else ["loud"]
        self.assertEqual(([each for each in log_texts if each in (*CHATTER, "loud")], warning_texts), (shown, shown))


class ProgressTest(parameterized.TestCase):
    def logged(self, trainer, logs: dict, is_terminal: bool = False) -> tuple[str, str]:
        """What appears on standard output and standard error when a trainer logs in step 3 of 9."""
        out, err = io.StringIO(), io.StringIO()
        trainer.state.global_step, trainer.state.max_steps = 3, 9
        shown_to = (trainer.args, trainer.state, trainer.control)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            trainer.callback_handler.on_train_begin(*shown_to)
            trainer.callback_handler.on_log(*shown_to, logs)
            trainer.callback_handler.on_train_end(*shown_to)
        return out.getvalue(), err.getvalue()

    def test_a_log_is_a_line_and_no_dictionary(self):
        trainer = tiny_trainer()
        log = {"loss": 0.5, "learning_rate": 1e-3, "tokens_per_second": 5000.0, "seconds_left": 61.0}
        out, err = self.logged(trainer, log)
        legend, line = out.splitlines()
        self.assertEqual((line, err), ("step 3/9 · loss 0.500 · lr 1.0e-03 · 5.0k tokens/s · 1m01s left", ""))
        self.assertRegex(legend, r"loss: .*; lr: learning rate; tokens: of inputs")
        self.assertEqual(self.logged(trainer, log)[0], line + "\n", "the legend is there once")
        logs = {"eval/matthews_correlation": math.nan, "eval/invalid_rate": 12.5, "eval/loss": 0.25}
        expected = "step 3/9 · evaluation · matthews_correlation nan · invalid 12.5% · loss 0.250\n"
        self.assertEqual(self.logged(tiny_trainer(), logs)[0], expected)

    def test_the_bar_has_the_score_and_evaluations_above_it(self):
        terminal = io.StringIO()
        terminal.isatty = lambda: True
        with contextlib.redirect_stderr(terminal):
            trainer = tiny_trainer(disable_tqdm=False)
        out, err = self.logged(trainer, {"eval/accuracy": 91.0, "eval/average": 91.0})
        self.assertEqual(out, "step 3/9 · evaluation · accuracy 91.00\n")
        self.assertRegex(err, r"33%.*3/9, score 91\.00, .* left")
        out, err = self.logged(trainer, {"loss": 0.5, "tokens_per_second": 5000.0})
        self.assertRegex(err, r"3/9, loss 0\.500, 5\.0k tokens/s, .* left")
        self.assertEqual(out, "")
