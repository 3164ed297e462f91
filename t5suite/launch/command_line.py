"""The words of an entry script's command line, read and checked by the table of flags, before torch is loaded.

    >>> asked_for("fine_tune_t5", ["mini.yaml", "--seed=7"])
    {'benchmark': 'mini', 'dataset_name': 'sentiment', ..., 'seed': '7'}
    >>> asked_for("fine_tune_t5", ["--lr", "1e-3"])
    ConfigError: unknown flag --lr; here it is --learning_rate

The parser of the dataclasses (`t5suite.training.flags.parser`) reads words and files by the same functions.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import own_or_shipped
from t5suite.base.lookup import in_plain_words, suggestion
from t5suite.base.script_flags import BOOLEAN_WORDS, FITS, bounds_problem, flag_table, flags_of
from t5suite.base.yaml_files import read_json_text, read_yaml

ASSIGNMENT = re.compile(r"\+{0,2}([A-Za-z_][A-Za-z0-9_-]*)=")
# `optim.name=adamw`: a setting of another program (Hydra's form).
DOTTED_ASSIGNMENT = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=.*")

MOST_UNKNOWN_FLAGS = 20


def asked_for(script: str, argv: list[str]) -> dict[str, object]:
    """`{flag: value}` of a command's files and words; a file's values unchanged, the others as text.

    Raises:
      ConfigError: an unknown flag; a value that is not among a flag's choices, not a number or out of bounds; a flag
        that is given twice.
    """
    flags = flags_of(script)
    files, given = read_words(argv, options_of(flags))
    found = {name: value for source in files for name, (_, value) in read_config(source, flags).items()}
    for name, (flag, words) in given.items():
        problem = _problem(name, flags[name], flag, words)
        if problem:
            raise ConfigError(in_plain_words(problem))
        found[name] = words if len(words) > 1 else words[0] if words else flag == f"--{name}"
    return found


def options_of(flags: Mapping[str, dict]) -> dict[str, tuple]:
    """`{option: (flag, argparse's nargs)}` of entries of the table, as `HfArgumentParser` has them.

    >>> options_of(flags_of("fine_tune_t5"))["--no_eval_loss"]
    ('eval_loss', 0)
    """
    found = {}
    for name, entry in flags.items():
        alone = "?" if entry["type"] == "bool" and "default" in entry else entry.get("nargs")
        found[f"--{name}"] = name, "+" if entry["list"] else alone
        if entry["default_true"]:
            found[f"--no_{name}"] = name, 0
    return found


def read_words(argv: list[str], options: Mapping[str, tuple]) -> tuple[list[str], dict[str, tuple[str, list[str]]]]:
    """`(files, {name: (flag, its words)})`: YAML or JSON files and JSON texts, in order, and the flags.

    A word `name=value`, `+name=value` or `++name=value` is a flag, unless a flag before it takes it as its value.

    Args:
      options: as `options_of` returns them.

    Raises:
      ConfigError: unknown flags, all of them; `--config` without a file; a flag that is given twice, with different
        values.
    """
    check_is_text(argv)
    files, given, unknown, i = [], {}, [], 0
    names = {name for name, _ in options.values()}
    while i < len(argv):
        word, i = argv[i], i + 1
        assigned, dotted = ASSIGNMENT.match(word), DOTTED_ASSIGNMENT.fullmatch(word)
        if dotted and not Path(word).exists():
            unknown.append(dotted[1])
            continue
        if assigned and f"--{assigned[1]}" in options:
            word = f"--{word.lstrip('+')}"
        flag, equals, value = word.partition("=")
        flag = flag[:2] + flag[2:].replace("-", "_")
        if flag == "--config":
            if not equals and i == len(argv):
                raise ConfigError("--config: give a YAML file")
            files.append(value if equals else argv[i])
            i += not equals
        elif word.startswith("-"):
            if not word.startswith("--") and f"--{flag.lstrip('-')}" in options:
                raise ConfigError(f"{word}: a flag has two dashes: --{word.lstrip('-')}")
            if flag not in options:
                unknown.append(flag.lstrip("-"))
                i += 0 if equals else _num_values("+", argv[i:])
                continue
            name, nargs = options[flag]
            count = 0 if equals else _num_values(nargs, argv[i:])
            words = [value] if equals else argv[i : i + count]
            i += count
            check_is_filled(name, words[0] if words else None)
            first = given.setdefault(name, (flag, words))
            texts = [" ".join(words or [flag]) for flag, words in (first, (flag, words))]
            if texts[0] != texts[1]:  # argparse would take the last of two values
                raise ConfigError(f"--{name} is given twice: {' and '.join(texts)}")
        elif word.startswith("{") or not given:
            files.append(word)
        elif not unknown:
            raise ConfigError(f"unexpected {word!r:.200}; flags start with --, and a YAML file must come first")
    if unknown:
        raise ConfigError(unknown_flags(unknown, names))
    return files, given


def _num_values(nargs, rest: list[str]) -> int:
    """How many of the words after a flag are its values."""
    num_words = next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))
    if nargs == "+":
        return num_words
    if nargs == 0 or (nargs == "?" and num_words and rest[0].lower() not in (*BOOLEAN_WORDS, "none")):
        return 0
    return min(num_words, 1)


def read_config(source: str, names: Iterable[str]) -> dict[str, tuple[str, object]]:
    """`{flag: (its location, value)}` of a file or shipped recipe, or of JSON on the command line.

    Raises:
      ConfigError: no such file, not flags with values, an unknown or duplicate flag.
    """
    path, content, lines = config_content(source)
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected flag: value lines, found {type(content).__name__}")
    found, problems = {}, []
    for key, value in content.items():
        place = f"{path}:{lines[(str(key),)]}" if (str(key),) in lines else str(path)
        name = str(key).replace("-", "_")
        if name not in names:
            problems.append(f"{place}: {unknown_flag(name, names)}")
        if name in found:
            raise ConfigError(f"{place}: {key!r} gives --{name} for the second time")
        check_is_filled(name, value, f"{place}: ")
        found[name] = place, value
    if problems:
        raise ConfigError("\n".join(problems[:MOST_UNKNOWN_FLAGS]))
    return found


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


def check_is_no_data(source: str) -> None:
    """Refuses a file of rows or of text where a file of flags is expected.

    Raises:
      ConfigError: it is one, by its name; the message has the flags that read it.
    """
    name = source
    for ending in (".gz", ".zst"):
        name = name.removesuffix(ending)
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix not in DATA_SUFFIXES:
        return
    form = DATA_SUFFIXES[suffix]
    flags = f"--data_format {form} --train_file {source} (fine_tune)" if form != "text" else f"--train_file {source}"
    raise ConfigError(f"{source} holds rows, and the first word names a YAML file of flags; give it by {flags}")


# Names of files of rows end so, with the `--data_format` that reads them.
DATA_SUFFIXES = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".parquet": "parquet", ".txt": "text",
}  # fmt: skip


def unknown_flags(unknown: list[str], names: Iterable[str]) -> str:
    """The error message for all flags that a script does not have, a line each (`unknown_flag`)."""
    lines = [unknown_flag(name, names) for name in dict.fromkeys(unknown)]
    more = len(lines) - MOST_UNKNOWN_FLAGS
    return "\n".join(lines[:MOST_UNKNOWN_FLAGS] + ([f"and {more} more unknown flags"] if more > 0 else []))


def unknown_flag(name: str, names: Iterable[str]) -> str:
    """The error message for a flag that a script with the flags `names` does not have.

    >>> unknown_flag("epochs", flags_of("fine_tune_t5"))
    'unknown flag --epochs; here it is --num_train_epochs'
    """
    table, names = flag_table(), sorted(names)
    for text in table["elsewhere"].get(name, ()):
        if {*re.findall(r"--(\w+)", text)} <= {*names}:
            return f"unknown flag --{name}; here it is {text}"
    other = next((script for script, flags in table["scripts"].items() if name in flags), None)
    if other:
        return f"--{name} belongs to {other}.py"
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(f'--{match}' for match in near)}?" if near else "see --help for all flags"
    return f"unknown flag --{name}; {hint}"


def check_is_text(words: Iterable[str]) -> None:
    """Refuses words that no file of the run could hold.

    Raises:
      ConfigError: bytes that are not UTF-8.
    """
    for word in words:
        if any("\udc80" <= character <= "\udcff" for character in word):
            shown = word.encode("utf-8", "surrogateescape")
            raise ConfigError(f"{shown!r}: not UTF-8; rename the file, or set a locale of UTF-8 (LC_ALL=C.UTF-8)")


# Flags that name files, folders, models or tokenizers.
NAMING_FLAGS = re.compile(r"\w+_(dir|file|name_or_path)|tokenizer_name|config_name")


def check_is_filled(name: str, value, place: str = "") -> None:
    """Refuses an empty name of a file, folder or model, for which the default would be taken.

    Raises:
      ConfigError: it is empty.
    """
    if NAMING_FLAGS.fullmatch(name) and isinstance(value, str) and not value.strip():
        what = "name a folder" if name.endswith("_dir") else "give a name, or leave the flag out"
        raise ConfigError(f"{place}--{name} {value!r} is empty (a shell variable that is not set?); {what}")


def _problem(name: str, entry: dict, flag: str, words: list[str]) -> str | None:
    """Why the words after a flag cannot be its value, in the parser's words; None if they can."""
    if not words and options_of({name: entry})[flag][1] in (None, "+"):
        return f"--{name}: expected one argument"
    kind, choices = entry["type"], entry["choices"]
    for word in words:
        if word == "None" or (entry["list"] and word[:1] == "["):
            problem = word == "None" and not entry["none"] and f"{flag}: --{name} cannot be None"
        elif choices:
            is_one = word in map(str, choices)
            problem = None if is_one else f"--{name}: unknown choice {word!r}; {suggestion(word, choices)}"
        elif kind in ("int", "float") and not FITS[kind](word):
            problem = f"--{name}: invalid {kind} value: {word!r}"
        else:
            number = {"int": int, "float": float}.get(kind, str)(word)
            outside = bounds_problem(entry, number)
            problem = outside and f"--{name} {str(number).removesuffix('.0')}: {outside}"
        if problem:
            return problem
    return None
