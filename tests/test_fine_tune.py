"""Whole small runs of fine_tune_t5.py: what they leave behind, and that modes and subsets do what they say."""

import contextlib
import functools
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from absl.testing import parameterized
from safetensors.torch import load_file
from support import later_wins
from transformers import TrainerCallback

import fine_tune_t5
from t5suite import FineTuner, load_task
from t5suite.base.errors import ConfigError, DataError, TemporaryError
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.reports import finishing as reports
from t5suite.reports.finishing import write_results
from t5suite.reports.tables import print_results, warn_of_lost_model
from t5suite.tasks.registry import Lengths
from t5suite.tasks.task_card import make_task_card, write_task_card
from t5suite.testing import bundled_model, exits_with, read_rows, tiny_tokenizer, write_rows
from t5suite.training.fine_tuning import data_for, warn_of_idle_flags
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, FineTuningArguments
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.plans import plan_for

SETTINGS = {
    "max_train_samples": 64, "max_eval_samples": 24, "max_steps": 4, "per_device_train_batch_size": 8,
    "config_overrides": "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2", "eval_strategy": "steps",
    "eval_steps": 2, "logging_steps": 1, "disable_tqdm": True, "use_cpu": True,
}  # fmt: skip
QUICK = [f"--{name}={value}" for name, value in SETTINGS.items()]


def folder():
    return Path(tempfile.mkdtemp()) / "run"


def run(*argv, output_dir=None, quick=True):
    """`(results, directory)`, without the card and the curves, which take longer than the training."""
    output_dir = output_dir or folder()
    flags = [*QUICK, *argv] if quick else [*argv, "--disable_tqdm", "True", "--use_cpu"]
    with mock.patch.multiple(reports, learning_curves=mock.DEFAULT, write_fine_tuned_card=mock.DEFAULT):
        return fine_tune_t5.main(later_wins([*flags, "--output_dir", str(output_dir)])), Path(output_dir)


@functools.cache
def plain():
    """A run of no further flags; nothing may be written into its directory."""
    return run()


def rows_file(benchmark, name, split="validation", count=12, change=None):
    rows = (
        load_split(load_task(benchmark, name), "validation", split, DataOptions()).rows.select(range(count)).to_list()
    )
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    write_rows(path, change(rows) if change else rows)
    return path


class RunDirectoryTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = folder()
        cls.flags = ["--dataset_name", "all", "--do_predict", "--report_to", "tensorboard"]
        cls.results = fine_tune_t5.main(later_wins([*QUICK, *cls.flags, "--output_dir", str(cls.directory)]))

    def test_results_are_returned_and_written(self):
        written = json.loads((self.directory / "results.json").read_text())
        self.assertEqual(list(written["tasks"]), ["sentiment", "entailment", "similarity"])
        self.assertEqual(list(written["averages"]), ["mini"])
        self.assertEqual(written["tasks"]["sentiment"], self.results["tasks"]["sentiment"])

    def test_metrics_lines_have_step_epoch_seconds_and_named_values(self):
        lines = read_rows(self.directory / "metrics.jsonl")
        self.assertTrue(all({"step", "epoch", "seconds"} <= set(line) for line in lines))
        names = {name for line in lines for name in line}
        self.assertContainsSubset({"train/loss", "eval/sentiment/accuracy", "eval/average"}, names)

    def test_the_manifest_explains_the_run(self):
        manifest = json.loads((self.directory / "manifest.json").read_text())
        self.assertEqual(manifest["status"], "finished")
        keys = "run_id settings versions hardware tasks data mixing_rates best_per_task training"
        self.assertContainsSubset(keys.split(), manifest)
        self.assertTrue(manifest["data"]["sentiment.train"]["subset"])
        self.assertEqual(manifest["data"]["sentiment.train"]["used"], 64)

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
        run_id = json.loads((self.directory / "manifest.json").read_text())["run_id"]
        with exits_with(78, f"{run_id}.*learning_rate 0.0005 there, 0.1 here") as caught:
            run("--dataset_name", "all", "--do_predict", "--learning_rate", "0.1", output_dir=self.directory)
        self.assertEqual(caught.exception.exit_code, 78)

    def test_every_checkpoint_can_be_scored(self):
        found, _ = run("--dataset_name", "all", "--eval_checkpoints", "all", output_dir=self.directory)
        self.assertEqual(list(found), ["2", "4"])
        self.assertEqual(found["4"]["tasks"].keys(), self.results["tasks"].keys())


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

    @parameterized.parameters(("", 30), ("--max_train_samples=20", 20), ("--few_shot=4", 8))
    def test_rows_that_select_are_not_trained_on(self, subset, trained):
        path, tokenizer = rows_file("mini", "sentiment", "train", 40), tiny_tokenizer()
        flags = [f"--train_file={path}", "--max_source_length=64", "--max_target_length=8", "--use_cpu"]
        flags += ["--selection_split=train[25%]", *subset.split()]
        arguments = FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, flags))
        data = data_for(plan_for(arguments), tokenizer, arguments, trains=True)
        texts = ["sentiment sentence: " + row["sentence"] for row in read_rows(path)]
        everything = {tuple(tokenizer(text)["input_ids"]) for text in texts}
        of_training, of_selection = (
            {tuple(features[i]["input_ids"].tolist()) for i in range(len(features))}
            for features in (data.features[0], data.selecting[0].features)
        )
        self.assertEqual((len(everything), len(of_training), len(of_selection)), (40, trained, 10))
        self.assertContainsSubset(of_training, everything - of_selection)
        self.assertContainsSubset(of_selection, everything)

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
        best = json.loads((directory / "manifest.json").read_text())["best_per_task"]
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

    def test_a_finished_run_without_its_model_says_so_and_where_weights_are_left(self):
        manifest = {"training": {"steps": 4}}
        for files, left in (
            ([], "train it again"),
            (["checkpoint-4/config.json"], "checkpoint-4 may still have weights"),
        ):
            directory = folder()
            for name in ["config.json", *files]:
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                (directory / name).touch()
            with self.assertLogs("t5suite.reports.tables", "WARNING") as logs:
                warn_of_lost_model(directory, manifest)
            self.assertRegex(logs.output[0], f"has no model.safetensors; {left}")
            (directory / "model.safetensors").touch()
            with self.assertNoLogs("t5suite.reports.tables", "WARNING"):
                warn_of_lost_model(directory, manifest)

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

    @parameterized.parameters(
        ({"mixing": "equal", "mixing_limit": 0}, 1, ["mixing", "mixing_limit"]),
        ({"mixing": "equal", "mixing_limit": 0}, 2, []),
        ({"max_predict_samples": 0, "test_file": None}, 2, ["max_predict_samples", "test_file"]),
        ({"eval_method": "loss", "eval_loss": False}, 2, ["eval_loss"]),
    )
    def test_flags_that_were_given_are_idle_whatever_their_value(self, given, num_tasks, expected):
        plan = SimpleNamespace(train=[None] * num_tasks, alone=num_tasks == 1)
        with self.assertLogs("t5suite") as logs:
            logging.getLogger("t5suite").info("there is something")
            self.assertCountEqual(warn_of_idle_flags(given, plan, trains=True, predicts=False), expected)
        self.assertLen(logs.output, 1 + len(expected))

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
    "missing_column": (b'{"text": "a", "label": 0}\n', r"rows.jsonl:1: no column 'sentence'.*'text'"),
    "translations": (
        b'{"translation": {"en": "a", "ro": "b"}}\n',
        r"rows.jsonl:1: no column 'sentence'.*; --data_format translation --source_id en --target_id ro reads such rows",
    ),
    "label_outside": (b'{"sentence": "a", "label": 0}\n{"sentence": "b", "label": 2}\n', r"rows.jsonl:2: label 2 .* 0 negative, 1 positive"),
    "unlabelled": (b'{"sentence": "a", "label": -1}\n', r"rows.jsonl:1: .*must be labelled"),
    "other_columns": (b'{"sentence": "a", "label": 0}\n{"sentence": "b", "label": 0, "x": 1}\n', r"rows.jsonl:2: other columns"),
}  # fmt: skip


class BadInputTest(parameterized.TestCase):
    @parameterized.named_parameters((name, *case) for name, case in BAD_FILES.items())
    def test_a_bad_file_is_told_by_file_and_line(self, content, message):
        path = Path(tempfile.mkdtemp()) / "rows.jsonl"
        path.write_bytes(content)
        with exits_with(65, message) as caught:
            run("--train_file", str(path))
        self.assertEqual(caught.exception.exit_code, 65)

    def test_a_cut_off_gzip_file_is_told(self):
        path = Path(tempfile.mkdtemp()) / "rows.jsonl.gz"
        write_rows(path, [{"sentence": f"row {os.urandom(40).hex()}", "label": 0} for _ in range(200)])
        path.write_bytes(path.read_bytes()[:-200])
        with exits_with(65, r"rows.jsonl.gz: the gzip file is cut off"):
            run("--train_file", str(path))

    def test_a_saved_model_s_own_task_is_the_task_where_none_is_named(self):
        task = load_task("mini", "entailment")
        card = make_task_card([task], Lengths(64, 8))
        trained = Path(tempfile.mkdtemp())
        write_task_card(trained, card)
        shutil.copy(Path(bundled_model()) / "config.json", trained)
        arguments = FineTuningArguments(
            *parse_arguments(FINE_TUNING_ARGUMENTS, ["--model_name_or_path", str(trained), "--use_cpu"])
        )
        self.assertEqual([task.name for task in plan_for(arguments).tasks], ["entailment"])
        self.assertEqual(arguments.data.dataset_name, "entailment")
        card = json.loads((trained / "task.json").read_text())
        (trained / "task.json").write_text(json.dumps({**card, "benchmark": "own"}))
        with exits_with(78, "was trained on own/entailment, whose rows no flag names"):
            run("--model_name_or_path", str(trained), "--eval_only", quick=False)

    def test_an_empty_text_is_counted_and_kept(self):
        path = rows_file("mini", "sentiment", change=lambda rows: [{**rows[0], "sentence": ""}, *rows[1:]])
        arguments = FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, [f"--train_file={path}", "--use_cpu"]))
        data = data_for(plan_for(arguments), tiny_tokenizer(), arguments, trains=True).described["sentiment.train"]
        self.assertEqual((data["empty_texts"], data["used"]), (1, 12))

    @parameterized.parameters(
        (["--benchmark", "gleu"], ConfigError, r"--benchmark: unknown benchmark 'gleu'; did you mean glue"),
        (["--torch_compile_mode", "fast"], ConfigError, "--torch_compile_mode fast: choose from default, reduce-overhead"),
        (["--metric_for_best_model", "acuracy"], ConfigError, r"'acuracy'; did you mean accuracy"),
        (["--selection_split", "trian[5%]"], ConfigError, r"--selection_split 'trian\[5%\]'"),
        (["--model_name_or_path", "./no-such-model"], ConfigError, r"no file or folder './no-such-model'"),
        (["--benchmark", "super_glue", "--dataset_name", "wsc", "--eval_method", "score", "--data_dir", "{data}"], ConfigError, r"wsc has no candidates"),
        (["--benchmark", "glue", "--dataset_name", "rte", "--data_dir", "{data}"], DataError, r"glue/rte has no training split: no .*train.jsonl"),
        (["--model_name_or_path", "no-org/no-model"], (ConfigError, TemporaryError), r"'no-org/no-model' is no folder, the hub cannot be reached"),
        (["--data_dir", "/no/such/dir"], ConfigError, r"--data_dir: no directory '/no/such/dir'"),
        (["--few_shot", "3", "--dataset_name", "similarity"], ConfigError, r"--few_shot: mini/similarity has no classes"),
        (["--train_fraction", "1.5"], ConfigError, r"--train_fraction 1.5"),
        (["--config_overrides", "d_modle=3"], ConfigError, r"'d_modle'; did you mean d_model"),
        (["--resume", "checkpoint-7"], ConfigError, r"--resume 'checkpoint-7'"),
    )  # fmt: skip
    def test_a_wrong_value_is_told_with_its_flag_and_what_would_be_right(self, argv, error, message):
        data = tempfile.mkdtemp()
        if "wsc" in argv:
            row = {"text": "Ann sat as she ate .", "span1_text": "Ann", "span2_text": "she", "label": 1}
            row |= {"span2_index": 3}
            for split in ("train", "validation"):
                write_rows(f"{data}/super_glue/wsc/{split}.jsonl", [row])
        with self.assertRaisesRegex(error, message):
            run(*(arg.format(data=data) for arg in argv))

    def test_a_directory_with_other_files_is_refused(self):
        directory = Path(tempfile.mkdtemp())
        (directory / "thesis.tex").write_text("")
        with exits_with(78, r"not empty \(thesis.tex"):
            run(output_dir=directory)

    def test_a_run_of_updates_that_are_not_finite_stops(self):
        with exits_with(70, r"3 updates in a row.*were skipped.*lower --learning_rate"):
            run(*"--learning_rate 1e18 --max_grad_norm 0 --optim sgd --max_steps 20 --eval_steps 20".split())


class TableTest(parameterized.TestCase):
    def test_each_number_stands_below_its_name(self):
        facts = {"split": "test", "n": 9, "method": "generate", "cut_off": 25.0, "seconds": 3.5}
        results = {"tasks": {"rte": {"accuracy": 70.0, "invalid_rate": 12.5}}, "averages": {}}
        out = io.StringIO()
        print_results("runs/a", {"title": "a run", "scored": {"rte": facts}}, results, file=out)
        lines = [re.split(r"\s{2,}", line.strip()) for line in out.getvalue().splitlines() if line.strip()]
        wanted = {"task": "rte", "split": "test", "n": "9", "metrics": "accuracy 70.00"}
        self.assertEqual(
            dict(zip(lines[1], lines[3])), {**wanted, "invalid %": "12.50", "cut off %": "25.00", "seconds": "3.5"}
        )

    def test_what_is_not_a_number_is_null_in_the_results_and_named(self):
        place, nan = Path(tempfile.mkdtemp()), float("nan")
        tasks = {"stsb": {"pearson": nan, "spearman": 1.0}, "rte": {"accuracy": 50.0}}
        write_results(place, {"tasks": tasks, "averages": {"glue": nan}})
        found = json.loads((place / "results.json").read_text())
        self.assertEqual(found["tasks"], {**tasks, "stsb": {"pearson": None, "spearman": 1.0}})
        self.assertEqual(found["averages"], {"glue": None})
        self.assertEqual([note.split()[0] for note in found["notes"]], ["tasks.stsb.pearson", "averages.glue"])


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
