"""Whole small runs of fine_tune_t5.py: what they leave behind, and that modes and subsets do what they say."""

import contextlib
import functools
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from datasets import Dataset
from safetensors.torch import load_file
from shown_tables import terminal_tables
from support import later_wins
from transformers import TrainerCallback

import fine_tune_t5
from t5suite import MIXTURES, FineTuner, load_task
from t5suite.testing import (
    exits_with,
    load_own_rows,
    load_rows,
    read_rows,
    save_model,
    tiny_tokenizer,
    write_rows,
)

SETTINGS = {
    "max_train_samples": 32, "max_eval_samples": 8, "max_steps": 4, "per_device_train_batch_size": 8,
    "config_overrides": "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2", "eval_strategy": "steps",
    "eval_steps": 2, "logging_steps": 1, "disable_tqdm": True, "use_cpu": True,
}  # fmt: skip
QUICK = [f"--{name}={value}" for name, value in SETTINGS.items()]


def folder():
    return Path(tempfile.mkdtemp()) / "run"


def run(*argv, output_dir=None, quick=True):
    """`(results, directory)`."""
    output_dir = output_dir or folder()
    flags = [*QUICK, *argv] if quick else [*argv, "--disable_tqdm", "True", "--use_cpu"]
    return fine_tune_t5.main(later_wins([*flags, "--output_dir", str(output_dir)])), Path(output_dir)


def warnings_of(*argv, output_dir=None) -> list[str]:
    """The warnings that a run shows, but for that of its few rows."""
    with contextlib.redirect_stderr(io.StringIO()) as shown, contextlib.redirect_stdout(io.StringIO()):
        run(*argv, output_dir=output_dir)
    warnings = re.findall(r"^WARNING [\w.]+: (.*)", shown.getvalue(), re.MULTILINE)
    return [warning for warning in warnings if "rows are few" not in warning]


def manifest_of(directory) -> dict:
    return json.loads((directory / "manifest.json").read_text())


@functools.cache
def plain():
    """A run of no further flags; nothing may be written into its directory."""
    return run()


def copied_run() -> Path:
    return Path(shutil.copytree(plain()[1], folder()))


def rows_file(benchmark, name, split="validation", count=12, change=None):
    rows = load_rows(load_task(benchmark, name), "validation", split)[:count]
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    write_rows(path, change(rows) if change else rows)
    return path


class InputsRecorder(TrainerCallback):
    """Records what the model reads in training and in the evaluations between: the ids of each row's tokens."""

    def __init__(self):
        self.of_training, self.of_evaluations = set(), set()

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        encoder = model.get_encoder()
        self.hook = encoder.register_forward_pre_hook(functools.partial(self.record, model), with_kwargs=True)

    def record(self, model, encoder, args, kwargs):
        rows = self.of_training if model.training else self.of_evaluations
        rows.update(tuple(id for id in row if id) for row in kwargs["input_ids"].tolist())

    def on_train_end(self, args, state, control, **kwargs):
        self.hook.remove()


class RunDirectoryTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = folder()
        cls.flags = [
            "--dataset_name",
            "all",
            "--do_predict",
            "--max_predict_samples",
            "4",
            "--report_to",
            "tensorboard",
        ]
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            cls.results = fine_tune_t5.main(later_wins([*QUICK, *cls.flags, "--output_dir", str(cls.directory)]))
        cls.shown = " ".join(shown.getvalue().split())

    def test_results_are_returned_and_written(self):
        written = json.loads((self.directory / "results.json").read_text())
        self.assertEqual(list(written["tasks"]), ["sentiment", "entailment", "similarity"])
        self.assertEqual(list(written["averages"]), ["mini"])
        self.assertEqual(written["tasks"]["sentiment"], self.results["tasks"]["sentiment"])

    def test_what_is_not_a_number_is_null_in_the_results_and_named(self):
        """Correlations of answers that are all invalid."""
        written = json.loads((self.directory / "results.json").read_text())
        names_of_nan = []
        for part, by_name in (("tasks.similarity", "tasks"), ("tasks.sentiment", "tasks"), ("averages", "averages")):
            values, values_written = self.results[by_name], written[by_name]
            if by_name == "tasks":
                name = part.partition(".")[2]
                values, values_written = values[name], values_written[name]
            for name, value in values.items():
                self.assertEqual(values_written[name], None if math.isnan(value) else value, name)
                names_of_nan += [f"{part}.{name}"] if math.isnan(value) else []
        self.assertCountEqual(names_of_nan, ["tasks.similarity.pearson", "tasks.similarity.spearman", "averages.mini"])
        self.assertCountEqual([note.split()[0] for note in written["notes"]], names_of_nan)
        reasons = [note.partition(" is not a number ")[2] for note in written["notes"]]
        constants = "(all answers, or all targets, count as the same number, or an answer is nan or inf)"
        self.assertEqual(reasons, [constants, constants, "(a mean of scores of which one is not)"])
        self.assertIn(f"pearson, spearman: not a number {constants}", self.shown)

    def test_metrics_lines_have_step_epoch_seconds_and_named_values(self):
        lines = read_rows(self.directory / "metrics.jsonl")
        self.assertTrue(all({"step", "epoch", "seconds"} <= set(line) for line in lines))
        names = {name for line in lines for name in line}
        self.assertContainsSubset({"train/loss", "eval/sentiment/accuracy", "eval/average"}, names)

    def test_the_manifest_explains_the_run(self):
        manifest = manifest_of(self.directory)
        self.assertEqual(manifest["status"], "finished")
        keys = "run_id settings versions hardware tasks data mixing_rates best_per_task training"
        self.assertContainsSubset(keys.split(), manifest)
        self.assertTrue(manifest["data"]["sentiment.train"]["subset"])
        self.assertEqual(manifest["data"]["sentiment.train"]["used"], 32)

    def test_the_model_is_there_and_loads(self):
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        model = AutoModelForSeq2SeqLM.from_pretrained(self.directory)
        tokenizer = AutoTokenizer.from_pretrained(self.directory)
        self.assertEqual(model.config.decoder_start_token_id, tokenizer.pad_token_id)
        self.assertIn("sentiment", (self.directory / "README.md").read_text())

    def test_the_same_command_again_gives_the_results_without_training(self):
        before = {path: path.stat().st_mtime_ns for path in self.directory.rglob("*")}
        results, _ = run(*self.flags, output_dir=self.directory)
        self.assertEqual(results["averages"].keys(), self.results["averages"].keys())
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in self.directory.rglob("*")})

    def test_another_configuration_is_refused_with_both_ids_and_the_difference(self):
        run_id = manifest_of(self.directory)["run_id"]
        with exits_with(78, f"{run_id}.*learning_rate 0.0005 there, 0.1 here"):
            run(*self.flags, "--learning_rate", "0.1", output_dir=self.directory)

    def test_every_checkpoint_can_be_scored(self):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            by_step, _ = run("--dataset_name", "all", "--eval_checkpoints", "all", output_dir=self.directory)
        self.assertEqual(list(by_step), ["2", "4"])
        self.assertEqual(by_step["4"]["tasks"].keys(), self.results["tasks"].keys())
        (rows,) = [table for table in terminal_tables(shown.getvalue()) if "step" in table[0]]
        for task in ("sentiment", "entailment"):
            scores = {step: results["tasks"][task]["accuracy"] for step, results in by_step.items()}
            best = max(scores, key=scores.get)  # of equal ones the first
            cells = {step: f"{score:.2f}{'*' if step == best else ''}" for step, score in scores.items()}
            self.assertEqual({row["step"]: row[task] for row in rows}, cells)


class ModesTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        plain()

    def test_eval_only_scores_a_model_as_the_run_that_made_it_did(self):
        _, directory = plain()
        _, other = run("--eval_only", "--model_name_or_path", str(directory), "--config_overrides", "None")
        place = "predictions/sentiment.validation.jsonl"
        self.assertEqual((other / place).read_bytes(), (directory / place).read_bytes())
        self.assertFalse((other / "model.safetensors").exists())

    def test_predict_only_writes_test_predictions_and_no_metrics(self):
        flags = ["--model_name_or_path", str(plain()[1]), "--config_overrides", "None", "--max_predict_samples", "9"]
        results, other = run("--predict_only", *flags)
        self.assertEqual(results, {"tasks": {}, "averages": {}})
        self.assertLen(read_rows(other / "predictions" / "sentiment.test.jsonl"), 9)

    def test_checkpoints_are_looked_for_in_the_directory_that_training_chooses(self):
        message = "no checkpoint-N in --output_dir runs/mini-sentiment-tiny$"
        with contextlib.chdir(tempfile.mkdtemp()), exits_with(78, message):
            fine_tune_t5.main(["--dataset_name", "sentiment", "--eval_checkpoints", "all", "--use_cpu"])

    @pytest.mark.slow
    def test_rows_that_select_are_not_trained_on(self):
        self.check_selection({"max_train_samples": 20}, 20)

    @pytest.mark.slow
    def test_all_others_are(self):
        self.check_selection({}, 30)

    def check_selection(self, subset, trained):
        path, tokenizer, recorder = rows_file("mini", "sentiment", "train", 40), tiny_tokenizer(), InputsRecorder()
        settings = {
            **SETTINGS, "train_file": str(path), "selection_split": "train[25%]", "max_steps": -1, "max_train_samples": None,
            "num_train_epochs": 1, "eval_strategy": "epoch", "eval_steps": None, "eval_method": "score",
            "save_strategy": "no", "load_best_model_at_end": False, "output_dir": str(folder()), "quiet": True,
        }  # fmt: skip
        FineTuner(**{**settings, **subset}, callbacks=[recorder]).train()
        texts = ["sentiment sentence: " + row["sentence"] for row in read_rows(path)]
        everything = {tuple(tokenizer(text)["input_ids"]) for text in texts}
        counts = (len(everything), len(recorder.of_training), len(recorder.of_evaluations))
        self.assertEqual(counts, (40, trained, 10))
        self.assertContainsSubset(recorder.of_training, everything - recorder.of_evaluations)
        self.assertContainsSubset(recorder.of_evaluations, everything)

    @pytest.mark.slow
    def test_each_task_is_scored_at_its_own_best_step_and_one_checkpoint_serves_all(self):
        """Weights trained on one task, then on the other, then spoilt; both tasks' losses say which is best."""
        names, runs = ("sentiment", "entailment"), []
        for name in names:
            runs.append(run("--dataset_name", name, "--learning_rate", "1e-2", "--metric_for_best_model", "loss"))
        trained = [load_file(directory / "model.safetensors") for _, directory in runs]
        at_step = {2: trained[0], 4: trained[1], 6: {name: 3 * weight for name, weight in trained[0].items()}}

        class Put(TrainerCallback):
            def on_step_end(self, args, state, control, model=None, **kwargs):
                if state.global_step in at_step:
                    model.load_state_dict(at_step[state.global_step], strict=False)

        settings = {
            **SETTINGS, "max_steps": 6, "learning_rate": 0.0, "dataset_name": "sentiment,entailment",
            "select": "per_task", "metric_for_best_model": "loss", "save_total_limit": 3,
        }  # fmt: skip
        tuner = FineTuner(**settings, output_dir=str(folder()), callbacks=[Put()])
        results, directory = tuner.train(), Path(tuner.args.output_dir)
        best = manifest_of(directory)["best_per_task"]
        self.assertEqual({name: best[name]["step"] for name in names}, {"sentiment": 2, "entailment": 4})
        for name, (alone, expected) in zip(names, runs, strict=True):
            self.assertEqual(results["tasks"][name], alone["tasks"][name])
            file = f"predictions/{name}.validation.jsonl"
            self.assertEqual(read_rows(directory / file), read_rows(expected / file))
        averages = {line["eval/average"]: line["step"] for line in tuner.history if "eval/average" in line}
        self.assertLen(averages, 3)
        chosen = directory / f"checkpoint-{averages[max(averages)]}" / "model.safetensors"
        self.assertNotEqual(averages[max(averages)], 6)
        self.assertEqual((directory / "model.safetensors").read_bytes(), chosen.read_bytes())
        for name, weight in load_file(chosen).items():
            self.assertTrue(weight.equal(tuner.model.state_dict()[name]), name)

    @parameterized.parameters(
        ({"train": ["sentiment"], "evaluate": ["sentiment", "entailment"]}, []),
        ({"train": ["sentiment", "entailment"], "evaluate": ["sentiment"]}, ["--selection_split=train[25%]"]),
    )
    @pytest.mark.quick_cases(1)
    def test_a_task_outside_of_a_mixture_s_average_has_no_part_in_the_choice_of_its_checkpoint(self, tasks, flags):
        with mock.patch.dict(MIXTURES["mini"], {"some": {**tasks, "average": ["sentiment"]}}):
            flags = ["--max_steps=1", "--eval_steps=1", "--save_steps=1", "--max_eval_samples=31", *flags]
            _, directory = run("--dataset_name=some", "--eval_method=score", *flags)
        lines = read_rows(directory / "metrics.jsonl")
        (logged,) = [line for line in lines if "eval/average" in line]
        self.assertEqual(logged["eval/average"], logged["eval/sentiment/accuracy"])
        self.assertNotEqual(logged["eval/entailment/accuracy"], logged["eval/sentiment/accuracy"])
        (final,) = [line for line in lines if "final/average" in line]
        accuracy = final.get("final/sentiment/accuracy", final.get("final/accuracy"))
        self.assertEqual(final["final/average"], accuracy)
        self.assertEqual([choice["by"] for choice in manifest_of(directory)["choices"]], ["accuracy"])
        self.assertNotRegex((directory / "README.md").read_text(), "entailment: .*chosen on these rows")

    def test_a_finished_run_without_its_model_says_so_and_where_weights_are_left(self):
        directory = copied_run()
        self.assertEmpty(warnings_of(output_dir=directory))
        (directory / "model.safetensors").unlink()
        (warning,) = warnings_of(output_dir=directory)
        self.assertRegex(warning, "has no model.safetensors; checkpoint-2, checkpoint-4 may still have weights")
        for step in (2, 4):
            shutil.rmtree(directory / f"checkpoint-{step}")
        (warning,) = warnings_of(output_dir=directory)
        self.assertRegex(warning, "has no model.safetensors; train it again")

    def test_each_number_of_the_table_stands_below_its_name(self):
        directory = copied_run()
        facts = {"split": "test", "n": 9, "method": "generate", "cut_off": 25.0, "seconds": 3.5}
        results = {"tasks": {"sentiment": {"accuracy": 70.0, "invalid_rate": 12.5}}, "averages": {}}
        (directory / "results.json").write_text(json.dumps(results))
        manifest = {**manifest_of(directory), "scored": {"sentiment": facts}, "marks": {}}
        (directory / "manifest.json").write_text(json.dumps(manifest))
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            run(output_dir=directory)
        lines = [re.split(r"\s{2,}", line.strip()) for line in shown.getvalue().splitlines() if line.strip()]
        expected = {"task": "sentiment", "split": "test", "n": "9", "metrics": "accuracy 70.00"}
        expected |= {"invalid %": "12.50", "cut off %": "25.00", "seconds": "3.5"}
        place = [line[0] for line in lines].index("task")  # below a title that may be broken into lines
        self.assertEqual(dict(zip(lines[place], lines[place + 2])), expected)

    @pytest.mark.slow
    def test_a_dry_run_shows_figures_and_writes_nothing(self):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            figures, directory = run("--dry_run", "--learning_rate", "0.0123")
        rows, settings = shown.getvalue().split("settings that differ")
        self.assertIn("inputs:", rows)
        self.assertIn("0.0123", settings)
        self.assertNotIn("--weight_decay", settings)
        self.assertEqual((figures["steps"], figures["update_size"]), (4, 8))
        self.assertEqual(figures["lengths"]["sentiment train inputs"]["unknown"], 0.0)
        self.assertFalse(directory.exists())

    def test_the_rows_that_choose_the_checkpoint_are_said_and_shown_beside_what_is_scored(self):
        path = rows_file("mini", "sentiment", "train", 40)
        flags = ["--train_file", path, "--max_train_samples", 20, "--dry_run"]
        with contextlib.redirect_stderr(io.StringIO()) as log:
            figures, _ = run(*flags, "--selection_split", "train[25%]")
        self.assertIn("sentiment: 10 of 40 training rows are held out", log.getvalue())
        self.assertIn("sentiment selection: 10 rows are few: one row is 10.0 points", log.getvalue())
        self.assertIn("sentiment selection inputs", figures["lengths"])
        figures, _ = run(*flags)
        self.assertNotIn("sentiment selection inputs", figures["lengths"])

    def test_a_dry_run_refuses_a_directory_that_the_run_would_refuse(self):
        directory = copied_run()
        before = sorted(directory.rglob("*"))
        with contextlib.redirect_stdout(io.StringIO()):
            run("--dry_run", output_dir=directory)  # its own
            run("--dry_run", "--learning_rate", "0.0123", "--overwrite_output_dir", output_dir=directory)
        with exits_with(78, "learning_rate"):
            run("--dry_run", "--learning_rate", "0.0123", output_dir=directory)
        self.assertEqual(sorted(directory.rglob("*")), before)
        for place in ("config.json", "config.json/runs"):
            with exits_with(78, "config.json is a file; name a folder"):
                run("--dry_run", output_dir=directory / place)
        with exits_with(78, "not empty"):
            run("--dry_run", output_dir=directory / "predictions")

    @parameterized.parameters(
        ("sentiment", ["--mixing=equal", "--mixing_limit=0.5"], ["--mixing", "--mixing_limit"]),
        ("sentiment,entailment", ["--mixing=equal", "--mixing_limit=0.5"], []),
        ("sentiment", ["--max_predict_samples=1"], ["--max_predict_samples"]),
        ("sentiment", ["--max_predict_samples=1", "--do_predict"], []),
        ("sentiment", ["--reference_code=quick_tokenizer"], ["--reference_code"]),
        ("sentiment", ["--reference_code=quick_tokenizer,quick_dropout"], []),
        ("sentiment", ["--reference_code=candidate_trees"], ["--reference_code"]),
        ("sentiment", ["--reference_code=all", "--eval_method=loss"], []),
    )
    @pytest.mark.quick_cases(1)
    def test_a_flag_without_effect_is_named(self, tasks, flags, expected):
        warnings = warnings_of("--dry_run", "--dataset_name", tasks, *flags)
        self.assertCountEqual([warning.partition(" has no effect: ")[0] for warning in warnings], expected)

    @parameterized.parameters(
        ("jsonl", ["--max_output_tokens=4"], ["the task's max_output_tokens 4"]),
        ("jsonl", ["--max_target_length=4"], ["--max_target_length 4"]),
        ("text", ["--block_size=8", "--max_output_tokens=7"], ["the task's max_output_tokens 7"]),
        ("text", ["--block_size=8"], []),
    )
    def test_answers_that_may_be_cut_are_told_by_what_bounds_them_and_full_blocks_are_not(self, form, flags, expected):
        text = "The film is good and the city is old."
        path = Path(tempfile.mkdtemp()) / "rows.jsonl"
        write_rows(path, [{"input": str(i), "output": text, "text": text} for i in range(40)])
        warnings = warnings_of("--dry_run", "--data_format", form, "--train_file", str(path), *flags)
        limits = [warning.partition(" texts fill ")[2] for warning in warnings if " texts fill " in warning]
        self.assertEqual([limit.partition(" (tokens)")[0] for limit in limits], expected)

    @pytest.mark.slow
    def test_weights_stay_float32_under_bf16(self):
        _, directory = run("--bf16", "--max_steps", "1", "--eval_strategy", "no", "--load_best_model_at_end", "False")
        self.assertEqual({str(t.dtype) for t in load_file(directory / "model.safetensors").values()}, {"torch.float32"})


class OwnTasksTest(parameterized.TestCase):
    ENTRY = """
mine:
  mood:
    prefix: 'mood: '
    text_column_name: sentence
    label_column_name: label
    labels: [bad, good]
    metric_names: [accuracy, f1, mcc]
    metric_to_optimize: mcc
"""

    @pytest.mark.slow
    def test_the_six_fields_of_an_entry_suffice_for_a_run(self):
        path = Path(tempfile.mkdtemp()) / "tasks.yaml"
        path.write_text(self.ENTRY)
        train, validation = rows_file("mini", "sentiment", "train", 40), rows_file("mini", "sentiment")
        results, _ = run(
            "--task_file", str(path), "--benchmark", "mine", "--dataset_name", "mood",
            "--train_file", str(train), "--validation_file", str(validation),
        )  # fmt: skip
        self.assertEqual(list(results["tasks"]["mood"]), ["accuracy", "f1", "mcc", "invalid_rate"])


BAD_FILES = {
    "broken_json": (b'{"sentence": "a", "label": 0}\n{"sentence": \n', r"rows.jsonl:2: not JSON"),
    "not_an_object": (b'["a"]\n', r"rows.jsonl:1: expected one JSON object"),
    "missing_column": (b'{"text": "a", "label": 0}\n', r"rows.jsonl:1: no column 'sentence'.*'text'.*name your own: --text_column"),
    "translations": (
        b'{"translation": {"en": "a", "ro": "b"}}\n',
        r"rows.jsonl:1: no column 'sentence'.*; --data_format translation --source_id en --target_id ro reads such rows",
    ),
    "label_outside": (b'{"sentence": "a", "label": 0}\n{"sentence": "b", "label": 2}\n', r"rows.jsonl:2: label 2 .* 0 negative, 1 positive"),
    "unlabelled": (b'{"sentence": "a", "label": -1}\n', r"rows.jsonl:1: .*must be labelled .remove unlabelled rows, or put them into --test_file"),
    "other_columns": (b'{"sentence": "a", "label": 0}\n{"sentence": "b", "label": 0, "x": 1}\n', r"rows.jsonl:2: other columns"),
}  # fmt: skip


def parcel_tasks() -> str:
    """A task file of a number, of labels in words, of labels that are numbers, and of sets of labels."""
    path = Path(tempfile.mkdtemp()) / "parcel.yaml"
    metrics = {
        "days": (None, ["neg_mean_absolute_error", "pearson"]),
        "cause": (["lost", "wet"], ["accuracy", "f1_macro"]),
        "stars": (["1", "2"], ["accuracy"]),
        "faults": (None, ["micro_f1"]),
    }
    entries = {
        name: {
            "prefix": f"{name} of: ",
            "text_column_name": "text",
            "label_column_name": name,
            "labels": labels,
            "metric_names": names,
            "metric_to_optimize": names[0],
        }
        for name, (labels, names) in metrics.items()
    }
    path.write_text(json.dumps({"parcel": entries}))
    return str(path)


def plan_of(model: str, **flags):
    """The plan of a run of a model."""
    return FineTuner(model, use_cpu=True, **flags).plan


def examples_and_metrics(plan) -> tuple[list[tuple[str, str]], list[str]]:
    """The texts of the test rows of a plan of one task, and the task's metrics."""
    (task,) = plan.evaluate
    rows = plan.sources[task.name].read("test").rows
    return [example for row in rows for example in task.examples(row, "test")], task.entry["metric_names"]


class BadInputTest(parameterized.TestCase):
    @parameterized.named_parameters((name, *case) for name, case in BAD_FILES.items())
    def test_a_bad_file_is_named_by_file_and_line(self, content, message):
        path = Path(tempfile.mkdtemp()) / "rows.jsonl"
        path.write_bytes(content)
        with exits_with(65, message):
            run("--train_file", str(path))

    def test_a_cut_off_gzip_file_is_named(self):
        path = Path(tempfile.mkdtemp()) / "rows.jsonl.gz"
        write_rows(path, [{"sentence": f"row {os.urandom(40).hex()}", "label": 0} for _ in range(200)])
        path.write_bytes(path.read_bytes()[:-200])
        with exits_with(65, r"rows.jsonl.gz: the gzip file is cut off"):
            run("--train_file", str(path))

    def test_a_saved_model_s_own_task_is_the_task_where_none_is_named(self):
        trained = save_model(tempfile.mkdtemp(), tasks=[load_task("mini", "entailment")])
        flags = ["--model_name_or_path", str(trained), "--eval_only", "--max_eval_samples", "4"]
        results, directory = run(*flags, quick=False)
        self.assertEqual(list(results["tasks"]), ["entailment"])
        self.assertEqual(manifest_of(directory)["settings"]["dataset_name"], "entailment")
        card = json.loads((trained / "task.json").read_text())
        (trained / "task.json").write_text(json.dumps({**card, "benchmark": "own"}))
        with exits_with(78, "was trained on own/entailment, whose rows no flag names"):
            run(*flags, quick=False)

    def test_a_model_of_own_rows_is_scored_on_other_json_lines_as_it_was_by_files_of_any_format(self):
        numbers = [{"essay": f"Dogs {i}.", "grade": i} for i in range(4)]
        columns = {"text_column": "essay", "target_column": "grade", "metrics": "spearman,pearson"}
        task = load_own_rows(numbers, no_eval=True, **columns).task
        trained = save_model(tempfile.mkdtemp(), tasks=[task])
        card = json.loads((trained / "task.json").read_text())
        (trained / "task.json").write_text(json.dumps({**card, "made_by_flags": True}))
        rows = write_rows(Path(tempfile.mkdtemp()) / "more.jsonl", numbers)
        for flags in (
            ["--eval_only", "--validation_file", str(rows)],
            ["--eval_only", "True", "--test_file", str(rows)],
        ):
            words = ["--model_name_or_path", str(trained), "--output_dir", tempfile.mkdtemp() + "/scored", *flags]
            with contextlib.redirect_stderr(io.StringIO()) as shown:
                (scores,) = fine_tune_t5.main([*words, "--use_cpu"])["tasks"].values()
            self.assertContainsSubset(["spearman", "pearson"], scores)
            self.assertIn("4 rows are few", shown.getvalue())
            self.assertNotIn("has no effect", shown.getvalue())
        with exits_with(78, "whose rows no flag names; give them .--data_format jsonl --train_file FILE, or"):
            fine_tune_t5.main(["--model_name_or_path", str(trained), "--use_cpu"])
        with exits_with(78, f"--train_file {rows}: .*for rows of your own add --data_format jsonl"):
            fine_tune_t5.main(["--model_name_or_path", str(trained), "--train_file", str(rows), "--use_cpu"])

    def test_a_model_of_a_task_file_is_scored_on_other_rows_by_its_task_in_any_format(self):
        task_file = parcel_tasks()
        days, cause, stars = [load_task("parcel", name, task_file) for name in ("days", "cause", "stars")]
        one_task, two_tasks, class_ids = [
            str(save_model(tempfile.mkdtemp(), tasks=tasks)) for tasks in ([cause], [days, cause], [stars])
        ]
        folder = Path(tempfile.mkdtemp())
        rows = [
            {"text": "Lost it.", "days": 3, "cause": "lost", "stars": 1},
            {"text": "Wet.", "days": 1, "cause": "wet", "stars": 2},
        ]
        cells = ["text\tdays\tcause\tstars", "Lost it.\t3\tlost\t1", "Wet.\t1\twet\t2"]
        (folder / "new.tsv").write_text("\n".join(cells) + "\n")
        (folder / "new.csv").write_text("\n".join(cells).replace("\t", ",") + "\n")
        write_rows(folder / "new.jsonl", rows)
        Dataset.from_list(rows).to_parquet(folder / "new.parquet")
        for name in ("new.tsv", "new.csv", "new.jsonl", "new.parquet"):
            flags = {"eval_only": True, "test_file": str(folder / name)}
            named_task = {"dataset_name": "cause"}
            for model, more in ((one_task, {}), (one_task, {"prefix": "cause of: "}), (two_tasks, named_task)):
                examples, metrics = examples_and_metrics(plan_of(model, **flags, **more))
                self.assertEqual(examples, [("cause of: Lost it.", "lost"), ("cause of: Wet.", "wet")], name)
                self.assertEqual(metrics, ["accuracy", "f1_macro"])
            with exits_with(78, "several tasks; give --dataset_name, one of days, cause"):
                plan_of(two_tasks, **flags)
            for model in (one_task, two_tasks):
                with exits_with(78, "--dataset_name: unknown task 'cuase'; did you mean cause"):
                    plan_of(model, **flags, dataset_name="cuase")
            # A number in rows of a task file may be a class id.
            with exits_with(78, "--task_file FILE --benchmark parcel --dataset_name stars .*--validation_file"):
                plan_of(class_ids, **flags)
        columns = {"text_column": "text", "target_column": "cause"}
        examples, _ = examples_and_metrics(plan_of(one_task, **flags, **columns, dataset_name="parcels"))
        self.assertEqual(examples[0], ("Lost it.", "lost"))
        with self.assertLogs("t5suite", "WARNING") as logs:
            plan_of(two_tasks, **flags, text_column="text", target_column="cause", labels="lost,wet")
        self.assertRegex("".join(logs.output), "prefix='cause of: '.* without any .*--dataset_name cause")
        with self.assertLogs("t5suite", "WARNING") as logs:
            plan_of(class_ids, **flags, text_column="text", target_column="stars")
        self.assertIn("labels='1,2', prefix='stars of: '", "".join(logs.output))
        self.assertNotIn("own task is scored", "".join(logs.output))  # without flags it is refused

    @parameterized.parameters({"prefix": "which faults: "}, {"dataset_name": "parcels"})
    def test_sets_of_labels_are_not_scored_by_other_metrics_without_a_warning(self, **flags):
        trained = str(save_model(tempfile.mkdtemp(), tasks=[load_task("parcel", "faults", parcel_tasks())]))
        rows = Path(tempfile.mkdtemp(), "rows.csv")
        rows.write_text('text,faults\nLost it.,lost\nWet and late.,"wet, late"\n')
        columns = {"text_column": "text", "target_column": "faults"}
        with self.assertLogs("t5suite", "WARNING") as logs:
            plan_of(trained, eval_only=True, test_file=str(rows), **columns, **flags)
        self.assertIn("micro_f1", "".join(logs.output))

    @parameterized.parameters(("sentiment", 9), ("entailment", 512))
    def test_lengths_of_a_models_training_are_those_of_its_own_tasks_alone(self, name, length):
        trained = save_model(tempfile.mkdtemp(), tasks=[load_task("mini", "sentiment")])
        card = json.loads((trained / "task.json").read_text())
        (trained / "task.json").write_text(json.dumps({**card, "max_source_length": 9}))
        tuner = FineTuner(str(trained), data=f"mini/{name}", eval_only=True, use_cpu=True)
        self.assertEqual(tuner.data_args.max_source_length, length)

    def test_checkpoints_of_a_model_that_was_trained_further_are_scored_as_they_were_trained(self):
        """By the task of the run's flags, whatever task the model had before."""
        trained = save_model(tempfile.mkdtemp(), tasks=[load_task("parcel", "cause", parcel_tasks())])
        rows = Path(tempfile.mkdtemp(), "rows.csv")
        rows.write_text("text,cause\nLost it.,lost\nWet.,wet\n")
        words = ["--model_name_or_path", str(trained), "--train_file", str(rows), "--test_file", str(rows)]
        words += ["--text_column", "text", "--target_column", "cause", "--labels", "lost,wet", "--no_eval"]
        with mock.patch.object(fine_tune_t5, "score_checkpoints") as score_checkpoints:
            run(*words, "--eval_checkpoints", "all", quick=False)
        examples, _ = examples_and_metrics(score_checkpoints.call_args.args[0].plan)
        self.assertEqual(examples, [("Lost it.", "lost"), ("Wet.", "wet")])

    def test_a_task_file_alone_names_no_other_task_than_the_model_s(self):
        task_file = parcel_tasks()
        trained = str(save_model(tempfile.mkdtemp(), tasks=[load_task("parcel", "cause", task_file)]))
        plan = plan_of(trained, task_file=task_file)
        self.assertEqual((plan.benchmark, plan.dataset_name), ("parcel", "cause"))
        with exits_with(78, "--task_file FILE --benchmark parcel --dataset_name cause"):
            plan_of(trained, dataset_name="cause")

    def test_a_task_file_without_the_model_s_benchmark_needs_a_benchmark_by_flag(self):
        task_file = parcel_tasks()
        own_task = load_own_rows([{"input": "Wet.", "output": "wet"}], no_eval=True).task
        shipped_tasks = [load_task("glue", name) for name in ("cola", "rte")]
        for tasks in (shipped_tasks, [own_task]):
            trained = str(save_model(tempfile.mkdtemp(), tasks=tasks))
            for flags in ({}, {"eval_only": True, "test_file": "new.csv"}, {"dataset_name": "cause"}):
                with exits_with(78, "parcel.yaml has the benchmark parcel, .*give --benchmark$"):
                    plan_of(trained, task_file=task_file, **flags)
            plan = plan_of(trained, task_file=task_file, benchmark="parcel", dataset_name="cause")
            self.assertEqual([task.name for task in plan.train], ["cause"])

    def test_a_table_in_place_of_a_split_of_a_task_file_is_refused_with_flags_that_go_together(self):
        rows = Path(tempfile.mkdtemp(), "new.csv")
        rows.write_text("text,cause\nLost it.,lost\n")
        flags = {"eval_only": True, "test_file": str(rows)}
        with exits_with(78, "give --data_format csv .*neither --benchmark nor --task_file"):
            plan_of(None, task_file=parcel_tasks(), benchmark="parcel", dataset_name="cause", **flags)

    def test_a_task_chosen_by_its_error_is_told_which_of_its_metrics_the_average_takes(self):
        words = ["--benchmark", "parcel", "--task_file", parcel_tasks(), "--data_dir", tempfile.mkdtemp()]
        for name, answer in (("days", 2.5), ("cause", "wet")):
            for split in ("train", "validation"):
                path = Path(words[-1], "parcel", name, f"{split}.jsonl")
                path.parent.mkdir(parents=True, exist_ok=True)
                write_rows(path, [{"text": f"{split} {number}.", name: answer} for number in range(8)])
        (warning,) = [text for text in warnings_of(*words, "--dataset_name", "days,cause") if "per_task" in text]
        self.assertRegex(warning, "days: .*metric_to_optimize: pearson, or --select per_task")

    def test_a_model_of_a_mixture_is_scored_and_trained_again_as_the_mixture(self):
        tasks = MIXTURES["mini"]["all"]["evaluate"]
        trained = save_model(tempfile.mkdtemp(), tasks=[load_task("mini", name) for name in tasks])
        flags = ["--model_name_or_path", str(trained), "--eval_only", "--max_eval_samples", "4"]
        results, directory = run(*flags, quick=False)
        self.assertEqual((list(results["tasks"]), list(results["averages"])), (tasks, ["mini"]))
        self.assertEqual(manifest_of(directory)["settings"]["dataset_name"], "all")
        for benchmark in ("glue", "super_glue"):
            mixture = MIXTURES[benchmark]["all"]
            names = dict.fromkeys([*mixture["train"], *mixture["evaluate"]])
            trained = save_model(tempfile.mkdtemp(), tasks=[load_task(benchmark, name) for name in names])
            plan = FineTuner(trained, use_cpu=True).plan
            trains, evaluates = [[task.name for task in part] for part in (plan.train, plan.evaluate)]
            self.assertEqual({"train": trains, "evaluate": evaluates, "average": plan.average}, mixture)

    def test_an_empty_text_is_counted_and_kept(self):
        path = rows_file("mini", "sentiment", change=lambda rows: [{**rows[0], "sentence": ""}, *rows[1:]])
        _, directory = run(f"--train_file={path}", "--max_steps=1", "--eval_strategy=no", "--save_strategy=no")
        data = manifest_of(directory)["data"]["sentiment.train"]
        self.assertEqual((data["empty_texts"], data["used"]), (1, 12))

    @parameterized.parameters(
        (["--benchmark", "gleu"], 78, r"--benchmark: unknown benchmark 'gleu'; did you mean glue"),
        (["--torch_compile_mode", "fast"], 78, "--torch_compile_mode fast: choose from default, reduce-overhead"),
        (["--metric_for_best_model", "acuracy"], 78, r"'acuracy'; did you mean accuracy"),
        (["--dataset_name", "all", "--metric_for_best_model", "accuracy"], 78, "accuracy: a mixture is selected by average or loss"),
        (["--selection_split", "trian[5%]"], 78, r"--selection_split 'trian\[5%\]'"),
        (["--model_name_or_path", "./no-such-model"], 78, r"no file or folder './no-such-model'"),
        (["--benchmark", "super_glue", "--dataset_name", "wsc", "--eval_method", "score", "--data_dir", "{data}"], 78, r"wsc has no candidates"),
        (["--benchmark", "glue", "--dataset_name", "rte", "--data_dir", "{data}"], 65, r"glue/rte has no training split: no .*train.jsonl"),
        (["--model_name_or_path", "no-org/no-model"], 78, r"'no-org/no-model' is no folder, the hub cannot be reached"),
        (["--data_dir", "/no/such/dir"], 78, r"--data_dir: no directory '/no/such/dir'"),
        (["--config_overrides", "d_modle=3"], 78, r"'d_modle'; did you mean d_model"),
        (["--resume", "checkpoint-7"], 78, r"--resume 'checkpoint-7'"),
    )  # fmt: skip
    def test_a_wrong_value_is_named_with_its_flag_and_what_would_be_right(self, argv, exit_code, message):
        data = tempfile.mkdtemp()
        if "wsc" in argv:
            row = {"text": "Ann sat as she ate .", "span1_text": "Ann", "span2_text": "she", "label": 1}
            row |= {"span2_index": 3}
            for split in ("train", "validation"):
                write_rows(f"{data}/super_glue/wsc/{split}.jsonl", [row])
        with exits_with(exit_code, message):
            run(*(arg.format(data=data) for arg in argv))

    def test_training_rows_none_of_which_makes_an_example_are_refused(self):
        """WSC trains on rows whose pronoun stands for the candidate."""
        data = tempfile.mkdtemp()
        row = {"text": "Ann sat as she ate .", "span1_text": "Ann", "span2_text": "she", "span2_index": 3}
        for split, label in (("train", 0), ("validation", 1)):
            write_rows(f"{data}/super_glue/wsc/{split}.jsonl", [{**row, "label": label}] * 3)
        with exits_with(65, "none of the 3 rows makes a training example"):
            run("--benchmark", "super_glue", "--dataset_name", "wsc", "--data_dir", data)

    def test_a_directory_with_other_files_is_refused(self):
        directory = Path(tempfile.mkdtemp())
        (directory / "thesis.tex").write_text("")
        with exits_with(78, r"not empty \(thesis.tex"):
            run(output_dir=directory)

    def test_a_run_of_updates_that_are_not_finite_stops(self):
        with exits_with(70, r"3 updates in a row.*were skipped.*lower --learning_rate"):
            run(*"--learning_rate 1e18 --max_grad_norm 0 --optim sgd --max_steps 20 --eval_steps 20".split())


# What a plain run needs nothing of, though it is installed in many environments; each takes 0.2 to 2 s to import.
UNNEEDED = (
    "aim bitsandbytes evaluate IPython matplotlib nltk onnx onnxruntime rouge_score sacrebleu sklearn "
    "tensorboard tensorflow torchvision torchaudio trackio wandb"
).split()
PROGRAM = """
import json, sys
import fine_tune_t5
fine_tune_t5.main(json.loads(sys.argv[1]))
print("MODULES", json.dumps(sorted(sys.modules)))
"""
ONE_STEP = (
    "mini.yaml --max_train_samples 32 --max_eval_samples 8 --max_steps 1 --per_device_train_batch_size 8 "
    "--save_strategy no --load_best_model_at_end False --use_cpu --disable_tqdm True"
).split()


class ImportsTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_a_run_imports_nothing_that_it_does_not_need(self):
        words = json.dumps([*ONE_STEP, "--output_dir", tempfile.mkdtemp()])
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        program = [sys.executable, "-c", PROGRAM, words]
        lines = subprocess.check_output(
            program, cwd=Path(__file__).parent.parent, text=True, env=environment
        ).splitlines()
        modules = json.loads(next(line for line in lines if line.startswith("MODULES")).removeprefix("MODULES "))
        self.assertEmpty(set(UNNEEDED) & set(modules))
        self.assertIn("torch", modules)
