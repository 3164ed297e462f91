"""What one client may ask of a server, and how long it may take."""

from dataclasses import dataclass

from t5suite.base.errors import DataError


class Busy(Exception):
    """Too many rows wait already."""


class ClientLeft(Exception):
    """The client has closed its connection."""


@dataclass(frozen=True)
class Limits:
    """The largest request, and what waits.

    Attributes:
      rows: of one request.
      waiting_rows: of all requests that wait for the model.
      new_tokens: of one answer.
      beams: or drawn answers, of one row.
      body_bytes: of one request.
      seconds: from the last byte of a request to its answer.
      body_seconds: from the first byte of a request to its last.
    """

    rows: int = 256
    waiting_rows: int = 1024
    new_tokens: int = 1024
    beams: int = 16
    body_bytes: int = 4 * 2**20
    seconds: float = 120.0
    body_seconds: float = 30.0

    def check_rows(self, row_count: int) -> None:
        """Raises DataError for a request with no rows, or too many."""
        if not 1 <= row_count <= self.rows:
            raise DataError(f"{row_count} rows: a request has from 1 to {self.rows}")

    def check_decoding(self, decoding, max_new_tokens: int) -> None:
        """Raises DataError for answers that are too long, or too many beams or draws."""
        if max_new_tokens > self.new_tokens:
            raise DataError(f"max_new_tokens {max_new_tokens}: {self.new_tokens} at most")
        if (decoding.min_new_tokens or 0) > max_new_tokens:
            raise DataError(f"min_new_tokens {decoding.min_new_tokens}: {max_new_tokens} at most")
        for name in ("num_beams", "num_return_sequences"):
            if getattr(decoding, name) > self.beams:
                raise DataError(f"{name} {getattr(decoding, name)}: {self.beams} at most")
