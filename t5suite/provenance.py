"""What a result depends on beside its settings: versions, the code's commit, the machine.

>>> versions()["torch"]
'2.13.0'
"""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = (
    "t5suite",
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "sentencepiece",
    "numpy",
    "scikit-learn",
)


def versions() -> dict:
    """The versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def git_commit() -> dict | None:
    """The commit that the code stands at, and whether it was changed; None outside a checkout."""
    folder = Path(__file__).parent

    def git(*words):
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        commit = git("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(git("status", "--porcelain"))} if commit else None
    except (OSError, subprocess.TimeoutExpired):
        return None


def hardware() -> dict:
    """Processor, cores and accelerators."""
    import torch

    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {"platform": platform.platform(), "cores": os.cpu_count(), "gpus": gpus}
