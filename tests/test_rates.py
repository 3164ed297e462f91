"""How fast a run is, what it could be, and what it takes: rates, FLOPs, watched losses; in whole runs, too."""

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from absl.testing import absltest, parameterized
from support import later_wins
from torch.utils.flop_counter import FlopCounterMode
from transformers import T5Config, T5ForConditionalGeneration

import fine_tune_t5
from t5suite import load_task
from t5suite.testing import tiny_rows, tiny_tokenizer, write_rows
from t5suite.training.monitoring import flops as counting
from t5suite.training.monitoring.flops import forward_flops
from t5suite.training.monitoring.rates import StepMonitor, weight_norm


def tiny_t5():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )


def batch(rows, real_tokens, length=6):
    mask = torch.zeros(rows, length, dtype=torch.long)
    mask.view(-1)[:real_tokens] = 1
    return {"input_ids": torch.ones_like(mask), "attention_mask": mask, "decoder_input_ids": torch.ones(rows, 3).long()}


class StepMonitorTest(parameterized.TestCase):
    state = SimpleNamespace(global_step=0, max_steps=10, num_input_tokens_seen=0)

    def monitored(self, **settings):
        self.state = SimpleNamespace(global_step=0, max_steps=10, num_input_tokens_seen=100)
        monitor = StepMonitor(**settings)
        monitor.on_train_begin(None, self.state, None)
        monitor.on_step_begin(None, self.state, None)
        return monitor

    def test_tokens_are_counted_without_padding_over_ranks_and_restarts(self):
        monitor = self.monitored(reduce=lambda tensor: 2 * tensor)  # two ranks alike
        monitor.count(None, batch(2, 7))
        monitor.count(None, batch(2, 12))
        self.state.global_step = 2
        found = monitor.rates(self.state)
        self.assertEqual(found["tokens_seen"], 100 + 2 * 19)
        self.assertAlmostEqual(found["tokens_per_second"] * found["seconds_per_step"] * 2, 2 * 19, places=6)
        self.assertAlmostEqual(found["seconds_left"], 8 * found["seconds_per_step"])
        self.assertNotIn("mfu", found)
        self.assertEqual(monitor.rates(self.state), {}, "no step since the last log")

    def test_packed_rows_count_their_examples_tokens(self):
        monitor = self.monitored()
        packed = {**batch(1, 6), "encoder_segment_ids": torch.tensor([[1, 1, 2, 2, 0, 0]])}
        monitor.count(None, packed)
        self.state.global_step = 1
        self.assertEqual(monitor.rates(self.state)["tokens_seen"], 104)

    def test_evaluations_and_checkpoints_stand_aside(self):
        monitor = self.monitored()
        monitor.on_step_end(None, self.state, SimpleNamespace(should_evaluate=True, should_save=False))
        time.sleep(0.2)
        monitor.on_step_begin(None, self.state, None)
        self.state.global_step = 1
        self.assertLess(monitor.rates(self.state)["seconds_per_step"], 0.1)

    @parameterized.parameters(
        # What is due after the last step of an epoch, and at the epoch's end.
        ((False, False), (True, False)), ((False, False), (False, True)), ((True, True), (True, False)),
        ((True, False), (False, False)),
    )  # fmt: skip
    def test_so_do_those_before_the_first_step_and_at_the_end_of_an_epoch(self, after_step, after_epoch):
        self.state = SimpleNamespace(global_step=0, max_steps=10, num_input_tokens_seen=0)
        controls = [
            SimpleNamespace(should_evaluate=evaluates, should_save=saves)
            for evaluates, saves in (after_step, after_epoch)
        ]
        with mock.patch("time.perf_counter", return_value=100.0) as clock:
            monitor = StepMonitor()
            monitor.on_train_begin(None, self.state, None)
            clock.return_value += 50
            monitor.on_step_begin(None, self.state, None)
            clock.return_value += 2
            monitor.on_step_end(None, self.state, controls[0])
            clock.return_value += 30 * any(after_step)
            monitor.on_epoch_end(None, self.state, controls[1])
            clock.return_value += 20 * any(after_epoch)
            if any(after_epoch):
                monitor.on_step_begin(None, self.state, None)
            self.state.global_step = 1
            self.assertEqual(monitor.rates(self.state)["seconds_per_step"], 2)

    def test_what_is_excluded_before_a_log_does_not_shorten_the_steps_after_it(self):
        monitor = self.monitored()
        monitor.on_step_end(None, self.state, SimpleNamespace(should_evaluate=True, should_save=False))
        time.sleep(0.2)  # until the log, which comes before the evaluation
        self.state.global_step = 1
        monitor.rates(self.state)
        monitor.on_step_begin(None, self.state, None)
        time.sleep(0.1)
        self.state.global_step = 2
        self.assertGreater(monitor.rates(self.state)["seconds_per_step"], 0.09)

    def test_a_checkpoint_s_state_has_every_token_so_far(self):
        monitor = self.monitored()
        monitor.count(None, batch(1, 5))
        monitor.flush(self.state)
        self.assertEqual(self.state.num_input_tokens_seen, 105)

    def test_utilisation_counts_three_passes_of_every_row(self):
        model, peak = tiny_t5(), 1e9
        monitor = self.monitored(peak=peak)
        for rows in (2, 3):
            monitor.count(model, batch(rows, 6))
        flops = forward_flops(model, {"input_ids": (5, 6), "decoder_input_ids": (5, 3)})
        self.state.global_step = 1
        found = monitor.rates(self.state)
        self.assertAlmostEqual(found["mfu"], 100 * 3 * flops / found["seconds_per_step"] / peak, places=6)

    def test_a_model_that_cannot_be_counted_has_no_utilisation(self):
        class Uncountable(torch.nn.Module):
            def __init__(self, config):
                super().__init__()
                self.config = config

            def forward(self, **inputs):
                raise NotImplementedError("no kernel for the meta device")

        monitor = self.monitored(peak=1e9)
        with self.assertLogs("t5suite.training.monitoring.rates", "WARNING") as logs:
            monitor.count(Uncountable(None), batch(1, 6))
            monitor.count(Uncountable(None), batch(1, 6, length=7))
        self.assertLen(logs.output, 1, "it is said once")
        self.state.global_step = 1
        self.assertNotIn("mfu", monitor.rates(self.state))

    def test_waiting_for_data_is_a_share_of_the_time(self):
        def slow(batches):
            for batch in batches:
                time.sleep(0.1)
                yield batch

        monitor = self.monitored()
        with monitor.waiting():
            self.assertEqual(list(slow([1, 2])), [1, 2])
        time.sleep(0.2)
        self.state.global_step = 1
        found = monitor.rates(self.state)
        self.assertBetween(found["data_wait"], 25, 75)
        self.assertAlmostEqual(found["data_wait"] / 100 * found["seconds_per_step"], 0.2, delta=0.15)
        self.state.global_step = 2
        self.assertEqual(monitor.rates(self.state)["data_wait"], 0, "each log tells of its own steps")

    def test_peak_memory_of_a_gpu_is_that_of_this_training(self):
        peaks = {"cuda": 7e9}  # of an earlier one

        def reset(device):
            peaks[device.type] = 2e9

        self.enter_context(mock.patch("torch.cuda.reset_peak_memory_stats", reset))
        self.enter_context(mock.patch("torch.cuda.max_memory_allocated", lambda device: peaks[device.type]))
        monitor = self.monitored(device=torch.device("cuda"))
        self.state.global_step = 1
        self.assertEqual(monitor.rates(self.state)["peak_memory_gb"], 2)
        peaks["cuda"] = 3e9
        self.state.global_step = 2
        self.assertEqual(monitor.rates(self.state)["peak_memory_gb"], 3)

    @pytest.mark.slow
    def test_peak_memory_is_the_process_s(self):
        monitor = self.monitored()
        self.state.global_step = 1
        taken = np.ones(3 * 10**7)
        gigabytes = monitor.rates(self.state)["peak_memory_gb"]
        self.assertBetween(gigabytes, taken.nbytes / 1e9, 64)

    def test_weight_norm(self):
        model = tiny_t5()
        expected = math.sqrt(sum(p.detach().double().square().sum().item() for p in model.parameters()))
        self.assertAlmostEqual(weight_norm(model), expected, places=3)
        next(model.parameters()).ds_id = 0  # ZeRO-3 holds a part of it elsewhere
        self.assertIsNone(weight_norm(model))


def t5_formula(config, S, T):
    """The formula of the module's docstring."""
    d, i, f = config.d_model, config.num_heads * config.d_kv, config.d_ff
    m = 3 if config.is_gated_act else 2
    encoder = config.num_layers * (2 * S * (4 * d * i + m * d * f) + 4 * S * S * i)
    decoder = config.num_decoder_layers * (
        2 * T * (6 * d * i + m * d * f) + 2 * S * 2 * d * i + 4 * T * T * i + 4 * T * S * i
    )
    return encoder + decoder + 2 * T * d * config.vocab_size


def t5(**settings):
    config = T5Config(vocab_size=32128, decoder_start_token_id=0, **settings)
    with torch.device("meta"):
        return T5ForConditionalGeneration(config)


class FlopsTest(parameterized.TestCase):
    @parameterized.parameters(
        (dict(d_model=768, d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu"), 512, 114),
        (dict(d_model=512, d_ff=2048, num_layers=6, num_heads=8), 128, 29),
        (dict(d_model=64, d_kv=24, d_ff=96, num_layers=3, num_decoder_layers=1, num_heads=4), 17, 5),
    )
    @pytest.mark.slow
    def test_the_count_equals_the_formula(self, settings, S, T):
        model = t5(**settings)
        counted = counting.forward_flops(model, {"input_ids": (1, S), "decoder_input_ids": (1, T)})
        self.assertEqual(counted, t5_formula(model.config, S, T))


@pytest.mark.slow
class ManyShapesTest(parameterized.TestCase):
    """What is told of a shape at once is what would have been counted."""

    SHAPES = [(1, 3, 5), (2, 17, 5), (3, 100, 1), (1, 512, 114), (7, 9, 33)]

    def test_encoder_decoders(self):
        model = t5(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=1, num_heads=2)
        flops_of, reference = (counting.StepFlops(model, backward=False) for _ in range(2))
        with mock.patch.object(flops_of, "counted", wraps=flops_of.counted) as counted:
            for rows, source, target in 2 * self.SHAPES:
                shapes = {"input_ids": (rows, source), "decoder_input_ids": (rows, target)}
                self.assertEqual(flops_of(shapes), reference.counted(shapes), shapes)
        self.assertEqual(counted.call_count, 1 + len(counting.PROBES))


class StepFlopsTest(parameterized.TestCase):
    SHAPES = {"input_ids": (2, 24), "decoder_input_ids": (2, 7)}
    SIZES = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=1, num_heads=2)

    def counted_anew(self, model):
        """As torch counts it where both passes run, attention as plain products."""
        model.set_attn_implementation("eager")
        with torch.device("meta"):
            inputs = {name: torch.zeros(shape, dtype=torch.long) for name, shape in self.SHAPES.items()}
            with FlopCounterMode(display=False) as counter:
                model(**inputs).logits.sum().backward()
        return counter.get_total_flops()

    @pytest.mark.slow
    def test_three_passes_where_everything_is_trained(self):
        model = t5(**self.SIZES)
        found = counting.StepFlops(model)(self.SHAPES)
        self.assertEqual(found, 3 * 2 * t5_formula(model.config, 24, 7))
        self.assertEqual(found, self.counted_anew(model))

    @parameterized.parameters("encoder", "decoder", "encoder.block.0", "shared")
    @pytest.mark.slow
    def test_less_where_a_part_is_frozen(self, part):
        model = t5(**self.SIZES)
        for name, parameter in model.named_parameters():
            if name.startswith(part) and parameter is not model.shared.weight:
                parameter.requires_grad_(False)
        found = counting.StepFlops(model)(self.SHAPES)
        self.assertEqual(found, self.counted_anew(model))
        whole = counting.StepFlops(t5(**self.SIZES))(self.SHAPES)
        self.assertEqual(found < whole, part != "shared")

    @pytest.mark.slow
    def test_below_an_adapter_gradients_pass_through_and_none_is_made(self):
        import peft

        config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q", "v"])
        with torch.device("meta"):
            model = peft.get_peft_model(t5(**self.SIZES), config)
        found = counting.StepFlops(model)(self.SHAPES)
        forward = counting.forward_flops(t5(**self.SIZES), self.SHAPES)
        # Attention's products have two gradients and no weights.
        attention = 2 * (4 * 24 * 24 * 16 * 2 + 4 * 7 * 7 * 16 + 4 * 7 * 24 * 16)
        self.assertEqual(found, 2 * forward + attention)


class PeakTest(absltest.TestCase):
    def test_a_card_has_its_own_peak_and_an_unknown_one_none(self):
        peaks = {"NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA A100 80GB PCIe": 312e12, "NVIDIA A10": 125e12}
        peaks |= {"NVIDIA A10G": 70e12, "NVIDIA A40": 150e12, "NVIDIA L40S": 362e12, "NVIDIA L4": 121e12}
        peaks |= {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H100 NVL": 835e12}
        peaks |= {"NVIDIA GH200 480GB": 989e12, "NVIDIA H200": 989e12, "NVIDIA GB200": 2500e12, "NVIDIA B200": 2250e12}
        peaks |= {"Tesla V100-SXM2-16GB": 125e12, "Tesla T4": 65e12, "NVIDIA RTX A6000": 155e12}
        peaks |= {"AMD Instinct MI250X": 191.5e12, "AMD Instinct MI250": 181e12}  # one of two dies
        for name in ("RTX A4000", "RTX A1000", "T400 4GB", "GeForce RTX 3090 Ti", "GeForce RTX 4090 Laptop GPU"):
            peaks[f"NVIDIA {name}"] = None
        parts = ("H100 80GB HBM3 MIG 1g.10gb", "A100-SXM4-40GB MIG 3g.20gb", "A100-4C", "A100-1-5C", "GRID T4-4Q")
        peaks |= dict.fromkeys(parts)
        for name, peak in peaks.items():
            with mock.patch("torch.cuda.get_device_name", return_value=name):
                self.assertEqual(counting.peak_flops(torch.device("cuda")), peak)
        self.assertIsNone(counting.peak_flops(torch.device("cpu")))


ROOT = Path(__file__).parent.parent
ROWS = 24
ARGV = (
    "mini.yaml --dataset_name entailment --max_eval_samples 4 --num_train_epochs 1 --max_steps -1 --eval_strategy no "
    "--logging_steps 1 --use_cpu --disable_tqdm True --dropout_rate 0"
).split()


@functools.cache
def rows() -> tuple[str, list[tuple[int, int]]]:
    """A file of rows, and the tokens of input and target of each, by the tokenizer alone."""
    tokenizer, task = tiny_tokenizer(), load_task("mini", "entailment")
    chosen = tiny_rows("entailment", count=ROWS)
    path = write_rows(Path(tempfile.mkdtemp()) / "train.jsonl", chosen)
    examples = [example for row in chosen for example in task.examples(row, "train")]
    return str(path), [(len(tokenizer(e.inputs).input_ids), len(tokenizer(e.targets).input_ids)) for e in examples]


def logged(*flags) -> list[dict]:
    """The lines of the steps of an epoch over these rows."""
    folder = Path(tempfile.mkdtemp()) / "run"
    fine_tune_t5.main(later_wins([*ARGV, "--train_file", rows()[0], *flags, "--output_dir", str(folder)]))
    return lines_of(folder)


def lines_of(folder: Path) -> list[dict]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "train/seconds_per_step" in line]


def tokens_of(lines) -> float:
    """Useful tokens of all steps, as the rates tell them."""
    return sum(line["train/tokens_per_second"] * line["train/seconds_per_step"] for line in lines)


@pytest.mark.slow
class StepFiguresTest(parameterized.TestCase):
    """One epoch over all rows: each counts once, however it is computed."""

    @parameterized.named_parameters(
        ("padded", "--per_device_train_batch_size 8"),
        ("accumulated", "--per_device_train_batch_size 3 --gradient_accumulation_steps 4"),
        ("checkpointed", "--per_device_train_batch_size 8 --gradient_checkpointing True"),
        ("with the logits of a batch", "--per_device_train_batch_size 8 --reference_code loss_chunks"),
    )
    @pytest.mark.slow
    @pytest.mark.law
    def test_useful_tokens_are_those_of_the_rows(self, flags):
        self.check_tokens(logged(*flags.split()))

    @pytest.mark.slow
    @pytest.mark.law
    def test_useful_tokens_are_those_of_the_rows_on_two_ranks(self):
        folder = Path(tempfile.mkdtemp()) / "run"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        words = [*ARGV, "--train_file", rows()[0], "--per_device_train_batch_size", "3", "--output_dir", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*launcher, str(ROOT / "fine_tune_t5.py"), *words], check=True, env=environment)
        self.check_tokens(lines_of(folder))

    def check_tokens(self, lines):
        self.assertAlmostEqual(tokens_of(lines), sum(inputs for inputs, _ in rows()[1]), places=3)
