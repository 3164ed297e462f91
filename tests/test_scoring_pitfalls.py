"""Mistakes that fine-tuning code is known to make between the model's output and the score, and what we do instead."""

from types import SimpleNamespace

import numpy as np
from absl.testing import absltest, parameterized

from t5suite import load_task
from t5suite.models.loading import load_tokenizer
from t5suite.tasks.registry import score_ids


def sentences(labels):
    return [{"sentence": "s", "label": label} for label in labels]


class PaddingTest(parameterized.TestCase):
    """A mask of the pad id over labels that hold -100 once gave a perfect model 0.196 points."""

    def setUp(self):
        super().setUp()
        self.tokenizer = load_tokenizer(None)
        self.task = load_task("mini", "sentiment")

    def score(self, words, labels, width, filler):
        ids = np.full((len(words), width), filler)
        for row, word in zip(ids, words):
            answer = self.tokenizer(word)["input_ids"]
            row[: len(answer)] = answer
        prediction = SimpleNamespace(predictions=ids, label_ids=None)
        return score_ids(prediction, task=self.task, tokenizer=self.tokenizer, rows=sentences(labels))["accuracy"]

    @parameterized.product(width=[16, 512], padded_with=["pad", -100])
    def test_a_perfect_model_scores_100_whatever_its_answers_are_padded_with(self, width, padded_with):
        filler = self.tokenizer.pad_token_id if padded_with == "pad" else padded_with
        self.assertEqual(self.score(["negative", "positive"], [0, 1], width, filler), 100.0)
        self.assertEqual(self.score(["positive", "negative"], [0, 1], width, filler), 0.0)

    def test_rows_are_counted_and_not_tokens(self):
        self.assertEqual(self.score(["positive"] * 4, [1, 0, 0, 0], 64, -100), 25.0)


class MeaningTest(parameterized.TestCase):
    def test_f1_is_of_the_positive_class_and_differs_from_accuracy(self):
        rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (1, 1, 1, 0)]
        scores = load_task("glue", "mrpc").score(rows, ["equivalent"] * 3 + ["equivalent"])
        self.assertEqual(scores["accuracy"], 75.0)
        self.assertAlmostEqual(scores["f1"], 600 / 7)

    def test_similarities_correlate_as_numbers_and_not_as_tokens(self):
        rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0.0, 1.0, 2.0, 5.0)]
        scores = load_task("glue", "stsb").score(rows, ["0.0", "1", "2.00", "5"])
        self.assertAlmostEqual(scores["pearson"], 100.0)
        self.assertAlmostEqual(scores["spearman"], 100.0)

    def test_an_answer_that_is_no_label_is_no_class(self):
        for labels in ([0, 0], [1, 1]):
            scores = load_task("glue", "sst2").score(sentences(labels), ["something else", ""])
            self.assertEqual(scores, {"accuracy": 0.0, "invalid_rate": 100.0})

    @parameterized.parameters(("sst2", {"sentence": "s"}), ("mrpc", {"sentence1": "a", "sentence2": "b"}))
    def test_hidden_labels_give_no_scores_instead_of_wrong_ones(self, name, row):
        task = load_task("glue", name)
        self.assertEqual(task.score([{**row, "label": -1}] * 2, [task.label_words[0], "<unk>"], "test"), {})

    @parameterized.parameters("rougeL", "exact_match")
    def test_the_best_of_all_references_counts_in_any_order(self, metric):
        task = load_task("super_ni", "english")
        part = {"definition": "d", "positive_examples": [], "negative_examples": [], "input": "i", "task": "t"}
        for output in (["right answer", "other"], ["other", "right answer"], ["other", "right answer", "third"]):
            self.assertEqual(task.score([{**part, "output": output}], ["right answer"], "test")[metric], 100.0)


if __name__ == "__main__":
    absltest.main()
