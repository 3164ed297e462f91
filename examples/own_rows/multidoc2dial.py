"""MultiDoc2Dial as turns that are answered from a document: two data sets for `--data_class`.

    python fine_tune_t5.py --data_class examples.own_rows.multidoc2dial:Answerability --data_path md2d/ \
        --max_input_tokens 1024 --data_config '{"tokenizer": "google/flan-t5-base", "max_input_tokens": 1024}'

    >>> Answerability("md2d", {"dataset_type": "evidence_response"}).rows("train")[0]
    {'input': 'You can renew online ... Hello agent: Hi user: How do I renew?',
     'output': 'evidence: You can renew online; response: You can do it online.'}

A file is a JSON array of turns with `context` (the dialogue so far), `document` and `response`. With `tokenizer` and
`max_input_tokens` the input is the document's first `max_document_length - 1` tokens and the dialogue's end, so that
what was said last is never cut off. Fields, file names and settings are those of IBM/dolomite-engine of 2023.
"""

import json
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError

ANSWERS = {
    "no_evidence": "{response}",
    "response_evidence": "response: {response}; evidence: {evidence}",
    "evidence_response": "evidence: {evidence}; response: {response}",
}


class Answerability:
    """Turns with evidence, or marked as having none; `config` may have SETTINGS, `files` and what cuts inputs."""

    SETTINGS = {
        "dataset_type": "no_evidence",  # a key of ANSWERS
        "max_document_length": 700,  # tokens of the document that are kept
        "filter_allowed": True,  # leave out original negative turns and those after the agent's own
        "static_evidence": None,  # the evidence of every turn, instead of the turn's own
        "combine_no_evidence": False,  # what has no evidence says NA, and not why
    }
    FILES = {
        "train": "md2d_subdocs_train_pos_neg.json",
        "val": "md2d_subdocs_val_pos_neg.json",
        "test": "md2d_document_test_pos_neg.json",
    }
    entry = {"metric_names": ["rouge"], "metric_to_optimize": "average"}

    def __init__(self, path, config: dict):
        known = {**self.SETTINGS, "files": {}, "tokenizer": None, "max_input_tokens": None}
        if unknown := sorted(set(config) - set(known)):
            raise ConfigError(f"--data_config: no setting {unknown[0]!r}; there are {', '.join(known)}")
        self.path, self.settings = Path(path), {**known, **config}
        self.files, self.tokenizer = {**self.FILES, **self.settings["files"]}, None
        if self.settings["dataset_type"] not in ANSWERS:
            given = self.settings["dataset_type"]
            raise ConfigError(f"--data_config: dataset_type {given!r}: one of {', '.join(ANSWERS)}")
        if (self.settings["tokenizer"] is None) != (self.settings["max_input_tokens"] is None):
            raise ConfigError("--data_config: tokenizer and max_input_tokens, which cut inputs, need each other")
        if not any((self.path / name).is_file() for name in self.files.values()):
            raise ConfigError(f"--data_path {path}: none of {', '.join(self.files.values())} is there")
        if self.settings["tokenizer"] is not None:
            from transformers import AutoTokenizer

            self.tokenizer = AutoTokenizer.from_pretrained(self.settings["tokenizer"])
            self.room = self.settings["max_input_tokens"] - self.settings["max_document_length"]
            if self.room < 1:
                raise ConfigError("--data_config: max_input_tokens leaves no room beside max_document_length")

    def rows(self, split: str) -> list[dict] | None:
        """The turns of a split; None where it has no file."""
        file = self.path / self.files["val" if split == "validation" else split]
        if not file.is_file():
            return None
        rows = []
        for number, turn in enumerate(json.loads(file.read_text(encoding="utf-8"))):
            try:
                if not (self.settings["filter_allowed"] and _is_left_out(turn)):
                    rows.append({"input": self._input(turn), "output": self._output(turn)})
            except (KeyError, TypeError, AttributeError) as error:
                raise DataError(f"{file} entry {number}: no text {error}") from None
        return rows

    def _input(self, turn: dict) -> str:
        document, context = turn["document"] + "", turn["context"] + ""
        if self.tokenizer is not None:
            document_ends = [end for _, end in self._offsets(document)]
            context_starts = [start for start, _ in self._offsets(context)]
            kept = self.settings["max_document_length"] - 1
            document = document[: document_ends[kept - 1]] if len(document_ends) > kept else document
            context = context[context_starts[-self.room] :] if len(context_starts) > self.room else context
        return f"{document} {context}"

    def _offsets(self, text: str) -> list[tuple[int, int]]:
        return self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]

    def _output(self, turn: dict) -> str | None:
        if turn.get("response") is None:
            return None
        form = ANSWERS[self.settings["dataset_type"]]
        evidence = self._evidence(turn) if "{evidence}" in form else None
        return form.format(response=turn["response"], evidence=evidence)

    def _evidence(self, turn: dict) -> str:
        static, combines = self.settings["static_evidence"], self.settings["combine_no_evidence"]
        if static is not None:
            return "NA" if combines else static
        return {"positive": turn.get("evidence_20_50"), "negative": "NA" if combines else "unanswerable"}[turn["type"]]


class ChitChat(Answerability):
    """Turns that need no document."""

    SETTINGS = {**Answerability.SETTINGS, "filter_allowed": False, "static_evidence": "chit-chat"}
    FILES = {
        "train": "chitchat_subdocs_train.json",
        "val": "chitchat_subdocs_val.json",
        "test": "chitchat_document_test.json",
    }


def _is_left_out(turn: dict) -> bool:
    return turn["neg_subtype"].lower() == "original" or turn["last_speaker"].lower() == "agent"
