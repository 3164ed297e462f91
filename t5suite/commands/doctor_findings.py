"""What a check of `t5suite doctor` is told, and what it finds.

    >>> check_python(Checkup())
    [Finding(level='ok', name='python', what='3.11.7 (/usr/bin/python3)', mend='')]

A check is a function of a `Checkup`; it reads the environment and PATH from there alone.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.files import shipped_file
from t5suite.base.yaml_files import read_yaml

OK, WARN, FAIL = "ok", "warn", "fail"
GIB = 2**30


class Finding(NamedTuple):
    """One line: how bad it is (ok, warn, fail), what was looked at, what was found, and the mend."""

    level: str
    name: str
    what: str
    mend: str = ""


@dataclass(frozen=True)
class Checkup:
    """What is looked at.

    Attributes:
      environ: the environment's variables.
      output_dir: where runs are to be written; it need not be there yet.
      settings: the flags that `--config` sets.
      config: that file.
      accelerate_config: the file for `accelerate launch --config_file`; None: accelerate's default one.
      build: compile DeepSpeed's operations.
      timeout: seconds that a look at a server may take.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    output_dir: str = "runs"
    settings: Mapping = field(default_factory=dict)
    config: str | None = None
    accelerate_config: str | None = None
    build: bool = False
    timeout: float = 3.0

    def which(self, program: str) -> str | None:
        """Where PATH has the program."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def says(self, variable: str) -> bool:
        """Whether a variable is set to what libraries take for yes."""
        return self.environ.get(variable, "").lower() in ("1", "true", "yes", "on")

    def output(self, *command: str, seconds: float = 10) -> str | None:
        """What a program prints; None where it fails, is not there, or takes too long."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=dict(self.environ))
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None


def config_file(config: str) -> str:
    """The file that the scripts would read: as it is named, or the recipe of that name.

    Raises:
      ConfigError: there is neither.
    """
    if Path(config).is_file():
        return config
    shipped = shipped_file("recipes", config)
    if shipped is None:
        raise ConfigError(f"--config {config}: no such file, and no recipe of that name")
    return str(shipped)


def settings_of(config: str | None) -> dict:
    """The flags that a run's YAML file sets, unchecked; none without a file.

    Raises:
      ConfigError: no YAML file of `flag: value`.
    """
    if config is None:
        return {}
    content = read_yaml(config).content
    if not isinstance(content, dict):
        raise ConfigError(f"--config {config}: not a table of flags")
    return content


def nearest_folder(path) -> Path:
    """The folder itself, or the nearest one above it that is there already."""
    folder = Path(path).expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def size(num_bytes: float) -> str:
    """Bytes for people.

    >>> size(3 * 2**30), size(5_000_000)
    ('3.0 GiB', '4.8 MiB')
    """
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.1f} MiB"
