"""Every fast path but dropout's has plain code that computes the same: one case of CASES for each of FAST_PATHS."""

from unittest import mock

import law_worker
import numpy as np
from absl.testing import parameterized
from test_evaluation import LENGTHS, bundled_rows, evaluator_and_model

from t5suite import load_task
from t5suite.base.reference_code import FAST_PATHS, reference_code
from t5suite.data.batches.encodings import TextEncoding
from t5suite.models.attention import quicken_attention
from t5suite.testing import exits_with
from t5suite.training.eval_sets import make_eval_set
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments


def evaluated(reference: frozenset, method: str) -> dict:
    evaluator, model, tokenizer = evaluator_and_model()
    quicken_attention(model)
    rows = bundled_rows("mini", "entailment")
    task = load_task("mini", "entailment")
    evaluator.decoding.reference = reference
    eval_set = make_eval_set("e", task, "validation", rows, TextEncoding(tokenizer, LENGTHS), method)
    found = evaluator.evaluate(model, [eval_set]).results["e"]
    return {"predictions": found.predictions, "numbers": [*found.metrics.values(), found.loss]}


def trained(reference: frozenset) -> dict:
    trainer = law_worker.make_trainer(8, 1, reference_code=",".join(reference))
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {"predictions": [], "numbers": [line[name] for line in lines for name in ("loss", "grad_norm")]}


# By fast path: what both ways compute, what the fast one alone calls, and how far numbers may be apart (relative).
CASES = {
    "candidate_trees": (
        lambda left: evaluated(left, "score"), "t5suite.models.answering.candidate_log_probs", 1e-5,
    ),
    "quick_decoding": (
        lambda left: evaluated(left, "generate"), "t5suite.models.answering.write_greedily", 1e-5,
    ),
    "loss_chunks": (trained, "t5suite.models.chunked_loss.summed_cross_entropy", 1e-5),
    "quick_attention": (lambda left: evaluated(left, "generate"), "t5suite.models.attention.merged", 1e-5),
}  # fmt: skip


class ReferenceCodeTest(parameterized.TestCase):
    @parameterized.parameters(*CASES)
    def test_plain_code_computes_the_same(self, name):
        compute, fast, tolerance = CASES[name]
        module, function = fast.rsplit(".", 1)
        found = []
        for left, is_called in ((frozenset(), True), (frozenset({name}), False)):
            original = getattr(__import__(module, fromlist=[function]), function)
            with mock.patch(fast, side_effect=original) as called:
                found.append(compute(left))
            self.assertEqual(called.called, is_called)
        self.assertEqual(found[0]["predictions"], found[1]["predictions"])
        np.testing.assert_allclose(*(each["numbers"] for each in found), rtol=tolerance)

    def test_names_are_checked_and_all_are_all(self):
        self.assertEqual(CASES.keys() | {"quick_dropout"}, FAST_PATHS.keys())  # draws otherwise (test_attention.py)
        self.assertEqual(reference_code("all"), FAST_PATHS.keys())
        self.assertEqual(reference_code(" quick_decoding, quick_attention"), {"quick_decoding", "quick_attention"})
        self.assertEqual(reference_code(None), frozenset())
        with exits_with(78, "--reference_code: .*'quick_decodng'; did you mean quick_decoding"):
            SuiteTrainingArguments(output_dir="runs/x", reference_code="quick_decodng")
