"""Evaluation on a GPU waits for nothing but answers: the same code, run on tensors that have a device and no numbers.

Whoever looks at a value of such a tensor, or mixes it with one on another device, gets an error.
"""

import contextlib
from unittest import mock

import numpy as np
import torch
from absl.testing import absltest, parameterized
from test_evaluation import (
    CANDIDATES,
    LENGTHS,
    TYPES,
    bundled_rows,
    evaluator_and_model,
    greedy,
    reading,
    tiny,
    written,
)
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from t5suite.models import t5_decoder
from t5suite.models.candidate_trees import batch_of, edge_log_probs, tree_of
from t5suite.models.t5_decoder import LateCounts, begin_writing
from t5suite.tasks.registry import load_task
from t5suite.training.eval_sets import make_eval_set

CUDA, FAR = torch.device("cuda"), torch.device("meta")  # a build for CPUs can make no tensors on the former


@contextlib.contextmanager
def without_numbers():
    """Tensors without numbers; copies between devices are made at once."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(mock.patch("t5suite.models.t5_decoder.to_host", lambda tensor: lambda: tensor))
        yield


def far_model(model_type):
    config = AutoConfig.for_model(
        model_type, vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    with FAR:
        return AutoModelForSeq2SeqLM.from_config(config).eval()


class NothingIsLookedAtTest(parameterized.TestCase):
    def test_a_look_would_be_seen(self):
        """Guards the tests below."""
        with without_numbers():
            flags = torch.zeros(3, dtype=torch.bool, device=FAR)
            for look in (lambda: bool(flags.all()), lambda: flags.sum().item(), lambda: flags.tolist()):
                with self.assertRaises((DataDependentOutputException, RuntimeError)):
                    look()
            with self.assertRaisesRegex(RuntimeError, "device"):
                flags + torch.zeros(3)

    @parameterized.product(model_type=("t5",), padded=(True,))
    def test_by_reading_and_writing(self, model_type, padded):
        """Rows are dropped on the way, by a number that came late."""
        with without_numbers():
            model = far_model(model_type)
            ids = torch.ones(6, 24, dtype=torch.long, device=FAR)
            mask = torch.ones_like(ids)
            states = model.encoder(ids, attention_mask=mask[:, None, None, :].bool() if padded else None)[0]
            self.assertEqual((states.device.type, tuple(states.shape)), ("meta", (6, 24, 32)))
            with mock.patch.object(LateCounts, "look", side_effect=[None, None, 6, 3, 3]) as look:
                waiting = begin_writing(model, states, mask if padded else None, 0, 1, 6)
            self.assertEqual(look.call_count, 5)
            with self.assertRaises((DataDependentOutputException, RuntimeError)):
                waiting()  # answers are looked at, and by nobody else

    @parameterized.product(model_type=("t5", "umt5"), shared=(True, False))
    def test_by_scoring(self, model_type, shared):
        trees = [tree_of(CANDIDATES)] * 5 if shared else [tree_of(CANDIDATES[: n + 1]) for n in range(5)]
        with without_numbers():
            model = far_model(model_type)
            states, mask = torch.zeros(5, 24, 32, device=FAR), torch.ones(5, 24, dtype=torch.long, device=FAR)
            edges = edge_log_probs(model, batch_of(trees, 0, 0), states, mask)
        self.assertEqual((edges.device.type, len(edges), edges.dtype), ("meta", 5, torch.float32))


class LateTest(parameterized.TestCase):
    def test_numbers_come_as_late_as_said(self):
        for lag in (0, 1, 3):
            numbers = LateCounts(torch.device("cpu"), lag)
            told = [numbers.look(torch.tensor(n)) for n in range(6)]
            self.assertEqual(told, [None] * lag + list(range(6 - lag)))
        self.assertEqual(LateCounts(CUDA).lag, t5_decoder.LAG)

    @parameterized.product(kind=TYPES[:1], lag=(1, 50))
    @torch.no_grad()
    def test_answers_are_the_same_however_late_it_is_seen_that_rows_end(self, kind, lag):
        model = tiny(*kind)
        found = reading(model)
        arguments = (model, found.hidden_BSD, found.mask_BS, 0, 1, 40)
        expected, late = begin_writing(*arguments)(), begin_writing(*arguments, lag=lag)()
        self.assertEqual(late.ids, expected.ids)
        self.assertEqual(late.ids, written(reading(model, quick=False).generate(greedy(40))))
        np.testing.assert_allclose(late.nll, expected.nll, rtol=1e-6)

    @parameterized.parameters(0, 2)
    @torch.no_grad()
    def test_writing_stops_soon_after_the_last_row_has_ended(self, lag):
        model = tiny("mt5")
        found = reading(model)
        ends = [len(ids) for ids in written(found.generate(greedy(40)))]
        rows = [row for row, end in enumerate(ends) if end < 36]
        ended = max(ends[row] for row in rows)
        self.assertGreater(ended, 2)
        with mock.patch.object(t5_decoder, "likeliest", wraps=t5_decoder.likeliest) as steps:
            begin_writing(model, found.hidden_BSD[rows], found.mask_BS[rows], 0, 1, 40, lag=lag)()
        self.assertEqual(steps.call_count, ended + lag)


class AheadTest(parameterized.TestCase):
    @parameterized.parameters("generate", "score")
    def test_a_gpu_has_the_next_batch_before_answers_are_waited_for(self, method):
        evaluator, model, tokenizer = evaluator_and_model()
        task = load_task("mini", "entailment")
        rows = bundled_rows("mini", "entailment")
        eval_set = make_eval_set("e", task, "validation", "validation", rows, tokenizer, LENGTHS, method)
        evaluator.decoding.batch_tokens = None
        expected = evaluator.evaluate(model, [eval_set]).results["e"]
        order, plain = [], evaluator._generate if method == "generate" else evaluator._choose

        def noted(answerer, eval_set, positions):
            order.append("begun")
            waiting = plain(answerer, eval_set, positions)
            return lambda: (order.append("told"), waiting())[1]

        accelerator = mock.Mock(wraps=evaluator.accelerator, process_index=0, num_processes=1, device=CUDA)
        answer = "_generate" if method == "generate" else "_choose"
        with (
            mock.patch.object(evaluator, answer, noted),
            mock.patch.object(evaluator, "accelerator", accelerator),
            mock.patch("t5suite.training.evaluation.answerer_for", _on_cpu),
        ):
            found = evaluator.evaluate(model, [eval_set]).results["e"]
        self.assertEqual(order, ["begun", "begun", "told", "begun", "told", "told"])
        self.assertEqual((found.predictions, found.loss), (expected.predictions, expected.loss))


def _on_cpu(model, tokenizer, collator, device):
    from t5suite.models.answering import answerer_for

    return answerer_for(model, tokenizer, collator=collator, device="cpu")


if __name__ == "__main__":
    absltest.main()
