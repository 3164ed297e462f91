"""`t5suite doctor`: every check is shown a machine that lacks something, and one that does not, and tells them apart."""

import contextlib
import fcntl
import http.server
import importlib.util
import io
import json
import os
import socket
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import pytest
import torch
import yaml
from absl.testing import parameterized

from t5suite.testing import exits_with, run_cli

ROOT = Path(__file__).parent.parent
OK, WARN, FAIL = "ok", "warn", "fail"
# No server is asked and no launcher has left anything behind.
BARE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
ONLINE = {"HF_HUB_OFFLINE": "", "WANDB_MODE": "", "WANDB_API_KEY": "k"}
CLOSED_PORT = "http://127.0.0.1:1"


class Finding(NamedTuple):
    """A line of `t5suite doctor --json`."""

    level: str
    name: str
    what: str
    fix: str


def programs(**scripts) -> str:
    """A folder for PATH with these programs, each a line of shell."""
    folder = Path(tempfile.mkdtemp())
    for name, line in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return str(folder)


@contextlib.contextmanager
def web_server():
    """The address of a server that refuses every request, and so answers."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SilentHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class SilentHandler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def log_message(self, *words):
        pass


class DoctorTest(parameterized.TestCase):
    def findings(self, *flags, **variables) -> list[Finding]:
        """What the command finds in a bare environment with these variables; it exits 78 if anything fails."""
        output, exit_code = io.StringIO(), 0
        with mock.patch.dict(os.environ, {**BARE, **variables}, clear=True), contextlib.redirect_stdout(output):
            try:
                run_cli("doctor", "--json", *flags)
            except ValueError as error:
                exit_code = error.exit_code
        findings = [Finding(**json.loads(line)) for line in output.getvalue().splitlines()]
        self.assertEqual(exit_code, 78 if any(finding.level == FAIL for finding in findings) else 0)
        return findings

    def finding(self, name: str, *flags, **variables) -> Finding:
        """The last finding of this name: those of packages, one of which is `wandb`, come first."""
        return [each for each in self.findings(*flags, **variables) if each.name == name][-1]


class CommandTest(DoctorTest):
    def test_a_failed_check_ends_with_78(self):
        environment = mock.patch.dict(os.environ, {**BARE, "WORLD_SIZE": "4"}, clear=True)
        with environment, contextlib.redirect_stdout(io.StringIO()) as output, exits_with(78, "checks? fail.*ranks"):
            run_cli("doctor")
        self.assertRegex(output.getvalue(), "(?m)^fail +ranks ")

    def test_a_check_that_breaks_is_one_that_fails_and_the_others_go_on(self):
        broken = mock.Mock(side_effect=ImportError("libcudart.so.13: cannot open shared object file"))
        with mock.patch("torch.accelerator.is_available", broken):
            findings = {finding.name: finding for finding in self.findings()}
        self.assertEqual((findings["gpu"].level, findings["ranks"].level), (FAIL, OK))
        self.assertIn("libcudart", findings["gpu"].what)

    def test_secrets_are_not_shown(self):
        variables = {**ONLINE, "HF_HUB_OFFLINE": "1", "WANDB_BASE_URL": "http://user:hunter2secret@127.0.0.1:1"}
        finding = self.finding("wandb", **variables)
        self.assertEqual(finding.level, WARN)
        self.assertNotIn("hunter2secret", str(finding))
        environment = mock.patch.dict(os.environ, {**BARE, **variables}, clear=True)
        with environment, contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(ValueError):
            run_cli("doctor")
        self.assertIn("wandb", output.getvalue())
        self.assertNotIn("hunter2secret", output.getvalue())

    def test_every_check_finds_something_here_or_says_why_not(self):
        servers = {"HF_ENDPOINT": CLOSED_PORT, "WANDB_BASE_URL": CLOSED_PORT}
        findings = self.findings("--output_dir", tempfile.mkdtemp(), **ONLINE, **servers)
        checks = (
            "python", "t5suite", "torch", "libraries", "cpu", "memory", "gpu", "ranks", "ACCELERATE_*",
            "accelerate config", "deepspeed ops", "disk", "files", "shared memory", "hub cache", "hub", "wandb",
        )  # fmt: skip
        self.assertContainsSubset(checks, [finding.name for finding in findings])
        for finding in findings:
            self.assertIn(finding.level, (OK, WARN, FAIL))
            self.assertEqual(bool(finding.fix), finding.level != OK, finding)


class MachineTest(DoctorTest):
    @parameterized.parameters(
        ("numpy>=1", OK, ""),
        ("numpy>=99", FAIL, "pip install 'numpy>=99'"),
        ("no-such-package>=1", FAIL, "pip install 'no-such-package>=1'"),
        ('no-such-package>=1; extra == "sweeps"', WARN, "t5suite[sweeps]"),
        ('numpy>=99; extra == "peft"', WARN, "t5suite[peft]"),
    )
    def test_packages_are_held_against_what_is_required(self, requirement, level, fix):
        package = requirement.partition(">")[0]
        with mock.patch("importlib.metadata.requires", return_value=[requirement]):
            finding = self.finding(package)
        self.assertEqual(finding.level, level)
        self.assertIn(fix, finding.fix)

    def test_what_is_missing_is_named_with_what_needs_it(self):
        purposes = {
            "deepspeed": "ZeRO", "sweeps": "t5suite sweep", "tracking": "wandb", "peft": "LoRA", "onnx": "ONNX",
            "ctranslate2": "CTranslate2", "web": "predict --web", "serve": "t5suite serve", "quantization": "8 bits",
            "aim": "Aim", "trackio": "Trackio", "sentences": "sentences",
        }  # fmt: skip
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        self.assertEqual({*purposes, "docs", "dev"}, set(extras))
        requirements = [f'no-such-{extra}; extra == "{extra}"' for extra in purposes]
        requirements.append('no-such-python; python_version < "3" and extra == "aim"')
        with mock.patch("importlib.metadata.requires", return_value=requirements):
            findings = {finding.name: finding for finding in self.findings()}
        for extra, purpose in purposes.items():
            self.assertIn(purpose, findings[f"no-such-{extra}"].what)
        self.assertNotIn("no-such-python", findings)

    @parameterized.parameters(("1", OK), ("4096", WARN), ("many", WARN))
    @pytest.mark.quick_cases(1)
    def test_threads_are_held_against_cores(self, threads, level):
        self.assertEqual(self.finding("cpu", OMP_NUM_THREADS=threads).level, level)

    def test_little_space_and_too_many_threads_are_named(self):
        """Of a disk less than 10 GiB are little, less than 256 MiB too little; of shared memory less than 512 MiB."""
        for free, threads, levels in (
            (10 * 2**30 - 1, "4096", (WARN, WARN, OK, WARN)), (2**28 - 1, "many", (FAIL, FAIL, WARN, WARN)),
        ):  # fmt: skip
            usage = SimpleNamespace(free=free, total=2**40)
            with mock.patch("shutil.disk_usage", return_value=usage):
                findings = {finding.name: finding for finding in self.findings(OMP_NUM_THREADS=threads)}
            names = ("disk", "hub cache", "shared memory", "cpu")
            self.assertEqual(tuple(findings[name].level for name in names), levels, free)
        self.assertStartsWith(findings["disk"].what, "256.0 MiB free at ")

    @parameterized.parameters((2, WARN), (3, WARN))
    def test_little_memory_is_named_with_what_needs_less(self, gibibytes, level):
        sizes, sysconf = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gibibytes * 2**18}, os.sysconf
        with mock.patch("os.sysconf", side_effect=lambda name: sizes.get(name) or sysconf(name)):
            finding = self.finding("memory")
        self.assertEqual((finding.level, finding.what.split(" for ")[0]), (level, f"{gibibytes}.0 GiB"))
        self.assertIn("--dataloader_num_workers 0", finding.fix)

    def test_every_gpu_is_held_against_what_t5_needs(self):
        """One is too old for bfloat16, one is almost full, one is fine, two have no kernels in torch; memory is in bytes."""
        gpus = [
            ("T4", (7, 5), 15, 16),
            ("A100", (8, 0), 7, 80),
            ("H200", (9, 0), 100, 141),
            ("L4", (8, 9), 20, 24),
            ("V100", (7, 0), 30, 32),
            ("B200", (10, 0), 150, 180),
        ]
        for name, value in {
            "torch.accelerator.is_available": lambda: True,
            "torch.accelerator.current_accelerator": lambda: SimpleNamespace(type="cuda"),
            "torch.accelerator.device_count": lambda: len(gpus),
            "torch.cuda.get_arch_list": lambda: ["sm_75", "sm_80", "sm_90a", "sm_90"],
            "torch.cuda.get_device_name": lambda index: gpus[index][0],
            "torch.cuda.get_device_capability": lambda index: gpus[index][1],
            "torch.cuda.mem_get_info": lambda index: tuple(size * 2**30 for size in gpus[index][2:]),
        }.items():
            self.enter_context(mock.patch(name, value))
        path = programs(**{"nvidia-smi": "echo 555.42"})
        findings = [finding for finding in self.findings(PATH=path) if finding.name == "gpu"]
        self.assertEqual([finding.level for finding in findings], [WARN, WARN, OK, OK, FAIL, FAIL])
        for place, (finding, (name, *_)) in enumerate(zip(findings, gpus, strict=True)):
            self.assertStartsWith(finding.what, f"cuda:{place} {name}, ")
            self.assertIn("driver 555.42", finding.what)
        self.assertIn("bfloat16", findings[0].fix)
        self.assertIn("7.0 GiB of 80.0 GiB free", findings[1].what)
        self.assertIn("nvidia-smi", findings[1].fix)
        self.assertIn("has no kernels for sm_70: install a build", findings[4].fix)
        with mock.patch("torch.cuda.get_arch_list", lambda: ["sm_75", "compute_80"]):  # code that the driver compiles
            findings = [finding for finding in self.findings(PATH=path) if finding.name == "gpu"]
        self.assertEqual([finding.level for finding in findings], [WARN, WARN, OK, OK, FAIL, OK])

    def test_an_accelerator_that_is_not_cudas_is_for_training(self):
        xpu = SimpleNamespace(type="xpu")
        self.enter_context(mock.patch("torch.accelerator.is_available", return_value=True))
        self.enter_context(mock.patch("torch.accelerator.current_accelerator", return_value=xpu))
        self.enter_context(mock.patch("torch.accelerator.device_count", return_value=1))
        finding = self.finding("gpu")
        self.assertEqual((finding.level, finding.what[:19]), (OK, "xpu:0, for training"))

    def test_apples_gpu_is_called_idle(self):
        for function in ("accelerator.is_available", "backends.mps.is_available"):
            self.enter_context(mock.patch(f"torch.{function}", return_value=True))
        self.enter_context(mock.patch("torch.accelerator.device_count", return_value=1))
        path = ROOT / "accelerate_configs/multi_gpu.yaml"
        findings = {each.name: each for each in self.findings("--accelerate_config", path)}
        self.assertEqual(findings["gpu"].level, OK)
        self.assertRegex(findings["gpu"].what, r"Apple's GPU \(MPS\) is not used, .*; the CPU is")
        self.assertEndsWith(findings["accelerate config"].what, "on this machine, which has 0 GPUs")

    def test_gpus_that_torch_cannot_see_fail(self):
        if torch.accelerator.is_available():
            self.skipTest("torch sees this machine's GPUs")
        path = programs(**{"nvidia-smi": "echo 555.42"})
        unseen = self.finding("gpu", PATH=path)
        self.assertEqual((unseen.level, "555.42" in unseen.what), (FAIL, True))
        hidden = self.finding("gpu", PATH=path, CUDA_VISIBLE_DEVICES="")
        self.assertEqual((hidden.level, "CUDA_VISIBLE_DEVICES" in hidden.fix), (WARN, True))
        self.assertEqual(self.finding("gpu", PATH=programs()).level, OK)


class LaunchersTest(DoctorTest):
    @parameterized.parameters(
        ({}, OK, ""),
        ({"WORLD_SIZE": "1", "RANK": "0"}, WARN, "unset WORLD_SIZE RANK"),
        ({"MASTER_ADDR": "node1"}, WARN, "unset MASTER_ADDR"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, FAIL, "unset WORLD_SIZE RANK"),
        ({"WORLD_SIZE": "two"}, FAIL, "unset WORLD_SIZE"),
    )
    def test_left_over_ranks(self, variables, level, fix):
        finding = self.finding("ranks", **variables)
        self.assertEqual((finding.level, finding.fix), (level, fix))

    def test_an_output_dir_that_is_a_file_or_in_one_fails(self):
        for path in (__file__, f"{__file__}/runs"):
            finding = self.finding("files", "--output_dir", path)
            self.assertEqual((finding.level, __file__ in finding.what), (FAIL, True))

    @parameterized.parameters(
        ({}, "is refused"), ({"MASTER_ADDR": "node1"}, "is refused"),
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, "waits for 1 more"),
    )  # fmt: skip
    def test_left_over_ranks_wait_only_where_they_know_a_place_to_meet(self, place, end):
        self.assertIn(end, self.finding("ranks", WORLD_SIZE="2", RANK="0", **place).what)

    @parameterized.named_parameters(
        ("one CPU", "distributed_type: 'NO'\nnum_processes: 1\n", OK, ""),
        ("MULTI_CPU", "distributed_type: MULTI_CPU\nnum_processes: 2\n", WARN, "torchrun --nproc_per_node 2"),
        ("MULTI_CPU by mpirun", "distributed_type: MULTI_CPU\nnum_processes: 2\nmpirun_config: {a: b}\n", OK, ""),
        ("NO with two", "distributed_type: 'NO'\nnum_processes: 2\n", WARN, "MULTI_GPU"),
        ("more than GPUs", "distributed_type: MULTI_GPU\nnum_processes: 99\n", FAIL, "num_processes"),
        ("fp16", "distributed_type: 'NO'\nnum_processes: 1\nmixed_precision: fp16\n", WARN, "bf16"),
        ("no number", "num_processes: four\n", FAIL, "num_processes"),
        ("no table", "- a\n", FAIL, "accelerate config"),
        ("no YAML", "a: [\n", FAIL, "accelerate config"),
        (
            "a lost DeepSpeed file",
            "distributed_type: DEEPSPEED\nnum_processes: 1\ndeepspeed_config: {deepspeed_config_file: lost.json}\n",
            FAIL,
            "full path",
        ),
    )
    @pytest.mark.quick_cases(8)
    def test_accelerate_s_file(self, text, level, fix):
        path = Path(tempfile.mkdtemp()) / "config.yaml"
        path.write_text(text)
        findings = self.findings("--accelerate_config", path)
        (finding,) = [each for each in findings if each.name == "accelerate config"]
        self.assertEqual(finding.level, level, finding)
        self.assertIn(fix, finding.fix)

    @parameterized.parameters(
        ("fsdp2", {}, 1, "num_processes: 1"),
        ("fsdp2", {}, 8, ""),
        ("fsdp2", {"use_cpu": True}, 1, ""),
        ("fsdp2", {}, 0, ""),
        ("fsdp2", {"fsdp_config": {"fsdp_sharding_strategy": 1}}, 8, "fsdp_version: 2"),
        ("fsdp2", {"fsdp_config": None}, 8, "fsdp_version: 2"),
        ("deepspeed_zero2", {}, 4, "num_processes: 4"),
        ("multi_gpu", {}, 4, "num_processes: 4"),
    )
    def test_a_shipped_file_of_eight_gpus_on_a_machine_with_others(self, name, changes, device_count, fix):
        path = Path(tempfile.mkdtemp()) / "config.yaml"
        content = yaml.safe_load((ROOT / f"accelerate_configs/{name}.yaml").read_text())
        path.write_text(yaml.safe_dump({**content, **changes}))
        has_gpus = mock.patch("torch.accelerator.is_available", return_value=device_count > 0)
        with has_gpus, mock.patch("torch.accelerator.device_count", return_value=device_count):
            findings = [each for each in self.findings("--accelerate_config", path) if each.name == "accelerate config"]
        if not fix:
            self.assertEqual([each.level for each in findings], [OK], findings)
        else:
            self.assertIn((FAIL, fix), [(each.level, each.fix) for each in findings])  # DeepSpeed may be missing, too

    def test_what_launchers_would_trip_over_is_found(self):
        """One machine with little memory on which nothing is as it should be, and what helps."""
        foreign = programs(accelerate="true", **{"g++": "true"})
        small = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**18}
        self.enter_context(mock.patch("os.sysconf", lambda name: small[name]))
        self.enter_context(mock.patch.object(sys, "executable", "/opt/py/bin/python"))
        variables = {"ACCELERATE_MIXED_PRECISION": "int8", "ACCELERATE_USE_FSDP": "true"}
        findings = {
            each.name: each for each in self.findings("--accelerate_config", "/no/x.yaml", PATH=foreign, **variables)
        }
        for name, level, what, fix in (
            ("memory", WARN, "1.0 GiB", "--dataloader_num_workers 0"),
            (
                "accelerate",
                WARN,
                f"{foreign}/accelerate belongs to another Python",
                "/opt/py/bin/python -m pip install accelerate",
            ),
            ("torchrun", WARN, "is not on PATH", "pip install torch"),
            ("ACCELERATE_MIXED_PRECISION", FAIL, "'int8' is not one of no, fp16, bf16", "unset ACCELERATE_MIXED_"),
            ("ACCELERATE_USE_FSDP", WARN, "'true' becomes the default", "unset ACCELERATE_USE_FSDP"),
            ("accelerate config", FAIL, "there is no /no/x.yaml", "accelerate config --config_file /no/x.yaml"),
        ):
            self.assertEqual(findings[name].level, level, findings[name])
            self.assertIn(what, findings[name].what)
            self.assertIn(fix, findings[name].fix)

    def test_launchers_of_a_systems_python_lie_in_another_folder_than_it_and_begin_with_its_path(self):
        place = Path(tempfile.mkdtemp())
        for folder in ("bin", "local/bin", "other"):
            (place / folder).mkdir(parents=True)
        for name in ("python3", "python"):
            (place / "bin" / name).symlink_to(sys.executable)
        for path, python in (
            ("other/torchrun", sys.executable),
            ("local/bin/torchrun", place / "bin/python"),
            ("local/bin/accelerate", place / "bin/python"),
        ):
            (place / path).write_text(f"#!{python}\n")
            (place / path).chmod(0o755)
        self.enter_context(mock.patch.object(sys, "executable", str(place / "bin/python3")))
        self.enter_context(mock.patch("sysconfig.get_path", return_value=str(place / "local/bin")))
        findings = {each.name: each for each in self.findings(PATH=f"{place}/other:{place}/local/bin")}
        self.assertEqual(findings["accelerate"].level, OK)
        fix = f"export PATH={place}/local/bin:$PATH, or call {place}/local/bin/torchrun"
        self.assertEqual((findings["torchrun"].level, findings["torchrun"].fix), (WARN, fix))

    @parameterized.parameters(("fp16", "which T5 overflows"), ("bf16", "becomes the default of a flag"))
    def test_the_precision_of_a_variable_is_told(self, precision, message):
        finding = self.finding("ACCELERATE_MIXED_PRECISION", ACCELERATE_MIXED_PRECISION=precision)
        self.assertEqual((finding.level, message in finding.what), (WARN, True), finding)

    def test_a_lock_of_a_killed_compilation_is_found(self):
        lock = Path(tempfile.mkdtemp()) / "py311_cpu" / "cpu_adam" / "lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        compiler = programs(**{"g++": "true", "ninja": "true"})
        finding = self.finding("deepspeed ops", PATH=compiler, TORCH_EXTENSIONS_DIR=str(lock.parents[2]))
        self.assertEqual((finding.level, finding.fix.endswith(f"rm {lock}")), (WARN, True))


class PlacesTest(DoctorTest):
    @parameterized.parameters((2**20, FAIL, WARN), (2**30, WARN, OK), (2**40, OK, OK))
    @pytest.mark.quick_cases(1)
    def test_a_small_disk_is_too_small(self, free, disk_level, shared_memory_level):
        with mock.patch("shutil.disk_usage", lambda folder: SimpleNamespace(free=free, total=2**40)):
            levels = {finding.name: finding.level for finding in self.findings(HF_HOME=tempfile.mkdtemp())}
        self.assertEqual((levels["disk"], levels["hub cache"]), (disk_level, disk_level))
        self.assertEqual(levels["shared memory"], shared_memory_level)

    def test_shared_memory_has_a_folder_on_linux_only(self):
        elsewhere = mock.patch("os.access", lambda path, mode: str(path) != "/dev/shm")
        for platform, level in (("linux", WARN), ("darwin", OK)):
            with elsewhere, mock.patch.object(sys, "platform", platform):
                self.assertEqual(self.finding("shared memory").level, level, platform)

    @parameterized.parameters(
        ({"HF_HUB_CACHE": "a", "HUGGINGFACE_HUB_CACHE": "d", "HF_HOME": "b"}, "a", "HF_HUB_CACHE"),
        ({"HF_HUB_CACHE": "", "HF_HOME": "b"}, "b/hub", "HF_HOME"),
        ({"HUGGINGFACE_HUB_CACHE": "d", "HF_HOME": "b"}, "d", "HUGGINGFACE_HUB_CACHE"),
        ({"XDG_CACHE_HOME": "c"}, "c/huggingface/hub", "HF_HOME"),
    )
    def test_the_variable_that_names_the_cache_is_the_one_to_change(self, variables, cache, variable):
        place = Path(tempfile.mkdtemp())
        variables = {name: path and str(place / path) for name, path in variables.items()}
        with mock.patch("os.access", lambda path, mode: False):
            finding = self.finding("hub cache", **variables)
        self.assertEqual(finding.what, f"{place / cache} cannot be written")
        self.assertStartsWith(finding.fix, f"export {variable}=DIR")

    @parameterized.parameters((os, "fsync", "fsync"), (os, "replace", "rename"), (fcntl, "flock", "flock"))
    @pytest.mark.quick_cases(1)
    def test_a_file_system_that_lacks_something_is_found(self, module, function, operation):
        refused = mock.Mock(side_effect=OSError(95, "Operation not supported"))
        with mock.patch.object(module, function, refused):
            finding = self.finding("files", "--output_dir", tempfile.mkdtemp())
        self.assertEqual((finding.level, f"lacks {operation}" in finding.what), (FAIL, True))

    @parameterized.named_parameters(
        ("answers", True, {}, OK),
        ("is gone", False, {}, WARN),
        ("is not asked", False, {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}, OK),
    )
    def test_servers(self, is_there, variables, level):
        online = mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        with online, web_server() as address:
            server = address if is_there else CLOSED_PORT
            addresses = {"HF_ENDPOINT": server, "WANDB_BASE_URL": server}
            levels = {finding.name: finding.level for finding in self.findings(**{**ONLINE, **addresses, **variables})}
        self.assertEqual((levels["hub"], levels["wandb"]), (level, level))

    def test_what_keeps_runs_from_wandb_is_told_from_what_has_no_effect(self):
        for variables, level, what, fix in (
            ({"WANDB_MODE": "offline", "WANDB_DISABLED": "true"}, OK, "wandb sync sends it later", ""),
            ({"WANDB_MODE": "disabled"}, OK, "nothing is sent, and nothing is kept", ""),
            ({"WANDB_MODE": "", "WANDB_DISABLED": "true"}, WARN, "neither .* reads it", "export WANDB_MODE=disabled"),
        ):
            finding = self.finding("wandb", **variables)
            self.assertEqual((finding.level, finding.fix), (level, fix), finding)
            self.assertRegex(finding.what, what)

    def test_a_wandb_that_is_not_installed_is_no_server(self):
        find_spec = importlib.util.find_spec
        without = mock.patch(
            "importlib.util.find_spec", side_effect=lambda name, *_: None if name == "wandb" else find_spec(name)
        )
        with without:
            finding = self.finding("wandb", WANDB_MODE="", WANDB_BASE_URL=CLOSED_PORT)
        self.assertEqual((finding.level, finding.what), (OK, "is not installed"))

    def test_a_server_without_a_login_is_told_and_netrc_has_one(self):
        netrc = Path(tempfile.mkdtemp()) / "netrc"
        variables = {**ONLINE, "HF_HUB_OFFLINE": "1", "WANDB_API_KEY": "", "NETRC": str(netrc)}
        with web_server() as address:
            with_port = address.removeprefix("http://")
            for host, level in (("api.wandb.ai", WARN), ("127.0.0.1", OK), (with_port, OK)):
                netrc.write_text(f"machine {host} login user password {'k' * 40}\n")
                finding = self.finding("wandb", WANDB_BASE_URL=address, **variables)
                self.assertEqual((finding.level, "wandb login" in finding.fix), (level, level == WARN), finding)

    @parameterized.parameters(([".netrc"], OK), (["_netrc"], OK), ([".netrc", "_netrc"], WARN), ([], WARN))
    def test_the_login_is_read_where_wandb_reads_it(self, names, level):
        """The last file that is written has the server's login, the others another one's."""
        home = Path(tempfile.mkdtemp())
        with web_server() as address:
            for name in names:
                host = "127.0.0.1" if name == names[-1] else "api.wandb.ai"
                (home / name).write_text(f"machine {host} login user password {'k' * 40}\n")
            variables = {**ONLINE, "HF_HUB_OFFLINE": "1", "WANDB_API_KEY": "", "NETRC": "", "HOME": str(home)}
            self.assertEqual(self.finding("wandb", WANDB_BASE_URL=address, **variables).level, level)

    def test_a_server_that_is_no_web_server_is_told_from_one_that_is_silent(self):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def greet():
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                    connection.recv(4096)

            threading.Thread(target=greet, daemon=True).start()
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            finding = self.finding("wandb", WANDB_MODE="", WANDB_BASE_URL=address)
        self.assertEqual(finding.level, WARN)
        self.assertEqual(finding.what, f"{address} does not answer (BadStatusLine: SSH-2.0-OpenSSH_9.6)")

    def test_an_address_whose_port_is_no_number_is_called_that(self):
        finding = self.finding("wandb", WANDB_MODE="", WANDB_BASE_URL="http://localhost:one")
        self.assertEqual((finding.level, "InvalidURL" in finding.what), (WARN, True))

    def test_a_server_is_asked_for_a_few_seconds_at_most(self):
        started = time.perf_counter()
        with mock.patch("socket.getaddrinfo", lambda *args, **kwargs: time.sleep(20) or []):
            finding = self.finding("wandb", WANDB_MODE="", WANDB_BASE_URL="http://example.invalid")
        self.assertLess(time.perf_counter() - started, 15)
        self.assertEqual((finding.level, "nothing within" in finding.what), (WARN, True))
