"""Rows of a task -> ids, and ids -> answers, in the format of a model's family.

    >>> encoding = PromptEncoding(gpt2_tokenizer, Lengths(512, 16))
    >>> encoding.prompts(["sst2 sentence: It was good."])      # ... "\\nanswer:"
    [[82, 301, 17, 6827, 25, 632, 373, 922, 13, 198, 41484, 25]]
    >>> encoding.answers(["positive"]), encoding.texts([[3967, 50256]])
    ([[3967, 50256]], ['positive'])

| family | an example's `input_ids` | its `labels` |
|---|---|---|
| seq2seq | the input text, as T5's | the target text, with end-of-sequence |
| causal | the input text and a separator | the target text, with end-of-sequence |
| masked | the entry's columns as segments, else the input text | one class, or one number |
| encoder | the input text | one class, or one number |
| both, `token_labels` | the words | a class for the first token of each word |

Long texts are truncated on the right; end-of-sequence, separator and special tokens are kept. Every encoding has
`example_set` (rows -> examples, as the model reads them) and `columns` (examples -> ragged columns); `rows` is both, of
a batch of rows by column. It also has `prompts`, `answers` and `texts`, and a `key` for caches.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.data.batches.collators import IGNORED, UNKNOWN_LABEL
from t5suite.tasks.cells import as_list, value_at
from t5suite.tasks.cut_marks import cut_mark, with_cut
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.formatters import Example
from t5suite.tasks.languages import Languages
from t5suite.tasks.long_texts import without_unread_part
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import INVALID_CLASS, checked_number, number_text, plain_decimal
from t5suite.tasks.tokenization import Lengths, bind_fits, by_row, cut_ids, decode_ids, tokenize_examples
from t5suite.tasks.tokens import Spelling, encoded, sizes_after_cut

LONGEST_ROW = 1 << 40  # more tokens than any row has
DEFAULT_SEPARATOR = "\nanswer: "


@dataclass(frozen=True)
class TextEncoding:
    """Text to text, for encoder-decoder models."""

    tokenizer: object
    lengths: Lengths
    template: str = field(default="", kw_only=True)  # the task's own texts around rows: control tokens in it are tokens

    key = ""
    given = 0  # how many of an answer's first tokens are fixed, not chosen by the model

    @property
    def described(self) -> dict:
        """Its description in the manifest."""
        return {"form": "text to text"}

    def for_task(self, task: Task) -> "TextEncoding":
        """A copy with the task's own lengths, if it has any, and with its own texts around rows."""
        return replace(self, lengths=task.lengths(self.lengths), template=task.template)

    def rows(self, rows: dict[str, list], task: Task, split: str) -> dict[str, list]:
        """`columns` of a batch of rows, by column."""
        encoding = self.for_task(task)
        return encoding.columns(encoding.example_set(by_row(rows), task, split), task)

    def example_set(self, rows: Iterable, task: Task, split: str) -> ExampleSet:
        """Rows as `ExampleSet`, with the texts that the model reads; `self` has the task's own lengths (`for_task`)."""
        return ExampleSet.of(rows, split, lambda row, split: self.examples(row, task, split))

    def columns(self, examples: ExampleSet, task: Task) -> dict[str, list]:
        """`input_ids` and `labels`, one of each per example."""
        return tokenize_examples(examples.examples, self.tokenizer, self.lengths, self.template)

    @property
    def longest_input(self) -> int:
        """The most tokens of an input text that is read whole, with those that its tokenizer puts around it."""
        return self.lengths.source

    def fits(self, text: str) -> bool:
        """Whether an input text is read whole."""
        return bind_fits(self.tokenizer, self.lengths, self.template)(text)

    def examples(self, row, task: Task, split: str) -> list[Example]:
        """The (inputs, targets) pairs of a row as the model reads them: without demonstrations that do not fit."""
        return task.examples(row, split, self.fits)

    def shown(self, example: Example, row, task: Task) -> str:
        """The inputs of an example, for people: whole, with a mark where the model stops reading."""
        return self.with_cut((example.inputs,))

    def with_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> str:
        """What the model reads as one text, whole, with a mark where it stops reading (`cut_marks.with_cut`).

        Args:
          languages: (source, target) of this text, if not the same for all.
        """
        (text,) = texts
        room = self.lengths.source - sum(map(len, around(self.tokenizer)))
        return with_cut(self.tokenizer, text, room, self.lengths.kept_end, self.template)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Formatted input texts as ids."""
        if not texts:
            return []
        return cut_ids(self.tokenizer, self.lengths.source, self.lengths.kept_end, list(texts), template=self.template)

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Answers as ids, with end-of-sequence."""
        if not texts:
            return []
        return cut_ids(
            self.tokenizer, self.lengths.target, self.lengths.kept_end, text_target=list(texts), template=self.template
        )

    def choices(self, texts: Sequence[str]) -> list[list[int]]:
        """Answers that a model chooses from, as ids."""
        return self.answers(texts)

    def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Generated ids as texts, up to the first end-of-sequence token."""
        return decode_ids(sequences, self.tokenizer)


def language_ids(tokenizer) -> dict[str, int]:
    """A tokenizer's languages and their tokens, for mBART, M2M100, NLLB and multilingual Marian; empty for others.

    >>> language_ids(nllb_tokenizer)["deu_Latn"], language_ids(m2m100_tokenizer)["de"], language_ids(t5_tokenizer)
    (256042, 128020, {})
    """
    if hasattr(tokenizer, "supported_language_codes"):  # Marian's: >>de<<
        return {code[2:-2]: tokenizer.convert_tokens_to_ids(code) for code in tokenizer.supported_language_codes}
    if not hasattr(tokenizer, "src_lang"):
        return {}
    if hasattr(tokenizer, "get_lang_id"):  # M2M100's: __de__
        return {code: tokenizer.get_lang_id(code) for code in tokenizer.lang_code_to_token}
    codes = [token for token in tokenizer.all_special_tokens if LANGUAGE_CODE.fullmatch(token)]
    return dict(zip(codes, tokenizer.convert_tokens_to_ids(codes), strict=True))


LANGUAGE_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")  # de_DE, deu_Latn


@dataclass(frozen=True)
class LanguageEncoding(TextEncoding):
    """Text to text in given languages, named by the tokenizer's codes.

    >>> LanguageEncoding(nllb, Lengths(64, 64), languages=Languages("eng_Latn", "deu_Latn")).answers(["Gut."])
    [[256042, 101476, 248075, 2]]                    # deu_Latn ▁Gut . </s>

    | tokenizer | source | target |
    |---|---|---|
    | mBART-50, M2M100, NLLB | code text </s> | code text </s>; the code is forced when an answer is generated |
    | mBART-25 | text </s> code | text </s> code; the decoder starts with the code |
    | Marian, several languages | >>code<< of the target, text </s> | text </s> |

    Raises:
      ConfigError: a language that the tokenizer does not have, or flags that do not apply to its form.
    """

    languages: Languages = field(default=Languages(), kw_only=True)

    def __post_init__(self):
        self._check(*self.languages[:2])
        if self.form == "last" and self.languages.target_lang_column is not None:
            raise ConfigError("--target_lang_column: a model of mBART-25's kind writes one language: --target_lang")

    def _check(self, *codes: str | None) -> None:
        for flag, code in zip(Languages._fields, codes, strict=False):
            if code is not None:
                find(code, self.ids, "language of the tokenizer", where=f"--{flag}")

    @cached_property
    def ids(self) -> dict[str, int]:
        """Tokens by language."""
        return language_ids(self.tokenizer)

    @property
    def is_marked(self) -> bool:
        """Whether the input text says which language to write (Marian)."""
        return not hasattr(self.tokenizer, "src_lang")

    @cached_property
    def form(self) -> str:
        """Where an answer's language code is: first, last, or marked in the input text."""
        if self.is_marked:
            return "marked"
        with self._reading(self.tokenizer.src_lang, self.tokenizer.src_lang):
            ids = self.tokenizer(text_target="")["input_ids"]
        return "first" if ids[0] in self.ids.values() else "last"

    @property
    def key(self) -> str:
        """What caches must distinguish."""
        return "languages\x00" + "\x00".join(map(str, self.languages))

    @property
    def given(self) -> int:
        """1 if answers begin with their language code, else 0."""
        return int(self.form == "first")

    @property
    def described(self) -> dict:
        """Its description in the manifest."""
        return {"form": "text to text", **{name: code for name, code in self.languages._asdict().items() if code}}

    def columns(self, examples: ExampleSet, task: Task) -> dict[str, list]:
        """`input_ids` and `labels`, one of each per example, in the languages of their rows."""
        languages = [self.languages.of(row) for row, _ in examples.pairs()]
        return {
            "input_ids": self.prompts([example.inputs for example in examples.examples], languages),
            "labels": self.answers([example.targets for example in examples.examples], languages),
        }

    def shown(self, example: Example, row, task: Task) -> str:
        """As `TextEncoding.shown`, with the language's mark if the model reads one."""
        return self.with_cut((example.inputs,), self.languages.of(row))

    def with_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> str:
        """As `TextEncoding.with_cut`, with the language's mark if the model reads one."""
        _, target = languages or self.languages[:2]
        return super().with_cut(tuple(self._marked(text, target) for text in texts))

    def _marked(self, text: str, target: str | None) -> str:
        return f">>{target}<< {text}" if self.is_marked and target else text

    def prompts(self, texts: Sequence[str], languages: Sequence[tuple] | None = None) -> list[list[int]]:
        """Formatted input texts as ids; `languages` has (source, target) for each, if they differ."""

        def read(texts, target):
            return super(LanguageEncoding, self).prompts([self._marked(text, target) for text in texts])

        return self._by_language(texts, languages, read)

    def answers(self, texts: Sequence[str], languages: Sequence[tuple] | None = None) -> list[list[int]]:
        """Answers as ids, with end-of-sequence and their language code."""
        return self._by_language(texts, languages, lambda texts, _: super(LanguageEncoding, self).answers(texts))

    def choices(self, texts: Sequence[str]) -> list[list[int]]:
        """Answers that a model chooses from, as ids.

        Raises:
          ConfigError: the language differs from row to row.
        """
        if self.languages.target_lang_column is not None:
            raise ConfigError("--target_lang_column: all choices must be in one language: give --target_lang")
        return self.answers(texts)

    def _by_language(self, texts, languages, read) -> list[list[int]]:
        languages, found = list(languages or [self.languages[:2]] * len(texts)), {}
        for codes in dict.fromkeys(languages):
            self._check(*codes)
            places = [place for place, other in enumerate(languages) if other == codes]
            with self._reading(*codes):
                found |= zip(places, read([texts[place] for place in places], codes[1]), strict=True)
        return [found[place] for place in range(len(texts))]

    @contextmanager
    def _reading(self, source: str | None, target: str | None):
        """Sets the tokenizer's source and target languages within the block; None: its default."""
        tokenizer = self.tokenizer
        if self.is_marked:
            yield
            return
        before = tokenizer.src_lang, tokenizer.tgt_lang
        try:
            tokenizer.src_lang, tokenizer.tgt_lang = source or before[0], target or before[1] or source or before[0]
            yield
        finally:
            tokenizer.tgt_lang, tokenizer.src_lang = before[1], before[0]


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
        eos = self.tokenizer.eos_token_id
        if eos is None:
            eos = self.tokenizer.sep_token_id
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

    def columns(self, examples: ExampleSet, task: Task) -> dict[str, list]:
        """`input_ids` (the prompt) and `labels` (the answer), one of each per example."""
        return {
            "input_ids": self.prompts([example.inputs for example in examples.examples]),
            "labels": self.answers([example.targets for example in examples.examples]),
        }

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

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts, each followed by the separator; long texts are truncated, the separator is kept."""
        alone = self.lead or [first_id(self.tokenizer, self.eos)]
        ids = zip(texts, self._ids(texts, self._room), strict=True)
        return [[*self.lead, *row[: self._room], *self.between] if text else alone for text, row in ids]

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Answers, each followed by end-of-sequence."""
        rows = self._ids([self.gap + text for text in texts], self.lengths.target)
        return [[*row[: self.lengths.target - 1], self.eos] for row in rows]

    def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Generated ids as texts, without the separator's spaces."""
        ended = [list(row)[: list(row).index(self.eos)] if self.eos in row else row for row in sequences]
        return [text.removeprefix(self.gap) for text in decode_ids(ended, self.tokenizer)]

    def _ids(self, texts, length: int | None = None) -> list[list[int]]:
        """Ids without special tokens; of long texts at least the first `length` ones."""
        texts = list(texts) if length is None else without_unread_part(self.tokenizer, list(texts), length)
        settings = {"template": self.template, "add_special_tokens": False, "verbose": False}
        return encoded(self.tokenizer, texts, **settings)["input_ids"] if texts else []


@dataclass(frozen=True)
class SegmentEncoding(TextEncoding):
    """Segments and one label for an encoder with a head: a class, as its index in `words`, or (no words) a number.

    >>> SegmentEncoding(bert_tokenizer, Lengths(128, 1), ("entailment", "not_entailment")).rows(
    ...     {"sentence1": ["It rains."], "sentence2": ["It is wet."], "label": [0]}, load_task("glue", "rte"), "train")
    {'input_ids': [[101, 2009, 15756, 1012, 102, 2009, 2003, 4954, 1012, 102]], 'labels': [[0]],
     'token_type_ids': [[0, 0, 0, 0, 0, 1, 1, 1, 1, 1]]}

    Args:
      words: the label words in the order of the head's outputs; None for a number.
      has_types: whether the model takes `token_type_ids`, if the tokenizer returns them.
      whole: whether it reads T5's input text instead of columns.
    """

    words: tuple[str, ...] | None = None
    has_types: bool = False
    whole: bool = False

    form = "segments"

    @property
    def key(self) -> str:
        """What caches must distinguish."""
        return f"{self.form}\x00{self.words}\x00{self.has_types}\x00{self.whole}"

    @property
    def described(self) -> dict:
        """Its description in the manifest."""
        form = "text" if self.whole and self.form == "segments" else self.form
        return {"form": form, "head": "a number" if self.words is None else list(self.words)}

    def columns(self, examples: ExampleSet, task: Task) -> dict[str, list]:
        """`input_ids` and `labels` (one per row, -100 without a label), and `token_type_ids` if the model takes them.

        In a pair, the longer segment is truncated first.
        """
        pairs = examples.pairs()
        inputs = self.inputs([self.texts_read(example, row, task) for row, example in pairs])
        labels = [[self.label(example, row, task)] for row, example in pairs]
        return {"input_ids": inputs.pop("input_ids"), "labels": labels, **inputs}

    def texts_read(self, example: Example, row, task: Task) -> tuple[str, ...]:
        """The texts of a row that the encoder reads."""
        return (example.inputs,) if self.whole else segments(example, row, task)

    def examples(self, row, task: Task, split: str) -> list[Example]:
        """The row's one example; its inputs are what the encoder reads, with the separator between segments."""
        examples = task.examples(row, split)
        return [example._replace(inputs=self._joined(self.texts_read(example, row, task))) for example in examples]

    def shown(self, example: Example, row, task: Task) -> str:
        """What the encoder reads of a row, with a mark where it stops reading."""
        return self.with_cut(self.texts_read(example, row, task))

    def with_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> str:
        """As `TextEncoding.with_cut`, for segments: each has its own mark."""
        frame = Spelling(self.tokenizer, ()).frame(len(texts))
        settings = {"template": self.template, "add_special_tokens": False, "verbose": False}
        counts = [len(ids) for ids in encoded(self.tokenizer, list(texts), **settings)["input_ids"]]
        rooms = sizes_after_cut(counts, self.lengths.source - sum(map(len, frame.around)))
        parts = zip(texts, rooms, strict=True)
        return self._joined([with_cut(self.tokenizer, text, room, template=self.template) for text, room in parts])

    def _joined(self, texts: Sequence[str]) -> str:
        return f" {self.tokenizer.sep_token or '|'} ".join(texts)

    def inputs(self, texts: Sequence[tuple[str, ...]]) -> dict[str, list]:
        """`input_ids` of texts or text pairs, and `token_type_ids` if the model takes them."""
        first, *second = zip(*texts, strict=True)
        if not second:  # of a pair, which text loses more depends on both lengths
            first = without_unread_part(self.tokenizer, first, self.lengths.source)
        settings = {"template": self.template, "max_length": self.lengths.source, "truncation": "longest_first"}
        columns = encoded(self.tokenizer, list(first), *map(list, second), **settings)
        names = ("input_ids", "token_type_ids") if self.has_types else ("input_ids",)
        return {name: columns[name] for name in names if name in columns}

    def label(self, example: Example, row, task: Task) -> int | float:
        """The index of the row's word among the head's outputs, or its number; -100 for a row without a label."""
        if self.words is None:
            return head_number(row, task.entry) if task.is_labelled(row) else float(IGNORED)
        number = task.parse(example.targets)
        return IGNORED if number == INVALID_CLASS else self.words.index(task.label_words[number])

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Label words as indices of the head's outputs."""
        return [[self.words.index(text)] for text in texts]

    def word(self, scores: Sequence[float], low: float = -np.inf, high: float = np.inf) -> str:
        """The head's answer: the word of its highest output (the first on ties), or its number clipped to a range."""
        if self.words is None:
            return answer_text(scores[0], low, high)
        return self.words[max(range(len(self.words)), key=lambda i: scores[i])]


@dataclass(frozen=True)
class LabelsEncoding(SegmentEncoding):
    """Words with a label each, at the first token of the word; its other tokens have no label.

    >>> encoding = LabelsEncoding(t5, Lengths(128, 1), ("O", "B"))
    >>> encoding.rows({"tokens": [["Ann", "sings"]], "tags": [[1, 0]]}, task, "train")
    {'input_ids': [[5608, 27055, 1]], 'labels': [[1, 0, -100]]}

    Words beyond the maximum source length are truncated, with their labels.
    """

    form = "words"

    def columns(self, examples: ExampleSet, task: Task) -> dict[str, list]:
        """`input_ids`, and `labels` of the same length: -101 at the first token of a word whose label is hidden."""
        pairs = examples.pairs()
        columns = self.inputs([task.words(row) for row, _ in pairs])
        for labels, (row, example) in zip(columns["labels"], pairs, strict=True):
            starts = (place for place, label in enumerate(labels) if label != IGNORED)
            numbers = task.label_numbers(row, example)
            for place, number in zip(starts, numbers):  # truncated words have no position
                labels[place] = UNKNOWN_LABEL if number == INVALID_CLASS else self.words.index(task.label_words[number])
        return columns

    def texts_read(self, example: Example, row, task: Task) -> tuple[str, ...]:
        """The words of a row."""
        return tuple(task.words(row))

    def with_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> str:
        """As `TextEncoding.with_cut`, for words: the mark is behind the last one that is read."""
        labels, whole = (
            replace(self, lengths=self.lengths._replace(source=source)).inputs([texts])["labels"][0]
            for source in (self.lengths.source, LONGEST_ROW)
        )
        if labels == whole:
            return self._joined(texts)
        read = sum(label != IGNORED for label in labels)
        rest = "".join(f" {word}" for word in texts[read:])
        return " ".join(texts[:read]) + cut_mark(len(whole) - len(labels)) + rest

    def _joined(self, texts: Sequence[str]) -> str:
        return " ".join(texts)

    def inputs(self, texts: Sequence[Sequence[str]]) -> dict[str, list]:
        """`input_ids` of words, and `labels` that mark the first token of each."""
        spaced = [" " * (place > 0) + word for words in texts for place, word in enumerate(words)]
        of_word = iter(encoded(self.tokenizer, spaced, add_special_tokens=False, verbose=False)["input_ids"])
        lead, tail = around(self.tokenizer)
        room, columns = self.lengths.source - len(tail), {"input_ids": [], "labels": []}
        for words in texts:
            ids, labels = list(lead), [IGNORED] * len(lead)
            for pieces in itertools.islice(of_word, len(words)):
                pieces = pieces or [self.tokenizer.unk_token_id]  # a word that the tokenizer drops, such as U+200B
                ids += pieces
                labels += [UNKNOWN_LABEL] + [IGNORED] * (len(pieces) - 1)
            columns["input_ids"].append(ids[:room] + tail)
            columns["labels"].append(labels[:room] + [IGNORED] * len(tail))
        return columns

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Labels as indices of the head's outputs."""
        return [[self.words.index(word) for word in text.split()] for text in texts]

    def word(self, scores: Sequence[Sequence[float]], low: float = -np.inf, high: float = np.inf) -> str:
        """The head's answer: each word's most likely label, in one text."""
        return " ".join(super(LabelsEncoding, self).word(of_word) for of_word in scores)


def segments(example: Example, row, task: Task) -> tuple[str, ...]:
    """The texts that an encoder reads: the entry's one or two columns unchanged, else T5's input text.

    >>> row, task = {"sentence1": "It rains.", "sentence2": "It is wet.", "label": 0}, load_task("glue", "rte")
    >>> segments(task.examples(row)[0], row, task)
    ('It rains.', 'It is wet.')
    """
    columns = as_list(task.entry["text_column_name"])
    is_plain = task.entry.get("formatter") in (None, "columns") and not task.entry.get("input_format")
    if is_plain and len(columns) <= 2:
        return tuple(str(row[column]) for column in columns)
    return (example.inputs,)


def leading_ids(tokenizer) -> list[int]:
    """The special tokens that a tokenizer puts before a text: Llama's <s>, OPT's </s>; none for GPT-2.

    >>> leading_ids(opt_tokenizer)
    [2]
    """
    return around(tokenizer)[0]


def around(tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before a text, and after it.

    >>> around(bert_tokenizer)
    ([101], [102])
    """
    whole = tokenizer("a")["input_ids"]
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    start = next((i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare), 0)
    return whole[:start], whole[start + len(bare) :]


def first_id(tokenizer, eos: int) -> int:
    """The first token of a text that has no prompt: BOS, else EOS."""
    return eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def bind_encoding(encoding: TextEncoding, task: Task, split: str) -> Callable:
    """The lambda that `Dataset.map(batched=True)` calls."""
    return lambda rows: encoding.rows(rows, task, split)


def head_number(row, entry) -> float:
    """The number that a head learns: the row's own, or rounded as the entry's `target_decimals` says."""
    label = value_at(row, entry["label_column_name"])
    decimals = entry.get("target_decimals")
    return checked_number(label, entry) if decimals is None else float(number_text(label, entry))


def answer_text(value: float, low: float = -np.inf, high: float = np.inf) -> str:
    """A head's number as the text that metrics parse, clipped to the task's range: the digits of a float32.

    >>> answer_text(5.3, 0.0, 5.0), answer_text(1.25e-05)
    ('5.0', '0.0000125')
    """
    return plain_decimal(np.float32(np.clip(value, low, high))) if np.isfinite(value) else "nan"
