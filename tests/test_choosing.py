"""The directory of a run that names none: who gets which, who is refused, and how early."""

import contextlib
import io
import json
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from absl.testing import parameterized
from support import folder

import fine_tune_t5
from t5suite.commands.looking_ahead import look_ahead
from t5suite.runs import opening
from t5suite.runs.choosing import directory_for
from t5suite.testing import exits_with, save_model
from t5suite.training.run_directory import choose_output_dir, run_directory

SETTINGS = {
    "benchmark": "glue",
    "dataset_name": "rte",
    "train_file": None,
    "model_name_or_path": "t5-small",
    "objective": "ul2",
    "seed": 1,
    "learning_rate": 1e-3,
    "max_steps": 10,
}
OTHERS = {
    "benchmark": "super_glue",
    "dataset_name": "cb",
    "train_file": "reviews.csv",
    "model_name_or_path": "t5-base",
    "objective": "prefix_lm",
    "seed": 2,
}
ROWS = [{"text": f"{mood} shoes, pair {number}", "mood": mood} for number in range(20) for mood in ("bad", "good")]
FLAGS = {
    "train_file": "rows.tsv",
    "text_column": "text",
    "target_column": "mood",
    "labels": "bad,good",
    "model_name_or_path": "tiny",
    "use_cpu": True,
    "max_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "max_eval_samples": 2,
    "logging_steps": 1,
}


def arguments(**flags) -> SimpleNamespace:
    """What opening a run reads of the training arguments."""
    defaults = {"output_dir": "runs", "extend": False, "allow_changed": None, "overwrite_output_dir": False}
    return SimpleNamespace(**{**defaults, "process_index": 0, **flags})


def begun_run(directory, **changes) -> None:
    """A run that has begun with these settings."""
    manifest = {"run_id": "3fa94c10", "settings": {**SETTINGS, **changes}, "status": "running"}
    Path(directory).mkdir(parents=True)
    (Path(directory) / "manifest.json").write_text(json.dumps(manifest))


def start(seed: int, barrier, directories) -> None:
    """A process that starts a run of its own when the others do."""
    settings = {**SETTINGS, "seed": seed}
    args = arguments()
    choose_output_dir(args, settings, "auto", "runs/rte")
    barrier.wait(60)
    with run_directory(args, settings, [], "auto", "runs/rte") as run:
        directories.put((seed, str(run.directory)))
        barrier.wait(60)


class InFolderTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(contextlib.chdir(folder()))
        variables = {
            name: value for name, value in os.environ.items() if name not in ("WANDB_RUN_ID", "T5SUITE_RUN_DIR")
        }
        self.enter_context(mock.patch.dict(os.environ, variables, clear=True))


class DirectoryTest(InFolderTest):
    def test_the_first_run_has_the_name_itself_and_no_directory_is_made(self):
        self.assertEqual(directory_for("runs/rte", SETTINGS), "runs/rte")
        self.assertFalse(Path("runs").exists())

    @parameterized.parameters(*OTHERS)
    def test_other_data_another_model_seed_or_objective_get_the_next_free_one(self, name):
        begun_run("runs/rte")
        other = {**SETTINGS, name: OTHERS[name]}
        self.assertEqual(directory_for("runs/rte", other), "runs/rte-2")
        begun_run("runs/rte-2", **{name: OTHERS[name]})
        self.assertEqual(directory_for("runs/rte", other), "runs/rte-2")
        self.assertEqual(directory_for("runs/rte", SETTINGS), "runs/rte")
        self.assertEqual(directory_for("runs/rte", {**SETTINGS, "seed": 7}), "runs/rte-3")

    @parameterized.parameters({"learning_rate": 1e-4}, {"max_steps": 20})
    def test_any_other_setting_stays_where_the_run_is(self, **changes):
        begun_run("runs/rte")
        self.assertEqual(directory_for("runs/rte", {**SETTINGS, **changes}), "runs/rte")

    def test_a_change_that_is_allowed_stays_where_the_run_is(self):
        begun_run("runs/rte")
        self.assertEqual(directory_for("runs/rte", {**SETTINGS, "seed": 2}, allowed=["seed"]), "runs/rte")

    def test_a_new_run_of_the_same_settings_gets_a_free_one(self):
        begun_run("runs/rte")
        begun_run("runs/rte-2", seed=2)
        self.assertEqual(directory_for("runs/rte", SETTINGS, need_new=True), "runs/rte-3")

    def test_the_log_says_which_and_why(self):
        begun_run("runs/rte")
        with self.assertLogs("t5suite", "INFO") as logs:
            directory_for("runs/rte", {**SETTINGS, "seed": 2})
        self.assertRegex(logs.output[0], "runs/rte .*seed 1 there, 2 here.* runs/rte-2")

    def test_a_directory_that_another_run_takes_in_the_meantime_is_left_to_it(self):
        first, second = arguments(), arguments()
        settings = {**SETTINGS, "seed": 2}
        choose_output_dir(first, dict(SETTINGS), "auto", "runs/rte")
        choose_output_dir(second, settings, "auto", "runs/rte")
        self.assertEqual(first.output_dir, second.output_dir)
        with run_directory(first, dict(SETTINGS), [], "auto", "runs/rte") as run:
            self.assertEqual(str(run.directory), "runs/rte")
            with run_directory(second, settings, [], "auto", "runs/rte") as other:
                self.assertEqual((str(other.directory), second.output_dir), ("runs/rte-2", "runs/rte-2"))
            same = arguments(output_dir="runs/rte")
            with exits_with(78, "in use"), run_directory(same, dict(SETTINGS), [], "auto", "runs/rte"):
                pass

    def test_processes_that_start_together_get_one_each(self):
        processes = multiprocessing.get_context("fork")
        barrier, directories = processes.Barrier(3), processes.Queue()
        starts = [processes.Process(target=start, args=(seed, barrier, directories)) for seed in (1, 2, 3)]
        for process in starts:
            process.start()
        taken = dict(directories.get(timeout=60) for _ in starts)
        for process in starts:
            process.join(60)
        self.assertCountEqual(taken, (1, 2, 3))
        self.assertCountEqual(taken.values(), ("runs/rte", "runs/rte-2", "runs/rte-3"))
        for seed, directory in taken.items():
            self.assertEqual(directory_for("runs/rte", {**SETTINGS, "seed": seed}), directory)


class OwnRowsTest(InFolderTest):
    """Runs of a file of the user's own rows."""

    def setUp(self):
        super().setUp()
        lines = [f"{row['text']}\t{row['mood']}\n" for row in ROWS]
        Path("rows.tsv").write_text("".join(["text\tmood\n", *lines]))
        save_model("tiny")

    def run_it(self, **flags) -> dict:
        as_only_command = mock.patch.dict(opening.COMMAND, clear=True)
        with as_only_command, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return fine_tune_t5.main(self.words(**flags))

    def words(self, **flags) -> list[str]:
        flags = {**FLAGS, **flags}
        return [f"--{name}={value}" for name, value in flags.items()]

    def look_ahead(self, **flags) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as output:
            look_ahead("fine_tune_t5", self.words(**flags))
        return output.getvalue()

    def test_a_raised_length_extends_and_what_else_changes_is_refused_before_and_by_the_run(self):
        self.run_it(max_steps=1)
        for flags in ({"learning_rate": 0.5}, {"max_steps": 1, "warmup_steps": 3}):
            changes = "learning_rate 0.0005 there, 0.5 here" if "learning_rate" in flags else "warmup_steps .* 3.0 here"
            with exits_with(78, f"{changes}.*--output_dir.*--allow_changed"):
                self.look_ahead(**flags)
            with exits_with(78, f"{changes}.*--output_dir.*--allow_changed"):
                self.run_it(**flags)
        self.assertIn("output_dir runs/rows-tiny", self.look_ahead())
        self.run_it(max_steps=2)
        manifest = json.loads(Path("runs/rows-tiny/manifest.json").read_text())
        self.assertEqual(manifest["changes"][-1]["changed"], {"max_steps": [1, 2]})
        self.assertEqual(manifest["training"]["steps"], 2)
        with exits_with(78, "max_steps 2 there, 1 here.*--output_dir"):
            self.look_ahead(max_steps=1)
        with exits_with(78, "max_steps 2 there, 1 here.*--output_dir"):
            self.run_it(max_steps=1)
        self.assertEqual(os.listdir("runs"), ["rows-tiny"])

    def test_another_seed_is_another_directory_before_and_in_the_run(self):
        self.run_it(max_steps=1)
        self.assertRegex(self.look_ahead(seed=7), r"output_dir runs/rows-tiny-2\b")
        self.run_it(max_steps=1, seed=7)
        self.assertCountEqual(os.listdir("runs"), ["rows-tiny", "rows-tiny-2"])
        self.assertRegex(self.look_ahead(seed=7), r"output_dir runs/rows-tiny-2\b")
        self.assertRegex(self.look_ahead(), r"output_dir runs/rows-tiny\n")

    @pytest.mark.slow
    def test_a_named_directory_is_made_longer_only_with_extend(self):
        self.run_it(max_steps=1, output_dir="here")
        with exits_with(78, "max_steps 1 there, 2 here.*--extend"):
            self.look_ahead(output_dir="here")
        with exits_with(78, "max_steps 1 there, 2 here.*--extend"):
            self.run_it(output_dir="here")
        self.look_ahead(output_dir="here", extend=True)
        self.run_it(output_dir="here", extend=True)

    def test_a_mistyped_column_leaves_no_directory(self):
        with exits_with(65, "'mod'"):
            self.look_ahead(target_column="mod")
        self.assertFalse(Path("runs").exists())
