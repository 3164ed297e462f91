"""What `--version` prints: the suite, Python, the libraries that results depend on, and the GPUs, without loading any.

>>> print(versions_text())
t5suite 0.1.0 (commit 1c27ee7)
python 3.11.2, Linux x86_64
torch 2.13.0+cu130
...
GPUs: NVIDIA H200 (driver 580.82)
"""

import importlib.metadata
import platform
import re
from pathlib import Path

import t5suite
from t5suite.base.provenance import PACKAGES, git_commit

# Shown where they are installed: what people leave out matters as little here as in a run without it.
OPTIONAL = ("deepspeed", "peft", "bitsandbytes", "optuna", "wandb", "tensorboard", "trackio", "aim", "onnxruntime")
DRIVER = Path("/proc/driver/nvidia")


def versions_text() -> str:
    """One line for each."""
    commit = git_commit() or {}
    code = f" (commit {commit['commit'][:7]}{', changed' if commit['changed'] else ''})" if commit else ""
    lines = [
        f"t5suite {t5suite.__version__}{code}",
        f"python {platform.python_version()}, {platform.system()} {platform.machine()}",
    ]
    for package in (*PACKAGES[1:], *OPTIONAL):
        version = version_of(package)
        if version or package in PACKAGES:
            lines.append(f"{package} {version or 'is not installed'}")
    return "\n".join([*lines, f"GPUs: {gpus()}"])


def version_of(package: str) -> str | None:
    """The installed version; None where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpus(driver: Path = DRIVER) -> str:
    """The GPUs that NVIDIA's driver knows, with its version.

    What torch can use may be less (`CUDA_VISIBLE_DEVICES`, a build without CUDA): `t5suite doctor` asks it.
    """
    try:
        models = [
            re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)[1].strip()
            for path in sorted((driver / "gpus").glob("*/information"))
        ]
        version = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", (driver / "version").read_text(encoding="utf-8"))
    except (OSError, TypeError):
        models, version = [], None
    if not models:
        return "no NVIDIA driver here" if not driver.is_dir() else "none seen by NVIDIA's driver"
    counted = ", ".join(
        f"{models.count(name)} x {name}" if models.count(name) > 1 else name for name in dict.fromkeys(models)
    )
    return f"{counted} (driver {version[1]})" if version else counted
