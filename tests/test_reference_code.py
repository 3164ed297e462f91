"""Fast paths of training and evaluation have plain code that computes the same: a case of CASES, but for dropout."""

import collections
import functools
import json
import tempfile

import numpy as np
import pytest
import torch
from absl.testing import parameterized
from torch.nn.modules.module import register_module_forward_hook

from t5suite import FineTuner
from t5suite.testing import exits_with, read_rows, tiny_model, tiny_run, tiny_tokenizer

# Of the lines of metrics.jsonl: what depends on the model alone.
NUMBERS = ("train/loss", "train/grad_norm", "final/loss", "final/accuracy")
TOLERANCE = 1e-5


@functools.cache
def run_with(names: str, method: str) -> dict:
    """Numbers and answers of two updates and an evaluation without these fast paths, and what modules were called."""
    calls = collections.Counter()

    def count(module, inputs, output):
        phase = "training" if torch.is_grad_enabled() else "evaluation"
        calls[type(module).__name__, phase] += 1
        if isinstance(module, torch.nn.Linear) and output.ndim == 3 and output.shape[-1] > 400:
            calls["logits of a batch", phase] += 1

    hook = register_module_forward_hook(count)
    try:
        run = tiny_run(
            tiny_model(),
            "mini/entailment",
            tokenizer=tiny_tokenizer(),
            eval_method=method,
            reference_code=names or None,
            learning_rate=1e-2,
        )
    finally:
        hook.remove()
    lines = [line for line in run.history if not line.keys().isdisjoint(NUMBERS)]
    manifest = json.loads((run.directory / "manifest.json").read_text())
    return {
        "numbers": [line[name] for line in lines for name in NUMBERS if name in line],
        "answers": read_rows(run.directory / "predictions" / "entailment.validation.jsonl"),
        "calls": calls,
        "off": manifest["libraries"]["off"],
    }


# By fast path: how rows are answered, and what the plain code calls more often, when.
CASES = {
    "candidate_trees": ("score", ("T5ForConditionalGeneration", "evaluation")),
    "quick_decoding": ("generate", ("T5ForConditionalGeneration", "evaluation")),
    "loss_chunks": ("score", ("logits of a batch", "training")),
    "quick_attention": ("generate", ("T5Attention", "evaluation")),
}


class ReferenceCodeTest(parameterized.TestCase):
    @parameterized.parameters(*CASES)
    @pytest.mark.slow
    def test_plain_code_computes_the_same(self, name):
        method, plain_call = CASES[name]
        fast, plain = run_with("", method), run_with(name, method)
        self.assertEqual((fast["off"], plain["off"]), ([], [name]))
        self.assertGreater(plain["calls"][plain_call], fast["calls"][plain_call])
        self.assertEqual(fast["answers"], plain["answers"])
        self.assertGreaterEqual(len(fast["numbers"]), 6)
        np.testing.assert_allclose(plain["numbers"], fast["numbers"], rtol=TOLERANCE)

    @pytest.mark.slow
    def test_names_are_checked_and_all_are_all(self):
        off = run_with("all", "score")["off"]
        # Dropout draws otherwise (test_attention.py); the tokenizer is pre-training's (test_corpora.py).
        self.assertEqual(off, sorted([*CASES, "quick_dropout", "quick_tokenizer"]))
        self.assertEqual(
            run_with(" quick_decoding, quick_attention", "score")["off"], ["quick_attention", "quick_decoding"]
        )
        with exits_with(78, "--reference_code: .*'quick_decodng'; did you mean quick_decoding"):
            FineTuner(reference_code="quick_decodng", quiet=True, output_dir=tempfile.mkdtemp() + "/run")
