"""`t5suite doctor`: every check is shown a machine that lacks something, and one that does not, and tells them apart."""

import contextlib
import io
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from absl.testing import parameterized

from t5suite.commands import doctor
from t5suite.commands.doctor import FAIL, OK, WARN, Checkup
from t5suite.testing import exits_with, run_cli


def programs(**scripts) -> str:
    """A folder for PATH with these programs, each a line of shell."""
    folder = Path(tempfile.mkdtemp())
    for name, line in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def only(findings):
    (finding,) = findings
    return finding


def accelerate_file(text: str, name="config.yaml") -> Checkup:
    path = Path(tempfile.mkdtemp()) / name
    path.write_text(text)
    return Checkup(environ={}, accelerate_config=str(path))


class CommandTest(parameterized.TestCase):
    def doctor(self, *argv, checks=None):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch.object(doctor, "CHECKS", checks or doctor.CHECKS):
            run_cli("doctor", *argv)
        return out.getvalue()

    def test_a_failed_check_ends_with_78(self):
        with exits_with(78, "1 checks fail: ranks") as caught:
            self.doctor(checks={"ranks": lambda c: doctor.check_ranks(Checkup(environ={"WORLD_SIZE": "4"}))})
        self.assertEqual(caught.exception.exit_code, 78)

    def test_a_check_that_breaks_is_one_that_fails_and_the_others_go_on(self):
        def broken(checkup):
            raise ImportError("libcudart.so.13: cannot open shared object file")

        with mock.patch.object(doctor, "CHECKS", {"gpu": broken, "ranks": doctor.check_ranks}):
            findings = list(doctor.examine(Checkup(environ={})))
        self.assertEqual([(f.level, f.name) for f in findings], [(FAIL, "gpu"), (OK, "ranks")])
        self.assertIn("libcudart", findings[0].what)

    def test_secrets_are_not_shown(self):
        checkup = Checkup(environ={"WANDB_BASE_URL": "http://user:hunter2secret@127.0.0.1:1", "PATH": ""}, timeout=1)
        out = self.doctor(checks={"wandb": lambda c: doctor.check_wandb(checkup)})
        self.assertNotIn("hunter2secret", out)

    def test_every_check_finds_something_here_or_says_why_not(self):
        servers = {"HF_ENDPOINT": "http://127.0.0.1:1", "WANDB_BASE_URL": "http://127.0.0.1:1"}
        findings = list(doctor.examine(Checkup(environ={**os.environ, **servers}, output_dir=tempfile.mkdtemp())))
        self.assertGreaterEqual(len(findings), len(doctor.CHECKS))
        for finding in findings:
            self.assertIn(finding.level, (OK, WARN, FAIL))
            self.assertEqual(bool(finding.fix), finding.level != OK, finding)


class MachineTest(parameterized.TestCase):
    @parameterized.parameters(
        ("numpy>=1", OK, ""),
        ("numpy>=99", FAIL, "pip install 'numpy>=99'"),
        ("no-such-package>=1", FAIL, "pip install 'no-such-package>=1'"),
        ('no-such-package>=1; extra == "sweeps"', WARN, "t5suite[sweeps]"),
        ('numpy>=99; extra == "peft"', WARN, "t5suite[peft]"),
    )
    def test_packages_are_held_against_what_is_required(self, requirement, level, fix):
        finding = only(doctor.package_findings(requirement))
        self.assertEqual(finding.level, level)
        self.assertIn(fix, finding.fix)

    def test_what_is_missing_is_named_with_what_needs_it(self):
        for extra, purpose in (("deepspeed", "ZeRO"), ("sweeps", "t5suite sweep"), ("tracking", "wandb"), ("peft", "LoRA"),
                               ("onnx", "ONNX"), ("ctranslate2", "CTranslate2")):  # fmt: skip
            self.assertIn(purpose, only(doctor.package_findings(f'no-such-package; extra == "{extra}"')).what)

    @parameterized.parameters(("1", OK), ("4096", WARN), ("many", WARN))
    def test_threads_are_held_against_cores(self, threads, level):
        self.assertEqual(doctor.check_cpu(Checkup(environ={"OMP_NUM_THREADS": threads}))[0].level, level)

    def test_gpus_that_torch_cannot_see_fail(self):
        if torch.accelerator.is_available():
            self.skipTest("torch sees this machine's GPUs")
        path = programs(**{"nvidia-smi": "echo 555.42"})
        found = only(doctor.check_devices(Checkup(environ={"PATH": path})))
        self.assertEqual((found.level, "555.42" in found.what), (FAIL, True))
        hidden = only(doctor.check_devices(Checkup(environ={"PATH": path, "CUDA_VISIBLE_DEVICES": ""})))
        self.assertEqual((hidden.level, "CUDA_VISIBLE_DEVICES" in hidden.fix), (WARN, True))
        self.assertEqual(only(doctor.check_devices(Checkup(environ={"PATH": programs()}))).level, OK)


class LaunchersTest(parameterized.TestCase):
    @parameterized.parameters(
        ({}, OK, ""),
        ({"WORLD_SIZE": "1", "RANK": "0"}, WARN, "unset WORLD_SIZE RANK"),
        ({"MASTER_ADDR": "node1"}, WARN, "unset MASTER_ADDR"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, FAIL, "unset WORLD_SIZE RANK"),
        ({"WORLD_SIZE": "two"}, FAIL, "unset WORLD_SIZE"),
    )
    def test_left_over_ranks(self, environ, level, fix):
        finding = only(doctor.check_ranks(Checkup(environ=environ)))
        self.assertEqual((finding.level, finding.fix), (level, fix))

    @parameterized.named_parameters(
        ("one CPU", "distributed_type: 'NO'\nnum_processes: 1\n", OK, ""),
        ("MULTI_CPU", "distributed_type: MULTI_CPU\nnum_processes: 2\n", WARN, "torchrun --nproc_per_node 2"),
        ("MULTI_CPU by mpirun", "distributed_type: MULTI_CPU\nnum_processes: 2\nmpirun_config: {a: b}\n", OK, ""),
        ("NO with two", "distributed_type: 'NO'\nnum_processes: 2\n", WARN, "MULTI_GPU"),
        ("more than GPUs", "distributed_type: MULTI_GPU\nnum_processes: 99\n", FAIL, "num_processes"),
        ("fp16", "distributed_type: 'NO'\nnum_processes: 1\nmixed_precision: fp16\n", WARN, "bf16"),
        ("no number", "num_processes: four\n", FAIL, "num_processes"),
        ("no table", "- a\n", FAIL, "accelerate config"),
        (
            "a lost DeepSpeed file",
            "distributed_type: DEEPSPEED\nnum_processes: 1\ndeepspeed_config: {deepspeed_config_file: lost.json}\n",
            FAIL,
            "full path",
        ),
    )
    def test_accelerate_s_file(self, text, level, fix):
        with mock.patch.object(doctor, "_is_installed", lambda name: True):
            finding = only(doctor.check_accelerate_config(accelerate_file(text)))
        self.assertEqual(finding.level, level, finding)
        self.assertIn(fix, finding.fix)


class PlacesTest(parameterized.TestCase):
    @parameterized.parameters((2**20, FAIL), (2**30, WARN), (2**40, OK))
    def test_a_small_disk_is_too_small(self, free, level):
        with mock.patch("shutil.disk_usage", lambda folder: SimpleNamespace(free=free, total=2**40)):
            found = [
                only(doctor.check_disk(Checkup(output_dir="runs/a"))),
                only(doctor.check_hub_cache(Checkup(environ={}))),
            ]
            shared = only(doctor.check_shared_memory(Checkup()))
        self.assertEqual([finding.level for finding in found], [level, level])
        self.assertEqual(shared.level, OK if free > 2**29 else WARN)

    @parameterized.parameters("fsync", "rename", "flock")
    def test_a_file_system_that_lacks_something_is_found(self, name):
        def refuse(*args):
            raise OSError(95, "Operation not supported")

        calls = {"fsync": (os, "fsync"), "rename": (os, "replace"), "flock": (doctor.fcntl, "flock")}
        with mock.patch.object(*calls[name], refuse):
            finding = only(doctor.check_output_files(Checkup(output_dir=tempfile.mkdtemp())))
        self.assertEqual((finding.level, f"lacks {name}" in finding.what), (FAIL, True))

    @parameterized.named_parameters(
        ("answers", {}, None, OK, OK),
        ("is gone", {}, "refused", WARN, WARN),
        ("is not asked", {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}, "refused", OK, OK),
    )
    def test_servers(self, environ, trouble, hub, wandb):
        checkup = Checkup(environ={"WANDB_API_KEY": "k", **environ})
        answer = lambda server, seconds: trouble
        for check, question, level in (
            (doctor.check_hub, "why_hub_unreachable", hub), (doctor.check_wandb, "why_unreachable", wandb)
        ):  # fmt: skip
            with mock.patch.object(doctor, question, answer):
                self.assertEqual(only(check(checkup)).level, level)

    def test_a_server_is_asked_for_so_many_seconds_at_most(self):
        started = time.perf_counter()
        with mock.patch("socket.getaddrinfo", lambda *args, **kwargs: time.sleep(20) or []):
            self.assertIn("nothing within", doctor.why_unreachable("http://example.invalid", 0.5))
        self.assertLess(time.perf_counter() - started, 10)
        self.assertIsNotNone(doctor.why_unreachable("http://127.0.0.1:1", 5))
