"""The text of a pre-training run as rows of tokens on disk: what is trained on, and the documents that are held out.

    >>> text = tokenized_text(tokenizer, "runs/x/corpus", TextSettings(), train_files=["articles.jsonl.gz"])
    >>> [len(tokens) for tokens in text.train], [len(tokens) for tokens in text.validation]
    ([363520], [18744])

Files are tokenized once, into the run's directory; a corpus that `t5suite corpus build` made is mapped in place. Whole
documents are held out, chosen by their text, so that no training example ever contains a part of one.
"""

import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import AnotherCorpusError, ChangedDataError, ConfigError, DataError
from t5suite.base.reference_code import reference_code
from t5suite.data.corpora.building import build_corpus
from t5suite.data.corpora.corpus_plan import CorpusSettings
from t5suite.data.corpora.documents import bundled_text
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.corpora.store import TokenStore
from t5suite.runs.directory import has_trained
from t5suite.runs.settings import allowed_names
from t5suite.training.processes.ranks import Ranks

# Lines of the log name the step, whichever module of it writes them.
logger = logging.getLogger("t5suite.training.pre_training")

# What the manifest of a run repeats of a corpus's own.
DESCRIBED_FIELDS = ("sources", "splits", "tokenizer", "settings")


@dataclass(frozen=True)
class TextSettings:
    """How text is read, held out and tokenized.

    Attributes:
      options: columns, units and errors of the files.
      validation_files: they are scored, and nothing is held out of the training text.
      validation_fraction: the share of the documents that is held out without them.
      document_separator: 'eos' between documents, or 'none'.
      split_sentences: a language, where sentence pairs are to be made.
    """

    options: TextOptions = field(default_factory=TextOptions)
    validation_files: Sequence[str] = ()
    validation_fraction: float = 0.05
    document_separator: str = "none"
    tokenizer_engine: str = "auto"
    split_sentences: str | None = None

    @classmethod
    def by_flags(cls, arguments) -> "TextSettings":
        """The settings of the flags."""
        _, text_args, objective_args, _, args = arguments
        return cls(
            TextOptions(text_args.text_column_name, text_args.text_unit, text_args.bad_lines),
            validation_files=text_args.validation_file or (),
            validation_fraction=text_args.validation_fraction,
            document_separator=objective_args.separator,
            tokenizer_engine="tokenizers" if "quick_tokenizer" in reference_code(args.reference_code) else "auto",
            split_sentences=objective_args.sentence_language if objective_args.sentence_pairs else None,
        )

    @property
    def held_out_fraction(self) -> float:
        """The share of the training text's documents that is held out."""
        return 0.0 if self.validation_files else self.validation_fraction

    def build(self, files: Iterable[str], directory: Path, tokenizer, validation_fraction: float) -> TokenStore:
        """The corpus of files, tokenized into a directory unless it is there."""
        settings = CorpusSettings(
            self.options,
            validation_fraction=validation_fraction,
            document_separator=self.document_separator,
            split_sentences=self.split_sentences,
        )
        return build_corpus(files, directory, tokenizer, settings, tokenizer_engine=self.tokenizer_engine)


class Text(NamedTuple):
    """Rows of tokens to train on, one for each corpus, held-out rows, and what the manifest says of each corpus."""

    train: list
    validation: list
    described: dict[str, dict]


def text_by_flags(arguments, tokenizer) -> Text:
    """The text that flags name. The main process tokenizes first, as long as it takes; the others use its result."""
    _, text_args, _, run_args, args = arguments
    with Ranks.of_process().main_first():
        return tokenized_anew_if_allowed(
            args,
            tokenizer,
            corpus_directory(args),
            TextSettings.by_flags(arguments),
            train_files=text_args.train_file or (),
            corpora=text_args.train_corpus or (),
            are_separate=text_args.corpus_weights is not None,
            trains=not run_args.eval_only,
        )


def corpus_directory(args) -> Path:
    """Where a run stores the text that it tokenizes."""
    return Path(args.output_dir) / "corpus"


def tokenized_text(
    tokenizer,
    directory,
    settings: TextSettings,
    *,
    train_files: Sequence[str] = (),
    corpora: Sequence[str] = (),
    are_separate: bool = False,
    trains: bool = True,
) -> Text:
    """The text of files (by default the bundled one), or of built corpora, as memory-mapped rows of tokens.

    Args:
      directory: where text that is tokenized here is stored.
      are_separate: every entry of `train_files` is a separate corpus, to be mixed by weight.

    Raises:
      DataError: no document is held out.
    """
    if not (train_files or settings.validation_files or corpora):
        train_files = [str(bundled_text("train"))]
        settings = replace(settings, validation_files=[str(bundled_text("validation"))])
    directory = Path(directory)
    stores: dict[str, TokenStore] = {}
    if corpora:
        stores = _opened_corpora(corpora)
    elif train_files and (trains or not settings.validation_files):
        groups = [[file] for file in train_files] if are_separate else [list(train_files)]
        stores = _built_corpora(groups, directory, settings, tokenizer)
    for store in stores.values():
        store.check_tokenizer(tokenizer)
    train = [store.split("train") for store in stores.values()] if trains else []
    held_out = list(stores.values())
    if settings.validation_files:
        stores["validation"] = settings.build(settings.validation_files, directory / "validation", tokenizer, 1.0)
        held_out = [stores["validation"]]
    for store in held_out:
        check_held_out(store)
    described = {name: describe_store(store) for name, store in stores.items()}
    return Text(train, [store.split("validation") for store in held_out], described)


def _opened_corpora(folders: Sequence[str]) -> dict[str, TokenStore]:
    """Corpora that were built before, by their names in the manifest."""
    names = names_of_corpora(len(folders))
    return {name: TokenStore.open(folder).check_once() for name, folder in zip(names, folders, strict=True)}


def _built_corpora(
    groups: list[list[str]], directory: Path, settings: TextSettings, tokenizer
) -> dict[str, TokenStore]:
    """Corpora of groups of files, tokenized into folders of a directory, by their names in the manifest."""
    stores = {}
    for name, files in zip(names_of_corpora(len(groups)), groups, strict=True):
        stores[name] = settings.build(files, directory / name, tokenizer, settings.held_out_fraction)
    return stores


def names_of_corpora(count: int) -> list[str]:
    """The names of the training corpora in the manifest, and of their folders in the run's directory.

    >>> names_of_corpora(1), names_of_corpora(2)
    (['train'], ['train-0', 'train-1'])
    """
    return ["train"] if count == 1 else [f"train-{number}" for number in range(count)]


def check_held_out(store: TokenStore) -> None:
    """Refuses a corpus of which nothing can be scored."""
    if not store.manifest["splits"]["validation"]["tokens"]:
        fraction = store.manifest["settings"]["validation_fraction"]
        raise DataError(
            f"{store.directory}: no document is held out at --validation_fraction {fraction}; raise it where "
            "the text is tokenized, or give a --validation_file"
        )


def describe_store(store: TokenStore) -> dict:
    """What the manifest of a run says of a corpus."""
    return {"path": str(store.directory), **{name: store.manifest[name] for name in DESCRIBED_FIELDS}}


def tokenized_anew_if_allowed(args, tokenizer, directory: Path, settings: TextSettings, **sources) -> Text:
    """`tokenized_text`; rebuilds the run's own corpus if its text or settings have changed and nothing depends on it.

    That is so before the first step (a refused run must not stand in the way of what cures it), and with
    `--allow_changed data`.

    Raises:
      ConfigError: the text has changed since the run began to train.
    """
    try:
        return tokenized_text(tokenizer, directory, settings, **sources)
    except (ChangedDataError, AnotherCorpusError) as error:
        if not has_trained(args.output_dir):
            logger.warning("the run has not trained yet, so its corpus is rebuilt: %s", error)
        elif "data" in allowed_names(args.allow_changed):
            logger.warning("%s; --allow_changed data: the corpus is rebuilt", error)
        else:
            raise ConfigError(
                f"the data of this run have changed: {error}; or rebuild its corpus: --allow_changed data"
            ) from None
    shutil.rmtree(directory)
    return tokenized_text(tokenizer, directory, settings, **sources)
