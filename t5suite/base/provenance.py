"""What a result depends on besides its settings: versions, the code's commit, the machine.

>>> versions()["torch"]
'2.13.0'
"""

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

import t5suite
from t5suite.base.redaction import redacted

# Neither status nor diff writes the checkout's index.
GIT = ("git", "--no-optional-locks", "-c", "diff.autoRefreshIndex=false")
# The most characters of a diff that are kept, and the most untracked files that are named.
LARGEST_DIFF, MOST_FILES = 1_000_000, 100
PACKAGES = "t5suite torch transformers accelerate datasets tokenizers sentencepiece numpy scikit-learn".split()


def versions() -> dict:
    """The versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found | {"t5suite": t5suite.__version__}  # a checkout's code may be newer than what pip remembers


def _git(folder: Path, *words) -> str | None:
    """What git prints; None if the folder is not in a checkout, or git fails."""
    command = [*GIT, "-C", str(folder), "-c", "core.quotepath=off", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def git_commit() -> dict | None:
    """The code's commit, and whether the checkout has changes; None outside a checkout."""
    folder = Path(__file__).parent
    commit = (_git(folder, "rev-parse", "HEAD") or "").strip()
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain"))} if commit else None


def code_changes(folder=None) -> tuple[str, list[str]] | None:
    """`(diff, files)`: how the checkout differs from its commit, and its untracked files; None outside a checkout.

    Secrets in the diff are replaced. Beyond LARGEST_DIFF the diff is cut off, with a last line that says so.
    """
    folder = Path(folder or __file__).resolve()
    folder = folder if folder.is_dir() else folder.parent
    root = (_git(folder, "rev-parse", "--show-toplevel") or "").strip()
    if not root:
        return None
    diff = _git(folder, "diff", "HEAD", "--no-color", "--no-ext-diff") or ""
    untracked = (_git(folder, "ls-files", "--others", "--exclude-standard", "--full-name", root) or "").splitlines()
    if len(diff) > LARGEST_DIFF:
        diff = f"{diff[:LARGEST_DIFF]}\n# {len(diff) - LARGEST_DIFF} more characters are left out\n"
    return redacted(diff), untracked[:MOST_FILES]


def packages() -> dict[str, str]:
    """Every installed package and its version, by name; of two with the same name, the one that is imported.

    `importlib.metadata`'s parser takes 0.14 s for all of them; two lines of each are enough.
    """
    found = {}
    for part in importlib.metadata.distributions():
        text = part.read_text("METADATA") or part.read_text("PKG-INFO") or part.read_text("") or ""
        fields = dict(re.findall(r"^(Name|Version):[ \t]*(.*?)\s*$", text.partition("\n\n")[0], re.MULTILINE))
        if len(fields) == 2:
            found.setdefault(fields["Name"], fields["Version"])
    return {name: found[name] for name in sorted(found, key=str.lower)}


def hardware() -> dict:
    """Processor, cores and accelerators."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"platform": platform.platform(), "processor": processor_name(), "cores": os.cpu_count(), "gpus": gpus}


def processor_name() -> str:
    """The processor's model, such as `AMD EPYC 9R14`; its architecture if the system does not report the model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
