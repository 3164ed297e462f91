"""The kernels of T5's attention: which there are, where they are refused, and FlexAttention's numbers."""

import importlib.util
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from torch.nn.attention import flex_attention

from t5suite.base.errors import ConfigError
from t5suite.models.attention.flex import flex_attend
from t5suite.models.attention.implementations import set_attention, why_not
from t5suite.models.fast_masks import note_padding, ready_masks
from tests.attention_examples import CASES, example, flops_without_values, step_by_step, with_gradients
from tests.test_fast_masks import batch_of
from tests.test_quick_attention import pair


class FlexTest(parameterized.TestCase):
    @parameterized.named_parameters((name, *case) for name, case in CASES.items())
    def test_what_is_found_is_what_float64_finds(self, *case):
        tensors, mask, is_causal, _ = example(*case)
        query, key, value, bias = tensors
        found = flex_attend(query, key, value, mask, bias, is_causal, 1.0)
        expected = step_by_step(*(t if t is None else t.double() for t in tensors), mask, is_causal)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)

    @parameterized.named_parameters((name, *CASES[name]) for name in ("encoder", "padded_rows_one_of_them_whole"))
    def test_gradients_are_those_of_float64(self, *case):
        """torch computes none on a CPU unless its check of the device is left out; it is the GPU's way, uncompiled."""
        tensors, mask, is_causal, gradient = example(*case)
        attend = lambda q, k, v, bias: flex_attend(q, k, v, mask, bias, is_causal, 1.0)
        with mock.patch.object(flex_attention, "_validate_device", lambda *given: None):
            found = with_gradients(attend, tensors, gradient)
        doubled = [t if t is None else t.double() for t in tensors]
        plain = lambda *given: step_by_step(*given, mask, is_causal)
        for ours, theirs in zip(found, with_gradients(plain, doubled, gradient.double()), strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)

    @parameterized.parameters(((6, 6),), ((6, 3),))
    def test_a_t5_says_what_it_says_with_sdpa(self, lengths):
        model, twin = pair()
        set_attention(twin, "flex_attention")
        batch = batch_of(list(lengths))
        with torch.no_grad():
            for ready in (batch, ready_masks(note_padding(batch))):
                torch.testing.assert_close(twin(**ready).logits, model(**batch).logits, rtol=1e-4, atol=1e-5)

    def test_without_values_the_same_operations_are_counted(self):
        counts = [flops_without_values("sdpa"), flops_without_values("flex_attention")]
        self.assertEqual(*counts)

    @pytest.mark.slow
    def test_transformers_flex_still_reads_out_of_bounds(self):
        """Fails when transformers reads T5's bias as it should: ours may then go."""
        _, twin = pair()
        twin.set_attn_implementation("flex_attention")
        with torch.no_grad(), self.assertRaises((IndexError, RuntimeError)):
            twin(**batch_of([6, 6]))


class RefusalTest(parameterized.TestCase):
    def test_without_triton_it_says_what_to_install(self):
        with mock.patch.object(importlib.util, "find_spec", lambda name: None):
            why = why_not("triton", torch.device("cuda"), trains=True, dropout=0.1)
        self.assertIn("pip install triton", why)

    def test_flex_has_no_dropout(self):
        _, twin = pair(dropout_rate=0.1)
        set_attention(twin, "flex_attention")
        with self.assertRaisesRegex(ConfigError, "flex_attention: it has no dropout"):
            twin(**batch_of([6, 3]))
