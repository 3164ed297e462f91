"""A model of the hub knows its task: its task.json is read, copied and kept as that of a folder is."""

import contextlib
import io
import json
import urllib.request
import uuid
from pathlib import Path
from unittest import mock

from absl.testing import parameterized
from hub_repositories import read_folder
from hub_server import Fault, HubServer, cut, failing, rate_limited
from support import folder
from tiny_predictor import answers, mini_rows, model_folder, random_model, rows_file

import fine_tune_t5
from t5suite import load_task
from t5suite.testing import (
    cli_output,
    exits_with,
    run_cli,
    save_model,
    served_model,
    tiny_run,
    tiny_tuner,
    write_rows,
)

ROW = mini_rows()[0]
READ_TEXT = "sentiment sentence: " + ROW["sentence"]


class HubTaskTest(parameterized.TestCase):
    """A model of mini/sentiment, in a folder and on the hub."""

    def setUp(self):
        super().setUp()
        self.hub = self.enter_context(HubServer())
        self.enter_context(self.hub.read_by_this_process(folder()))
        self.enter_context(mock.patch("time.sleep"))
        self.name = f"ada/model-{uuid.uuid4().hex}"  # a process looks a branch up once
        self.files = read_folder(Path(model_folder()))
        self.hub.commit("model", self.name, self.files)

    def test_predict_answers_as_from_the_folder(self):
        rows = rows_file(count=3)
        lines = answers("--include_inputs", rows=rows, model=self.name)
        self.assertEqual(lines[0]["inputs"], READ_TEXT)
        self.assertEqual(lines, answers("--include_inputs", rows=rows, model=model_folder()))

    def test_the_task_is_that_of_the_revision(self):
        """The main branch has another task, and a branch has none."""
        other = save_model(folder(), random_model(), tasks=[load_task("mini", "entailment")])
        commit = self.hub.commit("model", self.name, self.files)
        self.hub.commit("model", self.name, read_folder(other))
        del self.files["task.json"]
        self.hub.commit("model", self.name, self.files, branch="bare")
        row = rows_file(count=1)
        (line,) = answers("--include_inputs --model_revision", commit, rows=row, model=self.name)
        self.assertEqual(line["inputs"], READ_TEXT)
        (line,) = answers("--include_inputs --model_revision bare --text_column sentence", rows=row, model=self.name)
        self.assertEqual(line["inputs"], ROW["sentence"])

    def test_a_run_is_verified_with_the_task_of_the_commit_that_it_has_read(self):
        """The main branch has a task that cannot be read."""
        self.hub.commit("model", self.name, self.files, branch="tried")
        self.hub.commit("model", self.name, {**self.files, "task.json": b"{"})
        run = folder() / "run"
        flags = "--model_revision tried --benchmark mini --dataset_name sentiment --max_eval_samples 2 --use_cpu --eval_only"
        fine_tune_t5.main(["--model_name_or_path", self.name, *flags.split(), "--output_dir", str(run)])
        self.assertStartsWith(cli_output("verify", run), "equal: 2 of 2 answers")

    def test_a_task_that_no_flag_names_is_not_the_model_s_own_without_a_warning(self):
        other = save_model(folder(), random_model(), tasks=[load_task("mini", "entailment")])
        self.hub.commit("model", self.name, read_folder(other))
        self.assertRegex(
            self.log_of_scoring(),
            r"was trained on mini/entailment, but mini/sentiment .*give --benchmark mini --dataset_name entailment\n",
        )
        log = self.log_of_scoring("--benchmark", "mini", "--dataset_name", "entailment")
        self.assertIn("mini/entailment on 1 x cpu", log)
        self.assertNotIn("was trained on", log)

    def test_rows_of_your_own_are_not_read_otherwise_than_in_training_without_a_warning(self):
        rows = [{"input": f"film {i}", "output": "good"} for i in range(4)]
        file = write_rows(folder() / "rows.jsonl", rows)
        trained = tiny_run(data_format="jsonl", train_file=str(file), prefix="review: ", no_eval=True, max_steps=1)
        self.hub.commit("model", self.name, read_folder(trained.directory))
        warning = "this run does not use these settings of the model's task: prefix='review: '. Give those again"
        words = ["--data_format", "jsonl", "--validation_file", str(file)]
        self.assertIn(warning, self.log_of_scoring(*words))
        self.assertNotIn("does not use", self.log_of_scoring(*words, "--prefix", "review: "))
        with self.assertLogs("t5suite", "WARNING") as logs:
            tiny_tuner(self.name, {"validation": rows}, eval_only=True)
        self.assertIn(warning, logs.output[0])

    def test_lengths_that_are_not_the_model_s_own_give_a_warning(self):
        tasks = [load_task("mini", "sentiment")]
        other = save_model(folder(), random_model(), tasks=tasks, source_length=9, target_length=3)
        self.hub.commit("model", self.name, read_folder(other))
        flags = ["--max_source_length", "9", "--max_target_length", "3"]
        self.assertIn(f"give {' '.join(flags)}\n", self.log_of_scoring())
        self.assertIn(f"give {' '.join(flags[2:])}\n", self.log_of_scoring(*flags[:2]))
        self.assertNotIn("other lengths", self.log_of_scoring(*flags))

    def log_of_scoring(self, *words) -> str:
        """The log of a run of the script that scores the model."""
        model = ["--model_name_or_path", self.name, "--eval_only", "--max_eval_samples", "2", "--use_cpu"]
        with contextlib.redirect_stderr(io.StringIO()) as log:
            fine_tune_t5.main([*model, *words, "--output_dir", str(folder() / "run")])
        return log.getvalue()

    @parameterized.named_parameters(
        ("limit", rate_limited(0), r"\(task.json\): the hub limits the rate of requests"),
        ("error", failing(500), r"\(task.json\): the hub has an error of its own \(500"),
        ("transfer", cut(10), r"\(task.json\): the transfer broke"),
    )
    def test_a_task_that_the_hub_fails_to_give_is_not_taken_for_none(self, fault, message):
        self.hub.faults.append(Fault("task.json", fault))
        with exits_with(75, message):
            answers(rows=rows_file(count=1), model=self.name)

    def test_a_served_model_reads_its_tasks_columns(self):
        with served_model(self.name, "--use_cpu") as url:
            body = json.dumps({"rows": [ROW], "include_inputs": True}).encode()
            request = urllib.request.Request(f"{url}/predict", body, {"Content-Type": "application/json"})
            (answer,) = json.load(urllib.request.urlopen(request))["answers"]
        self.assertEqual(answer["inputs"], READ_TEXT)

    def test_a_fine_tuner_answers_as_from_the_folder(self):
        rows = list(mini_rows(count=3))
        folders, hubs = (tiny_tuner(model) for model in (model_folder(), self.name))
        self.assertEqual(repr(hubs.plan), repr(folders.plan))
        self.assertEqual(hubs.predict(rows, return_scores=True), folders.predict(rows, return_scores=True))

    def test_an_export_has_the_task(self):
        output = folder() / "exported"
        run_cli("export", "--model_name_or_path", self.name, "--output_dir", output)
        self.assertEqual((output / "task.json").read_bytes(), self.files["task.json"])

    def test_a_trimmed_model_keeps_the_task_and_its_words(self):
        """Though the text has none of them."""
        text = folder() / "text.txt"
        text.write_text("A lamp.\n")
        outputs = [folder() / "trimmed", folder() / "trimmed"]
        for model, output in zip((model_folder(), self.name), outputs, strict=True):
            run_cli("trim", "--model_name_or_path", model, "--text", text, "--output_dir", output)
        of_folder, of_hub = (read_folder(output) for output in outputs)
        for name in ("kept_ids.json", "task.json"):
            self.assertEqual(of_hub[name], of_folder[name])
