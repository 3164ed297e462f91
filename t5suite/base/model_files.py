"""The small files of a model's folder: JSON tables whose values a model can be made from.

    >>> check_settings({"model_type": "t5", "num_heads": 0}, "t5/config.json")
    ConfigError: t5/config.json: num_heads is 0; give a whole number of at least 1

transformers makes a model of NaN, or of no heads, and fails later or answers nothing; it ignores a broken
`generation_config.json`. What is wrong for every model is refused here by file and key, before weights are read.
"""

import codecs
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.yaml_files import read_json_text

# What transformers reads in a model's folder besides weights and vocabulary; each file is one table.
MODEL_FILES = "config generation_config tokenizer_config special_tokens_map adapter_config".split()
VOCABULARY_FILE = "tokenizer.json"
OTHER_VOCABULARY_FILES = ("spiece.model", "vocab.json", "vocab.txt", "merges.txt")
START_BYTES = 512
# A folder with none of these has no model; a run may have a checkpoint instead.
OF_MODELS = ("config.json", "adapter_config.json", "*.safetensors", "*.bin", "*.pt", "global_step*")
OF_RUNS = (*OF_MODELS, "checkpoint-*")
SETTINGS_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
# Types whose attention puts distances into buckets, and tables in a configuration whose names are not settings.
BUCKETED_TYPES = ("t5", "mt5", "umt5", "longt5")
LARGEST_FLOAT = sys.float_info.max
OTHER_TABLES = ("id2label", "label2id", "task_specific_params", "quantization_config", "auto_map")


class Bounds(NamedTuple):
    """The numbers that a setting may be.

    Attributes:
      least, largest: both included, unless `above` or `below` are set.
      above, below: whether `least` and `largest` themselves are excluded.
      is_count: whether it is a whole number.
    """

    least: float
    largest: float = math.inf
    above: bool = False
    below: bool = False
    is_count: bool = False

    def include(self, value) -> bool:
        """Whether a setting may have this value."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if not -LARGEST_FLOAT <= value <= LARGEST_FLOAT:  # nor NaN; whole numbers in JSON have no limit
            return False
        if self.is_count and value != int(value):
            return False
        return not self._is_too_low(value) and not self._is_too_high(value)

    def _is_too_low(self, value) -> bool:
        if self.above:
            return value <= self.least
        return value < self.least

    def _is_too_high(self, value) -> bool:
        if self.below:
            return value >= self.largest
        return value > self.largest

    def __str__(self) -> str:
        """What would be right.

        >>> str(Bounds(1, is_count=True)), str(Bounds(0, 1, below=True))
        ('a whole number of at least 1', 'a number of at least 0 and below 1')
        """
        kind = "a number"
        if self.is_count:
            kind = "a whole number"
        lower_word = "of at least"
        if self.above:
            lower_word = "above"
        upper_word = "of at most"
        if self.below:
            upper_word = "below"
        text = f"{kind} {lower_word} {self.least:g}"
        if self.largest < math.inf:
            text += f" and {upper_word} {self.largest:g}"
        return text


# Far above any model; torch fails at sizes beyond 2^63 with a trace of its C++.
LARGEST = 10**9
COUNT = Bounds(0, LARGEST, is_count=True)
SIZE = Bounds(1, LARGEST, is_count=True)
DISTANCE = Bounds(1, is_count=True)
SHARE = Bounds(0, 1, below=True)
POSITIVE = Bounds(0, above=True)
NOT_NEGATIVE = Bounds(0)
# By pattern of a name: the first one that fits applies. Null, and a list or table, are for the model's class to judge.
SETTINGS: dict[re.Pattern, Bounds] = {
    re.compile(r"^d_(model|kv|ff|head)$|_heads$|^n_heads?$|(^|_)hidden_size$|^vocab_size$"): SIZE,
    re.compile(r"^(n|num)_.*layers?$|^(en|de)coder_layers$|_attention_num_buckets$"): COUNT,
    re.compile(r"dropout(_rate|_prob)?$|_pdrop$|layerdrop$"): SHARE,
    re.compile(r"(^|_)(eps|epsilon)$"): SHARE,
    re.compile(r"^initializer_(factor|range)$|^init_std$"): NOT_NEGATIVE,
    re.compile(r"_attention_max_distance$"): DISTANCE,
}
GENERATION_SETTINGS: dict[str, Bounds] = {
    "max_length": SIZE,
    "max_new_tokens": SIZE,
    "min_length": COUNT,
    "min_new_tokens": COUNT,
    "num_beams": SIZE,
    "num_beam_groups": SIZE,
    "num_return_sequences": SIZE,
    "no_repeat_ngram_size": COUNT,
    "temperature": NOT_NEGATIVE,
    "top_k": NOT_NEGATIVE,
    "top_p": Bounds(0, 1),
    "repetition_penalty": POSITIVE,
    "length_penalty": Bounds(-math.inf),
}
LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias")
# Pairs of generation settings of which the second is at least the first.
ORDERED = (("min_length", "max_length"), ("min_new_tokens", "max_new_tokens"))
SWITCHES = ("tie_word_embeddings", "is_encoder_decoder", "is_decoder", "is_gated_act", "use_cache", "do_sample")
DTYPES = ("dtype", "torch_dtype")
FLOAT_TYPE = re.compile(r"(torch\.)?(auto|b?float(8\w*|16|32|64)?|half|double)")
SPECIAL_ID = re.compile(r"_token_id$")
LISTS_OF_IDS = ("suppress_tokens", "begin_suppress_tokens")


def check_model_files(flag: str, name: str) -> None:
    """Rejects small files of a model's folder (or a lone configuration) at which transformers 5.23 crashes, or which
    it ignores silently, as it does a broken `generation_config.json`.

    Raises:
      ConfigError: not JSON, not a table, or a setting that no model can have; names the file.
    """
    path = Path(name)
    if path.suffix == ".json":
        _check_model_file(flag, name, path, is_configuration=True)
        return
    _check_vocabulary(flag, path)
    for part in MODEL_FILES:
        file = path / f"{part}.json"
        _check_model_file(flag, name, file, is_configuration=file.name == SETTINGS_FILE)


def _check_vocabulary(flag: str, folder: Path) -> None:
    """Refuses vocabularies that only stand in for files; all but the first are read only where that is not there."""
    if check_is_the_file(flag, folder / VOCABULARY_FILE):
        return
    for part in OTHER_VOCABULARY_FILES:
        check_is_the_file(flag, folder / part)


def _check_model_file(flag: str, name: str, file: Path, is_configuration: bool) -> None:
    """Refuses a file of JSON as `check_model_files` does; one that is not there is allowed."""
    if not check_is_the_file(flag, file):
        return
    place = f"{flag}: {file}"
    settings = read_json_text(_utf8(file, place), file)
    if not isinstance(settings, dict):
        raise ConfigError(f"{flag} {name}: {file} holds a {type(settings).__name__}, not a table of settings")
    if is_configuration:
        check_settings(settings, place)
    if file.name == GENERATION_FILE:
        check_generation_settings(settings, place)


def check_has_model(flag: str, folder: str, of_run: bool = False) -> None:
    """Refuses a folder without a model, and names the ones below it.

    Args:
      of_run: a checkpoint in it is enough.

    Raises:
      ConfigError: there is neither a configuration nor a file of weights, or it is a file itself.
    """
    if not os.path.isdir(folder):
        raise ConfigError(f"{flag} {folder}: a file; name the folder of the model")
    patterns = OF_MODELS
    missing_parts = "no config.json, no weights"
    if of_run:
        patterns = OF_RUNS
        missing_parts += ", no checkpoint-N"
    for pattern in patterns:
        if any(Path(folder).glob(pattern)):
            return
    message = f"{flag} {folder}: no model in this folder: {missing_parts}"
    models_below = _models_below(folder)
    if models_below:
        message += f"; there are {', '.join(models_below[:5])}"
    raise ConfigError(message)


def _models_below(folder: str) -> list[str]:
    """The folders directly in a folder that have a model's configuration."""
    folders = []
    for file in OF_MODELS[:2]:
        folders += [str(path.parent) for path in Path(folder).glob(f"*/{file}")]
    return sorted(folders)


def check_is_the_file(flag: str, file: Path, error: type[UserError] = ConfigError) -> bool:
    """Whether there is such a file; raises `error` for a folder, a broken link, or something that only stands in for
    it."""
    if not os.path.isfile(file):  # unlike Path.is_file, it does not fail for a name that is too long
        if os.path.islink(file):
            raise error(f"{flag}: {file} is a link to {os.readlink(file)!r}, where there is no file")
        if os.path.isdir(file):
            raise error(f"{flag}: {file} is a folder, and a file is needed")
        return False
    with file.open("rb") as opened:
        stand_in = kind_of_stand_in(opened.read(START_BYTES))
    if stand_in:
        raise error(f"{flag}: {file} is {stand_in}")
    return True


def _utf8(file: Path, place: str) -> bytes:
    """A file's content, which transformers reads as UTF-8 without a mark at its beginning."""
    content = file.read_bytes()
    if content.startswith(codecs.BOM_UTF8):
        form = "UTF-8 with a byte order mark"
    elif content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        form = "UTF-16"
    else:
        return content
    raise ConfigError(f"{place} is {form}, which transformers does not read; save it as plain UTF-8")


def kind_of_stand_in(content: bytes) -> str | None:
    """What a file's first bytes are if it only stands in for the real one: nothing, Git LFS's pointer, a web page.

    >>> kind_of_stand_in(b"version https://git-lfs.github.com/spec/v1")[:21]
    "Git LFS's pointer to "
    """
    start = content[:START_BYTES].lstrip().lower()
    if not content:
        return "empty; download it again"
    if start.startswith(b"version https://git-lfs"):
        return (
            "Git LFS's pointer to a file, not the file: run `git lfs pull` in the repository, or download it with "
            "`hf download`"
        )
    if start.startswith((b"<!doctype", b"<html")):
        return "a web page (HTML), saved in place of the file: download it again, with `hf download`"
    return None


def table_or_empty(file: Path) -> dict:
    """The table in a small file of JSON; empty if there is none, or none that can be read: whoever needs it says so."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(content, dict):
        return content
    return {}


def check_settings(settings: Mapping, place: str) -> None:
    """Refuses a configuration that no model can be made from, or only one that computes nothing.

    Args:
      settings: a table as stored in `config.json`.
      place: where it is from, for messages.

    Raises:
      ConfigError: NaN, an infinite number, a size of 0, a dropout of 2 and the like; names the key.
    """
    _check_tables(settings, place)
    for key, value in flat_values(settings):
        _check_value(key, value, place)
    if settings.get("model_type") in BUCKETED_TYPES:
        _check_distances(settings, place)
    check_generation_settings(settings, place, also_ids=False)


def _check_tables(settings: Mapping, place: str) -> None:
    """Refuses tables and lists of another form: labels, architectures and the like."""
    for key in OTHER_TABLES:
        if not isinstance(settings.get(key), (Mapping, type(None))):
            raise ConfigError(f"{place}: {key} is {settings[key]!r:.60}; give a table, or remove it")
    for number in settings.get("id2label") or ():
        if not str(number).lstrip("-").isdecimal():
            raise ConfigError(f"{place}: id2label has the key {number!r:.60}; give whole numbers")
    architectures = settings.get("architectures")
    is_list = isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)
    if architectures is not None and not is_list:
        raise ConfigError(f"{place}: architectures is {architectures!r:.60}; give a list of names")


def _check_value(key: str, value, place: str) -> None:
    """Refuses a setting that no model can have; `key` may be that of an inner table, `encoder.num_heads`."""
    name = key.rpartition(".")[2]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{place}: {key} is {value}, which is not a finite number")
    if name in SWITCHES and not isinstance(value, (bool, type(None))):
        raise ConfigError(f"{place}: {key} is {value!r:.60}; give true or false")
    is_named_dtype = name in DTYPES and isinstance(value, str)
    if is_named_dtype and not FLOAT_TYPE.fullmatch(value):
        raise ConfigError(f"{place}: {key} is {value!r:.60}; give a type of numbers, such as float32 or bfloat16")
    _check_number(_bounds_of(name), key, value, place)


def check_generation_settings(settings: Mapping, place: str, also_ids: bool = True) -> None:
    """Refuses settings that `generate` fails at or that contradict each other; `settings` as in
    `generation_config.json`.

    Raises:
      ConfigError: names the key.
    """
    for key, bounds in GENERATION_SETTINGS.items():
        value = settings.get(key)
        if isinstance(value, (str, bool, list, dict)):
            raise ConfigError(f"{place}: {key} is {value!r:.60}, not a number")
        _check_number(bounds, key, value, place)
    for key in LISTS:
        if isinstance(settings.get(key), (str, int, float)):
            raise ConfigError(f"{place}: {key} is {settings[key]!r:.60}; give a list")
    _check_order(settings, place)
    if also_ids:
        for key in filter(SPECIAL_ID.search, settings):
            _check_special_id(key, settings[key], place)


def _check_order(settings: Mapping, place: str) -> None:
    for lower_key, upper_key in ORDERED:
        lower = settings.get(lower_key)
        upper = settings.get(upper_key)
        if lower is None or upper is None:
            continue
        if lower > upper:
            raise ConfigError(f"{place}: {lower_key} is {lower}, above {upper_key}, {upper}")


def _check_special_id(key: str, value, place: str) -> None:
    """Refuses what is no token's id; only the end of a sequence may have several."""
    numbers = [value]
    if key == "eos_token_id" and isinstance(value, list):
        numbers = value
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, type(None))):
            raise ConfigError(f"{place}: {key} is {value!r:.60}, not a number")


def special_token_ids(settings: Mapping) -> Iterator[tuple[str, int]]:
    """The ids of tokens that settings name: `("eos_token_id", 1)`; of a list, each."""
    for key, value in settings.items():
        names_tokens = SPECIAL_ID.search(key) or key in LISTS_OF_IDS
        if not names_tokens:
            continue
        numbers = [value]
        if isinstance(value, list):
            numbers = value
        for number in numbers:
            if isinstance(number, int) and not isinstance(number, bool):
                yield key, number


def check_special_ids(settings: Mapping, num_rows: int, place: str) -> None:
    """Refuses ids of special tokens for which a model has no embedding; -1 stands for no token.

    Raises:
      ConfigError: names the key.
    """
    for key, number in special_token_ids(settings):
        has_embedding = 0 <= number < num_rows
        means_no_token = number == -1 and key != "decoder_start_token_id"
        if not has_embedding and not means_no_token:
            raise ConfigError(
                f"{place}: {key} is {number}, and the model has embeddings for the ids 0 to {num_rows - 1}"
            )


def flat_values(settings: Mapping, above: str = "") -> Iterator[tuple[str, object]]:
    """Every value in a table and the tables in it, `encoder.num_heads` for those in a table `encoder`."""
    for key, value in settings.items():
        if key in OTHER_TABLES:
            continue
        if isinstance(value, Mapping):
            yield from flat_values(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _bounds_of(name: str) -> Bounds | None:
    for pattern, bounds in SETTINGS.items():
        if pattern.search(name):
            return bounds
    return None


def _check_number(bounds: Bounds | None, key: str, value, place: str) -> None:
    if bounds is None or isinstance(value, (bool, list, type(None))):
        return
    if not bounds.include(value):
        raise ConfigError(f"{place}: {key} is {value!r:.60}; give {bounds}")


def _check_distances(settings: Mapping, place: str) -> None:
    """T5's buckets: half of them are for distances of their own, the others reach to the largest distance."""
    buckets = settings.get("relative_attention_num_buckets", 32)
    distance = settings.get("relative_attention_max_distance", 128)
    if buckets < 4:
        raise ConfigError(f"{place}: relative_attention_num_buckets is {buckets}; give a whole number of at least 4")
    if distance <= buckets // 2:
        raise ConfigError(
            f"{place}: relative_attention_max_distance is {distance}; give one above half of "
            f"relative_attention_num_buckets, {buckets // 2}"
        )
