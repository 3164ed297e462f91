"""Optimizers: every one learns and resumes to the bit, and each equals its formula written plainly."""

import copy
import functools
import inspect
import io
import logging
import re
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from absl.testing import parameterized
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Seq2SeqTrainer
from transformers.optimization import Adafactor
from transformers.training_args import OptimizerNames

from t5suite.optim import adafactor, optimizers
from t5suite.testing import exits_with, parse_flags, tiny_model, tiny_run, tiny_trainer

RATES = {"adamw": 1e-2, "adamw_rms": 3e-2, "adafactor": 3e-2}


@functools.cache
def tiny_t5():
    return tiny_model()


def t5(dtype=torch.float32):
    return copy.deepcopy(tiny_t5()).to(dtype)


@functools.cache
def batch():
    """Eight rows of random ids: what a small T5 learns by heart."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 200, (8, 12), generator=generator)
    return {"input_ids": ids, "labels": ids[:, :6].contiguous()}


def loss_of(model):
    return model(**batch()).loss


def steps(model, optimizer, count):
    losses = []
    for _ in range(count):
        loss = loss_of(model)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def through_a_file(state):
    """As a checkpoint keeps it, and as the trainer reads it: without unpickling code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def flags_of(*words) -> dict:
    return parse_flags("fine_tune_t5", ["--use_cpu", *words])


class EveryOptimizerTest(parameterized.TestCase):
    @parameterized.parameters(*optimizers.OPTIMIZERS)
    @pytest.mark.quick_cases(1)
    def test_a_tiny_t5_learns_a_batch_by_heart(self, name):
        model = t5()
        losses = steps(model, optimizers.make_optimizer(name, model, RATES.get(name, 1e-2)), 15)
        self.assertLess(losses[-1], losses[0] - 1.0)
        self.assertTrue(np.isfinite(losses).all())

    @parameterized.parameters(*optimizers.OPTIMIZERS)
    @pytest.mark.quick_cases(1)
    def test_frozen_parameters_are_left_alone_and_a_frozen_model_is_refused(self, name):
        model = t5()
        model.shared.weight.requires_grad_(False)
        before = model.shared.weight.clone()
        steps(model, optimizers.make_optimizer(name, model, 1e-2), 2)
        self.assertTrue(torch.equal(before, model.shared.weight))
        optimizer, before = optimizers.make_optimizer(name, model, 1e-2, defaults={"weight_decay": 0.1}), weights(model)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)  # a schedule's rate holds for every parameter
        steps(model, optimizer, 2)
        self.assertTrue(torch.equal(before, weights(model)))
        with exits_with(78, "every parameter of the model is frozen"):
            optimizers.make_optimizer(name, model.requires_grad_(False), 1e-2)

    @parameterized.parameters(*optimizers.OPTIMIZERS)
    def test_weight_decay_is_hugging_face_s(self, name):
        model = t5()
        optimizer = optimizers.make_optimizer(name, model, 1e-2, defaults={"weight_decay": 0.1})
        names = {id(p): n for n, p in model.named_parameters()}
        self.assertCountEqual([id(p) for group in optimizer.param_groups for p in group["params"]], names)
        decayed = {names[id(p)] for g in optimizer.param_groups if g["weight_decay"] == 0.1 for p in g["params"]}
        self.assertEqual(decayed, optimizers.decay_names(model) & set(names.values()))
        for part in ("layer_norm", "relative_attention_bias"):
            self.assertFalse(any(part in parameter for parameter in decayed))
        self.assertIn("shared.weight", decayed)

    @parameterized.parameters(*optimizers.OPTIMIZERS)
    def test_a_closure_is_called_with_gradients_and_what_has_none_stays(self, name):
        model = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor([3.0, 4.0])) for _ in range(2)])
        optimizer = optimizers.make_optimizer(name, model, 0.1, defaults={"weight_decay": 0.5, "nobody_s": 7})

        def closure():
            loss = model[0].square().sum()
            loss.backward()
            return loss

        self.assertEqual(float(optimizer.step(closure)), 25.0)
        self.assertEqual(model[1].tolist(), [3.0, 4.0])
        self.assertLess(float(model[0].detach().max()), 4.0)

    def test_adamw_is_torch_s_with_its_own_defaults(self):
        ours, theirs = (torch.nn.ParameterList([torch.nn.Parameter(torch.tensor([3.0, 4.0]))]) for _ in range(2))
        pair = optimizers.make_optimizer("adamw", ours, 0.1), torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.0)
        self.assertTrue(pair[0].param_groups[0]["fused"])
        for step in range(3):
            for model, optimizer in zip((ours, theirs), pair, strict=True):
                model[0].grad = torch.tensor([1e-8, -2.0 * step])
                optimizer.step()
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-6, atol=0)

    def test_settings_of_adafactor_that_mean_nothing_are_refused(self):
        for optim_args, message in (
            ("warmup_init=True", "also needs relative_step"),
            ("min_dim_size_to_factor=-1", "at least 0"),
        ):
            with exits_with(78, message):
                optimizers.make_optimizer("adafactor", t5(), 0.1, optim_args)


# A value of every setting that is not its default.
OTHERS = {
    "adamw": {"betas": "(0.5, 0.6)", "eps": "0.1", "weight_decay": "0.5"},
    "adamw_rms": {"betas": "(0.5, 0.6)", "eps": "0.1", "weight_decay": "0.5", "min_rms": "2.0"},
    "adafactor": {"eps": "(1e-30, 2.0)", "clip_threshold": "0.3", "decay_rate": "-0.3", "beta1": "0.5", "weight_decay": "0.5",
                  "scale_parameter": "False", "relative_step": "True", "warmup_init": "True,relative_step=True",
                  "min_dim_size_to_factor": "0"},
}  # fmt: skip


class EverySettingTest(parameterized.TestCase):
    def trained(self, name, optim_args):
        """A layer after three updates with random gradients."""
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 4)
        optimizer = optimizers.make_optimizer(name, model, 0.02, optim_args)
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        return weights(model)

    @parameterized.parameters(*optimizers.OPTIMIZERS)
    def test_every_setting_of_optim_args_changes_the_updates(self, name):
        self.assertEqual(OTHERS[name].keys(), settings_of(name) - {"fused"})
        for setting, value in OTHERS[name].items():
            without = self.trained(name, "relative_step=True" if setting == "warmup_init" else "")
            changed = self.trained(name, f"{setting}={value}")
            self.assertGreater(float((changed - without).abs().max()), 1e-5, setting)


def settings_of(name: str) -> set[str]:
    parameters = inspect.signature(optimizers.OPTIMIZERS[name]).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind == inspect.Parameter.KEYWORD_ONLY}


def adamw_rms(parameters, fused=None, **settings):
    """The optimizer, and whether it may take torch's fused kernel (None: where it can)."""
    optimizer = optimizers.make_optimizer("adamw_rms", torch.nn.ParameterList(parameters), 2e-2, settings)
    for group in optimizer.param_groups:
        group["fused"] = fused
    return optimizer


def adamw_rms_reference(p, g, state, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
    """One parameter, float64, as nanoT5's formula reads."""
    m, v, t = state.get("m", np.zeros_like(p)), state.get("v", np.zeros_like(p)), state.get("t", 0) + 1
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    state.update(m=m, v=v, t=t)
    step = lr * np.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) * max(1e-3, np.sqrt(np.mean(p**2)))
    p = p - step * m / (np.sqrt(v) + eps)
    return p - lr * weight_decay * p


class AdamWRMSTest(parameterized.TestCase):
    @parameterized.product(fused=(None, False), weight_decay=(0.0, 0.1), eps=(1e-6, 1e-3))
    def test_it_equals_the_formula(self, fused, weight_decay, eps):
        rng = np.random.default_rng(0)
        shapes = [(4, 5), (7,), (3, 2, 2), ()]
        values = [rng.normal(size=shape) for shape in shapes]
        values[1] *= 1e-5  # an RMS below 1e-3
        parameters = [torch.nn.Parameter(torch.tensor(value, dtype=torch.float32)) for value in values]
        optimizer = adamw_rms(parameters, fused, weight_decay=weight_decay, eps=eps)
        states = [{} for _ in shapes]
        for _ in range(20):
            for i, parameter in enumerate(parameters):
                grad = rng.normal(size=shapes[i])
                parameter.grad = torch.tensor(grad, dtype=torch.float32)
                values[i] = adamw_rms_reference(values[i], grad, states[i], 2e-2, eps=eps, weight_decay=weight_decay)
            optimizer.step()
        for parameter, value in zip(parameters, values):
            np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=2e-6, atol=1e-8)

    def test_moments_of_bfloat16_parameters_are_float32_before_and_after_a_restart(self):
        model = t5(torch.bfloat16)
        optimizer = optimizers.make_optimizer("adamw_rms", model, 1e-2)
        steps(model, optimizer, 2)
        other = optimizers.make_optimizer("adamw_rms", copy.deepcopy(model), 1e-2)
        other.load_state_dict(through_a_file(optimizer.state_dict()))
        for mine, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
            for name in ("exp_avg", "exp_avg_sq"):
                self.assertEqual(theirs[name].dtype, torch.float32)
                self.assertTrue(torch.equal(mine[name], theirs[name]))

    def test_nothing_waits_for_the_device(self):
        """A tensor on the meta device has no values: whoever asks for one fails, as `.item()` would wait on a GPU."""
        parameter = torch.nn.Parameter(torch.ones(4, 3, device="meta"))
        parameter.grad = torch.ones(4, 3, device="meta")
        optimizer = adamw_rms([parameter], weight_decay=0.1)
        optimizer.step()
        optimizer.step()
        with self.assertRaises(RuntimeError):
            parameter.sum().item()


def adafactor_reference(p, g, state, rho, t, clip=1.0, decay=-0.8, beta1=None, least_rms=1e-3, least_side=128):
    """arXiv:1804.04235, algorithms 4 (matrices) and 5 (the rest) with its proposed settings, float64.

    Google's reference leaves matrices with a side below 128 to algorithm 5 (mesh_tensorflow/optimize.py).
    """
    beta2 = 1 - t**decay
    squared = g**2 + 1e-30
    if p.ndim == 2 and min(p.shape) >= least_side:
        state["R"] = beta2 * state.get("R", 0) + (1 - beta2) * squared.sum(1, keepdims=True)
        state["C"] = beta2 * state.get("C", 0) + (1 - beta2) * squared.sum(0, keepdims=True)
        second = state["R"] @ state["C"] / state["R"].sum()
    else:
        second = state["V"] = beta2 * state.get("V", 0) + (1 - beta2) * squared
    update = g / np.sqrt(second)
    update /= max(1.0, np.sqrt(np.mean(update**2)) / clip)
    step = max(least_rms, np.sqrt(np.mean(p**2))) * rho * update
    if beta1 is not None:
        step = state["M"] = beta1 * state.get("M", 0) + (1 - beta1) * step
    return p - step


class CopiesToPython(TorchDispatchMode):
    """Counts numbers that are read from a tensor, for each of which a GPU would be waited for."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


class AdafactorTest(parameterized.TestCase):
    @parameterized.parameters(
        ("", {}, lambda t: 0.02), ("relative_step=True", {}, lambda t: min(1e-2, t**-0.5)),
        ("relative_step=True,warmup_init=True", {}, lambda t: min(1e-6 * t, t**-0.5)),
        ("clip_threshold=0.5", {"clip": 0.5}, lambda t: 0.02), ("decay_rate=-0.5", {"decay": -0.5}, lambda t: 0.02),
        ("beta1=0.9", {"beta1": 0.9}, lambda t: 0.02), ("eps=(1e-30, 0.7)", {"least_rms": 0.7}, lambda t: 0.02),
    )  # fmt: skip
    def test_it_equals_the_paper(self, optim_args, settings, rho):
        self.assert_equal([(6, 4), (4,)], optim_args, settings, rho)

    @parameterized.parameters(
        ("", 128), ("min_dim_size_to_factor=0", 0), ("min_dim_size_to_factor=33", 33),
    )  # fmt: skip
    def test_a_small_side_decides_whether_a_matrix_is_factored(self, optim_args, least_side):
        """Of a T5: position bias (32 x heads), a projection, one with a side of 127, an embedding, a layer norm."""
        shapes = [(32, 8), (128, 128), (127, 256), (256, 128), (130,)]
        optimizer = self.assert_equal(shapes, optim_args, {"least_side": least_side}, lambda t: 1e-3, 10)
        factored = ["exp_avg_sq_row" in state for state in optimizer.state.values()]
        self.assertEqual(factored, [len(shape) == 2 and min(shape) >= least_side for shape in shapes])

    def assert_equal(self, shapes, optim_args, settings, rho, count=20):
        rng = np.random.default_rng(0)
        model = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(rng.normal(size=s)).float()) for s in shapes])
        optimizer = optimizers.make_optimizer("adafactor", model, rho(1), optim_args)
        values = [p.detach().double().numpy().copy() for p in model.parameters()]
        states = [{} for _ in values]
        for t in range(1, count + 1):
            for i, parameter in enumerate(model.parameters()):
                grad = rng.normal(size=values[i].shape) * 10.0 ** (i % 2)
                parameter.grad = torch.tensor(grad, dtype=torch.float32)
                values[i] = adafactor_reference(values[i], grad, states[i], rho(t), t, **settings)
            optimizer.step()
        for parameter, value in zip(model.parameters(), values):
            np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-5, atol=1e-7)
        return optimizer

    @parameterized.parameters(
        ({}, {}), ({"beta1": 0.9}, {"momentum": 0.9}), ({"clip_threshold": 0.5}, {"clipping_threshold": 0.5}),
    )  # fmt: skip
    def test_it_equals_optax(self, settings, theirs):
        """optax clips and scales alike; its momentum is taken of the scaled update."""
        try:
            import jax
            import optax
        except ImportError:
            self.skipTest("optax is not installed")
        rng = np.random.default_rng(0)
        shapes = [(32, 8), (128, 130), (127, 256), (64,)]
        values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        model = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(value)) for value in values])
        optimizer = optimizers.make_optimizer("adafactor", model, 1e-2, settings)
        other = optax.adafactor(1e-2, **theirs)
        values = [jax.numpy.array(value) for value in values]
        state = other.init(values)
        for _ in range(10):
            grads = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.grad = torch.tensor(grad)
            optimizer.step()
            updates, state = other.update([jax.numpy.array(grad) for grad in grads], state, values)
            values = optax.apply_updates(values, updates)
        for parameter, value in zip(model.parameters(), values):
            np.testing.assert_allclose(parameter.detach().numpy(), np.asarray(value), rtol=1e-5, atol=1e-6)

    @parameterized.parameters("", "relative_step=True", "min_dim_size_to_factor=0,beta1=0.9", "scale_parameter=False")
    def test_an_update_waits_for_no_number_of_the_device(self, optim_args):
        model = t5()
        optimizer = optimizers.make_optimizer("adafactor", model, 0.02, optim_args, {"weight_decay": 0.1})
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with CopiesToPython() as copies:
            optimizer.step()
        self.assertEqual(copies.count, 0)

    @parameterized.parameters(1, 3000, 2**30)
    def test_how_many_parameters_are_updated_together_changes_no_bit(self, most_numbers):
        alone, together = t5(), t5()
        for model, most in ((alone, 0), (together, most_numbers)):
            with mock.patch.object(adafactor, "MOST_NUMBERS", most):
                optimizer = optimizers.make_optimizer("adafactor", model, 0.02, "min_dim_size_to_factor=16")
                steps(model, optimizer, 3)
        self.assertTrue(torch.equal(weights(alone), weights(together)))

    def test_a_bfloat16_parameter_is_that_of_float32_rounded(self):
        halves = t5(torch.bfloat16)
        wholes = copy.deepcopy(halves).float()
        before = weights(halves).clone()
        for model in (halves, wholes):
            for parameter, half in zip(model.parameters(), halves.parameters(), strict=True):
                parameter.grad = torch.sin(torch.arange(half.numel()).view_as(half)).bfloat16().to(parameter.dtype)
            optimizers.make_optimizer("adafactor", model, 1e-2).step()
        self.assertFalse(torch.equal(weights(halves), before))
        self.assertTrue(torch.equal(weights(halves), weights(wholes).bfloat16()))

    def test_every_matrix_factored_is_transformers_adafactor_to_the_bit(self):
        """So runs that t5suite 0.2.0 began with that class go on bit for bit, their small matrices factored."""
        model = t5()
        ours, theirs = [copy.deepcopy(model) for _ in range(2)]
        settings = {"lr": 0.02, "scale_parameter": True, "relative_step": False, "weight_decay": 0.1, "beta1": 0.9}
        their_optimizer = Adafactor(optimizers.decay_groups(theirs, 0.1), **settings)
        steps(theirs, their_optimizer, 3)
        ours.load_state_dict(theirs.state_dict())
        optimizer = optimizers.make_optimizer("adafactor", ours, 0.02, "beta1=0.9", {"weight_decay": 0.1})
        with self.assertLogs("t5suite", "WARNING") as logs:
            optimizer.load_state_dict(through_a_file(their_optimizer.state_dict()))
        self.assertRegex(logs.output[0], "factors every matrix.*the run goes on so")
        for trained, stepped in ((theirs, their_optimizer), (ours, optimizer)):
            steps(trained, stepped, 3)
        self.assertTrue(torch.equal(weights(ours), weights(theirs)))

    def test_moments_of_bfloat16_parameters_are_float32_before_and_after_a_restart(self):
        model = t5(torch.bfloat16)
        optimizer = optimizers.make_optimizer("adafactor", model, 1e-2, "min_dim_size_to_factor=16,beta1=0.9")
        steps(model, optimizer, 2)
        other = optimizers.make_optimizer("adafactor", copy.deepcopy(model), 1e-2)
        other.load_state_dict(through_a_file(optimizer.state_dict()))
        moments = [
            (mine[name], theirs[name])
            for mine, theirs in zip(optimizer.state.values(), other.state.values(), strict=True)
            for name in mine.keys() - {"step", "RMS"}
        ]
        self.assertLen({tuple(sorted(state)) for state in optimizer.state.values()}, 2)
        for mine, theirs in moments:
            self.assertEqual(theirs.dtype, torch.float32)
            self.assertTrue(torch.equal(mine, theirs))

    @pytest.mark.slow
    def test_a_run_that_goes_on_with_another_rate_factors_what_its_checkpoint_factors(self):
        shared = {"optimizer": "adafactor", "save_strategy": "steps", "save_steps": 2, "eval_strategy": "no"}
        first = tiny_run(**shared, optim_args="min_dim_size_to_factor=0").directory
        output_dir = Path(tempfile.mkdtemp()) / "second"
        resumed = {"resume": str(first / "checkpoint-2"), "learning_rate": 0.05, "max_steps": 4}
        tiny_run(**shared, **resumed, output_dir=str(output_dir))
        files = (first / "checkpoint-2" / "optimizer.pt", output_dir / "checkpoint-4" / "optimizer.pt")
        before, after = (torch.load(file, weights_only=True)["state"] for file in files)
        self.assertEqual([state.keys() for state in before.values()], [state.keys() for state in after.values()])
        self.assertTrue(any("exp_avg_sq_row" in state for state in after.values()))


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("adamw", "betas=(1.5, 0.9)", "beta"),
        ("adamw", "eps=-1", "epsilon"),
        ("adamw", "weight_decay=-0.1", "weight_decay is -0.1; give at least 0"),
        ("adamw_rms", "weight_decay=-0.1", "weight_decay is -0.1; give at least 0"),
        ("adamw_rms", "betas=(1.5,0.9)", "betas is .1.5, 0.9.; give numbers from 0 to below 1"),
        ("adamw_rms", "betas=(0.9,1)", "betas is "),
        ("adamw_rms", "eps=-1", "eps is -1"),
        ("adamw_rms", "min_rms=-1", "min_rms is -1"),
        ("adafactor", "beta1=1.5", "beta1 is 1.5; give a number from 0 to below 1"),
        ("adafactor", "clip_threshold=0", "clip_threshold is 0.*; give more than 0"),
        ("adafactor", "eps=(-1,1)", "eps is "),
        ("adafactor", "decay_rate=0.8", "decay_rate is 0.8; give at most 0"),
    )
    def test_a_setting_out_of_its_range_is_named(self, name, optim_args, message):
        with exits_with(78, f"--optimizer {name}: .*{message}"):
            optimizers.make_optimizer(name, t5(), 0.1, optim_args)

    def test_optim_args_come_before_the_flags_and_the_flags_before_the_defaults(self):
        for flags, betas, eps in (
            ({}, (0.9, 0.999), 1e-6),
            ({"adam_beta2": 0.95, "adam_epsilon": 1e-9}, (0.9, 0.95), 1e-9),
            ({"adam_epsilon": 1e-9, "optim_args": "betas=(0.8, 0.9),eps=1e-5"}, (0.8, 0.9), 1e-5),
        ):
            optimizer = tiny_trainer(optimizer="adamw_rms", weight_decay=0.25, **flags).create_optimizer()
            group = optimizer.param_groups[0]
            self.assertEqual((group["betas"], group["eps"], group["weight_decay"]), (betas, eps, 0.25))
        with self.assertLogs("t5suite", "WARNING") as logs:
            tiny_trainer(optimizer="adafactor", adam_beta1=0.5, optim="sgd").create_optimizer()
        self.assertRegex(
            " ".join(logs.output), "--(adam_beta1|optim) has no effect.*--(adam_beta1|optim) has no effect"
        )

    @parameterized.parameters("sgd", "adagrad", "rmsprop", "adamw_torch", "adafactor")
    def test_weight_decay_of_hugging_face_s_optimizer_is_that_of_the_flag(self, name):
        groups = tiny_trainer(optim=name, weight_decay=0.25).create_optimizer().param_groups
        self.assertEqual([group["weight_decay"] for group in groups], [0.25, 0.0])

    def test_flags_of_adam_that_hugging_face_s_optimizer_does_not_read_are_named(self):
        of_adam = ["adam_beta1", "adam_beta2", "adam_epsilon"]
        trainer = tiny_trainer(adam_beta1=0.5, adam_beta2=0.6, adam_epsilon=1e-3)
        self.enter_context(mock.patch.object(Seq2SeqTrainer, "create_optimizer"))  # of libraries that need not be there
        for name, idle_flags in (
            ("sgd", of_adam), ("adagrad", of_adam), ("adafactor", of_adam), ("rmsprop_bnb_8bit", of_adam),
            ("lion_8bit", ["adam_epsilon"]), ("adamw_torch", []), ("ademamix_8bit", []),
        ):  # fmt: skip
            with mock.patch.object(trainer.args, "optim", name), self.assertLogs("t5suite", "INFO") as logs:
                logging.getLogger("t5suite").info("there is something")
                trainer.create_optimizer()
            warnings = [record.getMessage() for record in logs.records[1:]]
            text = f"has no effect: --optim {name} does not use it; see --optim_args"
            self.assertEqual(warnings, [f"--{flag} {text}" for flag in idle_flags])

    @parameterized.parameters(
        (["--optimizer", "adamw_rsm"], "--optimizer: unknown optimizer 'adamw_rsm'; did you mean adamw_rms"),
        (
            ["--optimizer", "adafactor", "--optim_args", "decay_rat=0.9"],
            "no setting 'decay_rat'; did you mean decay_rate",
        ),
        (["--optimizer", "adamw", "--optim_args", "betas=0.9"], "betas=0.9: expected tuple"),
        (["--optimizer", "adamw", "--optim_args", "eps"], "'eps' is not name=value"),
        (["--optimizer", "adamw", "--optim_args", "eps=1,eps=2"], "eps is given twice"),
        (["--optimizer", "adamw", "--optim_args", "fused=3"], "fused=3: expected bool"),
        (
            ["--optim", "sgd", "--optim_args", "momentum=0.9,weight_decay=0.5"],
            "--optim_args weight_decay=0.5: --optim sgd has the weight decay of --weight_decay; give that flag",
        ),
        (["--optim", "adagrad", "--optim_args", "weight_decay=0"], "--optim adagrad has .*; give that flag"),
        (["--optimizer", "rmsprop", "--optim_args", "weight_decay=0.5"], "--optim rmsprop has .*; give that flag"),
        (["--optim", "adamw_torch", "--optim_args", "weight_decay=0.5"], "--optim adamw_torch has .*; give that flag"),
        (
            ["--optim", "sgd", "--optim_args", "nesterov=True"],
            "--optim sgd with --optim_args nesterov=True: Nesterov momentum requires a momentum",
        ),
        (
            ["--optim", "sgd", "--optim_args", "momentum=-1"],
            "--optim sgd with --optim_args momentum=-1: Invalid momentum",
        ),
        (["--optim", "adagrad", "--optim_args", "lr_decay=-1"], "--optim adagrad with .*: Invalid lr_decay"),
        (["--optimizer", "rmsprop", "--optim_args", "alpha=-1"], "--optim rmsprop with .*: Invalid alpha"),
        (["--clip_grad_value", "-1"], "--clip_grad_value -1: must be above 0"),
        (["--max_minutes", "0"], "--max_minutes 0: must be above 0"),
    )
    def test_bad_settings_are_named(self, argv, message):
        with exits_with(78, message):
            flags_of(*argv)


class ClippingTest(parameterized.TestCase):
    def test_every_element_is_clipped_after_accumulation_and_before_the_update(self):
        accumulated = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
        trainer = tiny_trainer(**accumulated, optim="sgd", max_grad_norm=0, clip_grad_value=1e-3)
        largest = []
        update = torch.optim.SGD.step

        def watched(optimizer, *args, **kwargs):
            grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            largest.append(max(float(grad.abs().max()) for grad in grads))
            return update(optimizer, *args, **kwargs)

        with mock.patch.object(torch.optim.SGD, "step", watched):
            trainer.train()
        self.assertLen(largest, 3)
        self.assertTrue(all(abs(value - 1e-3) < 1e-9 for value in largest), largest)
        self.assertGreater(min(line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line), 0.1)


# Those of transformers' optimizers that need no further library.
TORCH_S = {"adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adafactor", "sgd", "adagrad",
           "rmsprop"}  # fmt: skip
# Those that a run cannot use.
UNFIT = {"schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd", "lomo", "adalomo", "galore_adamw",
         "galore_adamw_8bit", "galore_adafactor", "apollo_adamw", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise",
         "galore_adafactor_layerwise", "apollo_adamw_layerwise"}  # fmt: skip


class LibrariesTest(parameterized.TestCase):
    def test_every_optimizer_of_transformers_is_torch_s_or_names_the_library_that_it_needs_or_another_one(self):
        for name in (member.value for member in OptimizerNames):
            with mock.patch("importlib.util.find_spec", return_value=None):
                if name in TORCH_S:
                    flags_of("--optim", name)
                    continue
                with exits_with(78, "; choose " if name in UNFIT else "pip install"):
                    flags_of("--optim", name)

    @parameterized.parameters(
        (
            "schedule_free_sgd",
            "holds other weights while it trains than those that should be scored.*--optimizer adamw",
        ),
        (
            "galore_adafactor_layerwise",
            "changes weights within the backward pass.*choose --optimizer adafactor",
        ),
        ("adalomo", "changes weights within the backward pass.*choose --optimizer adafactor"),
        (
            "galore_adamw",
            "keeps objects of its library in its state, .*no checkpoint can hold.*choose --optimizer adafactor",
        ),
        (
            "apollo_adamw",
            "keeps objects of its library in its state, .*no checkpoint can hold.*choose --optimizer adafactor",
        ),
    )
    def test_one_that_a_run_cannot_use_is_refused_with_what_to_give_whatever_is_installed(self, name, message):
        installed = mock.patch("importlib.util.find_spec", return_value=object())
        with installed, exits_with(78, f"--optim {name} {message}"):
            flags_of("--optim", name)

    @parameterized.parameters("lommo", "galore_adamm", "schedule_free_sgdd")
    def test_a_mistyped_name_is_never_answered_with_one_that_a_run_cannot_use(self, name):
        for flag in ("--optim", "--optimizer"):
            with exits_with(78, f"{flag}: unknown .* '{name}'; ") as failure:
                flags_of(flag, name)
            self.assertNoCommonElements(re.findall(r"\w+", failure.message), UNFIT)

    @parameterized.parameters(
        ("rmsprop_bnb_8bit", "alpha=0.9", "has no setting 'alpha'; it has none"),
        ("adamw_torch_8bit", "block_size=128", "has no setting 'block_size'"),
        (
            "stable_adamw",
            "kahan_sum=False",
            "kahan_sum=False: transformers takes any text for True; give kahan_sum=True, or leave kahan_sum out",
        ),
        ("stable_adamw", "kahan_sum=1", "kahan_sum=1: .*; give kahan_sum=True, or leave kahan_sum out"),
        ("stable_adamw", "decouple_lr=0", "decouple_lr=0: .*; give decouple_lr=True, or leave decouple_lr out"),
    )
    def test_settings_that_transformers_would_hand_on_as_texts_are_refused(self, name, settings, message):
        installed = mock.patch("importlib.util.find_spec", return_value=object())
        with installed, exits_with(78, f"--optim_args.*{message}"):
            flags_of("--optim", name, "--optim_args", settings)

    @parameterized.parameters(
        ("sgd", "momentum=0.9,nesterov=True"), ("rmsprop", "alpha=0.9,centered=True"), ("stable_adamw", "kahan_sum=True"),
    )  # fmt: skip
    def test_others_are_taken(self, name, settings):
        with mock.patch("importlib.util.find_spec", return_value=object()):
            self.assertEqual(flags_of("--optim", name, "--optim_args", settings)["optim_args"], settings)

    @parameterized.parameters(
        (["--optim", "adamw_bnb_8bit"], r"pip install 't5suite\[quantization\]'"),
        (["--optimizer", "paged_adamw_8bit"], r"pip install 't5suite\[quantization\]'"),
        (["--optim", "stable_adamw"], "pip install torch-optimi"),
    )
    def test_a_library_that_is_not_there_is_named_with_its_install_line(self, argv, message):
        with mock.patch("importlib.util.find_spec", return_value=None), exits_with(78, message):
            flags_of(*argv)

    def test_adafactor_is_advised_in_place_of_bitsandbytes_optimizers_alone(self):
        """Whoever asks for GrokAdamW or a stable AdamW is not short of memory."""
        for name, is_advised in (("paged_adamw_8bit", True), ("grokadamw", False), ("stable_adamw", False)):
            with mock.patch("importlib.util.find_spec", return_value=None), exits_with(78) as refused:
                flags_of("--optim", name)
            self.assertEqual("adafactor" in str(refused.exception), is_advised, name)
