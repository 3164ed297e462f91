"""The best candidate found with few sums is the best by all scores, its loss the same; what cannot win is not asked."""

import copy
from unittest import mock

import datasets
import numpy as np
import torch
from absl.testing import absltest, parameterized
from test_evaluation import DPR_ROWS, LENGTHS, RECORD_ROWS, bundled_rows, evaluator_and_model
from test_quick_evaluation import CANDIDATES, TYPES, greedy, reading, tiny, written

from t5suite.models import best_candidates as choosing
from t5suite.models.answerer import places_of_best
from t5suite.models.best_candidates import can_choose
from t5suite.models.candidate_trees import tree_of
from t5suite.tasks.registry import load_task
from t5suite.training.eval_sets import make_eval_set

ROWS = [CANDIDATES, CANDIDATES[2:3], CANDIDATES[:2], [[7, 1], [7, 6, 1]], CANDIDATES]


def drawn_candidates(rng, rows=5):
    """Candidates that begin alike, end early, repeat one another; another number of them in each row."""
    lengths = rng.integers(1, 5, (rows, 12))
    of_rows = [[[*rng.integers(2, 5, length), 1] for length in of_row] for of_row in lengths]
    return [of_row[: rng.integers(1, 13)] for of_row in of_rows]


def asked_sums():
    return mock.patch.object(choosing, "_sums", wraps=choosing._sums)


class BestCandidateTest(parameterized.TestCase):
    @parameterized.parameters(*TYPES)
    @torch.no_grad()
    def test_the_choice_is_that_of_all_scores(self, model_type, tied):
        model, rng = tiny(model_type, tied), np.random.default_rng(0)
        for candidates in ([CANDIDATES] * 5, ROWS, *(drawn_candidates(rng) for _ in range(10))):
            scores = reading(model, trees=False).candidate_scores(candidates)
            self.assertEqual(reading(model).best_candidates(candidates), places_of_best(scores))

    @parameterized.parameters(1, 60 * 7, 10**9)
    @torch.no_grad()
    def test_chunks_change_no_choice(self, at_once):
        expected = places_of_best(reading(tiny(), trees=False).candidate_scores(ROWS))
        with (
            mock.patch.dict("t5suite.models.t5_decoder.LOGITS_AT_ONCE", {"cpu": at_once}),
            mock.patch("t5suite.models.tree_decoding.ATTENDED_AT_ONCE", at_once),
        ):
            self.assertEqual(reading(tiny()).best_candidates(ROWS), expected)

    @parameterized.parameters(False, True)
    @torch.no_grad()
    def test_a_model_that_is_sure_is_asked_along_one_path(self, tells_nll):
        """What the model would write wins; its loss needs the root's sum beside those of its own nodes."""
        model = copy.deepcopy(tiny(tied=False)).float()
        model.lm_head.weight *= 8
        answers = [[*ids[:4], 1] for ids in written(reading(model).generate(greedy(4)))]
        candidates = [[*CANDIDATES, answer] for answer in answers]
        found = reading(model, labels=answers)
        found.answerer.tells_nll = tells_nll
        with asked_sums() as sums:
            places = found.best_candidates(candidates)
            asked = sum(len(call.args[1]) for call in sums.call_args_list)
        expected = reading(model, quick=False, trees=False, labels=answers)
        self.assertEqual(places, places_of_best(expected.candidate_scores(candidates)))
        if tells_nll:
            np.testing.assert_allclose(found.nll, expected.nll, rtol=1e-5)
        all_nodes = sum(len(tree_of(of_row).tokens) for of_row in candidates)
        self.assertBetween(asked, 5, all_nodes // 2)

    @torch.no_grad()
    def test_no_candidate_has_more_than_its_bound(self):
        """Behind one node nearly the whole vocabulary is known, so that the bound is hardly above what it bounds."""
        candidates = [[3, token, 1] for token in range(2, 60)] + [[4, 5, 1]]
        model, bounds = tiny(), []
        finish = choosing._Search.finish

        def noted(search):
            bounds.append(search.bounds())
            search.ask_for(np.arange(5), np.zeros(5, int), with_root=True)
            bounds.append(search.root_sums_B)
            finish(search)

        with mock.patch.object(choosing._Search, "finish", noted):
            reading(model).best_candidates([candidates] * 5)
        scores = np.array(reading(model).candidate_scores([candidates] * 5))
        above = bounds[0] - (scores + bounds[1][:, None])
        self.assertGreater(above.min(), -1e-4)

    @torch.no_grad()
    def test_equal_candidates_are_one_and_the_first_counts(self):
        found = reading(tiny()).best_candidates([[[3, 9, 1], [3, 9, 1], [3, 9, 1]]] * 5)
        self.assertEqual(found, [0] * 5)

    @torch.no_grad()
    def test_what_is_no_plain_product_has_all_scores(self):
        model = copy.deepcopy(tiny())
        self.assertTrue(can_choose(model))
        with torch.autocast("cpu", torch.bfloat16):
            self.assertFalse(can_choose(model))
        model.lm_head.register_forward_hook(lambda *_: None)
        self.assertFalse(can_choose(model))
        with asked_sums() as sums:
            reading(model).best_candidates(ROWS)
        self.assertFalse(sums.called)

    @torch.no_grad()
    def test_numbers_that_are_none_end_the_search(self):
        model = copy.deepcopy(tiny())
        model.decoder.final_layer_norm.weight[0] = torch.nan
        self.assertLen(reading(model).best_candidates(ROWS), 5)


class EvaluatorTest(parameterized.TestCase):
    @parameterized.product(
        case=(
            ("mini", "entailment", None),
            ("mini", "similarity", None),
            ("super_glue", "record", RECORD_ROWS),
            ("super_glue", "dpr", DPR_ROWS),
        ),
        loss=(True, False),
    )
    def test_reports_equal_those_of_all_scores(self, case, loss):
        benchmark, name, rows = case
        task = load_task(benchmark, name)
        dataset = datasets.Dataset.from_list(rows) if rows else bundled_rows(benchmark, name)
        evaluator, model, tokenizer = evaluator_and_model()
        eval_set = make_eval_set(name, task, "validation", "validation", dataset, tokenizer, LENGTHS, "score")
        evaluator.decoding.loss = loss
        results = []
        for trees in (True, False):
            evaluator.decoding.trees = trees
            with asked_sums() as sums:
                results.append(evaluator.evaluate(model, [eval_set]).results[name])
            self.assertEqual(sums.called, trees)
        self.assertEqual(results[0].predictions, results[1].predictions)
        if loss:
            self.assertAlmostEqual(results[0].loss, results[1].loss, places=5)
        else:
            self.assertIsNone(results[0].loss)


if __name__ == "__main__":
    absltest.main()
