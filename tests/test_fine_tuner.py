"""`FineTuner` does what the script does, with models and rows in memory, too, and leaves the process as it was."""

import contextlib
import functools
import io
import json
import logging
import os
import random
import runpy
import shlex
import signal
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from absl.testing import parameterized
from accelerate import Accelerator
from datasets import ClassLabel, Dataset, Features, Value
from plug_in_modules import OwnT5, Reader, ReaderConfig
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Model,
    IntervalStrategy,
    T5ForSequenceClassification,
    T5Model,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import CallbackHandler
from transformers.utils import import_utils
from transformers.utils import logging as transformers_logging

import fine_tune_t5
from t5suite import Callback, FineTuner, load_task
from t5suite.testing import (
    exits_with,
    load_own_rows,
    make_task,
    read_rows,
    run_cli,
    save_model,
    tiny_model,
    tiny_run,
    tiny_tokenizer,
    tiny_tuner,
    write_rows,
)

SETTINGS = {
    "max_steps": 4, "per_device_train_batch_size": 8,
    "config_overrides": "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2", "eval_strategy": "steps",
    "eval_steps": 2, "logging_steps": 1, "disable_tqdm": True, "use_cpu": True,
}  # fmt: skip
MINI = {**SETTINGS, "max_train_samples": 32, "max_eval_samples": 8}
# For a run of which a test looks at the beginning, or at what it says of itself.
ONE_STEP = {
    "max_steps": 1, "max_train_samples": 8, "max_eval_samples": 2, "eval_strategy": "no", "save_strategy": "no",
    "load_best_model_at_end": False,
}  # fmt: skip
OWN = {**SETTINGS, "text_column": "text", "target_column": "label", "labels": "bad,good", "dataset_name": "reviews"}
# As fast, with an evaluation.
FAST_STEP = {**ONE_STEP, "eval_strategy": "epoch"}
# Targets that the tiny tokenizer can write.
WHOLE = {str: "fine", list: ["late"], float: 1.5}
ROWS = [{"text": f"It was {word} {i}.", "label": word, "id": i} for i in range(40) for word in ("bad", "good")]
# Parts of the names of metrics in which two equal runs differ.
OF_THE_MACHINE = ("second", "runtime", "mfu", "data_wait", "peak_memory")
# Written in every run, with nothing of its place and time in it.
FILES = ("results.json", "task.json", "config.json", "predictions/sentiment.validation.jsonl")


def folder() -> Path:
    return Path(tempfile.mkdtemp()) / "run"


CLASS_IN_SCRIPT = """
from transformers import T5ForConditionalGeneration
from t5suite import FineTuner
from t5suite.testing import tiny_model, tiny_tokenizer

class Mine(T5ForConditionalGeneration):
    pass

with open("{place}/starts", "a") as file:
    file.write(__name__ + chr(10))
if __name__ == "__main__":
    flags = dict(max_steps=1, max_train_samples=8, max_eval_samples=2, eval_strategy="no", save_strategy="no",
                 load_best_model_at_end=False, use_cpu=True, quiet=True, output_dir="{place}/run")
    FineTuner({model}, data="mini/sentiment", **flags).train()
"""


def tuner(model=None, data="mini/sentiment", **settings) -> FineTuner:
    given = MINI if isinstance(data, str) and data == "mini/sentiment" else OWN
    if model is not None:
        given = {name: value for name, value in given.items() if name != "config_overrides"}
    return FineTuner(model, data, quiet=True, **{**given, "output_dir": str(folder()), **settings})


def script(**settings) -> Path:
    given = {**MINI, "output_dir": str(folder()), **settings}
    fine_tune_t5.main([f"--{name}={value}" for name, value in given.items()])
    return Path(given["output_dir"])


def directory(made: FineTuner) -> Path:
    return Path(made.args.output_dir)


def formats_of_cuda(made: FineTuner) -> set[str]:
    """In which formats CUDA would multiply float32 matrices while the tuner answers."""
    formats = set()
    for module in made.model.modules():
        module.register_forward_pre_hook(lambda *_: formats.add(torch.backends.cuda.matmul.fp32_precision))
    made.predict("A joy.")
    return formats


def weights(made) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in made.model.state_dict().items()}


class EqualFiles(parameterized.TestCase):
    def assertSameRun(self, one: Path, other: Path, files=FILES, weights="model.safetensors"):
        for name in (*files, weights):
            self.assertEqual((one / name).read_bytes(), (other / name).read_bytes(), name)
        manifests = [json.loads((path / "manifest.json").read_text()) for path in (one, other)]
        for part in ("tasks", "mixing_rates", "missing_tasks", "model", "encoding", "data", "fingerprint", "marks"):
            self.assertEqual(manifests[0].get(part), manifests[1].get(part), part)


class SameAsTheScriptTest(EqualFiles):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.settings = {"dropout_rate": 0.5, "max_steps": 2}
        cls.script = script(**cls.settings)
        cls.tuner = tuner(**cls.settings)
        cls.results = cls.tuner.train()

    def test_files_and_weights_are_the_scripts_to_the_byte(self):
        self.assertSameRun(self.script, directory(self.tuner))

    def test_it_returns_what_results_json_holds(self):
        stored = json.loads((self.script / "results.json").read_text())
        self.assertEqual(self.results, stored)
        self.assertEqual(self.tuner.results, stored)
        self.assertEqual(self.tuner.evaluate(), stored)

    def test_a_finished_run_says_what_it_is_and_keeps_its_directory_and_its_settings(self):
        scores = self.results["tasks"]["sentiment"]
        shown = ", ".join(f"{name} {points:.2f}" for name, points in scores.items() if name != "notes")
        self.assertRegex(repr(self.tuner), rf"^<FineTuner T5\w+ \(.* on mini/sentiment, .*; sentiment: {shown}>$")
        with exits_with(78, "holds a run, which has its model already"):
            self.tuner.save(directory(self.tuner))
        with exits_with(78, "learning_rate cannot change now, only .*max_steps.*make another FineTuner"):
            self.tuner.train(max_steps=4, learning_rate=0.5)
        self.assertEqual(self.tuner.args.max_steps, 2)

    @parameterized.parameters("ten", 1)
    def test_a_length_that_is_refused_changes_nothing(self, max_steps):
        with exits_with(78, "max_steps"):
            self.tuner.train(max_steps=max_steps)
        self.assertEqual(self.tuner.args.max_steps, 2)
        self.assertEqual(self.tuner.train(), self.results)

    def test_training_on_all_rows_that_is_refused_changes_nothing(self):
        light = {name: value for name, value in OWN.items() if name not in ("eval_strategy", "eval_steps")}
        made = FineTuner(None, ROWS, **{**light, "max_steps": 1, "output_dir": str(folder()), "quiet": True})
        results = made.train()
        with exits_with(78, "holds another run"):
            made.train(valid=False)
        self.assertEqual(made.evaluate(), results)

    def test_history_has_the_lines_of_the_script(self):
        lines = [read_rows(self.script / "metrics.jsonl"), self.tuner.history]
        is_of_the_machine = lambda name: any(word in name for word in OF_THE_MACHINE)
        equal_parts = [[{name: value for name, value in line.items() if not is_of_the_machine(name)} for line in history]
                       for history in lines]  # fmt: skip
        self.assertEqual(equal_parts[0], equal_parts[1])
        self.assertEqual([line["step"] for line in self.tuner.history if "train/loss" in line], [1, 2])

    def test_predict_gives_what_evaluation_wrote(self):
        rows = self.tuner.trainer.eval_sets[0].rows
        wrote = [line["prediction"] for line in read_rows(self.script / "predictions/sentiment.validation.jsonl")]
        answers = self.tuner.predict([{"sentence": row["sentence"]} for row in rows])
        self.assertEqual(answers, wrote)
        self.assertEqual(self.tuner.predict([row["sentence"] for row in rows]), wrote)
        texts = [example.inputs for example in self.tuner.trainer.eval_sets[0].examples]
        self.assertEqual(self.tuner.predict(texts, raw=True), wrote)
        self.assertEqual(self.tuner.predict(rows[0]["sentence"]), wrote[0])

    @pytest.mark.slow
    def test_a_finished_run_gives_results_and_weights(self):
        again = tuner(output_dir=str(directory(self.tuner)), **self.settings)
        self.assertNotEqual(again.predict_labels("A joy."), self.tuner.predict_labels("A joy."))
        self.assertEqual(again.train(), self.results)
        self.assertEqual(again.predict_labels("A joy."), self.tuner.predict_labels("A joy."))
        self.assertIsNone(again.trainer)

    @pytest.mark.slow
    def test_a_saved_model_is_asked_at_once_and_the_trained_one_has_no_dropout_either(self):
        saved = self.tuner.save(folder())
        for other in (FineTuner(saved, use_cpu=True), FineTuner.load(saved, use_cpu=True)):
            self.assertEqual(other.predict("A joy.", num_beams=2), self.tuner.predict("A joy.", num_beams=2))
            self.assertEqual(other.predict_labels(["A joy."]), self.tuner.predict_labels(["A joy."]))
        self.assertEqual((saved / "task.json").read_bytes(), (self.script / "task.json").read_bytes())

    @pytest.mark.slow
    def test_a_run_is_made_longer(self):
        longer = tuner()
        longer.train()
        longer.train(max_steps=6)
        self.assertEqual(longer.trainer.state.global_step, 6)
        self.assertEqual(longer.history[-1]["step"], 6)
        with exits_with(78, "seed cannot change now"):
            longer.train(seed=3)

    @pytest.mark.slow
    def test_a_choice_says_how_many_answers_were_invalid_and_where_the_fewest_were(self):
        class Rates(TrainerCallback):
            def on_evaluate(self, args, state, control, **kwargs):
                state.log_history[-1]["eval/invalid_rate"] = {1: 90.0, 2: 10.0}[state.global_step]

        light = {"max_steps": 2, "eval_steps": 1, "max_train_samples": 8, "max_eval_samples": 4}
        made = tuner(data=ROWS, callbacks=Rates(), learning_rate=1e-9, **light)
        made.train()
        (choice,) = json.loads((directory(made) / "manifest.json").read_text())["choices"]
        rates = {"invalid_rate": 90.0, "fewest_invalid": {"step": 2, "invalid_rate": 10.0}}
        self.assertEqual(
            choice, {"task": None, "step": 1, "by": "accuracy", "equal_steps": [2], "all_equal": True, **rates}
        )

    @parameterized.parameters((True, {"eval_strategy": "steps", "eval_steps": 9}), (False, {}))
    @pytest.mark.slow
    def test_a_program_that_makes_its_run_longer_can_be_run_again(self, valid, evaluations):
        light = {name: value for name, value in MINI.items() if name not in ("eval_strategy", "eval_steps")}
        light |= {"max_train_samples": 8, "max_eval_samples": 2, "output_dir": str(folder()), "quiet": True}
        light |= {"data": "mini/sentiment", "max_steps": 2, **evaluations}
        first = FineTuner(**light)
        first.train(valid=valid)
        results = first.train(valid=valid, max_steps=3)
        again = FineTuner(**light)
        with self.assertLogs("t5suite", "WARNING") as logged:
            self.assertEqual(again.train(valid=valid), results)
        self.assertIn("max_steps 2 here, 3 there", "\n".join(logged.output))
        self.assertEqual(again.train(valid=valid, max_steps=3), results)
        self.assertIsNone(again.trainer)  # nothing was trained
        for settings in ({"max_steps": 1}, {"max_steps": 2, "seed": 5}):  # no earlier state of that run
            with exits_with(78, "holds another run"):
                FineTuner(**{**light, **settings}).train(valid=valid)


@pytest.mark.slow
class SameAsTheScriptInAllWaysTest(EqualFiles):
    @parameterized.parameters(
        ({"adapter": "lora", "lora_r": 2}, "adapter_model.safetensors"),
        ({"eval_method": "score", "gradient_accumulation_steps": 2}, "model.safetensors"),
        ({"optimizer": "adafactor", "freeze": "embeddings", "dropout_rate": 0.1}, "model.safetensors"),
        ({"no_eval": True, "eval_strategy": "no"}, "model.safetensors"),
        ({"config_name": "gpt2", "config_overrides": "n_embd=32,n_layer=1,n_head=2"}, "model.safetensors"),
    )
    def test_files_and_weights_are_the_scripts_to_the_byte(self, settings, file):
        made = tuner(**settings)
        made.train()
        files = [name for name in FILES if (directory(made) / name).exists()]
        self.assertIn("results.json", files)
        self.assertSameRun(script(**settings), directory(made), files, file)


class DataTest(EqualFiles):
    def test_answers_are_as_long_as_the_evaluation_s(self):
        other = tuner(generation_max_length=2)
        (short,) = other.predict(["A joy."], labels="none", return_scores=True)
        self.assertEqual(short, other.predict("A joy.", labels="none", return_scores=True, max_new_tokens=2))
        self.assertNotEqual(short, other.predict("A joy.", labels="none", return_scores=True, max_new_tokens=3))

    def written(self, rows=ROWS) -> str:
        path = Path(tempfile.mkdtemp()) / "reviews.jsonl"
        write_rows(path, rows)
        return str(path)

    @pytest.mark.slow
    def test_rows_in_memory_are_those_of_a_file(self):
        runs = []
        for data in (self.written(), ROWS, pd.DataFrame(ROWS)):
            made = tuner(data=data)
            made.train()
            runs.append(made)
        for made in runs[1:]:
            for name, value in weights(runs[0]).items():
                torch.testing.assert_close(made.model.state_dict()[name], value, rtol=0, atol=0)
            self.assertEqual(made.results, runs[0].results)
        self.assertEqual(runs[1].args.output_dir != runs[2].args.output_dir, True)
        in_its_directory = {"output_dir": str(directory(runs[1]))}
        self.assertEqual(tuner(data=ROWS, **in_its_directory).train(), runs[1].results)
        with exits_with(78, "has finished, and its train rows were others than those in memory now"):
            tuner(data=ROWS[:-2], **in_its_directory).train()
        self.assertEqual(runs[0].predict("It was bad 3."), runs[1].predict(pd.DataFrame(ROWS[6:7]))[0])

    def test_splits_are_named(self):
        parts = {"train": ROWS[:60], "dev": pd.DataFrame(ROWS[60:70]), "test": ROWS[70:]}
        made = tuner(data=parts)
        made.evaluate()
        self.assertEqual([len(s.rows) for s in made.trainer.eval_sets], [10])
        self.assertContainsSubset(["accuracy"], made.evaluate("test")["tasks"]["reviews.test"])
        files = tuner(data={"train": self.written(ROWS[:60]), "validation": self.written(ROWS[60:])})
        self.assertEqual(files.data_args.validation_file[-5:], "jsonl")

    def test_evaluate_scores_as_train_did_and_changes_no_later_answer_and_no_saved_task(self):
        def words(predictions, targets):
            return {"words": float(sum(len(prediction.split()) for prediction in predictions))}

        rows = [{"text": f"It was {i}.", "label": "good and bad and good and bad"} for i in range(8)]
        scored_rows = [{**row, "label": "good"} for row in rows]
        made = tuner(data={"train": rows, "validation": scored_rows}, labels=None, metrics=words, **FAST_STEP)
        results = made.train()
        answer = made.predict("It was 1.")
        self.assertEqual(made.evaluate(), results)
        self.assertEqual(made.predict("It was 1."), answer)
        self.assertEqual((made.save(folder()) / "task.json").read_bytes(), (directory(made) / "task.json").read_bytes())

    @parameterized.parameters("score", "generate")
    def test_a_tuner_that_has_not_trained_answers_as_it_is_scored(self, method):
        scored = []

        def keep(predictions, targets):
            scored.append(predictions)
            return {"number": float(len(predictions))}

        made = tuner(eval_method=method, metrics=keep, max_eval_samples=4)
        card = json.loads((made.save(folder()) / "task.json").read_text())
        self.assertEqual(card.get("scored_by_labels"), ["sentiment"] if method == "score" else None)
        answer = made.predict("A joy.")
        made.evaluate()
        self.assertEqual(made.predict("A joy."), answer)
        self.assertEqual(made.predict(made.trainer.eval_sets[0].rows), scored[-1])

    def test_other_rows_are_scored_as_the_model_s_own_were_and_written_if_a_flag_says_so(self):
        rows = {"train": ROWS[:60], "validation": ROWS[60:]}
        made = tuner(data=rows, eval_method="score", **{**FAST_STEP, "max_eval_samples": None})
        results = made.train()["tasks"]["reviews"]
        file = write_rows(directory(made).parent / "other.jsonl", ROWS[60:])
        settings = {"use_cpu": True, "quiet": True, "eval_only": True}

        again = FineTuner(directory(made), {"validation": file}, output_dir=str(folder()), **settings)
        with exits_with(78, "eval_only=True trains nothing"):
            again.train()
        self.assertEqual(again.evaluate()["tasks"], {"other": results})
        self.assertEqual(results["invalid_rate"], 0)
        settings["eval_method"] = "generate"
        written = FineTuner(directory(made), {"validation": file}, output_dir=str(folder()), **settings)
        with self.assertLogs("t5suite", "WARNING") as log:
            (scores,) = written.evaluate()["tasks"].values()
        self.assertEqual(scores["invalid_rate"], 100)  # one update teaches no label
        self.assertIn("scored with --eval_method score; here it writes its answers", "".join(log.output))

    @parameterized.parameters(True, False)
    def test_a_model_is_scored_with_the_lengths_of_its_training_where_no_flag_gives_others(self, eval_only):
        task = load_task("mini", "similarity")
        model = str(save_model(folder(), tasks=[task], source_length=9, target_length=2))
        settings = {"eval_method": "loss", "eval_only": eval_only, "max_eval_samples": 8, "use_cpu": True}

        def losses(**flags):
            made = FineTuner(model, "mini/similarity", quiet=True, output_dir=str(folder()), **settings, **flags)
            return made.evaluate()["tasks"]

        trained = losses(max_source_length=9, max_target_length=2)
        self.assertNotEqual(losses(max_source_length=512, max_target_length=2), trained)
        self.assertNotEqual(losses(max_source_length=9, max_target_length=512), trained)
        self.assertEqual(losses(), trained)
        if eval_only:
            place = folder()
            words = [f"--{name}={value}" for name, value in settings.items()]
            results = fine_tune_t5.main([f"--model_name_or_path={model}", f"--output_dir={place}", *words])
            self.assertEqual(results["tasks"], trained)
            noted = json.loads((place / "manifest.json").read_text())["settings"]
            self.assertEqual((noted["max_source_length"], noted["max_target_length"]), (9, 2))

    def test_a_split_that_has_no_rows_is_not_scored_in_silence(self):
        for settings in ({"no_eval": True, "eval_strategy": "no"}, {"eval_strategy": "no"}):
            made = tuner(data={"train": ROWS[:60]}, **settings)
            with exits_with(78, "own/reviews: no test rows, so nothing to predict$"):
                made.evaluate("test")
            with exits_with(78, "own/reviews: no validation rows, .*none are held out.*with --validation_file"):
                made.evaluate()
        made = tuner(data={"train": ROWS[:60], "validation": ROWS[60:]})
        with exits_with(78, "own/reviews: no test rows, .*without --predict_only .split='test'. validation is scored"):
            made.evaluate("test")
        with exits_with(78, "own/reviews has no validation rows; .*split='test'"):
            tuner(data={"train": ROWS[:60], "test": ROWS[60:70]}, eval_strategy="no").evaluate()

    def test_a_task_of_training_rows_alone_is_not_sent_from_one_split_to_the_other(self):
        place = folder()
        place.mkdir()
        entry = {"prefix": "", "text_column_name": "text", "label_column_name": "label", "labels": ["bad", "good"],
                 "metric_names": ["accuracy"], "metric_to_optimize": "accuracy", "splits": {"train": "train"}}  # fmt: skip
        (place / "tasks.yaml").write_text(json.dumps({"shop": {"reviews": entry}}))
        made = FineTuner(None, "shop/reviews", task_file=str(place / "tasks.yaml"), use_cpu=True, quiet=True)
        with exits_with(78, "shop/reviews: no test rows, so nothing to predict$"):
            made.evaluate("test")
        with exits_with(78, "shop/reviews: no validation or test rows, .*splits"):
            made.evaluate()

    @parameterized.parameters(("super_glue/axb", "validation", "test"), ("squad/squad", "test", "validation"))
    def test_a_file_for_a_split_that_no_task_has_is_refused(self, data, role, other_role):
        name = {f"{role}_file": self.written(ROWS)}
        with exits_with(78, f"has no {role} split, so the file would not be read; give it as --{other_role}_file"):
            FineTuner(None, data, use_cpu=True, **name)

    @parameterized.parameters((["bad", "good"],), (["1", "0"],))
    def test_a_datasets_label_names_are_taken(self, names):
        features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
        rows = Dataset.from_list([{**row, "label": int(row["label"] == "good")} for row in ROWS]).remove_columns("id")
        columns = {"text_column": "text", "target_column": "label"}
        task, read_again = load_own_rows(rows.cast(features), no_eval=True, **columns)
        self.assertEqual(task.label_words, names)
        targets = [task.examples(row)[0].targets for row in read_again]
        self.assertEqual(targets, [names[row["label"] == "good"] for row in ROWS])
        in_another_order = {"labels": names[::-1], "no_eval": True, **columns}
        task, read_again = load_own_rows(rows.cast(features), **in_another_order)
        self.assertEqual([task.examples(row)[0].targets for row in read_again], targets)

        config = Path(tempfile.mkdtemp()) / "reviews.yaml"
        config.write_text(
            json.dumps({"text_column": "text", "target_column": "label", "labels": ",".join(names[::-1])})
        )
        task, read_again = load_own_rows(rows.cast(features), config=str(config), no_eval=True)
        self.assertEqual(task.label_words, names[::-1])
        self.assertEqual([task.examples(row)[0].targets for row in read_again], targets)
        of_model = {"model_name_or_path": str(save_model(folder(), tasks=[task])), "eval_only": True}
        for more in ({}, {"metrics": ["my_metrics:length_match"]}):  # a function is added to the model's own metrics
            splits = {"validation": rows.cast(features)}
            task, read_again = load_own_rows(splits, "validation", **of_model, **more)
            self.assertEqual(task.label_words, names[::-1])
            self.assertEqual([task.examples(row)[0].targets for row in read_again], targets)

    def test_flags_that_own_rows_leave_without_effect_are_named(self):
        idle = {"data_dir": tempfile.mkdtemp(), "data_revision": "main"}
        with self.assertLogs("t5suite", "WARNING") as logs:
            load_own_rows(ROWS, text_column="text", target_column="label", no_eval=True, **idle)
        for name, reason in (("data_dir", "rows come from the files"), ("data_revision", "do not come from the hub")):
            self.assertRegex("\n".join(logs.output), f"--{name} has no effect: .*{reason}")

    def test_a_column_of_a_table_may_be_called_features(self):
        frame = pd.DataFrame({"features": ["a", "b"], "mark": ["x", "y"]})
        rows = load_own_rows(frame, text_column="features", target_column="mark", no_eval=True).rows
        self.assertEqual([row["features"] for row in rows], ["a", "b"])

    def test_cells_without_a_value_are_none_and_what_holds_no_rows_is_named(self):
        columns = {"text_column": "text", "target_column": "n", "no_eval": True}
        frame = pd.DataFrame({"text": ["a", "b"], "n": [1.5, float("nan")]})
        messages = []
        for rows in (frame, [{"text": "a", "n": 1.5}, {"text": "b", "n": None}]):
            with exits_with(65) as failure:
                load_own_rows(rows, **columns)
            messages.append(failure.message)
        self.assertEqual(messages[0], messages[1])
        self.assertEqual(load_own_rows(frame[:1], **columns).rows, [{"text": "a", "n": 1.5}])
        row = {"text": "a", "n": np.int64(3)}
        (read_again,) = load_own_rows([row], **columns).rows
        self.assertEqual((read_again["n"], type(read_again["n"])), (3, int))
        for rows, message in ((7, "int holds no rows"), ([], "no rows"), (["a"], "row 0 is 'a', not a dict")):
            with exits_with(65, message):
                FineTuner(None, rows, **SETTINGS)

    def test_an_empty_cell_of_a_table_s_text_is_that_of_a_csv_file(self):
        place = Path(tempfile.mkdtemp()) / "rows.csv"
        place.write_text("title,text,label\nA,Fine.,good\nB,,bad\n,Bad.,bad\n")
        columns = {"text_column": "title,text", "target_column": "label", "labels": "bad,good", "no_eval": True}
        frame = pd.read_csv(place)
        self.assertTrue(frame.text.isna().any())
        expected = load_own_rows(place, **columns).rows
        for table in (frame, frame.to_dict("records"), datasets.Dataset.from_pandas(frame)):
            self.assertEqual(load_own_rows(table, **columns).rows, expected)
        columns["text_column"] = "text,age"
        frame["age"] = [1.5, float("nan"), 3.0]
        self.assertEqual([row["age"] for row in load_own_rows(frame, **columns).rows], ["1.5", "", "3.0"])

    def test_a_table_with_an_empty_cell_is_answered_as_a_file_is(self):
        run = tiny_run(benchmark="mini", dataset_name="entailment", max_steps=1).directory
        tuner = FineTuner(run, use_cpu=True, quiet=True)
        frame = pd.DataFrame({"premise": ["It rains.", None], "hypothesis": [float("nan"), "It is wet."]})
        expected = tuner.predict(frame.fillna("").to_dict("records"))
        self.assertEqual(tuner.predict(frame), expected)
        self.assertEqual(tuner.predict(frame.iloc[0].to_dict()), expected[0])


class TalkingRun:
    """A quiet run of two steps in which everything is a user's own; all that it prints."""

    def __init__(self):
        self.num_batches = self.num_steps = 0
        run = self

        def transform(batch):
            run.num_batches += 1
            return batch

        def target_tokens(outputs, batch):
            return {"target_tokens": (batch["labels"] != -100).sum(1).float()}

        def never_short(predictions, targets):
            print("scored, says the user")
            return {"never_short": 100.0 * sum(len(p) >= len(t) for p, t in zip(predictions, targets)) / len(targets)}

        class Counting(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                run.num_steps += 1

            def on_train_end(self, args, state, control, **kwargs):
                print("trained, says the user")

        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            self.tuner = tuner(batch_transform=transform, batch_metrics=target_tokens, metrics=never_short,
                               callbacks=Counting(), metric_for_best_model="never_short", max_steps=2)  # fmt: skip
            self.results = self.tuner.train()
            self.tuner.train()  # a finished run prints its table
            self.tuner.summary()
        self.lines = output.getvalue().splitlines()


talking_run = functools.cache(TalkingRun)


class QuietTest(parameterized.TestCase):
    def test_only_what_the_user_s_own_code_prints_is_shown(self):
        self.assertEqual(set(talking_run().lines), {"trained, says the user", "scored, says the user"})


class PlugInTest(parameterized.TestCase):
    def test_objects_take_part_in_a_run(self):
        run = talking_run()
        self.assertIn("never_short", run.results["tasks"]["sentiment"])
        self.assertEqual(run.num_steps, 2)
        self.assertGreaterEqual(run.num_batches, 2)
        self.assertIn("train/target_tokens", {name for line in run.tuner.history for name in line})
        manifest = json.loads((directory(run.tuner) / "manifest.json").read_text())
        self.assertIn("never_short", json.dumps(manifest["settings"]))

    def test_the_final_evaluation_of_a_run_alone_is_final(self):
        calls = []

        class Final(Callback):
            def on_final(self, args, state, control, *, report, eval_sets, **kwargs):
                calls.append(eval_sets[0].name)

        made = tuner(callbacks=Final(), **FAST_STEP)
        made.evaluate()
        self.assertEmpty(calls)
        self.assertFalse(directory(made).exists())
        made.train()
        self.assertEqual(calls, ["sentiment"])

    @parameterized.parameters(
        (["accuracy"], "'accuracy'"),
        (["mine", "mine"], "'mine'"),
    )
    def test_two_metrics_of_one_name_are_refused_before_training(self, names, shown):
        functions = [lambda predictions, targets, name=name: {name: 1.0} for name in names]
        made = tuner(metrics=functions)
        with exits_with(78, f"there are two metrics {shown}"):
            made.evaluate()
        self.assertIsNone(made.trainer)

    def test_what_is_no_plug_in_is_named(self):
        with exits_with(78, "metrics: int is not a function"):
            tuner(metrics=[3])
        with exits_with(78, "batch_transform: one function, not 2"):
            tuner(batch_transform=[len, len])
        with exits_with(78, r"callbacks\[1\]: a int, which is not a transformers.TrainerCallback"):
            tuner(callbacks=[Ends(), 3])
        with exits_with(78, r"callbacks\[1\]: there are two callbacks of class Ends"):
            tuner(callbacks=[Ends(), Ends])


class InputsTest(parameterized.TestCase):
    def flags_of(self, *inputs, **settings) -> dict:
        """The settings of a tuner made of these, by name."""
        made = FineTuner(*inputs, **{**SETTINGS, "output_dir": str(folder()), **settings})
        return {**vars(made.model_args), **vars(made.data_args), **vars(made.arguments.formats)}

    def test_a_model_stands_for_flags(self):
        preset = self.flags_of("t5-v1_1-base")
        self.assertEqual((preset["config_name"], preset["model_name_or_path"]), ("t5-v1_1-base", None))
        own = self.flags_of("plug_in_modules:OwnT5")
        self.assertEqual(own["model_class"], "plug_in_modules:OwnT5")
        with mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"), exits_with(78, "t5-small"):
            FineTuner("t5-small", use_cpu=True)  # the hub's, with its weights; the preset of this name needs no hub

    @parameterized.parameters(
        ("glue/cola,rte", {"benchmark": "glue", "dataset_name": "cola,rte"}),
        ("super_glue/all", {"benchmark": "super_glue", "dataset_name": "all"}),
    )
    def test_data_stand_for_flags(self, data, expected):
        self.assertContainsSubset(expected.items(), self.flags_of(None, data).items())

    def test_a_folder_s_files_of_one_format_stand_for_flags_and_others_are_named(self):
        place = Path(tempfile.mkdtemp())
        columns = {"text_column": "text", "target_column": "label"}
        with exits_with(78, "has no file of rows; give data_format"):
            FineTuner(None, place, **columns)
        (place / "train").mkdir()
        pd.DataFrame(ROWS).to_csv(place / "train" / "rows.csv.gz", index=False)
        (place / "README").write_text("Two words.")
        (place / "backup").mkdir()
        write_rows(place / "backup" / "old.jsonl", ROWS)  # no split's folder: no rows are read from it
        expected = {"data_format": "csv", "train_dir": str(place), "train_file": None}
        self.assertContainsSubset(expected.items(), self.flags_of(None, place, **columns).items())
        write_rows(place / "more.jsonl", ROWS)
        with exits_with(78, "has files of csv and jsonl; give data_format"):
            FineTuner(None, place, **columns)
        (place / "rows.book").write_text("")
        with exits_with(78, "rows.book': give data_format"):
            FineTuner(None, place / "rows.book", **columns)

    def test_files_by_split_stand_for_flags(self):
        files = {}
        for split in ("train", "valid"):
            files[split] = f"{tempfile.mkdtemp()}/{split}.csv"
            pd.DataFrame(ROWS).to_csv(files[split], index=False)
        columns = {"text_column": "text", "target_column": "label"}
        flags = self.flags_of(None, files, **columns)
        expected = {"data_format": "csv", "train_file": files["train"], "validation_file": files["valid"]}
        self.assertContainsSubset(expected.items(), flags.items())
        unnamed = {split: str(Path(file).rename(Path(file).with_suffix(".dat"))) for split, file in files.items()}
        with exits_with(78, r"train.dat': give data_format"):
            self.flags_of(None, unnamed, **columns)
        flags = self.flags_of(None, unnamed, data_format="csv", **columns)
        expected = {"data_format": "csv", "train_file": unnamed["train"], "validation_file": unnamed["valid"]}
        self.assertContainsSubset(expected.items(), flags.items())

    @parameterized.parameters("glue", "glue/rte/validation", "own/reviews/train/v1", "reviews/train.csv", "a//b")
    def test_data_that_are_no_file_are_a_benchmark_and_a_task_with_one_slash_between_them(self, data):
        message = f"data '{data}': no such file or folder, and no benchmark/task such as 'glue/rte'"
        with exits_with(78, f"^{message}$"):
            FineTuner(None, data)

    @parameterized.parameters(
        (None, "rewiews.csv", {}, "'rewiews.csv': no such file or folder"),
        (None, {"train": "a.csv", "validation": [{"a": 1}]}, {}, "train in files, other splits in memory"),
        (None, {"trian": ROWS}, {}, "no split 'trian'; did you mean train"),
        (None, {"dev": ROWS, "validation": ROWS}, {}, "two of dev, validation"),
        (None, "glue/rte", {"benchmark": "mini"}, "benchmark is given twice: 'glue' and 'mini'"),
        ("t5-small", None, {"model_name_or_path": "x"}, "model_name_or_path is given twice"),
        (None, None, {"dry_run": True}, "dry_run=True: it is a flag of the script; in Python tuner.summary"),
        (None, None, {"config": '{"predict_only": true}'}, "predict_only=True: it is a flag of the script"),
        (None, None, {"config": '{"eval_checkpoints": "all"}'}, "eval_checkpoints='all': it is a flag of the script"),
    )
    def test_what_stands_for_nothing_is_named(self, model, data, flags, message):
        with exits_with(78, message):
            FineTuner(model, data, **flags)

    @parameterized.parameters(
        (["好评", "差评"], {}, "'好评' and '差评' have the same tokens in the vocabulary of T5Tokenizer"),
        (["好评", "差评"], {"eval_method": "score"}, "'好评' and '差评' have the same tokens"),
        (["½", "good"], {}, "T5Tokenizer .* writes the label '½' as '<unk>'"),
        (["very  good", "bad"], {}, "T5Tokenizer .* writes the label 'very  good' as 'very good'"),
        (["a good film", "a good song"], {"max_target_length": 3}, "limit of 3; raise --max_target_length"),
        (["a good film", "a good song"], {"max_output_tokens": [3]}, "limit of 3; raise the task's max_output_tokens"),
    )
    def test_label_words_that_the_tokenizer_cannot_write_or_tell_apart_are_refused(self, labels, flags, message):
        rows = [{"text": f"Row {i}.", "label": labels[i % 2]} for i in range(8)]
        with exits_with(78, message):
            tuner(None, rows, labels=labels, **ONE_STEP, **flags).train()

    @parameterized.parameters(
        (" positive", "exact_match", "'positive'; .* 75.00 exact_match"),
        ("two  words", "exact_match", "'two words'; .* 75.00 exact_match"),
        ("a\nb", "exact_match,squad_f1", "'a b'; 1 of the first 4 .* get 75.00 exact_match"),
        (["late", "½y"], "micro_f1", "'late, <unk>y'; .* 80.00 micro_f1"),
        ("½y", "rouge", "'<unk>y'; .* 91.67 rouge1, "),
    )  # fmt: skip
    def test_a_target_that_a_perfect_model_writes_as_a_wrong_text_is_named_with_its_place(self, target, metrics, text):
        """With the score of such a model: three rows of four are right; of five labels, four."""
        (line,) = self._lines_on_targets([target, WHOLE[type(target)]], metrics)
        self.assertRegex(line, f"rows.jsonl:3: .* as {text}")

    @parameterized.parameters(
        ("late", "exact_match"), (["late", "torn"], "micro_f1"), (0.25, "pearson"),
        ("Ann went.\nBob stayed.", "rouge"), ("Ann went.\nBob stayed at home.", "bleu"), ("New  York", "squad"),
        ("New  York", "chrf"), ('{"a":  1}', "json_match"), (" late", "none"),
    )  # fmt: skip
    def test_a_target_whose_other_text_is_right_by_the_task_s_metrics_is_not(self, target, metrics):
        """On T5, every set of summaries with line breaks would be named."""
        self.assertEmpty(self._lines_on_targets([target, WHOLE[type(target)]], metrics))

    def test_the_first_target_that_costs_points_is_named_and_not_one_that_only_changes(self):
        lines = self._lines_on_targets(["½y", "a\nb"], "rouge")
        self.assertLen(lines, 1)
        self.assertRegex(lines[0], "rows.jsonl:3: ")

    @parameterized.parameters("rouge,chrf", "none", "exact_match")
    def test_free_text_whose_words_change_is_named_whatever_the_metrics(self, metrics):
        """T5's tokenizers put a space behind an added token: `Rhô ne`. A model can write nothing else."""
        (line,) = self._lines_on_targets(["Old Rhône wine", "fine"], metrics, add_tokens="ô")
        self.assertRegex(line, "rows.jsonl:3: .* 'Old Rhône wine' as 'Old Rhô ne wine'; 1 of the first 4")
        self.assertEqual("75.00 exact_match" in line, metrics == "exact_match")

    @parameterized.parameters(("Rhône", None), ("Rhône", "ô"), ("a € b", None))
    def test_added_tokens_are_not_advised_for_letters_in_words(self, target, tokens):
        (line,) = self._lines_on_targets([target, "fine"], "rouge", add_tokens=tokens)
        self.assertNotIn("--add_tokens", line)
        self.assertIn("ByT5", line)

    def test_added_tokens_that_are_advised_mend_the_targets(self):
        targets = ["€ 5", "fine"]
        (line,) = self._lines_on_targets(targets, "rouge")
        _, _, tokens = line.partition("--add_tokens ")
        (tokens,) = shlex.split(tokens)
        self.assertEqual(tokens, "€")
        self.assertEmpty(self._lines_on_targets(targets, "rouge", add_tokens=tokens))

    def test_the_place_where_a_long_target_changes_is_shown_whole(self):
        (line,) = self._lines_on_targets(["good " * 40 + "½y " + "film " * 40, "fine"], "exact_match")
        self.assertRegex(line, r"target \.\.\.'[a-z ]+½y[a-z ]+'\.\.\. as \.\.\.'[a-z ]+<unk>y[a-z ]+'\.\.\.")

    def test_the_user_s_own_metrics_are_not_called_on_training_rows(self):
        metric = mock.Mock(return_value=0.0)
        with mock.patch.dict("t5suite.tasks.metrics.METRICS", {"loudness": metric}):
            self.assertEmpty(self._lines_on_targets(["a\nb", "whole"], "loudness"))
        metric.assert_not_called()

    def test_training_rows_may_lack_the_column_that_joins_rows_for_their_scores(self):
        """No score can be computed then, and the run goes on."""
        entry = {"prefix": "", "text_column_name": "text", "label_column_name": "label", "labels": None,
                 "metric_names": ["squad"], "metric_to_optimize": "average", "references_by": "question"}  # fmt: skip
        root = folder()
        rows = [{"text": f"Row {i}.", "label": "½y"} for i in range(4)]
        write_rows(root / "train.jsonl", rows)
        (root / "tasks.yaml").write_text(json.dumps({"mine": {"answers": entry}}))
        write_rows(root / "validation.jsonl", [{**row, "question": row["text"]} for row in rows])
        files = {f"{split}_file": str(root / f"{split}.jsonl") for split in ("train", "validation")}
        task = {"benchmark": "mine", "dataset_name": "answers", "task_file": str(root / "tasks.yaml")}
        FineTuner(None, None, **SETTINGS, **task, **files, output_dir=str(folder())).train()

    def test_labels_of_scored_sets_that_no_training_row_has_are_named(self):
        columns = {"text_column": "text", "target_column": "faults", "metrics": "micro_f1"}
        cells_of_split = {"train": ["late, torn", "late"], "validation": ["late", "Late, rude", "torn", "Late"]}
        files = {}
        for split, cells in cells_of_split.items():
            rows = [{"text": f"{split} row {i}.", "faults": cell} for i, cell in enumerate(cells)]
            files[split] = str(write_rows(folder() / f"{split}.jsonl", rows))
        trained = tiny_tuner(data=files, max_steps=1, **columns)
        with self.assertLogs("t5suite", "WARNING") as logs_of_training:
            trained.train()
        with self.assertLogs("t5suite", "WARNING") as logs_of_evaluation:
            tiny_tuner(trained.args.output_dir, {"validation": files["validation"]}, **columns).evaluate()
        words = ["score", "--model_name_or_path", trained.args.output_dir, "--rows", files["validation"]]
        answers = write_rows(folder() / "answers.jsonl", ["late"] * 4)
        with contextlib.redirect_stderr(io.StringIO()) as notes_of_score:
            run_cli(*words, "--predictions", answers)
        late = r"'Late' \(2 rows, first: \S*validation.jsonl:2; did you mean 'late'\?\)"
        rude = r"'rude' \(1 rows, first: \S*validation.jsonl:2\)$"
        warnings = [*logs_of_training.output, *logs_of_evaluation.output, notes_of_score.getvalue()]
        lines = [line for line in "\n".join(warnings).splitlines() if "no row of" in line]
        self.assertLen(lines, 3)
        for line in lines:
            self.assertRegex(line, rf"no row of .* training has .*: {late}, {rude}")
        with self.assertLogs("t5suite", "WARNING") as logs:
            tiny_tuner(trained.args.output_dir, {"validation": files["train"]}, **columns).evaluate()
        self.assertNotIn("no row of", "".join(logs.output))

    def _lines_on_targets(self, targets: list, metrics: str, **flags) -> list[str]:
        """What a run logs of targets that it cannot write, of which the first is in the third row of four."""
        path = folder() / "rows.jsonl"
        rare, usual = targets
        write_rows(path, [{"text": f"Row {i}.", "label": rare if i == 2 else usual} for i in range(4)])
        run = tuner(None, str(path), labels=None, metrics=metrics, no_eval=True, **ONE_STEP, **flags)
        with self.assertLogs("t5suite", "INFO") as logs:
            run.train()
        return [line for line in logs.output if " writes the target " in line]

    def test_label_words_that_cannot_be_written_can_be_chosen(self):
        """A trained model is scored with them, with a warning; not with labels that have the same tokens."""
        rows = [{"text": f"Row {i}.", "label": label} for i, label in enumerate(["½", "good"] * 2)]
        splits = {"train": rows, "validation": rows}
        chooses = tuner(None, splits, labels=["½", "good"], eval_method="score", **ONE_STEP)
        chooses.train()
        writes = tuner(chooses.model, splits, tokenizer=chooses.tokenizer, labels=["½", "good"])
        with self.assertLogs("t5suite", "WARNING") as logs:
            writes.evaluate()
        self.assertRegex("\n".join(logs.output), "writes the label '½' as '<unk>'")
        alike = [{"text": f"Row {i}.", "label": label} for i, label in enumerate(["好评", "差评"] * 2)]
        tells_nothing_apart = tuner(chooses.model, alike, tokenizer=chooses.tokenizer, labels=["好评", "差评"])
        with exits_with(78, "'好评' and '差评' have the same tokens"):
            tells_nothing_apart.evaluate()

    def test_a_model_in_memory_that_cannot_be_trained_is_refused(self):
        data = {"data": "mini/sentiment", "tokenizer": tiny_tokenizer(), "use_cpu": True, "max_steps": 1}
        small = tiny_model()
        small.resize_token_embeddings(len(tiny_tokenizer()) - 1)
        broken = tiny_model()
        broken.shared.weight.data[3, 1] = float("nan")
        flexible = tiny_model()
        flexible.set_attn_implementation("flex_attention")
        for model, code, message in (
            (
                flexible,
                78,
                "its attn_implementation is flex_attention: T5's position bias is correct with sdpa and eager only",
            ),
            (small, 78, "embeddings, but the tokenizer"),
            (broken, 65, "in memory.*shared.weight"),
        ):
            with exits_with(code, message):
                FineTuner(model, output_dir=tempfile.mkdtemp(), **data).train()

    def test_lists_are_words_with_commas_where_the_flag_is_one_word(self):
        columns = {"text_column": "text", "target_column": "label"}
        made = FineTuner(None, ROWS, labels=["bad", "good"], freeze=["embeddings", "encoder:1"], **SETTINGS, **columns)
        self.assertEqual(made.plan.train[0].label_words, ["bad", "good"])
        self.assertEqual(made.model_args.freeze, "embeddings,encoder:1")
        with exits_with(78, "freeze: .* holds a comma"):
            FineTuner(
                None, ROWS, labels=["bad", "good"], freeze=["embeddings,head", "encoder:1"], **SETTINGS, **columns
            )

    @parameterized.parameters(list, tuple, np.array, pd.Series)
    def test_labels_and_columns_in_a_list_may_hold_commas_and_quotes(self, make_list):
        labels = ["yes, sir", 'no "thanks"', "maybe"]
        rows = [{"a, b": f"text {i}", "label": labels[i % 3]} for i in range(24)]
        made = FineTuner(None, rows, labels=make_list(labels), text_column=["a, b"], target_column="label", **SETTINGS)
        task = made.plan.train[0]
        self.assertEqual(task.label_words, labels)
        self.assertEqual([example.targets for row in rows[:3] for example in task.examples(row)], labels)

    def test_a_summary_is_of_the_tokenizer_that_is_given_and_leaves_it_as_it_is(self):
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens([f"<word_{number}>" for number in range(300)])
        made = FineTuner(None, "mini/sentiment", quiet=True, tokenizer=tokenizer, add_tokens="<mine>", **MINI)
        num_pieces = len(tokenizer)
        summary = made.summary()
        self.assertEqual(summary["parameters"], sum(weight.numel() for weight in made.model.parameters()))
        self.assertLen(tokenizer, num_pieces)

    def test_a_summary_is_printed_unless_the_tuner_is_quiet(self):
        for quiet in (False, True):
            made = FineTuner(None, "mini/sentiment", quiet=quiet, **MINI)
            with contextlib.redirect_stdout(io.StringIO()) as output:
                summary = made.summary()
            total = f"{summary['parameters']:,}"
            self.assertEqual(total in output.getvalue(), not quiet)

    def test_values_may_be_of_other_libraries(self):
        flags = {"max_steps": np.int64(7), "learning_rate": torch.tensor(0.5)}
        flags |= {"output_dir": Path(tempfile.mkdtemp()) / "run"}
        flags |= {"eval_strategy": IntervalStrategy.STEPS, "eval_steps": np.float32(3), "bf16": np.bool_(False)}
        made = FineTuner(None, "mini/sentiment", quiet=True, use_cpu=True, **flags)
        self.assertEqual((made.args.max_steps, made.args.learning_rate, made.args.eval_steps), (7, 0.5, 3))
        self.assertEqual((made.args.output_dir, made.args.bf16), (str(flags["output_dir"]), False))
        self.assertEqual(made.args.eval_strategy, IntervalStrategy.STEPS)


class Ended(Exception):
    """A test has seen what it looks for."""


class ProcessTest(EqualFiles):
    @pytest.mark.slow
    def test_two_in_one_process_do_not_meddle_with_each_other(self):
        alone = tuner()
        alone.train()
        one, other = tuner(), tuner(seed=7, bf16=True)
        other.train()
        torch.rand(3)
        one.train()
        self.assertSameRun(directory(alone), directory(one))

    @mock.patch.object(FineTuner, "_train", side_effect=Ended)
    def test_a_tuner_that_names_no_directory_takes_its_own_or_a_free_one_when_it_trains(self, _):
        def of_seed(seed, **settings) -> FineTuner:
            return FineTuner(None, "mini/sentiment", quiet=True, **{**MINI, "seed": seed, **settings})

        with contextlib.chdir(tempfile.mkdtemp()):
            one, other = of_seed(1), of_seed(2)
            for made in (one, other):
                self.assertRaises(Ended, made.train)
            self.assertEqual([settings_of(made)["seed"] for made in (one, other)], [1, 2])
            self.assertEqual(directory(other), directory(one).with_name(f"{directory(one).name}-2"))

            write_rows(directory(other) / "metrics.jsonl", [{"step": 1, "train/loss": 1.0}])  # it has trained
            longer = of_seed(2, max_steps=9)
            self.assertRaises(Ended, longer.train)
            self.assertEqual((directory(longer), settings_of(other)["max_steps"]), (directory(other), 9))

    def test_a_finished_run_is_not_taken_for_one_on_other_rows(self):
        def finish(made, run, settings, resume):
            rows = made.plan.sources["reviews"]
            run.use_data({f"reviews.{role}": {"fingerprint": rows.read(role).fingerprint} for role in rows.roles})
            (run.directory / "results.json").write_text('{"tasks": {}}')
            run.finish()

        def of_rows(rows):
            return tuner(data={"train": rows, "validation": ROWS[:4]}, output_dir=place)

        place = str(folder())
        made = of_rows(ROWS)
        with mock.patch.object(FineTuner, "_train", finish):
            made.train()
        with mock.patch.object(FineTuner, "_take_finished", side_effect=Ended):
            self.assertRaises(Ended, made.train)
            with exits_with(78, f"{place} has finished, and its train rows were others than those in memory now"):
                of_rows(ROWS[:-2]).train()

    def test_nothing_is_left_behind(self):
        def state():
            root = logging.getLogger()
            return {
                "python": random.getstate(),
                "numpy": np.random.get_state()[1].tolist(),
                "torch": torch.get_rng_state().tolist(),
                "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)},
                "environment": dict(os.environ),
                "handlers": (list(root.handlers), root.level, list(logging.getLogger("t5suite").handlers)),
                "filters": list(logging.getLogger("transformers.trainer").filters),
            }

        for sow in (random.seed, np.random.seed, torch.manual_seed):
            sow(123)  # another place than where an earlier run may have left them
        before = state()
        made = tuner(**ONE_STEP)
        made.train()
        made.evaluate()
        made.predict("A joy.")
        for name, value in state().items():
            self.assertEqual(value, before[name], name)

    def test_tf32_is_the_tuner_s_own(self):
        """Neither another tuner's nor that of code around them."""
        before = torch.backends.cuda.matmul.fp32_precision
        with mock.patch("transformers.training_args.is_torch_tf32_available", lambda: True):
            first_in_tf32 = tuner(tf32=True)
            second_in_tf32 = tuner(tf32=True)
        plain = tuner()
        self.assertEqual(formats_of_cuda(first_in_tf32), {"tf32"})
        self.assertEqual(formats_of_cuda(second_in_tf32), {"tf32"})
        self.assertEqual(formats_of_cuda(plain), {before})
        self.assertEqual(torch.backends.cuda.matmul.fp32_precision, before)

    def test_tf32_is_the_tuner_s_own_with_a_transformers_that_remembers_no_calls(self):
        without_memory = import_utils.enable_tf32.__wrapped__
        self.enterContext(mock.patch.object(import_utils, "enable_tf32", without_memory))
        self.enterContext(mock.patch("transformers.training_args.enable_tf32", without_memory))
        self.test_tf32_is_the_tuner_s_own()

    def test_tf32_of_a_compiled_model_is_the_tuner_s_own(self):
        """accelerate turns it on for CUDA's products alone, by torch's older switch."""
        before = torch.backends.cuda.matmul.fp32_precision
        self.addCleanup(setattr, torch.backends.cuda.matmul, "fp32_precision", before)
        make_arguments = TrainingArguments.__post_init__

        def make_on_gpu(arguments):
            make_arguments(arguments)
            torch.backends.cuda.matmul.allow_tf32 = True

        with mock.patch.object(TrainingArguments, "__post_init__", make_on_gpu):
            compiled = tuner()
        self.assertEqual(torch.backends.cuda.matmul.fp32_precision, before)
        self.assertFalse(torch.backends.cuda.matmul.allow_tf32)
        plain = tuner()
        self.assertEqual(formats_of_cuda(compiled), {"tf32"})
        self.assertEqual(formats_of_cuda(plain), {before})

    def test_a_precision_that_other_code_sets_later_holds_in_a_tuner_whose_flags_set_none(self):
        made = tuner()
        made.predict("A joy.")
        for products in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
            self.addCleanup(setattr, products, "fp32_precision", products.fp32_precision)
        self.addCleanup(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high")
        precisions = set()
        for module in made.model.modules():
            module.register_forward_pre_hook(lambda *_: precisions.add(torch.get_float32_matmul_precision()))
        self.assertEqual(formats_of_cuda(made), {"tf32"})
        self.assertEqual(precisions, {"high"})
        self.assertEqual(torch.get_float32_matmul_precision(), "high")

    @parameterized.product(precision=("highest", "high", "medium"), flag=(True, False))
    def test_the_flag_of_a_tuner_holds_in_it_whatever_other_code_has_set_and_changes_nothing_outside(
        self, precision, flag
    ):
        products = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
        for products_of_device in products:
            self.addCleanup(setattr, products_of_device, "fp32_precision", products_of_device.fp32_precision)
        self.addCleanup(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision(precision)
        formats = [products_of_device.fp32_precision for products_of_device in products]
        with mock.patch("transformers.training_args.is_torch_tf32_available", lambda: True):
            made = tuner(tf32=flag)
        self.assertEqual(formats_of_cuda(made), {"tf32" if flag else "ieee"})
        self.assertEqual(torch.get_float32_matmul_precision(), precision)
        self.assertEqual([products_of_device.fp32_precision for products_of_device in products], formats)

    def test_the_flag_of_a_run_holds_over_what_accelerate_sets_for_a_compiled_model(self):
        """On GPUs accelerate turns TF32 on when a run's trainer is made."""
        self.addCleanup(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        make_accelerator = Accelerator.__init__

        def make_on_gpu(*args, **settings):
            make_accelerator(*args, **settings)
            torch.backends.cuda.matmul.allow_tf32 = True

        with mock.patch.object(Accelerator, "__init__", make_on_gpu):
            made = tuner(**ONE_STEP, tf32=False)
            made.train()
        manifest = json.loads((directory(made) / "manifest.json").read_text())
        self.assertFalse(manifest["answering"]["tf32"])

    @pytest.mark.slow
    @pytest.mark.resume
    def test_ctrl_c_keeps_a_checkpoint_and_training_goes_on_as_if_nothing_had_been(self):
        whole = tuner()
        whole.train()
        broken, handler = tuner(), signal.getsignal(signal.SIGINT)
        step_begin = CallbackHandler.on_step_begin

        def interrupted(handler, args, state, control):
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return step_begin(handler, args, state, control)

        asked_to_stop = self.assertRaisesRegex(KeyboardInterrupt, "goes on from .*checkpoint-3")
        with mock.patch.object(CallbackHandler, "on_step_begin", interrupted), asked_to_stop:
            broken.train()
        self.assertIs(signal.getsignal(signal.SIGINT), handler)
        self.assertLen(broken.predict(["A joy.", "No."]), 2)
        broken.train()
        self.assertSameRun(directory(whole), directory(broken))

    def failing(self, made):
        full = mock.patch.object(CallbackHandler, "on_step_end", side_effect=OSError("no space"))
        with full, self.assertRaisesRegex(OSError, "no space"):
            made.train()

    @pytest.mark.slow
    def test_a_failure_before_the_first_checkpoint_begins_with_the_first_weights_again(self):
        whole, broken = tuner(), tuner()
        whole.train()
        self.failing(broken)
        broken.train()
        self.assertSameRun(directory(whole), directory(broken))

    def test_a_new_run_goes_on_and_is_made_longer_as_any_other(self):
        made = tuner(resume="none", **ONE_STEP)
        self.failing(made)
        results = made.train()
        self.assertEqual(made.train(), results)
        made.train(max_steps=2)
        self.assertEqual([line["step"] for line in made.history if "train/loss" in line], [1, 2])
        with exits_with(78, "--resume none needs a new") as refusal:
            tuner(resume="none", output_dir=str(directory(made)), **ONE_STEP).train()
        (note,) = refusal.exception.__notes__
        self.assertIn(': output_dir=..., resume="none", overwrite_output_dir=True', note)

    def test_the_weights_are_those_of_the_results_also_where_others_have_finished_the_run(self):
        made = tuner(**ONE_STEP)
        self.failing(made)
        other = tuner(output_dir=str(directory(made)), **ONE_STEP)
        for longer in ({}, {"max_steps": 2}):
            results = other.train(**longer)
            self.assertEqual(made.train(), results)
            for name, value in weights(other).items():
                self.assertTrue(torch.equal(weights(made)[name], value), name)

    def test_a_model_in_memory_that_was_trained_is_not_taken_for_a_new_one(self):
        other = tuner()
        made = tuner(other.model, tokenizer=other.tokenizer, **ONE_STEP)
        self.failing(made)
        with exits_with(78, "was trained before, and no checkpoint is left"):
            made.train()


class Ends(TrainerCallback):
    """Ends a run before its first step."""

    def on_train_begin(self, args, state, control, **kwargs):
        raise Ended


def started(*inputs, **settings) -> FineTuner:
    """The tuner of a run that ended before its first step."""
    made = tuner(*inputs, callbacks=Ends(), **settings)
    with contextlib.suppress(Ended):
        made.train()
    return made


def trained(*inputs, **settings) -> FineTuner:
    made = tuner(*inputs, **settings)
    made.train()
    return made


def settings_of(made: FineTuner) -> dict:
    return json.loads((directory(made) / "manifest.json").read_text())["settings"]


class Stream(io.StringIO):
    """What is printed where somebody watches, or nobody."""

    def __init__(self, watched: bool):
        super().__init__()
        self.isatty = lambda: watched


class ModelTest(EqualFiles):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.base = tuner().save(folder())

    @pytest.mark.slow
    def test_frozen_parts_stay_as_they_are_and_are_the_flags(self):
        made = tuner(self.base)
        self.assertIn("shared.weight", made.freeze(embeddings=True, encoder=1))
        made.freeze(pattern="decoder.*relative")
        before = weights(made)
        made.train()
        after = made.model.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        self.assertNotEmpty(changed)
        self.assertEmpty(
            [name for name in changed if "encoder.block" in name or "shared" in name or "relative" in name]
        )
        flags = tuner(self.base, freeze="encoder:1,embeddings", freeze_regex="decoder.*relative")
        flags.train()
        self.assertSameRun(directory(made), directory(flags))
        with exits_with(78, "nothing is named"):
            made.freeze()

    @parameterized.parameters(
        (lambda: tuner(7), "int is neither a model nor the name of one$"),
        (lambda: tuner(torch.nn.Linear(2, 2)), "Linear is neither .*; put it into a transformers.PreTrainedModel"),
        (lambda: tuner(torch.compile(tiny_model())), "give the model as it was .*, and torch_compile=True"),
        (lambda: tuner(torch.nn.DataParallel(tiny_model())), "DataParallel is neither .*; give the model in it"),
        (lambda: tuner(tuner().model), "comes without a tokenizer"),
        (lambda: tuner(tuner().model, tokenizer=tuner().tokenizer, dropout_rate=0.1), "dropout_rate has no effect"),
        (lambda: FineTuner.load("/nowhere"), "no folder '/nowhere'"),
        (lambda: FineTuner(lerning_rate=1), "--lerning_rate; did you mean --learning_rate"),
        (lambda: tuner().predict("a", num_beam=2), "no setting 'num_beam'; did you mean num_beams"),
        (lambda: tuner().predict("a", min_new_tokens=99), "--min_new_tokens 99 is more than .* what the task needs"),
        (lambda: tuner().evaluate("tset"), "no split 'tset'; did you mean test"),
        (lambda: tuner(eval_only=True).train(), "eval_only=True trains nothing"),
        (lambda: tuner(early_stopping_patience=2).train(valid=False), "early_stopping_patience"),
        (
            lambda: tuner(early_stopping_patience=2, save_strategy="no").train(),
            "--save_strategy no writes no checkpoint",
        ),
    )
    def test_what_does_not_go_is_named(self, make, message):
        with exits_with(78, message):
            make()

    def test_a_model_in_memory_takes_the_flags_that_change_it(self):
        """It trains in float32, whatever it was."""
        other = tuner()
        made = tuner(other.model.bfloat16(), tokenizer=other.tokenizer, freeze="embeddings")
        self.assertFalse(made.model.get_input_embeddings().weight.requires_grad)
        self.assertEqual({parameter.dtype for parameter in made.model.parameters()}, {torch.float32})

    @parameterized.parameters(
        "(?i)LAYER_NORM", "(?i)(?x) LAYER_ NORM", "(?x) layer_norm # norms", "layer_norm|^x", "(?i)x|LAYER_NORM"
    )
    def test_a_pattern_with_flags_of_its_own_goes_with_others(self, pattern):
        frozen_names = [
            name for name, _ in tiny_model().named_parameters() if "layer_norm" in name or "relative" in name
        ]
        made = tuner()
        made.freeze(pattern=pattern)
        made.freeze(embeddings=True)
        self.assertEqual(made.model_args.freeze_regex, pattern)
        made.freeze(pattern="relative")
        again = tuner(freeze_regex=made.model_args.freeze_regex).model
        self.assertEqual([name for name, value in again.named_parameters() if not value.requires_grad], frozen_names)

    def test_the_command_of_a_run_is_the_call_that_made_it(self):
        flags = {"config_name": "mini", "max_steps": 1, "freeze": ["embeddings", "head"], "use_cpu": True}
        flags |= {
            "eval_strategy": "no",
            "output_dir": str(folder()),
            "max_train_samples": 8,
            "dataset_name": "sentiment",
        }
        made = FineTuner(**flags, hub_token="hf_secret", freeze_regex=None, batch_transform=dict, quiet=True)
        made.train()
        _, call = json.loads((directory(made) / "manifest.json").read_text())["command"]
        arguments = eval(call, {"FineTuner": dict})
        self.assertEqual(arguments, {**flags, "batch_transform": ..., "hub_token": "***", "disable_tqdm": True})
        card = "```\nFineTuner(batch_transform=..., config_name='mini', "
        self.assertIn(card, (directory(made) / "README.md").read_text())

    def test_the_command_of_a_run_marks_what_is_in_memory(self):
        counts = lambda predictions, targets: {"number": float(len(targets))}
        in_memory = {
            "model": tiny_model(),
            "data": ROWS,
            "tokenizer": tiny_tokenizer(),
            "metrics": ["accuracy", counts],
        }
        made = tuner(**in_memory, callbacks=TrainerCallback(), **FAST_STEP)
        made.train()
        _, call = json.loads((directory(made) / "manifest.json").read_text())["command"]
        arguments = eval(call, {"FineTuner": dict})
        marked = {name for name, value in arguments.items() if value is ...}
        self.assertEqual(marked, {"model", "data", "tokenizer", "metrics", "callbacks"})

    def test_what_is_frozen_later_is_added_to_what_a_file_or_a_list_freezes(self):
        file = Path(tempfile.mkdtemp()) / "settings.yaml"
        file.write_text("freeze: embeddings\nfreeze_regex: relative\n")
        in_file = tuner(config=str(file))
        in_file.freeze(encoder=1, pattern="layer_norm")
        self.assertEqual(in_file.model_args.freeze, "embeddings,encoder:1")
        self.assertEqual(in_file.model_args.freeze_regex, "(?:relative)|(?:layer_norm)")
        in_list = tuner(freeze=["embeddings", "head"])
        in_list.freeze(encoder=True)
        self.assertEqual(in_list.model_args.freeze, "embeddings,head,encoder")

    def test_an_encoder_in_memory_is_trained_with_the_head_that_it_has(self):
        size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        unnamed = BertForSequenceClassification(BertConfig(vocab_size=640, **size))
        named = BertForSequenceClassification(
            BertConfig(vocab_size=640, id2label={0: "positive", 1: "negative"}, **size)
        )
        reduced = tuner(model_family="encoder").model
        for model, words in (
            (unnamed, "negative positive"),
            (named, "positive negative"),
            (reduced, "negative positive"),
        ):
            made = tuner(model, tokenizer=tiny_tokenizer(), **ONE_STEP)
            made.train()
            self.assertEqual(list(made.predict_labels("A joy.")), words.split())
            again = FineTuner(directory(made), use_cpu=True, quiet=True)
            self.assertEqual(again.predict_labels("A joy."), made.predict_labels("A joy."))

    @parameterized.parameters(
        (
            BertForSequenceClassification,
            {"num_labels": 3},
            "its head gives one of LABEL_0, .*; the task is one of negat",
        ),
        (BertForSequenceClassification, {"num_labels": 1}, "its head gives a number; the task is one of negative"),
        (BertForTokenClassification, {}, "its head gives one of LABEL_0, LABEL_1 for every word; the task is one of"),
        (BertForMaskedLM, {}, "BertForMaskedLM has no head .*; give the checkpoint's name"),
        (GPT2Model, {}, "GPT2Model has no output layer, .*; give a GPT2LMHeadModel$"),
        (T5Model, {}, "T5Model has no output layer, .*; give a T5ForConditionalGeneration; for its encoder"),
        (T5ForSequenceClassification, {}, "T5ForSequenceClassification has no output layer, and so writes no text"),
    )
    def test_a_model_in_memory_without_the_head_for_the_task_is_refused(self, model_class, settings, message):
        config = model_class.config_class(vocab_size=640, hidden_size=16, num_hidden_layers=1, **settings)
        config.num_attention_heads = 2
        with exits_with(78, message):
            tuner(model_class(config), tokenizer=tiny_tokenizer())

    def test_frozen_parameters_of_a_model_in_memory_give_a_warning(self):
        model = tiny_model()
        first = tuner(model, tokenizer=tiny_tokenizer(), freeze="encoder")
        numbers = [parameter.numel() for parameter in model.parameters() if not parameter.requires_grad]
        total = sum(parameter.numel() for parameter in model.parameters())
        with self.assertLogs("t5suite", "WARNING") as logs:
            tuner(first.model, tokenizer=first.tokenizer)
        self.assertIn(f"{sum(numbers)} of its {total} parameters are frozen already", "\n".join(logs.output))
        model.requires_grad_(False)
        with exits_with(78, "all of its parameters are frozen"):
            tuner(model, tokenizer=first.tokenizer, **ONE_STEP).train()

    def test_a_model_in_memory_of_a_users_own_class_is_saved_and_loaded_as_that(self):
        made = tuner(OwnT5(tiny_model().config), tokenizer=tiny_tokenizer(), **ONE_STEP)
        results = made.train()
        manifest = json.loads((directory(made) / "manifest.json").read_text())
        self.assertEqual(manifest["settings"]["model_class"], "plug_in_modules:OwnT5")
        with exits_with(78, "add --model_class plug_in_modules:OwnT5"):
            FineTuner(directory(made))
        again = tuner(
            OwnT5(tiny_model().config), tokenizer=tiny_tokenizer(), output_dir=str(directory(made)), **ONE_STEP
        )
        self.assertEqual(again.train(), results)
        self.assertIs(type(again.model), OwnT5)
        for name, value in made.model.state_dict().items():
            self.assertTrue(torch.equal(again.model.state_dict()[name], value), name)

    def test_a_model_in_memory_of_a_type_of_the_users_own_takes_a_family_and_says_so(self):
        def make(**settings) -> FineTuner:
            return tuner(Reader(ReaderConfig(vocab_size=640)), tokenizer=tiny_tokenizer(), **settings)

        with exits_with(78, "say how it reads and writes: --model_family .seq2seq, causal, masked, encoder"):
            make()
        made = make(model_family="masked")
        folder_of_model = made.save(folder())
        with self.assertNoLogs("t5suite", "WARNING"):
            again = FineTuner(folder_of_model, model_class="plug_in_modules:Reader", use_cpu=True)
        self.assertEqual(again.predict_labels("A joy."), made.predict_labels("A joy."))
        with exits_with(78, "model_family has no effect: the model is in memory already"):
            tuner(tiny_model(), tokenizer=tiny_tokenizer(), model_family="seq2seq")

    @parameterized.parameters("Mine(tiny_model().config), tokenizer=tiny_tokenizer()", "Mine, from_scratch=True")
    def test_a_class_in_the_script_itself_is_loaded_by_the_script_s_name(self, model):
        """The script is not run a second time while it runs; its card names it."""
        place = folder().parent
        name = f"script_{place.name}"
        (place / f"{name}.py").write_text(CLASS_IN_SCRIPT.format(model=model, place=place))
        runpy.run_path(str(place / f"{name}.py"), run_name="__main__")
        self.assertEqual((place / "starts").read_text(), "__main__\n")
        spec = f"{name}:Mine"
        self.assertEqual(json.loads((place / "run" / "config.json").read_text())["model_class"], spec)
        self.assertIn(f'model_class="{spec}")', (place / "run" / "README.md").read_text())
        with mock.patch.object(sys, "path", [str(place), *sys.path]):
            again = FineTuner(str(place / "run"), model_class=spec, use_cpu=True)
        self.assertEqual(type(again.model).__module__, name)
        self.assertEqual((place / "starts").read_text(), f"__main__\n{name}\n")

    def test_a_class_of_a_notebook_is_refused_with_what_to_do(self):
        of_notebook = type("OfNotebook", (OwnT5,), {"__module__": "__main__"})
        with (
            mock.patch.dict(sys.modules, __main__=types.ModuleType("__main__")),
            exits_with(78, "OfNotebook is defined in a notebook .*; put it into a module"),
        ):
            tuner(of_notebook(tiny_model().config), tokenizer=tiny_tokenizer())

    def test_a_model_in_memory_that_nothing_could_load_again_is_refused(self):
        class Inner(OwnT5):
            pass

        with exits_with(78, "Inner is defined inside a function or class .*; define it at module level"):
            tuner(Inner(tiny_model().config), tokenizer=tiny_tokenizer())
        with exits_with(78, "adapters are made for transformers' classes"):
            tuner(OwnT5(tiny_model().config), tokenizer=tiny_tokenizer(), adapter="lora")

    def test_what_is_frozen_in_several_calls_is_frozen_in_the_run(self):
        made = tuner(callbacks=Ends(), **ONE_STEP)
        made.freeze(embeddings=True)
        made.freeze(encoder=1)
        made.freeze(pattern="decoder.*relative")
        made.freeze(pattern="decoder.*final")
        self.assertRaises(Ended, made.train)
        settings = settings_of(made)
        self.assertEqual(settings["freeze"], "embeddings,encoder:1")
        self.assertEqual(settings["freeze_regex"], "(?:decoder.*relative)|(?:decoder.*final)")

    @pytest.mark.slow
    def test_a_raised_length_makes_the_run_longer_where_no_directory_is_named(self):
        flags = {**MINI, **ONE_STEP, "callbacks": Ends(), "quiet": True}
        with contextlib.chdir(tempfile.mkdtemp()):
            made, longer = (FineTuner(None, "mini/sentiment", **{**flags, "max_steps": steps}) for steps in (1, 2))
            self.assertRaises(Ended, made.train)
            file = directory(made) / "manifest.json"
            file.write_text(file.read_text().replace('"failed"', '"preempted"'))
            self.assertRaises(Ended, longer.train)
            self.assertEqual((directory(longer), settings_of(longer)["max_steps"]), (directory(made), 2))

    @pytest.mark.slow
    def test_a_model_in_memory_is_known_by_its_class_and_its_weights(self):
        first = tuner()
        names = []
        for scale, make in ((1.0, started), (1.0, started), (2.0, trained)):
            with torch.no_grad():
                first.model.get_input_embeddings().weight.mul_(scale)
            made = make(first.model, tokenizer=first.tokenizer, **ONE_STEP)
            names.append(settings_of(made)["model_name_or_path"])
        self.assertIn(f"{names[-1]} on mini/sentiment", (directory(made) / "README.md").read_text())
        self.assertRegex(names[0], r"^T5ForConditionalGeneration in memory, weights [0-9a-f]{12}$")
        self.assertEqual(names[1], names[0])
        self.assertNotEqual(names[2], names[0])

    @pytest.mark.slow
    def test_a_model_without_data_is_asked_and_not_trained(self):
        folder_of_nothing = self.base.parent / "bare"
        tuner().model.save_pretrained(folder_of_nothing)
        tuner().tokenizer.save_pretrained(folder_of_nothing)
        made = FineTuner(folder_of_nothing, use_cpu=True)
        self.assertLen(made.predict(["any text"]), 1)
        for other in (made, FineTuner("mini", use_cpu=True), FineTuner(made.model, tokenizer=made.tokenizer)):
            with exits_with(78, r"no rows to train on or to score: give FineTuner\(model, data\)"):
                other.train()
        self.assertEqual(Path(other.args.output_dir).name, "mini-sentiment-T5ForConditionalGeneration")

    def test_a_file_of_settings_names_data_only_if_it_has_a_flag_of_data(self):
        rows = Path(tempfile.mkdtemp()) / "rows.csv"
        pd.DataFrame(ROWS).to_csv(rows, index=False)
        columns = {"text_column": "text", "target_column": "label", "validation_split": "0.5"}
        trained = {"use_cpu": True, "quiet": True, "eval_strategy": "no", "max_steps": 1}
        with exits_with(78, "no rows to train on"):
            FineTuner("mini", config='{"learning_rate": 1e-4}', **trained, output_dir=str(folder())).train()
        for flags in (
            {"config": json.dumps({"train_file": str(rows), **columns})},
            {"train_file": str(rows), **columns},
        ):
            made = FineTuner("mini", **flags, **trained, output_dir=str(folder()))
            made.train()
            self.assertEqual((made.plan.benchmark, made.plan.dataset_name), ("own", "rows"))

    @parameterized.parameters(
        ((), ""),
        (("reviews",), "; the model was trained on own/reviews"),
        (("reviews", "films"), "; the model was trained on own/reviews,films"),
    )
    def test_without_data_the_message_says_what_the_model_was_trained_on_where_it_is_told(self, names, ending):
        """The bundled tasks have rows; those of your own are elsewhere."""
        made = FineTuner(save_model(folder(), tasks=[make_task(name) for name in names]), quiet=True, use_cpu=True)
        for act in (made.train, made.evaluate):
            with exits_with(78, f"^there are no rows to train on or to score: give .* such as 'glue/rte'{ending}$"):
                act()

    @pytest.mark.slow
    def test_bars_are_drawn_where_somebody_watches_or_asks_for_them(self):
        if datasets.are_progress_bars_disabled():  # by a test before this one
            datasets.enable_progress_bars()
            self.addCleanup(datasets.disable_progress_bars)
        light = MINI | ONE_STEP
        settings = {name: value for name, value in light.items() if name not in ("disable_tqdm", "eval_steps")}
        seen = []

        class Looks(TrainerCallback):
            def on_train_begin(self, args, state, control, **kwargs):
                seen.append((datasets.are_progress_bars_disabled(), transformers_logging.is_progress_bar_enabled()))
                raise Ended

        for watched, asked, drawn in (
            (True, {}, True), (False, {}, False), (False, {"disable_tqdm": False}, True),
            (True, {"disable_tqdm": True}, False),
        ):  # fmt: skip
            with mock.patch.object(sys, "stderr", Stream(watched)), mock.patch.object(sys, "stdout", Stream(watched)):
                made = FineTuner(
                    None, "mini/sentiment", callbacks=Looks(), output_dir=str(folder()), **settings, **asked
                )
                self.assertRaises(Ended, made.train)
            self.assertEqual(seen.pop(), (not drawn, False), (watched, asked))

    @pytest.mark.slow
    def test_all_rows_are_trained_on_where_nothing_is_validated(self):
        made = tuner(data=ROWS, eval_strategy="epoch")
        with exits_with(78, "--no_eval evaluates nothing, which --eval_strategy"):
            made.train(valid=False)
        given = {name: value for name, value in OWN.items() if not name.startswith("eval")}
        given |= {"max_steps": 1, "save_strategy": "no"}
        made = FineTuner(None, ROWS, quiet=True, output_dir=str(folder()), **given)
        self.assertEqual(made.train(valid=False), {"tasks": {}, "averages": {}})
        self.assertLen(made.trainer.train_dataset, len(ROWS))
