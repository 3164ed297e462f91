"""The text of a pre-training run as tokens on disk, one long row a corpus: what is trained on, and what is held out.

    >>> text = tokenized_text(tokenizer, "runs/x/corpus", TextSettings(), train_files=["articles.jsonl.gz"])
    >>> [len(tokens) for tokens in text.train], [len(tokens) for tokens in text.validation]
    ([363520], [18744])

Files are tokenized once, into the run's directory; a corpus that `t5suite corpus build` made is mapped in place. Whole
documents are held out, chosen by their text, or in an adopted corpus by their ids: no training example of the same
corpus contains a part of one.
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

# The `validation_fraction` of text that is only scored.
ALL_DOCUMENTS = 1.0
# What the manifest of a run repeats of a corpus's own.
DESCRIBED_FIELDS = ("sources", "splits", "tokenizer", "settings")


class OtherTextError(ConfigError):
    """The corpus in a folder of a run is not of the text and the settings that the run has now."""

    def __init__(self, message: str, directory: Path):
        super().__init__(message)
        self.directory = directory


@dataclass(frozen=True)
class TextSettings:
    """How text is read, held out and tokenized.

    Attributes:
      options: columns, units and errors of the files.
      validation_files: what is scored; nothing is held out of the training text then.
      validation_fraction: the share of the training text's documents that is held out if there are no validation files.
      document_separator: 'eos' between documents, or 'none'.
      tokenizer_engine: which encoder is used: auto compares a sample of the ids (`make_text_encoder`).
      split_sentences: the language whose rules split sentences, such as 'en', for pairs of them; None keeps documents
        whole.
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
        _, text_args, objective_args, _, args = arguments  # model, text, objective, run, training
        engine = "auto"
        if "quick_tokenizer" in reference_code(args.reference_code):  # the fast way is turned off
            engine = "tokenizers"
        return cls(
            TextOptions(text_args.text_column_name, text_args.text_unit, text_args.bad_lines),
            validation_files=text_args.validation_file or (),
            validation_fraction=text_args.validation_fraction,
            document_separator=objective_args.separator,
            tokenizer_engine=engine,
            split_sentences=objective_args.sentence_language if objective_args.sentence_pairs else None,
        )

    @property
    def held_out_fraction(self) -> float:
        """The share of the training text's documents that is held out."""
        return 0.0 if self.validation_files else self.validation_fraction

    def build(self, files: Iterable[str], directory: Path, tokenizer, validation_fraction: float) -> TokenStore:
        """The corpus of files in a directory: opened if it is there, else tokenized into it.

        Raises:
          OtherTextError: the directory holds the corpus of other files, of other settings or of another tokenizer, or
            the files have changed since.
        """
        settings = CorpusSettings(
            self.options,
            validation_fraction=validation_fraction,
            document_separator=self.document_separator,
            split_sentences=self.split_sentences,
        )
        try:
            return build_corpus(files, directory, tokenizer, settings, tokenizer_engine=self.tokenizer_engine)
        except (ChangedDataError, AnotherCorpusError) as error:
            raise OtherTextError(str(error), directory) from None


class Text(NamedTuple):
    """What is trained on and what is scored, one long row of tokens each, and what the manifest says of each corpus."""

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
    """The text of built corpora, or else of files (by default the bundled one), as memory-mapped tokens.

    Args:
      directory: where text that is tokenized here is stored.
      corpora: folders of built corpora, to train on instead of `train_files`.
      are_separate: every entry of `train_files` is a separate corpus, to be mixed by weight.
      trains: False if the run only evaluates: its `Text.train` is empty.

    Raises:
      OtherTextError: `directory` holds a corpus of other text or settings (`TextSettings.build`).
      ConfigError: a corpus was built with another tokenizer.
      DataError: no document is held out.
    """
    if not (train_files or settings.validation_files or corpora):
        train_files = [str(bundled_text("train"))]
        settings = replace(settings, validation_files=[str(bundled_text("validation"))])
    directory = Path(directory)
    stores: dict[str, TokenStore] = {}
    scores_training_text = not settings.validation_files  # the documents that are held out of it
    if corpora:  # flags that name files, too, have been refused
        stores = _opened_corpora(corpora)
    elif train_files and (trains or scores_training_text):
        groups = [[file] for file in train_files] if are_separate else [list(train_files)]
        stores = _built_corpora(groups, directory, settings, tokenizer)
    for store in stores.values():
        store.check_tokenizer(tokenizer)
    train = [store.split("train") for store in stores.values()] if trains else []
    scored_stores = list(stores.values())
    if settings.validation_files:
        validation_store = settings.build(
            settings.validation_files, directory / "validation", tokenizer, validation_fraction=ALL_DOCUMENTS
        )
        stores["validation"] = validation_store
        scored_stores = [validation_store]
    for store in scored_stores:
        check_held_out(store)
    if trains and scores_training_text:
        _warn_of_different_rules(scored_stores)
    described = {name: describe_store(store) for name, store in stores.items()}
    return Text(train, [store.split("validation") for store in scored_stores], described)


def _opened_corpora(folders: Sequence[str]) -> dict[str, TokenStore]:
    """Corpora that were built before, by their names in the manifest; the hashes of new files are compared once."""
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


def _warn_of_different_rules(stores: Sequence[TokenStore]) -> None:
    """Warns if a document of two corpora may be held out of one and trained on in the other."""
    rules = {}
    for store in stores:
        content = "ids" if "adopted" in store.manifest else "text"
        fraction = store.manifest["settings"]["validation_fraction"]
        rules[store.directory] = f"--validation_fraction {fraction} by the hash of the {content}"
    if len(set(rules.values())) > 1:
        logger.warning(
            "the corpora hold out documents by different rules, so one that is in two of them may be trained on and "
            "scored: %s; corpora of one rule, or a --validation_file, avoid that",
            ", ".join(f"{directory} {rule}" for directory, rule in rules.items()),
        )


def describe_store(store: TokenStore) -> dict:
    """What the manifest of a run says of a corpus."""
    return {"path": str(store.directory), **{name: store.manifest[name] for name in DESCRIBED_FIELDS}}


def tokenized_anew_if_allowed(args, tokenizer, directory: Path, settings: TextSettings, **sources) -> Text:
    """`tokenized_text`; each corpus in `directory` of other text or settings is rebuilt where that is allowed.

    It is until the run's first step: a start that ended early has left its corpus there, and the next one may have
    other flags. Later it takes `--allow_changed data`.

    Raises:
      ConfigError: the text has changed since the run began to train, or `--train_corpus` names what would be rebuilt.
    """
    while True:
        try:
            return tokenized_text(tokenizer, directory, settings, **sources)
        except OtherTextError as error:  # names one folder; the next round may find another
            _check_may_be_rebuilt(error, args, sources.get("corpora", ()))
            shutil.rmtree(error.directory)


def _check_may_be_rebuilt(error: OtherTextError, args, corpora: Sequence[str]) -> None:
    """Refuses to rebuild a corpus that the run has trained on, or that it names as one to train on."""
    for folder in corpora:
        if Path(folder).resolve().is_relative_to(error.directory.resolve()):
            raise ConfigError(
                f"--train_corpus {folder}: the --validation_file would be tokenized into it; move the corpus, or give "
                "another --output_dir"
            ) from None
    if not has_trained(args.output_dir):
        logger.warning("the run has not trained yet, so its corpus is rebuilt: %s", error)
    elif "data" in allowed_names(args.allow_changed):
        logger.warning("%s; --allow_changed data: the corpus is rebuilt", error)
    else:
        raise ConfigError(
            f"the data of this run have changed: {error}; or rebuild its corpus: --allow_changed data"
        ) from None
