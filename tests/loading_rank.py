"""One of several processes of a node that load a checkpoint at once: says what it holds of the host's memory.

python tests/loading_rank.py FOLDER     # loads, reads every weight, prints, waits for a line, prints again
"""

import json
import sys

from t5suite.models.loading import load_model, load_tokenizer


def held() -> dict[str, int]:
    """Bytes of this process: `Pss` counts a page that n processes share as an n-th of it."""
    with open("/proc/self/smaps_rollup") as file:
        fields = [line.split() for line in file]
    return {field[0][:-1]: 1024 * int(field[1]) for field in fields if field[0] in ("Rss:", "Pss:", "Private_Dirty:")}


def say(what: dict) -> None:
    print(json.dumps(what), flush=True)


def main(folder: str) -> None:
    tokenizer = load_tokenizer(folder)
    load_model(f"{folder}/tiny", tokenizer=tokenizer)  # what loading imports is there from now on
    before = held()
    model = load_model(folder, tokenizer=tokenizer)
    total = sum(float(parameter.sum()) for parameter in model.parameters())  # as a copy to a device would, reads all
    say({"total": total, "weights": sum(4 * parameter.numel() for parameter in model.parameters())})
    sys.stdin.readline()
    now = held()
    say({name: now[name] - before[name] for name in now})
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
