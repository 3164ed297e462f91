"""Predictions -> points: every metric against sklearn, scipy, sacrebleu, rouge_score, brute force and hand values."""

import itertools
import math
import random
import warnings

import numpy as np
import pytest
import sacrebleu
import scipy.stats
import sklearn.metrics
from absl.testing import parameterized
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error
from sklearn.preprocessing import MultiLabelBinarizer
from task_facts import example_row

from t5suite import Task, load_task
from t5suite.constants import METRIC_GROUPS
from t5suite.tasks.metrics import METRIC_ALIASES, METRICS, normalize_answer, wsc_verdict
from t5suite.testing import exits_with, load_own_rows

SEEDS = list(range(3))


def classes(seed, num_classes, low=-1, size=None):
    """Random (predictions, references); predictions reach down to `low`."""
    rng = np.random.default_rng(seed)
    size = size or int(rng.integers(2, 60))
    return rng.integers(low, num_classes, size).tolist(), rng.integers(0, num_classes, size).tolist()


def wrong_if_invalid(predictions, references):
    return [p if p in (0, 1) else 1 - r for p, r in zip(predictions, references)]


def assert_scores(test, scores, expected):
    test.assertEqual(list(scores), list(expected))
    for name, value in expected.items():
        test.assertIsInstance(scores[name], float, name)
        if math.isnan(value):
            test.assertTrue(math.isnan(scores[name]), (name, scores))
        else:
            test.assertAlmostEqual(scores[name], value, delta=1e-9, msg=name)


class ClassMetricsTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_class_scores_are_sklearns(self):
        """Accuracy; Matthews with invalid as a class; binary scores with it as the wrong class; macro scores."""
        for seed in SEEDS:
            for num_classes in (2, 3, 5):
                predictions, references = classes(seed, num_classes)
                expected = 100 * sklearn.metrics.accuracy_score(references, predictions)
                self.assertAlmostEqual(METRICS["accuracy"](predictions, references), expected)
                self.assertAlmostEqual(METRICS["exact_match"](predictions, references), expected)
            for low in (0, -1):
                predictions, references = classes(seed, 2, low)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    expected = 100 * sklearn.metrics.matthews_corrcoef(references, predictions)
                self.assertAlmostEqual(METRICS["matthews_correlation"](predictions, references), expected)
            for name in ("f1", "precision", "recall"):
                function = getattr(sklearn.metrics, f"{name}_score")
                predictions, references = classes(seed, 2)
                expected = 100 * function(references, wrong_if_invalid(predictions, references), zero_division=0)
                for number in (2, None):
                    self.assertAlmostEqual(METRICS[name](predictions, references, num_classes=number), expected)
                for number in (2, 3, 4):
                    predictions, references = classes(seed, number, size=8)
                    settings = {"labels": range(number), "average": "macro", "zero_division": 0}
                    expected = 100 * function(references, predictions, **settings)
                    for metric in (name, f"{name}_macro") if number > 2 else (f"{name}_macro",):
                        self.assertAlmostEqual(METRICS[metric](predictions, references, num_classes=number), expected)

    @parameterized.parameters(("f1", 400 / 7), ("precision", 50), ("recall", 200 / 3))
    def test_an_answer_that_is_no_label_is_the_wrong_class_of_two(self, metric, of_two):
        # read as 1 1 1 0 1 0: two right, two that are none, one missed
        answers, labels = [1, 1, 1, 0, -1, -1], [1, 1, 0, 0, 0, 1]
        for num_classes in (2, None):
            self.assertAlmostEqual(METRICS[metric](answers, labels, num_classes=num_classes), of_two)

    @parameterized.parameters(("f1", 1 / 2, 2 / 3), ("precision", 1, 2 / 3), ("recall", 1 / 3, 2 / 3))
    def test_a_macro_score_is_the_mean_of_all_classes(self, metric, of_zero, of_one):
        answers, labels = [1, 1, 1, 0, -1, -1], [1, 1, 0, 0, 0, 1]
        for num_classes in (2, 3, 4):
            expected = 100 * (of_zero + of_one) / num_classes
            self.assertAlmostEqual(METRICS[f"{metric}_macro"](answers, labels, num_classes=num_classes), expected)
        words = [["no", "yes"][label] for label in labels]
        answers_in_words = ["yes", "yes", "yes", "no", "maybe", ""]
        self.assertAlmostEqual(METRICS[f"{metric}_macro"](answers_in_words, words), 50 * (of_zero + of_one))
        self.assertAlmostEqual(METRICS[metric](answers, labels, num_classes=3), 100 * (of_zero + of_one) / 3)

    @parameterized.parameters(
        ([1, 0, 1, 0], [1, 0, 0, 0], 57.735026918962575), ([0, 1], [0, 1], 100.0), ([1, 0], [0, 1], -100.0),
        ([1, 1, 1], [1, 0, 1], 0.0), ([1], [1], 0.0), ([-1, -1, -1], [0, 1, 1], 0.0),
        # c = 2 right of s = 4; sum t*p = 2*1 + 2*1 + 0*2 = 4; (c*s - 4) / sqrt((16 - 6) * (16 - 8))
        ([0, -1, 1, -1], [0, 0, 1, 1], 100 * 4 / math.sqrt(10 * 8)),
    )  # fmt: skip
    def test_matthews_of(self, predictions, references, expected):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertAlmostEqual(METRICS["matthews_correlation"](predictions, references), expected)

    @parameterized.parameters(
        ([0, 1, 2], [0, 1, 2], 100), ([0, 0], [0, 0], 100 / 3), ([0, 1], [0, 1], 200 / 3),
        ([-1, 1, 2], [0, 1, 2], 200 / 3),
        # class 0: precision 1, recall 1/2
        ([0, -1, 1, 2], [0, 0, 1, 2], (200 / 3 + 100 + 100) / 3),
        ([0, 1, 1, 2], [0, 0, 1, 2], (200 / 3 + 200 / 3 + 100) / 3),
        ([-1, -1], [0, 1], 0),
    )  # fmt: skip
    def test_cb_f1_is_the_mean_of_exactly_three_classes(self, predictions, references, expected):
        self.assertAlmostEqual(METRICS["mean_3class_f1"](predictions, references), expected)

    @parameterized.parameters(("f1", "f1_score"), ("precision", "precision_score"), ("recall", "recall_score"))
    def test_three_classes_are_scored_as_three_whatever_the_rows_at_hand_hold(self, metric, function):
        """scikit-learn's macro score of classes 0, 1 and 2, in the task, in a group of it, and in an average."""
        entry = {
            "prefix": "review: ", "text_column_name": "text", "label_column_name": "label",
            "labels": ["bad", "good", "mixed"], "metric_names": [metric], "metric_to_optimize": metric,
            "report_by": ["place"],
        }  # fmt: skip
        task, answers = Task("mine", "reviews", entry), ["bad", "good", "mixed", "mixed"]
        rows = [{"text": "a", "label": label, "place": "all"} for label in (0, 1, 0, 1)]
        settings = {"labels": [0, 1, 2], "average": "macro", "zero_division": 0}
        expected = 100 * getattr(sklearn.metrics, function)([0, 1, 0, 1], [0, 1, 2, 2], **settings)
        scores = task.score(rows, answers)
        self.assertAlmostEqual(scores[metric], expected)
        groups = task.score_groups(task.example_set(rows), answers)
        self.assertAlmostEqual(groups["place"]["all"][metric], expected)
        if metric == "f1":
            self.assertEqual(round(scores[metric], 2), 44.44)


class GroupedMetricsTest(parameterized.TestCase):
    def test_a_group_is_right_when_all_of_it_is_and_need_not_be_adjacent(self):
        exact_match = METRICS["grouped_exact_match"]
        self.assertEqual(exact_match([1, 0, 1, 0], [1, 0, 0, 0], groups=["p", "q", "q", "p"]), 50.0)
        self.assertEqual(exact_match([1, 0, 1, 1], [1, 0, 0, 0], groups=["p", "q", "q", "p"]), 0.0)
        self.assertAlmostEqual(exact_match([1, -1, 0], [1, 0, 0], groups=[1, 2, 3]), 200 / 3)

    @parameterized.parameters(
        ([1, 1, 0, 1], ["p", "p", "q", "q"], 50), ([1, 0, 1, 0], ["p", "q", "p", "q"], 100),
        ([1, 1, 0, 0, 1, 1], ["p"] * 6, 100), ([-1, -1], ["p", "p"], 100), ([-1, 1], ["p", "p"], 0),
        ([0, 0, 1], ["p", "p", "q"], 100), ([0, 1], ["p", "q"], math.nan),
    )  # fmt: skip
    def test_gender_parity_compares_the_predictions_of_a_pair(self, predictions, groups, expected):
        score = METRICS["gender_parity"](predictions, [0] * len(predictions), groups=groups)
        self.assertEqual(score, expected) if expected == expected else self.assertTrue(math.isnan(score))


class CorrelationTest(parameterized.TestCase):
    def test_correlations_equal_scipy(self):
        for seed, name in itertools.product(SEEDS, ("pearson", "spearman")):
            rng = np.random.default_rng(seed)
            references = np.round(rng.uniform(0, 5, 30) * 5) / 5
            predictions = np.round((references + rng.normal(0, 1, 30)) * 5) / 5
            expected = 100 * getattr(scipy.stats, f"{name}r")(references, predictions)[0]
            self.assertAlmostEqual(METRICS[name](predictions.tolist(), references.tolist()), expected)

    def test_errors_are_scikit_learns_and_no_part_of_a_mean(self):
        predictions, references = [3.0, 1.5, -2.0], [2.0, 4.0, -2.0]
        expected = -mean_absolute_error(references, predictions)
        self.assertAlmostEqual(METRICS["neg_mean_absolute_error"](predictions, references), expected)
        self.assertTrue(math.isnan(METRICS["neg_mean_absolute_error"]([math.nan], [1.0])))
        rows = [{"text": "a", "price": "2.5"}, {"text": "b", "price": "4"}]
        columns = {"text_column": "text", "target_column": "price", "no_eval": True}
        task = load_own_rows(rows, metrics="pearson,spearman,neg_mean_absolute_error", **columns).task
        scores = task.score(rows, ["2.5", "3"])
        self.assertEqual(scores["neg_mean_absolute_error"], -0.5)
        self.assertAlmostEqual(task.optimised(scores), 100)
        alone = load_own_rows(rows, metrics="neg_mean_absolute_error", **columns).task
        self.assertEqual(alone.value_kind, "number")
        self.assertEqual(alone.optimised(alone.score(rows, ["2.5", "3"])), -0.5)

    @parameterized.product(
        name=["pearson", "spearman"],
        case=[([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), ([1.0, math.nan, 3.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, math.inf], [1.0, 2.0, 3.0]), ([1.0], [2.0])],
    )  # fmt: skip
    def test_constants_infinite_numbers_nan_and_single_values_give_nan_without_a_warning(self, name, case):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertTrue(math.isnan(METRICS[name](*case)))


class AnswerMetricsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("The U.S. Army", "us army"), ("co-op", "coop"), ("a an the", ""), ("theatre an-d", "theatre and"),
        ("  two\t words\n", "two words"),
        ("\u201cQuoted\u201d \u2014 it\u2019s", "\u201cquoted\u201d \u2014 it\u2019s"), ("Tom's $5.00!", "toms 500"),
        ("a.b the-end", "ab theend"), ("", ""),
    )  # fmt: skip
    def test_an_answer_is_normalised_to(self, text, expected):
        self.assertEqual(normalize_answer(text), expected)

    @parameterized.parameters(
        # prediction, references, exact match, F1
        ("Bob", ["bob"], 100, 100), ("the Bob!", ["Bob", "Ann"], 100, 100), ("x", ["y"], 0, 0),
        ("Bob Dylan", ["Bob", "Dylan Thomas"], 0, 200 / 3), ("the", ["a"], 100, 0), ("", ["."], 100, 0),
        ("", ["Bob"], 0, 0), ("b b c", ["b c c"], 0, 200 / 3), ("b b", ["b"], 0, 200 / 3),
    )  # fmt: skip
    def test_one_answer_scores(self, prediction, references, exact, f1):
        self.assertAlmostEqual(METRICS["squad_exact_match"]([prediction], [references]), exact)
        self.assertAlmostEqual(METRICS["squad_f1"]([prediction], [references]), f1)

    def test_both_scores_take_their_own_best_reference(self):
        self.assertEqual(METRICS["squad_f1"](["Bob"], ["Bob"]), 100.0)
        self.assertEqual(METRICS["squad_exact_match"](["the"], [["a", "the x"]]), 100.0)
        self.assertAlmostEqual(METRICS["squad_f1"](["the x y"], [["x", "x y z w"]]), 200 / 3)


DETERMINERS = (
    "a an few her his each every many much my our some that the their these this those which whose your A The THEIR"
).split()


class WscVerdictTest(parameterized.TestCase):
    CASES = [
        ("Tom", "Tom", 1), ("tom", "TOM", 1), ("  Tom\n", "Tom", 1), ("Tom", "Ann", 0), ("the fuzzy bunny", "bunny", 1),
        ("bunny", "the fuzzy bunny", 1), ("bunny fuzzy", "fuzzy bunny", 1), ("fuzzy cat", "fuzzy bunny", 0), ("Tom Tom", "Tom", 1),
        ("bun", "bunny", 0),
        *[(f"{determiner} bunny", "bunny", 1) for determiner in DETERMINERS],
        *[(f"{word} bunny", "the cat bunny", 0) for word in ["its", "no", "all", "any", "both", "he", "one"]], ("", "Tom", -1), ("   ", "Tom", -1),
        ("the", "Tom", -1), (" The a ", "Tom", -1), ("the  a", "Tom", -1), ("the   a", "Tom", 0), ("the", "the", -1), ("Tom", "the", 0),
        ("Tom", "", 0), ("Tom's", "Tom", 0), ("Tom", "Tom's hat", 0), ("Tom's hat", "Tom's", 1), ("Tom's", "Ann's hat", 0),
        ("the dogs' bowl", "bowl", 0), ("o'clock", "tom's o'clock", 1), ("Tom.", "Tom", 0), ("Tom,", "Tom, Ann", 1), ("fuzzy  bunny", "bunny", 1),
        ("fuzzy  bunny", "big fuzzy bunny", 0), ("fuzzy  bunny", "big  fuzzy bunny", 1), ("the\tbunny", "bunny", 0),
        ("fuzzy\tbunny", "fuzzy\tbunny", 1), ("Tom\u2019s", "Tom\u2019s hat", 1),
    ]  # fmt: skip

    def test_a_written_referent_is_judged(self):
        for written, referent, verdict in self.CASES:
            self.assertEqual(wsc_verdict(written, referent), verdict, (written, referent))


class TextMetricsTest(parameterized.TestCase):
    PREDICTIONS = ["The cat sat on the mat , twice .", "No—I “said” 3,5 % .", "", "A second line . And another . End"]
    REFERENCES = [
        "The cat sat on a mat , twice .", "No—I “said” it 3,5 %.", "Something .", "A second line . And one . End",
    ]  # fmt: skip
    OTHERS = ["A cat was on the mat .", "I said no.", "Nothing", "The last . End"]

    def test_bleu_and_chrf_are_sacrebleus_with_one_reference_or_several(self):
        for name, options in (("bleu", {"tokenize": "intl"}), ("chrf", {})):
            function = getattr(sacrebleu, f"corpus_{name}")
            expected = function(self.PREDICTIONS, [self.REFERENCES], **options).score
            self.assertAlmostEqual(METRICS[name](self.PREDICTIONS, self.REFERENCES), expected)
            rows = [list(pair) for pair in zip(self.REFERENCES, self.OTHERS)]
            expected = function(self.PREDICTIONS, [self.REFERENCES, self.OTHERS], **options).score
            self.assertAlmostEqual(METRICS[name](self.PREDICTIONS, rows), expected)

    @parameterized.parameters("rouge1", "rouge2", "rougeLsum")
    def test_rouge_is_the_mean_of_rouge_scores_f1_with_sentences_on_lines(self, name):
        from rouge_score import rouge_scorer  # slow to import

        scorer = rouge_scorer.RougeScorer([name], use_stemmer=False)

        def one(prediction, reference):
            lines = [text.replace(" . ", " .\n") for text in (reference, prediction)]
            return scorer.score(*lines)[name].fmeasure

        expected = [one(p, r) for p, r in zip(self.PREDICTIONS, self.REFERENCES)]
        self.assertAlmostEqual(METRICS[name](self.PREDICTIONS, self.REFERENCES), 100 * np.mean(expected))
        best = [max(one(p, r), one(p, o)) for p, r, o in zip(self.PREDICTIONS, self.REFERENCES, self.OTHERS)]
        rows = list(zip(self.REFERENCES, self.OTHERS))
        self.assertAlmostEqual(METRICS[name](self.PREDICTIONS, rows), 100 * np.mean(best))

    def test_rouge_lsum_finds_sentences_in_any_order_and_rouge_l_one_order_of_the_whole_text(self):
        pair = ["a b . c d"], ["c d . a b"]
        self.assertEqual((METRICS["rougeL"](*pair), METRICS["rougeLsum"](*pair)), (50.0, 100.0))

    @parameterized.parameters(
        ("a b . c d", "c d a b", 100.0),
        ("a b . c d . e f", "e f c d a b", 100.0),
        ("a b. c d", "c d a b", 50.0),  # a full stop ends a sentence only between spaces
    )
    def test_rouge_lsum_splits_the_sentences_of_predictions_and_of_every_reference(self, sentences, line, expected):
        rouge = METRICS["rougeLsum"]
        self.assertEqual(rouge([sentences], [line]), expected)
        self.assertEqual(rouge([line], [sentences]), expected)
        self.assertEqual(rouge([line], [["x", sentences]]), expected)
        self.assertEqual(rouge([line], [[sentences, "x"]]), expected)

    @parameterized.parameters(
        ('{"a": 3, "b": [1]}', '{"b": [1.0], "a": 3.0}', 100.0),
        ("[100, 0, 1.5, -20]", "[1e2, -0.0, 1.50, -2.0e1]", 100.0),
        ("[9007199254740993]", "[9007199254740992]", 0.0),  # no float tells these apart
        ("[3]", "[3.5]", 0.0),
        ('["3"]', "[3]", 0.0),
        ("[1]", "[true]", 0.0),
    )
    def test_numbers_in_json_are_compared_by_their_values(self, prediction, reference, expected):
        self.assertEqual(METRICS["json_match"]([prediction], [reference]), expected)
        self.assertEqual(METRICS["json_match"]([reference], [[prediction, "x"]]), expected)

    def test_words_are_not_stemmed(self):
        self.assertEqual(METRICS["rouge1"](["cats running"], ["cat runs"]), 0.0)


def labelled(labels, **columns):
    return [{**columns, "label": label, "idx": i} for i, label in enumerate(labels)]


NOT = "not_entailment"
WSC = {"text": "Tom saw he x", "span1_index": 0, "span2_text": "he", "span2_index": 2, "idx": 0}
RECORD = {"passage": "p", "query": "q", "entities": ["E"]}


class TaskScoreTest(parameterized.TestCase):
    """`task.score` from texts, as the reference cases call it."""

    def check(self, task, rows, predictions, expected, **settings):
        assert_scores(self, load_task(*task.split("/")).score(rows, predictions, **settings), expected)

    @parameterized.parameters(
        ("glue/sst2", "positive", "negative"), ("glue/qnli", NOT, "entailment"), ("glue/rte", NOT, "entailment"),
        ("glue/wnli", "entailment", NOT), ("super_glue/boolq", "True", "False"), ("super_glue/rte", NOT, "entailment"),
        ("super_glue/copa", "choice2", "choice1"), ("super_glue/wic", "True", "False"),
    )  # fmt: skip
    def test_two_class_accuracy_is_case_and_space_sensitive(self, task, one, zero):
        rows = labelled([1, 1, 1, 1, 0, 0, 0, 0], **dict.fromkeys(load_task(*task.split("/")).text_columns, "x"))
        predictions = [one, zero, f" {one}", one.swapcase(), zero, f"{zero} ", zero + ".", ""]
        self.check(task, rows, predictions, {"accuracy": 25, "invalid_rate": 62.5})

    def test_labels_of_classes(self):
        pair, nli = {"sentence1": "a", "sentence2": "b"}, {"premise": "p", "hypothesis": "h"}
        # invalid on a 1 -> 0, invalid on a 0 -> 1: one true positive, one false, one missed
        half = {"f1": 50, "accuracy": 50, "invalid_rate": 50}
        rows = labelled([1, 1, 0, 0], **pair)
        self.check("glue/mrpc", rows, ["equivalent", "other", "other", "not_equivalent"], half)
        rows = labelled([1, 1, 0, 0], question1="a", question2="b")
        self.check("glue/qqp", rows, ["duplicate", "other", "other", "not_duplicate"], half)
        rows, words = labelled([0, 0, 1, 2], **nli), ["entailment", "Entailment", "contradiction", "neutral"]
        expected = {"mean_3class_f1": (200 / 3 + 200) / 3, "accuracy": 75, "invalid_rate": 25}
        self.check("super_glue/cb", rows, words, expected)
        expected = {"matthews_correlation": 100 / math.sqrt(3), "invalid_rate": 0}
        self.check("super_glue/axb", labelled([0, 1, 0, 1], **pair), ["entailment", NOT, NOT, NOT], expected)
        self.check("glue/ax", labelled([0, 2], **nli), ["entailment", "neutral"], {})

    @parameterized.parameters(
        (["1.0", "2.0", "4.0"], 100, 100, 0), (["4.0", "2.0", "1.0"], None, -100, 0),
        (["1.0", "1.0", "1.0"], math.nan, math.nan, 0), (["1.0", "nan", "4.0"], math.nan, math.nan, 100 / 3),
    )  # fmt: skip
    def test_stsb(self, predictions, pearson, spearman, invalid):
        labels = [1.0, 2.0, 4.0]
        if pearson is None:
            pearson = 100 * scipy.stats.pearsonr(labels, [float(p) for p in predictions])[0]
        expected = {"pearson": pearson, "spearman": spearman, "invalid_rate": invalid}
        self.check("glue/stsb", labelled(labels, sentence1="a", sentence2="b"), predictions, expected)

    def test_stsb_gold_is_the_rounded_score(self):
        # 0.1, 0.5, 0.9 -> 0.0, 0.4, 0.8; 2.333 -> 2.4
        rows = labelled([0.1, 0.5, 0.9, 2.333], sentence1="a", sentence2="b")
        gold, read = [0.0, 0.4, 0.8, 2.4], [1.0, 0.0, 3.0, 2.0]
        found = load_task("glue", "stsb").score(rows, list(map(str, read)))
        self.assertAlmostEqual(found["pearson"], 100 * scipy.stats.pearsonr(gold, read)[0])
        self.assertNotAlmostEqual(found["pearson"], 100 * scipy.stats.pearsonr([0.1, 0.5, 0.9, 2.333], read)[0])

    def test_multirc_groups_by_question_id_alone_wherever_its_rows_stand(self):
        rows = labelled([1, 0, 0, 1, 1], paragraph="p", question="q", answer="a")
        with exits_with(65, "idx.question"):
            load_task("super_glue", "multirc").score(rows, ["True"] * 5)
        for i, (row, question) in enumerate(zip(rows, [7, 8, 7, 8, 9])):
            row["idx"] = {"paragraph": 5 * (i == 2), "question": question, "answer": i}
        # one question of three all right; true positives 1, missed 2
        expected = {"f1": 50, "exact_match": 100 / 3, "invalid_rate": 20}
        self.check("super_glue/multirc", rows, ["True", "False", "False", "False", "yes"], expected)

    def test_record_scores_the_first_prediction_of_a_query_against_all_its_answers(self):
        answers = [["Bob", "Bob Dylan"], ["Ann"], ["x", "y", "z"]]
        rows = [{**RECORD, "answers": a, "idx": {"passage": i // 2, "query": i}} for i, a in enumerate(answers)]
        expected = {"f1": (100 + 100 + 200 / 3) / 3, "exact_match": 200 / 3}
        self.check("super_glue/record", rows, ["bob dylan!", "wrong", "the Ann", "y z", "y", "y"], expected)

    @parameterized.parameters((1, 50), (0, 100))
    def test_record_tells_queries_apart_by_their_ids(self, second, points):
        rows = [{**RECORD, "answers": ["Bob"], "idx": {"passage": 0, "query": 0}}]
        rows.append({**RECORD, "answers": ["Ann"], "idx": {"passage": 0, "query": second}})
        self.check("super_glue/record", rows, ["Bob", "Bob"], {"f1": points, "exact_match": points})

    @parameterized.product(task=["wsc", "wsc.fixed"])
    def test_wsc_compares_the_verdict_with_the_label(self, task):
        cases = [("Tom", "the Tom", 1), ("Tom", "Tom Sawyer", 0), ("Tom", "Ann", 0), ("Tom", "Ann", 1), ("Tom", "the", 0),
                 ("Tom", "", 1), ("Tom", "Tom's", 0), ("Tom's hat", "hat", 1)]  # fmt: skip
        rows = [{**WSC, "span1_text": span, "label": label} for span, _, label in cases]
        # right: 1 (1 = 1), 2 (1 != 0), 3 (0 = 0), 4 (0 != 1), 5 (-1), 6 (-1), 7 (0 = 0), 8 (0 != 1)
        self.check(f"super_glue/{task}", rows, [written for _, written, _ in cases], {"accuracy": 37.5})

    def test_wsc_training_rows_are_scored_without_the_false_ones(self):
        rows = [{**WSC, "span1_text": name, "label": label} for name, label in (("Tom", 0), ("Ann", 1), ("Bob", 1))]
        self.check("super_glue/wsc.fixed", rows, ["ann", "Tom"], {"accuracy": 50}, split="train")
        with exits_with(65, "3 rows make 2 examples.* 3 predictions"):
            load_task("super_glue", "wsc.fixed").score(rows, ["Tom", "ann", "Bob"], split="train")

    def test_wnli_simple_compares_the_verdict_and_dpr_the_exact_text(self):
        rows = labelled([1, 0, 0, 1], sentence1="The cup fell, so it broke.", sentence2="The cup broke.")
        self.check("glue/wnli_simple", rows, ["cup", "the cup", "floor", ""], {"accuracy": 50})
        rows = labelled([0, 0, 0, 1], sentence="a he b", pronoun="he", candidates=["The bees", "Tom"])
        self.check("super_glue/dpr", rows, ["The bees", "the bees", "bees", "Tom"], {"accuracy": 50})

    @parameterized.parameters([[0, 1, 2, 3]], [[0, 2, 1, 3]])
    def test_axg_has_accuracy_and_parity_over_pairs(self, order):
        pairs = itertools.product((("A", 0), ("B", 1)), ("He", "She"))
        rows = [{"premise": f"{who} ran.", "hypothesis": h, "label": label} for (h, label), who in pairs]
        words = ["entailment", "entailment", "entailment", NOT]
        expected = {"accuracy": 75, "gender_parity": 50, "invalid_rate": 0}
        self.check("super_glue/axg", [rows[i] for i in order], [words[i] for i in order], expected)


UNLABELLED = (
    "glue/sst2 glue/stsb glue/mnli glue/ax glue/wnli_simple super_glue/cb super_glue/multirc super_glue/record "
)
UNLABELLED += "super_glue/wsc super_glue/axb super_glue/axg super_glue/dpr"


class ScoreContractTest(parameterized.TestCase):
    def test_unlabelled_rows_have_no_scores_and_do_not_mix_with_labelled_ones(self):
        for name in UNLABELLED.split():
            task = load_task(*name.split("/"))
            row = {
                **example_row(*name.split("/")),
                "answers": [],
                "idx": {"passage": 0, "query": 0, "question": 0},
                "label": -1,
            }
            self.assertEqual(task.score([row, row], ["x", "y"]), {})
            labelled_row = {**row, "answers": ["E"], "label": 1}
            for rows in ([labelled_row, row], [row, labelled_row]) if task.name != "ax" else ():
                with exits_with(65, "no label"):
                    task.score(rows, ["x", "y"])
        self.assertEqual(load_task("glue", "sst2").score([{"sentence": "x"}], ["x"]), {})

    def test_another_number_of_predictions_is_refused_with_both_numbers(self):
        rows = labelled([1, 0, 1], sentence="x")
        for count in (0, 1, 2, 4, 5):
            with exits_with(65, rf"\b3 examples\b.*\b{count} predictions\b"):
                load_task("glue", "sst2").score(rows, ["positive"] * count)
        ids = {"passage": 0, "query": 0}
        row = {"passage": "p", "query": "q", "entities": ["E"], "answers": ["A", "B", "C"], "idx": ids}
        with exits_with(65, r"1 rows make 3 examples.* 1 predictions"):
            load_task("super_glue", "record").score([row], ["A"])


# Two answers to metrics that take no plain text.
OTHER_ANSWERS = {"pearson": [1.0, 2.0], "spearman": [1.0, 2.0], "neg_mean_absolute_error": [1.0, 2.0]}
OTHER_ANSWERS |= {"mean_3class_f1": [0, 1], "token_accuracy": [["A"], ["B"]], "token_f1_macro": [["A"], ["B"]]}
OTHER_ANSWERS |= {"span_f1": [["O"], ["O"]], "micro_f1": [["a"], ["b"]], "macro_f1": [["a"], ["b"]]}
OTHER_ANSWERS |= {"subset_accuracy": [["a"], ["b"]], "json_match": ["{}", "{}"]}


class TablesTest(parameterized.TestCase):
    @parameterized.parameters(*METRICS)
    def test_another_number_of_answers_than_of_rows_is_refused(self, name):
        answers = OTHER_ANSWERS.get(name, ["a", "b"])
        groups = ["p", "q"]
        METRICS[name](answers, answers, groups=groups)
        for count, num_rows in ((1, 2), (2, 1)):
            with self.assertRaises(ValueError):
                METRICS[name](answers[:count], answers[:num_rows], groups=groups[:num_rows])

    def test_the_promised_metrics_exist(self):
        promised = (
            "accuracy f1 precision recall matthews_correlation pearson spearman mean_3class_f1 exact_match gender_parity "
            "bleu chrf rouge squad mcc pearsonr spearmanr precision_macro recall_macro"
        )
        self.assertContainsSubset(promised.split(), {**METRICS, **METRIC_GROUPS, **METRIC_ALIASES})


class LabelSetsTest(parameterized.TestCase):
    """Several labels a row, against scikit-learn on indicator matrices."""

    LABELS = ("broken", "late", "rude staff", "wrong item")

    def drawn_sets(self, seed: int, count: int) -> list[list[str]]:
        draw = random.Random(seed)
        return [[label for label in self.LABELS if draw.random() < 0.4] or ["none"] for _ in range(count)]

    @parameterized.parameters(range(5))
    def test_scores_equal_scikit_learn_s_whatever_the_order_in_the_text(self, seed):
        references = self.drawn_sets(seed, 30)
        predictions = [
            [*labels[1:], "invented"] if i % 3 == 0 else labels
            for i, labels in enumerate(self.drawn_sets(seed + 9, 30))
        ]
        binarizer = MultiLabelBinarizer().fit([*references, *predictions])
        matrices = binarizer.transform(references), binarizer.transform(predictions)
        known = [i for i, label in enumerate(binarizer.classes_) if any(label in labels for labels in references)]
        expected = {
            "micro_f1": 100 * f1_score(*matrices, average="micro", zero_division=0),
            "macro_f1": 100 * f1_score(*matrices, average="macro", labels=known, zero_division=0),
            "subset_accuracy": 100 * accuracy_score(*matrices),
        }
        draw = random.Random(seed)
        texts = [", ".join(draw.sample(labels, len(labels))) for labels in predictions]
        for name, score in expected.items():
            self.assertAlmostEqual(METRICS[name](texts, [", ".join(labels) for labels in references]), score)

    @parameterized.parameters("micro_f1", "macro_f1", "subset_accuracy")
    def test_the_order_of_rows_does_not_change_a_bit(self, name):
        """It is the order in which labels are first seen, as is that of sets, which differs between processes."""
        labels = [f"label {number}" for number in range(40)]
        draw = random.Random(3)
        rows = [(draw.sample(labels, 10), draw.sample(labels, 10)) for _ in range(30)]
        scores = set()
        for _ in range(20):
            draw.shuffle(rows)
            scores.add(METRICS[name](*zip(*rows, strict=True)))
        self.assertLen(scores, 1)

    def test_nothing_is_a_set_too_and_white_space_and_repetitions_do_not_count(self):
        self.assertEqual(METRICS["subset_accuracy"]([" late ,broken,late", ""], ["broken, late", "late"]), 50)
        self.assertEqual(METRICS["micro_f1"](["", ""], ["late", "broken"]), 0)

    @parameterized.parameters((["late", "broken"],), ("late, broken",), ("late,broken, late",))
    def test_the_target_of_a_row_is_its_labels_in_one_order(self, labels):
        rows = [
            {"text": "a", "faults": labels},
            {"text": "b", "faults": labels[:4] if isinstance(labels, str) else labels[:1]},
        ]
        task, rows = load_own_rows(
            rows, text_column="text", target_column="faults", metrics="micro_f1,subset_accuracy", no_eval=True
        )
        (example,) = task.examples(rows[0])
        self.assertEqual(example.targets, "broken, late")
        self.assertEqual(task.references(rows[0]), ["broken, late"])
        self.assertEqual(task.score(rows, ["late, broken", "late"]), {"micro_f1": 100, "subset_accuracy": 100})

    @parameterized.parameters("|", "; ", "['")
    def test_what_separates_labels_is_said_and_a_cell_with_another_sign_is_named(self, sign):
        rows = [{"text": "a", "faults": "late, broken"}, {"text": "b", "faults": f"late{sign}broken"}]
        with self.assertLogs("t5suite", "INFO") as logs:
            load_own_rows(rows, text_column="text", target_column="faults", metrics="micro_f1", no_eval=True)
        log = "\n".join(logs.output)
        self.assertIn("labels in 'faults' are separated by commas: 3 labels in 2 rows (broken, late, late", log)
        self.assertRegex(log, r"WARNING.*'faults' holds .late[|;[].*\(1 such rows\)")
        with self.assertNoLogs("t5suite", "WARNING"):
            load_own_rows(rows[:1] * 2, text_column="text", target_column="faults", metrics="micro_f1", no_eval=True)

    def test_labels_that_differ_in_case_or_spaces_are_named_with_their_counts_and_first_rows(self):
        flags = {"text_column": "text", "target_column": "faults", "metrics": "micro_f1", "no_eval": True}
        cells = ["late, no show", "late", "noshow", "Late, rude", "late", "Rude"]
        with self.assertLogs("t5suite", "WARNING") as logs:
            load_own_rows([{"text": "a", "faults": cell} for cell in cells], **flags)
        (line,) = logs.output
        for pair in (
            r"'Late' \(1 rows, first: train row 3\) and 'late' \(3 rows, first: train row 0\)",
            r"'no show' \(1 rows, first: train row 0\) and 'noshow' \(1 rows, first: train row 2\)",
            r"'Rude' \(1 rows, first: train row 5\) and 'rude' \(1 rows, first: train row 3\)",
        ):
            self.assertRegex(line, pair)
        with self.assertNoLogs("t5suite", "WARNING"):
            load_own_rows([{"text": "a", "faults": cell} for cell in ("late, rude", "rude", "late ")], **flags)

    @parameterized.parameters(", ", ";", " | ", "','")
    def test_sets_without_a_metric_of_sets_are_named_and_those_among_labels_get_the_cure(self, sign):
        sets = [labels[::-1] for labels in self.drawn_sets(1, 40)]
        cells = [sign.join(labels) for labels in sets]
        if "'" in sign:
            cells = [f"['{cell}']" for cell in cells]
        rows = [{"text": "a", "faults": cell} for cell in cells]
        first = next(i for i, labels in enumerate(sets) if len(labels) > 1)
        flags = {"text_column": "text", "target_column": "faults", "no_eval": True}
        for metrics in (None, "accuracy,f1_macro"):
            with self.assertLogs("t5suite", "WARNING") as logs:
                load_own_rows(rows, metrics=metrics, **flags)
            self.assertLen(logs.output, 1)
            self.assertRegex(logs.output[0], rf"row {first}: 'faults' .*--metrics micro_f1,macro_f1,subset_accuracy")
        with exits_with(
            65, "is none of .*; rows with several labels: --metrics micro_f1,.* without --labels, .*commas"
        ):
            load_own_rows(rows[first:], labels=",".join([*self.LABELS, "none"]), **flags)

    @parameterized.named_parameters(
        ("classes", ["good", "bad", "no, really"] * 20),
        ("sentences", ["Yes", "No", "Yes, it is late", "No, it is not", "Yes, and torn; sorry", "No"] * 5),
        ("decimals", [f"{whole},{part}" for whole in range(9) for part in range(9) if whole != part] + ["3", "4"] * 9),
        ("moves", ["left", "right", "left, right", "right, left, right"] * 9),
        ("tuples", [f"{color}, {size}" for color in ("red", "blue", "green") for size in "SML"] * 9),
        ("rare answers", [f"a{i}" for i in range(40)] + ["a1, a2", "a3, a4"]),
    )
    def test_other_texts_with_commas_are_not_taken_for_sets(self, cells):
        with self.assertNoLogs("t5suite", "WARNING"):
            load_own_rows([{"text": "a", "faults": cell} for cell in cells], text_column="text", target_column="faults",
                          metrics="exact_match", no_eval=True)  # fmt: skip

    def test_a_row_without_labels_and_sets_among_labels_end_with_the_cure(self):
        flags = {"text_column": "text", "target_column": "faults", "no_eval": True}
        rows = [{"text": "a", "faults": "late, broken"}, {"text": "b", "faults": None}]
        with exits_with(65, "row 1.*'faults' is empty: a train row must be labelled .*--test_file.*, such as none"):
            load_own_rows(rows, metrics="micro_f1", **flags)
        with exits_with(78, "^--metrics micro_f1,accuracy: 'micro_f1' compares texts.* leave the labels out"):
            load_own_rows(rows[:1], labels="late,broken", metrics="micro_f1,accuracy", **flags)
        with exits_with(78, "^--metrics macro_f1: 'macro_f1' compares texts"):
            load_own_rows(rows[:1], labels="late,broken", metrics="macro_f1", **flags)
        with exits_with(65, "label 'late, broken' .*; rows with several labels: --metrics micro_f1,"):
            load_own_rows(rows[:1], labels="late,broken", **flags)
        with exits_with(65, r"label 'late, new' .* \(-1: unlabelled\)$"):
            load_own_rows([{"text": "a", "faults": "late, new"}], labels="late,broken", **flags)

    @parameterized.parameters("", " ", " , ", ([""],), ([" ", None, ""],))
    def test_a_cell_that_names_no_label_is_unlabelled(self, cell):
        flags = {"text_column": "text", "target_column": "faults", "metrics": "micro_f1", "no_eval": True}
        rows = [{"text": "a", "faults": "late"}, {"text": "b", "faults": cell}]
        with exits_with(65, "row 1: column 'faults' holds .*: a train row must be labelled .*, such as none"):
            load_own_rows(rows, **flags)
        task, (row,) = load_own_rows({"test": rows[1:]}, "test", **flags)
        self.assertFalse(task.is_labelled(row))

    def test_a_label_with_a_comma_is_refused(self):
        with exits_with(65, "column 'faults' holds the label 'late, very': a comma stands between labels"):
            load_own_rows([{"text": "a", "faults": ["late, very"]}], text_column="text", target_column="faults",
                          metrics="micro_f1", no_eval=True).task.examples({"text": "a", "faults": ["late, very"]})  # fmt: skip
