"""A T5's encoder taken apart says what the model's own says: any type, mask, kernel of attention, cut into pieces."""

import copy
import doctest
import functools
from unittest import mock

import numpy as np
import torch
from absl.testing import absltest, parameterized
from test_evaluation import LENGTHS, bundled_rows, evaluator_and_model
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from t5suite.models import t5_encoder
from t5suite.models.t5_encoder import encoded, in_row_pieces, row_pieces, takes_encoder_apart
from t5suite.tasks.registry import load_task
from t5suite.training.eval_sets import make_eval_set

KINDS = tuple((model_type, form) for model_type in ("t5", "mt5", "umt5") for form in ("relu", "gated-gelu"))
LENGTHS_OF_ROWS = np.array([23, 22, 9, 8, 8, 1])


@functools.cache
def tiny(model_type="t5", form="relu", dtype=torch.float64, kernel="sdpa"):
    """A T5 whose attention and norms are far from uniform, so that a wrong bias, mask or weight shows."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type, vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, decoder_start_token_id=0,
        feed_forward_proj=form,
    )  # fmt: skip
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation=kernel).eval().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".q." in name or "relative" in name:
                parameter.mul_(3.0)
            if "layer_norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def batch(padded=True):
    """Ids, their mask and the rows' lengths, longest first."""
    lengths = LENGTHS_OF_ROWS if padded else np.full(6, 23)
    mask = torch.from_numpy((np.arange(23) < lengths[:, None]).astype(np.int64))
    ids = torch.from_numpy(np.random.default_rng(0).integers(2, 60, mask.shape))
    return ids * mask, mask, lengths


def own(model, ids, mask):
    return model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state


def assert_equal_states(found, expected, mask, tolerance):
    """Of tokens; padding may be anything."""
    seen = mask.bool()
    np.testing.assert_allclose(found[seen].numpy(), expected[seen].numpy(), rtol=tolerance, atol=tolerance)


class NumbersTest(parameterized.TestCase):
    @parameterized.product(kind=KINDS, padded=(True, False), products=(True, False))
    @torch.no_grad()
    def test_states_equal_the_models_own(self, kind, padded, products):
        model = tiny(*kind)
        ids, mask, _ = batch(padded)
        with mock.patch.object(t5_encoder, "SHORT", 23 if products else 0):
            found = encoded(model, ids, mask if padded else None)
        assert_equal_states(found, own(model, ids, mask), mask, 1e-12)

    @parameterized.product(kind=KINDS, kernel=("sdpa", "eager"))
    @torch.no_grad()
    def test_in_float32_they_are_equal_to_1e_6(self, kind, kernel):
        model = tiny(*kind, torch.float32, kernel)
        ids, mask, _ = batch()
        assert_equal_states(encoded(model, ids, mask), own(model, ids, mask), mask, 5e-6)

    @torch.no_grad()
    def test_in_bfloat16_they_are_equal_but_for_rounding(self):
        model = tiny(dtype=torch.bfloat16)
        ids, mask, _ = batch()
        found, expected = (states.float() for states in (encoded(model, ids, mask), own(model, ids, mask)))
        assert_equal_states(found, expected, mask, 0.06)

    @torch.no_grad()
    def test_under_autocast_they_are_equal_but_for_rounding(self):
        model = tiny(dtype=torch.float32)
        ids, mask, _ = batch()
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = encoded(model, ids, mask), own(model, ids, mask)
        self.assertEqual(found.dtype, expected.dtype)
        assert_equal_states(found, expected, mask, 0.06)

    @parameterized.parameters(1, 24, 46, 10**6)
    @torch.no_grad()
    def test_pieces_of_rows_change_no_state(self, most_tokens):
        model = tiny()
        ids, mask, lengths = batch()
        calls = []

        def encode(*arguments):
            calls.append(arguments)
            return encoded(model, *arguments)

        found = in_row_pieces(encode, ids, mask, lengths, most_tokens)
        assert_equal_states(found, own(model, ids, mask), mask, 1e-12)
        self.assertEqual([len(ids) for ids, _ in calls], [p.stop - p.start for p in row_pieces(lengths, most_tokens)])
        for piece_ids, piece_mask in calls:
            self.assertEqual(piece_mask is None, bool((piece_ids != 0).all()))

    def test_pieces_have_every_row_once_and_no_more_tokens_than_asked(self):
        rng = np.random.default_rng(0)
        for most in (1, 7, 40, 10**5):
            lengths = rng.integers(1, 20, 30)
            pieces = row_pieces(lengths, most)
            self.assertEqual([row for piece in pieces for row in range(30)[piece]], list(range(30)))
            for piece in pieces:
                rows = lengths[piece]
                self.assertTrue(len(rows) == 1 or len(rows) * rows.max() <= most)
        for case in doctest.DocTestFinder().find(row_pieces, globs={"row_pieces": row_pieces}):
            self.assertEqual(doctest.DocTestRunner().run(case).failed, 0)


class WhichModelsTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_transformers_own_are_taken_apart(self, *kind):
        self.assertTrue(takes_encoder_apart(tiny(*kind)))

    def test_what_it_would_pass_over_is_left_to_the_model(self):
        def changed(change):
            model = AutoModelForSeq2SeqLM.from_config(copy.deepcopy(tiny().config)).eval()
            change(model)
            return model

        def own_attention(model):
            layer = model.encoder.block[1].layer[0]
            layer.SelfAttention = torch.nn.Sequential(layer.SelfAttention)

        cases = {
            "float16": lambda model: model.half(),
            "own attention": own_attention,
            "own feed-forward": lambda model: setattr(model.encoder.block[0].layer[1], "__class__", torch.nn.Identity),
            "hook": lambda model: model.encoder.block[0].register_forward_hook(lambda *_: None),
            "kernel": lambda model: setattr(model.config, "_attn_implementation", "another"),
            "in pieces": lambda model: setattr(model.shared.weight, "ds_id", 1),
        }
        self.assertTrue(takes_encoder_apart(changed(lambda model: None)))
        for name, change in cases.items():
            self.assertFalse(takes_encoder_apart(changed(change)), name)

    @torch.no_grad()
    def test_what_transformers_hooks_in_does_no_harm(self):
        model = AutoModelForSeq2SeqLM.from_config(copy.deepcopy(tiny().config)).eval()
        ids, mask, _ = batch()
        model(input_ids=ids, decoder_input_ids=ids[:, :2], output_hidden_states=True)
        self.assertTrue(takes_encoder_apart(model))

    @torch.no_grad()
    def test_weights_within_adapters_count(self):
        """A part that is more than its weights is called, not read."""

        class Twice(torch.nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x)

        model = AutoModelForSeq2SeqLM.from_config(copy.deepcopy(tiny().config)).eval().double()
        for block in model.encoder.block:
            block.layer[0].SelfAttention.v.__class__ = Twice
        ids, mask, _ = batch()
        assert_equal_states(encoded(model, ids, mask), own(model, ids, mask), mask, 1e-12)


class EvaluatorTest(parameterized.TestCase):
    @parameterized.product(method=("generate", "score"), tokens=(60, 10**4, None))
    def test_reports_are_equal_and_the_flag_says_who_reads(self, method, tokens):
        evaluator, model, tokenizer = evaluator_and_model()
        task = load_task("mini", "entailment")
        rows = bundled_rows("mini", "entailment")
        eval_set = make_eval_set("e", task, "validation", "validation", rows, tokenizer, LENGTHS, method)
        evaluator.decoding.batch_tokens = tokens
        results = []
        for quick in (True, False):
            evaluator.decoding.quick_encoder = quick
            with mock.patch.object(model.encoder, "forward", wraps=model.encoder.forward) as forward:
                results.append(evaluator.evaluate(model, [eval_set]).results["e"])
            self.assertEqual(forward.called, not quick)
            if tokens:
                read = [call.kwargs["input_ids"].numel() for call in forward.call_args_list]
                self.assertLessEqual(max(read, default=0), tokens)
        self.assertEqual(results[0].predictions, results[1].predictions)
        self.assertAlmostEqual(results[0].loss, results[1].loss, places=5)

    def test_short_answers_of_several_batches_are_written_together(self):
        evaluator, model, tokenizer = evaluator_and_model()
        task = load_task("mini", "entailment")
        rows = bundled_rows("mini", "entailment")
        eval_set = make_eval_set("e", task, "validation", "validation", rows, tokenizer, LENGTHS)
        evaluator.decoding.batch_tokens = 60
        decoded = []
        for answer_tokens in (3, 1000):
            eval_set.max_target_tokens = answer_tokens
            writes = mock.patch("t5suite.models.seq2seq_answering.begin_writing", side_effect=RuntimeError)
            with writes as written, self.assertRaises(RuntimeError):
                evaluator.evaluate(model, [eval_set])
            decoded.append(written.call_args.args[1].numel() // model.config.d_model)
        self.assertGreater(decoded[0], 60)
        longest = int(eval_set.features.input_ids.lengths.max())
        self.assertEqual(decoded[1], longest)  # a row at a time


if __name__ == "__main__":
    absltest.main()
