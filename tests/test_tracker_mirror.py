"""The process that sends a run to its trackers: every step once, whatever happened in between; results and samples
at their steps.

It gets the lines that a run leaves and the commands that a training sends; modules of trackers that are no part of the
tests' environment are replaced by such as keep what they are told.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from report_runs import LAST_STEP, STEPS_LOGGED, MadeRun, make_mixture
from support import folder
from tracker_readers import Received, rows_of_table, tensorboard_files
from transformers.integrations import integration_utils
from wandb_server import WandbServer, wandb_environment

from t5suite.tracking import mirror
from t5suite.tracking.mirror import Commands


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


MODULES = {"wandb": wandb_module, "aim": aim_module, "trackio": trackio_module}


def told_in_legs(name: str, directory: Path) -> Received:
    """What a tracker gets of a run that is preempted in the evaluation of step 20, fails behind its last step, and then finishes."""
    received, whole = Received(), (directory / "metrics.jsonl").read_text()
    modules = MODULES[name](received) if name in MODULES else {}
    callbacks = {name: lambda: callback_of(name, received)}
    variables = {"NEPTUNE_CUSTOM_RUN_ID": "mixture1", "NETRC": os.devnull}
    (directory / "trackers" / name).mkdir(parents=True, exist_ok=True)
    # Trackers resume what is theirs by names that they have given, which are of no matter here.
    with (
        mock.patch.dict(sys.modules, modules),
        mock.patch.dict(integration_utils.INTEGRATION_TO_CALLBACK, callbacks),
        mock.patch.dict(os.environ, variables),
        mock.patch.object(mirror.Told, "keep", kept_as_text),
    ):
        for lines, words in (
            (_before_evaluation(whole, 20), b"go\nend 75\n"),
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


def kept_as_text(told, step: int, **of_theirs) -> None:
    """Instead of `Told.keep`, which writes JSON: ids of stand-ins are objects."""
    told.step = step
    texts = {key: str(value) for key, value in of_theirs.items() if key != "segments"}
    told.path.write_text(json.dumps({"step": step, "of_theirs": texts}))


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
