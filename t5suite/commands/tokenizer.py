"""`t5suite tokenizer`: a tokenizer trained on your own text.

t5suite tokenizer train --type unigram --input articles.jsonl.gz --vocab_size 32000 --output_dir tokenizers/articles
"""

import time

from t5suite.base.errors import ConfigError
from t5suite.base.files import check_new_folder
from t5suite.commands.path_checks import check_place
from t5suite.commands.shared import add_json_flag, note, print_json, show_text
from t5suite.commands.text_flags import INPUT_HELP, add_reading_flags

TYPES = ("unigram", "wordpiece", "bpe")  # of `t5suite.data.tokenizers.training.TRAINERS`, which imports NumPy
# With more special tokens than this, only the first and the last are shown.
MOST_SHOWN_TOKENS = 7


def tokenizer_flags(parser) -> None:
    """Flags of `t5suite tokenizer`."""
    add = parser.add_argument
    add("action", choices=["train"], help="train: make a tokenizer from text")
    add("--type", required=True, choices=TYPES, help="unigram: T5; wordpiece: BERT; bpe: GPT-2 (bytes)")
    add("--input", required=True, nargs="+", metavar="INPUT", help=INPUT_HELP)
    add("--output_dir", required=True, help="the tokenizer's folder; must be new")
    add("--vocab_size", required=True, type=int, help="len(tokenizer), special tokens included")
    add = add_reading_flags(parser).add_argument
    add(
        "--max_documents",
        type=int,
        help="read only this many documents, from the first (unigram takes 20 bytes of memory for a byte of text)",
    )
    add(
        "--validation_fraction",
        type=float,
        default=0.01,
        help="share of documents held out, for the figures (default: 0.01)",
    )
    add = parser.add_argument_group("pieces").add_argument
    add("--num_sentinels", type=int, help="unigram: <extra_id_0>, ... (default: 100)")
    add("--normalization", help="unigram: nmt_nfkc (default), nmt_nfkc_cf, nfkc, nfkc_cf, identity")
    add("--byte_fallback", action="store_true", default=None, help="unigram: spell unknown characters in bytes")
    add(
        "--character_coverage", type=float, help="unigram, wordpiece: share of characters with pieces (default: 0.9995)"
    )
    add("--lowercase", action="store_true", default=None, help="wordpiece: lower case without accents")
    add_json_flag(parser)


def run_tokenizer(arguments) -> None:
    """Trains, writes the folder, loads it as a user would and shows the result.

    Raises:
      ConfigError: a flag that has no effect on this type of tokenizer.
    """
    from t5suite.data.tokenizers.files import write_folder
    from t5suite.data.tokenizers.texts import TrainingTexts
    from t5suite.data.tokenizers.training import train_files

    start_time = time.monotonic()
    check_new_folder(arguments.output_dir)
    check_place("--output_dir", arguments.output_dir)
    settings = _settings_by_flags(arguments)
    texts = TrainingTexts(
        arguments.input,
        text_column_name=arguments.text_column_name,
        text_unit=arguments.text_unit,
        bad_lines=arguments.bad_lines,
        max_documents=arguments.max_documents,
        validation_fraction=arguments.validation_fraction,
    )
    files = train_files(arguments.type, texts, settings)
    write_folder(arguments.output_dir, files)
    if texts.tally.left_out:
        note(f"skipped: {texts.tally.summary()}")
    if not texts.held_out:
        note("no document was held out: the figures are from training documents")
    report = _measured_tokenizer(arguments.output_dir, arguments.type, texts)
    report["seconds"] = round(time.monotonic() - start_time, 1)
    if arguments.json:
        print_json(report)
    else:
        _print_tokenizer(report)


def _settings_by_flags(arguments):
    """The settings of this type of tokenizer.

    Raises:
      ConfigError: a flag of another type.
    """
    from t5suite.data.tokenizers.settings import TokenizerSettings
    from t5suite.data.tokenizers.training import SETTINGS_OF

    settings = {}
    for name in sorted({name for names in SETTINGS_OF.values() for name in names}):
        setting = getattr(arguments, name)
        if setting is None:
            continue
        if name not in SETTINGS_OF[arguments.type]:
            types = " and ".join(kind for kind, names in SETTINGS_OF.items() if name in names)
            raise ConfigError(f"--{name}: for --type {types}; {arguments.type} has no such setting")
        settings[name] = setting
    return TokenizerSettings(arguments.vocab_size, **settings)


def _measured_tokenizer(folder: str, kind: str, texts) -> dict:
    """What the saved tokenizer does with documents that were held out, or with the first ones."""
    from transformers import AutoTokenizer

    from t5suite.data.tokenizers.statistics import measure, special_ids

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return {
        "output_dir": folder,
        "type": kind,
        "pieces": len(tokenizer),
        "training_documents": texts.num_documents,
        "held_out": bool(texts.held_out),
        **measure(tokenizer, texts.held_out or texts.first),
        "special_ids": special_ids(tokenizer),
        "left_out": texts.tally.left_out,
    }


def _print_tokenizer(report: dict) -> None:
    """The report as lines."""
    split = "held-out" if report["held_out"] else "training"
    special_tokens = [f"{token} {token_id}" for token, token_id in report["special_ids"].items()]
    if len(special_tokens) > MOST_SHOWN_TOKENS:
        special_tokens = [*special_tokens[:4], special_tokens[-1]]
    lines = {
        "folder": report["output_dir"],
        "pieces": f"{report['pieces']} ({report['type']}), from {report['training_documents']} documents",
        "measured": f"on {report['documents']} {split} documents, {report['words']} words, {report['tokens']} tokens",
        "per word": f"{report['tokens_per_word']:.3f} tokens; {report['bytes_per_token']:.2f} bytes a token",
        "unknown": f"{report['unk_rate']:.3f} % of the tokens",
        "special": ", ".join(special_tokens),
        "seconds": report["seconds"],
    }
    for heading, text in lines.items():
        show_text(f"{heading:<8}  {text}")
