"""`t5suite doctor`: what this machine and environment lack for the suite, and the fix of each lack.

    $ t5suite doctor
    ok    python             3.11.7 (/home/me/.venv/bin/python)
    warn  hub                https://huggingface.co does not answer (...) — export HF_HUB_OFFLINE=1 ...

Every line is `ok`, `warn` (something will not work, or not as asked) or `fail` (runs will fail); with a `fail` the
command exits 78. A new check is one entry of CHECKS: a function of a `Checkup` that returns a list of `Finding`s.
"""

import importlib.metadata
import importlib.util
import json
import netrc
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from t5suite.base.errors import ConfigError
from t5suite.base.hub import why_unreachable
from t5suite.base.redaction import redacted
from t5suite.base.yaml_files import read_yaml
from t5suite.commands.doctor_machine import (
    FAIL,
    OK,
    WARN,
    Checkup,
    Finding,
    check_cpu,
    check_devices,
    check_disk,
    check_hub,
    check_hub_cache,
    check_output_files,
    check_packages,
    check_python,
    check_shared_memory,
)
from t5suite.commands.shared import add_json_flag, print_json

COLOURS = {OK: "32", WARN: "33", FAIL: "31"}
LAUNCHERS = {"accelerate": "accelerate", "torchrun": "torch", "deepspeed": "deepspeed"}
# What torchrun and its like set for each process; `python script.py` then waits for ranks that nobody starts.
RANK_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
PRECISIONS = ("no", "fp16", "bf16", "fp8")
# Seconds that compiling one of DeepSpeed's operations may take (about 70 on two cores).
BUILD_SECONDS = 900
SLURM_PROGRAMS = ("sbatch", "srun", "scontrol")


def doctor_flags(parser) -> None:
    """Flags of `t5suite doctor`."""
    add = parser.add_argument
    add("--accelerate_config", metavar="FILE", help="accelerate's file, if not its default one")
    add("--output_dir", default="runs", help="where runs are to be written (default: runs)")
    add("--build", action="store_true", help="compile DeepSpeed's operations now (minutes)")
    add_json_flag(parser)


def run_doctor(arguments) -> None:
    """Prints a line a finding.

    Raises:
      ConfigError: a finding is a `fail`.
    """
    checkup = Checkup(
        output_dir=arguments.output_dir, accelerate_config=arguments.accelerate_config, build=arguments.build
    )
    counts, failed = dict.fromkeys(COLOURS, 0), []
    for found in examine(checkup):
        finding = Finding(*map(redacted, found))
        counts[finding.level] += 1
        failed += [finding.name] if finding.level == FAIL else []
        if arguments.json:
            print_json(finding._asdict())
            continue
        level = f"{finding.level:<5}"
        if sys.stdout.isatty():
            level = f"\033[{COLOURS[finding.level]}m{level}\033[0m"
        print(f"{level} {finding.name:<18} {finding.what}{f' — {finding.fix}' if finding.fix else ''}", flush=True)
    if not arguments.json:
        print(", ".join(f"{count} {level}" for level, count in counts.items()))
    if failed:
        raise ConfigError(
            f"t5suite doctor: {len(failed)} checks fail: {', '.join(failed)}; each line says how to fix it"
        )


def examine(checkup: Checkup):
    """The findings of every check, one after the other; a check that breaks is itself one that fails."""
    for name, check in CHECKS.items():
        try:
            yield from check(checkup)
        except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
            what = f"could not be checked ({type(error).__name__}: {str(error).strip()[:300]})"
            fix = "install the package anew" if isinstance(error, ImportError) else "see the error"
            yield Finding(FAIL, name, what, fix)


# ---------------------------------------------------------------------------------------------------------------------
# Launchers and their settings


def check_launchers(checkup: Checkup) -> list[Finding]:
    """`accelerate`, `torchrun` and `deepspeed` on PATH belong to this Python."""
    own, findings = Path(sys.executable).parent, []
    for program, package in LAUNCHERS.items():
        path = checkup.which(program)
        if path is None and (package != "deepspeed" or _is_installed("deepspeed")):
            fix = f"export PATH={own}:$PATH" if (own / program).is_file() else f"python -m pip install {package}"
            findings.append(Finding(WARN, program, "is not on PATH", fix))
        elif path and Path(path).parent.resolve() != own.resolve():
            fix = f"export PATH={own}:$PATH, or call {own / program}"
            findings.append(Finding(WARN, program, f"{path} belongs to another Python than {sys.executable}", fix))
        elif path:
            findings.append(Finding(OK, program, path))
    return findings


def check_ranks(checkup: Checkup) -> list[Finding]:
    """Variables of a launcher that are set although none is at work."""
    found = {name: checkup.environ[name] for name in RANK_VARIABLES if checkup.environ.get(name)}
    if not found:
        return [Finding(OK, "ranks", "no launcher's variables are set")]
    shown, fix = " ".join(f"{name}={value}" for name, value in found.items()), f"unset {' '.join(found)}"
    world_size = found.get("WORLD_SIZE", "1")
    if world_size == "1":
        return [Finding(WARN, "ranks", f"{shown}: left over from a launcher", fix)]
    others = f"{int(world_size) - 1} others" if world_size.isdigit() else "others"
    what = f"{shown} outside a launcher: a script started by python waits for {others} for ever"
    return [Finding(FAIL, "ranks", what, fix)]


def check_accelerate_variables(checkup: Checkup) -> list[Finding]:
    """`ACCELERATE_*`, which silently become defaults of the flags."""
    findings = []
    for name, value in sorted(checkup.environ.items()):
        level, what = WARN, f"{value!r} becomes the default of a flag"
        if name == "ACCELERATE_MIXED_PRECISION" and value.lower() not in PRECISIONS:
            level, what = FAIL, f"{value!r} is none of {', '.join(PRECISIONS)}"
        elif name == "ACCELERATE_MIXED_PRECISION" and value.lower() == "fp16":
            what = "fp16 becomes the default of --fp16, which T5 overflows"
        if name.startswith("ACCELERATE_"):
            findings.append(Finding(level, name, what, f"unset {name} to let the flags decide"))
    return findings or [Finding(OK, "ACCELERATE_*", "none is set")]


def check_accelerate_config(checkup: Checkup) -> list[Finding]:
    """The file that `accelerate launch` reads: its number of processes, precision and DeepSpeed file."""
    caches = checkup.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = Path(checkup.environ.get("HF_HOME", os.path.join(caches, "huggingface"))).expanduser()
    path = Path(checkup.accelerate_config or home / "accelerate" / "default_config.yaml")
    name, rewrite = "accelerate config", f"accelerate config --config_file {path}"
    if not path.is_file():
        if checkup.accelerate_config:
            return [Finding(FAIL, name, f"there is no {path}", f"{rewrite} writes one")]
        return [Finding(OK, name, f"none ({path}): accelerate launch uses every GPU it finds")]
    try:
        content = json.loads(path.read_text()) if path.suffix == ".json" else read_yaml(path).content
    except (ConfigError, ValueError) as error:
        return [Finding(FAIL, name, f"cannot be read: {error}", rewrite)]
    if not isinstance(content, dict):
        return [Finding(FAIL, name, f"{path} is no table of settings", rewrite)]
    kind, processes = str(content.get("distributed_type", "NO")).upper(), content.get("num_processes", 1)
    if not isinstance(processes, int) or processes < 1:
        return [Finding(FAIL, name, f"{path}: num_processes is {processes!r}", "num_processes: 1 or more")]
    devices, here = _device_count(), processes // max(1, int(content.get("num_machines") or 1))
    mpirun = content.get("mpirun_config") or content.get("mpirun_hostfile")
    settings = content.get("deepspeed_config")
    file = settings.get("deepspeed_config_file") if isinstance(settings, dict) else None
    one = f"runs one process, not {processes}, and says nothing of it"
    problems = (
        (
            kind == "MULTI_CPU" and processes > 1 and not mpirun,
            WARN,
            f"MULTI_CPU {one}",
            f"torchrun --nproc_per_node {processes} SCRIPT --use_cpu",
        ),
        (kind == "NO" and processes > 1, WARN, f"distributed_type NO {one}", "distributed_type: MULTI_GPU"),
        (
            kind == "MULTI_GPU" and here > devices,
            FAIL,
            f"{here} processes on this machine, which has {devices} GPUs",
            f"num_processes: {max(1, devices)}",
        ),
        (
            str(content.get("mixed_precision")) == "fp16",
            WARN,
            "mixed_precision fp16, which T5 overflows",
            "mixed_precision: bf16",
        ),
        (
            kind == "DEEPSPEED" and not _is_installed("deepspeed"),
            FAIL,
            "asks for DeepSpeed, which is not installed",
            "pip install 't5suite[deepspeed]'",
        ),
        (file and not Path(file).is_file(), FAIL, f"deepspeed_config_file {file} is not there", "give its full path"),
    )
    shown = f"{kind}, {processes} processes, precision {content.get('mixed_precision', 'no')} ({path})"
    found = [Finding(level, name, f"{path}: {what}", fix) for is_so, level, what, fix in problems if is_so]
    return found or [Finding(OK, name, shown)]


def _device_count() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def check_deepspeed(checkup: Checkup) -> list[Finding]:
    """What DeepSpeed compiles its operations with, and which are compiled already; `--build` compiles."""
    name = "deepspeed ops"
    if not _is_installed("deepspeed"):
        return [Finding(OK, name, "DeepSpeed is not installed")]
    own, compiler = Path(sys.executable).parent, checkup.environ.get("CXX", "g++")
    for program, fix in ((compiler, "apt install g++"), ("ninja", "python -m pip install ninja")):
        if checkup.which(program) is None and not (program == "ninja" and (own / "ninja").is_file()):
            return [Finding(WARN, name, f"{program} is not on PATH: ZeRO on a CPU fails", fix)]
    if not checkup.build:
        folder = Path(checkup.environ.get("TORCH_EXTENSIONS_DIR") or "~/.cache/torch_extensions").expanduser()
        built = sorted({path.stem for path in folder.glob("**/*.so")})
        if built:
            return [Finding(OK, name, f"compiled: {', '.join(built)}")]
        fix = "t5suite doctor --build compiles them now, else the first run does"
        return [Finding(WARN, name, "none is compiled yet, which takes minutes", fix)]
    found, has_gpu = [], _device_count() > 0
    environ = checkup.environ | {"PATH": f"{own}:{checkup.environ.get('PATH', os.defpath)}"}
    environ |= {} if has_gpu else {"DS_ACCELERATOR": "cpu"}
    for builder in ("CPUAdamBuilder", "FusedAdamBuilder" if has_gpu else "ShareMemCommBuilder"):
        code = f"from deepspeed.accelerator import get_accelerator as g; g().create_op_builder({builder!r}).load()"
        try:
            run = subprocess.run(
                [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=BUILD_SECONDS
            )
            said = "" if run.returncode == 0 else run.stderr.strip() or f"exit code {run.returncode}"
        except subprocess.TimeoutExpired:
            said = f"nothing within {BUILD_SECONDS} s"
        what = (
            f"{builder} cannot be compiled: {said.splitlines()[-1]:.300}"
            if said
            else f"{builder} is compiled and loads"
        )
        found.append(Finding(FAIL if said else OK, name, what, "check g++ and ninja" if said else ""))
    return found


def check_slurm(checkup: Checkup) -> list[Finding]:
    """Slurm's programs, and the job that this process is in."""
    missing = [program for program in SLURM_PROGRAMS if not checkup.which(program)]
    job = checkup.environ.get("SLURM_JOB_ID")
    if len(missing) == len(SLURM_PROGRAMS) and not job:
        return [Finding(OK, "slurm", "none here")]
    inside = f", inside job {job}" if job else ""
    if missing:
        fix = "load the cluster's Slurm module; scripts that requeue need scontrol"
        return [Finding(WARN, "slurm", f"{', '.join(missing)} not on PATH{inside}", fix)]
    what = (checkup.output("sinfo", "--version") or "Slurm") + inside
    if not job and checkup.output("scontrol", "ping") is None:
        return [Finding(WARN, "slurm", f"{what}, whose controller does not answer", "scontrol ping says why")]
    return [Finding(OK, "slurm", what)]


def check_wandb(checkup: Checkup) -> list[Finding]:
    """Whether runs can be logged to W&B, or are kept for later."""
    if not _is_installed("wandb"):
        return [Finding(OK, "wandb", "is not installed")]
    mode = checkup.environ.get("WANDB_MODE", "").lower()
    if mode in ("offline", "disabled", "dryrun") or checkup.is_set("WANDB_DISABLED"):
        what = f"WANDB_MODE={mode or 'disabled'}: no server is needed (wandb sync sends it later)"
        return [Finding(OK, "wandb", what)]
    server = checkup.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    trouble = why_unreachable(server, checkup.timeout)
    if trouble is not None:
        fix = "export WANDB_MODE=offline; wandb sync later; t5suite sweep needs no server"
        return [Finding(WARN, "wandb", f"{server} does not answer ({trouble})", fix)]
    logins = Path(checkup.environ.get("NETRC") or Path(checkup.environ.get("HOME", "~"), ".netrc")).expanduser()
    try:
        has_login = netrc.netrc(logins).authenticators(urlsplit(server).hostname or "")
    except (OSError, netrc.NetrcParseError):
        has_login = None
    if not checkup.environ.get("WANDB_API_KEY") and not has_login:
        what = f"{server} answers, but there is no login"
        return [Finding(WARN, "wandb", what, "wandb login, or WANDB_MODE=offline")]
    return [Finding(OK, "wandb", f"{server} answers")]


CHECKS = {
    "python": check_python,
    "packages": check_packages,
    "cpu": check_cpu,
    "gpu": check_devices,
    "launchers": check_launchers,
    "ranks": check_ranks,
    "ACCELERATE_*": check_accelerate_variables,
    "accelerate config": check_accelerate_config,
    "deepspeed ops": check_deepspeed,
    "slurm": check_slurm,
    "disk": check_disk,
    "files": check_output_files,
    "shared memory": check_shared_memory,
    "hub cache": check_hub_cache,
    "hub": check_hub,
    "wandb": check_wandb,
}
