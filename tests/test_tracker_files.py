"""What a run tells its trackers is read back from the trackers' own files: metrics, samples, results, names."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from unittest import mock

import pytest
import wandb
from absl.testing import absltest, parameterized
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_trackers import RUN_ID, cut_after, folder, write_line
from wandb_server import WandbServer, wandb_environment

from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, write_json
from t5suite.tracking import mirror
from t5suite.tracking import trackers as trackers_module
from t5suite.tracking.backends import WandbRun, plain, start
from t5suite.tracking.callbacks import CALLBACKS, GOING_ON, CallbackRun
from t5suite.tracking.metric_lines import COLUMNS, SAMPLES, SampleLines
from t5suite.tracking.mirror import Commands, Told
from t5suite.tracking.trackers import TRACKERS, Identity, Trackers

IDENTITY = Identity("a run", group="learning rates", tags=("rte", "small"), project="t5")
SETTINGS = {"seed": 1, "learning_rate": 1e-3, "tasks": ["rte", 2], "max_steps": None}
RESULTS_OF_RUN = {"tasks": {"rte": {"accuracy": 70.5}}, "averages": {"glue": 60.25}}


def write_sample(directory, step: int, **also) -> None:
    line = {"step": step, "task": "rte", "row": 3, "input": "a|b\nc", "target": "x", "prediction": "y", "right": False}
    with (directory / SAMPLES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line | also) + "\n")


def patient():
    """On a machine that does much else, trackers take longer to end than a run would wait."""
    return mock.patch.multiple(trackers_module, FINISH_SECONDS=300, PREEMPTED_SECONDS=300)


def trackers_of(name, directory, identity=IDENTITY) -> Trackers:
    return Trackers([name], directory, RUN_ID, SETTINGS, identity)


def finished_run(name, directory, identity=IDENTITY) -> None:
    """A run killed after step 7 and resumed from step 5, with samples at 4 and 8, to its end at 8."""
    first = trackers_of(name, directory, identity)
    first.begin()
    write_sample(directory, 4)
    for step in range(1, 8):
        write_line(directory, step)
    first.finish(75)
    cut_after(directory, 5)
    second = trackers_of(name, directory, identity)
    second.begin()
    write_sample(directory, 8)
    for step in (6, 7, 8):
        write_line(directory, step)
    write_sample(directory, 8, final=True)
    write_line(directory, 8, final__accuracy=70.5)
    write_json(directory / RESULTS, RESULTS_OF_RUN)
    write_json(directory / MANIFEST, {"run_id": RUN_ID, "settings": SETTINGS, "command": ["fine_tune_t5.py"]})
    second.finish(0)


class TensorBoardTest(absltest.TestCase):
    def test_everything_is_read_back_once(self):
        directory = folder()
        with patient():
            finished_run("tensorboard", directory)
        events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        self.assertEqual([point.step for point in events.Scalars("train/loss")], list(range(1, 9)))
        self.assertEqual([(p.step, p.value) for p in events.Scalars("final/accuracy")], [(8, 70.5)])
        read = lambda tag: [(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors(tag)]
        texts = {tag: read(tag) for tag in events.Tags()["tensors"]}
        table = "| 3 | a\\|b<br>c | x | y | False |"
        self.assertEqual([step for step, _ in texts["samples/rte"]], [4, 8])
        self.assertIn(table, texts["samples/rte"][0][1])
        self.assertIn(table, texts["final_samples/rte"][0][1])
        ((step, results),) = texts["results"]
        rows = ["| rte | accuracy | 70.5 |", "| average | glue | 60.25 |"]
        self.assertEqual((step, results.splitlines()[2:]), (8, rows))
        self.assertEqual([step for step, _ in texts["final_samples/rte"]], [8])
        self.assertEqual([texts[tag][0][0] for tag in ("run", "settings", "manifest")], [0, 0, 8])
        for tag, word in (("run", '"learning rates"'), ("settings", '"learning_rate": 0.001'), ("manifest", RUN_ID)):
            self.assertLen(texts[tag], 1)
            self.assertIn(word, texts[tag][0][1])


class WandbTest(parameterized.TestCase):
    def test_the_project_is_the_flag_s_or_else_wandb_s_own_variable_s(self):
        for flags, expected in (({}, "of-the-variable"), ({"project": "of-the-flag"}, "of-the-flag")):
            setup = {**Identity(**flags).described(Path("x"), RUN_ID), "config": {}}
            with mock.patch("wandb.init") as init, wandb_environment(WANDB_PROJECT="of-the-variable"):
                start(wandb, Path("x"), setup, offline=True)
            self.assertEqual(init.call_args.kwargs["project"], expected)

    def test_rows_have_their_tables_and_a_finished_run_its_manifest(self):
        """What wandb's own module is told, without its processes."""
        directory, module = folder(), mock.MagicMock()
        module.setup().settings.mode, module.Settings = "offline", type("Settings", (), {"model_fields": {}})
        module.Table = lambda columns, data, allow_mixed_types: [columns, data]
        module.init().settings.sync_dir = f"x/offline-run-2-{RUN_ID}"
        for number in (0, 1):  # the first is known to be whole, the second was not closed
            (directory / "wandb" / f"offline-run-{number}-{RUN_ID}").mkdir(parents=True)
        write_sample(directory, 4)
        setup = {**IDENTITY.described(directory, RUN_ID), "config": {}, "offline": False, "by_hand": False, "first": 0}
        with mock.patch.dict(sys.modules, wandb=module), wandb_environment():
            run = WandbRun(directory, setup, {"segments": [f"offline-run-0-{RUN_ID}"]})
            run.log({"train/loss": 0.5}, 4, SampleLines(directory).tables(4))
            run.conclude(RESULTS_OF_RUN, {})
            run.finish(75)
        theirs = module.init()
        kept = [f"offline-run-0-{RUN_ID}", f"unfinished-offline-run-1-{RUN_ID}"]
        self.assertEqual(sorted(os.listdir(directory / "wandb")), kept)
        samples = [list(COLUMNS), [[3, "a|b\nc", "x", "y", False]]]
        results = [["task", "metric", "points"], [["rte", "accuracy", 70.5], ["average", "glue", 60.25]]]
        rows = [mock.call({"train/loss": 0.5, "samples/rte": samples}, step=4), mock.call({"results": results}, step=4)]
        self.assertEqual(theirs.log.call_args_list, rows)
        theirs.save.assert_called_once_with(str(directory / MANIFEST), base_path=str(directory), policy="now")
        theirs.mark_preempting.assert_called_once_with()
        self.assertEqual(
            (run.state["wanted"], run.of_theirs), (True, {"segments": [kept[0], f"offline-run-2-{RUN_ID}"]})
        )

    @pytest.mark.slow
    def test_the_server_gets_every_step_once_tables_names_and_manifest(self):
        directory, identity = folder(), Identity("a run", tags=("rte",), project="t5", entity="team")
        with patient(), WandbServer() as server, wandb_environment(**server.environment()):
            with self.assertNoLogs("t5suite", "WARNING"):
                finished_run("wandb", directory, identity)
            self.assertEqual(list(server.runs), [RUN_ID])
            run = server.runs[RUN_ID]
        by_step = {row["_step"]: row for row in run.rows()}
        self.assertEqual([json.loads(line)["_step"] for line in run.sent], list(range(1, 9)))
        self.assertEqual([by_step[step]["train/loss"] for step in range(1, 8)], [1 / (s + 1) for s in range(1, 8)])
        self.assertEqual((run.config["seed"]["value"], run.exit_code), (1, 0))
        self.assertEqual(by_step[4]["samples/rte"]["_type"], "table-file")
        self.assertEqual((by_step[8]["final/accuracy"], by_step[8]["results"]["nrows"]), (70.5, 2))
        self.assertIn(MANIFEST, run.files)
        self.assertEqual((run.project, run.entity), ("t5", "team"))


class RecordingRun:
    state, keeps_steps, found = {"state": "online"}, True, []

    def __init__(self, directory, setup, of_theirs):
        self.of_theirs = {"id": of_theirs.get("id", "made once")}
        self.found.append(("open", setup["name"], of_theirs.get("id")))

    def last_step(self):
        return None

    def log(self, row, step, tables):
        self.found.extend([("row", step), *(("samples", step, name) for name in tables)])

    def conclude(self, results, manifest):
        self.found.append(("results", results["tasks"]["rte"]["accuracy"], manifest["run_id"]))

    def finish(self, exit_code):
        self.found.append(("finish", exit_code))


class MirrorTest(parameterized.TestCase):
    def test_aim_gets_numbers_as_numbers_and_lists_of_mixed_kinds_as_text(self):
        inner = {"rate": 0.5, "cap": None, "on": True}
        found = plain({"seed": 3, "tasks": ["rte", 2], "sizes": [1, 2], "inner": inner})
        self.assertEqual(found, {"seed": 3, "tasks": "['rte', 2]", "sizes": [1, 2], "inner": inner})

    def mirrored(self, directory, words: bytes) -> list:
        (directory / "trackers" / "aim").mkdir(parents=True, exist_ok=True)
        write_json(directory / "trackers/aim/mirror.json", {"name": "a run", "config": {}, "run_id": RUN_ID})
        read, write = os.pipe()
        os.write(write, words)
        os.close(write)
        with mock.patch.dict(TRACKERS, aim=("Aim", None, RecordingRun)), mock.patch.object(RecordingRun, "found", []):
            mirror.mirror(directory, "aim", Commands(read), lambda **told: None)
            return RecordingRun.found

    def test_a_run_killed_after_step_7_and_resumed_from_5_has_each_step_once(self):
        directory = folder()
        for step in range(1, 8):
            write_line(directory, step)
        write_sample(directory, 4)
        first = self.mirrored(directory, b"go\n")  # no end: training died
        cut_after(directory, 5)
        for step in (6, 7, 8):
            write_line(directory, step)
        write_json(directory / RESULTS, RESULTS_OF_RUN)
        write_json(directory / MANIFEST, {"run_id": RUN_ID})
        second = self.mirrored(directory, b"go\nend 0\n")
        self.assertEqual([line[1] for line in [*first, *second] if line[0] == "row"], list(range(1, 9)))
        self.assertEqual([line[1:] for line in first if line[0] == "samples"], [(4, "samples/rte")])
        self.assertEqual((first[0], second[0]), (("open", "a run", None), ("open", "a run", "made once")))
        self.assertEqual((first[-1], second[-2:]), (("finish", 1), [("results", 70.5, RUN_ID), ("finish", 0)]))

    def test_results_of_a_run_that_is_not_finished_are_not_sent(self):
        for code, rows in ((75, [1, 2]), (70, [1, 2, 3])):
            directory = folder()
            for step in (1, 2, 3):
                write_line(directory, step)
            write_json(directory / RESULTS, RESULTS_OF_RUN)
            found = self.mirrored(directory, b"go\nend %d\n" % code)
            self.assertEqual([line[:2] for line in found[1:-1]], [("row", step) for step in rows])
            self.assertEqual(Told(directory / "trackers/aim").step, rows[-1])

    def test_by_hand_an_unknown_tracker_is_named(self):
        self.assertEqual(mirror.main([str(folder()), "aimm"]), 78)


class GoingOnTest(parameterized.TestCase):
    """After a restart their callbacks get the run that they had made."""

    def run_of(self, name, of_theirs, **variables):
        """A callback's mirror, and the environment that the callback was made in."""
        seen = {}

        def made():
            seen.update(os.environ)
            return mock.Mock(live=mock.Mock(dir="dvclive"))

        known = "transformers.integrations.integration_utils.INTEGRATION_TO_CALLBACK"
        way = GOING_ON[name]
        way = way._replace(id_of=lambda callback: "made once")
        tables = mock.patch.dict(known, {name: made}), mock.patch.dict(GOING_ON, {name: way})
        with tables[0], tables[1], mock.patch.dict(os.environ, variables, clear=True):
            run = CallbackRun(name, folder(), {"name": "a run", "run_id": RUN_ID, "config": SETTINGS}, of_theirs)
            run.finish(0)
        return run, seen

    @parameterized.parameters(
        ("mlflow", "MLFLOW_RUN_ID", "made once"), ("dagshub", "MLFLOW_RUN_ID", "made once"),
        ("comet_ml", "COMET_EXPERIMENT_KEY", "made once"), ("swanlab", "SWANLAB_RUN_ID", "made once"),
        ("swanlab", "SWANLAB_RESUME", "allow"), ("dvclive", "DVCLIVE_RESUME", "true"),
    )  # fmt: skip
    def test_a_run_s_id_is_told_behind_a_restart_alone(self, name, variable, value):
        first, seen = self.run_of(name, {})
        self.assertNotIn(variable, seen)
        self.assertEqual(first.of_theirs, {"id": "made once"})
        _, seen = self.run_of(name, first.of_theirs, **{variable: "of another"})
        self.assertEqual(seen[variable], value)


class HuggingFaceTest(absltest.TestCase):
    def test_their_names_are_those_of_the_installed_transformers(self):
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

        self.assertEqual(sorted({*CALLBACKS, "wandb", "tensorboard", "trackio"}), sorted(INTEGRATION_TO_CALLBACK))
        self.assertContainsSubset(CALLBACKS, TRACKERS)
        self.assertEqual(set(CALLBACKS) - set(GOING_ON), {"azure_ml", "clearml", "codecarbon", "flyte", "kubeflow"})


class NamesTest(absltest.TestCase):
    def test_one_that_is_not_installed_costs_a_warning_with_the_cure(self):
        with mock.patch.object(importlib.util, "find_spec", lambda name: None), self.assertLogs("t5suite") as logs:
            trackers_of("aim", folder())
        self.assertRegex(logs.output[0], r"tracker aim failed and is disabled .*pip install 't5suite\[aim\]'")


# ---------------------------------------------------------------------------------------------------------------------
# Trackers that are extras: with `pip install 't5suite[aim]' 't5suite[trackio]' mlflow`

READERS = {
    "aim": """
        import aim, sys
        from aim.storage.context import Context
        repo = aim.Repo.from_path(sys.argv[1] + "/repo")
        run, = [aim.Run(name, repo=repo, read_only=True) for name in repo.list_all_runs()]
        losses, = [metric for metric in run.metrics() if metric.name == "loss"]
        samples = run.get_text_sequence("samples/rte", Context({}))
        print(json.dumps({
            "steps": sorted(map(int, losses.dataframe()["step"])), "name": run.name, "tags": sorted({*run.tags} - {"learning rates"}),
            "samples": samples.data.indices_list(), "results": run["results"]["tasks"]["rte"]["accuracy"],
            "manifest": run["manifest"]["run_id"], "seed": run["hparams"]["seed"]}))
    """,
    "trackio": """
        import os, sys
        os.environ["TRACKIO_DIR"] = sys.argv[1] + "/run/trackers/trackio/database"
        from trackio.sqlite_storage import SQLiteStorage
        lines, config = SQLiteStorage.get_logs("t5", "a run"), SQLiteStorage.get_run_config("t5", "a run")
        results, = [line["results"]["_value"] for line in lines if "results" in line]
        print(json.dumps({
            "steps": [line["step"] for line in lines if "train/loss" in line], "name": "a run", "tags": config["tags"],
            "samples": [line["step"] for line in lines if "samples/rte" in line], "results": results[0]["points"],
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
        directory = place / "run"
        directory.mkdir()
        identity = Identity("a run", "learning rates", ("rte", "small"), "t5", aim_repo=str(place / "repo"))
        with patient():
            finished_run(name, directory, identity)
        command = [sys.executable, "-c", "import json\n" + textwrap.dedent(READERS[name]), str(place)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = {"steps": list(range(1, 9)), "name": "a run", "tags": ["rte", "small"], "samples": [4, 8]}
        expected |= {"results": 70.5, "manifest": RUN_ID, "seed": 1}
        self.assertEqual(json.loads(done.stdout.splitlines()[-1]), expected)
        self.assertTrue((directory / METRICS).is_file())
