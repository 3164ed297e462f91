"""Checks of this Python: the packages that the suite requires, and the parts of libraries that it leans on."""

import importlib.metadata
import platform
import sys

from t5suite.base.libraries import states
from t5suite.base.provenance import PACKAGE, code_title
from t5suite.commands.checks.checkup import FAIL, OK, WARN, CheckResult, Checkup

# What each group of optional packages is for; `dev` is for those who work on the suite itself.
EXTRAS = {
    "deepspeed": "ZeRO and the deepspeed launcher", "sweeps": "t5suite sweep", "tracking": "wandb and tensorboard",
    "aim": "the tracker Aim", "trackio": "the tracker Trackio",
    "peft": "LoRA and its like", "quantization": "models and optimizers in 4 and 8 bits", "onnx": "export to ONNX",
    "ctranslate2": "export to CTranslate2", "sentences": "splitting text into sentences",
    "web": "t5suite predict --web", "serve": "t5suite serve",
}  # fmt: skip


def check_python(checkup: Checkup) -> list[CheckResult]:
    """Which Python this is; one too old for the suite could not run this."""
    return [CheckResult(OK, "python", f"{platform.python_version()} ({sys.executable})")]


def check_packages(checkup: Checkup) -> list[CheckResult]:
    """Every package that the suite requires, and the optional ones by what they are for."""
    try:
        requirements = importlib.metadata.requires("t5suite") or []
    except importlib.metadata.PackageNotFoundError:
        return [CheckResult(FAIL, "t5suite", "is not installed in this Python", "python -m pip install -e .")]
    results = [CheckResult(OK, "t5suite", f"{code_title().removeprefix('t5suite ')} in {PACKAGE}")]
    for requirement in requirements:
        results += check_requirement(requirement)
    return results


def check_requirement(requirement: str) -> list[CheckResult]:
    """The result for one requirement, as the package's metadata states it; none for those of `dev` or another Python.

    >>> check_requirement('optuna>=99; extra == "sweeps"')
    [CheckResult(level='warn', name='optuna', what='5.0.0, but >=99 is needed (t5suite sweep)', fix="pip install ...")]
    """
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    if not parsed.marker:
        level = FAIL
        purpose = ""
        fix = f"python -m pip install '{requirement}'"
    else:
        extra = next((name for name in EXTRAS if parsed.marker.evaluate({"extra": name})), None)
        if extra is None:
            return []
        level = WARN
        purpose = f" ({EXTRAS[extra]})"
        fix = f"python -m pip install 't5suite[{extra}]'"
    try:
        version = importlib.metadata.version(parsed.name)
    except importlib.metadata.PackageNotFoundError:
        return [CheckResult(level, parsed.name, f"is not installed{purpose}", fix)]
    if not parsed.specifier.contains(version, prereleases=True):
        return [CheckResult(level, parsed.name, f"{version}, but {parsed.specifier} is needed{purpose}", fix)]
    return [CheckResult(OK, parsed.name, version + purpose)]


def check_libraries(checkup: Checkup) -> list[CheckResult]:
    """Parts of libraries that our code leans on: whether the installed ones are those that were tested."""
    rows = states()
    changed = [row for row in rows if row["state"] in ("stock", "refused")]
    proved_count = sum(row["state"] == "proved" for row in rows)
    total = proved_count + len(changed)
    results = [CheckResult(OK, "libraries", f"{proved_count} of {total} parts in use are as they were tested")]
    for row in changed:
        effect = "the plain way is used" if row["state"] == "stock" else "runs that use it are refused"
        fix = "pip install the versions in constraints.txt"
        results.append(CheckResult(WARN, row["entry"], f"{row['reason']}: {effect}", fix))
    return results
