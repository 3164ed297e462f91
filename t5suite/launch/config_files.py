"""Files of flags: YAML or JSON, a shipped recipe, or JSON on the command line.

>>> read_config("recipes/mini.yaml", flags_of("fine_tune_t5"))
{'benchmark': ('recipes/mini.yaml:6', 'mini'), 'dataset_name': ('recipes/mini.yaml:7', 'sentiment'), ...}
"""

import os
from collections.abc import Iterable

from t5suite.base.errors import ConfigError
from t5suite.base.file_names import FORMATS_BY_SUFFIX, unpacked_suffix
from t5suite.base.files import own_or_shipped
from t5suite.base.yaml_files import read_json_text, read_yaml
from t5suite.launch.flag_problems import MOST_UNKNOWN_FLAGS, check_is_filled, unknown_flag


def read_config(source: str, names: Iterable[str]) -> dict[str, tuple[str, object]]:
    """`{flag: (its location, value)}` of a file or shipped recipe, or of JSON on the command line.

    Raises:
      ConfigError: no such file, not flags with values, an unknown or duplicate flag.
    """
    path, content, lines = config_content(source)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected flag: value lines, found {type(content).__name__}")
    flags: dict[str, tuple[str, object]] = {}
    problems = []
    for key, value in content.items():
        line = lines.get((str(key),))
        place = str(path)
        if line is not None:
            place += f":{line}"
        name = str(key).replace("-", "_")
        if name not in names:
            problems.append(f"{place}: {unknown_flag(name, names)}")
        if name in flags:
            raise ConfigError(f"{place}: {key!r} gives --{name} for the second time")
        check_is_filled(name, value, f"{place}: ")
        flags[name] = (place, value)
    if problems:
        raise ConfigError("\n".join(problems[:MOST_UNKNOWN_FLAGS]))
    return flags


def config_content(source: str) -> tuple:
    """`(its name, content, lines)` of a file or shipped recipe, or of JSON on the command line."""
    if source.lstrip().startswith("{"):
        place = "the JSON on the command line"
        return place, read_json_text(source, place), {}
    check_is_no_data(source)
    if source.endswith(".toml"):
        raise ConfigError(f"--config: {source!r} is TOML, which is not read; write YAML or JSON, as max_steps: 100")
    if os.path.isdir(source):
        raise ConfigError(f"--config: {source!r} is a folder; name a YAML file")
    path = own_or_shipped(source, "recipes", "--config: no file")
    if path.suffix == ".json":  # YAML would read 1e-05 as text
        return path, read_json_text(path.read_bytes(), path), {}
    return path, *read_yaml(path)


def format_of_rows(name: str) -> str | None:
    """The `--data_format` of a file of rows by its name; None for another one, and for `.json`, which may hold flags.

    >>> format_of_rows("reviews.csv.gz"), format_of_rows("run.yaml")
    ('csv', None)
    """
    suffix = unpacked_suffix(name)
    if suffix == ".json":
        return None
    return FORMATS_BY_SUFFIX.get(suffix)


def check_is_no_data(source: str) -> None:
    """Refuses a file of rows or of text where a file of flags is expected.

    Raises:
      ConfigError: it is one, by its name; the message has the flags that read it.
    """
    data_format = format_of_rows(source)
    if data_format is None:
        return
    flags = f"--train_file {source}"
    if data_format != "text":
        flags = f"--data_format {data_format} --train_file {source} (fine_tune)"
    raise ConfigError(f"{source} holds rows, and the first word names a YAML file of flags; give it by {flags}")
