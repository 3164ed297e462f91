"""What a report's numbers are made of: sums that are the metrics, intervals, seeds, baselines, rows joined again; what
is shown on the terminal."""

import contextlib
import io
import json
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import scipy.stats
from absl.testing import parameterized
from report_runs import make_run
from support import folder

from t5suite import load_task
from t5suite.data.rows.jsonl import file_sha256
from t5suite.reports import finishing, results
from t5suite.reports import intervals as resampling
from t5suite.reports.evaluations import confusion, evaluations_of, examples_of, majority
from t5suite.reports.intervals import SUMS, statistic_of, units_of
from t5suite.reports.results import report_data, settings_of
from t5suite.reports.tables import changed_files, print_run_table, rows_of_runs, suite_averages
from t5suite.tasks.metrics import METRICS
from t5suite.tasks.postprocessors import Judged
from t5suite.testing import exits_with
from t5suite.training.eval_sets import Report, Result


def classes(count: int, num: int, groups=False, seed=0) -> Judged:
    drawn = random.Random(seed)
    references = [drawn.randrange(num) for _ in range(count)]
    predictions = [r if drawn.random() < 0.6 else drawn.choice([-1, *range(num)]) for r in references]
    return Judged(predictions, references, [f"g{drawn.randrange(count // 3)}" for _ in references] if groups else None)


def numbers(count: int, seed=0) -> Judged:
    drawn = random.Random(seed)
    references = [drawn.uniform(0, 5) for _ in range(count)]
    return Judged([r + drawn.gauss(0, 1) for r in references], references)


def normal_pairs(count: int, correlation: float) -> Judged:
    """Predictions and references that are normal with a correlation."""
    references, noise = np.random.default_rng(5).normal(size=(2, count))
    predictions = correlation * references + np.sqrt(1 - correlation**2) * noise
    return Judged(predictions.tolist(), references.tolist())


def texts(count: int, seed=0) -> Judged:
    drawn, words = random.Random(seed), "the cat sat on a mat and it was red".split()
    said = lambda: " ".join(drawn.choice(words) for _ in range(4))
    return Judged([said() for _ in range(count)], [[said(), said()] for _ in range(count)])


CASES = {
    **dict.fromkeys(("accuracy", "exact_match", "mean_3class_f1"), (classes(40, 3), 3)),
    **dict.fromkeys(("grouped_exact_match", "f1", "gender_parity"), (classes(40, 2, groups=True), 2)),
    **dict.fromkeys(("matthews_correlation", "precision"), (classes(40, 2), 2)),
    **dict.fromkeys(("pearson", "spearman"), (numbers(40), None)),
    **dict.fromkeys(("squad_f1", "squad_exact_match", "bleu", "rouge1", "rouge2"), (texts(12), None)),
    **dict.fromkeys(("rougeL", "rougeLsum", "instruction_rougeL", "instruction_exact_match"), (texts(12), None)),
    "json_match": (texts(12), None),
    "f1_macro": (classes(40, 4), 4),
}


class MetricSumsTest(parameterized.TestCase):
    def test_every_metric_by_sums_is_tried_here(self):
        self.assertEqual(set(SUMS) - {METRICS[name].__name__ for name in CASES}, set())

    @parameterized.parameters(*CASES)
    def test_a_resample_by_sums_is_the_metric_of_the_rows_drawn(self, name):
        judged, num_classes = CASES[name]
        statistic = statistic_of(METRICS[name], judged, num_classes)
        self.assertEqual(statistic.units is not None, METRICS[name].__name__ in SUMS)
        rng = np.random.default_rng(1)
        counts = rng.multinomial(statistic.num_units, [1 / statistic.num_units] * statistic.num_units, size=6)
        # A unit that is drawn twice is two groups.
        members = units_of(judged)
        for found, row in zip(statistic.resampled(counts), counts):
            chosen = [(i, f"{at}.{copy}") for at, n in enumerate(row) for copy in range(n) for i in members[at]]
            sides = [[side[i] for i, _ in chosen] for side in (judged.predictions, judged.references)]
            groups = judged.groups and [group for _, group in chosen]
            expected = METRICS[name](*sides, groups=groups, num_classes=num_classes)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)

    def test_a_unit_is_a_row_or_a_group(self):
        self.assertEqual(units_of(Judged([1, 1, 0], [1, 1, 0], ["a", "b", "a"])), [[0, 2], [1]])
        self.assertEqual(units_of(Judged([1, 1], [1, 1])), [[0], [1]])


def accuracy_of(num_right: int, count: int):
    """The statistic of an accuracy of `num_right` rows in `count`."""
    return statistic_of(METRICS["accuracy"], Judged([1] * num_right + [0] * (count - num_right), [1] * count), 2)


class IntervalsTest(parameterized.TestCase):
    """95% intervals: by exact distributions of a resample, and by how often they hold the true value."""

    @parameterized.parameters((400, 280), (400, 380), (100, 50), (1000, 30))
    def test_an_accuracy_s_interval_is_that_of_the_binomial(self, count, num_right):
        # A resample's right rows are binomial. The ends of a 90% interval are 2.9, 1.4, 1.6 and 1.7 rows further in.
        ends = scipy.stats.binom.ppf([0.025, 0.975], count, num_right / count)
        interval = resampling.interval_over_rows(accuracy_of(num_right, count))
        rows = np.array([interval["low"], interval["high"]]) * count / 100
        np.testing.assert_allclose(rows, ends, atol=1.0001)
        self.assertLessEqual(np.abs(rows - ends).sum(), 1.0001)

    def test_runs_interval_is_that_of_the_binomial(self):
        # The mean of n runs that score 0 or 100 is binomial, too.
        values = [100.0] * 30 + [0.0] * 20
        interval = resampling.interval_over_values(values)
        ends = scipy.stats.binom.ppf([0.025, 0.975], 50, 0.6) * 2
        np.testing.assert_allclose([interval["low"], interval["high"]], ends, atol=1e-9)

    def test_a_correlation_s_interval_is_fisher_s(self):
        # Normal values: atanh(r) is normal with deviation 1/sqrt(n - 3). A 90% interval is 16% narrower.
        judged = normal_pairs(250, 0.6)
        statistic = statistic_of(METRICS["pearson"], judged, None)
        with mock.patch.object(resampling, "RESAMPLES_DIRECT", 300):
            interval = resampling.interval_over_rows(statistic)
        middle, deviation = np.arctanh(statistic.value() / 100), 1 / np.sqrt(250 - 3)
        low, high = 100 * np.tanh([middle - 1.96 * deviation, middle + 1.96 * deviation])
        np.testing.assert_allclose(interval["high"] - interval["low"], high - low, rtol=0.12)
        np.testing.assert_allclose([interval["low"], interval["high"]], [low, high], atol=0.16 * (high - low))

    def test_the_true_value_lies_within_it_in_95_of_100_samples(self):
        # 200 rows, each right with 0.7. With every number of right rows weighted by its chance, the binomial's own ends
        # cover 95.5%, those of a 90% interval 91.0%.
        num_right = np.arange(119, 162)
        intervals = [resampling.interval_over_rows(accuracy_of(int(count), 200)) for count in num_right]
        covering = np.array([interval["low"] <= 70.0 <= interval["high"] for interval in intervals])
        coverage = scipy.stats.binom.pmf(num_right, 200, 0.7)[covering].sum()
        self.assertBetween(coverage, 0.94, 0.97)

    def test_what_is_undefined_has_none(self):
        self.assertIsNone(resampling.interval_over_values([60.0]))
        self.assertIsNone(resampling.interval_over_values([60.0, None]))
        statistic = statistic_of(METRICS["pearson"], Judged([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), None)
        self.assertIsNone(resampling.interval_over_rows(statistic), "mostly undefined")


class EvaluationsTest(parameterized.TestCase):
    def test_rows_and_predictions_are_joined_and_reproduce_the_results(self):
        run = make_run(folder() / "a", "sentiment", wrong=0.3)
        (evaluation,) = evaluations_of(run)
        self.assertLen(evaluation.examples, 40)
        self.assertStartsWith(evaluation.examples[0]["inputs"], "sentiment")
        right = [p == r for p, r in zip(evaluation.judged.predictions, evaluation.judged.references)]
        self.assertAlmostEqual(100 * np.mean(right), evaluation.scores["accuracy"])
        # Rows of a subset keep their number in the source.
        self.assertGreater(max(example["row"] for example in evaluation.examples), 40)

    def test_predictions_that_do_not_give_the_results_are_used_for_nothing(self):
        run = make_run(folder() / "a", "sentiment")
        found = json.loads((run / "results.json").read_text())
        found["tasks"]["sentiment"]["accuracy"] += 1.0
        (run / "results.json").write_text(json.dumps(found))
        (evaluation,) = evaluations_of(run)
        self.assertIsNone(evaluation.judged)
        data = report_data([run])
        self.assertEqual((data["runs"][0]["intervals"], data["confusions"]), ({}, []))

    def test_a_line_that_is_no_prediction_is_named(self):
        run = make_run(folder() / "a", "sentiment")
        path = run / "predictions" / "sentiment.validation.jsonl"
        path.write_text('{"row": 0, "text": "x"}\n')
        with exits_with(65, r"sentiment.validation.jsonl:1: .*'row' and 'prediction'"):
            evaluations_of(run)

    def test_the_majority_is_counted_over_the_rows(self):
        run = make_run(folder() / "a", "entailment", wrong=0.4, invalid=0.1, limit=60)
        (evaluation,) = evaluations_of(run)
        lines = [json.loads(line) for line in (run / "predictions/entailment.validation.jsonl").open()]
        targets = [line["target"] for line in lines]
        counts = {word: targets.count(word) for word in evaluation.task.label_words}
        found = majority(evaluation)
        self.assertAlmostEqual(found["share"], 100 * max(counts.values()) / 60)
        self.assertAlmostEqual(found["scores"]["accuracy"], found["share"])

    def test_numbers_have_neither(self):
        (evaluation,) = evaluations_of(make_run(folder() / "a", "similarity"))
        self.assertIsNone(majority(evaluation))
        self.assertIsNone(confusion(evaluation))
        self.assertEqual(examples_of(evaluation, 100)["total"], 40)


class ExamplesTest(parameterized.TestCase):
    def test_verdicts_are_counted_over_all_and_few_are_shown(self):
        (evaluation,) = evaluations_of(make_run(folder() / "a", "sentiment", wrong=0.2, invalid=0.1))
        found = examples_of(evaluation, most=10)
        self.assertEqual((found["total"], found["shown"], sum(found["verdicts"].values())), (40, 10, 40))
        for verdict, metric in (("right", "accuracy"), ("invalid", "invalid_rate")):
            self.assertAlmostEqual(100 * found["verdicts"][verdict] / 40, evaluation.scores[metric])
        self.assertEqual(found["examples"][0]["verdict"], "invalid")


class SeedsTest(parameterized.TestCase):
    def run_of(self, name, **settings):
        return {"name": name, "settings": {"max_source_length": 512, "learning_rate": 1e-3, **settings}}

    def test_runs_that_differ_in_the_seed_alone_are_one_setting(self):
        runs = [
            self.run_of("a", seed=1, output_dir="x"),
            self.run_of("b", seed=2, output_dir="y", report_to=["wandb"]),
            self.run_of("c", seed=1, learning_rate=1e-4),
            self.run_of("d", seed=3, dataset_name="rte"),
        ]
        found = settings_of(runs)
        self.assertEqual([setting["runs"] for setting in found], [["a", "b", "d"], ["c"]])
        self.assertEqual([setting["label"] for setting in found], ["learning_rate 0.001", "learning_rate 0.0001"])


class PublishedTest(parameterized.TestCase):
    def test_scores(self):
        for *place, expected in (
            ("glue", "mrpc", "f1", "base", 90.7),
            ("glue", "mnli_mismatched", "accuracy", "11B", 91.9),
            ("super_glue", "wsc.fixed", "accuracy", "3B", 90.4),
            ("glue", "mrpc", "f1", None, None),
            ("mini", "sentiment", "accuracy", "base", None),
        ):
            self.assertEqual(results.published_score(*place), expected)

    def test_the_rows_give_the_printed_averages(self):
        table = results.published_scores()
        for benchmark, printed, without in (("glue", "glue with wnli", ()), ("super_glue", "super_glue", ()),
                                            ("glue", "glue", ("wnli",))):  # fmt: skip
            for at, size in enumerate(table["sizes"]):
                scores = {name: of for name, of in table["test"][benchmark].items() if name not in without}
                means = {name: np.mean([values[at] for values in of.values()]) for name, of in scores.items()}
                if benchmark == "glue":
                    means["mnli"] = (means.pop("mnli_matched") + means.pop("mnli_mismatched")) / 2
                off = 0.006 if without else 0.4 if (benchmark, size) == ("super_glue", "11B") else 0.06
                self.assertAlmostEqual(np.mean(list(means.values())), table["averages"][printed][at], delta=off)
        self.assertEqual(results.published_average("glue", "base"), 83.23)


def rows_of_run(benchmark, tasks, data=None, **more):
    directory = folder()
    (directory / "results.json").write_text(json.dumps({"tasks": tasks, "averages": {}}))
    manifest = {"run_id": "4f2a", "settings": {"benchmark": benchmark}, "data": data or {}, "marks": {},
                "training": {"train_runtime": 3.0}, **more}  # fmt: skip
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return rows_of_runs([directory])


class RunTablesTest(parameterized.TestCase):
    def test_a_row_has_the_scores_and_the_evaluated_rows(self):
        data = {"rte.train": {"used": 9, "kept_for_selection": 0}, "rte.validation": {"used": 277}}
        halves = {f"mnli.validation_{half}": {"used": n} for n, half in enumerate(("matched", "mismatched"), 5)}
        for tasks, of_task, expected in (
            ({"mnli_mismatched": {}}, halves, 6),
            ({"wsc.fixed": {}}, {"wsc.validation": {"used": 1}, "wsc.fixed.validation": {"used": 2}}, 2),
            ({"rte.test": {}}, {**data, "rte.test": {"used": 3}}, 3),
        ):
            (row,) = rows_of_run("glue", tasks, of_task)
            self.assertEqual(row["n"], expected)
        (row,) = rows_of_run("glue", {"rte": {"accuracy": 70.0, "invalid_rate": 1.0}}, data)
        self.assertEqual((row["task"], row["n"], row["metrics"]), ("rte", 277, {"accuracy": 70.0}))
        self.assertEqual((row["invalid_rate"], row["train_seconds"]), (1.0, 3.0))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print_run_table([row])
        header, _, cells = (line.split() for line in out.getvalue().splitlines()[1:4])
        self.assertEqual(header, "task n metrics invalid % train s notes run".split())
        self.assertEqual(cells, ["glue/rte", "277", "accuracy", "70.00", "1.00", "3", row["run"]])
        (row,) = rows_of_run("mini", {"reviews": {"accuracy": 70.0}}, trained_on=["own", "reviews"])
        self.assertEqual((row["benchmark"], row["task"]), ("own", "reviews"))

    def test_runs_that_cover_a_benchmark_have_its_average(self):
        parts = {"sentiment": {"accuracy": 90.0}, "entailment": {"accuracy": 60.0}}
        rows = [row for name, scores in parts.items() for row in rows_of_run("mini", {name: scores})]
        self.assertEqual(suite_averages(rows), {})
        rows += rows_of_run("mini", {"similarity": {"pearson": 70.0, "spearman": 50.0}})
        self.assertAlmostEqual(suite_averages(rows)["mini"], (90 + 60 + 60) / 3)
        tasks = {name: {"accuracy": 80.0} for name in ("cola", "sst2", "mrpc", "qqp", "stsb", "qnli", "rte")}
        tasks |= {"mnli_matched": {"accuracy": 60.0}, "mnli_mismatched": {"accuracy": 100.0}}
        self.assertAlmostEqual(suite_averages(rows_of_run("glue", tasks))["glue"], 80.0)


class HintsTest(parameterized.TestCase):
    def hint(self, rate=100.0, name="mini/sentiment"):
        """What is said of a run whose answers are 'a', '<pad>' and 'a'."""
        task = load_task(*name.split("/"))
        metrics = {"accuracy": 0.0, "invalid_rate": rate}
        result = Result(task.name, metrics, ["a", "<pad>", "a"], 3, 0.1, 1.0, 0, "generate", [], True)
        sets = [SimpleNamespace(name=task.name, task=task, role="validation", split="validation")]
        run = SimpleNamespace(manifest={"training": {"steps": 6}}, directory="runs/x")
        with mock.patch.object(finishing.logger, "warning") as warned:
            finishing.give_hints(Report({task.name: result}, 0.0, {task.name: 0.0}), sets, run)
        return warned.call_args[0][0] if warned.called else None

    def test_a_hint_is_given_where_hardly_any_answer_is_a_label(self):
        for rate, is_given in ((89.9, False), (90.0, True), (100.0, True), (float("nan"), False)):
            self.assertEqual(self.hint(rate=rate) is not None, is_given, rate)
        hint = self.hint()
        said = "sentiment: 100% of the answers are not labels (negative, positive); most often 'a' (2 times)."
        self.assertStartsWith(hint, f"{said} See runs/x/predictions/sentiment.validation.jsonl.")
        self.assertIn("too few updates (6 here)", hint)
        self.assertIn("--eval_method score", hint)
        self.assertNotIn("--eval_method", self.hint(name="super_glue/wsc"), "its labels cannot be scored")

    def test_a_file_that_has_changed_since_the_run_is_named(self):
        path = Path(tempfile.mkdtemp()) / "rows.csv"
        path.write_text("text,label\na,b\n")
        facts = {"fingerprint": f"sha256:{file_sha256(path)}"}
        settings = {"train_file": str(path), "validation_file": "part-*.csv", "test_file": None}
        manifest = {"data": {"rows.train": facts, "rows.validation": facts}, "settings": settings}
        self.assertEqual(changed_files(manifest), [])
        path.write_text("text,label\na,b\nc,d\n")
        self.assertEqual(changed_files(manifest), [str(path)])
        self.assertEqual(changed_files({**manifest, "data": {"rows.train": {"fingerprint": "rows:1"}}}), [])
