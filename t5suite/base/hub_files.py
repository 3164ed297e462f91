"""Files of a model on the hub: downloaded first, each with retries, and then read from the local cache alone.

    >>> options = local_options("google/t5-v1_1-small", with_weights=True)
    >>> options
    {'revision': '4e79f2ee4c5b3d5e1d7c0e8a7a0f1d0a6a1b7c33', 'local_files_only': True}
    >>> T5ForConditionalGeneration.from_pretrained("google/t5-v1_1-small", **options)

transformers 5.24 asks for a model's files one by one, and takes one that the hub fails to give for one that the
repository does not have: it makes an empty tokenizer, or generates with other settings. Here the hub's list of the
commit says which files there are, and a file of the list that does not come is an error with its cause.
"""

import fnmatch
import logging
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.base.hub import prepare_hub
from t5suite.base.hub_commits import commit_to_read, hub_reads, revision_of
from t5suite.base.hub_failures import Reading, read_from_hub
from t5suite.base.lookup import listed
from t5suite.base.model_files import table_or_empty

logger = logging.getLogger(__name__)

LIST_SECONDS = 30
CONFIG, ADAPTER = "config.json", "adapter_config.json"
# In the order in which transformers prefers them; an index names the files of its shards.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# Vocabularies are downloaded last: where one is in the cache, so are the settings beside it.
VOCABULARIES = (
    "*vocab*", "merges*", "dict*", "*.model", "*.spm", "*.tiktoken", "*.bpe", "*.codes", "tokenizer.json",
)  # fmt: skip
SETTINGS = ("*.json", "*.jinja", "*.txt", "tokenizer*", "special_tokens*")
CODE = ("*.py",)


def local_options(
    name: str, revision: str | None = None, *, with_weights: bool = False, trust_remote_code: bool = False
) -> dict:
    """The options of `from_pretrained` that read a model, or its settings and tokenizer, from what is downloaded here.

    Args:
      name: a repository; a local folder has nothing to download.
      revision: as `hub_commits.commit_to_read` takes it.
      trust_remote_code: code may name files of other repositories, so transformers may ask the hub for more.

    Raises:
      UserError: as `hub_failures.read_from_hub`; the repository has no weights, or is an adapter.
    """
    commit = commit_to_read("model", name, revision)
    if commit is None:
        return {"revision": revision_of(revision, name)}
    if prepare_hub():
        fetch_model(name, commit, with_weights)
    if trust_remote_code:
        return {"revision": commit}
    return {"revision": commit, "local_files_only": True}


def file_of_model(name: str, file: str, revision: str | None = None) -> Path | None:
    """A small file beside a model's weights, in its folder or as its repository has it; None if it has none.

    >>> file_of_model("ada/mini", "task.json")
    PosixPath('/home/ada/.cache/huggingface/hub/models--ada--mini/snapshots/4e79f2.../task.json')

    Args, raises: as `local_options`.
    """
    commit = commit_to_read("model", name, revision)
    if commit is None:
        path = Path(name) / file
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    if prepare_hub():
        fetch_model(name, commit, with_weights=False)
    cached = try_to_load_from_cache(name, file, revision=commit)
    return Path(cached) if isinstance(cached, str) else None


def fetch_model(name: str, commit: str, with_weights: bool) -> None:
    """Downloads settings, tokenizer and code of a model, and its weights, into the cache of the hub's client.

    What is in the cache is not downloaded again. If the hub fails and the cache has what is needed, that is used, with
    a warning.
    """
    fetched = hub_reads().fetched
    if (name, commit, with_weights) in fetched or (name, commit, True) in fetched:
        return
    try:
        _fetch(name, commit, with_weights)
    except UserError as error:
        if getattr(error, "failure", None) is None or not _is_cached(name, commit, with_weights):
            raise
        logger.warning("%s; the copy in the local cache is read", error)
    fetched.add((name, commit, with_weights))


def _fetch(name: str, commit: str, with_weights: bool) -> None:
    files = list_files(name, commit)
    if ADAPTER in files and CONFIG not in files:
        raise ConfigError(
            f"{name} is an adapter, which is read from a folder: hf download {name} --local-dir DIR, and give DIR"
        )
    for file in _small_files(files):
        download_file(name, commit, file)
    if with_weights:
        for file in weight_files(name, commit, files):
            download_file(name, commit, file)


def list_files(name: str, commit: str) -> list[str]:
    """The paths of all files of a commit."""
    from huggingface_hub import HfApi

    def ask() -> list[str]:
        info = HfApi().model_info(name, revision=commit, timeout=LIST_SECONDS)
        return [file.rfilename for file in info.siblings or ()]

    return read_from_hub(Reading("model", name, commit, "its list of files"), ask)


def download_file(name: str, commit: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download

    reading = Reading("model", name, commit, file)
    path = read_from_hub(reading, lambda: hf_hub_download(name, file, revision=commit))
    return Path(path)


def _small_files(files: list[str]) -> list[str]:
    """Settings, templates and code, then vocabularies."""
    settings = []
    vocabularies = []
    for file in files:
        is_template = fnmatch.fnmatch(file, "additional_chat_templates/*.jinja")
        if "/" in file and not is_template:
            continue
        if _matches(file, VOCABULARIES):
            vocabularies.append(file)
        elif _matches(file, (*SETTINGS, *CODE)):
            settings.append(file)
    return [*settings, *vocabularies]


def _matches(file: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)


def weight_files(name: str, commit: str, files: list[str]) -> list[str]:
    """The files of the weights that transformers will load.

    Raises:
      ConfigError: there are none.
      DataError: an index names a file that the repository does not have.
    """
    chosen = _preferred_weights(name, commit, files)
    if chosen is None:
        forms = [file for file in files if "/" not in file and not _matches(file, (*SETTINGS, *CODE, *VOCABULARIES))]
        raise ConfigError(
            f"--model_name_or_path: {name} has no weights that PyTorch reads (model.safetensors, pytorch_model.bin); "
            f"it has {listed(forms) or 'none at all'}"
        )
    if not chosen.endswith(".index.json"):
        return [chosen]
    index = table_or_empty(download_file(name, commit, chosen))
    shards = sorted(set(index.get("weight_map", {}).values()))
    for shard in shards:
        if shard not in files:
            raise DataError(f"{name}: {chosen} names {shard}, which the repository does not have")
    return [chosen, *shards]


def _preferred_weights(name: str, commit: str, files: list[str]) -> str | None:
    """The file that transformers takes, of weights or of their index; None if there is none."""
    candidates = list(WEIGHTS)
    if CONFIG in files:
        settings = table_or_empty(download_file(name, commit, CONFIG))
        candidates.insert(0, settings.get("transformers_weights"))
    for candidate in candidates:
        if candidate in files:
            return candidate
    return None


def _is_cached(name: str, commit: str, with_weights: bool) -> bool:
    """Whether an earlier start has downloaded what is needed: weights come last, and vocabularies before them."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, CONFIG, revision=commit)
    if not isinstance(config, str):
        return False
    folder = Path(config).parent
    files = [file.name for file in folder.iterdir()]
    if with_weights:
        return _has_weights(folder, files)
    return any(file in WEIGHTS or _matches(file, VOCABULARIES) for file in files)


def _has_weights(folder: Path, files: list[str]) -> bool:
    """Whether one of a folder's files holds weights, or names shards that are all there."""
    chosen = next((file for file in WEIGHTS if file in files), None)
    if chosen is None:
        return False
    if not chosen.endswith(".json"):
        return True
    shards = table_or_empty(folder / chosen).get("weight_map", {})
    return all((folder / shard).is_file() for shard in set(shards.values()))
