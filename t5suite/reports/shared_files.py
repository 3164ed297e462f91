"""The files by which others can check a run: their hashes, and which of them hold the author's own rows.

>>> hashes_of_run("runs/mini-sentiment")["results.json"]
'5e0c1f...'
>>> has_own_rows(load_task("glue", "rte"), "validation", {"data_dir": "data"})
False

`README.md` is left out of the hashes: people add to it. `t5suite verify` compares its scores instead.
"""

from collections.abc import Sequence
from pathlib import Path

from t5suite.base.files import file_sha256
from t5suite.base.hub_statements import CARD
from t5suite.constants import DATASET_VALS
from t5suite.data.corpora.sources import STREAMED_BY_DEFAULT, hub_arguments, is_hub_name
from t5suite.runs.directory import BASE_FOLDER, MANIFEST, RESULTS
from t5suite.tasks.registry import Task
from t5suite.tasks.task_card import TASK_CARD

PREDICTIONS = "predictions"
ROWS = "rows"
# What answers: weights, configuration, tokenizer.
FILES_OF_MODEL = (
    "*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "config.json", "generation_config.json",
    "adapter_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt",
    "*.model",
)  # fmt: skip
# What a run's answers come from, its tasks, and what is said of them.
HASHED = (
    *FILES_OF_MODEL, TASK_CARD, RESULTS, f"{PREDICTIONS}/*.jsonl", f"{ROWS}/*.jsonl", "best/*/*.safetensors",
    f"{BASE_FOLDER}/*.safetensors", f"{BASE_FOLDER}/*.safetensors.index.json",
    f"{BASE_FOLDER}/config.json", f"{BASE_FOLDER}/generation_config.json",
)  # fmt: skip
# Where an upload may leave files of the record out.
FOLDERS_WITHHELD = (f"{PREDICTIONS}/", f"{ROWS}/", "best/")
# What verification reads of a run on the hub, besides what it can do without.
FILES_TO_VERIFY = (MANIFEST, *HASHED, CARD)


def hashes_of_run(directory, patterns: Sequence[str] = HASHED) -> dict[str, str]:
    """The SHA-256 of each file that verification reads, by its path in the run's directory.

    Args:
      patterns: of other files, such as `FILES_OF_MODEL`.
    """
    return {name: file_sha256(Path(directory, name)) for name in files_of_record(directory, patterns)}


def files_of_record(directory, patterns: Sequence[str] = HASHED) -> list[str]:
    """The files that verification reads, by their paths in the run's directory; code is none of them."""
    directory = Path(directory)
    paths = {path for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
    return [path.relative_to(directory).as_posix() for path in sorted(paths) if path.suffix != ".py"]


def has_own_rows(task: Task, role: str, settings: dict) -> bool:
    """Whether a split's rows are the author's own: all but what the sources of the suite's benchmarks have.

    Args:
      role: 'validation' or 'test'.
      settings: the run's flags by name.
    """
    is_shipped = task.name in DATASET_VALS.get(task.benchmark, {})
    has_own_source = settings.get(f"{role}_file") or settings.get("data_format")
    return not is_shipped or bool(has_own_source)


def has_public_text(settings: dict) -> bool:
    """Whether the held-out text of pre-training is the bundled one or C4's; a data set of the hub may be private.

    >>> has_public_text({"train_file": ["hub:allenai/c4:en:train"]}), has_public_text({"train_file": ["hub:ada/notes"]})
    (True, False)

    Args:
      settings: the run's flags by name.
    """
    names = settings.get("validation_file") or settings.get("train_corpus") or settings.get("train_file") or []
    return all(_is_public(name) for name in names)


def _is_public(text: str) -> bool:
    if not is_hub_name(text):
        return False
    path = hub_arguments(text)["path"]
    return path == hub_arguments(STREAMED_BY_DEFAULT)["path"] and not Path(path).exists()
