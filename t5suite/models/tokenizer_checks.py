"""Whether a tokenizer is the one that a model was trained with, and whether its ids are the model's.

    >>> describe_tokenizer(tokenizer)
    {'pieces': 32100, 'vocabulary': '5f2c...', 'special_tokens': {'eos_token': 1, ...}, 'segmentation': '91a0...'}
    >>> check_trained_with("runs/rte", other_tokenizer)
    ConfigError: runs/rte: its model was trained with another tokenizer than this one (its 32100 pieces differ, ...)

A saved folder says in `task.json`, a run in `manifest.json`, an export in `export.json` and an adapted model in
`adapt.json` what its tokenizer does: not the bytes of files, which are saved again, but pieces with their ids, special
tokens, and how a text is split. A model of another origin says less: ids of special tokens in its configuration, and
those that its tokenizer's own files declare.
"""

import hashlib
import json
import logging
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import listed
from t5suite.base.model_files import BUCKETED_TYPES, check_special_ids, table_or_empty
from t5suite.models.vocabulary import ROW_MULTIPLE

logger = logging.getLogger(__name__)

TOKENIZER_KEY = "tokenizer"
# Files of a folder that may say which tokenizer its model was trained with; a checkpoint's is in its run's.
RECORDS = ("task.json", "export.json", "adapt.json", "trim.json", "manifest.json")
SPECIAL_TOKENS = ("pad_token", "bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token")
# Words, numbers, marks and spaces that tokenizers normalise and split in different ways.
PROBE = (
    "The cat sat on the mat; it's 3.14159 or 1,000,000 euros (50%)!  Übergrößenträger naïve café ﬁnal ① "
    "internationalization unbelievable HELLO wOrLd x=y+2 http://a.b/c?d=e Привет мир 你好世界 नमस्ते مرحبا"
)
DIGITS = 32


def describe_tokenizer(tokenizer) -> dict:
    """What identifies a tokenizer: its pieces by id, the ids of its special tokens, the ids of a text."""
    return {
        "pieces": len(tokenizer),
        "vocabulary": _hash_of_pieces(tokenizer, len(tokenizer)),
        "special_tokens": _special_tokens(tokenizer),
        "segmentation": _hash_of_probe(tokenizer),
    }


def stored_description(folder) -> dict | None:
    """What a folder, or that of a file of weights, says of the tokenizer of its model; None if nothing does."""
    folder = Path(folder)
    if folder.is_file():
        folder = folder.parent
    paths = [folder / name for name in RECORDS]
    if folder.name.startswith("checkpoint-"):
        paths.append(folder.parent / RECORDS[-1])
    for path in paths:
        description = table_or_empty(path).get(TOKENIZER_KEY)
        if isinstance(description, dict) and {"pieces", "vocabulary"} <= description.keys():
            return description
    return None


def tokenizer_differences(description: dict, tokenizer) -> list[str]:
    """How a tokenizer differs from a description; pieces that it has beyond the described ones do not count."""
    num_pieces = description["pieces"]
    if len(tokenizer) < num_pieces:
        return [f"it had {num_pieces} pieces, and this one has {len(tokenizer)}"]
    lines = []
    if _hash_of_pieces(tokenizer, num_pieces) != description["vocabulary"]:
        lines.append(f"its {num_pieces} pieces and their ids differ")
    special_tokens = _special_tokens(tokenizer)
    for name, described_id in description.get("special_tokens", {}).items():
        if special_tokens.get(name) != described_id:
            lines.append(f"its {name} was id {described_id}, and this one's is {special_tokens.get(name)}")
    if not lines and description.get("segmentation") not in (None, _hash_of_probe(tokenizer)):
        lines.append("it has the same pieces, but splits texts otherwise (scores, merges or normalisation differ)")
    return lines


def check_trained_with(folder, tokenizer) -> None:
    """Refuses a tokenizer other than the one that a folder's model was trained with.

    Raises:
      ConfigError: says what differs.
    """
    description = stored_description(folder)
    lines = tokenizer_differences(description, tokenizer) if description else []
    if lines:
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise ConfigError(
            f"--model_name_or_path {folder}: its model was trained with another tokenizer than {name}: "
            f"{'; '.join(lines)}. Give its own (--tokenizer_name), or restore its files; to train its weights with "
            "another vocabulary on purpose: --init_checkpoint and --config_name instead"
        )


def warn_of_other_tokenizer(folder, tokenizer) -> None:
    """For weights that are taken on purpose without regard for their tokenizer (`--init_checkpoint`)."""
    description = stored_description(folder)
    lines = tokenizer_differences(description, tokenizer) if description else []
    if lines:
        logger.warning("--init_checkpoint %s: trained with another tokenizer: %s", folder, "; ".join(lines))


def check_token_ids(config, tokenizer, name: str) -> None:
    """Refuses a configuration whose special tokens have no embeddings, or are not those that its T5 tokenizer writes.

    Args:
      config: of trained weights, before tokens are added.

    Raises:
      ConfigError: names the key and both ids.
    """
    text_config = config.get_text_config()
    settings = text_config.to_dict()
    place = f"--model_name_or_path {name}: config.json"
    check_special_ids({**config.to_dict(), **settings}, text_config.vocab_size, place)
    if config.model_type not in BUCKETED_TYPES:
        return
    for key in ("eos_token_id", "pad_token_id"):
        declared = settings.get(key)
        tokenizer_id = getattr(tokenizer, key)
        declared_ids = declared if isinstance(declared, list) else [declared]
        if declared is not None and tokenizer_id not in declared_ids:
            raise ConfigError(
                f"{place}: {key} is {declared}, but the tokenizer's is {tokenizer_id}; give the tokenizer "
                "that belongs to the model (--tokenizer_name)"
            )


def check_embedding_rows(model, tokenizer, name: str) -> None:
    """Refuses a tokenizer that writes ids for which the model has no embedding; warns of one with far too few pieces.

    Raises:
      ConfigError: with the piece and its id.
    """
    rows = model.config.get_text_config().vocab_size
    piece, highest = max(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    if highest >= rows:
        raise ConfigError(
            f"--model_name_or_path {name}: the tokenizer's {piece!r} is id {highest}, and the model has embeddings for "
            f"the ids 0 to {rows - 1}; give the --tokenizer_name that belongs to the model"
        )
    usual_padding = ROW_MULTIPLE if model.config.model_type in BUCKETED_TYPES else rows // 10
    if rows - highest > usual_padding + 1:
        logger.warning(
            "%s has embeddings for %d pieces, but its tokenizer has %d: is it the one that the model was trained with?",
            name,
            rows,
            highest + 1,
        )


def check_declared_ids(tokenizer, folder: Path, flag: str) -> None:
    """Refuses a `tokenizer.json` whose added tokens load with other ids than it declares: pieces have been cut off.

    Raises:
      ConfigError: with a token and both ids.
    """
    try:
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        declared = {entry["content"]: entry["id"] for entry in content.get("added_tokens", ())}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return  # no such file, or one that the library has read in its own way
    vocabulary = tokenizer.get_vocab()
    differing = [token for token, declared_id in declared.items() if vocabulary.get(token) != declared_id]
    if differing:
        lines = [f"{token} is {vocabulary.get(token)}, not {declared[token]}" for token in differing]
        raise ConfigError(
            f"{flag} {folder}: tokenizer.json declares ids that its vocabulary does not give ({listed(lines, 3)}): it "
            "has been cut or edited; use a complete copy"
        )


def _hash_of_pieces(tokenizer, count: int) -> str:
    pieces_by_id = sorted((piece_id, piece) for piece, piece_id in tokenizer.get_vocab().items())
    text = "\n".join(f"{piece_id}\t{piece}" for piece_id, piece in pieces_by_id[:count])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def _special_tokens(tokenizer) -> dict[str, int]:
    ids = {name: getattr(tokenizer, f"{name}_id", None) for name in SPECIAL_TOKENS}
    return {name: token_id for name, token_id in ids.items() if token_id is not None}


def _hash_of_probe(tokenizer) -> str:
    ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:DIGITS]
