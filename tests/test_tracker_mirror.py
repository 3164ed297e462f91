"""The process that sends a run to its trackers: every step once, whatever happened in between; results and samples
at their steps.

It gets the lines that a run leaves and the commands that a training sends; modules of trackers that are no part of the
tests' environment are replaced by such as keep what they are told.
"""

import contextlib
import functools
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
from pathlib import Path
from unittest import mock

import pytest
import requests
from absl.testing import parameterized
from report_runs import LAST_STEP, STEPS_LOGGED, MadeRun, make_mixture
from support import folder
from tracker_readers import Received, rows_of_table, tensorboard_files
from transformers.integrations import integration_utils
from wandb_server import API_KEY, BROKEN, REFUSED, WandbServer, wandb_environment

from t5suite.testing import write_rows
from t5suite.tracking import mirror
from t5suite.tracking.mirror import Commands

RUN_ID = "4f2a"


def write_line(directory, step: int, **metrics) -> None:
    """One line of metrics.jsonl, as a run writes it."""
    metrics = metrics or {"train/loss": 1 / (step + 1)}
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "epoch": 0.5, "seconds": 1.0, **metrics}) + "\n")


def commands_of(words: bytes) -> Commands:
    """The commands of a training that says these words and dies."""
    read, write = os.pipe()
    os.write(write, words)
    os.close(write)
    return Commands(read)


def described_run(steps, **setup) -> Path:
    """A directory with lines of these steps, and with what a training says of the run to each tracker."""
    directory = folder()
    for step in steps:
        write_line(directory, step)
    manifest = {"run_id": RUN_ID, "settings": {}, "command": ["fine_tune_t5.py"]}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    setup = {"name": "a run", "config": {}, "run_id": RUN_ID, **setup}
    for name in filter(mirror.TRACKERS.get, mirror.TRACKERS):
        (directory / "trackers" / name).mkdir(parents=True)
        (directory / "trackers" / name / "mirror.json").write_text(json.dumps(setup))
    return directory


def run_without_trackers(settings: dict) -> Path:
    """A directory of a run of these settings that was trained without a tracker."""
    directory = described_run([1])
    for setup in directory.glob("trackers/*/mirror.json"):
        setup.unlink()
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps({**manifest, "settings": settings}))
    return directory


def no_report(**state) -> None:
    pass


def wandb_module(received: Received):
    """As much of wandb as a run needs that is kept offline."""
    module = mock.MagicMock()
    module.setup().settings.mode, module.Settings = "offline", type("Settings", (), {"model_fields": {}})
    module.Table = lambda columns, data, allow_mixed_types: [list(columns), *data]
    module.init().settings.sync_dir = "x/offline-run-1-mixture1"
    module.init().log = lambda row, step: received.add_row(row, step)
    return {"wandb": module}


def aim_module(received: Received):
    """As much of Aim as a run needs."""

    class Run(dict):
        hash, tags = "h", ()

        def __init__(self, *arguments, **settings):
            super().__init__()

        def track(self, value, name, step, context=None):
            received.add(f"{context['subset']}/{name}" if context else name, step, value)

        add_tag = close = lambda self, *arguments: None

    module = types.SimpleNamespace(Run=Run, Repo=mock.MagicMock(), Text=lambda text: text)
    return {"aim": module, "aim.sdk.index_manager": mock.MagicMock()}


def trackio_module(received: Received):
    """As much of Trackio as a run needs; its database is asked for the last step."""
    module, storage = mock.MagicMock(), mock.MagicMock()
    module.context_vars.current_server.get.return_value = None
    module.Table = lambda dataframe: [list(dataframe.columns), *dataframe.values.tolist()]
    module.init().log = lambda row, step: received.add_row(row, step)
    storage.SQLiteStorage.get_logs = lambda project, name: [{"step": step} for _, step in received.numbers]
    return {"trackio": module, "trackio.sqlite_storage": storage}


def callback_of(name: str, received: Received):
    """A callback of transformers that keeps what it is told, as those of transformers rename it."""

    def on_log(arguments, state, control, logs, **also):
        for key, value in integration_utils.rewrite_logs(logs).items():
            if name == "clearml":  # it makes graphs and curves of the trainer's names
                key = key.replace("eval_", "eval/", 1) if key.startswith("eval_") else f"train/{key}"
            received.add(key.replace("eval/final/", "final/"), state.global_step, value)

    return mock.MagicMock(on_log=on_log)


def clients_of_callbacks(received: Received):
    """The modules of trackers that are asked for the id of a run that transformers' callback has begun."""
    return {"mlflow": mock.MagicMock(), "swanlab": mock.MagicMock()}


MODULES = {"wandb": wandb_module, "aim": aim_module, "trackio": trackio_module}


def told_in_legs(name: str, directory: Path) -> Received:
    """What a tracker gets of a run that is preempted in the evaluation of step 20, fails in it, fails behind its last step, and then finishes."""
    received, whole = Received(), (directory / "metrics.jsonl").read_text()
    modules = MODULES.get(name, clients_of_callbacks)(received)
    callbacks = {name: lambda: callback_of(name, received)}
    variables = {"NEPTUNE_CUSTOM_RUN_ID": "mixture1", "NETRC": os.devnull}
    (directory / "trackers" / name).mkdir(parents=True, exist_ok=True)
    # Trackers resume what is theirs by names that they have given, which are of no matter here.
    with (
        mock.patch.dict(sys.modules, modules),
        mock.patch.dict(integration_utils.INTEGRATION_TO_CALLBACK, callbacks),
        mock.patch.dict(os.environ, variables),
        mock.patch.object(mirror.SentSteps, "record", recorded_as_text),
    ):
        for lines, words in (
            (_before_evaluation(whole, 20), b"go\nend 75\n"),
            (_before_evaluation(whole, 20), b"go\nend 1\n"),
            (whole, b"go\nend 70\n"),
            (whole, b"go\nend 0\n"),
        ):
            (directory / "metrics.jsonl").write_text(lines)
            read, write = os.pipe()
            os.write(write, words)
            os.close(write)
            mirror.mirror(directory, name, Commands(read), lambda **state: None)
            os.close(read)
    return received


def recorded_as_text(sent, step: int, **resume_facts) -> None:
    """Instead of `SentSteps.record`, which writes JSON: ids of stand-ins are objects."""
    sent.step = step
    texts = {key: str(value) for key, value in resume_facts.items() if key != "segments"}
    sent.path.write_text(json.dumps({"step": step, "of_theirs": texts}))


def _before_evaluation(text: str, step: int) -> str:
    """The lines up to the first one of a step, which is that of training."""
    lines = text.splitlines()
    first = next(place for place, line in enumerate(lines) if json.loads(line)["step"] == step)
    return "".join(f"{line}\n" for line in lines[: first + 1])


@functools.cache
def first_run() -> MadeRun:
    return make_mixture(folder() / "first")


class TrackersTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        first_run()

    @parameterized.parameters(*filter(mirror.TRACKERS.get, mirror.TRACKERS))
    def test_a_tracker_has_every_number_once_at_its_step(self, name):
        run, directory = first_run(), folder() / "run"
        shutil.copytree(run.directory, directory)
        received = told_in_legs(name, directory)
        if name == "tensorboard":
            received = tensorboard_files(directory)
        self.assertEmpty(received.twice)
        self.assertEqual(set(received.numbers), set(run.logged))
        for key, value in received.numbers.items():
            self.assertAlmostEqual(value / run.logged[key] if run.logged[key] else 1 + value, 1.0, delta=1e-7, msg=key)
        if name not in (*MODULES, "tensorboard"):
            return
        tables = {
            key: content for key, content in received.tables.items() if key[0] not in ("manifest", "run", "settings")
        }
        self.assertEqual(set(tables), {*run.samples, ("results", LAST_STEP)})
        results = [[task, metric, repr(value)] for task, of in run.tasks.items() for metric, value in of.items()]
        results += [["average", "mini", repr(run.averages["mini"])]]
        self.assertEqual(rows_of_table(tables["results", LAST_STEP]), [["task", "metric", "points"], *results])
        for key, rows in run.samples.items():
            cells = [[str(value).replace("\n", "<br>").replace("|", "¦") for value in row.values()] for row in rows]
            self.assertEqual(rows_of_table(tables[key]), [["row", "input", "target", "prediction", "right"], *cells])


class LinesTest(parameterized.TestCase):
    """What is no line of metrics is left out, half a line waits for the rest, and a step's lines are one row."""

    def test_rows_are_made_of_whole_lines_of_metrics(self):
        directory, received = described_run([]), Received()
        with (directory / "metrics.jsonl").open("w") as file:
            file.write('{broken\n[1]\n{"no": "step"}\n\n\x00\x00\n{"step": 1, "seconds": 2.0, "train/loss": 1.0}\n')
            file.write('{"step": 1, "eval/f1": 90.0}\n{"step": 2, "a/b": 0.5}\n{"step": 3, "tr')
        with mock.patch.dict(sys.modules, aim_module(received)):
            mirror.mirror(directory, "aim", commands_of(b"go\nend 0\n"), no_report)
            self.assertEqual(received.numbers, {("train/loss", 1): 1.0, ("eval/f1", 1): 90.0, ("a/b", 2): 0.5})
            with (directory / "metrics.jsonl").open("a") as file:
                file.write('ain/loss": 0.5}\n')
            mirror.mirror(directory, "aim", commands_of(b"go\nend 0\n"), no_report)
        self.assertEqual(received.numbers["train/loss", 3], 0.5)
        self.assertEmpty(received.twice)


class AimTest(parameterized.TestCase):
    def test_a_run_that_was_trained_without_the_tracker_is_in_the_repository_of_its_flags(self):
        repo, module = folder() / "aim", mock.MagicMock()
        settings = {"run_name": "first", "wandb_project": "t5", "experiment_name": "rte", "aim_repo": str(repo)}
        directory = run_without_trackers(settings)
        module.Run().hash = "made once"
        modules = {"aim": module, "aim.sdk.index_manager": mock.MagicMock()}
        with mock.patch.dict(sys.modules, modules), contextlib.chdir(folder()):
            mirror.mirror(directory, "aim", commands_of(b"go\n"), no_report)
        begun = module.Run.call_args.kwargs
        self.assertEqual((begun["repo"], begun["experiment"], module.Run().name), (str(repo), "rte", "first"))


class RowsTest(parameterized.TestCase):
    """What the mirror process makes of lines, without W&B."""

    def sent(self, lines, words: bytes, first=0) -> list[int]:
        directory, run = described_run(lines), mock.Mock()
        with mock.patch.object(mirror, "POLL_SECONDS", 0.01):
            last = mirror.send_rows(run.log, mirror.MetricLines(directory / "metrics.jsonl"), commands_of(words), first)
        steps = [call.args[1] for call in run.log.call_args_list]
        self.assertEqual(last, steps[-1] if steps else first - 1)
        return steps

    @parameterized.named_parameters(
        ("all at the end", b"go\nend 0\n", [2, 4, 6]),
        ("not the last one of a run that comes back, since it may lack its evaluation", b"go\nend 75\n", [2, 4]),
        ("nor of one that failed", b"go\nend 70\n", [2, 4]),
        ("nor of one that was killed", b"go\n", [2, 4]),
        ("nothing before the file is this run's", b"", []),
    )
    def test_rows_that_are_sent(self, words, expected):
        self.assertEqual(self.sent([2, 2, 4, 4, 6, 6], words), expected)

    def test_rows_are_sent_while_the_training_still_runs(self):
        """Which says nothing in between."""
        directory, log = described_run([2]), mock.Mock()
        source, commands = os.pipe()
        self.addCleanup(os.close, source)
        os.write(commands, b"go\n")
        lines = mirror.MetricLines(directory / "metrics.jsonl")
        sending = threading.Thread(target=mirror.send_rows, args=(log, lines, Commands(source), 0))
        sending.start()
        time.sleep(0.1)  # for its first look at the file
        write_line(directory, 4)
        deadline = time.monotonic() + 5
        while not log.called and time.monotonic() < deadline:
            time.sleep(0.05)
        sent_in_between = [call.args[1] for call in log.call_args_list]
        os.close(commands)
        sending.join(30)
        self.assertEqual(sent_in_between, [2])

    def test_steps_that_are_there_are_not_sent_again(self):
        self.assertEqual(self.sent([2, 4, 6, 8], b"go\nend 0\n", first=5), [6, 8])


class WandbTest(parameterized.TestCase):
    """What wandb's own module is told, without its processes."""

    def told(self, directory, *legs, **variables):
        module = wandb_module(Received())["wandb"]
        module.init().settings.sync_dir = f"x/offline-run-2-{RUN_ID}"
        module.init.reset_mock()
        with mock.patch.dict(sys.modules, wandb=module), wandb_environment(**variables):
            for words in legs:
                mirror.mirror(directory, "wandb", commands_of(words), no_report)
        return module

    def test_the_project_is_the_flag_s_or_else_wandb_s_own_variable_s(self):
        for setup, expected in (({}, "of-the-variable"), ({"project": "of-the-flag"}, "of-the-flag")):
            module = self.told(described_run([1], **setup), b"go\n", WANDB_PROJECT="of-the-variable")
            self.assertEqual(module.init.call_args.kwargs["project"], expected)

    def test_a_run_that_was_trained_without_the_tracker_has_the_name_and_project_of_its_flags(self):
        for name, project in (("first", "t5"), (None, None)):
            settings = {"run_name": name, "wandb_project": project, "seed": 1}
            directory = run_without_trackers(settings)
            begun = self.told(directory, b"go\n").init.call_args.kwargs
            self.assertEqual((begun["name"], begun["project"]), (name or directory.name, project or "t5suite"))
            self.assertEqual((begun["id"], begun["config"]), (RUN_ID, settings))

    def test_a_preempted_run_says_so_and_a_finished_one_sends_its_manifest(self):
        directory = described_run([1, 2])
        (directory / "results.json").write_text(json.dumps({"tasks": {}, "averages": {}}))
        module = self.told(directory, b"go\nend 75\n")
        module.init().mark_preempting.assert_called_once_with()
        module.init().save.assert_not_called()
        module = self.told(directory, b"go\nend 0\n")
        module.init().mark_preempting.assert_not_called()
        manifest = str(directory / "manifest.json")
        module.init().save.assert_called_once_with(manifest, base_path=str(directory), policy="now")

    def test_a_manifest_that_cannot_be_sent_ends_nothing(self):
        directory = described_run([1])
        (directory / "results.json").write_text(json.dumps({"tasks": {}, "averages": {}}))
        received = Received()
        module = wandb_module(received)["wandb"]
        module.init().settings.sync_dir = f"x/offline-run-2-{RUN_ID}"
        module.init().save.side_effect = OSError("quota")
        self.enter_context(mock.patch.dict(sys.modules, wandb=module))
        with wandb_environment(), self.assertLogs("t5suite", "ERROR") as logs:
            mirror.mirror(directory, "wandb", commands_of(b"go\nend 0\n"), no_report)
        self.assertIn("the manifest was not sent", logs.output[0])
        module.init().finish.assert_called_once_with(exit_code=0)

    def test_offline_segments_that_were_not_closed_are_set_aside(self):
        directory = described_run([1])
        for number in (0, 1):  # the first is known to be whole, the second was not closed
            (directory / "wandb" / f"offline-run-{number}-{RUN_ID}").mkdir(parents=True)
        path = directory / "trackers" / "wandb" / "told.json"
        path.write_text(json.dumps({"step": 0, "of_theirs": {"segments": [f"offline-run-0-{RUN_ID}"]}}))
        self.told(directory, b"go\nend 0\n")
        names = [f"offline-run-0-{RUN_ID}", f"unfinished-offline-run-1-{RUN_ID}"]
        self.assertEqual(sorted(os.listdir(directory / "wandb")), names)
        segments = json.loads(path.read_text())["of_theirs"]["segments"]
        self.assertEqual(segments, [f"offline-run-0-{RUN_ID}", f"offline-run-2-{RUN_ID}"])


class ReachingTest(parameterized.TestCase):
    """Whether W&B can be used is found out within a bounded time, and said plainly."""

    def check(self, fault: dict, expected: str, exit_code: int) -> None:
        directory = described_run([1])
        module = wandb_module(Received())["wandb"]
        with WandbServer() as server, wandb_environment(), mock.patch.dict(sys.modules, wandb=module):
            server.status, server.silent = fault.get("status"), fault.get("silent", 0.0)
            if fault.get("gone"):
                server.drop()
            if "netrc" in fault:
                os.environ["NETRC"] = fault["netrc"]
            if "machine" in fault:
                netrc = directory / "netrc"
                machine = fault["machine"].format(host="127.0.0.1", host_and_port=f"127.0.0.1:{server.port}")
                netrc.write_text(f"{machine} login user password {API_KEY}\n")
                os.environ["NETRC"] = str(netrc)
            settings = {"api_key": fault.get("key", API_KEY), "base_url": fault.get("url", server.url)}
            module.setup().settings = types.SimpleNamespace(mode="online", identity_token_file=None, **settings)
            module.init().starting_step = 0
            complaint, started = io.StringIO(), time.monotonic()
            with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(mirror.main([str(directory), "wandb"]), exit_code)
            self.assertLess(time.monotonic() - started, 10.0)
        self.assertRegex(complaint.getvalue(), expected)
        self.assertNotRegex(complaint.getvalue(), "0x|f{40}")  # no object's address, no key

    @parameterized.parameters(
        ({}, "^$", 0), ({"key": "f" * 40}, "does not accept the API key", 74),
        ({"key": None}, "no API key is set", 74), ({"status": REFUSED}, "does not accept the API key", 74),
        ({"status": BROKEN}, "answers with status 503", 74),
        ({"gone": True}, "cannot be reached: Connection refused", 74),
    )  # fmt: skip
    def test_one_that_cannot_be_used(self, fault, expected, exit_code):
        self.check(fault, expected, exit_code)

    @parameterized.parameters(
        ({"side_effect": requests.Timeout()}, {}, "did not answer within \\d+ s", 74),
        ({"side_effect": requests.exceptions.InvalidURL()}, {}, "does not answer as W&B does", 74),
        ({"return_value": types.SimpleNamespace(ok=True, status_code=200, json=lambda: [])}, {}, "does not answer as W&B", 74),
        ({"return_value": types.SimpleNamespace(ok=True, status_code=200, json=dict)}, {}, "does not accept the API key", 74),
        ({"side_effect": AssertionError("was asked")}, {"identity_token_file": "t", "api_key": None}, "^$", 0),
    )  # fmt: skip
    def test_odd_answers_and_a_login_without_a_key(self, answer, changes, expected, exit_code):
        directory = described_run([1])
        module = wandb_module(Received())["wandb"]
        settings = {
            "mode": "online",
            "identity_token_file": None,
            "api_key": API_KEY,
            "base_url": "http://x",
            **changes,
        }
        module.setup().settings = types.SimpleNamespace(**settings)
        module.init().starting_step = 0
        self.enter_context(mock.patch("requests.post", **answer))
        self.enter_context(mock.patch.dict(sys.modules, wandb=module))
        self.enter_context(contextlib.redirect_stdout(io.StringIO()))
        with wandb_environment(), contextlib.redirect_stderr(io.StringIO()) as shown:
            self.assertEqual(mirror.main([str(directory), "wandb"]), exit_code)
        self.assertRegex(shown.getvalue(), expected)

    @parameterized.parameters(
        ("machine {host_and_port}", "^$", 0),
        ("machine {host}", "^$", 0),
        ("machine {host_and_port}1", "no API key is set", 74),
        ("machine {host} login user password old\nmachine {host_and_port}", "^$", 0),
    )
    def test_the_login_of_a_server_with_a_port_is_the_one_that_wandb_writes(self, machine, expected, exit_code):
        self.check({"key": None, "machine": machine}, expected, exit_code)

    def test_a_netrc_that_cannot_be_read_does_no_harm_to_a_key_in_the_environment(self):
        netrc = Path(tempfile.mkdtemp()) / "netrc"
        netrc.write_bytes(b"machine \xff\xfe login x")
        self.check({"netrc": str(netrc)}, "^$", 0)

    @parameterized.parameters(({"silent": 30.0},), ({"url": "http://nowhere.invalid"},))
    @pytest.mark.slow
    def test_one_that_does_not_answer(self, fault):
        self.check(fault, "cannot be reached|did not answer", 74)


class RecordingRun:
    state, keeps_steps, events = {"state": "online"}, True, []

    def __init__(self, directory, setup, resume_facts):
        self.resume_facts = {"id": resume_facts.get("id", "made once")}
        self.events.append(("open", setup["name"], resume_facts.get("id")))

    def last_step(self):
        return None

    def log(self, row, step, tables):
        self.events.extend([("row", step), *(("samples", step, name) for name in tables)])

    def conclude(self, results, manifest):
        self.events.append(("results", results["tasks"]["rte"]["accuracy"], manifest["run_id"]))

    def finish(self, exit_code):
        self.events.append(("finish", exit_code))


RESULTS_OF_RUN = {"tasks": {"rte": {"accuracy": 70.5}}, "averages": {"glue": 60.25}}


class MirrorTest(parameterized.TestCase):
    def test_aim_gets_numbers_as_numbers_and_lists_of_mixed_kinds_as_text(self):
        inner = {"rate": 0.5, "cap": None, "on": True}
        directory = described_run([1], config={"seed": 3, "tasks": ["rte", 2], "sizes": [1, 2], "inner": inner})
        modules, runs = aim_module(Received()), []
        made = modules["aim"].Run
        modules["aim"].Run = lambda *arguments, **settings: runs.append(made()) or runs[-1]
        with mock.patch.dict(sys.modules, modules):
            mirror.mirror(directory, "aim", commands_of(b"go\nend 0\n"), no_report)
        self.assertEqual(runs[0]["hparams"], {"seed": 3, "tasks": "['rte', 2]", "sizes": [1, 2], "inner": inner})

    def mirrored(self, directory, words: bytes) -> list:
        recording = mock.patch.dict(mirror.TRACKERS, aim=("Aim", None, "test_tracker_mirror:RecordingRun"))
        with recording, mock.patch.object(RecordingRun, "events", []):
            mirror.mirror(directory, "aim", commands_of(words), no_report)
            return RecordingRun.events

    def test_a_run_killed_after_step_7_and_resumed_from_5_has_each_step_once(self):
        directory = described_run(range(1, 8))
        sample = {"step": 4, "task": "rte", "row": 3, "input": "a", "target": "x", "prediction": "y", "right": False}
        write_rows(directory / "samples.jsonl", [sample])
        first = self.mirrored(directory, b"go\n")  # no end: training died
        lines = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
        (directory / "metrics.jsonl").write_text("".join(lines[:5]))
        for step in (6, 7, 8):
            write_line(directory, step)
        (directory / "results.json").write_text(json.dumps(RESULTS_OF_RUN))
        second = self.mirrored(directory, b"go\nend 0\n")
        self.assertEqual([line[1] for line in [*first, *second] if line[0] == "row"], list(range(1, 9)))
        self.assertEqual([line[1:] for line in first if line[0] == "samples"], [(4, "samples/rte")])
        self.assertEqual((first[0], second[0]), (("open", "a run", None), ("open", "a run", "made once")))
        self.assertEqual((first[-1], second[-2:]), (("finish", 1), [("results", 70.5, RUN_ID), ("finish", 0)]))

    def test_results_of_a_run_that_is_not_finished_are_not_sent(self):
        for code, rows in ((75, [1, 2]), (70, [1, 2])):
            directory = described_run([1, 2, 3])
            (directory / "results.json").write_text(json.dumps(RESULTS_OF_RUN))
            events = self.mirrored(directory, b"go\nend %d\n" % code)
            self.assertEqual([line[:2] for line in events[1:-1]], [("row", step) for step in rows])
            self.assertEqual(json.loads((directory / "trackers/aim/told.json").read_text())["step"], rows[-1])

    @parameterized.parameters(
        ("finished", [1, 2, 3], 0), ("preempted", [1, 2], 75), ("failed", [1, 2], 1), ("running", [1, 2], 1),
    )  # fmt: skip
    def test_by_hand_a_run_ends_as_its_manifest_says(self, status, steps, exit_code):
        """The last step of one that is not finished may lack its evaluation, which comes when it is resumed."""
        directory = described_run([1, 2, 3])
        manifest = {"run_id": RUN_ID, "settings": {}, "status": status}
        (directory / "manifest.json").write_text(json.dumps(manifest))
        recording = mock.patch.dict(mirror.TRACKERS, aim=("Aim", None, "test_tracker_mirror:RecordingRun"))
        with recording, mock.patch.object(RecordingRun, "events", []) as events:
            self.assertEqual(mirror.main([str(directory), "aim"]), 0)
        self.assertEqual(events[1:], [*(("row", step) for step in steps), ("finish", exit_code)])
        sent = json.loads((directory / "trackers/aim/told.json").read_text())
        self.assertEqual(sent["step"], steps[-1])

    def test_by_hand_a_run_that_another_process_sends_is_left_to_it(self):
        directory = described_run([1])
        self.enter_context(mock.patch.object(mirror, "LOCK_SECONDS", 0.01))
        with mirror.lock(directory / "trackers" / "aim"), contextlib.redirect_stderr(io.StringIO()) as message:
            self.assertEqual(mirror.main([str(directory), "aim"]), 74)
        self.assertEqual(message.getvalue(), f"error: another process sends {directory} to aim\n")

    def test_by_hand_what_is_no_run_or_no_tracker_is_named_and_left_as_it_is(self):
        run, other = described_run([1]), folder()
        missing = other / "typo"
        for argv, message in (
            ([], "RUN_DIRECTORY TRACKER: give both; trackers are wandb, "),
            ([run], "RUN_DIRECTORY TRACKER: give both"),
            ([run, "aimm"], "unknown tracker 'aimm'; choose one of wandb, "),
            ([missing, "aim"], f"{missing} is not the directory of a run: it has no manifest.json"),
            ([other, "aim"], f"{other} is not the directory of a run"),
        ):
            with contextlib.redirect_stderr(io.StringIO()) as shown:
                self.assertEqual(mirror.main([str(word) for word in argv]), 78)
            self.assertIn(message, shown.getvalue())
        self.assertEmpty([*other.iterdir()])


class OutputTest(parameterized.TestCase):
    def test_what_a_library_prints_and_how_it_fails_is_in_the_mirror_s_log_and_not_in_the_training_s_terminal(self):
        directory, library = described_run([1]), folder()
        (library / "aim.py").write_text(
            "import os\n"
            "print('aim: the disk is almost full')\n"
            "os.write(2, b'aim: no space left\\n')\n"  # as code in C does
            "raise OSError('the database cannot be locked')\n"
        )
        mirroring = [sys.executable, "-m", "t5suite.tracking.mirror", str(directory), "aim", "--live"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(library), *sys.path])}
        done = subprocess.run(mirroring, env=environment, input=b"go\nend 0\n", capture_output=True, timeout=300)
        log = (directory / "trackers" / "aim" / "mirror.log").read_text()
        for line in (
            "aim: the disk is almost full",
            "aim: no space left",
            "Traceback (most recent call last):",
            "OSError: the database cannot be locked",
        ):
            self.assertIn(f"{line}\n", log)
        self.assertEqual(done.returncode, 1)
        self.assertNotIn(b"aim:", done.stdout + done.stderr)


class GoingOnTest(parameterized.TestCase):
    """After a restart their callbacks get the run that they had made."""

    def environment_of(self, name, directory, **variables) -> dict:
        """The environment that a tracker's callback of transformers is made in."""
        seen = {}

        def make():
            seen.update(os.environ)
            callback = mock.MagicMock()
            callback._experiment.get_key.return_value = "made once"
            callback.live.dir = "made once"
            return callback

        mlflow = mock.MagicMock()
        mlflow.active_run.return_value.info.run_id = "made once"
        swanlab = mock.MagicMock()
        swanlab.get_run.return_value.id = "made once"
        clients = mock.patch.dict(sys.modules, {"mlflow": mlflow, "swanlab": swanlab})
        callbacks = mock.patch.dict(integration_utils.INTEGRATION_TO_CALLBACK, {name: make})
        with clients, callbacks, mock.patch.dict(os.environ, variables, clear=True):
            mirror.mirror(directory, name, commands_of(b"go\n"), no_report)
        return seen

    @parameterized.parameters(
        ("mlflow", "MLFLOW_RUN_ID", "made once"), ("dagshub", "MLFLOW_RUN_ID", "made once"),
        ("comet_ml", "COMET_EXPERIMENT_KEY", "made once"), ("swanlab", "SWANLAB_RUN_ID", "made once"),
        ("swanlab", "SWANLAB_RESUME", "allow"), ("dvclive", "DVCLIVE_RESUME", "true"),
    )  # fmt: skip
    def test_a_run_s_id_is_told_behind_a_restart_alone(self, name, variable, value):
        directory = described_run([1])
        self.assertNotIn(variable, self.environment_of(name, directory))
        ids = json.loads((directory / "trackers" / name / "told.json").read_text())["of_theirs"]
        self.assertEqual(ids, {"id": "made once"})
        self.assertEqual(self.environment_of(name, directory, **{variable: "of another"})[variable], value)

    @parameterized.product(
        name=("mlflow", "dagshub"), ending=((b"end 0\n", "FINISHED"), (b"end 75\n", "KILLED"), (b"end 70\n", "FAILED"))
    )
    def test_a_run_of_mlflow_ends_as_the_training_did(self, name, ending):
        """Transformers' callback calls each finished, and leaves one of DagsHub running."""
        word, status = ending
        mlflow = mock.MagicMock()
        mlflow.active_run.return_value.info.run_id = "made once"
        callback = mock.MagicMock(on_train_end=lambda *arguments, **also: mlflow.ended())
        with (
            mock.patch.dict(sys.modules, mlflow=mlflow),
            mock.patch.dict(integration_utils.INTEGRATION_TO_CALLBACK, {name: lambda: callback}),
            mock.patch.dict(os.environ),
        ):
            mirror.mirror(described_run([1]), name, commands_of(b"go\n" + word), no_report)
        endings = [call for call in mlflow.mock_calls if call[0] in ("end_run", "ended")]
        self.assertEqual(endings, [mock.call.end_run(status=status), mock.call.ended()])

    def test_trackers_of_transformers_are_those_of_the_installed_one(self):
        names = set(filter(mirror.TRACKERS.get, mirror.TRACKERS)) - {"aim"}
        self.assertEqual(names, set(integration_utils.INTEGRATION_TO_CALLBACK))


@pytest.mark.slow
class WandbClientTest(parameterized.TestCase):
    """W&B's own client, and a server that speaks its protocol."""

    def test_wandb_s_own_client_sends_every_number_once_at_its_step(self):
        run, directory = make_mixture(folder() / "first"), folder() / "run"
        shutil.copytree(run.directory, directory)
        command = [sys.executable, "-m", "t5suite.tracking.mirror", str(directory), "wandb"]
        with WandbServer() as server, wandb_environment(**server.environment()):
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        (served,) = server.runs.values()
        rows = served.rows()
        shown = {(name, row["_step"]): value for row in rows for name, value in row.items() if "/" in name}
        tables = {key for key, value in shown.items() if isinstance(value, dict)}
        self.assertEqual(tables, set(run.samples))
        self.assertEqual({key: value for key, value in shown.items() if key not in tables}, run.logged)
        self.assertEqual([row["_step"] for row in rows if "results" in row], [LAST_STEP])
        self.assertEqual(served.steps(), list(STEPS_LOGGED))

    def test_entity_group_and_tags_are_those_of_wandb_s_own_variables_without_secrets(self):
        directory = folder() / "run"
        shutil.copytree(make_mixture(folder() / "first").directory, directory)
        command = [sys.executable, "-m", "t5suite.tracking.mirror", str(directory), "wandb"]
        token = f"hf_{'Ab1' * 10}"
        variables = {"WANDB_ENTITY": "lab", "WANDB_RUN_GROUP": "learning rates", "WANDB_TAGS": f"rte,small,{token}"}
        with WandbServer() as server, wandb_environment(**server.environment(), **variables):
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        (served,) = server.runs.values()
        self.assertEqual((served.entity, served.group, served.tags), ("lab", "learning rates", ["rte", "small", "***"]))
        self.assertNotIn(token, " ".join(text for *_, text in server.requests))

    def test_results_reach_wandb_behind_a_run_of_which_it_has_every_step(self):
        """W&B drops rows before the step at which a run goes on, which is the next one."""
        directory = folder() / "run"
        shutil.copytree(make_mixture(folder() / "first").directory, directory)
        command = [sys.executable, "-m", "t5suite.tracking.mirror", str(directory), "wandb"]
        with WandbServer() as server, wandb_environment(**server.environment()):
            (directory / "results.json").rename(directory / "later.json")
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            (directory / "later.json").rename(directory / "results.json")
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        (served,) = server.runs.values()
        self.assertEqual(served.steps(), [*STEPS_LOGGED, LAST_STEP + 1])
        self.assertEqual([row["_step"] for row in served.rows() if "results" in row], [LAST_STEP + 1])


# Trackers that are extras: with `pip install 't5suite[aim]' 't5suite[trackio]'`
READERS = {
    "aim": """
        import aim, sys
        from aim.storage.context import Context
        repo = aim.Repo.from_path(sys.argv[1] + "/repo")
        run, = [aim.Run(name, repo=repo, read_only=True) for name in repo.list_all_runs()]
        losses, = [metric for metric in run.metrics() if metric.name == "loss"]
        samples = run.get_text_sequence("samples/sentiment", Context({}))
        print(json.dumps({
            "steps": sorted(map(int, losses.dataframe()["step"])), "name": run.name,
            "samples": samples.data.indices_list(), "results": run["results"]["tasks"]["sentiment"]["accuracy"],
            "manifest": run["manifest"]["run_id"], "seed": run["hparams"]["seed"]}))
    """,
    "trackio": """
        import os, sys
        os.environ["TRACKIO_DIR"] = sys.argv[1] + "/run/trackers/trackio/database"
        from trackio.sqlite_storage import SQLiteStorage
        lines, config = SQLiteStorage.get_logs("t5", "a run"), SQLiteStorage.get_run_config("t5", "a run")
        results, = [line["results"]["_value"] for line in lines if "results" in line]
        print(json.dumps({
            "steps": [line["step"] for line in lines if "train/loss" in line], "name": "a run",
            "samples": [line["step"] for line in lines if "samples/sentiment" in line], "results": results[0]["points"],
            "manifest": config["run_id"], "seed": config["seed"]}))
    """,
}


@pytest.mark.slow
class ExtrasTest(parameterized.TestCase):
    @parameterized.parameters(*READERS)
    def test_everything_is_read_back_once(self, name):
        if importlib.util.find_spec(name) is None:
            self.skipTest(f"{name} is not installed")
        place = Path(tempfile.mkdtemp())
        directory, steps = make_mixture(place / "run").directory, list(STEPS_LOGGED)
        setup = {"name": "a run", "project": "t5", "named": True}
        setup |= {"config": {"seed": 1}, "run_id": "mixture1", "aim_repo": str(place / "repo")}
        (directory / "trackers" / name).mkdir(parents=True)
        (directory / "trackers" / name / "mirror.json").write_text(json.dumps(setup))
        mirroring = [sys.executable, "-m", "t5suite.tracking.mirror", str(directory), name]
        whole = (directory / "metrics.jsonl").read_text()
        (directory / "results.json").rename(directory / "later.json")
        (directory / "metrics.jsonl").write_text("".join(whole.splitlines(keepends=True)[:4]))
        subprocess.run(mirroring, check=True, capture_output=True, timeout=300)
        (directory / "later.json").rename(directory / "results.json")
        (directory / "metrics.jsonl").write_text(whole)
        subprocess.run(mirroring, check=True, capture_output=True, timeout=300)
        command = [sys.executable, "-c", "import json\n" + textwrap.dedent(READERS[name]), str(place)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        accuracy = json.loads((directory / "results.json").read_text())["tasks"]["sentiment"]["accuracy"]
        expected = {"steps": steps, "name": "a run", "samples": [8]}
        expected |= {"results": accuracy, "manifest": "mixture1", "seed": 1}
        self.assertEqual(json.loads(done.stdout.splitlines()[-1]), expected)
