"""The pieces of texts that a tokenizer does not know: what they are, how often, and where the first ones stand.

>>> unknown = unknown_pieces(["a {b}", "no {"], t5_tokenizer)
>>> unknown["pieces"], unknown["share"]
([{'piece': '{', 'examples': 2, 'first': 0}, {'piece': '}', 'examples': 1, 'first': 0}], 100.0)
>>> unknown_line("train inputs", unknown, ["a.csv:2", "a.csv:3"])
"unknown to the tokenizer in train inputs: '{' in 2 (first a.csv:2), '}' in 1 (a.csv:2); 100.00% of the texts have ..."
"""

from collections.abc import Sequence

from t5suite.base.lookup import listed
from t5suite.tasks.tokens import spelling_backend

# So many pieces are counted, and so many others named, each with so many of its characters.
MOST_COUNTED = 6
MOST_NAMED = 100
SHOWN_CHARACTERS = 20


def unknown_pieces(texts: Sequence[str], tokenizer) -> dict:
    """The unknown pieces of texts, the most frequent first, and the percent of the texts that hold one.

    Empty for a tokenizer without an unknown token, or without a Rust backend (ByT5's: it knows every byte).
    """
    backend = spelling_backend(tokenizer, ())
    if backend is None or tokenizer.unk_token_id is None:
        return {"pieces": [], "share": 0.0}
    numbers_by_piece: dict[str, list[int]] = {}
    for number, encoding in enumerate(backend.encode_batch(list(texts), add_special_tokens=False)):
        for piece in _pieces_of_text(texts[number], encoding, tokenizer.unk_token_id):
            numbers_by_piece.setdefault(piece, []).append(number)
    pieces = [
        {"piece": piece, "examples": len(numbers), "first": numbers[0]} for piece, numbers in numbers_by_piece.items()
    ]
    concerned = {number for numbers in numbers_by_piece.values() for number in numbers}
    return {
        "pieces": sorted(pieces, key=lambda entry: -entry["examples"]),
        "share": 100 * len(concerned) / max(1, len(texts)),
    }


def _pieces_of_text(text: str, encoding, unknown_id: int) -> list[str]:
    """The different unknown pieces of one text, in its order."""
    pieces = []
    for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if token_id == unknown_id:
            pieces.append(text[start:end].strip()[:SHOWN_CHARACTERS])
    return list(dict.fromkeys(filter(None, pieces)))


def unknown_line(name: str, unknown: dict, places: Sequence[str]) -> str:
    """What is unknown of a split's texts, for people.

    Args:
      name: of the split and its side.
      unknown: of `unknown_pieces`.
      places: file and line of each text; empty where they are not known.
    """
    parts = []
    for entry in unknown["pieces"][:MOST_COUNTED]:
        place = places[entry["first"]] if places else f"example {entry['first']}"
        first = "first " if entry["examples"] > 1 else ""
        parts.append(f"{entry['piece']!r} in {entry['examples']} ({first}{place})")
    rarer_pieces = [repr(entry["piece"]) for entry in unknown["pieces"][MOST_COUNTED:]]
    rarer = f"; also {listed(rarer_pieces, MOST_NAMED)}" if rarer_pieces else ""
    share = f"{unknown['share']:.2f}% of the texts have such a piece"
    return f"unknown to the tokenizer in {name}: {', '.join(parts)}{rarer}; {share}"
