"""MultiDoc2Dial as turns that are answered from a document, in the two forms of its answerability and chit-chat files.

    >>> source = DialogueRows({"train": Path("md2d_subdocs_train_pos_neg.json")}, DialogueSettings(), 1024)
    >>> source.read("train", tokenizer).rows[0]
    {'input': 'You can renew online ... Hello agent: Hi user: How do I renew?', 'output': 'You can do it online.'}

A file is a JSON array of turns with `context` (the dialogue so far), `document` and `response`. The input is the
document's beginning and the dialogue's end, so that what was said last is never cut off. Field names, file names and
settings are those of IBM/dolomite-engine (Apache-2.0) in 2023.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find
from t5suite.data.formats.rows import Rows, files_fingerprint, hashed_files
from t5suite.data.formats.tables import table_rows
from t5suite.data.formats.token_cuts import first_tokens, last_tokens

logger = logging.getLogger(__name__)

ANSWERABILITY_FILES = {
    "train": "md2d_subdocs_train_pos_neg.json",
    "val": "md2d_subdocs_val_pos_neg.json",
    "test": "md2d_document_test_pos_neg.json",
}
CHIT_CHAT_FILES = {
    "train": "chitchat_subdocs_train.json",
    "val": "chitchat_subdocs_val.json",
    "test": "chitchat_document_test.json",
}
ROLES = {"train": "train", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class DialogueSettings:
    """What `--data_config` may say of MultiDoc2Dial.

    Attributes:
      dataset_type: a name in ANSWER_FORMS: whether the evidence is written, and where.
      max_document_length: tokens of the document that are kept, where --max_input_tokens cuts at all.
      filter_allowed: leave out original negative turns and those after the agent's own.
      static_evidence: the evidence of every turn, instead of the turn's own.
      combine_no_evidence: what has no evidence says NA, and not why.
      files: the file of each split in the folder.
    """

    dataset_type: str = "no_evidence"
    max_document_length: int = 700
    filter_allowed: bool = True
    static_evidence: str | None = None
    combine_no_evidence: bool = False
    files: dict | None = None

    def __post_init__(self):
        find(self.dataset_type, ANSWER_FORMS, "dataset_type", where="--data_config")
        if type(self.max_document_length) is not int or self.max_document_length < 2:
            raise ConfigError(f"--data_config: max_document_length {self.max_document_length!r}: at least 2 tokens")


@dataclass(frozen=True)
class DialogueRows:
    """The turns of a folder.

    Attributes:
      max_input_tokens: where inputs end; None cuts nothing here.
    """

    files: dict[str, Path]
    settings: DialogueSettings
    max_input_tokens: int | None

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that have a file."""
        return tuple(self.files)

    def read(self, role: str, tokenizer=None) -> Rows:
        """All turns of a split that the settings do not leave out.

        Raises:
          DataError: a turn lacks what it needs; the message names it.
        """
        path, rows, places, left_out = self.files[role], [], [], 0
        for place, turn in table_rows(path, "jsonl"):
            try:
                if self.settings.filter_allowed and _is_left_out(turn):
                    left_out += 1
                    continue
                rows.append({"input": self._input(turn, tokenizer), "output": answer(turn, self.settings)})
            except DataError as error:
                raise DataError(f"{place}: {error}") from None
            places.append(place)
        if left_out:
            logger.info("%s: filter_allowed leaves out %d of %d turns", path, left_out, left_out + len(rows))
        if not rows:
            raise DataError(f"{path}: filter_allowed leaves no turn")
        hashes = hashed_files([path])
        return Rows(rows, places, str(path), files_fingerprint(hashes), hashes)

    def _input(self, turn: dict, tokenizer) -> str:
        document, context = _text(turn, "document"), _text(turn, "context")
        if self.max_input_tokens is not None:
            for_document = self.settings.max_document_length
            document = first_tokens(document, for_document - 1, tokenizer)
            context = last_tokens(context, self.max_input_tokens - for_document, tokenizer)
        return f"{document} {context}"


def dialogue_rows(path, config: dict, files: dict, max_input_tokens: int | None, **defaults) -> DialogueRows:
    """The source of a folder, with the settings of `--data_config` over a form's own.

    Raises:
      ConfigError: no such folder or file in it, an unknown setting, or a document as long as the input.
    """
    settings = DialogueSettings(**{**defaults, **config})
    named = {**files, **(settings.files or {})}
    if unknown := sorted(set(named) - set(ROLES)):
        raise ConfigError(f"--data_config: files: {unknown[0]!r} is none of {', '.join(ROLES)}")
    there = {ROLES[split]: Path(path, name) for split, name in named.items() if Path(path, name).is_file()}
    if not there:
        raise ConfigError(f"--data_path {path}: none of {', '.join(named.values())} is there")
    if max_input_tokens is not None and max_input_tokens <= settings.max_document_length:
        raise ConfigError(
            f"--max_input_tokens {max_input_tokens} leaves no room for the dialogue beside max_document_length "
            f"{settings.max_document_length}; lower that in --data_config"
        )
    return DialogueRows(there, settings, max_input_tokens)


def answer(turn: dict, settings: DialogueSettings) -> str | None:
    """What is to be written: the response, alone or with its evidence; None for a turn without one.

    >>> answer({"response": "Online.", "type": "negative"}, DialogueSettings("evidence_response"))
    'evidence: unanswerable; response: Online.'
    """
    if turn.get("response") is None:
        return None
    form = ANSWER_FORMS[settings.dataset_type]
    evidence = _evidence(turn, settings) if "{evidence}" in form else None
    return form.format(response=_text(turn, "response"), evidence=evidence)


def _evidence(turn: dict, settings: DialogueSettings) -> str:
    static = "NA" if settings.combine_no_evidence and settings.static_evidence else settings.static_evidence
    if static is not None:
        return static
    kind = turn.get("type")
    if kind == "positive":
        return _text(turn, "evidence_20_50")
    if kind == "negative":
        return "NA" if settings.combine_no_evidence else "unanswerable"
    raise DataError(f"'type' holds {kind!r}; it must be positive or negative")


def _is_left_out(turn: dict) -> bool:
    return _text(turn, "neg_subtype").lower() == "original" or _text(turn, "last_speaker").lower() == "agent"


def _text(turn: dict, column: str) -> str:
    value = turn.get(column)
    if not isinstance(value, str):
        raise DataError(f"{column!r} holds {value!r:.60}, not a text; the turn has {', '.join(turn):.200}")
    return value


ANSWER_FORMS = {
    "no_evidence": "{response}",
    "response_evidence": "response: {response}; evidence: {evidence}",
    "evidence_response": "evidence: {evidence}; response: {response}",
}
