"""What each of several ranks says of each scenario of a script that starts them and writes `SCENARIO-RANK.json`."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


@functools.cache
def reports_of(script: str) -> dict[str, list[dict]]:
    """`{scenario: [report by rank]}`; the script is run once a process."""
    folder = Path(tempfile.mkdtemp())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, script, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    found = {}
    for path in sorted(folder.glob("*.json")):
        scenario, _, _rank = path.stem.rpartition("-")
        found.setdefault(scenario, []).append(json.loads(path.read_text()))
    return found
