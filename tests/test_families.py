"""Laws of every family: what a batch weighs, how heads are made, what is saved and loaded again."""

import functools
import json
import logging
import tempfile

import family_worker
import law_worker
import numpy as np
import pytest
import torch
from absl.testing import parameterized
from transformers import AutoModelForMaskedLM

from t5suite import load_task
from t5suite.testing import exits_with, save_model, tiny_rows, tiny_tokenizer, tiny_tuner, write_rows

RELATIVE = 5e-6
# After updates whose weights have rounded in another order: mT5's third gradient norm, 436, differs by 1.1e-5. A row that is
# weighed wrongly, or left out, shows in the first update, and by more than a thousandth.
RELATIVE_AFTER_UPDATES = 1e-4
EVERY = [(name, name) for name in family_worker.MODELS]


class EveryModelTest(parameterized.TestCase):
    @parameterized.named_parameters(*EVERY)
    @pytest.mark.slow
    def test_it_learns_answers_and_comes_back(self, name):
        whole, cut = family_worker.train_history(name, 8, 1), family_worker.train_history(name, 4, 2)
        for key in ("loss", "grad_norm"):
            self.assertLen(whole[key], 3)
            for update, (a, b) in enumerate(zip(cut[key], whole[key], strict=True)):
                tolerance = RELATIVE_AFTER_UPDATES if update else RELATIVE
                self.assertLess(abs(a - b) / abs(b), tolerance, key)
        for method in ("generate", "score"):
            few, many = (family_worker.evaluation(name, method, batch_size=size) for size in (1, 16))
            self.assertEqual(few["predictions"], many["predictions"])
            self.assertLess(abs(few["loss"] - many["loss"]) / many["loss"], RELATIVE)
            self.assertLen(many["predictions"], family_worker.EVALUATED_ROWS)


def first_loss(name: str, task_name: str, rows: list[dict]) -> float:
    """Of an update over these rows."""
    tuner = tiny_tuner(
        str(family_worker.place_of(name, task_name) / "model"),
        f"mini/{task_name}",
        train_file=str(write_rows(tempfile.mkdtemp() + "/rows.jsonl", rows)),
        per_device_train_batch_size=len(rows),
        max_steps=1,
        logging_steps=1,
        max_source_length=64,
    )
    tuner.train(valid=False)
    return next(line["train/loss"] for line in tuner.history if "train/loss" in line)


class LossTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_a_decoders_loss_is_that_of_the_answers_tokens_one_row_at_a_time(self):
        task, rows, tokenizer = load_task("mini", "entailment"), tiny_rows("entailment", count=3), tiny_tokenizer()
        model = family_worker.model_of("gpt2", task)
        nats, count = 0.0, 0
        for row in rows:
            (example,) = task.examples(row)
            text = f"{example.inputs}\nanswer: {example.targets}"
            prompt = tokenizer(f"{example.inputs}\nanswer:", add_special_tokens=False)["input_ids"]
            ids = tokenizer(text)["input_ids"]
            with torch.no_grad():
                log_probabilities = model(torch.tensor([ids])).logits.log_softmax(-1)[0]
            places = range(len(prompt), len(ids))
            nats -= sum(float(log_probabilities[place - 1, ids[place]]) for place in places)
            count += len(places)
        self.assertAlmostEqual(first_loss("gpt2", "entailment", rows), nats / count, delta=1e-5 * nats / count)

    def test_squared_differences_are_averaged_over_rows(self):
        task, rows, tokenizer = load_task("mini", "similarity"), tiny_rows("similarity", count=5), tiny_tokenizer()
        model = family_worker.model_of("bert", task)
        squares = 0.0
        for row in rows:
            texts = [row[column] for column in task.entry["text_column_name"]]
            with torch.no_grad():
                number = model(**tokenizer(*texts, return_tensors="pt")).logits.item()
            squares += (number - row[task.entry["label_column_name"]]) ** 2
        self.assertAlmostEqual(first_loss("bert", "similarity", rows), squares / len(rows), delta=1e-5 * squares)


class SeparatorTest(parameterized.TestCase):
    def test_another_separator_than_the_model_was_trained_with_is_told(self):
        place = family_worker.place_of("gpt2", "entailment")
        tuner = tiny_tuner(str(place / "model"), "mini/entailment")
        self.assertEqual(tuner.model.config.answer_separator, "\nanswer: ")
        folder = tuner.save(tempfile.mkdtemp())
        with self.assertLogs("t5suite", "WARNING") as log:
            other = tiny_tuner(str(folder), "mini/entailment", answer_separator=" => ")
        self.assertIn("was trained with '\\nanswer: '", log.output[0])
        self.assertEqual(other.model.config.answer_separator, " => ")

    def test_a_separator_is_read_as_a_shell_passes_it(self):
        place = family_worker.place_of("gpt2", "entailment")
        tuner = tiny_tuner(str(place / "model"), "mini/entailment", answer_separator=r"\n\t\\n" + "\n")
        self.assertEqual(tuner.model.config.answer_separator, "\n\t\\n\n")


OF_T5 = {"candidate_trees", "quick_decoding", "loss_chunks", "quick_attention"}
# The fast paths that a model does not have, by its name. T5's encoder alone has its attention, and umT5 has another.
MISSING_PATHS = {
    "bart": OF_T5, "t5_encoder": OF_T5 - {"quick_attention"}, "umt5": {"quick_attention"}, "t5": set(), "mt5": set(),
    "longt5": OF_T5, "gpt2": OF_T5, "bert": OF_T5,
}  # fmt: skip


class FastPathTest(parameterized.TestCase):
    def warns_of_reference_code(self, name: str, paths: str) -> bool:
        """Whether a run with this model says that `--reference_code` has no effect."""
        folder = family_worker.place_of(name, "sentiment") / "model"
        with self.assertLogs("t5suite", "WARNING") as logs:
            logging.getLogger("t5suite").warning("assertLogs wants a line")
            tiny_tuner(str(folder), "mini/sentiment", quiet=False, reference_code=paths)
        return "--reference_code has no effect: this model has no such fast path" in "\n".join(logs.output)

    @parameterized.parameters(*MISSING_PATHS.items())
    @pytest.mark.quick_cases(4)
    def test_a_fast_path_that_the_model_does_not_have_is_named(self, name, missing):
        warned = {path for path in OF_T5 if self.warns_of_reference_code(name, path)}
        self.assertEqual(warned, missing)

    def test_beside_one_that_it_has_none_is_named(self):
        self.assertTrue(self.warns_of_reference_code("gpt2", "loss_chunks,quick_attention"))
        self.assertFalse(self.warns_of_reference_code("gpt2", "loss_chunks,quick_dropout"))
        self.assertFalse(self.warns_of_reference_code("gpt2", "all"))


HEADLESS = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48"


def bert_for(data, folder=None, **flags):
    """The model of a run: of random weights, or of a folder."""
    if folder is not None:
        return tiny_tuner(str(folder), data).model
    return tiny_tuner(config_name="bert", config_overrides=HEADLESS, data=data, **flags).model


class HeadTest(parameterized.TestCase):
    @parameterized.parameters(("super_glue", "record"), ("super_glue", "wsc"), ("glue", "wnli_simple"))
    def test_free_text_is_refused_by_name(self, benchmark, name):
        with exits_with(78, f"{benchmark}/{name} is answered in free text"):
            bert_for(f"{benchmark}/{name}")

    def test_sets_of_labels_are_refused_as_such(self):
        rows = [{"text": "a", "faults": "late, broken"}, {"text": "b", "faults": "late"}]
        columns = {"text_column": "text", "target_column": "faults", "metrics": "micro_f1"}
        with exits_with(78, "is answered by sets of labels, and an encoder's head gives one label"):
            bert_for(rows, no_eval=True, **columns)

    def test_free_text_of_your_own_rows_names_the_settings_that_make_it_classes_or_numbers(self):
        flags = {"config_name": "bert", "config_overrides": HEADLESS}
        with exits_with(
            78, "own/data is answered in free text, .*; give labels, or a metric of numbers such as pearson"
        ):
            tiny_tuner(data=[{"input": "Long.", "output": "40"}], no_eval=True, **flags)

    def test_one_label_is_no_choice_for_a_head(self):
        flags = {"config_name": "bert", "config_overrides": HEADLESS, "labels": "good", "no_eval": True}
        with exits_with(78, "own/data has one label, 'good': an encoder's head chooses between two or more"):
            tiny_tuner(data=[{"input": "Long.", "output": "good"}], **flags)

    def test_one_head_for_tasks_of_one_label_set(self):
        model = bert_for("glue/rte,qnli")
        self.assertEqual(model.config.id2label, {0: "entailment", 1: "not_entailment"})
        with exits_with(78, "glue/rte is one of entailment, not_entailment, glue/mnli is one of"):
            bert_for("glue/rte,qnli,mnli")
        with exits_with(78, "glue/stsb is a number"):
            bert_for("glue/rte,qnli,stsb")

    def test_a_masked_model_gets_a_new_seeded_head_and_the_log_says_so(self):
        plain = AutoModelForMaskedLM.from_config(family_worker.config_of("bert"))
        folder = save_model(tempfile.mkdtemp(), plain)
        models = []
        for seed in (1, 1, 2):
            with self.assertLogs("t5suite", "INFO") as log:
                models.append(tiny_tuner(str(folder), "mini/sentiment", seed=seed).model)
            self.assertIn("the head for one of negative, positive is new", "\n".join(log.output))
        weights = [model.classifier.weight for model in models]
        self.assertTrue(torch.equal(weights[0], weights[1]))
        self.assertFalse(torch.equal(weights[0], weights[2]))
        for model in models:
            embeddings = [each.bert.embeddings.word_embeddings.weight for each in (model, plain)]
            self.assertTrue(torch.equal(*embeddings))

    def test_a_head_for_other_words_is_not_taken_over(self):
        model = family_worker.model_of("bert", load_task("mini", "sentiment"))
        folder = save_model(tempfile.mkdtemp(), model)
        with self.assertLogs("t5suite", "INFO") as log:
            of_other_task = bert_for("glue/rte", folder)
        self.assertIn("gives one of negative, positive; the task is one of entailment", "\n".join(log.output))
        self.assertFalse(torch.equal(of_other_task.classifier.weight, model.classifier.weight))
        with self.assertNoLogs("t5suite", "WARNING"):
            of_its_task = bert_for("mini/sentiment", folder)
        self.assertTrue(torch.equal(of_its_task.classifier.weight, model.classifier.weight))

    def test_classes_without_names_are_the_task_s_in_its_order(self):
        model = family_worker.model_of("bert", load_task("mini", "sentiment"))
        folder = save_model(tempfile.mkdtemp(), model)
        settings = json.loads((folder / "config.json").read_text())
        settings |= {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "problem_type": None}
        settings.pop("label2id")
        (folder / "config.json").write_text(json.dumps(settings))
        loaded = bert_for("mini/sentiment", folder)
        self.assertEqual(loaded.config.id2label, {0: "negative", 1: "positive"})
        self.assertTrue(torch.equal(loaded.classifier.weight, model.classifier.weight))


@functools.cache
def two_ranks() -> dict:
    """The worker's report from two gloo processes."""
    return law_worker.reported_by_two_ranks(family_worker.__file__, timeout=600)


class RanksTest(parameterized.TestCase):
    @parameterized.parameters(*family_worker.LEARNERS)
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_train_and_score_as_one(self, name, task_name):
        of_ranks = two_ranks()[f"{name} {task_name}"]
        expected = family_worker.train_history(name, 8, 1, task_name)
        for key in ("loss", "grad_norm"):
            for a, b in zip(of_ranks["train"][key], expected[key], strict=True):
                self.assertLess(abs(a - b) / abs(b), RELATIVE, key)
        for method, there in of_ranks["evaluations"].items():
            here = family_worker.evaluation(name, method, task_name)
            self.assertEqual(here["rows"], there["rows"])
            if task_name == "similarity" and method == "classify":
                # A head's number is of rows that were computed together, and its last digit is that of a batch's shape.
                numbers = [[float(text) for text in answers["predictions"]] for answers in (here, there)]
                np.testing.assert_allclose(*numbers, rtol=RELATIVE, atol=RELATIVE)
            else:
                self.assertEqual(here["predictions"], there["predictions"])
            self.assertLess(abs(here["loss"] - there["loss"]) / here["loss"], RELATIVE)
