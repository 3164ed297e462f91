"""One model, one thread, and the requests that wait for it: rows of several clients are answered together.

    >>> queue = ModelQueue(answer_rows, max_rows_at_once=64, max_waiting_rows=1024)
    >>> future = queue.submit(QueuedRows(job, rows))
    >>> future.result()
    [{'row': 0, 'prediction': 'entailment'}]

While the model answers, further requests wait. When it is free, it takes the oldest one, and with it all others that
are answered in the same way (`QueuedRows.way`), as many rows as fit at once. So nothing waits for a batch to fill up,
and the busier the server, the larger its batches. Tokenizers are used in the same thread: they are not thread-safe.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from t5suite.base.errors import UserError
from t5suite.inference.jobs import Job, RowRequest
from t5suite.inference.rows import Row
from t5suite.inference.serving.limits import Busy, ClientLeft

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class QueuedRows:
    """The rows of one client.

    Attributes:
      on_text: called with every piece of the answer as it is written; such a request has one row, and is answered
        alone.
      future: its result are the lines of answers, in the rows' order.
      withdrawn: set once its client has left.
    """

    job: Job
    rows: list[Row]
    on_text: Callable[[str], None] | None = None
    future: Future = field(default_factory=Future)
    withdrawn: threading.Event = field(default_factory=threading.Event)

    @property
    def way(self) -> tuple:
        """Requests with equal ways are answered in one batch."""
        job = self.job
        labels = tuple(job.labels) if isinstance(job.labels, list) else job.labels
        return job.decoding, job.max_new_tokens, labels, job.scores, job.inputs, job.token_counts, job.raw

    @property
    def can_be_joined(self) -> bool:
        """Whether other requests may be in its batch."""
        return self.on_text is None


class ReadRows(NamedTuple):
    """A client's rows as the model reads them."""

    queued: QueuedRows
    requests: list[RowRequest]


class ModelQueue:
    """The requests that wait for a model, in the order of their arrival.

    Args:
      answer: `(job, requests, on_text)` -> lines of answers.
      observe_batch: called with the rows and the seconds of every batch.
    """

    def __init__(
        self,
        answer: Callable,
        *,
        max_rows_at_once: int,
        max_waiting_rows: int,
        observe_batch: Callable[[int, float], None] = lambda rows, seconds: None,
    ):
        self.answer = answer
        self.max_rows_at_once = max_rows_at_once
        self.max_waiting_rows = max_waiting_rows
        self.observe_batch = observe_batch
        self._waiting: deque[QueuedRows] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def waiting_rows(self) -> int:
        """Rows that wait for the model."""
        with self._changed:
            return sum(len(queued.rows) for queued in self._waiting)

    def submit(self, queued: QueuedRows) -> Future:
        """Adds a request.

        Raises:
          Busy: too many rows wait, or the server is ending.
        """
        with self._changed:
            if self._is_closed:
                raise Busy("the server is ending")
            waiting_rows = self.waiting_rows
            if waiting_rows and waiting_rows + len(queued.rows) > self.max_waiting_rows:
                raise Busy(f"{waiting_rows} rows are waiting")
            self._waiting.append(queued)
            self._changed.notify()
        return queued.future

    def withdraw(self, queued: QueuedRows) -> None:
        """Takes a request out if the model has not begun with it, because its client has left."""
        queued.withdrawn.set()
        with self._changed:
            if queued in self._waiting:
                self._waiting.remove(queued)
        queued.future.cancel()

    def close(self) -> None:
        """Answers what waits, then ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            self._answer_batch(self._read(batch))

    def _next_batch(self) -> list[QueuedRows] | None:
        """The oldest request and those that can be answered with it; None at the end."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            if not self._waiting:
                return None
            first = self._waiting.popleft()
            if not first.can_be_joined:
                return [first]
            return [first, *self._take_alike(first)]

    def _take_alike(self, first: QueuedRows) -> list[QueuedRows]:
        """Takes requests that are answered like the first one, while there is room in its batch."""
        room = self.max_rows_at_once - len(first.rows)
        alike = []
        for queued in self._waiting:
            if queued.can_be_joined and queued.way == first.way and len(queued.rows) <= room:
                alike.append(queued)
                room -= len(queued.rows)
        for queued in alike:
            self._waiting.remove(queued)
        return alike

    def _read(self, batch: list[QueuedRows]) -> list[ReadRows]:
        """The requests whose clients are still there and whose rows can be read; the others fail."""
        readable = []
        for queued in batch:
            if not queued.future.set_running_or_notify_cancel():
                continue
            try:
                readable.append(ReadRows(queued, [queued.job.request(row) for row in queued.rows]))
            except Exception as error:
                self._fail(queued, error)
        return readable

    def _answer_batch(self, batch: list[ReadRows]) -> None:
        """Answers the requests together; if that fails, each alone, so that only those fail that have the fault."""
        if not batch:
            return
        first = batch[0].queued
        requests = [request for rows in batch for request in rows.requests]
        started = time.perf_counter()
        try:
            lines = self.answer(first.job, requests, first.on_text)
        except Exception as error:
            if len(batch) == 1:
                self._fail(first, error)
                return
            for rows in batch:
                self._answer_batch([rows])
            return
        self.observe_batch(len(requests), time.perf_counter() - started)
        start = 0
        for queued, requests_of_client in batch:
            end = start + len(requests_of_client)
            queued.future.set_result(lines[start:end])
            start = end

    def _fail(self, queued: QueuedRows, error: Exception) -> None:
        if not isinstance(error, (UserError, ClientLeft)):
            logger.error("a request could not be answered", exc_info=error)
        queued.future.set_exception(error)
