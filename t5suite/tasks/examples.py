"""Rows of a split and the examples that they become, once: what is tokenized, scored, shown and written.

>>> task = load_task("squad", "squad")
>>> examples = ExampleSet.of(rows, "validation", task.examples)
>>> examples.examples[0].targets, examples.row(0)["answers"]["text"]
('Ann', ['Ann', 'her'])
"""

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from t5suite.tasks.formatters import Example


@dataclass(frozen=True)
class ExampleSet:
    """The rows of a split, their examples in order, and for each example the position of its row."""

    rows: list
    split: str
    examples: list[Example]
    row_of_example: list[int]

    @classmethod
    def of(cls, rows: Iterable, split: str, read: Callable[..., list[Example]]) -> "ExampleSet":
        """Reads every row once.

        Args:
          read: a row and the split -> the row's examples, as `Task.examples`.
        """
        rows = list(rows)
        examples: list[Example] = []
        row_of_example: list[int] = []
        for number, row in enumerate(rows):
            for example in read(row, split):
                examples.append(example)
                row_of_example.append(number)
        return cls(rows, split, examples, row_of_example)

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.examples)

    def row(self, place: int):
        """The row of an example."""
        return self.rows[self.row_of_example[place]]

    def pairs(self) -> list[tuple]:
        """`(row, example)` of each example."""
        return [(self.row(place), example) for place, example in enumerate(self.examples)]

    def places_of(self, row_numbers: Sequence[int]) -> list[int]:
        """The places of the examples of some rows, row after row."""
        places = []
        for number in row_numbers:
            start = bisect.bisect_left(self.row_of_example, number)
            end = bisect.bisect_right(self.row_of_example, number)
            places.extend(range(start, end))
        return places

    def part(self, row_numbers: Sequence[int]) -> "ExampleSet":
        """Some rows with their examples."""
        position_of = {number: position for position, number in enumerate(row_numbers)}
        places = self.places_of(row_numbers)
        return ExampleSet(
            [self.rows[number] for number in row_numbers],
            self.split,
            [self.examples[place] for place in places],
            [position_of[self.row_of_example[place]] for place in places],
        )
