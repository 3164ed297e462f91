"""The last lines of a finished run: commands that use its model, and run as they stand."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized

import fine_tune_t5
import pre_train_t5
from t5suite import FineTuner, load_task
from t5suite.tasks.metrics import METRICS
from t5suite.testing import cli_output, exits_with, read_rows, run_cli, save_model, write_rows

SETTINGS = (
    "--max_train_samples 12 --max_eval_samples 4 --max_steps 1 --per_device_train_batch_size 8 --eval_strategy no "
    "--use_cpu --disable_tqdm True --config_overrides d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
).split()
WITH_SCORES = ["epoch" if word == "no" else word for word in SETTINGS]
# The entry of a task and its rows.
FILMS = {
    "prefix": "", "text_column_name": "text", "label_column_name": "label", "labels": ["bad", "good"],
    "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
}  # fmt: skip
FILM_ROWS = [{"text": f"film {i}", "label": i % 2} for i in range(12)]
HEADLINE = "next, with your own rows in place of the file:"


def empty_folder() -> Path:
    return Path(tempfile.mkdtemp())


def output_of_run(*words, settings=SETTINGS) -> list[str]:
    """The lines that a run prints on standard output."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        fine_tune_t5.main([*settings, *map(str, words)])
    return shown.getvalue().splitlines()


class LastLinesTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_the_printed_commands_answer_the_rows_and_are_understood(self):
        folder = empty_folder() / "my runs"  # a name that a shell must not split
        folder.mkdir()
        rows = folder / "reviews.csv"
        rows.write_text("text,label\n" + "".join(f"film {i},{'bad good'.split()[i % 2]}\n" for i in range(12)))
        words = ["--data_format", "csv", "--train_file", rows, "--text_column", "text", "--target_column", "label"]
        words += ["--labels", "bad,good", "--output_dir", folder / "run"]
        lines = output_of_run(*words)
        predict, serve = (shlex.split(line) for line in lines[-3:-1])
        model = ["--model_name_or_path", str(folder / "run")]
        self.assertEqual(predict, ["t5suite", "predict", *model, "--input", str(rows)])
        self.assertEqual(serve, ["t5suite", "serve", *model])
        self.assertLen(cli_output(*predict[1:], "--use_cpu").splitlines(), 12)

        self.assertEqual(output_of_run(*words)[-4:], [HEADLINE, *lines[-3:]])
        os.remove(folder / "run" / "model.safetensors")  # the model is gone, the results are shown
        self.assertNotIn(HEADLINE, output_of_run(*words))

    @pytest.mark.slow
    def test_a_model_that_was_scored_by_labels_answers_with_labels_unless_it_is_to_write(self):
        rows = empty_folder() / "reviews.tsv"
        rows.write_text("text\tlabel\n" + "".join(f"film {i}\t{'bad good'.split()[i % 2]}\n" for i in range(12)))
        words = ["--train_file", rows, "--validation_file", rows, "--text_column", "text", "--target_column", "label"]
        words += ["--share_rows"]  # so that the card has a row of them
        words += ["--labels", "bad,good", "--output_dir", empty_folder() / "run", "--eval_strategy", "epoch"]
        words = [*(word for word in SETTINGS if word not in ("--eval_strategy", "no")), *map(str, words)]
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            fine_tune_t5.main([*words, "--eval_method", "score"])
        predict = [*shlex.split(shown.getvalue().splitlines()[-3])[1:], "--use_cpu"]
        with contextlib.redirect_stderr(io.StringIO()) as log:
            answers = [json.loads(line) for line in cli_output(*predict).splitlines()]
        self.assertIn("--labels none has the model write", log.getvalue())
        self.assertLen(answers, 12)
        self.assertLessEqual({answer["prediction"] for answer in answers}, {"bad", "good"})
        self.assertEqual([sorted(answer["probabilities"]) for answer in answers], [["bad", "good"]] * 12)
        predictions = [answer["prediction"] for answer in answers]

        written = [json.loads(line) for line in cli_output(*predict, "--labels", "none").splitlines()]
        self.assertNotIn("probabilities", written[0])
        self.assertNotEqual([answer["prediction"] for answer in written], predictions)  # two updates teach no label
        with exits_with(78, "--num_beams has no effect: .*--labels none"):
            cli_output(*predict, "--num_beams", "2")

        run = predict[predict.index("--model_name_or_path") + 1]
        texts = [f"film {i}" for i in range(12)]
        tuner = FineTuner(run, use_cpu=True, quiet=True)
        self.assertEqual(tuner.predict(texts), predictions)
        self.assertEqual(tuner.predict(texts, labels="none"), [answer["prediction"] for answer in written])
        self.assertEqual(
            tuner.predict(texts, labels="none", num_beams=2, max_new_tokens=1, return_scores=True)[0][2], True
        )
        card = Path(run, "README.md").read_text()
        (block,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        with contextlib.chdir(run), contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, "card", "exec"), {})
        self.assertEqual(printed.getvalue().splitlines()[-1:], predictions[:1])
        with contextlib.redirect_stderr(io.StringIO()) as log, contextlib.redirect_stdout(io.StringIO()):
            fine_tune_t5.main([*words[:-4], "--eval_only", "--model_name_or_path", run, "--output_dir", f"{run}-again"])
        self.assertIn("--eval_method generate has the model write", log.getvalue())
        tables = [json.loads(Path(folder, "results.json").read_text())["tasks"] for folder in (run, f"{run}-again")]
        self.assertEqual(tables[1], tables[0])
        settings = json.loads(Path(f"{run}-again", "manifest.json").read_text())["settings"]
        self.assertEqual(settings["eval_method"], "score")

    def test_the_command_answers_as_the_evaluation_did(self):
        rows = write_rows(empty_folder() / "rows.jsonl", [{"input": f"film {i}", "output": "good"} for i in range(12)])
        run = empty_folder() / "run"
        words = ["--train_file", rows, "--validation_file", rows, "--output_dir", run, "--eval_method", "generate"]
        words += ["--generation_num_beams", 3, "--generation_max_length", 7, "--data_format", "jsonl"]
        predict = shlex.split(output_of_run(*words, settings=WITH_SCORES)[-3])
        answers = [json.loads(line)["prediction"] for line in cli_output(*predict[1:], "--use_cpu").splitlines()]
        (file,) = (run / "predictions").glob("*.jsonl")
        evaluated = [row["prediction"] for row in read_rows(file)]
        self.assertEqual(answers[: len(evaluated)], evaluated)

    @pytest.mark.slow
    def test_a_pre_trained_model_is_to_be_fine_tuned(self):
        run = empty_folder() / "run"
        flags = "--max_steps 1 --inputs_length 32 --per_device_train_batch_size 2 --use_cpu --disable_tqdm True"
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            pre_train_t5.main([*flags.split(), *SETTINGS[-2:], "--output_dir", str(run)])
        *_, headline, line = shown.getvalue().splitlines()
        self.assertEqual(headline, HEADLINE)
        words = shlex.split(line)
        self.assertEqual(words[:4], ["t5suite", "fine_tune", "--model_name_or_path", str(run)])
        file = write_rows(run.parent / "ROWS.jsonl", [{"input": f"film {i}", "output": "bad"} for i in range(8)])
        words[words.index("ROWS.jsonl")] = str(file)
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            fine_tune_t5.main([*SETTINGS[:-2], *words[2:], "--output_dir", f"{run}-tuned"])
        self.assertIn(HEADLINE, shown.getvalue())
        with exits_with(65, "a pre-training run"):
            cli_output("verify", run)

    def test_a_model_of_several_tasks_names_one(self):
        run = empty_folder() / "run"
        lines = output_of_run("--dataset_name", "entailment,sentiment", "--output_dir", run)
        model = f"--model_name_or_path {run} --dataset_name entailment"
        commands = [f"predict {model} --input ROWS.jsonl", f"serve {model}", f"report {run}"]
        self.assertEqual(lines[-3:], [f"  t5suite {command}" for command in commands])
        for line in lines[-3:]:
            with self.assertRaises(SystemExit), contextlib.redirect_stdout(io.StringIO()):
                cli_output(*shlex.split(line)[1:], "--help")  # an unknown flag is refused before the help

    def test_the_commands_name_the_weights_that_have_the_task_s_scores(self):
        run = empty_folder() / "run"
        words = ["--dataset_name", "entailment,sentiment", "--output_dir", run, "--select", "per_task"]
        lines = output_of_run(*words, settings=WITH_SCORES)
        model = f"--model_name_or_path {run}/best/entailment --dataset_name entailment"
        commands = [f"predict {model} --input ROWS.jsonl", f"serve {model}", f"report {run}"]
        self.assertEqual(lines[-3:], [f"  t5suite {command}" for command in commands])
        # The same folder after a run in which the task had no best step.
        manifest = json.loads((run / "manifest.json").read_text())
        manifest["best_per_task"] = {"sentiment": manifest["best_per_task"]["sentiment"]}
        (run / "manifest.json").write_text(json.dumps(manifest))
        for line in output_of_run(*words, settings=WITH_SCORES)[-3:-1]:
            self.assertIn(f"--model_name_or_path {run} ", line)

    @parameterized.parameters("generate", "score")
    def test_the_commands_of_a_task_with_functions_of_its_own_name_their_file_and_run(self, eval_method):
        """As in a new process: the functions are gone after the run."""
        folder = empty_folder()
        file = folder / "tasks.py"
        fields = FILMS | {"metric_names": ["accuracy", "loudness"]}
        file.write_text(
            "from t5suite.tasks.metrics import METRICS\n"
            "METRICS['loudness'] = lambda predictions, references, **_: 50.0\n"
            f"DATASET_VALS = {{'mine': {{'films': {fields!r}}}}}\n"
        )
        for split in ("train", "validation"):
            write_rows(folder / f"data/mine/films/{split}.jsonl", FILM_ROWS)
        words = [*SETTINGS, "--benchmark", "mine", "--dataset_name", "films", "--task_file", file, "--eval_method", eval_method,
                 "--data_dir", folder / "data", "--share_rows", "--output_dir", folder / "run"]  # fmt: skip
        words[words.index("--eval_strategy") + 1] = "epoch"
        with mock.patch.dict(METRICS), contextlib.redirect_stdout(io.StringIO()) as shown:
            fine_tune_t5.main(list(map(str, words)))
        predict, serve = (shlex.split(line)[1:] for line in shown.getvalue().splitlines()[-3:-1])
        flags = ["--benchmark", "mine", "--dataset_name", "films", "--task_file", str(file)]
        self.assertEqual(serve, ["serve", "--model_name_or_path", str(folder / "run"), *flags])
        predict[predict.index("ROWS.jsonl")] = str(folder / "data/mine/films/train.jsonl")
        with mock.patch.dict(METRICS):
            self.assertLen(cli_output(*predict, "--use_cpu").splitlines(), 12)

        card = (folder / "run/README.md").read_text()
        (command,) = re.findall(r"t5suite (predict .*) <<'ROWS'", card)
        blocks = [f"run_cli(*{shlex.split(command)[:-1] + [predict[predict.index('--input') + 1]]!r}, '--use_cpu')"]
        if eval_method == "score":
            blocks += re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        (folder / "run/tasks.py").write_bytes(file.read_bytes())  # the card says that it is needed
        for block in blocks:
            with contextlib.chdir(folder / "run"), contextlib.redirect_stdout(io.StringIO()), mock.patch.dict(METRICS):
                exec(compile(block, "card", "exec"), {"run_cli": run_cli})
        self.assertIn("`tasks.py` must be there", card)

    def test_the_commands_of_a_task_without_functions_of_its_own_do_without_its_file(self):
        folder = empty_folder()
        file = folder / "tasks.py"
        file.write_text(f"DATASET_VALS = {{'mine': {{'films': {FILMS!r}}}}}\n")
        for split in ("train", "validation"):
            write_rows(folder / f"data/mine/films/{split}.jsonl", FILM_ROWS)
        words = ["--benchmark", "mine", "--dataset_name", "films", "--task_file", file, "--data_dir", folder / "data"]
        lines = output_of_run(*words, "--share_rows", "--output_dir", folder / "run", settings=WITH_SCORES)
        file.unlink()
        predict, serve = (shlex.split(line)[1:] for line in lines[-3:-1])
        self.assertEqual(serve, ["serve", "--model_name_or_path", str(folder / "run")])
        predict[predict.index("ROWS.jsonl")] = str(folder / "data/mine/films/train.jsonl")
        self.assertLen(cli_output(*predict, "--use_cpu").splitlines(), 12)
        card = (folder / "run/README.md").read_text()
        self.assertIn("t5suite predict --model_name_or_path . --input", card)
        self.assertNotIn("must be there", card)

    def test_no_command_is_named_where_the_functions_of_a_task_are_those_of_a_data_class(self):
        """The message of `predict` and the card's Python name what works; as in a new process."""
        folder = empty_folder()
        (folder / "film_data.py").write_text(
            "from t5suite.tasks.metrics import METRICS\n"
            "METRICS['loudness'] = lambda predictions, references, **_: 50.0\n"
            "class Films:\n"
            f"    entry = {FILMS | {'metric_names': ['accuracy', 'loudness']}!r}\n"
            "    def __init__(self, path, config):\n"
            "        pass\n"
            "    def rows(self, split):\n"
            f"        return None if split == 'test' else {FILM_ROWS!r}\n"
        )
        rows = write_rows(folder / "rows.jsonl", FILM_ROWS)
        words = ["--data_class", "film_data:Films", "--share_rows", "--eval_method", "score", "--output_dir", "run"]
        with contextlib.chdir(folder):
            with mock.patch.dict(METRICS):
                lines = output_of_run(*words, settings=WITH_SCORES)
            self.assertNotIn(HEADLINE, lines)
            card = Path("run/README.md").read_text()
            self.assertNotIn("t5suite predict", card)
            predict = ["predict", "--model_name_or_path", "run", "--input", rows, "--use_cpu"]
            with exits_with(78, r"DATASET_VALS = {'own': {'films': \.\.\.}}, the task's entry in task.json"):
                cli_output(*predict)

            Path("tasks.py").write_text(
                "import json\nimport film_data\nDATASET_VALS = {'own': json.load(open('run/task.json'))['tasks']}\n"
            )
            flags = ["--benchmark", "own", "--dataset_name", "films", "--task_file", "tasks.py"]
            del sys.modules["film_data"]
            with mock.patch.dict(METRICS):
                self.assertLen(cli_output(*predict, *flags).splitlines(), 12)
        (block,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        shutil.copy(folder / "film_data.py", folder / "run")
        del sys.modules["film_data"]
        with (
            contextlib.chdir(folder / "run"),
            contextlib.redirect_stdout(io.StringIO()) as printed,
            mock.patch.dict(METRICS),
        ):
            exec(compile(block, "card", "exec"), {})
        self.assertIn(printed.getvalue().split()[-1], FILMS["labels"])

    def test_a_file_that_predict_does_not_read_as_training_does_is_not_named(self):
        file = empty_folder() / "alpaca_data.json"
        file.write_text(json.dumps([{"instruction": f"Say {i}.", "input": "", "output": "yes"} for i in range(12)]))
        run = empty_folder() / "run"
        lines = output_of_run("--data_format", "alpaca", "--train_file", file, "--output_dir", run)
        self.assertEndsWith(lines[-3], f"predict --model_name_or_path {run} --input ROWS.jsonl")

    def test_a_run_that_only_scores_names_nothing(self):
        model = save_model(empty_folder(), tasks=[load_task("mini", "sentiment")])
        words = ["--model_name_or_path", model, "--eval_only", "--max_eval_samples", "4", "--use_cpu"]
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            fine_tune_t5.main([*map(str, words), "--output_dir", str(empty_folder() / "run")])
        self.assertNotIn(HEADLINE, shown.getvalue())
