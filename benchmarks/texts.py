"""Text for the measurements: real documents beside the project where there are any, else the bundled ones.

documents(megabytes=2)        ->  ["The woman who died after falling ...", ...]
t5_tokenizer()                ->  T5's own vocabulary where it is at hand, else the bundled one
"""

import itertools
import json
from pathlib import Path

from t5suite.models.loading import load_tokenizer
from tools.mini_benchmark import documents as bundled

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
DOCUMENT_CHARACTERS = 3000  # about what a page of C4 has


def documents(megabytes: float) -> list[str]:
    """Documents of together so many million characters, each of about 3,000, repeated where there are too few."""
    texts, found, left = list(_texts()), [], int(megabytes * 1e6)
    for text in itertools.cycle(texts):
        found.append(text[:left])
        left -= len(found[-1])
        if left <= 0:
            return found


def _texts():
    files = sorted(SHARED.glob("text/*.jsonl")) + sorted(SHARED.glob("text/*/*.txt"))
    if not files:
        yield from bundled.documents("train")
    for path in files:
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as lines:
                texts = [json.loads(line)["text"] for line in lines]
        else:
            texts = [path.read_text(encoding="utf-8", errors="replace")]
        for text in texts:
            yield from (text[start : start + DOCUMENT_CHARACTERS] for start in range(0, len(text), DOCUMENT_CHARACTERS))


def t5_tokenizer():
    """A tokenizer with sentinels and a SentencePiece model."""
    folder = SHARED / "tokenizer" / "t5"
    return load_tokenizer(str(folder) if folder.is_dir() else None)
