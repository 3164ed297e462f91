"""Trackers mirror metrics.jsonl: what a training does with them, never at its cost, and who follows the file."""

import dataclasses
import datetime
import json
import resource
import subprocess
import sys
import threading
import time
from importlib import util
from pathlib import Path
from unittest import mock

import psutil
import pytest
from absl.testing import parameterized
from support import folder
from tracker_readers import tensorboard_files
from transformers import TrainerCallback
from wandb_server import wandb_environment

from t5suite import FineTuner
from t5suite.contrib.tracker_callbacks import Settings
from t5suite.testing import TINY_T5
from t5suite.tracking import trackers
from t5suite.tracking.metric_lines import MetricLines, thinned_lines
from t5suite.tracking.trackers import tracker_names

FLAGS = {
    "config_overrides": TINY_T5, "from_scratch": True, "use_cpu": True, "max_steps": 2, "no_eval": True,
    "eval_strategy": "no", "per_device_train_batch_size": 4, "logging_steps": 1, "quiet": True, "save_strategy": "no",
}  # fmt: skip


def run_with(tracker: str, directory, callback=None, **changes) -> list[str]:
    """The lines of the log of a short run with a tracker; the log also holds what was logged before the run."""
    start = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S,%f}"
    callbacks = {} if callback is None else {"callbacks": callback}
    tuner = FineTuner(**{**FLAGS, "report_to": tracker, "output_dir": str(directory), **callbacks, **changes})
    tuner.train()
    lines = (directory / "logs" / "rank-0.log").read_text().splitlines()
    return [line for line in lines if line > start]


def warnings_of(lines: list[str]) -> list[str]:
    return [line for line in lines if " WARNING " in line and "t5suite.tracking" in line]


def command_line(process: psutil.Process) -> str:
    """Empty for a process that has ended, of another test."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


class AtBegin(TrainerCallback):
    """Calls a function with the process of the tracker, when training begins."""

    def __init__(self, call):
        self.call = call

    def on_train_begin(self, args, state, control, **kwargs):
        (process,) = [child for child in psutil.Process().children() if args.output_dir in command_line(child)]
        self.call(process)


class TrackersTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_a_full_disk_costs_one_warning(self):
        limit = lambda process: resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (500, 500))
        lines = run_with("tensorboard", folder() / "run", AtBegin(limit))
        (warning,) = warnings_of(lines)
        self.assertIn("TensorBoard", warning)

    def test_disabled_is_nothing(self):
        directory = folder() / "run"
        with wandb_environment(WANDB_MODE="disabled"):
            self.assertEmpty(warnings_of(run_with("wandb", directory)))
        self.assertFalse((directory / "wandb").exists() or (directory / "trackers").exists())

    def test_the_command_line_of_its_process_holds_no_setting(self):
        words = []
        look = AtBegin(lambda process: words.extend(process.cmdline()))
        run_with("tensorboard", folder() / "run", look, run_name="a-setting")
        self.assertNotIn("a-setting", " ".join(words))

    def test_one_that_is_not_installed_costs_a_warning_with_the_cure(self):
        find_spec = util.find_spec
        without_aim = lambda name, *more: None if name == "aim" else find_spec(name, *more)
        with mock.patch.object(util, "find_spec", without_aim):
            (warning,) = warnings_of(run_with("aim", folder() / "run"))
        self.assertRegex(warning, r"tracker aim failed and is disabled .*pip install 't5suite\[aim\]'")

    def test_one_that_ends_too_early_is_named_once(self):
        program = folder() / "program"
        program.write_text("#!/bin/sh\nexit 3\n")
        program.chmod(0o755)
        with mock.patch.object(sys, "executable", str(program)):
            (warning,) = warnings_of(run_with("wandb", folder() / "run"))
        self.assertIn("exit 3", warning)

    @pytest.mark.slow
    def test_one_that_hangs_does_not_hold_up_the_end(self):
        """A process that does nothing at all stands for a W&B that hangs."""
        directory, program, processes = folder() / "run", folder() / "program", []
        program.write_text("#!/bin/sh\ntrap '' TERM\nwhile true; do sleep 1; done\n")
        program.chmod(0o755)
        started = time.monotonic()
        with mock.patch.object(sys, "executable", str(program)):
            lines = run_with("wandb", directory, AtBegin(processes.append))
        self.assertLess(time.monotonic() - started, 60.0)
        (warning,) = warnings_of(lines)
        self.assertRegex(warning, f"did not end within .* python -m \\S+ {directory} wandb")
        self.assertFalse(processes[0].is_running())

    @pytest.mark.slow
    def test_every_step_is_there_once_whenever_the_run_was_resumed(self):
        class Dies(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 7:
                    raise RuntimeError("out of power")

        directory = folder() / "run"
        changes = {"max_steps": 9, "save_strategy": "steps", "save_steps": 4, "logging_steps": 1}
        with self.assertRaisesRegex(RuntimeError, "out of power"):
            run_with("tensorboard", directory, Dies(), **changes)
        run_with("tensorboard", directory, **changes, allow_changed="plug_ins")
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
        logged = {("train/loss", line["step"]): line["train/loss"] for line in lines if "train/loss" in line}
        received = tensorboard_files(directory)
        self.assertEmpty(received.twice)
        losses = {key: value for key, value in received.numbers.items() if key[0] == "train/loss"}
        self.assertEqual([step for _, step in losses], list(range(1, 10)))
        for key, value in logged.items():
            self.assertAlmostEqual(losses[key], value, delta=1e-6 * value)
        texts = {name: (step, text) for (name, step), text in received.tables.items()}
        self.assertEqual([texts[name][0] for name in ("run", "settings", "manifest")], [0, 0, 9])
        self.assertIn('"learning_rate"', texts["settings"][1])


class ReportsTest(parameterized.TestCase):
    """What a training says of the process of a tracker, by what that process reports and how it ends."""

    def logged(self, *reports, exit_code=0, ends=True, code_of_training=0) -> tuple[str, mock.Mock]:
        """The lines of the log, and the process; one that does not end says nothing more until it is killed."""
        was_killed = threading.Event()

        def lines():
            for report in reports:
                yield report if isinstance(report, str) else json.dumps(report)
            if not ends:
                was_killed.wait(5)

        def wait(seconds=None):
            if seconds is not None and not (ends or was_killed.is_set()):
                raise subprocess.TimeoutExpired("mirror", seconds)
            return exit_code

        process = mock.Mock(pid=7, stdout=lines(), **{"wait.side_effect": wait})
        kill = mock.patch.object(trackers, "kill_with_children", side_effect=lambda pid: was_killed.set())
        start = mock.patch.object(trackers, "start_mirror", return_value=process)
        with start, kill as self.killed, self.assertLogs("t5suite.tracking", "DEBUG") as logs:
            trackers.logger.debug("a line of this test")
            tracker = trackers.Tracker("tensorboard", folder(), "4f2a", {}, trackers.Identity(name="x"))
            tracker.send("go")
            tracker.finish(code_of_training)
        return "\n".join(logs.output[1:]), process

    def test_what_it_reports_is_told(self):
        offline = {"state": "offline", "wanted": False, "reason": "no answer", "sync": "sync DIR"}
        for reports, exit_code, expected in (
            ([{"state": "online", "place": "http://x"}, {"state": "finished"}], 0, ["INFO.*: http://x$"]),
            ([{"state": "failed", "reason": "TypeError: x"}], 1, [r"WARNING.* failed and is disabled .TypeError: x.*python -m"]),
            ([offline, {"state": "finished"}], 0, ["WARNING.* is offline .no answer.*sync DIR", "INFO.*send this run with: sync DIR"]),
            ([{**offline, "wanted": True}, {"state": "finished"}], 0, ["INFO.*send this run with: sync DIR"]),
            (["a library's line", "12", {"state": "finished"}, {"state": "odd"}], 0, []),
            ([{"state": "online", "place": "y"}], 3, ["INFO.*: y$", r"WARNING.*process ended .exit 3, see .*mirror.log"]),
        ):  # fmt: skip
            text, process = self.logged(*reports, exit_code=exit_code)
            self.assertLen(text.splitlines(), len(expected), text)
            for line, pattern in zip(text.splitlines(), expected):
                self.assertRegex(line, pattern)
            self.assertEqual([call.args[0] for call in process.stdin.write.call_args_list], ["go\n", "end 0\n"])
            self.killed.assert_not_called()

    def test_one_that_does_not_end_is_killed_and_named_once(self):
        text, _ = self.logged(ends=False, exit_code=-9)
        self.assertRegex(text, r"\AWARNING.*did not end within 15 s and was killed; metrics.jsonl has every line.*\Z")
        self.killed.assert_called_once_with(7)

    def test_a_run_that_is_preempted_has_eight_seconds_for_it(self):
        text, process = self.logged(ends=False, exit_code=-9, code_of_training=75)
        self.assertRegex(text, r"\AWARNING.*did not end within 8 s and was killed")
        self.assertEqual(process.wait.call_args_list[0], mock.call(8.0))
        self.assertEqual(process.stdin.write.call_args_list[-1], mock.call("end 75\n"))

    def test_a_process_is_killed_with_its_children_also_if_some_have_ended(self):
        ended = mock.Mock(**{"kill.side_effect": psutil.NoSuchProcess(8)})
        parent = mock.Mock(**{"children.return_value": [ended, mock.Mock()]})
        with mock.patch("psutil.Process", return_value=parent):
            trackers.kill_with_children(7)
        for process in (parent, *parent.children()):
            process.kill.assert_called_once_with()
        with mock.patch("psutil.Process", side_effect=psutil.NoSuchProcess(7)):
            trackers.kill_with_children(7)


class CallbackSettingsTest(parameterized.TestCase):
    def test_a_callback_reads_the_run_s_settings_as_the_trainer_s_arguments(self):
        config = {"seed": 3, "bf16": True, "labels": ["a", "b"], "notes": None, "no name": 1, "run_name": "theirs"}
        settings = Settings(config, "rte", Path("runs/rte"))
        expected = {**config, "run_name": "rte", "output_dir": "runs/rte"}
        self.assertEqual((settings.to_dict(), json.loads(settings.to_json_string())), (expected, expected))
        self.assertEqual(settings.to_sanitized_dict(), {**expected, "labels": "['a', 'b']", "notes": "None"})
        self.assertEqual((settings.seed, settings.labels, settings.run_name), (3, ["a", "b"], "rte"))
        self.assertIsNone(settings.logging_dir, "a setting that the run has not")
        self.assertFalse(hasattr(settings, "__html__"))
        names = [field.name for field in dataclasses.fields(settings)]
        self.assertCountEqual(names, ["seed", "bf16", "labels", "notes", "run_name", "output_dir"])


class NamesTest(parameterized.TestCase):
    def test_all_stands_for_what_is_installed_beside_those_that_are_named(self):
        installed = [name for name in ("wandb", "tensorboard", "aim", "trackio") if util.find_spec(name)]
        self.assertCountEqual(tracker_names("all,mlflow"), ["mlflow", *installed])
        self.assertCountEqual(tracker_names(["all", "wandb", "none"]), installed)


def lines_file(steps, broken=()) -> Path:
    """A file of metrics with one line for each of the steps, some of them broken."""
    path = folder() / "metrics.jsonl"
    texts = [json.dumps({"step": step, "seconds": 1.0, "train/loss": 0.1 * i}) for i, step in enumerate(steps)]
    texts = [text[:9] if i in broken else text for i, text in enumerate(texts)]
    path.write_text("".join(text + "\n" for text in texts))
    return path


class GoingOnTest(parameterized.TestCase):
    """Those who follow a file begin where they left off, however long it is."""

    @parameterized.parameters(1, 30, 1000, 10**6)
    def test_in_pieces_every_line_comes_once_and_half_a_line_waits(self, most_bytes):
        path = lines_file(range(100))
        expected = MetricLines(path).new_lines()
        with path.open("a") as file:
            file.write('{"step": 100')
        lines, read_lines = MetricLines(path), []
        while lines.behind or not read_lines:
            read_lines += lines.new_lines(most_bytes)
        self.assertEqual(read_lines, expected)
        with path.open("a") as file:
            file.write("}\n")
        self.assertEqual(lines.new_lines(most_bytes), [{"step": 100}])
        self.assertFalse(lines.behind)

    def test_what_is_no_line_is_named_and_the_others_are_read(self):
        path = lines_file(range(5), broken=[1])
        with self.assertLogs("t5suite", "WARNING") as logs:
            lines = MetricLines(path).new_lines()
        self.assertRegex(logs.output[0], r"metrics\.jsonl:2 is skipped")
        self.assertEqual([line["step"] for line in lines], [0, 2, 3, 4])

    def test_thinned_lines_keep_evaluations_and_the_last(self):
        path = lines_file(range(1000))
        with path.open("a") as file:
            file.write('{"step": 999, "eval/nll": 2.0}\n{"step": 1000, "train/loss": 3.0}\n')
        thinned = list(thinned_lines(path, target_count=50))
        self.assertBetween(len(thinned), 45, 55)
        self.assertEqual(thinned[-2:], [{"step": 999, "eval/nll": 2.0}, {"step": 1000, "train/loss": 3.0}])
        self.assertEqual(list(thinned_lines(path)), MetricLines(path).new_lines())
        self.assertEmpty(list(thinned_lines(path.with_name("none"))))
