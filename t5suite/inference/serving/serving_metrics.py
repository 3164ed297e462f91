"""What `GET /metrics` shows, for Prometheus: requests, rows, batches, what waits, and seconds.

`t5suite_batch_rows_sum / t5suite_batch_rows_count` is the mean batch.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SECOND_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class ServingMetrics:
    """The counters of one server.

    Args:
      waiting_rows: how many rows wait now.
    """

    def __init__(self, waiting_rows: Callable[[], int]):
        self.registry = CollectorRegistry()
        make = {"registry": self.registry, "namespace": "t5suite"}
        self.requests = Counter("requests", "Requests by route and status.", ("route", "status"), **make)
        self.request_seconds = Histogram(
            "request_seconds", "From the last byte of a request to its answer.", buckets=SECOND_BUCKETS, **make
        )
        self.batch_rows = Histogram("batch_rows", "Rows that were answered together.", buckets=ROW_BUCKETS, **make)
        self.batch_seconds = Histogram("batch_seconds", "Seconds of a batch.", buckets=SECOND_BUCKETS, **make)
        waiting = Gauge("waiting_rows", "Rows that wait for the model.", **make)
        waiting.set_function(waiting_rows)
        self._seconds_a_row = 0.0

    def observe_batch(self, rows: int, seconds: float) -> None:
        """Counts one batch."""
        self.batch_rows.observe(rows)
        self.batch_seconds.observe(seconds)
        self._seconds_a_row = seconds / rows

    def seconds_for(self, rows: int) -> float:
        """How long so many rows take, at the pace of the last batch."""
        return rows * self._seconds_a_row

    def text(self) -> bytes:
        """All of them in Prometheus' form."""
        return generate_latest(self.registry)
