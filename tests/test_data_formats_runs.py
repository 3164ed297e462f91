"""Whole small runs over rows of your own: by command and from Python, what they leave behind, and that they resume."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from absl.testing import parameterized
from support import later_wins
from test_data_formats import csv_file, folder, jsonl
from transformers import T5ForConditionalGeneration
from transformers.trainer_callback import CallbackHandler

import fine_tune_t5
from t5suite import FineTuner
from t5suite.testing import exits_with, read_rows, run_cli, tiny_run

ROOT = Path(__file__).resolve().parents[1]

SETTINGS = {
    "max_steps": 4, "per_device_train_batch_size": 8,
    "config_overrides": "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2", "eval_strategy": "steps",
    "eval_steps": 2, "logging_steps": 1, "disable_tqdm": True, "use_cpu": True,
}  # fmt: skip
WORDS = ("bad", "good")


def flags(*names, without=()):
    return [f"--{name}={value}" for name, value in SETTINGS.items() if name not in without] + list(names)


def run(*argv, output_dir=None, without=()):
    directory = output_dir or Path(tempfile.mkdtemp()) / "run"
    return fine_tune_t5.main(later_wins([*flags(*argv, without=without), "--output_dir", str(directory)])), directory


def reviews(count=60) -> list[dict]:
    return [{"text": f"film {i} is {WORDS[i % 2]}", "label": WORDS[i % 2]} for i in range(count)]


def csv_reviews() -> str:
    return str(csv_file([["text", "label"], *(list(row.values()) for row in reviews())], folder() / "reviews.csv"))


def pairs(name: str, count: int, splits=("train", "val", "test")) -> str:
    root = folder() / name
    for split in splits:
        for part in range(2):
            rows = [{"input": f"{name} {split} {part} {i}", "output": WORDS[i % 2]} for i in range(count // 2)]
            if split == "test":
                rows = [{"input": row["input"]} for row in rows]
            jsonl(root / split / f"{part}.jsonl", rows)
    return str(root)


def manifest(directory) -> dict:
    return json.loads((directory / "manifest.json").read_text())


COLUMNS = ("--text_column", "text", "--target_column", "label")


class ColumnsTest(parameterized.TestCase):
    """A mistyped column is found in the first row: nothing slow is imported, and no directory is made, before."""

    @parameterized.parameters(("csv", ["thesis.tex"]), ("jsonl", []))
    @pytest.mark.slow
    def test_a_command_names_a_mistyped_column_before_torch_is_imported_and_a_directory_is_looked_at(self, form, files):
        rows, runs = folder(), folder()
        path = csv_reviews() if form == "csv" else str(jsonl(rows / "reviews.jsonl", reviews()))
        directory = runs / "deep" / "run"
        for name in files:  # other files are there, which is another mistake, and found later
            directory.mkdir(parents=True)
            (directory / name).write_text("")
        words = ["--data_format", form, "--train_file", path, "--text_column", "txet", "--target_column", "label"]
        done = subprocess.run(
            [sys.executable, "-X", "importtime", ROOT / "fine_tune_t5.py", *words, "--output_dir", directory],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )  # fmt: skip
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
        self.assertEqual(done.returncode, 65)
        self.assertRegex(done.stderr, rf"reviews\.{form}:.*column 'txet' .--text_column.; did you mean text\?")
        self.assertIn("t5suite.data", imported)
        self.assertNotIn("torch", imported)
        self.assertEqual([path.name for path in runs.rglob("*") if path.is_file()], files)
        self.assertEqual(directory.parent.exists(), bool(files))

    @parameterized.parameters(("train", "label", "lable"), ("train", "text", "txet"), ("validation", "text", "txet"))
    def test_a_run_from_python_names_it_before_the_directory_is_looked_at(self, role, column, mistyped):
        files = {}
        for name in ("train", "validation"):
            columns = ["text", "label"]
            if name != role:
                columns[columns.index(column)] = mistyped  # the flags fit only the other file
            files[f"{name}_file"] = str(csv_file([columns, ["a film", "good"]], folder() / f"{name}.csv"))
        flags = {"text_column": "text", "target_column": "label"}
        flags[f"{'target' if column == 'label' else 'text'}_column"] = mistyped
        directory = folder() / "run"
        directory.mkdir()
        (directory / "thesis.tex").write_text("")  # another mistake
        with exits_with(65, rf"{role}\.csv: the first line names no column '{mistyped}' .*; did you mean {column}\?"):
            FineTuner(output_dir=directory, use_cpu=True, quiet=True, data_format="csv", **files, **flags).train()

    @parameterized.parameters("a.csv", "a.tsv")
    def test_a_file_without_names_is_told_that_its_first_line_was_read_as_names(self, name):
        delimiter = {"csv": ",", "tsv": "\t"}[name[2:]]
        path = folder() / name
        path.write_text(f"The wound looks clean.{delimiter}no\nGive 5 mg.{delimiter}yes\n")
        with exits_with(65, "the first line names no column 'input' .--text_column.; there are .* The wound .*, no"):
            FineTuner(train_file=path, labels="no,yes", output_dir=folder() / "run", use_cpu=True, quiet=True).train()


class CommandTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_classes_from_csv_are_scored_and_predicted_like_any_task(self):
        results, directory = run("--data_format", "csv", "--train_file", csv_reviews(), *COLUMNS, "--labels", "bad,good",
                                 "--eval_method", "score")  # fmt: skip
        self.assertEqual(set(results["tasks"]["reviews"]), {"accuracy", "invalid_rate"})
        lines = read_rows(directory / "predictions" / "reviews.validation.jsonl")
        self.assertEqual({line["prediction"] for line in lines} - set(WORDS), set())
        content = manifest(directory)
        self.assertEqual(content["tasks"]["reviews"]["labels"], list(WORDS))
        parts = content["data"]["reviews.train"], content["data"]["reviews.validation"]
        self.assertEqual([part["rows"] for part in parts], [57, 3])
        self.assertEqual(parts[0]["fingerprint"], parts[1]["fingerprint"])
        self.assertNotEqual(parts[0]["origin"], parts[1]["origin"])

    @pytest.mark.slow
    def test_several_data_sets_with_templates_lengths_proportions_and_tests_without_answers(self):
        a, b = pairs("a", 30), pairs("b", 6)
        results, directory = run(
            "--data_class", "JSONLines", "JSONLinesDataset", "Debug", "--data_path", a, b, "none",
            "--data_config", "none", json.dumps({"metrics": ["bleu"]}), json.dumps({"num_examples": 10}),
            "--data_sampling_proportion", "1", "2", "1", "--input_format", "q: __input__", "__input__", "__input__",
            "--output_format", "__output__", "<__output__>", "__output__", "--max_input_tokens", "12", "9", "20",
            "--max_output_tokens", "4", "6", "5", "--do_predict",
        )  # fmt: skip
        self.assertEqual(set(results["tasks"]), {"a", "b"})
        self.assertEqual(set(results["tasks"]["b"]), {"bleu"})
        lines = read_rows(directory / "predictions" / "b.validation.jsonl")
        self.assertEqual(lines[0]["target"], "<bad>")
        self.assertNotIn("target", read_rows(directory / "predictions" / "a.test.jsonl")[0])
        content = manifest(directory)
        self.assertEqual(content["mixing_rates"], {"a": 1.0, "b": 2.0, "debug": 1.0})
        files = content["data"]["a.train"]["files"]
        self.assertEqual([Path(name).name for name in files], ["0.jsonl", "1.jsonl"])
        self.assertTrue(all(value.startswith("sha256:") for value in files.values()))

    @pytest.mark.slow
    def test_without_evaluation_everything_is_trained_on_and_the_last_checkpoint_stays(self):
        results, directory = run("--data_format", "csv", "--train_file", csv_reviews(), *COLUMNS, "--no_eval",
                                 "--save_strategy", "steps", "--save_steps", "2",
                                 without=("eval_strategy", "eval_steps"))  # fmt: skip
        self.assertEqual(results, {"tasks": {}, "averages": {}})
        self.assertEqual(manifest(directory)["data"]["reviews.train"]["used"], 60)
        self.assertTrue((directory / "checkpoint-4").is_dir())
        self.assertEqual((directory / "checkpoint-4" / "model.safetensors").read_bytes(),
                         (directory / "model.safetensors").read_bytes())  # fmt: skip

    @parameterized.parameters(
        ("--early_stopping_patience", "2"), ("--load_best_model_at_end", "True"),
        ("--metric_for_best_model", "accuracy"), ("--selection_split", "train[10%]"), ("--eval_only",),
        ("--save_strategy", "best"), ("--schedule", "plateau"), ("--schedule", "greedy"),
        ("--lr_scheduler_type", "reduce_lr_on_plateau"),
    )  # fmt: skip
    def test_without_evaluation_what_needs_one_is_refused_by_name(self, flag, *value):
        with exits_with(78, f"--no_eval evaluates nothing, which {flag}"):
            run("--data_format", "csv", "--train_file", csv_reviews(), "--no_eval", flag, *value,
                without=("eval_strategy", "eval_steps"))  # fmt: skip

    @pytest.mark.slow
    def test_running_text_is_scored_by_its_likelihood(self):
        """In nats a token of its held-out blocks, as the saved model gives them by itself."""
        path = folder() / "book.txt"
        path.write_text("".join(f"The film number {i} is good and the city is old.\n" for i in range(60)))
        settings = {"data_format": "text", "train_file": str(path), "block_size": 32, "learning_rate": 1e-2}
        tuner = FineTuner(**SETTINGS, **settings, output_dir=str(folder() / "run"))
        results = tuner.train()
        (features,) = (eval_set.features for eval_set in tuner.trainer.eval_sets)
        model, total, tokens = T5ForConditionalGeneration.from_pretrained(tuner.args.output_dir), 0.0, 0
        for i in range(len(features)):
            ids, labels = (torch.tensor(features[i][name].tolist())[None] for name in ("input_ids", "labels"))
            with torch.no_grad():
                total += float(model(input_ids=ids, labels=labels).loss) * labels.numel()
            tokens += labels.numel()
        self.assertGreater(tokens, 30)
        self.assertEqual(list(results["tasks"]["book"]), ["nll"])
        self.assertAlmostEqual(results["tasks"]["book"]["nll"], total / tokens, places=5)

    @pytest.mark.slow
    def test_translation_and_a_hub_data_set_of_a_local_folder(self):
        rows = [{"translation": {"en": f"good {i}", "de": f"gut {i}"}} for i in range(40)]
        path = jsonl(folder() / "train.jsonl", rows)
        results, _ = run("--data_format", "translation", "--train_dir", str(path.parent), "--source_id", "en",
                         "--target_id", "de", "--prefix", "translate English to German: ",
                         "--dataset_name", "toy")  # fmt: skip
        self.assertEqual(list(results["tasks"]["toy"]), ["bleu", "chrf"])
        hub = Path(csv_reviews()).rename(folder() / "train.csv").parent
        results, directory = run("--data_format", "hub", "--hub_path", str(hub), *COLUMNS, "--labels", "bad,good")
        self.assertEqual([list(task) for task in results["tasks"].values()], [["accuracy", "invalid_rate"]])

    @parameterized.parameters(
        (("--data_format", "csv"), "--data_format needs rows: give --train_file"),
        (("--data_format", "csv", "--train_file", "/no/such.csv"), "--train_file '/no/such.csv': no such file"),
        (("--data_format", "csv", "--benchmark", "glue"), "--benchmark glue: --data_format and --data_class make"),
        (("--data_class", "Debug", "--data_sampling_proportion", "1", "--mixing", "equal"), "both say how often"),
        (("--data_class", "Debug", "--data_config", "{"), "--data_config"),
        (("--data_class", "Debug", "--train_file", "x"), "--data_class reads the folders"),
        (("--data_class", "Debug", "--data_config", "no.yaml"), "'no.yaml': neither a JSON table nor a file"),
        (
            ("--data_class", "Debug", "--data_config", '{"labels": "good"}'),
            "labels must be a list of words, not 'good'",
        ),
        (("--data_format", "cvs"), "did you mean csv"),
        (("--data_class", "Debug", "--streaming"), "--streaming belongs to pre_train_t5.py"),
    )
    def test_bad_flags_are_refused_with_a_reason(self, words, message):
        with exits_with(78, message):
            run(*words)

    @parameterized.parameters(
        (("ok", "worn out", "broken, old"), 12, {}, """36 rows.*--labels '"broken, old",ok,worn out' makes"""),
        (("ok", "worn"), 10, {}, "20 rows.*--labels ok,worn makes it a classification\n"),
        (
            ("ok", "worn", "Worn", "ok", "worn ", "worn"),
            10,
            {},
            "--labels ok,worn makes .*: 'Worn' .first: train row 2., 'worn ' .first: train row 4.\n",
        ),
        (("ok", "worn "), 10, {}, "--labels ok,worn makes .*: 'worn ' .first: train row 1.\n"),
        (("ok", "worn"), 9, {}, None),  # few rows
        (("late", "late; broken", "rude", "broken; late", "broken; rude"), 20, {}, None),  # several labels a row
        (("ok",), 60, {}, None),
        (("ok", "worn " * 9), 60, {}, None),  # a long text
        (("ok", "worn", " "), 60, {}, None),  # no label is blank
        ([f"name {i}" for i in range(21)], 12, {}, None),
        ((1, 2), 60, {}, None),  # numbers
        (("ok", "worn"), 60, {"labels": ["ok", "worn"]}, None),
        (("ok", "worn"), 60, {"labels": "none"}, None),
        (("ok", "worn"), 60, {"metrics": "exact_match"}, None),
    )
    def test_a_few_short_targets_of_many_rows_are_named_as_possible_labels(self, targets, count, flags, hint):
        rows = [{"text": f"report {i}", "label": target} for i in range(count) for target in targets]
        tuner = FineTuner(None, {"train": rows, "validation": rows[:5]}, text_column="text", target_column="label",
                          use_cpu=True, max_steps=1, **flags, output_dir=str(folder() / "run"))  # fmt: skip
        with self.assertLogs("t5suite", "INFO") as logs:
            tuner.train()
        log = "\n".join(logs.output)
        if hint is None:
            self.assertNotIn("makes it a classification", log)
        else:
            self.assertRegex(log, hint)

    def test_a_bad_line_stops_the_run_before_it_trains(self):
        path = jsonl(folder() / "rows.jsonl", [*reviews(5), {"text": "x"}])
        with exits_with(65, r"rows\.jsonl:6: "):
            run("--data_format", "jsonl", "--train_file", str(path), *COLUMNS, "--validation_file", str(path))


def two_sets() -> list[str]:
    paths = [pairs("a", 30), pairs("b", 10)]
    return ["--data_class", "JSONLines", "JSONLines", "--data_path", *paths, "--data_sampling_proportion", "1", "4"]


def crash_after(step: int):
    """Within it a run dies after this step, before anything of the step is written."""
    on_step_end = CallbackHandler.on_step_end

    def die_there(handler, args, state, control):
        if state.global_step == step:
            raise RuntimeError("a crash")
        return on_step_end(handler, args, state, control)

    return mock.patch.object(CallbackHandler, "on_step_end", die_there)


class ErrorsBesidePointsTest(parameterized.TestCase):
    def test_an_error_in_the_targets_unit_has_no_part_in_the_average_of_points(self):
        """Beside accuracies of 0 to 100, errors of thousands would choose the checkpoint alone."""
        with self.assertLogs("t5suite", "WARNING") as logs:
            result = run_of_folders(desk=WORDS[0], price=25000)
        self.assertRegex("\n".join(logs.output), "price: .* no part in the average")
        accuracy = result.results["tasks"]["desk"]["accuracy"]
        self.assertLess(result.results["tasks"]["price"]["neg_mean_absolute_error"], -1000)
        self.assertEqual(result.results["averages"], {"own (1 of 2 tasks)": accuracy})
        self._check_averages(result, accuracy)
        content = manifest(result.directory)
        self.assertEqual([choice["by"] for choice in content["choices"]], ["accuracy"])
        self.assertNotIn("chosen on these rows", content["marks"].get("price", []))

    def test_of_errors_alone_the_average_is_their_mean(self):
        """In training, in results and in their verification."""
        with self.assertLogs("t5suite", "INFO") as logs:
            result = run_of_folders(price=25000, rent=700)
        self.assertNotRegex("\n".join(logs.output), "no part in the average")
        errors = [scores["neg_mean_absolute_error"] for scores in result.results["tasks"].values()]
        self.assertLen(errors, 2)
        mean = sum(errors) / 2
        self.assertEqual(result.results["averages"], {"average": mean})
        self._check_averages(result, mean)

    @parameterized.parameters({"select": "per_task"}, {"load_best_model_at_end": False}, {"eval_strategy": "no"})
    def test_a_run_that_chooses_no_checkpoint_by_the_average_says_nothing_of_it(self, **flags):
        with self.assertLogs("t5suite", "INFO") as logs:
            run_of_folders(desk=WORDS[0], price=25000, **flags)
        self.assertNotRegex("\n".join(logs.output), "no part in the average")

    def _check_averages(self, result, average: float) -> None:
        """The last evaluation and `t5suite verify` have a run's average."""
        evaluations = [line["eval/average"] for line in result.history if "eval/average" in line]
        self.assertAlmostEqual(evaluations[-1], average)
        run_cli("verify", result.directory)


def run_of_folders(eval_strategy="steps", select="average", load_best_model_at_end=True, **targets):
    """A run on a task of each name, all of whose targets are equal: a word of WORDS, or a number, with its error."""
    root = folder()
    configs = []
    for name, target in targets.items():
        for split in ("train", "val"):
            rows = [{"input": f"{split} {number}", "output": target} for number in range(8)]
            jsonl(root / name / split / "0.jsonl", rows)
        config = {"labels": list(WORDS)} if target in WORDS else {"metrics": ["neg_mean_absolute_error"]}
        configs.append(json.dumps(config))
    return tiny_run(
        data_class=["JSONLines"] * len(targets),
        data_path=[str(root / name) for name in targets],
        data_config=configs,
        eval_strategy=eval_strategy,
        eval_steps=1,
        select=select,
        load_best_model_at_end=load_best_model_at_end,
        share_rows=True,
    )


class ResumeTest(parameterized.TestCase):
    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_resumed_run_draws_what_the_unbroken_one_does(self):
        """The predecessor's sampler forgot where it was: every restart began with the same first rows."""
        words = [*two_sets(), "--max_steps", "9", "--eval_steps", "4", "--dropout_rate", "0.1"]
        words += ["--save_strategy", "steps", "--save_steps", "4"]
        _, whole = run(*words)
        broken = Path(tempfile.mkdtemp()) / "run"
        with crash_after(5), self.assertRaisesRegex(RuntimeError, "a crash"):
            run(*words, output_dir=broken)
        self.assertTrue((broken / "checkpoint-4").is_dir())
        run(*words, output_dir=broken)

        def losses(directory):
            lines = read_rows(directory / "metrics.jsonl")
            return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}

        self.assertEqual(list(losses(whole)), list(range(1, 10)))
        self.assertEqual(losses(whole), losses(broken))
        for name in ("results.json", "model.safetensors"):
            self.assertEqual((whole / name).read_bytes(), (broken / name).read_bytes())


class RanksTest(parameterized.TestCase):
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_see_what_one_sees(self):
        given = two_sets()

        def trained(launcher, batch_size):
            directory = Path(tempfile.mkdtemp()) / "run"
            argv = [*flags(*given, without=("per_device_train_batch_size",)), "--output_dir", str(directory)]
            argv += ["--per_device_train_batch_size", batch_size]
            command = [sys.executable, *launcher, str(ROOT / "fine_tune_t5.py"), *argv]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            done = subprocess.run(command, cwd=directory.parent, env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            lines = read_rows(directory / "metrics.jsonl")
            return [line["train/loss"] for line in lines if "train/loss" in line], manifest(directory)["data"]

        alone = trained((), "8")
        two = trained(("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"), "4")
        np.testing.assert_allclose(alone[0], two[0], rtol=1e-5)
        self.assertEqual(alone[1], two[1])
