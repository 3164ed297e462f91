"""TensorBoard event files, written and read with what `tensorboard` brings.

    >>> events = EventFile("runs/a/tensorboard", purge_step=20)    # TensorBoard forgets what older files say of 20 on
    >>> events.add(20, {"train/loss": 0.4})
    >>> last_step("runs/a/tensorboard")
    20

Written here and now rather than by `SummaryWriter`, whose thread prints a traceback of its own where the disk is full.
"""

import mmap
import os
import socket
import time
from array import array
from itertools import pairwise
from pathlib import Path

PATTERN = "events.out.tfevents.*"
# So many of the last points of a file are looked at for its last step.
LAST_EVENTS = 100


class EventFile:
    """A new event file in a folder; every point is on its way to the disk when `add` returns.

    Args:
      purge_step: what older files of the folder say of this step and later ones counts no more.

    Raises:
      OSError: the folder or file cannot be made; from `add`, written.
    """

    def __init__(self, folder, purge_step: int | None = None):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        path = Path(folder) / PATTERN.replace("*", _unique_name())
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a buffer that could not be written would be tried again when it is collected.
        self._file = path.open("xb", buffering=0)
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_step is not None:
            self._write(Event(wall_time=time.time(), step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, metrics: dict[str, float]) -> None:
        """One point a metric."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def add_texts(self, step: int, texts: dict[str, str]) -> None:
        """One text (Markdown) a name, as the text plug-in shows it."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        for name, text in texts.items():
            self._write(self._event(wall_time=time.time(), step=step, summary=text_pb(name, text)))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, event) -> None:
        self._records.write(event.SerializeToString())


def last_step(folder) -> int:
    """The last step that the newest event file with any point speaks of; -1 without one.

    Steps grow from file to file but for those that a later file has purged, so the newest one decides; they grow within
    a file, too, so its end does. Records are passed over by their lengths: a million take 1 s, and read would take 30.
    """
    for path in sorted(Path(folder).glob(PATTERN), key=lambda path: path.name, reverse=True):
        steps = []
        with path.open("rb") as file:
            for end, start in pairwise(reversed(_record_starts(file))):
                file.seek(start + 12)
                step = _step_of_point(file.read(end - start - 16))
                steps += [] if step is None else [step]
                if len(steps) == LAST_EVENTS:
                    break
        if steps:
            return max(steps)
    return -1


def _step_of_point(text: bytes) -> int | None:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    try:
        event = Event.FromString(text)
    except DecodeError:  # of a machine that went down while it wrote
        return None
    return event.step if event.HasField("summary") else None


def _record_starts(file) -> array:
    """Where the whole records of a file begin, and where the last one ends.

    A record is its length (8 bytes), a checksum (4), its content and another checksum (4).
    """
    size, starts = file.seek(0, os.SEEK_END), array("q", [0])
    if not size:
        return starts
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while (start := starts[-1]) + 16 <= size:
            end = start + 16 + int.from_bytes(data[start : start + 8], "little")
            if end > size:
                break
            starts.append(end)
    return starts


def _unique_name() -> str:
    # Nanoseconds: files sort by their names, and TensorBoard reads them in that order.
    return f"{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
