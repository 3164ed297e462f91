"""Folders of token ids that other tools have written: the table FORMS, by the endings of files' names.

>>> form, files = list_token_files(Path("tokenized"))
>>> form, files[0].name, files[0].num_documents, files[0].boundaries(0, 3)
('datatrove', '00000_00000_doc_shuffled.ds', 2310, array([  0, 187, 455, 460]))
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import read_json
from t5suite.contrib.token_files.datatrove import DatatroveFile, open_datatrove_file
from t5suite.contrib.token_files.megatron import MegatronFile, open_megatron_file
from t5suite.data.corpora.store import MANIFEST

TokenFile = DatatroveFile | MegatronFile


def list_token_files(folder: Path) -> tuple[str, list[TokenFile]]:
    """`(form, files)` of a folder and those below it, sorted by name; hidden ones are ignored.

    Raises:
      ConfigError: the folder holds a corpus that was built.
      DataError: no such folder, nothing to adopt, tokens without an index or an index without tokens, files of both
        forms or of two widths, or what opening one raises.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; name the one with the tokens of datatrove or Megatron")
    manifest = folder / MANIFEST
    if manifest.is_file() and "adopted" not in read_json(manifest):
        raise ConfigError(f"{folder}: holds a corpus that was built; train on it as it is (--train_corpus {folder})")
    paths = sorted(path for path in folder.rglob("*") if _is_visible_file(path, folder))
    paths_by_form = {form: _paths_of_tokens(paths, endings) for form, endings in FORMS.items()}
    forms = [form for form, paths_of_form in paths_by_form.items() if paths_of_form]
    if not forms:
        endings = ", ".join(
            f"{form}'s end in {entry.tokens_ending} and {entry.index_ending}" for form, entry in FORMS.items()
        )
        raise DataError(f"{folder}: no files of tokens in it; {endings}")
    if len(forms) > 1:
        examples = " and ".join(f"{paths_by_form[form][0].name} of {form}" for form in forms)
        raise DataError(f"{folder}: has {examples}; adopt a folder of one form, so that no document counts twice")
    (form,) = forms
    open_file = FORMS[form].open_file
    files = [open_file(path, path.relative_to(folder).as_posix()) for path in paths_by_form[form]]
    _refuse_two_widths(folder, files)
    return form, files


def _is_visible_file(path: Path, folder: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.is_file() and not is_hidden


def _paths_of_tokens(paths: Sequence[Path], form: "TokenForm") -> list[Path]:
    """The files of tokens of one form, each of which has its index.

    Raises:
      DataError: one stands alone.
    """
    token_paths = {path: None for path in paths if path.name.endswith(form.tokens_ending)}
    index_paths = {path: None for path in paths if path.name.endswith(form.index_ending)}
    for path in token_paths:
        index = path.with_name(path.name.removesuffix(form.tokens_ending) + form.index_ending)
        if index not in index_paths:
            raise DataError(
                f"{path}: its index, {index.name}, is missing; it is written last, so the job that writes the tokens "
                "may not have ended"
            )
    for index in index_paths:
        path = index.with_name(index.name.removesuffix(form.index_ending) + form.tokens_ending)
        if path not in token_paths:
            raise DataError(f"{index}: its tokens, {path.name}, are missing; restore them, or remove it")
    return list(token_paths)


def _refuse_two_widths(folder: Path, files: Sequence[TokenFile]) -> None:
    filled_files = [file for file in files if file.num_tokens]
    for file in filled_files:
        first = filled_files[0]
        if file.id_bytes != first.id_bytes:
            raise DataError(
                f"{folder}: an id has {first.id_bytes} bytes in {first.name} and {file.id_bytes} in {file.name}; adopt "
                "two folders, and train on both (--train_corpus A B)"
            )


class TokenForm(NamedTuple):
    """A tool's files: the endings of their names, and what opens one."""

    tokens_ending: str
    index_ending: str
    open_file: Callable[[Path, str], TokenFile]


FORMS = {
    "datatrove": TokenForm(".ds", ".ds.index", open_datatrove_file),
    "Megatron": TokenForm(".bin", ".idx", open_megatron_file),
}
