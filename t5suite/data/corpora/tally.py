"""What was read of a text and what was skipped, by kind.

>>> tally = Tally(documents=98)
>>> tally.count("not JSON", "rows.jsonl:7: not JSON (Expecting value at column 1)")
>>> tally.summary()
'1 line: not JSON (rows.jsonl:7: not JSON (Expecting value at column 1))'
"""

from dataclasses import dataclass, field

EMPTY = "empty"
NUM_NAMED = 10


@dataclass
class Tally:
    """Counts of a source's lines: documents, those without text, and bad lines by kind; the first ten are named.

    >>> tally = Tally(documents=98)
    >>> tally.count("not JSON", "rows.jsonl:7: not JSON (Expecting value at column 1)")
    >>> tally.summary()
    '1 line: not JSON (rows.jsonl:7: not JSON (Expecting value at column 1))'
    """

    documents: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    named: dict[str, list[str]] = field(default_factory=dict)

    def count(self, kind: str, place: str) -> None:
        """One more of a kind."""
        self.add(Tally(0, {kind: 1}, {kind: [place]}))

    def wants_name(self, kind: str) -> bool:
        """Whether the next one of this kind will be named: finding its line may require reading the whole file."""
        return len(self.named.get(kind, [])) < NUM_NAMED

    def add(self, tally: "Tally") -> None:
        """Adds the counts of a later part of the text."""
        self.documents += tally.documents
        for kind, number in tally.left_out.items():
            self.left_out[kind] = self.left_out.get(kind, 0) + number
            places = self.named.setdefault(kind, [])
            places.extend(tally.named.get(kind, [])[: NUM_NAMED - len(places)])

    def summary(self) -> str:
        """The kinds, each with its number and its first places; '' if nothing was skipped."""
        parts = []
        for kind, number in self.left_out.items():
            plural = "" if number == 1 else "s"
            description = f"document{plural} without text" if kind == EMPTY else f"line{plural}: {kind}"
            places = self.named[kind][:3]
            if number > 3:
                places.append("...")
            parts.append(f"{number} {description} ({', '.join(places)})")
        return "; ".join(parts)
