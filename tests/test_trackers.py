"""Trackers mirror metrics.jsonl: every step once whatever happened in between, and never at training's cost."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from absl.testing import parameterized
from support import folder
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_server import API_KEY, BROKEN, REFUSED, WandbServer, wandb_environment

from t5suite.runs.directory import METRICS
from t5suite.tracking import backends, mirror
from t5suite.tracking import trackers as trackers_module
from t5suite.tracking.backends import why_unreachable
from t5suite.tracking.metric_lines import MetricLines, rows_by_step
from t5suite.tracking.mirror import Commands
from t5suite.tracking.trackers import Trackers

RUN_ID = "4f2a"


def write_line(directory, step: int, **metrics) -> dict:
    """One line of metrics.jsonl, as `MetricsCallback` writes it."""
    metrics = metrics or {"train/loss": 1 / (step + 1)}
    metrics = {name.replace("__", "/"): value for name, value in metrics.items()}
    with (directory / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "epoch": 0.5, "seconds": 1.0, **metrics}) + "\n")
    return metrics


def cut_after(directory, step: int) -> None:
    """What a resumed run does with the lines that it will write again."""
    path = directory / METRICS
    kept = [line for line in path.read_text().splitlines() if json.loads(line)["step"] <= step]
    path.write_text("".join(f"{line}\n" for line in kept))


def leg(names, directory, steps, exit_code: int = 0, before_end=None) -> None:
    """A run's part from start to end, which logs the steps."""
    trackers = Trackers(names, directory, RUN_ID, {"seed": 1})
    trackers.begin()
    for step in steps:
        write_line(directory, step)
    if before_end:
        before_end()
    trackers.finish(exit_code)


class MetricLinesTest(parameterized.TestCase):
    def test_half_a_line_waits_for_the_rest(self):
        path = folder() / METRICS
        path.write_text('{"step": 1, "train/loss": 1.0}\n{"step": 2, "tr')
        lines = MetricLines(path)
        self.assertEqual([line["step"] for line in lines.new_lines()], [1])
        self.assertEmpty(lines.new_lines())
        with path.open("a") as file:
            file.write('ain/loss": 0.5}\n')
        self.assertEqual(lines.new_lines(), [{"step": 2, "train/loss": 0.5}])

    def test_what_is_no_line_of_metrics_is_left_out_and_a_step_s_lines_are_one_row(self):
        path = folder() / METRICS
        path.write_text('{broken\n[1]\n{"no": "step"}\n\n\x00\x00\n{"step": 3}\n')
        self.assertEqual(MetricLines(path).new_lines(), [{"step": 3}])
        lines = [{"step": 1, "seconds": 2.0, "train/loss": 1.0}, {"step": 1, "eval/f1": 90.0}, {"step": 2, "a/b": 0.5}]
        self.assertEqual(rows_by_step(lines), [(1, {"train/loss": 1.0, "eval/f1": 90.0}), (2, {"a/b": 0.5})])


class TensorBoardTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_every_step_is_there_once_whenever_the_run_was_resumed_and_trackers_were_told(self):
        for resumed_at in (6, 4, 0):
            directory = folder()
            leg(["tensorboard"], directory, range(1, 7), 75)
            cut_after(directory, resumed_at)
            leg([], directory, range(resumed_at + 1, 9))
            leg(["tensorboard"], directory, range(9, 11))
            events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0}).Reload()
            found = [(point.step, round(point.value, 4)) for point in events.Scalars("train/loss")]
            self.assertEqual(found, [(step, round(1 / (step + 1), 4)) for step in range(1, 11)])

    def test_a_full_disk_costs_one_warning(self):
        directory = folder()
        with self.assertLogs("t5suite", "WARNING") as logs:
            trackers = Trackers(["tensorboard"], directory, RUN_ID, {})
            resource.prlimit(trackers._trackers[0].process.pid, resource.RLIMIT_FSIZE, (2000, 2000))
            trackers.begin()
            for step in range(100):
                write_line(directory, step)
            trackers.finish()
        self.assertLen(logs.output, 1)


class RowsTest(parameterized.TestCase):
    """What the mirror process makes of lines, without W&B."""

    def sent(self, lines, words: bytes, first=0) -> list[int]:
        directory, run = folder(), mock.Mock()
        for step in lines:
            write_line(directory, step)
        read, write = os.pipe()
        os.write(write, words)
        os.close(write)
        with mock.patch.object(mirror, "POLL_SECONDS", 0.01):
            last = mirror.send_rows(run.log, MetricLines(directory / METRICS), Commands(read), first)
        steps = [call.args[1] for call in run.log.call_args_list]
        self.assertEqual(last, steps[-1] if steps else first - 1)
        return steps

    @parameterized.named_parameters(
        ("all at the end", b"go\nend 0\n", [2, 4, 6]),
        ("a failure too", b"go\nend 70\n", [2, 4, 6]),
        ("not the last one of a run that comes back, since it may lack its evaluation", b"go\nend 75\n", [2, 4]),
        ("nor of one that was killed", b"go\n", [2, 4]),
        ("nothing before the file is this run's", b"", []),
    )
    def test_rows_that_are_sent(self, words, expected):
        self.assertEqual(self.sent([2, 2, 4, 4, 6, 6], words), expected)

    def test_steps_that_are_there_are_not_sent_again(self):
        self.assertEqual(self.sent([2, 4, 6, 8], b"go\nend 0\n", first=5), [6, 8])


class ReachingTest(parameterized.TestCase):
    """Whether W&B can be used is found out within a bounded time, and said plainly."""

    @parameterized.parameters(
        ({}, None), ({"key": "f" * 40}, "does not accept the API key"), ({"key": None}, "no API key is set"),
        ({"status": REFUSED}, "does not accept the API key"), ({"status": BROKEN}, "answers with status 503"),
        ({"silent": 30.0}, "did not answer within"), ({"gone": True}, "cannot be reached: Connection refused"),
        ({"url": "http://nowhere.invalid"}, "cannot be reached|did not answer"),
    )  # fmt: skip
    def test_one_that_cannot_be_used(self, fault, expected):
        with WandbServer() as server, mock.patch.object(backends, "PROBE_SECONDS", 0.5), wandb_environment():
            server.status, server.silent = fault.get("status"), fault.get("silent", 0.0)
            if fault.get("gone"):
                server.drop()
            settings = {"api_key": fault.get("key", API_KEY), "base_url": fault.get("url", server.url)}
            started = time.monotonic()
            reason = why_unreachable(SimpleNamespace(identity_token_file=None, **settings))
            self.assertLess(time.monotonic() - started, 2.0)
        self.assertRegex(str(reason), expected or "^None$")
        self.assertNotRegex(str(reason), "0x|f{40}")  # no object's address, no key


class WandbTest(parameterized.TestCase):
    def test_disabled_is_nothing(self):
        directory = folder()
        with wandb_environment(WANDB_MODE="disabled"), self.assertNoLogs("t5suite"):
            leg(["wandb"], directory, [2])
        self.assertEqual([path.name for path in directory.iterdir()], [METRICS])

    def test_its_command_line_holds_no_setting(self):
        with wandb_environment(WANDB_MODE="offline"):
            trackers = Trackers(["wandb"], folder(), RUN_ID, {"note": "a-setting"})
            (tracker,) = trackers._trackers
            words = Path(f"/proc/{tracker.process.pid}/cmdline").read_bytes()
            tracker.process.kill()
            tracker.listener.join(60)  # whose warning is no business of the next test's
        self.assertNotIn(b"a-setting", words)


class HangingTest(parameterized.TestCase):
    """A process that does nothing at all stands for a W&B that hangs."""

    def tracked(self, program: str):
        command = [sys.executable, "-c", program]
        popen = subprocess.Popen
        return mock.patch.object(trackers_module.subprocess, "Popen", lambda _, **settings: popen(command, **settings))

    def test_it_does_not_hold_up_the_end(self):
        sleeps = self.tracked("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)")
        with sleeps, mock.patch.object(trackers_module, "FINISH_SECONDS", 0.5), self.assertLogs("t5suite") as logs:
            trackers = Trackers(["wandb"], folder(), RUN_ID, {})
            (tracker,) = trackers._trackers
            started = time.monotonic()
            trackers.begin()
            trackers.finish()
        self.assertLess(time.monotonic() - started, 2.0)
        self.assertLen(logs.output, 1)
        self.assertRegex(logs.output[0], f"did not end within .* python -m {trackers_module.MIRROR} /")
        self.assertEqual(tracker.process.returncode, -signal.SIGKILL)

    def test_one_that_ends_too_early_is_named_once(self):
        with self.tracked("raise SystemExit(3)"), self.assertLogs("t5suite", "WARNING") as logs:
            leg(["wandb"], folder(), [2, 4], before_end=lambda: time.sleep(0.5))
        self.assertLen(logs.output, 1)
        self.assertIn("exit 3", logs.output[0])
