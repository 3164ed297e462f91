"""Checks of `t5suite doctor`: the launchers, what is configured for them, DeepSpeed's operations, and Slurm.

>>> check_ranks(Checkup(environ={"WORLD_SIZE": "2"}))
[Finding(level='fail', name='ranks', what="WORLD_SIZE=2 is set outside a launcher: ...", fix='unset WORLD_SIZE')]
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.yaml_files import read_yaml
from t5suite.commands.doctor_machine import (
    FAIL,
    OK,
    WARN,
    Checkup,
    Finding,
    nearest_folder,
    reach,
)
from t5suite.tracking.trackers import AIM_REPO

LAUNCHERS = {"accelerate": "accelerate", "torchrun": "torch", "deepspeed": "deepspeed"}
# What torchrun and its like tell each process; `python script.py` then waits for ranks that nobody starts.
RANK_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
PRECISIONS = ("no", "fp16", "bf16", "fp8")
# Seconds that compiling one of DeepSpeed's operations may take (about 70 were seen on two cores).
BUILD_SECONDS = 900
SLURM_PROGRAMS = ("sbatch", "srun", "scontrol")


def check_launchers(checkup: Checkup) -> list[Finding]:
    """`accelerate`, `torchrun` and `deepspeed` on PATH belong to this Python."""
    own = Path(sys.executable).parent
    findings = []
    for program, package in LAUNCHERS.items():
        path = checkup.which(program)
        if path is None:
            if package == "deepspeed" and not _has_deepspeed():
                continue
            fix = f"export PATH={own}:$PATH" if (own / program).is_file() else f"python -m pip install {package}"
            findings.append(Finding(WARN, program, "is not on PATH", fix))
        elif Path(path).parent.resolve() != own.resolve():
            fix = f"export PATH={own}:$PATH, or call {own / program}"
            findings.append(Finding(WARN, program, f"{path} belongs to another Python than {sys.executable}", fix))
        else:
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
    if not world_size.isdigit() or int(world_size) < 1:
        return [Finding(FAIL, "ranks", f"{shown}: no number of processes", fix)]
    what = f"{shown} outside a launcher: a script started by python waits for {int(world_size) - 1} others for ever"
    return [Finding(FAIL, "ranks", what, fix)]


def check_accelerate_variables(checkup: Checkup) -> list[Finding]:
    """`ACCELERATE_*`, which silently become defaults of the flags."""
    found = {name: value for name, value in sorted(checkup.environ.items()) if name.startswith("ACCELERATE_")}
    if not found:
        return [Finding(OK, "ACCELERATE_*", "none is set")]
    findings = []
    for name, value in found.items():
        fix = f"unset {name} to let the flags decide"
        if name == "ACCELERATE_MIXED_PRECISION" and value.lower() not in PRECISIONS:
            findings.append(Finding(FAIL, name, f"{value!r} is none of {', '.join(PRECISIONS)}", f"unset {name}"))
        elif name == "ACCELERATE_MIXED_PRECISION" and value.lower() == "fp16":
            findings.append(Finding(WARN, name, "fp16 becomes the default of --fp16, which T5 overflows", fix))
        else:
            findings.append(Finding(WARN, name, f"{value!r} becomes the default of a flag", fix))
    return findings


def accelerate_default_config(checkup: Checkup) -> Path:
    """Where `accelerate config` writes, and `accelerate launch` looks."""
    caches = checkup.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = Path(checkup.environ.get("HF_HOME", os.path.join(caches, "huggingface"))).expanduser()
    return home / "accelerate" / "default_config.yaml"


def check_accelerate_config(checkup: Checkup) -> list[Finding]:
    """The file that `accelerate launch` reads: its number of processes, precision and DeepSpeed file."""
    path = Path(checkup.accelerate_config or accelerate_default_config(checkup))
    name = "accelerate config"
    if not path.is_file():
        if checkup.accelerate_config:
            return [Finding(FAIL, name, f"there is no {path}", "accelerate config --config_file FILE writes one")]
        return [Finding(OK, name, f"none ({path}): accelerate launch uses every GPU it finds")]
    try:
        content = json.loads(path.read_text()) if path.suffix == ".json" else read_yaml(path).content
    except (ConfigError, ValueError) as error:
        return [Finding(FAIL, name, f"cannot be read: {error}", f"accelerate config --config_file {path}")]
    if not isinstance(content, dict):
        return [Finding(FAIL, name, f"{path} is no table of settings", f"accelerate config --config_file {path}")]
    problems = [*_process_problems(content, path), *_precision_problems(content), *_deepspeed_problems(content, path)]
    shown = f"{content.get('distributed_type', 'NO')}, {content.get('num_processes', 1)} processes"
    shown += f", precision {content.get('mixed_precision', 'no')} ({path})"
    return [Finding(level, name, what, fix) for level, what, fix in problems] or [Finding(OK, name, shown)]


def _process_problems(content: dict, path: Path) -> list[tuple[str, str, str]]:
    kind, processes = str(content.get("distributed_type", "NO")).upper(), content.get("num_processes", 1)
    mpirun = content.get("mpirun_config") or content.get("mpirun_hostfile")
    if not isinstance(processes, int) or processes < 1:
        return [(FAIL, f"{path}: num_processes is {processes!r}", "num_processes: 1 or more")]
    if kind == "MULTI_CPU" and processes > 1 and not mpirun:
        what = f"{path}: MULTI_CPU runs one process, not {processes}, and says nothing of it"
        return [(WARN, what, f"torchrun --nproc_per_node {processes} SCRIPT --use_cpu")]
    if kind == "NO" and processes > 1:
        return [(WARN, f"{path}: distributed_type NO runs one process, not {processes}", "distributed_type: MULTI_GPU")]
    devices = _device_count()
    here = processes // max(1, int(content.get("num_machines") or 1))
    if kind == "MULTI_GPU" and here > devices:
        what = f"{path}: {here} processes on this machine, which has {devices} GPUs"
        return [(FAIL, what, f"num_processes: {max(1, devices)}")]
    return []


def _precision_problems(content: dict) -> list[tuple[str, str, str]]:
    if str(content.get("mixed_precision", "no")) == "fp16":
        return [(WARN, "mixed_precision fp16, which T5 overflows", "mixed_precision: bf16")]
    return []


def _deepspeed_problems(content: dict, path: Path) -> list[tuple[str, str, str]]:
    settings = content.get("deepspeed_config") or {}
    uses = str(content.get("distributed_type", "")).upper() == "DEEPSPEED"
    if uses and not _has_deepspeed():
        return [(FAIL, f"{path} asks for DeepSpeed, which is not installed", "pip install 't5suite[deepspeed]'")]
    file = settings.get("deepspeed_config_file") if isinstance(settings, dict) else None
    if uses and file and not Path(file).is_file():
        return [(FAIL, f"{path}: deepspeed_config_file {file} is not there", "give its full path")]
    return []


def _device_count() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def _has_deepspeed() -> bool:
    from importlib.util import find_spec

    return find_spec("deepspeed") is not None


def check_config(checkup: Checkup) -> list[Finding]:
    """`--config FILE` as the script would read it: every key a flag, every value of its kind."""
    if checkup.config is None:
        return []
    from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
    from t5suite.training.flags.parser import parse_arguments
    from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS

    scripts = {"fine_tune_t5.py": FINE_TUNING_ARGUMENTS, "pre_train_t5.py": PRE_TRAINING_ARGUMENTS}
    refused = {}
    for script, arguments in scripts.items():
        try:
            parse_arguments(arguments, [checkup.config])
        except UserError as error:
            refused[script] = str(error)
        else:
            return [Finding(OK, "config", f"{checkup.config} is one of {script}")]
    tells = {"train_corpus", "objective", "text_column_name", "streaming", "inputs_length"} & set(checkup.settings)
    script = "pre_train_t5.py" if tells else "fine_tune_t5.py"
    return [Finding(FAIL, "config", f"{script} refuses it: {refused[script]}", "fix the file")]


def check_deepspeed(checkup: Checkup) -> list[Finding]:
    """What DeepSpeed compiles its operations with, and which are compiled already; `--build` compiles."""
    if not _has_deepspeed():
        return [Finding(OK, "deepspeed ops", "DeepSpeed is not installed")]
    compiler = checkup.environ.get("CXX", "g++")
    tools = {"a C++ compiler": (compiler, "apt install g++"), "ninja": ("ninja", "python -m pip install ninja")}
    own = Path(sys.executable).parent
    for what, (program, fix) in tools.items():
        if checkup.which(program) is None and not (program == "ninja" and (own / "ninja").is_file()):
            return [Finding(WARN, "deepspeed ops", f"{what} ({program}) is not on PATH: ZeRO on a CPU fails", fix)]
    if checkup.build:
        return [build_operation(checkup, name) for name in operations_to_build()]
    built = built_operations(checkup)
    if not built:
        fix = "t5suite doctor --build compiles them now, else the first run does"
        return [Finding(WARN, "deepspeed ops", "none is compiled yet, which takes minutes", fix)]
    return [Finding(OK, "deepspeed ops", f"compiled: {', '.join(built)}")]


def built_operations(checkup: Checkup) -> list[str]:
    """The operations that torch's folder of extensions holds compiled."""
    folder = checkup.environ.get("TORCH_EXTENSIONS_DIR") or "~/.cache/torch_extensions"
    return sorted({path.stem for path in Path(folder).expanduser().glob("**/*.so")})


def operations_to_build() -> tuple[str, ...]:
    """The operations that training with a DeepSpeed file of ours may need here, by their builders' names."""
    return ("CPUAdamBuilder", "FusedAdamBuilder") if _device_count() else ("CPUAdamBuilder", "ShareMemCommBuilder")


def build_operation(checkup: Checkup, builder: str) -> Finding:
    """Compiles one operation (or finds it compiled) in a process of its own."""
    device = "" if _device_count() else "cpu"
    environ = {**checkup.environ, **({"DS_ACCELERATOR": device} if device else {})}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ.get('PATH', os.defpath)}"
    code = (
        "from deepspeed.accelerator import get_accelerator as g; "
        f"b = g().create_op_builder({builder!r}); assert b is not None, 'no such operation here'; b.load()"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=BUILD_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Finding(
            FAIL, "deepspeed ops", f"{builder} was not compiled in {BUILD_SECONDS} s", "look at g++ and ninja"
        )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return Finding(FAIL, "deepspeed ops", f"{builder} cannot be compiled: {said:.300}", "look at g++ and ninja")
    return Finding(OK, "deepspeed ops", f"{builder.removesuffix('Builder')} is compiled and loads")


def check_slurm(checkup: Checkup) -> list[Finding]:
    """Slurm's programs, and the job that this process is in."""
    found = [program for program in SLURM_PROGRAMS if checkup.which(program)]
    job = checkup.environ.get("SLURM_JOB_ID")
    if not found and not job:
        return [Finding(OK, "slurm", "none here")]
    missing = [program for program in SLURM_PROGRAMS if program not in found]
    if missing:
        what = f"{', '.join(missing)} not on PATH" + (f", inside job {job}" if job else "")
        return [Finding(WARN, "slurm", what, "load the cluster's Slurm module; scripts that requeue need scontrol")]
    what = checkup.output("sinfo", "--version") or "Slurm"
    if job:
        nodes, tasks = checkup.environ.get("SLURM_NNODES", "1"), checkup.environ.get("SLURM_NTASKS", "1")
        what += f", inside job {job} ({nodes} nodes, {tasks} tasks)"
    elif checkup.output("scontrol", "ping") is None:
        return [Finding(WARN, "slurm", f"{what}, whose controller does not answer", "scontrol ping says why")]
    return [Finding(OK, "slurm", what)]


WANDB_SERVER = "https://api.wandb.ai"
# What wandb writes beside the run: {variable: its default, below the home}.
WANDB_FOLDERS = {"WANDB_CONFIG_DIR": ".config/wandb", "WANDB_CACHE_DIR": ".cache/wandb"}
# A run directory's segments for `wandb sync`, from the folder of all runs; wandb marks those that it has sent.
SEGMENTS, SENT = "*/wandb/offline-run-*", "*.wandb.synced"


def asked(checkup: Checkup, name: str) -> bool:
    """Whether `--config` reports to a tracker."""
    told = checkup.settings.get("report_to") or ""
    names = told.split(",") if isinstance(told, str) else map(str, told)
    return name in [part.strip() for part in names]


def missing(name: str, checkup: Checkup, fix: str) -> Finding:
    """A tracker that is not installed."""
    wanted = asked(checkup, name)
    return Finding(FAIL if wanted else OK, name, "is not installed", fix if wanted else "")


def check_wandb(checkup: Checkup) -> list[Finding]:
    """Whether runs can be logged to W&B, or are kept for later."""
    if importlib.util.find_spec("wandb") is None:
        return [missing("wandb", checkup, "pip install 't5suite[tracking]'")]
    mode = checkup.environ.get("WANDB_MODE", "").lower()
    if mode in ("offline", "disabled", "dryrun") or checkup.says("WANDB_DISABLED"):
        return [
            Finding(OK, "wandb", f"WANDB_MODE={mode or 'disabled'}: no server is needed (wandb sync sends it later)")
        ]
    server = checkup.environ.get("WANDB_BASE_URL") or WANDB_SERVER
    trouble = reach(server, checkup.timeout)
    if trouble is not None:
        what = f"{server} does not answer ({trouble})"
        return [
            Finding(WARN, "wandb", what, "export WANDB_MODE=offline; wandb sync later; t5suite sweep needs no server")
        ]
    if not checkup.environ.get("WANDB_API_KEY") and not _has_login(checkup, server):
        return [
            Finding(WARN, "wandb", f"{server} answers, but there is no login", "wandb login, or WANDB_MODE=offline")
        ]
    return [Finding(OK, "wandb", f"{server} answers")]


def _has_login(checkup: Checkup, server: str) -> bool:
    netrc = Path(checkup.environ.get("NETRC") or Path(checkup.environ.get("HOME", "~")).expanduser() / ".netrc")
    host = server.partition("//")[2].split("/")[0].split(":")[0]
    return netrc.is_file() and os.access(netrc, os.R_OK) and host in netrc.read_text(errors="replace")


def check_wandb_folders(checkup: Checkup) -> list[Finding]:
    """Where wandb writes beside runs, which on clusters may be a home that compute nodes cannot write."""
    if importlib.util.find_spec("wandb") is None:
        return []
    home, findings = checkup.environ.get("HOME", "~"), []
    for variable, below in WANDB_FOLDERS.items():
        folder = Path(checkup.environ.get(variable) or os.path.join(home, below)).expanduser()
        if not os.access(nearest_folder(folder), os.W_OK):
            what = f"{folder} cannot be written"
            findings.append(Finding(WARN, "wandb folders", what, f"export {variable}=DIR that can"))
    return findings


def check_unsent(checkup: Checkup) -> list[Finding]:
    """Runs that were logged offline and that W&B does not have yet."""
    segments = [path for path in Path(checkup.output_dir).glob(SEGMENTS) if path.is_dir() and not any(path.glob(SENT))]
    runs = sorted({str(path.parent.parent) for path in segments})
    if not runs:
        return []
    named = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
    fix = f"where there is a network: wandb sync {os.path.join(checkup.output_dir, SEGMENTS)}"
    return [Finding(OK, "wandb offline", f"{len(runs)} runs are not sent yet: {named}", fix)]


def check_aim(checkup: Checkup) -> list[Finding]:
    """Aim and the folder of its repository."""
    if importlib.util.find_spec("aim") is None:
        return [missing("aim", checkup, "pip install 't5suite[aim]'")]
    repo = Path(str(checkup.settings.get("aim_repo") or AIM_REPO)).absolute()
    return [_written("aim", checkup, repo, "give --aim_repo on a disk that can be written")]


def check_trackio(checkup: Checkup) -> list[Finding]:
    """Trackio and the folder of its databases: each run's own, or one for all."""
    if importlib.util.find_spec("trackio") is None:
        return [missing("trackio", checkup, "pip install 't5suite[trackio]'")]
    folder = checkup.environ.get("TRACKIO_DIR") or checkup.output_dir
    return [_written("trackio", checkup, Path(folder).expanduser().absolute(), "export TRACKIO_DIR=DIR that can be")]


def check_other_trackers(checkup: Checkup) -> list[Finding]:
    """Those of Hugging Face's callbacks that `--config` asks for."""
    return [
        missing(name, checkup, f"pip install {package}")
        for name, package in OTHERS.items()
        if asked(checkup, name) and importlib.util.find_spec(name if name == "comet_ml" else package) is None
    ]


def _written(name: str, checkup: Checkup, folder: Path, fix: str) -> Finding:
    """Whether a tracker's folder can be written, or made."""
    version = importlib.metadata.version(name)
    there = nearest_folder(folder)
    if (folder.exists() and not folder.is_dir()) or not os.access(there, os.W_OK):
        why = "is a file" if folder.is_file() else "cannot be written"
        return Finding(FAIL if asked(checkup, name) else WARN, name, f"{version}, but {folder} {why}", fix)
    return Finding(OK, name, f"{version}, with its runs in {folder}")


# {--report_to: the package that pip knows}
OTHERS = {
    "clearml": "clearml",
    "codecarbon": "codecarbon",
    "comet_ml": "comet-ml",
    "dvclive": "dvclive",
    "mlflow": "mlflow",
    "neptune": "neptune",
    "swanlab": "swanlab",
}
