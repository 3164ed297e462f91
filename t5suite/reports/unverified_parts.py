"""What a verification does not show of a run: what nobody but its author has, and what no hash was recorded of.

>>> unverified_parts(read_record("runs/reviews"), rows)
["where the rows of reviews come from (they are the author's own)", 'how the weights were trained']
"""

from collections.abc import Mapping
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.base.files import read_json
from t5suite.reports.recorded_rows import RecordedRows
from t5suite.reports.run_records import RecordedSplit, RunRecord
from t5suite.runs.directory import BASE_FOLDER, base_kept_by_run
from t5suite.runs.public_record import RECORD_HASH


def unverified_parts(record: RunRecord, rows: Mapping[str, RecordedRows], data_dir: str | None = None) -> list[str]:
    """The parts, in words.

    Args:
      rows: those of each split.
      data_dir: where the verifier's own copies of rows are.
    """
    rows_in_words = [unverified_rows(record, split, rows[split.name], data_dir) for split in record.splits]
    parts = [*filter(None, rows_in_words), *parts_without_hashes(record), *base_of_adapter(record)]
    if record.settings.get("teacher") or "training" in record.manifest:
        parts.append("how the weights were trained")
    callbacks = (record.settings.get("plug_ins") or {}).get("callbacks", ())
    return parts + [f"what the callback {callback['name']} did (it was not run)" for callback in callbacks]


def unverified_rows(record: RunRecord, split: RecordedSplit, rows: RecordedRows, data_dir: str | None) -> str:
    """Where the rows of a split come from, if only their author has them; else an empty text."""
    if record.has_own_rows(split):
        return f"where the rows of {split.name} come from (they are the author's own)"
    folder = record.settings.get("data_dir")
    are_of_verifier = bool(data_dir) and rows.data_dir == data_dir
    if are_of_verifier or not folder or not is_folder_here(record, folder):
        return ""
    return f"where the rows of {split.name} come from (a folder that the record names, {folder})"


def is_folder_here(record: RunRecord, name: str) -> bool:
    """Whether a folder of the run is there, from here or from where the run was started."""
    started = record.manifest.get("working_directory") or "."
    return any(Path(start, name).is_dir() for start in (".", started))


def parts_without_hashes(record: RunRecord) -> list[str]:
    """What the run has recorded no hash of, as those of earlier versions."""
    parts = []
    if record.manifest.get("files") is None:
        parts.append("the files (no hashes were recorded)")
    if record.manifest.get(RECORD_HASH) is None:
        parts.append("the manifest (no hash was recorded)")
    if record.model_folder is not None and record.manifest.get("model_files") is None:
        parts.append(f"the weights of {record.model_folder} (no hashes were recorded)")
    return parts


def base_of_adapter(record: RunRecord) -> list[str]:
    """The weights under an adapter, if they are in a folder; those of the hub are known by their commit."""
    config_file = (record.model_folder or record.folder) / "adapter_config.json"
    if not config_file.is_file():
        return []
    base = record.settings.get("adapter_base") or base_in_config(config_file)
    if not isinstance(base, str) or not is_folder_here(record, base) or has_hashes_of_base(record, base):
        return []
    return [f"the weights of {base}, the adapter's base (no hashes were recorded)"]


def has_hashes_of_base(record: RunRecord, base: str) -> bool:
    """Whether an adapter's base is the one that the run keeps beside it, with the hashes of its files."""
    is_beside = Path(base).absolute() == (record.folder / BASE_FOLDER).absolute()
    return is_beside and any(name.startswith(f"{BASE_FOLDER}/") for name in record.manifest.get("files") or ())


def base_in_config(config_file: Path):
    """What `adapter_config.json` names as the base of an adapter, or the folder of the base that its run keeps.

    Raises:
      DataError: it is no table.
    """
    config = read_json(config_file)
    if not isinstance(config, dict):
        raise DataError(f"{config_file}: a {type(config).__name__}, not a table of settings")
    name = config.get("base_model_name_or_path")
    if name == BASE_FOLDER:
        return str(base_kept_by_run(config_file.parent) or name)
    return name
