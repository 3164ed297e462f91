"""What a result depends on besides its settings: versions, the code's commit, the machine.

>>> versions()["torch"]
'2.13.0'
"""

import base64
import copy
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from pathlib import Path

import t5suite
from t5suite.base.files import FOLDERS
from t5suite.base.redaction import redacted

PACKAGE = Path(t5suite.__file__).resolve().parent
# Files of the package by which a git repository proves to be the suite's own: it tracks them where they are.
LANDMARKS = ("__init__.py", "cli.py", "base/provenance.py", "training/trainer.py")
SCRIPTS = ("fine_tune_t5.py", "pre_train_t5.py")
# Variables by which git finds a repository other than the one around a folder.
GIT_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
# Neither status nor diff writes the checkout's index.
GIT = ("git", "--no-optional-locks", "-c", "diff.autoRefreshIndex=false")
# The most characters of a diff that are kept, and the most untracked files that are named.
LARGEST_DIFF, MOST_FILES = 1_000_000, 100
PACKAGES = "t5suite torch transformers accelerate datasets tokenizers sentencepiece numpy scikit-learn".split()


def versions() -> dict:
    """The versions of Python and of the packages that results depend on."""
    versions_by_name = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions_by_name[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions_by_name[package] = None
    versions_by_name["t5suite"] = t5suite.__version__  # a checkout's code may be newer than what pip remembers
    return versions_by_name


def _git(folder: Path, *words) -> str | None:
    """What git prints; None if the folder is not in a checkout, or git fails."""
    command = [*GIT, "-C", str(folder), "-c", "core.quotepath=off", *words]
    # A hook's variables name the repository that the hook is of.
    environment = {name: value for name, value in os.environ.items() if name not in GIT_PLACES}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return done.stdout


def is_tracked(package: Path = PACKAGE) -> bool:
    """Whether a git repository tracks the package's files at this place.

    A repository around an environment does not track what is installed in it, even the suite's own clone.
    """
    return _git(package, "ls-files", "--error-unmatch", "--", *LANDMARKS) is not None


def git_commit(package: Path = PACKAGE) -> dict | None:
    """The code's commit, and whether the code differs from it; None if the commit is not known.

    Untracked files beside the package, such as rows and scripts of the user's own in a clone, are no change. The commit
    is known in a checkout, and of a package that pip installed from a git repository (`pip install git+https://...`).

    >>> git_commit()
    {'commit': '5ae584ff6f0dc4ba91d1a4b2c06ae4cd5be0f4a1', 'changed': False}
    """
    if not is_tracked(package):
        return installed_commit(package)
    commit = (_git(package, "rev-parse", "HEAD") or "").strip()
    if not commit:
        return None
    tracked = _git(package, "status", "--porcelain", "--untracked-files=no", "--", *_places_of_code(package))
    of_package = _git(package, "status", "--porcelain", "--", str(package))
    return {"commit": commit, "changed": bool(tracked or of_package)}


def _places_of_code(package: Path) -> list[str]:
    """Where changes are the suite's: the whole project in its checkout, else the package and the scripts beside it.

    Somebody's own repository may hold a copy of the package among other code.
    """
    project = package.with_name("pyproject.toml")
    if project.is_file() and re.search(r'^name *= *"t5suite"', project.read_text(encoding="utf-8"), re.MULTILINE):
        return [str(package.parent)]
    return [str(package), *map(str, _scripts_beside(package))]


def _scripts_beside(package: Path) -> list[Path]:
    return [path for path in map(package.with_name, SCRIPTS) if path.is_file()]


def installed_commit(package: Path = PACKAGE) -> dict | None:
    """As `git_commit`, of an installed package, from what the installer has recorded about it (PEP 610)."""
    distribution = _distribution_of(package)
    if distribution is None:
        return None
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    commit = origin.get("vcs_info", {}).get("commit_id")
    is_editable = origin.get("dir_info", {}).get("editable", False)
    if not commit or is_editable:
        return None
    return {"commit": commit, "changed": _has_changed(distribution)}


def _distribution_of(package: Path) -> importlib.metadata.Distribution | None:
    """The installed distribution whose files these are; one that stands elsewhere says nothing about them."""
    for distribution in importlib.metadata.distributions(name="t5suite", path=[str(package.parent)]):
        place = Path(distribution.locate_file(package.name)).resolve()
        if place == package.resolve():
            return distribution
    return None


def _has_changed(distribution: importlib.metadata.Distribution) -> bool:
    """Whether an installed module differs from its hash in the installer's list of files (RECORD)."""
    for file in distribution.files or ():
        path = Path(distribution.locate_file(file))
        if file.suffix != ".py" or file.hash is None:
            continue
        if not path.is_file():
            return True
        digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
        digest_text = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if digest_text != file.hash.value:
            return True
    return False


def loaded_software() -> dict:
    """The versions, commit, hash and packages of the code that this process runs, as a manifest has them.

    They are read once in a process: what changes on the disk later does not run in it.
    """
    return copy.deepcopy(_software_of_process())


@functools.cache
def _software_of_process() -> dict:
    return {"versions": versions(), "commit": git_commit(), "code_sha256": code_sha256(), "packages": packages()}


def code_sha256(package: Path = PACKAGE) -> str:
    """A hash of the code that runs: the modules of the package, and the entry scripts beside it.

    A checkout and what is installed from it have the same one, as have equal copies anywhere: shipped folders, which
    stand inside the package only where it is installed, do not count.
    """
    scripts = _scripts_beside(package)
    modules = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in FOLDERS]
    digest = hashlib.sha256()
    for path in sorted([*modules, *scripts]):
        name = path.relative_to(package.parent).as_posix()
        digest_of_file = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name} {digest_of_file}\n".encode())
    return digest.hexdigest()


def code_title() -> str:
    """Version, commit and hash of the code in a line.

    >>> code_title()
    't5suite 0.9.0 (commit 5ae584f, changed; code 1f0c82c0b0d1)'
    """
    code = f"code {code_sha256()[:12]}"
    commit = git_commit()
    if commit is None:
        return f"t5suite {t5suite.__version__} ({code})"
    state = f"commit {commit['commit'][:7]}"
    if commit["changed"]:
        state += ", changed"
    return f"t5suite {t5suite.__version__} ({state}; {code})"


def code_changes(package: Path = PACKAGE) -> tuple[str, list[str]] | None:
    """`(diff, files)`: how the checkout of the suite differs from its commit, and its untracked files.

    None for code that no git repository tracks: the changes of a repository around it are not the suite's. Secrets in
    the diff are replaced. Beyond LARGEST_DIFF the diff is cut off, with a last line that says so.
    """
    if not is_tracked(package):
        return None
    places = _places_of_code(package)
    diff = _git(package, "diff", "HEAD", "--no-color", "--no-ext-diff", "--", *places) or ""
    listed = _git(package, "ls-files", "--others", "--exclude-standard", "--full-name", "--", *places) or ""
    if len(diff) > LARGEST_DIFF:
        diff = f"{diff[:LARGEST_DIFF]}\n# {len(diff) - LARGEST_DIFF} more characters are left out\n"
    return redacted(diff), listed.splitlines()[:MOST_FILES]


@functools.cache
def loaded_code_changes() -> tuple[str, list[str]] | None:
    """`code_changes` of the code that this process runs, read once like `loaded_software`."""
    return code_changes()


def packages() -> dict[str, str]:
    """Every installed package and its version, by name; of two with the same name, the one that is imported.

    `importlib.metadata`'s parser takes 0.14 s for all of them; two lines of each are enough.
    """
    versions_by_name: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        header, _, _ = _metadata_of(distribution).partition("\n\n")
        fields = dict(re.findall(r"^(Name|Version):[ \t]*(.*?)\s*$", header, re.MULTILINE))
        if len(fields) == 2:
            versions_by_name.setdefault(fields["Name"], fields["Version"])
    return {name: versions_by_name[name] for name in sorted(versions_by_name, key=str.lower)}


def _metadata_of(distribution: importlib.metadata.Distribution) -> str:
    """The text of a wheel's METADATA, of an egg's PKG-INFO, or of an egg that is this file alone."""
    for file in ("METADATA", "PKG-INFO", ""):
        text = distribution.read_text(file)
        if text:
            return text
    return ""


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
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
