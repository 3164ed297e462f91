"""Real rows beside the project (`../shared/data`), which tests use where they are and skip where they are not."""

import gzip
import json
from pathlib import Path

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
MISSING = f"the real rows are not at {SHARED_DATA}"


def has(path: str) -> bool:
    return (SHARED_DATA / path).is_file()


def read_rows(path: str) -> list[dict]:
    """The rows of a .jsonl or .jsonl.gz file below the shared data."""
    file = SHARED_DATA / path
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
