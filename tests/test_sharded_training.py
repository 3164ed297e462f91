"""DDP, FSDP2, HSDP and ZeRO-1, -2, -3 on CPUs: the course of a single process, its rows, exact resume, whole exports."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sharded_worker
import torch
from absl.testing import parameterized
from safetensors.torch import load_file
from slurm_cluster import free_ports
from support import damaged_files, later_wins
from transformers import AutoModelForSeq2SeqLM

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
NEEDS_COMPILER = "DeepSpeed builds its communication on CPUs with g++ and ninja, which are not here"
HAS_COMPILER = bool(shutil.which("g++") and (shutil.which("ninja") or (Path(sys.executable).parent / "ninja").exists()))
# Relative; the sums over rows are made in another order. Offloaded moments are updated by DeepSpeed's own Adam.
RELATIVE = 1e-5
RANKS = {"fsdp": 2, "hsdp": 4, "zero": 2}
ZERO = ("zero1", "zero2", "zero2_offload", "zero3", "zero3_offload")
GROUPS = {"fsdp": ("ddp", "fsdp"), "hsdp": ("hsdp",), "zero": ZERO}
MODES = [mode for modes in GROUPS.values() for mode in modes]
# The share of parameters of which a rank holds a part alone; ZeRO-3 leaves small ones whole.
IN_PIECES = {"fsdp": (1.0, 1.0), "hsdp": (1.0, 1.0), "zero3": (0.5, 1.0), "zero3_offload": (0.5, 1.0)}


def environment(**more) -> dict:
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("ACCELERATE_", "FSDP_", "PARALLEL"))
    }
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        variables.pop(name, None)
    path = f"{Path(sys.executable).parent}:{variables.get('PATH', '')}"
    return {**variables, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": path, **more}


def torchrun(num_processes: int, *command) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num_processes)]
    return [sys.executable, *launcher, *command]


@functools.cache
def report_of(group: str) -> dict:
    """What the worker found in a group's ways of training, or how it failed."""
    folder = tempfile.mkdtemp()
    command = torchrun(RANKS[group], sharded_worker.__file__, f"{folder}/out.json", *GROUPS[group])
    variables = environment(SHARDED_FOLDER=folder)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1500)
    if done.returncode != 0:
        return {"failure": done.stderr[-6000:]}
    return json.loads(Path(f"{folder}/out.json").read_text())


@functools.cache
def alone() -> dict:
    folder = tempfile.mkdtemp()
    report = sharded_worker.train_in_every_way("alone", folder)
    report["broken"] = sharded_worker.broken_updates("alone", folder)
    return {**report, "clipped": sharded_worker.clipped_course("alone", folder)}


@pytest.mark.ranks
class ShardedTest(parameterized.TestCase):
    def report(self, mode: str) -> dict:
        group = next(name for name, modes in GROUPS.items() if mode in modes)
        if group == "zero" and not HAS_COMPILER:
            self.skipTest(NEEDS_COMPILER)
        report = report_of(group)
        self.assertNotIn("failure", report, report.get("failure"))
        return report[mode]

    def assert_near(self, found: list[float], expected: list[float], relative=RELATIVE):
        self.assertLen(found, len(expected))
        for a, b in zip(found, expected, strict=True):
            self.assertLessEqual(abs(a - b), relative * abs(b), f"{found}\n{expected}")

    @parameterized.parameters(*MODES)
    def test_the_course_is_that_of_a_single_process(self, mode):
        found, expected = self.report(mode), alone()
        self.assertLen(found["loss"], sharded_worker.STEPS)
        self.assertLess(found["loss"][-1], 0.9 * found["loss"][0])
        self.assert_near(found["loss"], expected["loss"])
        self.assert_near(found["grad_norm"], expected["grad_norm"], 3 * RELATIVE)
        self.assertEqual(found["learning_rate"], expected["learning_rate"])

    @parameterized.parameters(*(mode for mode in MODES if "deepspeed" not in sharded_worker.SETTINGS[mode]))
    def test_gradients_are_clipped_by_value_as_in_a_single_process(self, mode):
        expected = alone()["clipped"]
        self.assert_near(self.report(mode)["clipped"], expected)
        self.assertGreater(abs(expected[-1] - alone()["loss"][5]), 1e-3 * expected[-1])  # clipping makes a difference

    @parameterized.parameters(*MODES)
    def test_the_model_is_in_pieces_where_it_should_be(self, mode):
        least, most = IN_PIECES.get(mode, (0.0, 0.0))
        found = self.report(mode)
        self.assertBetween(found["in_pieces"], least, most)
        self.assertEqual(found["kind"], {"d": "MULTI_CPU", "f": "FSDP", "h": "FSDP", "z": "DEEPSPEED"}[mode[0]])

    @parameterized.parameters(*MODES)
    def test_evaluation_sees_the_rows_of_a_single_process_once_each(self, mode):
        found, expected = self.report(mode)["evaluations"], alone()["evaluations"]
        self.assertEqual(found.keys(), expected.keys())
        for name, result in found.items():
            for exactly in ("rows", "predictions", "metrics"):
                self.assertEqual(result[exactly], expected[name][exactly], name)
            self.assert_near([result["loss"]], [expected[name]["loss"]])

    @parameterized.parameters(*MODES)
    def test_what_is_exported_are_the_whole_trained_weights(self, mode):
        found, expected = self.report(mode)["exported"], alone()["exported"]
        self.assertEqual(found.keys(), expected.keys())
        self.assert_near(list(found.values()), [expected[name] for name in found])

    @parameterized.parameters(*MODES)
    def test_a_checkpoint_verifies_and_a_run_goes_on_from_it_exactly(self, mode):
        found = self.report(mode)
        self.assertEmpty(found["damage"])
        self.assertTrue(found["resumed_exactly"], "other weights than without the restart")
        self.assertTrue(found["resumed_course"], "other losses than without the restart")

    @parameterized.parameters(*MODES)
    def test_a_run_that_goes_on_with_other_flags_follows_them_as_a_single_process_does(self, mode):
        found, expected = self.report(mode)["changed_course"], alone()["changed_course"]
        self.assertEqual(found["learning_rate"], expected["learning_rate"])
        self.assert_near(found["loss"], expected["loss"], 10 * RELATIVE)
        after_checkpoint = slice(sharded_worker.SAVED_AT, None)
        self.assertNotEqual(expected["learning_rate"][after_checkpoint], alone()["learning_rate"][after_checkpoint])

    @parameterized.parameters(*MODES)
    def test_a_request_to_one_rank_stops_all_with_one_checkpoint_and_changes_nothing(self, mode):
        found = self.report(mode)
        self.assertEqual(found["stopped_at"], alone()["stopped_at"])
        self.assertEmpty(found["stopped_damage"])
        self.assertTrue(found["stop_changes_nothing"])

    @parameterized.parameters(*MODES)
    def test_an_update_that_is_broken_on_one_rank_reaches_no_weight_and_three_end_the_run(self, mode):
        broken, expected = self.report(mode)["broken"], alone()["broken"]
        self.assertTrue(broken["finite"])
        self.assertEqual(broken["skipped"], 2)
        self.assertEqual(broken["rates"], expected["rates"])
        self.assert_near(list(broken["weights"].values()), [expected["weights"][name] for name in broken["weights"]])
        self.assertIn("3 updates in a row (from step 3) were skipped", broken["ended"])


# Rank 1 is at its end while its threads still free what rank 0 takes part in, little by little.
ENDING_EARLY = """
import sys
import time
import torch
import torch.distributed as dist

from t5suite.testing import tiny_rows, tiny_trainer

trainer = tiny_trainer(tiny_rows("entailment", count=4), output_dir=sys.argv[1])
import torch.distributed.nn.functional  # refers to the group from now on

dist.barrier()
for _ in range(50):
    dist.all_reduce(torch.ones(1000), async_op=True)
    if dist.get_rank() == 0:
        time.sleep(0.002)
"""


@pytest.mark.ranks
class LeavingTest(parameterized.TestCase):
    def test_a_process_ends_in_order_while_the_threads_of_gloo_still_hold_tensors(self):
        folder = Path(tempfile.mkdtemp())
        script = folder / "ending_early.py"
        script.write_text(ENDING_EARLY)
        command = torchrun(2, str(script), str(folder / "run"))
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)


FINE_TUNING = [
    str(ROOT / "fine_tune_t5.py"),
    *"mini.yaml --dropout_rate 0 --optimizer adamw --learning_rate 1e-3 --schedule linear --warmup_steps 2".split(),
    *"--max_train_samples 60 --max_eval_samples 13 --max_steps 6 --logging_steps 1 --save_strategy steps".split(),
    *"--save_steps 2 --save_total_limit 9 --eval_strategy steps --eval_steps 3 --load_best_model_at_end False".split(),
    *"--per_device_train_batch_size 4 --use_cpu True --disable_tqdm True --output_dir".split(),
]
PRE_TRAINING = [
    str(ROOT / "pre_train_t5.py"),
    *"--config_overrides d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2 --dropout_rate 0".split(),
    *"--inputs_length 64 --max_steps 4 --eval_strategy no".split(),
    *"--learning_rate 1e-3 --optimizer adamw --logging_steps 1 --save_strategy steps --save_steps 2".split(),
    *"--per_device_train_batch_size 2 --use_cpu True --disable_tqdm True --output_dir".split(),
]


def accelerated(name: str) -> list[str]:
    """`accelerate launch` with a packaged file, as far as two CPUs can follow it."""
    config = str(ROOT / "accelerate_configs" / name)
    return [
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", config),
        *("--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"),
    ]


DEEPSPEED = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2"]
# By themselves these launchers take port 29500, which another test may have.
PORT_FLAGS = {"deepspeed.launcher.runner": "--master_port", "accelerate.commands.launch": "--main_process_port"}


@pytest.mark.launcher
class LaunchedTest(parameterized.TestCase):
    def launch(self, launcher, script, folder, *flags, code=0) -> str:
        port_flags = [word for module, flag in PORT_FLAGS.items() if module in launcher
                      for word in (flag, str(free_ports(1)[0]))]  # fmt: skip
        command = [*launcher, *port_flags, *later_wins(script, str(folder), flags)]
        settings = {"env": environment(), "cwd": ROOT}
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, **settings)
        self.assertEqual(done.returncode == 0, code == 0, (done.stdout + done.stderr)[-5000:])
        return done.stdout + done.stderr

    def check_whole_model(self, folder) -> dict[str, torch.Tensor]:
        """The run's model is that of its last checkpoint, and what transformers loads are its weights."""
        weights = load_file(folder / "model.safetensors")
        self.assertTrue(sharded_worker.same_bits(weights, load_file(folder / "checkpoint-6" / "model.safetensors")))
        loaded = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        self.assertTrue(all(torch.equal(loaded[name], value) for name, value in weights.items()))
        return weights

    def losses(self, folder) -> list[float]:
        lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        return [line["train/loss"] for line in lines if "train/loss" in line]

    @parameterized.named_parameters(
        ("deepspeed_zero2", DEEPSPEED, ("--deepspeed", "zero2"), True),
        ("accelerate_zero2", accelerated("deepspeed_zero2.yaml"), (), True),
        ("accelerate_zero3", accelerated("deepspeed_zero3.yaml"), (), True),
        ("accelerate_fsdp2", accelerated("fsdp2.yaml"), (), False),
    )
    def test_a_launcher_trains_evaluates_and_leaves_a_model_that_transformers_loads(self, launcher, flags, compiles):
        if compiles and not HAS_COMPILER:
            self.skipTest(NEEDS_COMPILER)
        folder = Path(tempfile.mkdtemp()) / "run"
        self.launch(launcher, FINE_TUNING, folder, *flags)
        self.assertLen(self.losses(folder), 6)
        self.check_whole_model(folder)
        self.assertEqual(json.loads((folder / "results.json").read_text())["tasks"].keys(), {"sentiment"})

    @parameterized.named_parameters(("zero3", ("--deepspeed", "zero3"), True), ("fsdp", ("--fsdp", "True"), False))
    def test_a_damaged_checkpoint_is_set_aside_before_it_is_read(self, flags, compiles):
        """The newest is DeepSpeed's pickles with a flipped bit, or a safetensors file; the one before is gone on from."""
        if compiles and not HAS_COMPILER:
            self.skipTest(NEEDS_COMPILER)
        folder = Path(tempfile.mkdtemp()) / "run"
        self.launch(torchrun(2), FINE_TUNING, folder, *flags)
        whole = self.losses(folder), self.check_whole_model(folder)
        (folder / "results.json").unlink()
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, "status": "preempted"}))
        victim = [folder / "checkpoint-6/optimizer.pt", *folder.glob("checkpoint-6/global_step6/*optim*")][-1]
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
        text = self.launch(torchrun(2), FINE_TUNING, folder, *flags)
        self.assertIn("checkpoint-4, the newest checkpoint that verifies", text)
        self.assertTrue((folder / "damaged-checkpoint-6").is_dir())
        self.assertEmpty(damaged_files(folder / "checkpoint-6"))
        self.assertEqual(self.losses(folder), whole[0])
        self.assertTrue(sharded_worker.same_bits(load_file(folder / "model.safetensors"), whole[1]))

    def test_fsdp_goes_on_from_a_plain_checkpoint_and_deepspeed_says_why_it_does_not(self):
        folder = Path(tempfile.mkdtemp())
        self.launch([sys.executable], FINE_TUNING, folder / "plain", "--gradient_accumulation_steps", "2")
        plain = folder / "plain" / "checkpoint-4"
        self.launch(torchrun(2), FINE_TUNING, folder / "fsdp", "--fsdp", "True", "--resume", str(plain))
        for a, b in zip(self.losses(folder / "fsdp"), self.losses(folder / "plain")[4:], strict=True):
            self.assertAlmostEqual(a, b, delta=RELATIVE * b)
        if HAS_COMPILER:
            flags = ("--deepspeed", "zero2", "--resume", str(plain))
            text = self.launch(torchrun(2), FINE_TUNING, folder / "zero", *flags, code=78)
            self.assertIn("was written without DeepSpeed, and this run is under it", text)

    def test_pre_training_is_sharded_too(self):
        folder = Path(tempfile.mkdtemp())
        self.launch([sys.executable], PRE_TRAINING, folder / "alone", "--gradient_accumulation_steps", "2")
        sharded = {"fsdp": (torchrun(2), ("--fsdp", "True"))}
        if HAS_COMPILER:
            sharded["zero3"] = (torchrun(2), ("--deepspeed", "zero3"))
            sharded["accelerate"] = (accelerated("deepspeed_zero3.yaml"), ())
        for name, (launcher, flags) in sharded.items():
            self.launch(launcher, PRE_TRAINING, folder / name, *flags)
            for a, b in zip(self.losses(folder / name), self.losses(folder / "alone"), strict=True):
                self.assertAlmostEqual(a, b, delta=RELATIVE * b)
