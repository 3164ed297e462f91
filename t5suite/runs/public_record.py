"""A run's manifest as others may read it: what verification needs, without folders of the author's machine.

>>> public_manifest({"working_directory": "/home/ada", "settings": {"data_dir": "/home/ada/data"}})
{'settings': {'data_dir': '…/data'}}
"""

import hashlib
import json
from collections.abc import Iterable, Mapping

from t5suite.base.redaction import without_folders

# Not public: the author's folders and job, every package that is installed, changes of the code, earlier starts.
PRIVATE_KEYS = (
    "command", "working_directory", "packages", "code_changes", "asked", "restarts", "changes", "ended", "slurm_job",
    "slurm_restarts",
)  # fmt: skip
# The hash of the record, and what is not of the run itself: which files an upload leaves out, when the run ended.
RECORD_HASH = "record_sha256"
NOT_OF_THE_RECORD = (RECORD_HASH, "withheld", "status", "finished")
# Entries that hold places; texts of tasks may look like paths, and stay.
KEYS_WITH_PLACES = ("settings", "data", "weights_trained_on", "title", "hub", "model", "teacher")


def public_manifest(manifest: Mapping, withheld: Iterable[str] = ()) -> dict:
    """The manifest that is uploaded.

    Args:
      withheld: files with a hash in the manifest that are not uploaded.
    """
    public = {}
    for key, value in manifest.items():
        if key in PRIVATE_KEYS:
            continue
        public[key] = without_places(value) if key in KEYS_WITH_PLACES else value
    names = sorted(withheld)
    return {**public, "withheld": names} if names else public


def record_sha256(manifest: Mapping) -> str:
    """A hash of all that a manifest says publicly, hashes of files included: the same before and after an upload.

    Args:
      manifest: as it was read from its file.
    """
    public = public_manifest(manifest)
    record = {key: value for key, value in public.items() if key not in NOT_OF_THE_RECORD}
    text = json.dumps(record, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def without_places(value):
    """A value of the manifest, every path in it that leads out of the working directory reduced to its last name."""
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, Mapping):
        return {without_folders(key): without_places(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_places(part) for part in value]
    return value
