"""Cuts notes.csv into the splits of a mirror: the rows in the file's order, which is random already.

python examples/own_task/split.py --output_dir rows
"""

import argparse
import csv
import json
from pathlib import Path

NOTES = Path(__file__).parent / "notes.csv"
# Rows kept for validation, and for the test; all others are trained on.
HELD_OUT = 60


def main(output_dir: str) -> None:
    """Writes `OUTPUT_DIR/desk/notes/{train,validation,test}.jsonl`."""
    with NOTES.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    train, held_out = rows[: -2 * HELD_OUT], rows[-2 * HELD_OUT :]
    splits = {"train": train, "validation": held_out[:HELD_OUT], "test": held_out[HELD_OUT:]}
    folder = Path(output_dir) / "desk" / "notes"
    folder.mkdir(parents=True, exist_ok=True)
    for split, part in splits.items():
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    print(", ".join(f"{len(part)} {split}" for split, part in splits.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", required=True, help="where the benchmark's folder is made")
    main(parser.parse_args().output_dir)
