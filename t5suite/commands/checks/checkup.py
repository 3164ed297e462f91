"""What a check of `t5suite doctor` is given, and what it returns.

>>> Checkup(environ={"PATH": "/usr/bin"}).which("sh")
'/usr/bin/sh'
>>> CheckResult(WARN, "gpu", "hidden by CUDA_VISIBLE_DEVICES=''", "unset CUDA_VISIBLE_DEVICES")
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"


class CheckResult(NamedTuple):
    """One line: its level (ok, warn, fail), what was checked, what was found, and the fix."""

    level: str
    name: str
    what: str
    fix: str = ""


@dataclass(frozen=True)
class Checkup:
    """What is checked: the environment's variables, and where runs will be written.

    Attributes:
      accelerate_config: the file for `accelerate launch --config_file`; None: accelerate's default one.
      timeout: seconds that a server has to answer.
    """

    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    output_dir: str = "runs"
    accelerate_config: str | None = None
    timeout: float = 3.0

    def which(self, program: str) -> str | None:
        """The program's path, looked up in PATH."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def is_set(self, variable: str) -> bool:
        """Whether a variable is set to a value that libraries read as true."""
        return self.environ.get(variable, "").lower() in ("1", "true", "yes", "on")

    def output(self, *command: str) -> str | None:
        """What a program prints; None if it fails, is missing or takes too long."""
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=10, env=dict(self.environ))
        except (OSError, subprocess.TimeoutExpired):
            return None
        return process.stdout.strip() if process.returncode == 0 else None

    @property
    def hugging_face_home(self) -> Path:
        """The folder of Hugging Face's caches and settings."""
        caches = self.environ.get("XDG_CACHE_HOME", "~/.cache")
        return Path(self.environ.get("HF_HOME", os.path.join(caches, "huggingface"))).expanduser()


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def python_folder() -> Path:
    """Where this Python is, and in an environment of its own its programs."""
    return Path(sys.executable).parent


def program_folders() -> list[Path]:
    """Where pip may have put programs for this Python: beside it, or as its system or its user has it."""
    user_scheme = sysconfig.get_preferred_scheme("user")
    folders = [python_folder(), sysconfig.get_path("scripts"), sysconfig.get_path("scripts", user_scheme)]
    return [Path(folder) for folder in folders]
