"""Metrics of Hugging Face's `evaluate`: the user's own run, see what the suite's metrics see, and are reported as they
are; code of others runs only when it is trusted."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import yaml
from absl.testing import parameterized
from hub_server import HubServer
from support import folder, later_wins

import fine_tune_t5
from t5suite import FineTuner, Task, load_task
from t5suite.tasks.metrics import METRICS
from t5suite.testing import (
    check_task,
    exits_with,
    make_task,
    run_cli,
    save_model,
    tiny_model,
    tiny_run,
    tiny_tokenizer,
    tiny_tuner,
    write_rows,
)

SCRIPT = """
import datasets
import evaluate
import numpy as np
import sklearn.metrics


class Own(evaluate.Metric):
    def _info(self):
        kind = datasets.Value("{kind}")
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="",
            features=datasets.Features({{"predictions": kind, "references": kind}}),
        )

    def _compute(self, predictions, references):
        {body}
"""
ACCURACY = 'return {"share": sklearn.metrics.accuracy_score(references, predictions)}'
SEVERAL = """return {
            "accuracy": sklearn.metrics.accuracy_score(references, predictions),
            "matthews_correlation": sklearn.metrics.matthews_corrcoef(references, predictions),
            "f1": sklearn.metrics.f1_score(references, predictions),
            "f1_macro": sklearn.metrics.f1_score(references, predictions, average="macro"),
        }"""
ENTRY = {
    "prefix": "", "text_column_name": "text", "label_column_name": "label", "labels": ["bad", "good"],
    "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
}  # fmt: skip
SMALL = """--max_train_samples 32 --max_eval_samples 12 --per_device_train_batch_size 8 --use_cpu --disable_tqdm True
    --eval_strategy steps --eval_steps 2 --logging_steps 1 --max_steps 2 --learning_rate 0.01
    --config_overrides d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2""".split()


def metric_folder(body: str, name: str = "own_metric", kind: str = "int32") -> str:
    """`evaluate:FOLDER` of a metric with this code."""
    place = folder() / name
    place.mkdir()
    (place / f"{name}.py").write_text(SCRIPT.format(body=body, kind=kind))
    return f"evaluate:{place}"


def task_with(*names, **changes) -> Task:
    return make_task("task", "test", **{**ENTRY, "metric_names": list(names), **changes})


WORDS = {1: "good", 0: "bad", -1: "neither"}


def scores_of(metric: str, predictions=(1,), references=(1,), selected: str = "share", **changes) -> dict[str, float]:
    """The values of a metric of a task with two labels; a prediction of -1 is no label."""
    rows = [{"text": "a", "label": label} for label in references]
    task = task_with(metric, metric_to_optimize=selected, **changes)
    return task.score(rows, [WORDS[number] for number in predictions])


def run(*flags):
    return fine_tune_t5.main(later_wins([*SMALL, "--output_dir", str(folder() / "run"), *flags]))


class ValuesTest(parameterized.TestCase):
    def test_values_are_reported_as_compute_returns_them(self):
        name = metric_folder(ACCURACY)
        scores = scores_of(name, [1, 0, -1, 1], [1, 0, 0, 0])
        self.assertEqual(scores, {"share": 0.5, "invalid_rate": 25.0})
        check_task(task_with(name, metric_to_optimize="share"), [{"text": "a", "label": 1}])

    def test_a_name_of_the_suite_is_told_apart(self):
        names = ["share", "accuracy", "mcc", "loss", "rouge", "a/b"]
        scores = scores_of(metric_folder(f"return dict.fromkeys({names}, 0.5)"))
        expected = ["share", "evaluate_accuracy", "evaluate_mcc", "evaluate_loss", "evaluate_rouge", "a_b"]
        self.assertEqual(list(scores), [*expected, "invalid_rate"])

    def test_what_is_no_number_is_left_out_and_named_once(self):
        body = (
            'return {"a": np.float32(0.5), "b": np.array(2), "counts": [1, 2], "text": "x", "none": None, "yes": True}'
        )
        name = metric_folder(body)
        with self.assertLogs("t5suite", "WARNING") as logged:
            scores = scores_of(name, selected="a")
        self.assertEqual(scores, {"a": 0.5, "b": 2.0, "invalid_rate": 0.0})
        self.assertIn("counts, text, none, yes", logged.output[0])
        with self.assertNoLogs("t5suite", "WARNING"):
            scores_of(name, selected="a")

    @parameterized.parameters(0, 1, 2)
    def test_they_agree_with_the_suites_metrics(self, seed):
        rng = np.random.default_rng(seed)
        references, predictions = rng.integers(0, 2, (2, 60)).tolist()
        scores = scores_of(metric_folder(SEVERAL), predictions, references, selected="evaluate_f1")
        self.assertEqual(scores.pop("invalid_rate"), 0.0)
        self.assertLen(scores, 4)
        for name, value in scores.items():
            points = METRICS[name.removeprefix("evaluate_")](predictions, references, num_classes=2)
            self.assertAlmostEqual(100 * value, points, places=9)

    def test_texts_are_given_as_texts(self):
        body = 'return {"same": float(np.mean([p == r for p, r in zip(predictions, references)]))}'
        task = task_with(metric_folder(body, kind="string"), labels=None, metric_to_optimize="same")
        rows = [{"text": "a", "label": "Yes."}, {"text": "b", "label": "no"}]
        self.assertEqual(task.score(rows, ["Yes.", "No"]), {"same": 0.5})


class TaskTest(parameterized.TestCase):
    def test_a_task_gives_class_ids_and_reports_the_values_beside_its_own(self):
        body = 'return {"seen": float(str((predictions, references)) == "([1, -1], [1, 0])")}'
        task = task_with("accuracy", metric_folder(body))
        rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
        scores = task.score(rows, ["good", "neither"])
        self.assertEqual(scores, {"accuracy": 50.0, "seen": 1.0, "invalid_rate": 50.0})

    def test_a_value_may_choose_checkpoints_and_average_is_the_suites(self):
        name = metric_folder(ACCURACY)
        chosen = task_with(name, metric_to_optimize="share")
        self.assertEqual(chosen.optimised({"share": 0.25, "invalid_rate": 1.0}), 0.25)
        both = task_with("accuracy", "f1", name, metric_to_optimize="average")
        self.assertEqual(both.optimised({"accuracy": 50.0, "f1": 70.0, "share": 0.5}), 60.0)
        with exits_with(78, "mean of the suite's metrics, but metric_names has none"):
            task_with(name, metric_to_optimize="average")

    def test_two_metrics_of_one_name_are_refused(self):
        task = task_with(metric_folder(ACCURACY), metric_folder(ACCURACY), metric_to_optimize="share")
        with exits_with(78, "two metrics 'share'"):
            task.score([{"text": "a", "label": 1}], ["good"])

    def test_a_saved_models_card_makes_no_code_run(self):
        directory, trace = folder(), folder() / "trace"
        body = f"open({str(trace)!r}, 'w'); return {{'share': 1.0}}"
        rows = [{"text": "a", "label": 1}]
        for names, scores in ((["accuracy"], {"accuracy": 100.0, "invalid_rate": 0.0}), ([], {})):
            task = task_with(*names, metric_folder(body), metric_to_optimize="share")
            save_model(directory, tasks=[task])
            tuner = FineTuner(directory, use_cpu=True, quiet=True)
            self.assertLen(tuner.predict(["a"]), 1)
            self.assertEqual(tuner.plan.tasks[0].score(rows, ["good"]), scores)
        self.assertFalse(trace.exists())


class RefusalTest(parameterized.TestCase):
    @parameterized.parameters(
        ("raise KeyError('no such thing')", r"own_metric.py:17\): KeyError: 'no such thing'"),
        ("return 0.5", "returned 0.5, not {name: number}"),
        ("return {'text': 'x'}", "returned no number"),
    )
    def test_a_metric_that_fails_is_named_with_its_line(self, body, message):
        name = metric_folder(body)
        with exits_with(78, message) as failure:
            scores_of(name)
        self.assertIn(name, failure.message)

    def test_a_script_that_cannot_be_loaded_is_named_with_its_line(self):
        for body, message in (
            ("return (", r"own_metric.py:17\)"),
            ("pass\nimport no_such_module_here", "no_such_module_here"),
        ):
            with exits_with(78, message):
                fine_tune_t5.main(["--metrics", metric_folder(body), "--use_cpu"])

    def test_a_folder_without_its_script_is_named(self):
        place = folder()
        (place / "other.py").write_text("")
        with exits_with(78, f"must be {place.name}.py in {place}"):
            scores_of(f"evaluate:{place}")
        with exits_with(78, "--metrics evaluate:./none_here: no folder ./none_here"):
            fine_tune_t5.main(["--metrics", "evaluate:./none_here", "--use_cpu"])

    def test_code_of_the_hub_needs_trust(self):
        with mock.patch("huggingface_hub.snapshot_download") as download:
            for name in ("evaluate:rouge", "evaluate:lab/own_metric"):
                with exits_with(78, "only with --trust_remote_code"):
                    scores_of(name)
        download.assert_not_called()

    @pytest.mark.slow
    def test_nothing_of_evaluate_is_imported_unless_it_is_used(self):
        program = (
            "import sys, t5suite, fine_tune_t5; t5suite.load_task('glue', 'rte'); print('evaluate' in sys.modules)"
        )
        command, root = [sys.executable, "-c", program], Path(fine_tune_t5.__file__).parent
        printed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        self.assertEqual(printed.strip(), "False")


def evaluated(data="mini/sentiment", model=None, **flags) -> dict[str, float]:
    """The scores of four rows by an untrained model; the metrics are tried on the targets first."""
    settings = {"eval_method": "score", "max_eval_samples": 4, "max_target_length": 8, **flags}
    tuner = tiny_tuner(model or tiny_model(), data, tokenizer=tiny_tokenizer(), **settings)
    (scores,) = tuner.evaluate()["tasks"].values()
    return scores


def lengths_of_targets(predictions, targets):
    return {"letters": torch.tensor(max(map(len, targets))), "answers": np.int64(len(predictions))}


def share_of_questions(predictions, targets, rows):
    return {"questions": 100 * sum(row["input"].endswith("?") for row in rows) / len(rows)}


def row_of_answers(number: int, num_answers: int) -> dict:
    """A row of ReCoRD with so many answers, all its own."""
    names = [f"{letter} {number}" for letter in "abcd"]
    texts = {"passage": "They came.", "query": "@placeholder came.", "entities": names}
    return {**texts, "answers": names[:num_answers], "idx": {"passage": 0, "query": number}}


class EvaluationTest(parameterized.TestCase):
    def test_what_a_function_returns_is_reported_beside_the_task_s_own(self):
        pairs = {"a?": "yes", "b?": "no", "c": "perhaps", "d?": "no"}
        rows = [{"input": text, "output": answer} for text, answer in pairs.items()]
        functions = [lengths_of_targets, share_of_questions]
        scores = evaluated({"validation": rows}, eval_method="generate", metrics=functions)
        self.assertEqual([*scores][-3:], ["letters", "answers", "questions"])
        self.assertContainsSubset(["exact_match", "rouge1"], scores)
        self.assertEqual([scores[name] for name in ("letters", "answers", "questions")], [len("perhaps"), 4, 75.0])

    @parameterized.parameters("score", "generate")
    def test_a_row_of_several_answers_stands_beside_each_of_them(self, method):
        """ReCoRD has a prediction for each answer of a row; a function with `rows` gets that row, of those drawn."""
        place = folder()
        rows = [row_of_answers(number, num_answers) for number, num_answers in enumerate((1, 3, 2, 1, 2, 3, 1, 2))]
        write_rows(place / "super_glue" / "record" / "validation.jsonl", rows)
        calls = []

        def own(predictions, targets, rows):
            queries = [row["idx"]["query"] for row in rows]
            self.assertLen(predictions, len(targets))
            calls.append(list(zip(queries, targets, strict=True)))
            return {"own": 50.0}

        flags = {"data_dir": str(place), "max_eval_samples": 4, "eval_method": method, "metrics": [own]}
        self.assertEqual(evaluated("super_glue/record", **flags)["own"], 50.0)
        drawn = {number for number, _ in calls[-1]}
        self.assertLen(drawn, 4)
        expected = [(number, answer) for number in sorted(drawn) for answer in rows[number]["answers"]]
        self.assertEqual(calls, [expected] * len(calls))

    @parameterized.parameters(
        (lambda predictions, targets: 50.0, "returned 50.0, not {name: number}"),
        (lambda predictions, targets: {"share": "half"}, "'share': 'half' is not a metric's name and number"),
        (lambda predictions, targets: {"a/b": 1.0}, "'a/b': 1.0 is not"),
        (lambda predictions, targets: {1: 1.0}, "1: 1.0 is not"),
        *[
            (lambda predictions, targets, name=name: {name: 1.0}, f"an evaluation has its own '{name}'.*another name")
            for name in ("loss", "average", "invalid_rate", "truncated_rate")
        ],
        (lambda predictions, targets: {"accuracy": 1.0}, "two metrics 'accuracy'"),
    )
    def test_what_is_no_metric_is_refused(self, function, message):
        with exits_with(78, message):
            evaluated(metrics=[function])

    def test_a_metric_selects_by_its_name_and_another_name_is_refused(self):
        for name in ("letters", "eval_letters", "accuracy", "loss"):
            self.assertEqual(evaluated(metrics=[lengths_of_targets], metric_for_best_model=name)["letters"], 8)
        with exits_with(78, "no metric 'leters'; did you mean letters"):
            evaluated(metrics=[lengths_of_targets], metric_for_best_model="leters")

    @parameterized.parameters((None, "loss"), ("letters", "letters"))
    def test_beside_no_metric_of_the_task_the_loss_selects_unless_a_flag_names_another(self, name, expected):
        rows = [{"text": f"Row {i}.", "label": ("bad", "good")[i % 2]} for i in range(8)]
        flags = {"text_column": "text", "target_column": "label", "labels": "bad,good"}
        run = tiny_run(
            data={"train": rows, "validation": rows}, **flags, metrics=["none", lengths_of_targets],
            metric_for_best_model=name, eval_strategy="steps", eval_steps=1,
        )  # fmt: skip
        manifest = json.loads((run.directory / "manifest.json").read_text())
        self.assertEqual([choice["by"] for choice in manifest["choices"]], [expected])
        for line in run.history:
            if "eval/average" in line:
                score = -line["eval/loss"] if name is None else line["eval/letters"]
                self.assertEqual(line["eval/average"], score)

    def test_a_flags_metric_sees_the_classes_and_is_reported(self):
        scores = evaluated(metrics=[metric_folder(ACCURACY)])
        self.assertEqual(100 * scores["share"], scores["accuracy"])

    @parameterized.parameters(
        ("raise ValueError('x')", "score", "compute.. failed"),
        ("assert min(predictions) >= 0; return {'share': 1.0}", "generate", "no label, which it gets as -1.*score"),
    )
    def test_a_broken_metric_is_refused_before_a_model_is_asked(self, body, method, message):
        model = tiny_model()
        model.register_forward_pre_hook(lambda *seen: self.fail("the model was asked"))
        with exits_with(78, message):
            evaluated(model=model, metrics=[metric_folder(body)], eval_method=method)

    def test_a_task_s_metric_is_tried_and_must_have_the_value_that_selects(self):
        entry = {**load_task("mini", "sentiment").entry, "metric_names": [metric_folder(ACCURACY)]}
        place = folder()
        flags = {"task_file": str(place / "tasks.yaml"), "benchmark": "my", "dataset_name": "sentiment"}
        flags |= {"data_dir": str(mini_rows())}
        for name in ("share", "shares"):
            content = {"my": {"sentiment": {**entry, "metric_to_optimize": name}}}
            (place / "tasks.yaml").write_text(yaml.safe_dump(content))
            if name == "share":
                self.assertBetween(evaluated(None, **flags)["share"], 0, 1)
                continue
            with exits_with(78, "no metric 'shares'; did you mean share"):
                evaluated(None, **flags)


@pytest.mark.slow
class RunTest(parameterized.TestCase):
    """Whole runs."""

    def test_a_flags_metric_is_scored_recorded_and_selects(self):
        directory, name = folder() / "run", metric_folder(SEVERAL)
        flags = ["--metrics", name, "--metric_for_best_model", "evaluate_f1", "--output_dir", str(directory)]
        results = run(*flags, "--eval_method", "score")
        scores = results["tasks"]["sentiment"]
        self.assertAlmostEqual(100 * scores["evaluate_accuracy"], scores["accuracy"])
        (described,) = json.loads((directory / "manifest.json").read_text())["settings"]["plug_ins"]["metrics"]
        self.assertEqual(described["name"], name)
        self.assertLen(described["sha256"], 64)

    def test_own_rows_keep_their_metrics_beside_it(self):
        place = folder()
        rows = "".join(json.dumps({"input": f"word {i}", "output": "yes"}) + "\n" for i in range(40))
        (place / "train.jsonl").write_text(rows)
        body = 'return {"letters": float(np.mean([len(p) for p in predictions]))}'
        name = metric_folder(body, kind="string")
        results = run("--data_format", "jsonl", "--train_file", str(place / "train.jsonl"), "--metrics", name)
        (scores,) = results["tasks"].values()
        self.assertContainsSubset(["exact_match", "rouge1", "letters"], scores)

    def test_a_task_files_metric_is_scored_and_tried_before_training(self):
        place = folder()
        entry = {**load_task("mini", "sentiment").entry, "metric_names": [metric_folder(ACCURACY)]}
        for chosen, message in (("share", None), ("shares", "no metric 'shares'.*share")):
            content = {"my": {"sentiment": {**entry, "metric_to_optimize": chosen}}}
            (place / "tasks.yaml").write_text(yaml.safe_dump(content))
            flags = ["--task_file", str(place / "tasks.yaml"), "--benchmark", "my", "--dataset_name", "sentiment"]
            flags += ["--data_dir", str(mini_rows())]
            if message is None:
                self.assertIn("share", run(*flags)["tasks"]["sentiment"])
            else:
                with exits_with(78, message):
                    run(*flags)

    def test_a_broken_metric_ends_the_run_before_training(self):
        directory = folder() / "run"
        with exits_with(78, "compute.. failed"):
            run("--metrics", metric_folder("raise ValueError('x')"), "--output_dir", str(directory))
        self.assertEqual(list(directory.glob("checkpoint-*")), [])

    def test_a_metric_that_takes_no_invalid_answer_says_so_before_training(self):
        directory = folder() / "run"
        with exits_with(78, "multiclass.*no label, which it gets as -1.*--eval_method score"):
            run("--metrics", metric_folder(SEVERAL), "--output_dir", str(directory))
        self.assertEqual(list(directory.glob("checkpoint-*")), [])

    def test_a_metric_of_the_hub_runs_when_it_is_trusted(self):
        script = SCRIPT.format(body=ACCURACY, kind="int32").encode()
        directory, command = folder() / "run", [sys.executable, str(Path(fine_tune_t5.__file__)), *SMALL]
        command += ["--output_dir", str(directory), "--metrics", "evaluate:lab/own_metric"]
        with HubServer() as hub:
            commit = hub.commit("space", "lab/own_metric", {"own_metric.py": script, "README.md": b""})
            environment = {**os.environ, **hub.environment(folder())}
            refused = subprocess.run(command, env=environment, capture_output=True, text=True)
            self.assertEqual((refused.returncode, hub.requests), (78, []))
            self.assertIn("--trust_remote_code", refused.stderr)
            missing = [*command, "--trust_remote_code", "--metrics", "evaluate:lab/own_metrc"]
            ended = subprocess.run(later_wins(missing), env=environment, capture_output=True, text=True)
            self.assertEqual(ended.returncode, 78, ended.stderr)
            self.assertIn("lab/own_metrc", ended.stderr.splitlines()[-1])
            ended = subprocess.run([*command, "--trust_remote_code"], env=environment, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("share", json.loads((directory / "results.json").read_text())["tasks"]["sentiment"])
        manifest = json.loads((directory / "manifest.json").read_text())
        self.assertEqual(manifest["hub"]["spaces"]["lab/own_metric"]["commit"], commit)
        (described,) = manifest["settings"]["plug_ins"]["metrics"]
        self.assertEqual(described["commit"], commit)


class LeftOutTest(parameterized.TestCase):
    """Metrics of your own code run only where they are named; the others of a model's run are said to be missing."""

    def note_of_score(self, model, rows, *flags) -> str:
        """What `t5suite score` says of a run's metrics that it leaves out."""
        answers = write_rows(folder() / "answers.jsonl", [{"prediction": "good"}] * 4)
        with contextlib.redirect_stderr(io.StringIO()) as notes:
            run_cli("score", "--model_name_or_path", model, "--rows", rows, "--predictions", answers, *flags)
        return notes.getvalue()

    def scores_of_command(self, note: str) -> dict:
        """The scores of the run that the command in a note makes."""
        command = shlex.split(re.search("t5suite (evaluate .*) does", note)[1])
        flags = [*command[1:], "--eval_only", "--use_cpu", "--output_dir", str(folder() / "scored")]
        (scores,) = fine_tune_t5.main(flags)["tasks"].values()
        return scores

    def warnings_with(self, text: str, log: str) -> list[str]:
        """The warnings that name something."""
        return [line for line in log.splitlines() if line.startswith("WARNING") and text in line]

    @parameterized.parameters("task_file", "data_config")
    @pytest.mark.slow
    def test_a_metric_of_a_task_s_entry(self, way):
        place, metric = folder(), metric_folder(ACCURACY)
        columns = {"task_file": ("text", "label"), "data_config": ("input", "output")}[way]
        rows = [dict(zip(columns, (f"a {word} day {i}", word))) for i in range(2) for word in ("good", "bad")]
        for name in ("my/days/train", "my/days/validation", "train/a", "val/a"):
            file = write_rows(place / f"{name}.jsonl", rows)
        metrics = ["accuracy", metric]
        if way == "task_file":
            tasks = {"my": {"days": {**ENTRY, "metric_names": metrics}}}
            (place / "tasks.yaml").write_text(yaml.safe_dump(tasks))
            flags = ["--task_file", str(place / "tasks.yaml"), "--benchmark", "my", "--data_dir", str(place)]
            flags += ["--dataset_name", "days"]
        else:
            config = {"name": "days", "labels": ["bad", "good"], "metrics": metrics}
            flags = ["--data_class", "JSONLines", "--data_path", str(place), "--data_config", json.dumps(config)]
        model = place / "run"
        self.assertIn("share", run(*flags, "--output_dir", str(model))["tasks"]["days"])
        again = ["--model_name_or_path", str(model), "--eval_only"]
        with contextlib.redirect_stderr(io.StringIO()) as log:
            run("--data_format", "jsonl", "--validation_file", str(file), *again)
        self.assertLen(self.warnings_with(f"--metrics {metric}", log.getvalue()), 1)
        with contextlib.redirect_stderr(io.StringIO()) as log:
            run(*flags, *again)
            scores = self.scores_of_command(self.note_of_score(model, file))
        self.assertEmpty(self.warnings_with(metric, log.getvalue()))
        self.assertAlmostEqual(100 * scores["share"], scores["accuracy"])

    def test_a_function_that_was_given_in_python_is_named_in_no_flag(self):
        rows = [{"text": f"a {word} day", "label": word} for word in ("good", "bad")] * 2
        metrics = ["accuracy", metric_folder(ACCURACY), lengths_of_targets]
        columns = dict(text_column="text", target_column="label", labels="bad,good")
        data = {"train": rows, "validation": rows}
        model = tiny_run(data=data, metrics=metrics, max_eval_samples=4, **columns).directory
        file = folder() / "my rows.csv"
        file.write_text(
            "".join(f"{row['text']};{row['label']}\n" for row in [{"text": "text", "label": "label"}, *rows])
        )
        note = self.note_of_score(model, file, "--delimiter", ";")
        with contextlib.redirect_stderr(io.StringIO()) as log:
            scores = self.scores_of_command(note)
        (warning,) = self.warnings_with("lengths_of_targets", log.getvalue())
        self.assertAlmostEqual(100 * scores["share"], scores["accuracy"])
        for message in (note, warning):
            self.assertIn(f"FineTuner(metrics=[...]) computes {__name__}:lengths_of_targets", message)
            self.assertNotRegex(message, r"--metrics \S*lengths_of_targets")


def mini_rows() -> Path:
    """A data directory with the rows of the bundled sentiment task, as `my/sentiment`."""
    place = folder() / "my" / "sentiment"
    place.mkdir(parents=True)
    for split in ("train", "validation"):
        lines = [json.dumps({"sentence": f"a {word} day {i}", "label": int(word == "good")})
                 for i in range(20) for word in ("good", "bad")]  # fmt: skip
        (place / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return place.parent.parent
