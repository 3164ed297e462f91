"""A run's directory: who owns it, what made it, and where it stands.

    >>> run = open_run("runs/glue-rte-t5-small", settings, argv=["--benchmark", "glue"])
    >>> run.update(status="finished")

`manifest.json` explains a run: its id, command, settings, versions, commit, data fingerprints, hardware and times. A
directory belongs to one configuration: another one is refused, with both run ids and the settings that differ.
"""

import datetime
import enum
import hashlib
import importlib.metadata
import json
import os
import platform
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from t5suite.errors import ConfigError

MANIFEST = "manifest.json"
RESULTS = "results.json"
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

# Settings that say where and how loudly a run goes on, but not what comes out of it.
OPERATIONAL_SETTINGS = frozenset(
    """output_dir logging_strategy logging_first_step logging_steps log_level log_level_replica log_on_each_node
    report_to trackers run_name project trackio_space_id disable_tqdm resume resume_from_checkpoint reset extend dry_run
    save_total_limit keep_every peak_tflops dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
    dataloader_prefetch_factor push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push
    hub_revision eval_checkpoints data_dir local_rank ddp_timeout logging_nan_inf_filter""".split()
)
# What `--extend` may raise: how long a run is.
EXTENDABLE_SETTINGS = ("max_steps", "num_train_epochs", "max_minutes")
SECRET_WORDS = ("token", "key", "password", "secret")


@dataclass
class Run:
    """An opened run directory; only the main process writes."""

    directory: Path
    manifest: dict
    is_main: bool = True
    resumed: bool = False
    extended: bool = False

    @property
    def run_id(self) -> str:
        """The id that manifest, trackers and error messages use."""
        return self.manifest["run_id"]

    @property
    def finished(self) -> bool:
        """Whether the run came to its end before."""
        return self.manifest.get("status") == "finished" and (self.directory / RESULTS).is_file()

    def update(self, **entries) -> None:
        """Adds entries to the manifest and writes it; the first call makes the directory."""
        self.manifest.update(entries)
        if self.is_main:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_json(self.directory / MANIFEST, self.manifest)

    def finish(self) -> None:
        """Notes that the run came to its end."""
        self.update(status="finished", finished=_now())


def open_run(
    output_dir, settings: dict, argv=(), is_main: bool = True, need_new: bool = False, extend: bool = False
) -> Run:
    """The run of `settings` in `output_dir`: a new one, or the one that is there already. Nothing is written yet.

    Args:
      settings: every flag by name; OPERATIONAL_SETTINGS do not count for "the same run".
      need_new: refuse a directory with a run in it, even this one (`--resume none`).
      extend: settings that say how long the run is may have grown (`--extend`); a finished run is then unfinished.

    Raises:
      ConfigError: the directory holds another run, or files that are no run's.
    """
    directory = Path(output_dir)
    fingerprint = settings_fingerprint(settings)
    manifest_path = directory / MANIFEST
    if manifest_path.is_file():
        manifest = read_json(manifest_path)
        if extend and not need_new and _is_extension(manifest, settings, fingerprint):
            return Run(directory, _extended(manifest, settings, fingerprint), is_main, resumed=True, extended=True)
        _check_same_run(directory, manifest, settings, fingerprint, need_new)
        return Run(directory, manifest, is_main, resumed=True)
    if directory.is_dir() and any(directory.iterdir()):
        names = sorted(path.name for path in directory.iterdir())[:3]
        raise ConfigError(
            f"--output_dir {output_dir}: not empty ({', '.join(names)}, ...) and without {MANIFEST}; give a new one"
        )
    manifest = {
        "run_id": new_run_id(),
        "status": "running",
        "fingerprint": fingerprint,
        "started": _now(),
        "command": [sys.argv[0], *_without_secrets(argv)],
        "settings": public_settings(settings),
        "versions": versions(),
        "commit": git_commit(),
        "hardware": hardware(),
    }
    return Run(directory, manifest, is_main)


def _check_same_run(directory, manifest, settings, fingerprint, need_new):
    run_id = manifest.get("run_id", "?")
    if need_new:
        raise ConfigError(f"--output_dir {directory} holds run {run_id}; --resume none needs a new --output_dir")
    if manifest.get("fingerprint") == fingerprint:
        return
    changes = _differing(manifest, settings)
    differing = [f"{name} {there!r} there, {here!r} here" for name, (there, here) in changes.items()]
    longer = " (or --extend to make that run longer)" if set(changes) <= set(EXTENDABLE_SETTINGS) else ""
    raise ConfigError(
        f"--output_dir {directory} holds another run ({run_id}; this one would be {new_run_id()}): "
        f"{'; '.join(differing[:6])}{'; ...' if len(differing) > 6 else ''}. Give a new --output_dir{longer}"
    )


def _differing(manifest: dict, settings: dict) -> dict[str, tuple]:
    """`{name: (value there, value here)}` of the settings that make another run."""
    ours, theirs = public_settings(settings), manifest.get("settings", {})
    return {
        name: (theirs.get(name), ours.get(name))
        for name in sorted(set(ours) | set(theirs))
        if name not in OPERATIONAL_SETTINGS and ours.get(name) != theirs.get(name)
    }


def _is_extension(manifest: dict, settings: dict, fingerprint: str) -> bool:
    """Whether the settings are those of the manifest but for a longer run.

    Raises:
      ConfigError: a number of steps, epochs or minutes that is smaller than before.
    """
    changes = _differing(manifest, settings)
    if manifest.get("fingerprint") == fingerprint or not set(changes) <= set(EXTENDABLE_SETTINGS):
        return False
    for name, (there, here) in changes.items():
        if (there or 0) > 0 and (here or 0) > 0 and here < there:
            raise ConfigError(f"--extend: --{name} {here} is less than the {there} that the run had")
    return True


def _extended(manifest: dict, settings: dict, fingerprint: str) -> dict:
    """The manifest of the longer run, which remembers what it was before."""
    changes = {name: list(values) for name, values in _differing(manifest, settings).items()}
    extensions = [*manifest.get("extensions", []), {"changed": changes, "at": _now()}]
    longer = {"settings": public_settings(settings), "fingerprint": fingerprint, "extensions": extensions}
    return {**manifest, **longer, "status": "running"}


def settings_fingerprint(settings: dict) -> str:
    """SHA-256 of the settings that decide what comes out of a run."""
    kept = {name: value for name, value in public_settings(settings).items() if name not in OPERATIONAL_SETTINGS}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def public_settings(settings: dict) -> dict:
    """The settings as JSON values, without those that hold a secret."""
    return {
        name: _plain(value)
        for name, value in settings.items()
        if not any(name.endswith(word) for word in SECRET_WORDS) and not name.startswith("_")
    }


def new_run_id() -> str:
    """The sweep agent's id if there is one, else eight random characters."""
    return os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)


def default_output_dir(benchmark: str, dataset_name: str, model: str | None, suffix: str = "") -> str:
    """`runs/<benchmark>-<task>-<model>`, and the sweep's run id where an agent set one.

    >>> default_output_dir("glue", "rte", "google/t5-v1_1-small")
    'runs/glue-rte-t5-v1_1-small'
    """
    parts = [benchmark, dataset_name.replace(",", "+"), Path(model).name if model else "tiny"]
    parts += [part for part in (suffix, os.environ.get("WANDB_RUN_ID")) if part]
    return str(Path("runs") / "-".join(parts))


def read_json(path) -> dict:
    """A JSON file's content."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_json(path, value) -> None:
    """Writes JSON through a temporary sibling, so that a reader never sees half a file; NaN is refused."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


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


def _plain(value):
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return str(value)


def _without_secrets(argv) -> list[str]:
    """The command line with the values of secret flags left out."""
    shown, hide = [], False
    for token in map(str, argv):
        flag = token.partition("=")[0]
        secret = flag.startswith("--") and any(flag.endswith(word) for word in SECRET_WORDS)
        shown.append("***" if hide else f"{flag}=***" if secret and "=" in token else token)
        hide = secret and "=" not in token
    return shown


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
