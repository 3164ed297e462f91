"""`t5suite corpus build` and `t5suite corpus show`: text -> tokens on disk, and a look at them.

t5suite corpus build --input crawl/ --tokenizer_name google/t5-v1_1-base --output_dir corpus --num_workers 16
t5suite corpus show corpus
"""

import re
import sys
import tempfile
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.commands.shared import add_json_flag, check_place, note, print_json, show_text

BUILD_EXAMPLES = """examples:
  t5suite corpus build --input books/ crawl/*.jsonl.zst --tokenizer_name google/t5-v1_1-base --output_dir corpus
  t5suite corpus build --input hub:allenai/c4:en:train --tokenizer_name google/t5-v1_1-base --output_dir c4 \\
      --num_workers 8 --shard $SLURM_ARRAY_TASK_ID/64       # the job that ends last writes corpus.json

A build that was killed goes on when the same command is given again."""
SHOW_EXAMPLES = """examples:
  t5suite corpus show corpus
  t5suite corpus show articles.jsonl.gz --tokenizer_name google/t5-v1_1-base --objective prefix_lm --json"""
INPUT_HELP = (
    "files, folders, patterns or hub:PATH[@REVISION][:CONFIG[:SPLIT]]; .txt, .jsonl, .json, .parquet, .gz, .zst"
)


def corpus_flags(parser) -> None:
    """Flags of `t5suite corpus build`, `show` and `collocations`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help=BUILD_HELP, description=BUILD_HELP, epilog=BUILD_EXAMPLES)
    show = actions.add_parser("show", help=SHOW_HELP, description=SHOW_HELP, epilog=SHOW_EXAMPLES)
    table = actions.add_parser("collocations", help=HELP, description=HELP, epilog=f"example:\n  {EXAMPLE}")
    _build_flags(build)
    _show_flags(show)
    collocation_flags(table)


BUILD_HELP = "tokenize text once, into files that training maps into memory"
SHOW_HELP = "show what a corpus or text files hold, and what training makes of it"


def _build_flags(parser) -> None:
    parser.add_argument("--input", required=True, nargs="+", metavar="INPUT", help=INPUT_HELP)
    parser.add_argument("--output_dir", required=True, help="the corpus's folder")
    parser.add_argument("--tokenizer_name", required=True, help="hub name or folder of the tokenizer")
    _reading_flags(parser, bad_lines="error")
    making = parser.add_argument_group("corpus")
    making.add_argument(
        "--validation_fraction", type=float, default=0.01, help="share of documents that are held out (default: 0.01)"
    )
    making.add_argument(
        "--document_separator", default="none", help="what ends a document: none (default, as T5), eos, or a TOKEN"
    )
    making.add_argument(
        "--split_sentences", nargs="?", const="en", metavar="LANGUAGE",
        help="note where sentences start, for sentence pairs (default language: en)",
    )  # fmt: skip
    making.add_argument("--max_documents", type=int, help="the first so many documents alone")
    working = parser.add_argument_group("work")
    working.add_argument("--num_workers", type=int, default=1, help="processes (default: 1)")
    working.add_argument(
        "--tokenizer_engine", choices=("auto", "sentencepiece", "tokenizers"), default="auto",
        help="what encodes, with the same ids; auto: SentencePiece where it is equal",
    )  # fmt: skip
    working.add_argument("--shard", metavar="I/N", help="this job's share of the work, I from 0 to N - 1")
    working.add_argument(
        "--unit_megabytes", type=float, default=64.0, help="text of a unit of work, and so of a shard (default: 64)"
    )
    add_json_flag(parser)


def _show_flags(parser) -> None:
    parser.add_argument("corpus", nargs="+", help="the folder of a corpus, or files as for `build --input`")
    parser.add_argument("--tokenizer_name", help="for files; a corpus knows its own")
    _reading_flags(parser, bad_lines="skip")
    parser.add_argument("--max_documents", type=int, help="of files, read so many (default: 10000)")
    parser.add_argument(
        "--objective", default="span_corruption", help="what corrupts the examples (default: span_corruption)"
    )
    parser.add_argument("--inputs_length", type=int, default=512, help="tokens of an example's inputs (default: 512)")
    parser.add_argument("--num_examples", type=int, default=3, help="examples to show (default: 3)")
    parser.add_argument("--check_hashes", action="store_true", help="compare every file's SHA-256 with the manifest")
    add_json_flag(parser)


def _reading_flags(parser, bad_lines: str) -> None:
    reading = parser.add_argument_group("text")
    reading.add_argument("--text_column_name", default="text", help="where rows hold the text (default: text)")
    reading.add_argument(
        "--text_unit", default="line", help="a document of a .txt file: line (default), paragraph or file"
    )
    reading.add_argument(
        "--bad_lines", default=bad_lines,
        help=f"error: stop at a line that cannot be read; skip: count and name it (default: {bad_lines})",
    )  # fmt: skip


def run_corpus(arguments) -> None:
    """Builds or shows a corpus, or finds its collocations."""
    ACTIONS[arguments.action](arguments)


# ---------------------------------------------------------------------------------------------------------------------
# build


def build(arguments) -> None:
    """Builds a corpus, or a job's share of it."""
    from t5suite.data.corpora.building import build_corpus, check_work
    from t5suite.data.corpora.documents import list_sources

    shard = parse_shard(arguments.shard) if arguments.shard else None
    check_work(arguments.num_workers, shard, arguments.max_documents)
    check_place("--output_dir", arguments.output_dir)
    list_sources(arguments.input)
    from t5suite.models.loading import load_tokenizer

    store = build_corpus(
        arguments.input,
        arguments.output_dir,
        load_tokenizer(arguments.tokenizer_name),
        options=_text_options(arguments),
        validation_fraction=arguments.validation_fraction,
        document_separator=arguments.document_separator,
        split_sentences=arguments.split_sentences,
        max_documents=arguments.max_documents,
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


def parse_shard(text: str) -> tuple[int, int]:
    """`I/N` as two numbers.

    >>> parse_shard("3/64")
    (3, 64)
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise ConfigError(f"--shard {text!r}: must be I/N, such as 0/64 for the first of 64 jobs")
    return int(match[1]), int(match[2])


def _print_progress(progress) -> None:
    speed = progress.tokens / progress.seconds if progress.seconds else 0
    print(
        f"{progress.units}/{progress.num_units} units, {progress.documents} documents, {progress.tokens} tokens, "
        f"{progress.seconds:.0f} s ({speed / 1e6:.2f} M tokens/s)",
        file=sys.stderr,
        flush=True,
    )


def _text_options(arguments):
    from t5suite.data.corpora.readers import TextOptions

    return TextOptions(arguments.text_column_name, arguments.text_unit, arguments.bad_lines)


# ---------------------------------------------------------------------------------------------------------------------
# show


def show(arguments) -> None:
    """Shows a built corpus; files are built into a temporary one first."""
    if arguments.num_examples < 0:
        raise ConfigError(f"--num_examples {arguments.num_examples}: must be at least 0")
    _check_objective(arguments.objective)
    from t5suite.data.corpora.building import build_corpus
    from t5suite.data.corpora.store import MANIFEST, TokenStore
    from t5suite.models.loading import load_tokenizer

    folder = Path(arguments.corpus[0])
    if len(arguments.corpus) == 1 and ((folder / MANIFEST).is_file() or any(folder.glob("shard-*"))):
        store = TokenStore.open(folder, check_hashes=arguments.check_hashes)
        tokenizer = load_tokenizer(arguments.tokenizer_name or store.manifest["tokenizer"]["name"])
        store.check_tokenizer(tokenizer)
        _note_idle(arguments, CORPUS_KNOWS, "is a corpus")
        _show_store(store, tokenizer, arguments)
        return
    _note_idle(arguments, {"check_hashes": False}, "is no corpus")
    if not arguments.tokenizer_name:
        raise ConfigError("--tokenizer_name is needed to show files that are not a built corpus")
    tokenizer = load_tokenizer(arguments.tokenizer_name)
    with tempfile.TemporaryDirectory() as temporary:
        store = build_corpus(
            arguments.corpus,
            Path(temporary) / "corpus",
            tokenizer,
            options=_text_options(arguments),
            validation_fraction=0,
            max_documents=10000 if arguments.max_documents is None else arguments.max_documents,
        )
        _show_store(store, tokenizer, arguments)


def _check_objective(name: str) -> None:
    from t5suite.data.objectives import OBJECTIVES

    shown = [other for other, entry in OBJECTIVES.items() if entry.family == "seq2seq"]
    if find(name, OBJECTIVES, "objective", where="--objective").family != "seq2seq":
        raise ConfigError(f"--objective {name} has no inputs and targets to show; choose from {', '.join(shown)}")


def _note_idle(arguments, defaults: dict, why: str) -> None:
    """Says which of the given flags change nothing."""
    for name, default in defaults.items():
        if getattr(arguments, name) != default:
            note(f"--{name} has no effect: {arguments.corpus[0]} {why}")


def _show_store(store, tokenizer, arguments) -> None:
    from t5suite.data.corpora.store import describe_blocks, sample_blocks
    from t5suite.training.pre_training import seq2seq_collator

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


def _print_corpus(store, as_json: bool, blocks: dict | None = None) -> None:
    from t5suite.data.corpora.store import describe_corpus

    facts = describe_corpus(store) | ({"blocks": blocks} if blocks else {})
    for source in facts["sources_without_documents"]:
        note(f"{source}: no document in it")
    if facts["left_out"]:
        note(f"left out: {facts['left_out']}")
    if as_json:
        print_json(facts)
        return
    tokenizer = facts["tokenizer"]
    size = f"{tokenizer['vocabulary_size']} ids, {facts['dtype']}, encoded by {tokenizer['engine']}"
    duplicates = "not counted" if facts["duplicates"] is None else facts["duplicates"]
    print(f"corpus      {facts['directory']}, from {facts['sources']} sources, built in {facts['seconds']:.1f} s")
    print(f"tokenizer   {tokenizer['name']} ({size})")
    for name, counts in facts["splits"].items():
        print(f"{name:<10}  {_said_of_split(counts)}")
    print(f"duplicates  {duplicates}")
    for objective, found in (blocks or {}).items():
        lengths = "/".join(map(str, found["tokens_length"]))
        into = f"{found['inputs_length']} inputs and {found['targets_length']} targets ({objective})"
        print(f"blocks      {found['train']} + {found['validation']} of {lengths} tokens, which become {into}")


def _said_of_split(counts: dict) -> str:
    if not counts["tokens"]:
        return "no documents"
    lengths = ", ".join(f"{name}% {length}" for name, length in counts["length_percentiles"].items())
    sentences = f" in {counts['sentences']} sentences" if "sentences" in counts else ""
    return (
        f"{counts['documents']} documents{sentences}, {counts['tokens']} tokens, {counts['bytes_per_token']:.2f} bytes "
        f"a token, {100 * counts['unk_rate']:.3f}% unknown\n"
        f"{'':<10}  tokens of a document: mean {counts['mean_length']:.1f}; {lengths}"
    )


# Flags of `show` that a built corpus makes idle, with their defaults.
CORPUS_KNOWS = {"text_column_name": "text", "text_unit": "line", "bad_lines": "skip", "max_documents": None}


# ---------------------------------------------------------------------------------------------------------------------
# `t5suite corpus collocations`: the table of word groups that `--mask_units pmi` hides as wholes.
#
# t5suite corpus collocations corpus --output_file collocations.jsonl


HELP = "find the collocations of a built corpus, for --mask_units pmi"
EXAMPLE = "t5suite corpus collocations corpus --output_file collocations.jsonl"
# The paper's table has 800,000 for 16 GB of text (arXiv:2010.01825); a small corpus has fewer that mean anything.
MOST_COLLOCATIONS = 800_000
TOKENS_A_COLLOCATION = 50


def collocation_flags(parser) -> None:
    """Flags of `t5suite corpus collocations`."""
    parser.add_argument("corpus", help="the folder of a corpus")
    parser.add_argument("--output_file", required=True, help="where the table goes: JSON lines")
    parser.add_argument("--tokenizer_name", help="if not the one that the corpus names")
    parser.add_argument(
        "--num_collocations", type=int, help="size of the table (default: one for 50 tokens, at most 800,000)"
    )
    parser.add_argument("--max_ngram", type=int, default=5, help="tokens of the longest (default: 5)")
    parser.add_argument("--min_count", type=int, default=10, help="how often each must occur (default: 10)")
    parser.add_argument("--max_tokens", type=int, default=100_000_000, help="count these first tokens (default: 1e8)")
    add_json_flag(parser)


def collocations(arguments) -> None:
    """Counts n-grams in memory (about 66 bytes a token) and writes the table; shows the strongest."""
    from t5suite.data.corpora.collocations import find_collocations, save_collocations
    from t5suite.data.corpora.store import TokenStore
    from t5suite.models.loading import load_tokenizer

    if arguments.max_tokens < 2:
        raise ConfigError(f"--max_tokens {arguments.max_tokens}: must be at least 2")
    store = TokenStore.open(arguments.corpus)
    tokenizer = load_tokenizer(arguments.tokenizer_name or store.manifest["tokenizer"]["name"])
    store.check_tokenizer(tokenizer)
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
    strongest = [_row(tokenizer, *row) for row in zip(table.ngrams_KN[:10], table.counts_K, table.pmi_K)]
    if arguments.json:
        facts = {"output_file": arguments.output_file, "collocations": len(table), "tokens": len(tokens_P)}
        print_json({**facts, "strongest": strongest})
        return
    print(f"{len(table)} collocations of {len(tokens_P)} tokens in {arguments.output_file}")
    for row in strongest:
        show_text(f"  {row['pmi']:6.2f}  {row['count']:7}  {row['text']}")


def _row(tokenizer, ids, count, pmi) -> dict:
    return {"text": tokenizer.decode([i for i in ids.tolist() if i >= 0]), "count": int(count), "pmi": float(pmi)}


ACTIONS = {"build": build, "show": show, "collocations": collocations}
