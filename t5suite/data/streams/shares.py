"""Which part of the files each of V readers reads.

    >>> cut_files([100, 300], Share(0, 2))
    [Piece(file=0, start=0, end=100), Piece(file=1, start=0, end=100)]

Plain files are cut by bytes: of all their bytes, reader i gets the documents that begin in the i-th of V equal parts.
Files that can only be read from their beginning (compressed ones, parquet, the hub's) are dealt out instead:

* F files of one size, F a divisor or a multiple of V: reader i reads file i % F alone or with the V / F - 1 other
  readers of that file, each taking every (V / F)-th document; or the F / V files i, i + V, ... whole.
* F files of one size, otherwise: a file is a part, or ceil(V / F) parts if there are fewer files than readers. All
  passes are one endless sequence of parts, of which reader i takes every V-th: while some readers read the last files
  of a pass, the others begin the next one (`rotated_parts`).
* Files of unequal sizes: the readers form groups, as many as have equal shares of the text; each reader of a group
  takes every n-th document of all its files.

A file that several readers of a process need is read once for all of them (`shared_reading`).
"""

import math
from typing import NamedTuple

import numpy as np

# Groups of files may differ by this factor in size before fewer groups are made: a smaller one is read more often.
LARGEST_IMBALANCE = 1.05
# A part of the seed of the order of files; other parts of seeds are 11 to 13 (`virtual_streams`).
FILE_ORDER = 1


class Share(NamedTuple):
    """Reader `index` of `count`."""

    index: int
    count: int


class Piece(NamedTuple):
    """What is read in one go: the documents that begin in the bytes `start` to `end` of a file; None: all of it."""

    file: int
    start: int = 0
    end: int | None = None


class Deal(NamedTuple):
    """What a reader reads in a pass: of the documents of `pieces`, one in `step`, beginning with number `offset`.

    Documents are numbered through all pieces; or, if `offset` has a number for each piece, in each file anew.
    """

    pieces: list[Piece]
    step: int = 1
    offset: int | tuple[int, ...] = 0

    def offset_of(self, number: int) -> int:
        """The offset in piece `number`."""
        return self.offset[number] if self.is_numbered_by_file else self.offset

    @property
    def is_numbered_by_file(self) -> bool:
        """Whether every file's documents are numbered from 0."""
        return isinstance(self.offset, tuple)


def parts_a_file(sizes: list[float], reader_count: int) -> int | None:
    """How many readers divide a file, if the parts of all passes rotate among the readers; None: they do not.

    >>> parts_a_file([1] * 41, 64), parts_a_file([1] * 100, 64), parts_a_file([1] * 128, 64)
    (2, 1, None)
    """
    divides = len(sizes) % reader_count == 0 or reader_count % len(sizes) == 0
    if divides or max(sizes) > LARGEST_IMBALANCE * min(sizes):
        return None
    return -(-reader_count // len(sizes))


def rotated_parts(file_count: int, reader_count: int, parts: int, reader: int, epoch: int) -> list[tuple[int, int]]:
    """`(place of the file in the pass's order, part of it)` of each part that a reader takes in a pass.

    The parts of a file are taken by readers reader_count // parts apart at the same time, so that one process reads
    them together if the number of processes divides this.

    >>> rotated_parts(3, 4, 2, reader=0, epoch=0), rotated_parts(3, 4, 2, reader=1, epoch=0)
    ([(0, 0), (2, 0)], [(1, 0), (2, 1)])
    >>> rotated_parts(3, 4, 2, reader=2, epoch=1)        # the second pass begins with reader 2
    [(0, 0), (2, 0)]
    """
    files_at_once = reader_count // parts
    before = epoch * file_count * parts
    first = (reader - before) % reader_count
    parts_of_reader = []
    for number in range(first, file_count * parts, reader_count):
        turn, place = divmod(number, files_at_once * parts)
        first_file = turn * files_at_once
        width = min(files_at_once, file_count - first_file)
        parts_of_reader.append((first_file + place % width, place // width))
    return parts_of_reader


def dealt_files(sizes: list[float], share: Share, epoch: int = 0, seed: int | None = None) -> Deal:
    """The files of a reader in a pass, in order; with a seed, every pass has its own order.

    >>> deal = dealt_files([1] * 128, Share(3, 64))
    >>> [piece.file for piece in deal.pieces], deal.step, deal.offset
    ([3, 67], 1, 0)
    >>> dealt_files([1, 1], Share(3, 64))        # the second of the 32 readers of file 1
    Deal(pieces=[Piece(file=1, start=0, end=None)], step=32, offset=1)
    >>> dealt_files([1, 1, 1], Share(3, 4))      # the second half of file 1
    Deal(pieces=[Piece(file=1, start=0, end=None)], step=2, offset=(1,))
    """
    parts = parts_a_file(sizes, share.count)
    if parts is not None:
        order = range(len(sizes))
        if seed is not None:  # the same for all readers
            order = np.random.default_rng((seed, FILE_ORDER, len(sizes), epoch)).permutation(len(sizes)).tolist()
        rotated = rotated_parts(len(sizes), share.count, parts, share.index, epoch)
        pieces = [Piece(order[place]) for place, _ in rotated]
        return Deal(pieces, step=parts, offset=tuple(part for _, part in rotated))
    groups = _number_of_groups(sizes, share.count)
    files = range(share.index % groups, len(sizes), groups)
    pieces = in_order_of_pass([Piece(file) for file in files], epoch, seed)
    return Deal(pieces, share.count // groups, share.index // groups)


def _number_of_groups(sizes: list[float], reader_count: int) -> int:
    """The largest number of groups of readers, and of files, that have equal shares."""
    largest = math.gcd(len(sizes), reader_count)
    for groups in range(largest, 1, -1):
        if largest % groups == 0:
            totals = [sum(sizes[group::groups]) for group in range(groups)]
            if max(totals) <= LARGEST_IMBALANCE * min(totals):
                return groups
    return 1


def in_order_of_pass(pieces: list[Piece], epoch: int, seed: int | None) -> list[Piece]:
    """The pieces of a reader in the order of a pass: the same for all readers of a group; None: their own order."""
    if seed is None or not pieces:
        return pieces
    order = np.random.default_rng((seed, FILE_ORDER, pieces[0].file, epoch)).permutation(len(pieces))
    return [pieces[i] for i in order]


def cut_files(sizes: list[int], share: Share) -> list[Piece]:
    """The reader's bytes of all files, laid end to end.

    >>> cut_files([100, 300], Share(0, 2))
    [Piece(file=0, start=0, end=100), Piece(file=1, start=0, end=100)]
    """
    first = sum(sizes) * share.index // share.count
    last = sum(sizes) * (share.index + 1) // share.count
    pieces = []
    before = 0
    for file, size in enumerate(sizes):
        start = max(first - before, 0)
        end = min(last - before, size)
        if start < end:
            pieces.append(Piece(file, start, end))
        before += size
    return pieces
