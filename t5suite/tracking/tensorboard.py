"""TensorBoard: event files that are written at once, in this process.

    >>> tracker = TensorBoardTracker(run_dir, "4f2a", {"seed": 1}, Identity())
    >>> tracker.begin(step=0)
    >>> tracker.log({"train/loss": 0.4}, step=10)
    >>> tracker.finish()

Samples, results, settings and the manifest are texts there (Markdown); a resumed run has each of them once. Files are
written here and now rather than by `SummaryWriter`, whose thread prints a traceback of its own where the disk is full.
"""

import mmap
import os
import socket
import time
from array import array
from itertools import pairwise
from pathlib import Path

from t5suite.base.redaction import redacted_value
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, read_json
from t5suite.tracking.metric_lines import (
    MetricLines,
    SampleLines,
    as_text,
    markdown,
    markdown_table,
    metrics_of,
    result_rows,
    tables_of,
)

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


class TensorBoardTracker:
    """TensorBoard event files below `<run directory>/tensorboard`, or in a folder of the run's own below
    TENSORBOARD_LOGGING_DIR.

    Raises:
      ImportError: tensorboard is not installed.
    """

    def __init__(self, directory: Path, run_id: str, settings: dict, identity):
        try:
            import tensorboard
        except ImportError:
            raise ImportError("--report_to tensorboard needs: pip install 't5suite[tracking]'") from None
        assert tensorboard
        elsewhere = os.environ.get("TENSORBOARD_LOGGING_DIR")
        self._directory, self._last = directory, 0
        self._about, self._settings = identity.described(directory, run_id), redacted_value(settings)
        self._folder = Path(elsewhere) / f"{directory.name}-{run_id}" if elsewhere else directory / "tensorboard"
        self._events = None

    def begin(self, step: int) -> None:
        """Opens a file for what follows `step`; what older files lack of the steps before is written again."""
        told = last_step(self._folder)
        first = min(step, told)
        # The last step that was told may lack points: it counts as not told.
        self._events = EventFile(self._folder, purge_step=None if told < 0 else first)
        self._last = max(step, 0)
        if first <= 0:
            self._events.add_texts(0, {"run": as_text(self._about), "settings": as_text(self._settings)})
        samples = SampleLines(self._directory)
        for at in samples.steps():
            if first <= at <= step:
                self._events.add_texts(at, _shown(samples.tables(at)))
        for line in MetricLines(self._directory / METRICS, first).rest():
            if line["step"] <= step:
                self._events.add(line["step"], metrics_of(line))

    def log(self, metrics: dict, step: int) -> None:
        """Writes one point a metric."""
        self._last = step
        self._events.add(step, {name: value for name, value in metrics.items() if value is not None})

    def samples(self, lines: list[dict], step: int) -> None:
        """An evaluation's samples, as one table a task."""
        self._events.add_texts(step, _shown(tables_of(lines)))

    def finish(self, exit_code: int = 0) -> None:
        """Adds results and manifest of a run that has come to its end, and closes the file."""
        if self._events is None:
            return
        results = self._directory / RESULTS
        if exit_code == 0 and results.is_file():
            table = markdown_table(("task", "metric", "points"), result_rows(read_json(results)))
            manifest = as_text(read_json(self._directory / MANIFEST))
            self._events.add_texts(self._last, {"results": table, "manifest": manifest})
        self._events.close()


def _shown(tables: dict[str, list[dict]]) -> dict[str, str]:
    return {name: markdown(table) for name, table in tables.items()}
