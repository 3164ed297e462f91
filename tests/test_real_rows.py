"""Real rows through the registry: texts and scores equal those of the released `t5` 0.9.4 on the same files."""

import functools
import hashlib
import json

from absl.testing import absltest, parameterized
from shared_data import MISSING, has, read_rows

from t5suite import load_task
from t5suite.base.errors import DataError

# benchmark/task/file -> rows, examples, SHA-256 (its beginning) of all the original's (inputs, targets), and the
# original's scores where every row is labelled and each example's prediction is the NEXT example's target. wnli_simple
# reads wnli's files.
ORIGINAL = {
    "glue/ax/test.jsonl": (1104, 1104, "fee15f23baf1edb0", {}),
    "glue/cola/test.jsonl": (1063, 1063, "e6fd3c6fb1a2f329", {}),
    "glue/cola/train.jsonl": (8551, 8551, "11a93eeb93717ba1", {"matthews_correlation": 20.42130299}),
    "glue/cola/validation.jsonl": (1043, 1043, "7c10e6d7562d9e87", {"matthews_correlation": 6.554905626}),
    "glue/mnli/train.9999.jsonl.gz": (9999, 9999, "b38fc14aee83b6e5", {"accuracy": 33.783378338}),
    "glue/mnli/train.jsonl": (4000, 4000, "1fe379408e7a4e60", {"accuracy": 34.5}),
    "glue/mnli/validation_matched.full.jsonl.gz": (9815, 9815, "43bed1851cb02bca", {"accuracy": 33.611818645}),
    "glue/mnli/validation_matched.jsonl": (1000, 1000, "e8d1d63f30c07ff3", {"accuracy": 34.6}),
    "glue/mnli/validation_mismatched.jsonl": (997, 997, "97d71f7c9c641b54", {"accuracy": 33.901705115}),
    "glue/mrpc/test.jsonl": (1725, 1725, "6fa746e4ca815cea", {"f1": 66.695727986, "accuracy": 55.710144928}),
    "glue/mrpc/train.jsonl": (3668, 3668, "700302a4b13639c2", {"f1": 67.219078416, "accuracy": 55.779716467}),
    "glue/mrpc/validation.jsonl": (408, 408, "dfbf6b2f9e98d6d2", {"f1": 65.591397849, "accuracy": 52.941176471}),
    "glue/qnli/test.jsonl": (1000, 1000, "0478efb813d885da", {}),
    "glue/qnli/train.9999.jsonl.gz": (9999, 9999, "5931b93d087e95fa", {"accuracy": 49.494949495}),
    "glue/qnli/train.jsonl": (4000, 4000, "8effb0cffc1b1d01", {"accuracy": 48.7}),
    "glue/qnli/validation.full.jsonl.gz": (5463, 5463, "3d31cbfc2f4aca7b", {"accuracy": 50.759655867}),
    "glue/qnli/validation.jsonl": (1000, 1000, "cff158eea827d295", {"accuracy": 51.2}),
    "glue/qqp/train.9999.jsonl.gz": (9999, 9999, "de7ef3ac43dbd0ee", {"f1": 36.786993662, "accuracy": 54.115411541}),
    "glue/qqp/train.jsonl": (4000, 4000, "71bd9bf446a73e23", {"f1": 34.137686302, "accuracy": 53.6}),
    "glue/qqp/validation.7600.jsonl.gz": (7600, 7600, "9b640e9bfff9d6e0", {"f1": 36.130450715, "accuracy": 54.131578947}),
    "glue/qqp/validation.jsonl": (1000, 1000, "34615e7b130f9034", {"f1": 40.273972603, "accuracy": 56.4}),
    "glue/rte/test.jsonl": (3000, 3000, "d562b75060c29a13", {}),
    "glue/rte/train.jsonl": (2490, 2490, "e4db421caa19c64a", {"accuracy": 48.353413655}),
    "glue/rte/validation.jsonl": (277, 277, "d297d509e1e622b3", {"accuracy": 48.014440433}),
    "glue/sst2/test.jsonl": (1821, 1821, "8e6aa35aba476e56", {}),
    "glue/sst2/train.full.jsonl.gz": (67349, 67349, "da9c9d776cecdfeb", {"accuracy": 50.953985954}),
    "glue/sst2/train.jsonl": (4000, 4000, "8a8692ce3b71c2f8", {"accuracy": 50.5}),
    "glue/sst2/validation.jsonl": (872, 872, "42b1a963d97670d0", {"accuracy": 49.541284404}),
    "glue/stsb/test.jsonl": (1379, 1379, "35b1412842f66836", {}),
    "glue/stsb/train.jsonl": (5749, 5749, "6d834f87cd40495d", {"pearson": 12.748740902, "spearman": 10.943949171}),
    "glue/stsb/validation.jsonl": (1500, 1500, "8b3c02d292093c21", {"pearson": 21.454128118, "spearman": 21.353827908}),
    "glue/wnli/test.jsonl": (146, 146, "0b8ae4a44df9167d", {}),
    "glue/wnli_simple/test.jsonl": (146, 146, "bf7a208a8b8d4b4c", {}),
    "glue/wnli/train.jsonl": (635, 635, "c280bd107ddc1b24", {"accuracy": 53.070866142}),
    "glue/wnli_simple/train.jsonl": (635, 635, "ed613501e56bb6d8", {"accuracy": 50.078740157}),
    "glue/wnli/validation.jsonl": (71, 71, "6f35c4e26dc4acbd", {"accuracy": 40.845070423}),
    "glue/wnli_simple/validation.jsonl": (71, 71, "a16d4f609c01fc08", {"accuracy": 57.746478873}),
    "super_glue/axb/test.jsonl": (1104, 1104, "4916eb8d139ab29a", {"matthews_correlation": 15.776397516}),
    "super_glue/axg/test.jsonl": (356, 356, "fd98d11a035c2cff", {"accuracy": 65.730337079}),
    "super_glue/boolq/test.jsonl": (500, 500, "28b05f89a8cb1483", {}),
    "super_glue/boolq/train.jsonl": (2045, 2045, "2694ea21dcbe00f9", {"accuracy": 52.958435208}),
    "super_glue/boolq/validation.full.jsonl.gz": (3270, 3270, "f78246e87969a92b", {"accuracy": 53.70030581}),
    "super_glue/boolq/validation.jsonl": (1000, 1000, "e7c78ab174ffbc11", {"accuracy": 55.2}),
    "super_glue/cb/test.jsonl": (250, 250, "ee32e5eec149143c", {}),
    "super_glue/cb/train.jsonl": (250, 250, "74cf66f82fcc9256", {"mean_3class_f1": 60.14188284, "accuracy": 74.4}),
    "super_glue/cb/validation.jsonl": (56, 56, "be67031e8c6dfa43", {"mean_3class_f1": 27.329192547, "accuracy": 37.5}),
    "super_glue/copa/test.jsonl": (500, 500, "0ab9ee98446d91f5", {}),
    "super_glue/copa/train.jsonl": (400, 400, "2a60a46b8739f793", {"accuracy": 51.0}),
    "super_glue/copa/validation.jsonl": (100, 100, "0ad3896a7915529d", {"accuracy": 54.0}),
    "super_glue/multirc/train.full.jsonl.gz": (27243, 27243, "aca9ae5b57839202", {"f1": 39.06029106, "exact_match": 0.584681349}),
    "super_glue/multirc/train.jsonl": (1530, 1530, "3d3022724da6d260", {"f1": 38.532110092, "exact_match": 1.060070671}),
    "super_glue/multirc/validation.full.jsonl.gz": (4848, 4848, "75ff7f74700ec11c", {"f1": 37.734939759, "exact_match": 0.73452256}),
    "super_glue/multirc/validation.jsonl": (1022, 1022, "1971d9210c728710", {"f1": 37.901498929, "exact_match": 0.0}),
    "super_glue/record/train.jsonl": (64, 90, "a9083d83bd145894", {"exact_match": 39.0625, "f1": 39.0625}),
    "super_glue/record/validation.jsonl": (123, 193, "1705c28c46b01301", {"exact_match": 48.780487805, "f1": 48.780487805}),
    "super_glue/rte/test.jsonl": (3000, 3000, "5a884efdd8d81a34", {}),
    "super_glue/rte/train.jsonl": (2490, 2490, "3e9c0cc57cd784af", {"accuracy": 48.353413655}),
    "super_glue/rte/validation.jsonl": (277, 277, "7df21abc6fa22671", {"accuracy": 48.014440433}),
    "super_glue/wic/test.jsonl": (1400, 1400, "57d10fba7bf513b0", {}),
    "super_glue/wic/train.jsonl": (5428, 5428, "3357748b8777eb2c", {"accuracy": 50.29476787}),
    "super_glue/wic/validation.jsonl": (638, 638, "adc8a0046c977ac9", {"accuracy": 50.78369906}),
    "super_glue/wsc/test.jsonl": (146, 146, "2475878df53b360d", {}),
    "super_glue/wsc/train.jsonl": (554, 259, "b9d87626998b1f49", {"accuracy": 1.544401544}),
    "super_glue/wsc/validation.jsonl": (104, 104, "1ee8bcac2cdf1a4f", {"accuracy": 63.461538462}),
    "super_glue/wsc.fixed/test.jsonl": (146, 146, "d2dae742afb841d5", {}),
    "super_glue/wsc.fixed/train.jsonl": (554, 259, "b693ce5e5b228fa1", {"accuracy": 1.544401544}),
    "super_glue/wsc.fixed/validation.jsonl": (104, 104, "0df2393341df30d1", {"accuracy": 63.461538462}),
}  # fmt: skip
LABELLED = [path for path, (*_, scores) in ORIGINAL.items() if scores]
UNLABELLED = [path for path, (*_, scores) in ORIGINAL.items() if not scores]
VERDICTS = {"wsc", "wsc.fixed", "wnli_simple"}


@functools.cache
def rows_of(path):
    return read_rows(path.replace("wnli_simple", "wnli"))


@functools.cache
def examples_of(path):
    task, split = task_and_split(path)
    return [tuple(example) for row in rows_of(path) for example in task.examples(row, split)]


def task_and_split(path):
    benchmark, name, file = path.split("/")
    return load_task(benchmark, name), file.split(".")[0]


class RealRowsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        if not has("glue/cola/validation.jsonl"):
            self.skipTest(MISSING)

    @parameterized.parameters(*ORIGINAL)
    def test_texts_equal_the_originals(self, path):
        num_rows, num_examples, digest, _ = ORIGINAL[path]
        self.assertLen(rows_of(path), num_rows)
        examples = examples_of(path)
        self.assertLen(examples, num_examples)
        found = hashlib.sha256(b"".join(json.dumps(example).encode() + b"\n" for example in examples))
        self.assertEqual(found.hexdigest()[:16], digest)

    @parameterized.parameters(*LABELLED)
    def test_scores_equal_the_originals(self, path):
        task, split = task_and_split(path)
        targets = [target for _, target in examples_of(path)]
        scores = task.score(rows_of(path), targets[1:] + targets[:1], split)
        for name, expected in ORIGINAL[path][3].items():
            self.assertAlmostEqual(scores[name], expected, delta=1e-6, msg=name)

    @parameterized.parameters(*LABELLED)
    def test_gold_predictions_are_right(self, path):
        task, split = task_and_split(path)
        rows, targets = rows_of(path), [target for _, target in examples_of(path)]
        scores = task.score(rows, targets, split)
        if task.name in VERDICTS:
            # writing the row's own candidate is right where the label says so; an empty one never is
            kept = [row for row in rows if task.examples(row, split)]
            right = [target != "" and row["label"] == 1 for row, target in zip(kept, targets, strict=True)]
            self.assertAlmostEqual(scores["accuracy"], 100 * sum(right) / len(right))
            return
        self.assertEqual(scores.pop("invalid_rate", 0.0), 0.0)
        parity = scores.pop("gender_parity", None)
        for name, value in scores.items():
            self.assertAlmostEqual(value, 100.0, msg=name)
        if parity is not None:
            pairs = [{row["label"] for row in rows[i : i + 2]} for i in range(0, len(rows), 2)]
            self.assertAlmostEqual(parity, 100 * sum(len(pair) == 1 for pair in pairs) / len(pairs))

    @parameterized.parameters(*UNLABELLED)
    def test_unlabelled_splits_have_no_score_and_an_unknown_target(self, path):
        task, split = task_and_split(path)
        targets = [target for _, target in examples_of(path)]
        self.assertEqual(task.score(rows_of(path), targets, split), {})
        if task.name not in VERDICTS:
            self.assertEqual(set(targets), {"-1.0" if task.name == "stsb" else "<unk>"})

    @parameterized.parameters(*ORIGINAL)
    def test_one_prediction_too_few_is_refused(self, path):
        task, split = task_and_split(path)
        count = ORIGINAL[path][1]
        with self.assertRaisesRegex(DataError, rf"\b{count} examples.*\b{count - 1} predictions"):
            task.score(rows_of(path), [""] * (count - 1), split)

    @parameterized.parameters(("wsc", 259), ("wsc.fixed", 259), ("record", 90))
    def test_training_expands_and_leaves_out_rows(self, name, expected):
        self.assertLen(examples_of(f"super_glue/{name}/train.jsonl"), expected)

    def test_wnli_s_candidate_is_empty_once_in_validation(self):
        targets = [target for _, target in examples_of("glue/wnli_simple/validation.jsonl")]
        self.assertEqual(targets.count(""), 1)

    @parameterized.parameters("wsc", "wsc.fixed")
    def test_every_pronoun_is_marked(self, name):
        for split in ("validation", "test"):
            for (inputs, _), row in zip(
                examples_of(f"super_glue/{name}/{split}.jsonl"), rows_of(f"super_glue/{name}/{split}.jsonl")
            ):
                self.assertIn(f"*{row['span2_text']}*", inputs)


if __name__ == "__main__":
    absltest.main()
