"""`t5suite corpus` and `t5suite tokenizer`: text -> tokens on disk, their contents, collocations, a trained tokenizer.

t5suite corpus build --input crawl/ --tokenizer_name google/t5-v1_1-base --output_dir corpus --num_workers 16
t5suite tokenizer train --type unigram --input articles.jsonl.gz --vocab_size 32000 --output_dir tokenizers/articles
"""

import re
import sys
import time
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find, load_object
from t5suite.commands.shared import add_json_flag, check_at_least, check_output_folder, note, print_json, show_text

BUILD_HELP = "tokenize text once, into files that training maps into memory"
SHOW_HELP = "show what a corpus holds, and what training makes of it"
COLLOCATIONS_HELP = "find the collocations of a built corpus, for --mask_units pmi"
BUILD_EXAMPLES = """examples:
  t5suite corpus build --input books/ crawl/*.jsonl.zst --tokenizer_name google/t5-v1_1-base --output_dir corpus
  t5suite corpus build --input hub:allenai/c4:en:train --tokenizer_name google/t5-v1_1-base --output_dir c4 \\
      --num_workers 8 --shard $SLURM_ARRAY_TASK_ID/64       # the job that ends last writes corpus.json

A build that was killed resumes when the same command runs again."""
SHOW_EXAMPLE = "example:\n  t5suite corpus show corpus --objective prefix_lm --json"
COLLOCATIONS_EXAMPLE = "example:\n  t5suite corpus collocations corpus --output_file collocations.jsonl"
INPUT_HELP = (
    "files, folders, patterns or hub:PATH[@REVISION][:CONFIG[:SPLIT]]; .txt, .jsonl, .json, .parquet, .gz, .zst"
)
# The paper's table of collocations has 800,000 for 16 GB of text (arXiv:2010.01825); a small corpus has fewer
# meaningful ones.
MOST_COLLOCATIONS = 800_000
TOKENS_A_COLLOCATION = 50
TYPES = ("unigram", "wordpiece", "bpe")  # of `tokenizer_training.TRAINERS`, which imports NumPy


def corpus_flags(parser) -> None:
    """Flags of `t5suite corpus build`, `show` and `collocations`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help=BUILD_HELP, description=BUILD_HELP, epilog=BUILD_EXAMPLES)
    add = build.add_argument
    add("--input", required=True, nargs="+", metavar="INPUT", help=INPUT_HELP)
    add("--output_dir", required=True, help="the corpus's folder")
    add("--tokenizer_name", required=True, help="hub name or folder of the tokenizer")
    _reading_flags(build)
    add = build.add_argument_group("corpus").add_argument
    held_out = "share of documents that are held out (default: 0.01)"
    add("--validation_fraction", type=float, default=0.01, help=held_out)
    add("--document_separator", default="none", help="what ends a document: none (default, as T5), eos, or a TOKEN")
    starts = "note where sentences start, for sentence pairs (default language: en)"
    add("--split_sentences", nargs="?", const="en", metavar="LANGUAGE", help=starts)
    add = build.add_argument_group("work").add_argument
    add("--num_workers", type=int, default=1, help="processes (default: 1)")
    engine = "the encoder; all give the same ids (default: auto)"
    add("--tokenizer_engine", choices=("auto", "tokenizers"), default="auto", help=engine)
    add("--shard", metavar="I/N", help="this job's share of the work, I from 0 to N - 1")
    unit = "text of a unit of work, and so of a shard (default: 64)"
    add("--unit_megabytes", type=float, default=64.0, help=unit)
    add_json_flag(build)

    show = actions.add_parser("show", help=SHOW_HELP, description=SHOW_HELP, epilog=SHOW_EXAMPLE)
    add = show.add_argument
    add("corpus", help="the folder of a corpus")
    add("--tokenizer_name", help="if not the one that the corpus names")
    add("--objective", default="span_corruption", help="what corrupts the examples (default: span_corruption)")
    add("--inputs_length", type=int, default=512, help="tokens of an example's inputs (default: 512)")
    add("--num_examples", type=int, default=3, help="examples to show (default: 3)")
    add("--check_hashes", action="store_true", help="compare every file's SHA-256 with the manifest")
    add_json_flag(show)

    help_text = COLLOCATIONS_HELP
    table = actions.add_parser("collocations", help=help_text, description=help_text, epilog=COLLOCATIONS_EXAMPLE)
    add = table.add_argument
    add("corpus", help="the folder of a corpus")
    add("--output_file", required=True, help="where the table goes: JSON lines")
    add("--tokenizer_name", help="if not the one that the corpus names")
    add("--num_collocations", type=int, help="size of the table (default: one for 50 tokens, at most 800,000)")
    add("--max_ngram", type=int, default=5, help="tokens of the longest (default: 5)")
    add("--min_count", type=int, default=10, help="how often each must occur (default: 10)")
    add("--max_tokens", type=int, default=100_000_000, help="count these first tokens (default: 1e8)")
    add_json_flag(table)


def _reading_flags(parser):
    group = parser.add_argument_group("text")
    group.add_argument("--text_column_name", default="text", help="where rows hold the text (default: text)")
    unit = "a document of a .txt file: line (default), paragraph or file"
    group.add_argument("--text_unit", default="line", help=unit)
    said = "error: stop at a line that cannot be read (default); skip: count and name it"
    group.add_argument("--bad_lines", default="error", help=said)
    return group


def run_corpus(arguments) -> None:
    """Builds or shows a corpus, or finds its collocations."""
    {"build": build, "show": show, "collocations": collocations}[arguments.action](arguments)


def build(arguments) -> None:
    """Builds a corpus, or a job's share of it."""
    from t5suite.data.corpora.building import build_corpus, check_work
    from t5suite.data.corpora.documents import list_sources

    shard = None
    if arguments.shard:
        match = re.fullmatch(r"(\d+)/(\d+)", arguments.shard)
        if not match:
            raise ConfigError(f"--shard {arguments.shard!r}: must be I/N, such as 0/64 for the first of 64 jobs")
        shard = int(match[1]), int(match[2])
    check_work(arguments.num_workers, shard)
    check_output_folder("--output_dir", arguments.output_dir, *arguments.input)
    list_sources(arguments.input)
    from t5suite.data.corpora.readers import TextOptions
    from t5suite.models.loading import load_tokenizer

    store = build_corpus(
        arguments.input,
        arguments.output_dir,
        load_tokenizer(arguments.tokenizer_name),
        options=TextOptions(arguments.text_column_name, arguments.text_unit, arguments.bad_lines),
        validation_fraction=arguments.validation_fraction,
        document_separator=arguments.document_separator,
        split_sentences=arguments.split_sentences,
        unit_megabytes=arguments.unit_megabytes,
        num_workers=arguments.num_workers,
        shard=shard,
        tokenizer_engine=arguments.tokenizer_engine,
        progress=_print_progress,
    )
    if store is None:
        note(f"shard {arguments.shard} is finished; {arguments.output_dir}/corpus.json is written when all others are")
    else:
        _print_corpus(store, arguments.json)


def _print_progress(progress) -> None:
    speed = progress.tokens / progress.seconds if progress.seconds else 0
    done = f"{progress.units}/{progress.num_units} units, {progress.documents} documents, {progress.tokens} tokens"
    print(f"{done}, {progress.seconds:.0f} s ({speed / 1e6:.2f} M tokens/s)", file=sys.stderr, flush=True)


def show(arguments) -> None:
    """Shows a built corpus, and blocks of it before and after an objective."""
    from t5suite.data.objectives import OBJECTIVES

    check_at_least(arguments, num_examples=0)
    if find(arguments.objective, OBJECTIVES, "objective", where="--objective").family != "seq2seq":
        known = ", ".join(name for name, entry in OBJECTIVES.items() if entry.family == "seq2seq")
        raise ConfigError(f"--objective {arguments.objective} has no inputs and targets to show; choose from {known}")
    from t5suite.data.corpora.store import describe_blocks, sample_blocks
    from t5suite.training.pre_training import seq2seq_collator

    store, tokenizer = _open(arguments, check_hashes=arguments.check_hashes)
    collator = seq2seq_collator(arguments.objective, tokenizer, arguments.inputs_length)
    _print_corpus(store, arguments.json, {arguments.objective: describe_blocks(store, collator)})
    split = next(name for name, counts in store.manifest["splits"].items() if counts["tokens"])
    examples = list(sample_blocks(store.split(split), collator, arguments.num_examples))
    if len(examples) < arguments.num_examples:
        note(f"{split} has {len(examples)} whole blocks; a lower --inputs_length gives more")
    for example in examples:
        texts = {name: tokenizer.decode(example[name]) for name in ("tokens", "inputs", "targets")}
        if arguments.json:
            print_json({"split": split, "block": example["block"], **texts})
        else:
            print(f"\nblock {example['block']} of {split}")
            for name, text in texts.items():
                show_text(f"  {name:<8}  {text}")


def _open(arguments, **options) -> tuple:
    """A corpus and its tokenizer."""
    from t5suite.data.corpora.store import TokenStore
    from t5suite.models.loading import load_tokenizer

    store = TokenStore.open(arguments.corpus, **options)
    tokenizer = load_tokenizer(arguments.tokenizer_name or store.manifest["tokenizer"]["name"])
    store.check_tokenizer(tokenizer)
    return store, tokenizer


def _print_corpus(store, as_json: bool, blocks: dict | None = None) -> None:
    from t5suite.data.corpora.store import describe_corpus

    facts = describe_corpus(store) | ({"blocks": blocks} if blocks else {})
    for source in facts["sources_without_documents"]:
        note(f"{source}: no document in it")
    if facts["left_out"]:
        note(f"skipped: {facts['left_out']}")
    if as_json:
        print_json(facts)
        return
    tokenizer = facts["tokenizer"]
    size = f"{tokenizer['vocabulary_size']} ids, {facts['dtype']}, encoded by {tokenizer['engine']}"
    print(f"corpus      {facts['directory']}, from {facts['sources']} sources, built in {facts['seconds']:.1f} s")
    print(f"tokenizer   {tokenizer['name']} ({size})")
    for name, counts in facts["splits"].items():
        said = "no documents"
        if counts["tokens"]:
            sentences = f" in {counts['sentences']} sentences" if "sentences" in counts else ""
            said = f"{counts['documents']} documents{sentences}, {counts['tokens']} tokens, "
            said += f"{counts['bytes_per_token']:.2f} bytes a token, {100 * counts['unk_rate']:.3f}% unknown\n"
            lengths = ", ".join(f"{part}% {length}" for part, length in counts["length_percentiles"].items())
            said += f"{'':<10}  tokens of a document: mean {counts['mean_length']:.1f}; {lengths}"
        print(f"{name:<10}  {said}")
    for objective, found in (blocks or {}).items():
        lengths = "/".join(map(str, found["tokens_length"]))
        into = f"{found['inputs_length']} inputs and {found['targets_length']} targets ({objective})"
        print(f"blocks      {found['train']} + {found['validation']} of {lengths} tokens, which become {into}")


def collocations(arguments) -> None:
    """Counts n-grams in memory (about 66 bytes a token) and writes the table; shows the strongest."""
    find_collocations = load_object("t5suite.contrib.collocations:find_collocations", "t5suite corpus collocations")
    save_collocations = load_object("t5suite.contrib.collocations:save_collocations", "t5suite corpus collocations")

    check_at_least(arguments, max_tokens=2)
    store, tokenizer = _open(arguments)
    tokens_P = store.split("train")[: arguments.max_tokens]
    wanted = arguments.num_collocations or min(MOST_COLLOCATIONS, max(4, len(tokens_P) // TOKENS_A_COLLOCATION))
    table = find_collocations(
        tokens_P,
        wanted,
        arguments.max_ngram,
        arguments.min_count,
        special_ids=tokenizer.all_special_ids,
        tokenizer=store.manifest["tokenizer"]["fingerprint"],
    )
    Path(arguments.output_file).parent.mkdir(parents=True, exist_ok=True)
    save_collocations(arguments.output_file, table)
    strongest = []
    for ids, count, pmi in zip(table.ngrams_KN[:10], table.counts_K, table.pmi_K):
        text = tokenizer.decode([i for i in ids.tolist() if i >= 0])
        strongest.append({"text": text, "count": int(count), "pmi": float(pmi)})
    if arguments.json:
        facts = {"output_file": arguments.output_file, "collocations": len(table), "tokens": len(tokens_P)}
        print_json({**facts, "strongest": strongest})
        return
    print(f"{len(table)} collocations of {len(tokens_P)} tokens in {arguments.output_file}")
    for row in strongest:
        show_text(f"  {row['pmi']:6.2f}  {row['count']:7}  {row['text']}")


# ---------------------------------------------------------------------------------------------------------------------
# Tokenizers


def tokenizer_flags(parser) -> None:
    """Flags of `t5suite tokenizer`."""
    add = parser.add_argument
    add("action", choices=["train"], help="train: make a tokenizer from text")
    add("--type", required=True, choices=TYPES, help="unigram: T5; wordpiece: BERT; bpe: GPT-2 (bytes)")
    add("--input", required=True, nargs="+", metavar="INPUT", help=INPUT_HELP)
    add("--output_dir", required=True, help="the tokenizer's folder; must be new")
    add("--vocab_size", required=True, type=int, help="len(tokenizer), special tokens included")
    add = _reading_flags(parser).add_argument
    add("--max_documents", type=int, help="read only this many documents, from the first")
    held_out = "share of documents held out, for the figures (default: 0.01)"
    add("--validation_fraction", type=float, default=0.01, help=held_out)
    add = parser.add_argument_group("pieces").add_argument
    add("--num_sentinels", type=int, help="unigram: <extra_id_0>, ... (default: 100)")
    add("--normalization", help="unigram: nmt_nfkc (default), nmt_nfkc_cf, nfkc, nfkc_cf, identity")
    fallback = "unigram: spell unknown characters in bytes"
    add("--byte_fallback", action="store_true", default=None, help=fallback)
    coverage = "unigram, wordpiece: share of characters with pieces (default: 0.9995)"
    add("--character_coverage", type=float, help=coverage)
    add("--lowercase", action="store_true", default=None, help="wordpiece: lower case without accents")
    add_json_flag(parser)


def run_tokenizer(arguments) -> None:
    """Trains, writes the folder, loads it as a user would and shows the result.

    Raises:
      ConfigError: a flag that has no effect on this type of tokenizer.
    """
    from t5suite.data.corpora import tokenizer_training as training

    began = time.monotonic()
    training.check_new_folder(arguments.output_dir)
    names = sorted({name for names in training.SETTINGS_OF.values() for name in names})
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    for name in given:
        if name not in training.SETTINGS_OF[arguments.type]:
            kinds = " and ".join(kind for kind, names in training.SETTINGS_OF.items() if name in names)
            raise ConfigError(f"--{name}: for --type {kinds}; {arguments.type} has no such setting")
    settings = training.TokenizerSettings(arguments.vocab_size, **given)
    names = ("text_column_name", "text_unit", "bad_lines", "max_documents", "validation_fraction")
    reading = {name: getattr(arguments, name) for name in names}
    texts = training.TrainingTexts(arguments.input, **reading)
    training.write_folder(arguments.output_dir, training.train_files(arguments.type, texts, settings))
    if texts.tally.left_out:
        note(f"skipped: {texts.tally.summary()}")
    if not texts.held_out:
        note("no document was held out: the figures are from training documents")
    from transformers import AutoTokenizer

    tokenizer, measured = AutoTokenizer.from_pretrained(arguments.output_dir), texts.held_out or texts.first
    report = {
        "output_dir": arguments.output_dir,
        "type": arguments.type,
        "pieces": len(tokenizer),
        "training_documents": texts.num_documents,
        "held_out": bool(texts.held_out),
        **training.measure(tokenizer, measured),
        "special_ids": training.special_ids(tokenizer),
        "left_out": texts.tally.left_out,
        "seconds": round(time.monotonic() - began, 1),
    }
    if arguments.json:
        print_json(report)
        return
    where = "held-out" if report["held_out"] else "training"
    ids = list(report["special_ids"].items())
    lines = {
        "folder": report["output_dir"],
        "pieces": f"{report['pieces']} ({report['type']}), from {report['training_documents']} documents",
        "measured": f"on {report['documents']} {where} documents, {report['words']} words, {report['tokens']} tokens",
        "per word": f"{report['tokens_per_word']:.3f} tokens; {report['bytes_per_token']:.2f} bytes a token",
        "unknown": f"{report['unk_rate']:.3f} % of the tokens",
        "special": ", ".join(f"{token} {number}" for token, number in (ids if len(ids) < 8 else [*ids[:4], ids[-1]])),
        "seconds": report["seconds"],
    }
    for name, value in lines.items():
        show_text(f"{name:<8}  {value}")
