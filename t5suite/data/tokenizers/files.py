"""The files of a new tokenizer, in the form that transformers 4 and 5 both read."""

import json
import os
import shutil
from pathlib import Path

from t5suite.base.errors import ConfigError


def check_new_folder(output_dir) -> Path:
    """`output_dir` as a path; raises ConfigError if it is not empty, or is a file."""
    folder = Path(output_dir)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--output_dir {output_dir}: exists and is not an empty folder; give a new one")
    return folder


def write_folder(output_dir, files: dict[str, bytes]) -> None:
    """Writes the files next to `output_dir` and renames: the folder has all of them, or does not exist."""
    folder = check_new_folder(output_dir)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def tokenizer_files(tokenizer, name: str, special_tokens: dict, input_names, settings=None) -> dict[str, bytes]:
    """The files of a tokenizer of the `tokenizers` library, in the form that transformers 4 and 5 both read.

    transformers 5 writes its folders with names that 4.57 does not know (`"tokenizer_class": "TokenizersBackend"`, a
    list under `extra_special_tokens`), so 4.57 fails to load them.

    `name` is the class of the tokenizer; `settings` are further ones for `tokenizer_config.json`.
    """
    config = {
        "tokenizer_class": name,
        **special_tokens,
        **(settings or {}),
        "model_input_names": list(input_names),
        "clean_up_tokenization_spaces": False,
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": _as_json(config),
        "special_tokens_map.json": _as_json(special_tokens),
    }


def _as_json(value) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
