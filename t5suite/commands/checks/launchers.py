"""Checks of launchers: `accelerate`, `torchrun`, `deepspeed`, and what their variables and files say."""

import json
import os
import sys
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.yaml_files import read_yaml
from t5suite.commands.checks.checkup import (
    FAIL,
    OK,
    WARN,
    CheckResult,
    Checkup,
    is_installed,
    program_folders,
    python_folder,
)
from t5suite.training.sharding.deepspeed import compiled

# The most bytes that are read of a program's first line (#!); paths on Linux are at most that long.
MAX_SHEBANG_BYTES = 4096
LAUNCHERS = {"accelerate": "accelerate", "torchrun": "torch", "deepspeed": "deepspeed"}
# What torchrun and similar launchers set for each process.
RANK_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"
ACCELERATE_PRECISIONS = ("no", "fp16", "bf16", "fp8")
ACCELERATE_FILE = "accelerate config"
DEEPSPEED_OPS = "deepspeed ops"


def check_launchers(checkup: Checkup) -> list[CheckResult]:
    """`accelerate`, `torchrun` and `deepspeed` on PATH belong to this Python."""
    results = []
    for program, package in LAUNCHERS.items():
        path = checkup.which(program)
        if path is not None:
            results.append(_check_program_path(program, path))
        elif package != "deepspeed" or is_installed("deepspeed"):
            results.append(CheckResult(WARN, program, "is not on PATH", _fix_of_path(program)))
    return results


def _check_program_path(program: str, path: str) -> CheckResult:
    if belongs_to_this_python(Path(path)):
        return CheckResult(OK, program, path)
    what = f"{path} belongs to another Python than {sys.executable}"
    return CheckResult(WARN, program, what, _fix_of_path(program))


def belongs_to_this_python(path: Path) -> bool:
    """Whether a program is beside this Python, or begins with the line `#!` and its path.

    pip puts programs of a system's Python into another folder: /usr/local/bin, ~/.local/bin.
    """
    if path.parent.resolve() == python_folder().resolve():
        return True
    with path.open("rb") as file:
        first_line = file.readline(MAX_SHEBANG_BYTES)
    if not first_line.startswith(b"#!"):
        return False
    interpreter = Path(os.fsdecode(first_line.removeprefix(b"#!").strip()))
    is_in_same_folder = interpreter.parent.resolve() == python_folder().resolve()
    return is_in_same_folder and interpreter.resolve() == Path(sys.executable).resolve()


def _fix_of_path(program: str) -> str:
    """How this Python's own program is found: where it is, or how it gets there."""
    for folder in program_folders():
        path = folder / program
        if path.is_file() and belongs_to_this_python(path):
            return f"export PATH={folder}:$PATH, or call {path}"
    return f"{sys.executable} -m pip install {LAUNCHERS[program]}"


def check_ranks(checkup: Checkup) -> list[CheckResult]:
    """Variables of a launcher that are set although none is running."""
    variables = {name: checkup.environ[name] for name in RANK_VARIABLES if checkup.environ.get(name)}
    if not variables:
        return [CheckResult(OK, "ranks", "no launcher's variables are set")]
    assignments = " ".join(f"{name}={text}" for name, text in variables.items())
    fix = f"unset {' '.join(variables)}"
    world_size = variables.get("WORLD_SIZE", "1")
    if world_size == "1":
        return [CheckResult(WARN, "ranks", f"{assignments}: left over from a launcher", fix)]
    end = "is refused"
    can_meet = all(checkup.environ.get(name) for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
    if world_size.isdigit() and can_meet:
        end = f"waits for {int(world_size) - 1} more, which nobody starts"
    what = f"{assignments} outside a launcher: a script started by python {end}"
    return [CheckResult(FAIL, "ranks", what, fix)]


def check_accelerate_variables(checkup: Checkup) -> list[CheckResult]:
    """`ACCELERATE_*`, which silently become defaults of the flags."""
    results = []
    for name, text in sorted(checkup.environ.items()):
        if not name.startswith("ACCELERATE_"):
            continue
        level = WARN
        what = f"{text!r} becomes the default of a flag"
        if name == PRECISION_VARIABLE and text.lower() not in ACCELERATE_PRECISIONS:
            level = FAIL
            what = f"{text!r} is not one of {', '.join(ACCELERATE_PRECISIONS)}"
        elif name == PRECISION_VARIABLE and text.lower() == "fp16":
            what = "fp16 becomes the default of --fp16, which T5 overflows"
        results.append(CheckResult(level, name, what, f"unset {name} to let the flags decide"))
    return results or [CheckResult(OK, "ACCELERATE_*", "none is set")]


def check_accelerate_config(checkup: Checkup) -> list[CheckResult]:
    """The file that `accelerate launch` reads: its number of processes, precision and DeepSpeed file."""
    default_path = checkup.hugging_face_home / "accelerate" / "default_config.yaml"
    path = Path(checkup.accelerate_config or default_path)
    if not path.is_file():
        if checkup.accelerate_config:
            fix = f"accelerate config --config_file {path} writes one"
            return [CheckResult(FAIL, ACCELERATE_FILE, f"there is no {path}", fix)]
        return [CheckResult(OK, ACCELERATE_FILE, f"none ({path}): accelerate launch uses every GPU it finds")]
    rewrite = f"accelerate config --config_file {path}"
    try:
        settings = json.loads(path.read_text()) if path.suffix == ".json" else read_yaml(path).content
    except (ConfigError, ValueError) as error:
        return [CheckResult(FAIL, ACCELERATE_FILE, f"cannot be read: {error}", rewrite)]
    if not isinstance(settings, dict):
        return [CheckResult(FAIL, ACCELERATE_FILE, f"{path} is not a table of settings", rewrite)]
    process_count = settings.get("num_processes", 1)
    if not isinstance(process_count, int) or process_count < 1:
        what = f"{path}: num_processes is {process_count!r}"
        return [CheckResult(FAIL, ACCELERATE_FILE, what, "num_processes: 1 or more")]
    results = _check_distribution(settings, path) + _check_precision_and_sharding(settings, path)
    if results:
        return results
    precision = settings.get("mixed_precision", "no")
    what = f"{_distributed_type(settings)}, {process_count} processes, precision {precision} ({path})"
    return [CheckResult(OK, ACCELERATE_FILE, what)]


def _distributed_type(settings: dict) -> str:
    return str(settings.get("distributed_type", "NO")).upper()


def _check_distribution(settings: dict, path: Path) -> list[CheckResult]:
    """Whether as many processes will run as the file asks for."""
    kind = _distributed_type(settings)
    process_count = settings.get("num_processes", 1)
    local_process_count = process_count // max(1, int(settings.get("num_machines") or 1))
    device_count = _device_count()
    uses_mpi = settings.get("mpirun_config") or settings.get("mpirun_hostfile")
    if kind == "MULTI_CPU" and process_count > 1 and not uses_mpi:
        what = f"{path}: MULTI_CPU runs one process, not {process_count}, without a warning"
        fix = f"torchrun --nproc_per_node {process_count} SCRIPT --use_cpu"
        return [CheckResult(WARN, ACCELERATE_FILE, what, fix)]
    if kind == "NO" and process_count > 1:
        what = f"{path}: distributed_type NO runs one process, not {process_count}, without a warning"
        return [CheckResult(WARN, ACCELERATE_FILE, what, "distributed_type: MULTI_GPU")]
    runs_on_cpus = settings.get("use_cpu") or device_count == 0
    is_sharded_over_gpus = kind in ("FSDP", "DEEPSPEED") and not runs_on_cpus
    needs_gpus = kind == "MULTI_GPU" or is_sharded_over_gpus
    if needs_gpus and local_process_count > device_count:
        what = f"{path}: {local_process_count} processes on this machine, which has {device_count} GPUs"
        return [CheckResult(FAIL, ACCELERATE_FILE, what, f"num_processes: {max(1, device_count)}")]
    return []


def _check_precision_and_sharding(settings: dict, path: Path) -> list[CheckResult]:
    """Whether T5 can be trained in the precision, FSDP is the second one, and DeepSpeed runs with its file."""
    results = []
    if str(settings.get("mixed_precision")) == "fp16":
        what = f"{path}: mixed_precision fp16, which T5 overflows"
        results.append(CheckResult(WARN, ACCELERATE_FILE, what, "mixed_precision: bf16"))
    if _distributed_type(settings) == "DEEPSPEED" and not is_installed("deepspeed"):
        what = f"{path}: asks for DeepSpeed, which is not installed"
        results.append(CheckResult(FAIL, ACCELERATE_FILE, what, "pip install 't5suite[deepspeed]'"))
    fsdp_settings = settings.get("fsdp_config") or {}
    if _distributed_type(settings) == "FSDP" and isinstance(fsdp_settings, dict):
        version = fsdp_settings.get("fsdp_version", 1)  # accelerate's default
        if str(version) != "2":
            what = f"{path}: fsdp_version {version}, which every run refuses"
            results.append(CheckResult(FAIL, ACCELERATE_FILE, what, "fsdp_version: 2"))
    deepspeed_settings = settings.get("deepspeed_config")
    if isinstance(deepspeed_settings, dict):
        deepspeed_file = deepspeed_settings.get("deepspeed_config_file")
        if deepspeed_file and not Path(deepspeed_file).is_file():
            what = f"{path}: deepspeed_config_file {deepspeed_file} is not there"
            results.append(CheckResult(FAIL, ACCELERATE_FILE, what, "give its full path"))
    return results


def _device_count() -> int:
    import torch

    from t5suite.models.placement import has_accelerator

    return torch.accelerator.device_count() if has_accelerator() else 0


def check_deepspeed(checkup: Checkup) -> list[CheckResult]:
    """The tools that DeepSpeed compiles its operations with, and which operations are compiled already."""
    if not is_installed("deepspeed"):
        return [CheckResult(OK, DEEPSPEED_OPS, "DeepSpeed is not installed")]
    compiler = checkup.environ.get("CXX", "g++")
    if checkup.which(compiler) is None:
        return [_missing_tool(compiler, "apt install g++")]
    if checkup.which("ninja") is None and not (python_folder() / "ninja").is_file():
        return [_missing_tool("ninja", "python -m pip install ninja")]
    for lock in compiled(checkup.environ, "lock"):
        what = f"{lock}: every run waits until it is gone"
        return [CheckResult(WARN, DEEPSPEED_OPS, what, f"if no run compiles now: rm {lock}")]
    operations = sorted({path.stem for path in compiled(checkup.environ, "*.so")})
    if operations:
        return [CheckResult(OK, DEEPSPEED_OPS, f"compiled: {', '.join(operations)}")]
    what = "none is compiled yet; the first run does it"
    return [CheckResult(WARN, DEEPSPEED_OPS, what, "start it a few minutes early")]


def _missing_tool(program: str, fix: str) -> CheckResult:
    return CheckResult(WARN, DEEPSPEED_OPS, f"{program} is not on PATH: ZeRO on a CPU fails", fix)
