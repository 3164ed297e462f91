"""Prints the installed versions of torch and what belongs to it, as constraints for pip; or checks that they are kept.

    python installed_torch.py > installed.txt
    pip install --constraint installed.txt ".[deepspeed]"
    python installed_torch.py --check installed.txt

For images that bring a torch of their own (`Dockerfile`): pip would replace it where a package wants another version.
The standard library alone, for nothing else may be there yet.
"""

import importlib.metadata
import re
import sys
from pathlib import Path

BELONGING = re.compile(
    r"torch|torchvision|torchaudio|torch[-_]tensorrt|triton|pytorch[-_]triton|nvidia[-_].*", re.IGNORECASE
)


def constraints() -> list[str]:
    """`name==version` of what is installed of torch."""
    found = {(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()}
    return sorted(f"{name}=={version}" for name, version in found if name and BELONGING.fullmatch(name))


def main(argv: list[str]) -> int:
    """Prints them, or compares them with those in the file behind `--check`."""
    here = constraints()
    if not argv:
        if not any(line.startswith("torch==") for line in here):
            print("error: this Python has no torch; the base image must bring one", file=sys.stderr)
            return 78
        print(*here, sep="\n")
        return 0
    before = Path(argv[-1]).read_text(encoding="utf-8").split()
    gone = sorted({*before} - {*here})
    if gone:
        print(f"error: replaced: {', '.join(gone)}; now {', '.join(sorted({*here} - {*before}))}", file=sys.stderr)
        return 78
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
