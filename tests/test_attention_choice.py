"""`--attn_implementation` in runs: what falls back, what is refused, how `auto` chooses, and that a run keeps it."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from absl.testing import parameterized

from t5suite.base.errors import ConfigError
from t5suite.models.attention import choosing
from t5suite.models.attention.choosing import Choice, Shapes, choose, wrong
from t5suite.models.attention.implementations import KERNELS, Kernel, kernel_of
from t5suite.training import attention
from t5suite.training.attention import settle_attention
from t5suite.training.steps import prepare_process
from tests.attention_examples import step_by_step
from tests.test_quick_attention import pair

CPU = torch.device("cpu")
SHAPES = Shapes(rows=3, length=20, heads=2, width=8, dtype=torch.float32)


def plainly(query, key, value, mask, bias, is_causal, scaling, dropout):
    """A kernel that is right."""
    return step_by_step(query, key, value, bias, mask, is_causal)


def without_bias_gradient(query, key, value, mask, bias, *others):
    """A kernel whose bias learns from no more than a half of the rows."""
    halves = torch.where(torch.arange(len(query))[:, None, None, None] % 2 == 0, bias, bias.detach())
    return step_by_step(query, key, value, halves, mask, False)


def unsteady(query, key, value, mask, bias, *others):
    """A kernel that comes out otherwise by one bit, each time."""
    unsteady.turn = not getattr(unsteady, "turn", False)
    return step_by_step(query, key, value, bias, mask, False) * (1 + 1.2e-7 * unsteady.turn)


def broken(*given):
    """A kernel that does not compile."""
    raise RuntimeError("out of resource: shared memory")


def kernels(**attends):
    """In place of the suite's."""
    made = {name: Kernel(attend, drops=False, missing=lambda device: None) for name, attend in attends.items()}
    return mock.patch.dict(KERNELS, made)


def arguments(**changed):
    """Of training, what is looked at."""
    usual = {"device": CPU, "bf16": False, "fp16": False, "per_device_train_batch_size": 4}
    return SimpleNamespace(**{**usual, **changed})


class ChoosingTest(parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_a_right_kernel_is_right(self, is_padded):
        with kernels(other=plainly):
            self.assertIsNone(wrong("other", SHAPES._replace(is_padded=is_padded), CPU))

    @parameterized.named_parameters(
        ("bias", without_bias_gradient, "the gradient of bias is off by"),
        ("bits", unsteady, "not reproducible"),
        ("compiler", broken, "it failed: RuntimeError: out of resource"),
    )
    def test_a_wrong_kernel_is_refused_however_fast(self, attend, why):
        with kernels(other=attend):
            choice = choose(SHAPES, CPU, ("sdpa", "other"))
        self.assertEqual(choice.kernel, "sdpa")
        self.assertStartsWith(choice.refused["other"], why)
        self.assertEqual(list(choice.milliseconds), ["sdpa"])

    @parameterized.parameters((5.0, 4.0, "other"), (4.0, 5.0, "sdpa"))
    def test_the_faster_one_is_taken(self, sdpa, other, expected):
        times = iter([sdpa, other])
        with kernels(other=plainly), mock.patch.object(choosing, "_timed", lambda *given: next(times)):
            choice = choose(SHAPES, CPU, ("sdpa", "other"))
        self.assertEqual(choice, Choice(expected, {"sdpa": sdpa, "other": other}, {}))

    def test_random_numbers_go_on_as_if_nothing_had_been(self):
        torch.manual_seed(1)
        expected = torch.rand(3)
        torch.manual_seed(1)
        choose(SHAPES, CPU, ("sdpa",))
        self.assertTrue(torch.equal(torch.rand(3), expected))

    def test_a_kernel_without_dropout_does_not_run_with_it(self):
        choice = choose(SHAPES._replace(dropout=0.1), CPU, ("sdpa", "flex_attention"))
        self.assertIn("no dropout", choice.refused["flex_attention"])


class SettlingTest(parameterized.TestCase):
    def test_what_a_cpu_lacks_falls_back_and_says_so(self):
        _, model = pair()
        with self.assertLogs("t5suite.training.attention", "WARNING") as logs:
            settle_attention(model, "flex_attention", arguments(), True, 20)
        self.assertEqual(kernel_of(model), "sdpa")
        self.assertIn("flex_attention: FlexAttention has no backward pass on a CPU; sdpa is taken", logs.output[0])

    def test_dropout_without_a_kernel_for_it_is_refused(self):
        _, model = pair(dropout_rate=0.1)
        with self.assertRaisesRegex(ConfigError, "flex_attention: it has no dropout: --dropout_rate 0, or sdpa"):
            settle_attention(model, "flex_attention", arguments(device=torch.device("cuda")), True, 20)

    def test_auto_on_a_cpu_is_sdpa_and_tries_nothing(self):
        _, model = pair()
        with mock.patch.object(attention, "choose", side_effect=AssertionError):
            settle_attention(model, "auto", arguments(), True, 20)
        self.assertEqual(kernel_of(model), "sdpa")

    def test_auto_is_decided_at_the_run_s_shapes_and_kept(self):
        run = SimpleNamespace(manifest={}, update=lambda **entries: run.manifest.update(entries))
        asked, found = [], Choice("flex_attention", {"sdpa": 2.0, "flex_attention": 1.0}, {"triton": "not installed"})
        cuda = arguments(device=torch.device("cuda"), bf16=True)
        with mock.patch.object(attention, "choose", lambda *given: asked.append(given) or found):
            for _ in range(2):
                _, model = pair()
                settle_attention(model, "auto", cuda, True, 20, run, False)
                self.assertEqual(kernel_of(model), "flex_attention")
        self.assertEqual(asked, [(Shapes(4, 20, 2, 8, False, 0.0, torch.bfloat16), torch.device("cuda"))])
        self.assertEqual(json.loads(json.dumps(run.manifest))["attention"]["kernel"], "flex_attention")

    def test_a_model_of_another_kind_is_let_alone(self):
        with mock.patch.object(attention, "set_attention") as changed:
            settle_attention(
                SimpleNamespace(config=SimpleNamespace(model_type="bert")), "flex_attention", None, True, 20
            )
        changed.assert_not_called()

    def test_cudnn_without_a_gpu_warns(self):
        given = SimpleNamespace(
            process_index=0, disable_tqdm=True, verbose=False, world_size=1, seed=1, n_gpu=0, halving_asked_for=False,
            cudnn_attention=True, device=CPU,
        )  # fmt: skip
        with self.assertLogs("t5suite.training.steps", "WARNING") as logs:
            prepare_process(given)
        self.assertIn("--cudnn_attention has no effect", logs.output[0])


class RunTest(parameterized.TestCase):
    def test_a_run_s_manifest_says_what_was_taken(self):
        import fine_tune_t5

        with tempfile.TemporaryDirectory() as folder:
            flags = "--max_train_samples 8 --max_eval_samples 4 --max_steps 1 --per_device_train_batch_size 8 --use_cpu"
            words = [*flags.split(), "--attn_implementation", "auto", "--disable_tqdm", "True", "--output_dir", folder]
            fine_tune_t5.main(["mini.yaml", *words])
            manifest = json.loads((Path(folder) / "manifest.json").read_text())
        self.assertEqual(manifest["attention"], {"kernel": "sdpa", "milliseconds": {}, "refused": {}})
