"""`t5suite tokenizer train`: a tokenizer from one's own text.

t5suite tokenizer train --type unigram --input articles.jsonl.gz --vocab_size 32000 --output_dir tokenizers/articles
"""

import sys
import time

from t5suite.base.errors import ConfigError
from t5suite.commands.shared import add_json_flag, note, print_json, show_text

TYPES = ("unigram", "wordpiece", "bpe")  # of `tokenizer_training.TRAINERS`, which imports NumPy


def tokenizer_flags(parser) -> None:
    """Flags of `t5suite tokenizer`."""
    parser.add_argument("action", choices=["train"], help="train: make a tokenizer from text")
    parser.add_argument("--type", required=True, choices=TYPES, help="unigram: T5; wordpiece: BERT; bpe: GPT-2 (bytes)")
    parser.add_argument(
        "--input", required=True, nargs="+", metavar="FILE", help="files, folders, patterns, or hub:PATH:CONFIG:SPLIT"
    )
    parser.add_argument("--output_dir", required=True, help="the tokenizer's folder; must be new")
    parser.add_argument("--vocab_size", required=True, type=int, help="len(tokenizer), special tokens included")
    reading = parser.add_argument_group("text")
    reading.add_argument("--text_column_name", default="text", help="where rows hold the text (default: text)")
    reading.add_argument("--text_unit", default="line", help="a document of a .txt file: line, paragraph or file")
    reading.add_argument(
        "--bad_lines", default="error", help="error: stop at a line that cannot be read; skip: count it"
    )
    reading.add_argument("--max_documents", type=int, help="read the first so many documents")
    reading.add_argument("--sample_documents", type=int, help="train on so many of them, drawn at random by --seed")
    reading.add_argument("--seed", type=int, default=42, help="of --sample_documents (default: 42)")
    reading.add_argument(
        "--validation_fraction", type=float, default=0.01, help="share of documents held out, for the figures (0.01)"
    )
    making = parser.add_argument_group("pieces")
    making.add_argument("--num_sentinels", type=int, help="unigram: <extra_id_0>, ... (default: 100)")
    making.add_argument("--normalization", help="unigram: nmt_nfkc (default), nmt_nfkc_cf, nfkc, nfkc_cf, identity")
    making.add_argument(
        "--byte_fallback", action="store_true", default=None, help="unigram: spell unknown characters in bytes"
    )
    making.add_argument(
        "--character_coverage", type=float, help="unigram, wordpiece: share of characters with pieces (default: 0.9995)"
    )
    making.add_argument("--lowercase", action="store_true", default=None, help="wordpiece: lower case without accents")
    add_json_flag(parser)


def run_tokenizer(arguments) -> None:
    """Trains, writes the folder, loads it as a user would and shows what came out."""
    from t5suite.data.corpora.tokenizer_training import TrainingTexts, check_new_folder, train_files, write_folder

    began = time.monotonic()
    check_new_folder(arguments.output_dir)
    settings = settings_of(arguments)
    reading = ("text_column_name", "text_unit", "bad_lines", "max_documents", "sample_documents", "seed")
    texts = TrainingTexts(
        arguments.input,
        **{name: getattr(arguments, name) for name in reading},
        validation_fraction=arguments.validation_fraction,
    )
    write_folder(arguments.output_dir, train_files(arguments.type, texts, settings))
    if texts.tally.left_out:
        note(f"left out: {texts.tally.summary()}")
    report = report_of(arguments, texts, round(time.monotonic() - began, 1))
    print_json(report) if arguments.json else _print_report(report)


def settings_of(arguments):
    """The `TokenizerSettings` of the flags.

    Raises:
      ConfigError: a flag that this type of tokenizer does not look at.
    """
    from t5suite.data.corpora.tokenizer_training import SETTINGS_OF, TokenizerSettings

    every = sorted({name for names in SETTINGS_OF.values() for name in names})
    given = {name: getattr(arguments, name) for name in every if getattr(arguments, name) is not None}
    for name in given:
        if name not in SETTINGS_OF[arguments.type]:
            kinds = " and ".join(kind for kind, names in SETTINGS_OF.items() if name in names)
            raise ConfigError(f"--{name}: for --type {kinds}; {arguments.type} has no such setting")
    return TokenizerSettings(arguments.vocab_size, **given)


def report_of(arguments, texts, seconds: float) -> dict:
    """What came out: the figures of the loaded folder, on held-out text where there is some."""
    from transformers import AutoTokenizer

    from t5suite.data.corpora.tokenizer_training import measure, sample_encoding, special_ids

    tokenizer = AutoTokenizer.from_pretrained(arguments.output_dir)
    if not texts.held_out:
        note("no document fell to the held-out share: the figures are of training documents")
    measured = texts.held_out or texts.first
    return {
        "output_dir": arguments.output_dir,
        "type": arguments.type,
        "pieces": len(tokenizer),
        "training_documents": texts.num_documents,
        "held_out": bool(texts.held_out),
        **measure(tokenizer, measured),
        "special_ids": special_ids(tokenizer),
        "sample": sample_encoding(tokenizer, measured[0]),
        "left_out": texts.tally.left_out,
        "seconds": seconds,
    }


def _print_report(report: dict) -> None:
    where = "held-out" if report["held_out"] else "training"
    ids = list(report["special_ids"].items())
    shown = ", ".join(f"{token} {number}" for token, number in (ids if len(ids) < 8 else [*ids[:4], ids[-1]]))
    lines = {
        "folder": report["output_dir"],
        "pieces": f"{report['pieces']} ({report['type']}), from {report['training_documents']} documents",
        "measured": f"on {report['documents']} {where} documents, {report['words']} words, {report['tokens']} tokens",
        "per word": f"{report['tokens_per_word']:.3f} tokens; {report['bytes_per_token']:.2f} bytes a token",
        "unknown": f"{report['unk_rate']:.3f} % of the tokens",
        "special": shown,
        "text": report["sample"]["text"],
        "tokens": " ".join(report["sample"]["tokens"]),
        "decoded": report["sample"]["decoded"],
        "seconds": report["seconds"],
    }
    for name, value in lines.items():
        show_text(f"{name:<8}  {value}")
    sys.stdout.flush()
