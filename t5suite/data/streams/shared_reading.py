"""Files of which several readers of one process each need a part: each file is read once for all of them.

    >>> files = SharedFiles(lambda file, place: read_from(file, place))
    >>> first, second = files.read(0, 0), files.read(0, 0)
    >>> next(first), next(first), next(second)     # the second reader's record comes from memory
    ('a', 'b', 'a')

A file that can only be read from its beginning (a compressed one, parquet, the hub's) would otherwise be downloaded,
unpacked and parsed once for every reader. The records that one reader has passed are kept for those behind it, up to a
limit; a reader that lags further behind than that reads the file again, as it would have done without this module. What
a reader gets never depends on the others.
"""

from collections import deque
from collections.abc import Callable, Iterator

from t5suite.data.corpora.readers import Document

# Characters of text kept for readers that are behind, over all files of a source.
CHARACTERS_KEPT = 1 << 26
# Counted for each record beside its text: what Python's objects take.
CHARACTERS_A_RECORD = 200


class OpenFile:
    """One reading of a file, from a record on: the records that are still kept, and the rest, yet to be read.

    Attributes:
      first: the number of the oldest record that is kept.
      records: the kept ones, in order.
      size: their characters.
      reader_count: readers that are reading it now.
    """

    def __init__(self, first: int, unread: Iterator):
        self.first = first
        self.unread = unread
        self.records: deque = deque()
        self.size = 0
        self.reader_count = 0

    @property
    def end(self) -> int:
        """The number of the record that will be read next."""
        return self.first + len(self.records)

    def read_next(self) -> bool:
        """Reads one more record; returns whether there was one."""
        record = next(self.unread, None)
        if record is None:
            return False
        self.records.append(record)
        self.size += _size_of(record)
        return True

    def drop_oldest(self) -> None:
        """Forgets one record; a reader that still needs it must open the file again."""
        self.size -= _size_of(self.records.popleft())
        self.first += 1


def _size_of(record) -> int:
    *_, document = record
    return CHARACTERS_A_RECORD + (len(document.text) if isinstance(document, Document) else 0)


class SharedFiles:
    """The files of a source, read once for all readers of this process that keep about the same pace.

    Args:
      open_records: `(file, place)` -> the file's records from number `place` on, each a tuple that ends with the
        document; opening it again at the same place gives the same.

    Attributes:
      characters_kept: the limit of what is kept.

    A copy sent to another process begins without open files.
    """

    def __init__(self, open_records: Callable[[int, int], Iterator[tuple]]):
        self.open_records = open_records
        self.characters_kept = CHARACTERS_KEPT
        self._open_files: dict[int, list[OpenFile]] = {}
        self._size = 0

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_open_files": {}, "_size": 0}

    def read(self, file: int, place: int) -> Iterator[tuple]:
        """The records of a file from number `place` on."""
        while True:
            open_file = self._file_at(file, place)
            open_file.reader_count += 1
            try:
                while open_file.first <= place <= open_file.end:
                    if place == open_file.end and not self._read_next(file, open_file):
                        return
                    record = open_file.records[place - open_file.first]
                    place += 1
                    yield record
            finally:
                open_file.reader_count -= 1

    def _file_at(self, file: int, place: int) -> OpenFile:
        """A reading of the file that still has the record `place`, or comes to it next; else a new one from there."""
        open_files = self._open_files.setdefault(file, [])
        for open_file in open_files:
            if open_file.first <= place <= open_file.end:
                return open_file
        open_file = OpenFile(place, self.open_records(file, place))
        open_files.append(open_file)
        return open_file

    def _read_next(self, file: int, open_file: OpenFile) -> bool:
        """Reads one more record of a file, within the limit of what is kept."""
        before = open_file.size
        try:
            has_record = open_file.read_next()
        except BaseException:
            self._close(file, open_file)  # its iterator has ended: another reader would take this for the file's end
            raise
        self._size += open_file.size - before
        while self._size > self.characters_kept and self._drop_one(open_file):
            pass
        return has_record

    def _drop_one(self, newest: OpenFile) -> bool:
        """Frees memory: a reading that nobody is at, else the oldest record of the largest one.

        The record that was read last stays. Returns whether there was anything to drop.
        """
        all_open_files = []
        for file, open_files in self._open_files.items():
            for open_file in open_files:
                if open_file.reader_count == 0:
                    self._close(file, open_file)
                    return True
            all_open_files += open_files
        largest = max(all_open_files, key=lambda open_file: open_file.size)
        fewest_records = 1 if largest is newest else 0
        if len(largest.records) <= fewest_records:
            return False
        self._size -= largest.size
        largest.drop_oldest()
        self._size += largest.size
        return True

    def _close(self, file: int, open_file: OpenFile) -> None:
        """Forgets a reading of a file; a reader that is at it opens the file again."""
        self._open_files[file].remove(open_file)
        self._size -= open_file.size
        open_file.records.clear()
        open_file.size = 0
        open_file.first = -1
