"""Checks of `t5suite doctor`: trackers, their servers, and the folders that they write to.

>>> check_aim(Checkup(settings={"report_to": "aim"}))
[Finding(level='ok', name='aim', what='3.29.1, with its runs in /home/me/aim_repo', mend='')]

A tracker that is not installed is `fail` where `--config` asks for it, and no finding worth a word elsewhere.
"""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

from t5suite.commands.doctor_findings import FAIL, OK, WARN, Checkup, Finding, nearest_folder
from t5suite.commands.doctor_places import reach
from t5suite.tracking.identity import AIM_REPO

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


def missing(name: str, checkup: Checkup, mend: str) -> Finding:
    """A tracker that is not installed."""
    wanted = asked(checkup, name)
    return Finding(FAIL if wanted else OK, name, "is not installed", mend if wanted else "")


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
    mend = f"where there is a network: wandb sync {os.path.join(checkup.output_dir, SEGMENTS)}"
    return [Finding(OK, "wandb offline", f"{len(runs)} runs are not sent yet: {named}", mend)]


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


def _written(name: str, checkup: Checkup, folder: Path, mend: str) -> Finding:
    """Whether a tracker's folder can be written, or made."""
    version = importlib.metadata.version(name)
    there = nearest_folder(folder)
    if (folder.exists() and not folder.is_dir()) or not os.access(there, os.W_OK):
        why = "is a file" if folder.is_file() else "cannot be written"
        return Finding(FAIL if asked(checkup, name) else WARN, name, f"{version}, but {folder} {why}", mend)
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
