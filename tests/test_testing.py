"""`t5suite.testing`: what users of the suite, and its own tests, make tiny things with."""

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import parameterized

import t5suite
from t5suite import testing


def failure_of(check, *arguments) -> str:
    """The message of the AssertionError that a check must raise."""
    try:
        check(*arguments)
    except AssertionError as error:
        return str(error)
    raise RuntimeError("the check passed")


class ExitsWithTest(parameterized.TestCase):
    def raise_in_block(self, exit_code, pattern, error=None):
        with testing.exits_with(exit_code, pattern) as failure:
            if error is not None:
                raise error
        return failure.message

    def test_the_error_of_this_code_and_message_passes_and_is_handed_out(self):
        with testing.exits_with(78, "unknown glue task 'rtee'.*rte") as failure:
            t5suite.load_task("glue", "rtee")
        self.assertIsInstance(failure.exception, ValueError)
        self.assertIn("rtee", failure.message)

    def test_another_code_another_message_and_no_error_fail(self):
        def wrong_task():
            t5suite.load_task("glue", "rtee")

        def check(exit_code, pattern, call):
            with testing.exits_with(exit_code, pattern):
                call()

        self.assertIn("exit code 78, expected 65", failure_of(check, 65, "", wrong_task))
        self.assertIn("is not in the message", failure_of(check, 78, "no such words", wrong_task))
        self.assertIn("nothing was raised", failure_of(check, 78, "", lambda: None))

    def test_an_error_without_an_exit_code_is_a_bug_and_passes_through(self):
        with self.assertRaises(KeyError):
            self.raise_in_block(78, "", KeyError("x"))


class RowsAndTasksTest(parameterized.TestCase):
    def test_rows_written_are_read_back(self):
        rows = [{"text": "Fein. é", "label": 1}, {"text": "", "label": 0}]
        for name in ("a/rows.jsonl", "b/rows.jsonl.gz"):
            path = testing.write_rows(Path(tempfile.mkdtemp()) / name, rows)
            self.assertEqual(testing.read_rows(path), rows)

    def test_rows_are_those_of_a_run(self):
        path = testing.write_rows(Path(tempfile.mkdtemp()) / "r.jsonl", [{"sentence": "Fine.", "label": 1}])
        task = t5suite.load_task("mini", "sentiment")
        self.assertEqual(testing.load_rows(task, "train", train_file=str(path)), [{"sentence": "Fine.", "label": 1}])
        with testing.exits_with(65, f"{path}:1: .*label"):
            testing.write_rows(path, [{"sentence": "Fine.", "label": 7}])
            testing.load_rows(task, "train", train_file=str(path))

    def test_a_made_task_reads_its_fields(self):
        task = testing.make_task("mood", labels=["sad", "glad"], prefix="mood: ")
        (example,) = task.examples({"text": "Fine.", "label": 1})
        self.assertEqual((example.inputs, example.targets), ("mood: Fine.", "glad"))

    @parameterized.parameters("sentiment", "entailment", "similarity")
    def test_bundled_tasks_are_consistent(self, name):
        testing.check_task(t5suite.load_task("mini", name), testing.tiny_rows(name, count=12))

    @parameterized.parameters([[1, 1]], [[1, 0]], [[0, 0]])
    def test_a_task_of_referents_is_consistent_whether_its_rows_are_true_or_false(self, labels):
        row = {"text": "Mark told Pete that he won .", "span2_text": "he", "span2_index": 4}
        candidates = ("Mark", "the tall man")
        rows = [{**row, "span1_text": text, "label": label} for text, label in zip(candidates, labels, strict=True)]
        testing.check_task(t5suite.load_task("super_glue", "wsc.fixed"), rows)

    def test_an_inconsistent_task_is_named(self):
        rows = [{"text": "Fine.", "label": 0.1}, {"text": "Bad.", "label": 0.0}, {"text": "So so.", "label": 1.3}]
        numbers = {"labels": None, "metric_names": ["pearson"], "metric_to_optimize": "pearson"}
        error = "neg_mean_absolute_error"
        testing.check_task(testing.make_task(**numbers), rows)
        testing.check_task(testing.make_task(labels=None, metric_names=[error], metric_to_optimize=error), rows)
        rounded = testing.make_task(**numbers, target_decimals=0)
        self.assertIn("right answers do not score best: {'pearson': ", failure_of(testing.check_task, rounded, rows))
        empty = [{"text": "Fine.", "label": 0}, {"text": " ", "label": 1}]
        self.assertIn("row 1: the input is empty", failure_of(testing.check_task, testing.make_task(prefix=""), empty))

    def test_own_rows_are_the_task_and_the_rows_that_flags_make(self):
        path = Path(tempfile.mkdtemp()) / "reviews.csv"
        path.write_text("text,label,stars\nFine.,1,5\nSad.,bad,1\n")
        flags = {"text_column": "text", "target_column": "label", "labels": ["bad", "good"], "no_eval": True}
        task, rows = testing.load_own_rows(path, **flags)
        self.assertEqual((task.name, task.label_words), ("reviews", ["bad", "good"]))
        self.assertEqual(rows, [{"text": "Fine.", "label": "good"}, {"text": "Sad.", "label": "bad"}])
        self.assertEqual(testing.load_own_rows(rows, **flags).rows, rows)
        path.write_text("text,label,stars\nFine.,better,5\n")
        with testing.exits_with(65, f"{path}:2: .*better"):
            testing.load_own_rows(path, **flags)

    def test_own_rows_are_split_and_cut_as_in_a_run(self):
        rows = [{"input": f"text {i}", "output": str(i)} for i in range(40)]
        parts = [testing.load_own_rows(rows, split, validation_split=0.25).rows for split in ("train", "validation")]
        self.assertLen(parts[1], 10)
        self.assertCountEqual([row["output"] for part in parts for row in part], map(str, range(40)))
        path = Path(tempfile.mkdtemp()) / "book.txt"
        path.write_text("It rains and rains and rains.\n" * 9)
        _, blocks = testing.load_own_rows(path, block_size=20, no_eval=True)
        self.assertLessEqual(max(len(testing.tiny_tokenizer()(row["text"])["input_ids"]) for row in blocks), 20)

    def test_encoded_rows_are_the_tokens_of_their_examples(self):
        tokenizer, task = testing.tiny_tokenizer(), t5suite.load_task("mini", "sentiment")
        rows = [{"sentence": text, "label": label} for text, label in (("Fine.", 1), ("A sad day in a bad bed.", 0))]
        texts, words = [f"sentiment sentence: {row['sentence']}" for row in rows], ["positive", "negative"]
        encoded = testing.encode_rows(rows, task)
        self.assertEqual([example["input_ids"] for example in encoded], tokenizer(texts)["input_ids"])
        self.assertEqual([example["labels"] for example in encoded], tokenizer(words)["input_ids"])
        (cut, _) = testing.encode_rows(rows, task, source_length=4)
        self.assertEqual(cut["input_ids"], [*tokenizer(texts[0])["input_ids"][:3], tokenizer.eos_token_id])
        model = testing.tiny_model("gpt2", "n_embd=32,n_layer=1,n_head=2,n_positions=128")
        (prompt, _) = testing.encode_rows(rows, task, model=model)
        self.assertGreater(len(prompt["input_ids"]), len(encoded[0]["input_ids"]))  # a separator, no end
        with testing.exits_with(78, "source_lang needs the model"):
            testing.encode_rows(rows, task, source_lang="eng_Latn")

    def test_a_made_up_row_has_the_tasks_columns(self):
        self.assertEqual(
            testing.example_row(t5suite.load_task("glue", "qnli")),
            {"question": "<question>", "sentence": "<sentence>", "label": 0},
        )
        (example,) = testing.make_task().examples(testing.example_row(testing.make_task()))
        self.assertEqual(example, ("reviews text: <text>", "bad"))


def environment() -> dict[str, str]:
    """The process's, without the cache folder that torch's compiler names when it is first imported."""
    return {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}


class ProcessTest(parameterized.TestCase):
    @pytest.mark.slow  # on a new machine DeepSpeed compiles its communication here, for half a minute
    def test_flags_of_deepspeed_leave_the_process_as_it_was(self):
        before = environment()
        settings = testing.parse_flags("fine_tune_t5", ["--deepspeed", "zero2", "--use_cpu", "--output_dir", "x"])
        self.assertEqual(settings["deepspeed"]["zero_optimization"]["stage"], 2)
        self.assertEqual(environment(), before)
        self.assertFalse(torch.distributed.is_initialized())
        self.assertEqual(testing.tiny_trainer().args.world_size, 1)

    def test_a_group_is_left_as_it_was(self):
        with testing.process_as_before():
            self.begin_group()
            os.environ["OF_THE_GROUP"] = "1"
        self.assertFalse(torch.distributed.is_initialized())
        self.assertNotIn("OF_THE_GROUP", os.environ)
        self.begin_group()
        self.addCleanup(torch.distributed.destroy_process_group)
        with testing.process_as_before():
            pass
        self.assertTrue(torch.distributed.is_initialized())

    def begin_group(self) -> None:
        """Makes this process a group of one."""
        store = torch.distributed.FileStore(tempfile.mkdtemp() + "/store", 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


class ModelsTest(parameterized.TestCase):
    def test_equal_seeds_make_equal_models_and_others_do_not(self):
        first, second, third = testing.tiny_model(), testing.tiny_model(), testing.tiny_model(seed=1)
        self.assertTrue(torch.equal(first.shared.weight, second.shared.weight))
        self.assertFalse(torch.equal(first.shared.weight, third.shared.weight))

    def test_a_saved_model_predicts_as_the_one_in_memory(self):
        task = t5suite.load_task("mini", "sentiment")
        model = testing.tiny_model()
        folder = testing.save_model(tempfile.mkdtemp(), model, tasks=[task])
        texts = ["A fine stage.", "A bad bed."]
        rows = testing.write_rows(folder / "rows.jsonl", [{"sentence": text} for text in texts])
        testing.run_cli(
            "predict", "--model_name_or_path", folder, "--input", rows, "--output", folder / "out.jsonl", "--use_cpu"
        )
        inputs = testing.tiny_tokenizer()(
            [f"sentiment sentence: {text}" for text in texts], return_tensors="pt", padding=True
        )
        expected = testing.tiny_tokenizer().batch_decode(
            model.eval().generate(**inputs, max_new_tokens=16), skip_special_tokens=True
        )
        predictions = [line["prediction"] for line in testing.read_rows(folder / "out.jsonl")]
        self.assertEqual([text.strip() for text in predictions], [text.strip() for text in expected])


class CommandsTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_a_command_leaves_the_signal_handlers_as_they_were(self):
        def handlers():
            return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]

        before = handlers()
        with self.assertRaises(SystemExit) as ending:
            testing.run_cli("fine_tune", "--use_cpu", "--dry_run", "--disable_tqdm=True")
        self.assertEqual((ending.exception.code, handlers()), (0, before))


class RunsTest(parameterized.TestCase):
    def test_a_trainer_trains_as_its_arguments_say(self):
        trainer = testing.tiny_trainer(max_steps=2, learning_rate=0.0, optim="sgd")
        before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
        trainer.train()
        self.assertEqual(trainer.state.global_step, 2)
        self.assertTrue(all(torch.equal(before[name], weight) for name, weight in trainer.model.state_dict().items()))

    @parameterized.parameters("generate", "score")
    @pytest.mark.slow
    def test_an_evaluation_is_that_of_a_run(self, method):
        rows, task = testing.tiny_rows("sentiment", count=9), t5suite.load_task("mini", "sentiment")
        trainer = testing.tiny_trainer(rows, task)
        evaluation = testing.evaluate_rows(trainer, rows, task, method, batch_size=4)
        folder = testing.save_model(tempfile.mkdtemp(), trainer.model)
        file = testing.write_rows(folder / "validation.jsonl", rows)
        flags = {"dataset_name": "sentiment", "validation_file": str(file), "eval_method": method}
        run = testing.tiny_run(str(folder), **flags, learning_rate=0.0, max_steps=1)
        self.assertEqual((evaluation.num_rows, evaluation.truncated), (9, 9 if method == "generate" else 0))
        plain = testing.evaluate_rows(trainer, rows, task, method, batch_size=4, reference_code="all")
        self.assertEqual(plain.predictions, evaluation.predictions)
        self.assertEqual(evaluation.metrics, run.results["tasks"]["sentiment"])
        lines = testing.read_rows(run.directory / "predictions" / "sentiment.validation.jsonl")
        self.assertEqual([line["prediction"] for line in lines], evaluation.predictions)
        loss = next(line["final/loss"] for line in run.history if "final/loss" in line)
        self.assertAlmostEqual(evaluation.loss, loss, places=5)

    @pytest.mark.slow
    def test_a_run_is_what_its_directory_holds(self):
        run = testing.tiny_run(dataset_name="entailment", max_steps=3)
        self.assertEqual(run.results, json.loads((run.directory / "results.json").read_text()))
        self.assertEqual(run.history, testing.read_rows(run.directory / "metrics.jsonl"))
        self.assertEqual([line["step"] for line in run.history if "train/loss" in line], [1, 2, 3])

    def test_a_tuner_has_the_model_of_its_folder_and_writes_nothing_before_it_trains(self):
        model = testing.tiny_model()
        tuner = testing.tiny_tuner(testing.save_model(tempfile.mkdtemp(), model), "mini/sentiment", freeze="encoder")
        self.assertTrue(torch.equal(tuner.model.shared.weight, model.shared.weight))
        self.assertFalse(next(tuner.model.encoder.block.parameters()).requires_grad)
        self.assertFalse(Path(tuner.args.output_dir).exists())

    def test_what_a_command_prints(self):
        lines = testing.cli_output("tasks", "--benchmark", "mini", "--json").splitlines()
        names = [json.loads(line)["dataset_name"] for line in lines]
        self.assertContainsSubset(["sentiment", "entailment", "similarity"], names)
