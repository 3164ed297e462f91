"""The files of a new tokenizer, in the form that transformers 4 and 5 both read."""

import json

from t5suite.base.files import new_folder


def write_folder(output_dir, files: dict[str, bytes]) -> None:
    """Writes the files next to `output_dir` and renames: the folder has all of them, or does not exist.

    Raises:
      ConfigError: see `base.files.check_new_folder`.
    """
    with new_folder(output_dir) as temporary:
        for name, content in files.items():
            (temporary / name).write_bytes(content)


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
