"""Prompt and answer in one row: the encoding of decoder-only models."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from t5suite.base.errors import ConfigError
from t5suite.data.batches.encodings.special_tokens import around, end_id, first_id, leading_ids
from t5suite.data.batches.encodings.text_encoding import TextEncoding
from t5suite.tasks.cut_marks import num_cut, with_cut
from t5suite.tasks.long_texts import without_unread_part
from t5suite.tasks.tokenization import decode_ids
from t5suite.tasks.tokens import encoded

DEFAULT_SEPARATOR = "\nanswer: "


@dataclass(frozen=True)
class PromptEncoding(TextEncoding):
    """Prompt and answer in one row of a decoder-only model, tokenized separately, so that no token spans both.

    >>> PromptEncoding(tokenizer, Lengths(512, 16), "\\nanswer: ").prompts(["Is it?"])    # "Is it?" + "\\nanswer:"

    Spaces at the separator's end go to the answer: byte-level vocabularies have a piece for " positive". The
    tokenizer's leading special tokens (Llama's <s>) begin the prompt; it gets no trailing ones. An empty input text has
    no separator: the row is plain text, which begins with the leading tokens, else BOS, else EOS.

    Raises:
      ConfigError: the tokenizer has no end-of-sequence token, or the separator leaves no room for a text.
    """

    separator: str = DEFAULT_SEPARATOR
    eos: int = field(init=False)
    lead: list[int] = field(init=False)
    between: list[int] = field(init=False)
    gap: str = field(init=False)

    def __post_init__(self):
        bare = self.separator.rstrip(" ")
        eos = end_id(self.tokenizer)
        if eos is None:
            raise ConfigError("the tokenizer has no end-of-sequence token, which ends a decoder-only model's answers")
        object.__setattr__(self, "eos", eos)
        object.__setattr__(self, "lead", leading_ids(self.tokenizer))
        between = self.tokenizer([bare], add_special_tokens=False)["input_ids"][0] if bare else []
        object.__setattr__(self, "between", between)
        object.__setattr__(self, "gap", self.separator[len(bare) :])
        if self._room < 1:
            raise ConfigError(
                f"--max_source_length {self.lengths.source} leaves no room for a text with the separator "
                f"{self.separator!r} ({len(self.between)} tokens)"
            )

    @property
    def key(self) -> str:
        """What caches must distinguish."""
        return f"prompt\x00{self.separator}"

    @property
    def described(self) -> dict:
        """Its description in the manifest."""
        return {"form": "prompt and answer in one row", "answer_separator": self.separator}

    @property
    def _room(self) -> int:
        return self.lengths.source - len(self.lead) - len(self.between)

    @property
    def longest_input(self) -> int:
        """As `TextEncoding.longest_input`; the separator takes room, too."""
        return self._room + sum(map(len, around(self.tokenizer)))

    def fits(self, text: str) -> bool:
        """Whether an input text is read whole."""
        return len(self._ids([text], self._room)[0]) <= self._room

    def with_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> str:
        """As `TextEncoding.with_cut`; there is room for a text before the separator."""
        return with_cut(self.tokenizer, *texts, self._room, template=self.template)

    def num_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> int:
        """As `TextEncoding.num_cut`; there is room for a text before the separator."""
        return num_cut(self.tokenizer, *texts, self._room, template=self.template)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts, each followed by the separator; long texts are truncated, the separator is kept."""
        prompts = []
        for text, ids in zip(texts, self._ids(texts, self._room), strict=True):
            if text:
                prompts.append([*self.lead, *ids[: self._room], *self.between])
            else:
                prompts.append(self.lead or [first_id(self.tokenizer, self.eos)])
        return prompts

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Answers, each followed by end-of-sequence."""
        rows = self._ids([self.gap + text for text in texts], self.lengths.target)
        return [[*row[: self.lengths.target - 1], self.eos] for row in rows]

    def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Generated ids as texts, without the separator's spaces."""
        answers = []
        for ids in sequences:
            ids = list(ids)
            answers.append(ids[: ids.index(self.eos)] if self.eos in ids else ids)
        return [text.removeprefix(self.gap) for text in decode_ids(answers, self.tokenizer)]

    def _ids(self, texts, length: int | None = None) -> list[list[int]]:
        """Ids without special tokens; of long texts at least the first `length` ones."""
        texts = list(texts) if length is None else without_unread_part(self.tokenizer, list(texts), length)
        settings = {"template": self.template, "add_special_tokens": False, "verbose": False}
        return encoded(self.tokenizer, texts, **settings)["input_ids"] if texts else []
