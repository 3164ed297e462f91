"""Triton's attention kernels, in its interpreter, against the same in float64 step by step."""

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized

from t5suite.models.attention.implementations import kernel_of, set_attention
from t5suite.models.fast_masks import note_padding, ready_masks
from t5suite.models.packed_t5 import accept_packed_batches
from tests.attention_examples import CASES, DEVICE, example, flops_without_values, step_by_step, with_gradients
from tests.test_fast_masks import batch_of, trained
from tests.test_quick_attention import packed_batch, pair

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install triton)", allow_module_level=True)
if torch.cuda.is_available() == (os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("on a CPU Triton interprets (TRITON_INTERPRET=1), on a GPU it compiles", allow_module_level=True)

from t5suite.models.attention import fused

# Triton 3.9 interprets products of bfloat16 as if they were whole numbers.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
# Tiles as small as a product takes: short sequences have several.
SMALL = {name: (32, 16, {}) if name == "key" else (16, 32, {}) for name in fused.TILES}


class KernelTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict(fused.TILES, SMALL))
        self.enter_context(mock.patch.dict(fused.SMALL_TILES, SMALL))

    def check(self, found, expected, tolerance):
        for ours, theirs in zip(found, expected, strict=True):
            self.assertEqual(ours.shape, theirs.shape)
            self.assertLess(float((ours - theirs).detach().abs().max() / theirs.detach().abs().max()), tolerance)

    def expected(self, tensors, mask, is_causal, gradient, **dropped):
        doubled = [t if t is None else t.double() for t in tensors]
        attend = lambda *given: step_by_step(*given, mask, is_causal, **dropped)
        return with_gradients(attend, doubled, gradient.double())

    @parameterized.named_parameters((name, *case) for name, case in CASES.items())
    def test_found_and_gradients_are_those_of_float64(self, *case):
        tensors, mask, is_causal, gradient = example(*case)
        attend = lambda q, k, v, bias: fused.fused_attend(q, k, v, mask, bias, is_causal, 1.0)
        found = with_gradients(attend, tensors, gradient)
        self.check(found, self.expected(tensors, mask, is_causal, gradient), 2e-6)

    @parameterized.parameters((torch.float32, False, "ieee"), (torch.float32, True, "tf32"), (HALF, False, "tf32"))
    def test_float32_is_multiplied_exactly_unless_torch_may_use_tf32(self, dtype, allowed, expected):
        inputs = fused._Inputs.of(*(torch.zeros(1, 1, 2, 16, dtype=dtype) for _ in range(3)), None, None, None)
        before = torch.backends.cuda.matmul.allow_tf32
        self.addCleanup(setattr, torch.backends.cuda.matmul, "allow_tf32", before)
        torch.backends.cuda.matmul.allow_tf32 = allowed
        self.assertEqual(inputs.kinds(is_causal=False, dropout=0.0)["PRECISION"], expected)

    def test_half_precision_adds_up_in_float32(self):
        tensors, mask, is_causal, gradient = example(*CASES["encoder"], dtype=HALF)
        attend = lambda q, k, v, bias: fused.fused_attend(q, k, v, mask, bias, is_causal, 1.0)
        self.check(with_gradients(attend, tensors, gradient), self.expected(tensors, mask, is_causal, gradient), 2e-2)

    def test_a_float32_bias_beside_half_precision_has_a_float32_gradient(self):
        (query, key, value, bias), _, _, gradient = example(*CASES["encoder"], dtype=HALF)
        attend = lambda bias: fused.fused_attend(query, key, value, None, bias, False, 1.0)
        _, found = with_gradients(attend, [bias.float()], gradient)
        self.assertEqual(found.dtype, torch.float32)
        self.assertFalse(torch.equal(found, found.to(HALF).float()))

    def test_scaling_scales_scores_alone(self):
        (query, key, value, bias), _, _, gradient = example(*CASES["encoder"])
        attend = lambda q, k, v, bias: fused.fused_attend(q, k, v, None, bias, False, 0.5)
        scaled = lambda q, k, v, bias: step_by_step(q * 0.5, k, v, bias, None, False)
        doubled = [t.double() for t in (query, key, value, bias)]
        found = with_gradients(attend, (query, key, value, bias), gradient)
        self.check(found, with_gradients(scaled, doubled, gradient.double()), 2e-6)

    def test_dropout_drops_alike_forwards_and_backwards(self):
        """Values of one key each show the weights that were kept; the gradients must be those of just these."""
        rows, heads, queries, keys, dropout = 2, 2, 20, 20, 0.4
        (query, key, _, bias), _, _, _ = example(rows, heads, queries, keys, keys, 1, None, False)
        value = torch.eye(keys, device=DEVICE).expand(rows, heads, keys, keys)
        gradient = torch.randn(rows, queries, heads, keys, device=DEVICE)

        def attend(q, k, v, bias):
            torch.manual_seed(5)
            return fused.fused_attend(q, k, v, None, bias, False, 1.0, dropout)

        found = with_gradients(attend, (query, key, value, bias), gradient)
        kept = (found[0] != 0).transpose(1, 2)
        self.assertBetween(float(kept.double().mean()), 0.54, 0.66)
        self.assertFalse(torch.equal(kept[0, 0], kept[0, 1]))
        self.check(
            found, self.expected((query, key, value, bias), None, False, gradient, kept=kept, dropout=dropout), 2e-6
        )
        with mock.patch.dict(fused.TILES, {name: (32, 32, {}) for name in SMALL}):
            self.assertTrue(torch.equal(attend(query, key, value, bias) != 0, found[0] != 0))

    @pytest.mark.slow
    def test_torch_finds_the_operation_as_it_is_declared(self):
        (query, key, value, bias), mask, is_causal, _ = example(*CASES["padded_rows_one_of_them_whole"])
        tensors = [t.detach().requires_grad_() for t in (query, key, value, bias)]
        torch.library.opcheck(fused.biased_attention, (*tensors, mask, None, is_causal, 1.0, 0.0))


class ModelTest(parameterized.TestCase):
    """A T5 that attends by these kernels."""

    def attending(self, **settings):
        model, twin = pair(num_layers=1, **settings)
        set_attention(twin, "triton")
        self.assertEqual(kernel_of(twin), "triton")
        return model.to(DEVICE), twin.to(DEVICE)

    def check(self, model, twin, batch, ready=lambda batch: batch):
        batch = {name: values.to(DEVICE) for name, values in batch.items()}
        # A query of padding sees nothing; here nobody sees it either, so that its numbers are of no account.
        for stock, ours in zip(trained(model, batch)[1:], trained(twin, ready(batch))[1:], strict=True):
            torch.testing.assert_close(ours, stock, rtol=2e-4, atol=2e-5 * float(stock.abs().max()))

    @parameterized.parameters(((6, 6),), ((6, 3),))
    def test_a_t5_s_gradients_are_those_of_sdpa(self, lengths):
        self.check(*self.attending(), batch_of(list(lengths)))

    def test_masks_of_the_host_serve(self):
        self.check(*self.attending(), batch_of([6, 3]), lambda batch: ready_masks(note_padding(batch)))

    def test_without_values_the_same_operations_are_counted(self):
        """What MFU is told by; the kernels' own repetitions are not the model's."""
        self.assertEqual(flops_without_values("triton"), flops_without_values("sdpa"))

    def test_packed_rows_serve(self):
        model, twin = self.attending()
        for each in (model, twin):
            accept_packed_batches(each)
        self.check(model, twin, packed_batch())

    def test_transformers_own_layers_reach_the_kernels_too(self):
        model, _ = pair(num_layers=1)
        twin = copy.deepcopy(model)
        set_attention(twin, "triton")
        self.check(model, twin, batch_of([6, 3]))

    def test_generation_writes_the_same(self):
        model, twin = self.attending()
        batch = {name: batch_of([6, 3])[name].to(DEVICE) for name in ("input_ids", "attention_mask")}
        texts = [each.eval().generate(**batch, max_new_tokens=6).tolist() for each in (model, twin)]
        self.assertEqual(*texts)

    def test_transformers_own_layers_generate_with_the_same_logits(self):
        model, _ = pair(num_layers=1)
        twin = copy.deepcopy(model)
        set_attention(twin, "triton")
        batch = {name: batch_of([6, 3])[name].to(DEVICE) for name in ("input_ids", "attention_mask")}
        settings = {"max_new_tokens": 5, "use_cache": True, "return_dict_in_generate": True, "output_logits": True}
        stock, ours = (each.to(DEVICE).eval().generate(**batch, **settings).logits for each in (model, twin))
        torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    def test_compiled_in_one_piece(self):
        model, twin = self.attending()
        compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
        batch = {name: values.to(DEVICE) for name, values in batch_of([6, 3]).items()}
        for stock, ours in zip(trained(model, batch)[1:], trained(twin, batch)[1:], strict=True):
            torch.testing.assert_close(ours, stock, rtol=2e-4, atol=2e-5 * float(stock.abs().max()))
        twin.zero_grad()
        compiled(**batch).logits.square().mean().backward()
        for stock, ours in zip(trained(model, batch)[1:], [p.grad for p in twin.parameters()], strict=True):
            torch.testing.assert_close(ours, stock, rtol=2e-4, atol=2e-5 * float(stock.abs().max()))


class CompilerTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_kernels_fit_the_gpus_that_they_are_for(self):
        """Triton's compiler needs no GPU: on Ampere and Hopper every kernel stays within the smallest cards' shared
        memory, uses their matrix units, and spills no registers where nothing is dropped."""
        script = Path(__file__).parent / "triton_compiled.py"
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
        self.assertEqual(run.returncode, 0, run.stderr)
        found = [json.loads(line) for line in run.stdout.splitlines()]
        self.assertLen(found, 2 * 5 * 2)
        for kernel in found:
            with self.subTest(**kernel):
                self.assertLessEqual(kernel["shared"], 99 * 1024)
                self.assertTrue(kernel["products"] > 0 or kernel["kernel"] == "delta")
                if kernel["capability"] == 90 and not kernel["drops"]:
                    self.assertEqual(kernel["spilled"], 0)
