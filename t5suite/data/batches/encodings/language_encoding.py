"""Text to text in languages that the tokenizer names: mBART, M2M100, NLLB, multilingual Marian."""

import re
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find, suggestion
from t5suite.data.batches.encodings.text_encoding import TextEncoding
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.formatters import Example
from t5suite.tasks.languages import Languages
from t5suite.tasks.registry import Task

LANGUAGE_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")  # de_DE, deu_Latn


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
        for flag, code in zip(Languages._fields, self.languages[:2], strict=False):
            if code is not None:
                find(code, self.ids, "language of the tokenizer", where=f"--{flag}")
        if self.form == "last" and self.languages.target_lang_column is not None:
            raise ConfigError("--target_lang_column: a model of mBART-25's kind writes one language: --target_lang")

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
    def setting_of_target(self) -> str:
        """The setting of generation that has the language of answers."""
        return "forced_bos_token_id" if self.form == "first" else "decoder_start_token_id"

    @property
    def key(self) -> str:
        """What caches must distinguish."""
        return "languages\x00" + "\x00".join(map(str, self.languages))

    @property
    def num_fixed_tokens(self) -> int:
        """1 if answers begin with their language code, else 0."""
        return int(self.form == "first")

    @property
    def described(self) -> dict:
        """Its description in the manifest."""
        return {"form": "text to text", **{name: code for name, code in self.languages._asdict().items() if code}}

    def languages_of(self, row) -> tuple[str | None, str | None]:
        """`Languages.of`, of those that the tokenizer has.

        Raises:
          DataError: a column of languages is missing or empty, or holds none of them.
        """
        languages = self.languages.of(row)
        self.check_codes(languages)
        return languages

    def check_codes(self, languages: tuple[str | None, str | None]) -> None:
        """Refuses the languages of a row if the tokenizer does not have them.

        Raises:
          DataError: names the column and the code.
        """
        for flag, column, code in zip(Languages._fields[2:], self.languages[2:], languages, strict=True):
            if column is not None and code not in self.ids:
                raise DataError(
                    f"column {column!r} (--{flag}) holds {code!r:.100}, no language of the tokenizer; "
                    f"{suggestion(code, self.ids)}"
                )

    def columns(self, examples: ExampleSet, task: Task) -> dict[str, list]:
        """`input_ids` and `labels`, one of each per example, in the languages of their rows."""
        languages = [self.languages_of(row) for row, _ in examples.pairs()]
        return {
            "input_ids": self.prompts([example.inputs for example in examples.examples], languages),
            "labels": self.answers([example.targets for example in examples.examples], languages),
        }

    def shown(self, example: Example, row, task: Task) -> str:
        """As `TextEncoding.shown`, with the language's mark if the model reads one."""
        return self.with_cut((example.inputs,), self.languages.of(row))

    def with_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> str:
        """As `TextEncoding.with_cut`, with the language's mark if the model reads one."""
        return super().with_cut(self._marked_texts(texts, languages))

    def num_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> int:
        """As `TextEncoding.num_cut`; the language's mark is a part of the text."""
        return super().num_cut(self._marked_texts(texts, languages))

    def _marked_texts(self, texts: tuple[str, ...], languages: tuple | None) -> tuple[str, ...]:
        _, target = languages or self.languages[:2]
        return tuple(self._marked(text, target) for text in texts)

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
        if not languages:
            languages = [self.languages[:2]] * len(texts)
        places_by_languages = {}
        for place, source_and_target in enumerate(languages):
            places_by_languages.setdefault(source_and_target, []).append(place)
        ids_of_texts = [None] * len(texts)
        for (source, target), places in places_by_languages.items():
            with self._reading(source, target):
                ids_of_places = read([texts[place] for place in places], target)
            for place, ids in zip(places, ids_of_places, strict=True):
                ids_of_texts[place] = ids
        return ids_of_texts

    @contextmanager
    def _reading(self, source: str | None, target: str | None):
        """Sets the tokenizer's source and target languages within the block; None: its default."""
        tokenizer = self.tokenizer
        if self.is_marked:
            yield
            return
        default_source = tokenizer.src_lang
        default_target = tokenizer.tgt_lang
        try:
            tokenizer.src_lang = source or default_source
            tokenizer.tgt_lang = target or default_target or source or default_source
            yield
        finally:
            tokenizer.tgt_lang = default_target
            tokenizer.src_lang = default_source
