"""`t5suite corpus collocations`: the table of word groups that `--mask_units pmi` hides as wholes.

t5suite corpus collocations corpus --output_file collocations.jsonl
"""

from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.commands.shared import add_json_flag, print_json, show_text

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
    from t5suite.data.collocations import find_collocations, save_collocations
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
