"""`t5suite corpus`: text -> tokens on disk, what they hold, and their collocations; tokens of other tools as a corpus.

t5suite corpus build --input crawl/ --tokenizer_name google/t5-v1_1-base --output_dir corpus --num_workers 16
t5suite corpus adopt tokenized --tokenizer_name google/t5-v1_1-base
t5suite corpus show corpus --objective prefix_lm
"""

import re
import sys
from pathlib import Path

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.lookup import find, load_object
from t5suite.commands.path_checks import check_output_file, check_output_folder
from t5suite.commands.shared import add_json_flag, check_at_least, note, print_json, show_text
from t5suite.commands.text_flags import INPUT_HELP, add_reading_flags

BUILD_HELP = "tokenize text once, into files that training maps into memory"
ADOPT_HELP = "make token files of datatrove or Megatron a corpus, without copying tokens"
SHOW_HELP = "show what a corpus holds, and what training makes of it"
COLLOCATIONS_HELP = "find the collocations of a built corpus, for --mask_units pmi"
BUILD_EXAMPLES = """examples:
  t5suite corpus build --input books/ crawl/*.jsonl.zst --tokenizer_name google/t5-v1_1-base --output_dir corpus
  t5suite corpus build --input hub:allenai/c4:en:train --tokenizer_name google/t5-v1_1-base --output_dir c4 \\
      --num_workers 8 --shard $SLURM_ARRAY_TASK_ID/64       # the job that ends last writes corpus.json

A build that was killed resumes when the same command runs again."""
ADOPT_EXAMPLES = """examples:
  t5suite corpus adopt tokenized --tokenizer_name google/t5-v1_1-base --num_workers 8
  t5suite corpus adopt /shared/megatron --tokenizer_name google/mt5-base --output_dir corpus

Every document must end with the tokenizer's end token. Then: t5suite pre_train --train_corpus tokenized ..."""
SHOW_EXAMPLE = "example:\n  t5suite corpus show corpus --objective prefix_lm --json"
COLLOCATIONS_EXAMPLE = "example:\n  t5suite corpus collocations corpus --output_file collocations.jsonl"
# The paper's table of collocations has 800,000 for 16 GB of text (arXiv:2010.01825); a small corpus has fewer
# meaningful ones.
MOST_COLLOCATIONS = 800_000
TOKENS_A_COLLOCATION = 50
SHOWN_COLLOCATIONS = 10
SHOWN_OBJECTIVE = "span_corruption"
SHOWN_INPUTS_LENGTH = 512
# With 384 inputs every denoiser keeps within 100 sentinels.
SHOWN_INPUTS_LENGTH_OF = {"ul2": 384}


def corpus_flags(parser) -> None:
    """Flags of `t5suite corpus build`, `adopt`, `show` and `collocations`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _build_flags(actions)
    _adopt_flags(actions)
    _show_flags(actions)
    _collocations_flags(actions)


def _build_flags(actions) -> None:
    build = actions.add_parser("build", help=BUILD_HELP, description=BUILD_HELP, epilog=BUILD_EXAMPLES)
    add = build.add_argument
    add("--input", required=True, nargs="+", metavar="INPUT", help=INPUT_HELP)
    add("--output_dir", required=True, help="the corpus's folder")
    add("--tokenizer_name", required=True, help="hub name or folder of the tokenizer")
    add_reading_flags(build)
    add = build.add_argument_group("corpus").add_argument
    add("--validation_fraction", type=float, default=0.01, help="share of documents that are held out (default: 0.01)")
    add("--document_separator", default="none", help="what ends a document: none (default, as T5), eos, or a TOKEN")
    add(
        "--split_sentences",
        nargs="?",
        const="en",
        metavar="LANGUAGE",
        help="note where sentences start, for sentence pairs (default language: en)",
    )
    add = build.add_argument_group("work").add_argument
    add("--num_workers", type=int, default=1, help="processes (default: 1)")
    add(
        "--tokenizer_engine",
        choices=("auto", "tokenizers"),
        default="auto",
        help="auto (default): the fast one if it agrees on a sample of the documents; tokenizers: the tokenizer itself",
    )
    add("--shard", metavar="I/N", help="this job's share of the work, I from 0 to N - 1")
    add("--unit_megabytes", type=float, default=64.0, help="text of a unit of work, and so of a shard (default: 64)")
    add_json_flag(build)


def _adopt_flags(actions) -> None:
    adopt = actions.add_parser("adopt", help=ADOPT_HELP, description=ADOPT_HELP, epilog=ADOPT_EXAMPLES)
    add = adopt.add_argument
    add("folder", help="where datatrove's .ds and .ds.index, or Megatron's .bin and .idx files are")
    add("--tokenizer_name", required=True, help="hub name or folder of the tokenizer that wrote them")
    add("--output_dir", help="where the corpus's own files go (default: into the folder)")
    add("--validation_fraction", type=float, default=0.01, help="share of documents that are held out (default: 0.01)")
    add("--num_workers", type=int, default=1, help="processes (default: 1)")
    add("--unit_megabytes", type=float, default=1000.0, help="tokens of a unit of work (default: 1000)")
    add_json_flag(adopt)


def _show_flags(actions) -> None:
    show = actions.add_parser("show", help=SHOW_HELP, description=SHOW_HELP, epilog=SHOW_EXAMPLE)
    add = show.add_argument
    add("corpus", help="the folder of a corpus")
    add("--tokenizer_name", help="if not the one that the corpus names")
    add("--objective", help=f"what corrupts the examples (default: {SHOWN_OBJECTIVE})")
    lengths = f"{SHOWN_INPUTS_LENGTH}; {SHOWN_INPUTS_LENGTH_OF['ul2']} for ul2"
    add("--inputs_length", type=int, help=f"tokens of an example's inputs (default: {lengths})")
    add("--num_examples", type=int, default=3, help="examples to show (default: 3)")
    add("--check_hashes", action="store_true", help="compare every file's SHA-256 with the manifest")
    add_json_flag(show)


def _collocations_flags(actions) -> None:
    collocations = actions.add_parser(
        "collocations", help=COLLOCATIONS_HELP, description=COLLOCATIONS_HELP, epilog=COLLOCATIONS_EXAMPLE
    )
    add = collocations.add_argument
    add("corpus", help="the folder of a corpus")
    add("--output_file", required=True, help="where the table goes: JSON lines")
    add("--tokenizer_name", help="if not the one that the corpus names")
    add("--num_collocations", type=int, help="size of the table (default: one for 50 tokens, at most 800,000)")
    add("--max_ngram", type=int, default=5, help="tokens of the longest (default: 5)")
    add("--min_count", type=int, default=10, help="how often each must occur (default: 10)")
    add("--max_tokens", type=int, default=100_000_000, help="count these first tokens (default: 1e8)")
    add_json_flag(collocations)


def run_corpus(arguments) -> None:
    """Builds, adopts or shows a corpus, or finds its collocations."""
    actions = {"build": _build, "adopt": _adopt, "show": _show, "collocations": _find_collocations}
    actions[arguments.action](arguments)


def _build(arguments) -> None:
    """Builds a corpus, or a job's share of it."""
    from t5suite.data.corpora.building import build_corpus, check_work
    from t5suite.data.corpora.sources import list_sources

    shard = _shard_by_flag(arguments.shard)
    check_work(arguments.num_workers, shard)
    check_output_folder("--output_dir", arguments.output_dir, *arguments.input)
    list_sources(arguments.input)
    from t5suite.data.corpora.corpus_plan import CorpusSettings
    from t5suite.data.corpora.readers import TextOptions
    from t5suite.models.loading import load_tokenizer

    store = build_corpus(
        arguments.input,
        arguments.output_dir,
        load_tokenizer(arguments.tokenizer_name),
        CorpusSettings(
            TextOptions(arguments.text_column_name, arguments.text_unit, arguments.bad_lines),
            validation_fraction=arguments.validation_fraction,
            document_separator=arguments.document_separator,
            split_sentences=arguments.split_sentences,
            unit_megabytes=arguments.unit_megabytes,
        ),
        num_workers=arguments.num_workers,
        shard=shard,
        tokenizer_engine=arguments.tokenizer_engine,
        progress=_print_progress,
    )
    if store is None:
        note(f"shard {arguments.shard} is finished; {arguments.output_dir}/corpus.json is written when all others are")
    else:
        _print_corpus(store, arguments.json)


def _adopt(arguments) -> None:
    """Makes a folder of token files a corpus."""
    make_settings = load_object("t5suite.contrib.token_files.adopting:AdoptionSettings", "t5suite corpus adopt")
    adopt_corpus = load_object("t5suite.contrib.token_files.adopting:adopt_corpus", "t5suite corpus adopt")
    list_token_files = load_object("t5suite.contrib.token_files.folders:list_token_files", "t5suite corpus adopt")

    settings = make_settings(arguments.validation_fraction, arguments.unit_megabytes, arguments.num_workers)
    list_token_files(Path(arguments.folder))
    check_output_folder("--output_dir", arguments.output_dir or arguments.folder)
    from t5suite.models.loading import load_tokenizer

    tokenizer = load_tokenizer(arguments.tokenizer_name)
    store = adopt_corpus(arguments.folder, tokenizer, settings, arguments.output_dir, progress=_print_progress)
    for source in store.manifest["sources"]:
        if source["control_tokens"]:
            document, token_id = source["first_control_token"]
            token = tokenizer.convert_ids_to_tokens(token_id)
            note(
                f"{source['name']}: {source['control_tokens']} special tokens inside documents, which training reads "
                f"as such; the first is {token} in document {document} (from 0)"
            )
    _print_corpus(store, arguments.json)


def _shard_by_flag(shard: str | None) -> tuple[int, int] | None:
    """`(this job's number, number of jobs)` of `--shard I/N`.

    Raises:
      ConfigError: it has another form.
    """
    if not shard:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match:
        raise ConfigError(f"--shard {shard!r}: must be I/N, such as 0/64 for the first of 64 jobs")
    return int(match[1]), int(match[2])


def _print_progress(progress) -> None:
    speed = progress.tokens / progress.seconds if progress.seconds else 0
    print(
        f"{progress.units}/{progress.num_units} units, {progress.documents} documents, {progress.tokens} tokens, "
        f"{progress.seconds:.0f} s ({speed / 1e6:.2f} M tokens/s)",
        file=sys.stderr,
        flush=True,
    )


def _show(arguments) -> None:
    """Shows a built corpus, and blocks of it before and after an objective."""
    check_at_least(arguments, num_examples=0, inputs_length=4)
    if arguments.objective is not None:
        _check_objective(arguments.objective)
    from t5suite.data.corpora.corpus_facts import describe_blocks, sample_blocks
    from t5suite.training.pre_training_collators import seq2seq_collator

    store, tokenizer = _open(arguments, check_hashes=arguments.check_hashes)
    objective = arguments.objective or SHOWN_OBJECTIVE
    inputs_length = arguments.inputs_length or SHOWN_INPUTS_LENGTH_OF.get(objective, SHOWN_INPUTS_LENGTH)
    try:
        collator = seq2seq_collator(objective, tokenizer, inputs_length)
    except ConfigError as error:
        _print_corpus(store, arguments.json)
        if arguments.objective is not None:
            raise
        # BERT's and GPT's corpora have no inputs and targets.
        note(f"no blocks of {objective} are shown, as pre-training would refuse them: {error}")
        return
    _print_corpus(store, arguments.json, {objective: describe_blocks(store, collator)})
    split = next(name for name, counts in store.manifest["splits"].items() if counts["tokens"])
    examples = list(sample_blocks(store.split(split), collator, arguments.num_examples))
    if len(examples) < arguments.num_examples:
        note(f"{split} has {len(examples)} whole blocks; a lower --inputs_length gives more")
    for example in examples:
        texts = {name: tokenizer.decode(example[name]) for name in ("tokens", "inputs", "targets")}
        if arguments.json:
            print_json({"split": split, "block": example["block"], **texts})
            continue
        print(f"\nblock {example['block']} of {split}")
        for name, text in texts.items():
            show_text(f"  {name:<8}  {text}")


def _check_objective(name: str) -> None:
    """Checks that an objective makes inputs and targets.

    Raises:
      ConfigError: it does not, or there is no such objective.
    """
    from t5suite.data.objectives import OBJECTIVES

    objective = find(name, OBJECTIVES, "objective", where="--objective")
    if objective.family != "seq2seq":
        choices = ", ".join(name for name, entry in OBJECTIVES.items() if entry.family == "seq2seq")
        raise ConfigError(f"--objective {name} has no inputs and targets to show; choose from {choices}")


def _open(arguments, **options) -> tuple:
    """A corpus and its tokenizer."""
    from t5suite.data.corpora.store import TokenStore
    from t5suite.models.loading import load_tokenizer

    store = TokenStore.open(arguments.corpus, **options)
    if arguments.tokenizer_name:
        tokenizer = load_tokenizer(arguments.tokenizer_name)
    else:
        tokenizer = _tokenizer_of_corpus(store)
    store.check_tokenizer(tokenizer)
    return store, tokenizer


def _tokenizer_of_corpus(store):
    """The tokenizer by the name with which the corpus was built, which may be a path from another place.

    Raises:
      UserError: there is none of that name; says where the name is from.
    """
    from t5suite.data.corpora.store import MANIFEST
    from t5suite.models.loading import load_tokenizer

    file = store.directory / MANIFEST
    try:
        return load_tokenizer(store.manifest["tokenizer"]["name"], flag="tokenizer")
    except UserError as error:
        raise type(error)(
            f"{file} names a tokenizer that cannot be loaded from here; give --tokenizer_name ({error})"
        ) from None


def _print_corpus(store, as_json: bool, blocks_by_objective: dict | None = None) -> None:
    """What a corpus holds, and the blocks that objectives make of it."""
    from t5suite.data.corpora.corpus_facts import describe_corpus

    description = describe_corpus(store)
    if blocks_by_objective:
        description["blocks"] = blocks_by_objective
    for source in description["sources_without_documents"]:
        note(f"{source}: no document in it")
    if description["left_out"]:
        note(f"skipped: {description['left_out']}")
    if as_json:
        print_json(description)
        return
    origin = f"adopted from {description['form']} in" if description["form"] else "built in"
    print(
        f"corpus      {description['directory']}, from {description['sources']} sources, "
        f"{origin} {description['seconds']:.1f} s"
    )
    tokenizer = description["tokenizer"]
    print(
        f"tokenizer   {tokenizer['name']} ({tokenizer['vocabulary_size']} ids, {description['dtype']}, "
        f"encoded by {tokenizer['engine']})"
    )
    for split, counts in description["splits"].items():
        print(f"{split:<10}  {_counts_text(counts)}")
    for objective, blocks in (blocks_by_objective or {}).items():
        lengths = "/".join(map(str, blocks["tokens_length"]))
        print(
            f"blocks      {blocks['train']} + {blocks['validation']} of {lengths} tokens, which become "
            f"{blocks['inputs_length']} inputs and {blocks['targets_length']} targets ({objective})"
        )


def _counts_text(counts: dict) -> str:
    """Documents and tokens of a split, in two lines."""
    if not counts["tokens"]:
        return "no documents"
    sentences = f" in {counts['sentences']} sentences" if "sentences" in counts else ""
    percentiles = ", ".join(f"{part}% {length}" for part, length in counts["length_percentiles"].items())
    bytes_per_token = f"{counts['bytes_per_token']:.2f} bytes a token, " if "bytes_per_token" in counts else ""
    return (
        f"{counts['documents']} documents{sentences}, {counts['tokens']} tokens, {bytes_per_token}"
        f"{100 * counts['unk_rate']:.3f}% unknown\n"
        f"{'':<10}  tokens of a document: mean {counts['mean_length']:.1f}; {percentiles}"
    )


def _find_collocations(arguments) -> None:
    """Counts n-grams in memory (about 66 bytes a token) and writes the table; shows the strongest."""
    find_collocations = load_object("t5suite.contrib.collocations:find_collocations", "t5suite corpus collocations")
    save_collocations = load_object("t5suite.contrib.collocations:save_collocations", "t5suite corpus collocations")

    check_at_least(arguments, max_tokens=2, num_collocations=1)
    check_output_file("--output_file", arguments.output_file)
    store, tokenizer = _open(arguments)
    tokens_P = store.split("train")[: arguments.max_tokens]
    default_size = min(MOST_COLLOCATIONS, max(4, len(tokens_P) // TOKENS_A_COLLOCATION))
    tokenizer_facts = store.manifest["tokenizer"]
    table = find_collocations(
        tokens_P,
        arguments.num_collocations or default_size,
        arguments.max_ngram,
        arguments.min_count,
        special_ids=tokenizer.all_special_ids,
        tokenizer=tokenizer_facts["fingerprint"],
        vocabulary_size=tokenizer_facts["vocabulary_size"],
    )
    Path(arguments.output_file).parent.mkdir(parents=True, exist_ok=True)
    save_collocations(arguments.output_file, table)
    strongest = _strongest_collocations(table, tokenizer)
    if arguments.json:
        print_json(
            {
                "output_file": arguments.output_file,
                "collocations": len(table),
                "tokens": len(tokens_P),
                "strongest": strongest,
            }
        )
        return
    print(f"{len(table)} collocations of {len(tokens_P)} tokens in {arguments.output_file}")
    for row in strongest:
        show_text(f"  {row['pmi']:6.2f}  {row['count']:7}  {row['text']}")


def _strongest_collocations(table, tokenizer) -> list[dict]:
    """The first rows of the table, as text."""
    rows = []
    for ids, count, pmi in zip(table.ngrams_KN[:SHOWN_COLLOCATIONS], table.counts_K, table.pmi_K):
        text = tokenizer.decode([token_id for token_id in ids.tolist() if token_id >= 0])
        rows.append({"text": text, "count": int(count), "pmi": float(pmi)})
    return rows
