"""X4's half of Slurm: what a shell would take apart, in the command, the variables and the options of a batch script.

    >>> hostile_scripts(folder, "x; touch {canary}", 0)
    {'slurm fine_tune, 0': None, 'slurm fine_tune, 0, options': None, ...}

The scripts are run by bash, with programs of a few lines in srun's and scontrol's place.
"""

import os
import subprocess
import sys
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.launch.slurm import KINDS, OPTIONS, BatchJob, render_job

# Notes the variable and the words that a step was given.
SRUN = """#!{python}
import os, sys
with open("step", "wb") as file:
    file.write(b"\\0".join(map(os.fsencode, [os.environ["WORD"], *sys.argv[2:]])))
"""
SCONTROL = "#!/bin/sh\necho JobState=RUNNING\n"
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "T5SUITE_PROCESSES_PER_NODE": "1", "SLURM_ARRAY_TASK_ID": "0"}


def hostile_scripts(folder: Path, pattern: str, number: int) -> dict[str, str | None]:
    """What is wrong with each kind of script that has the word in it; None: the word came literally, or was refused.

    Args:
      folder: a new one.
      pattern: the word, with a place for the `{canary}` that its command would make.
    """
    programs = folder / "programs"
    programs.mkdir(parents=True)
    for name, text in {"srun": SRUN.format(python=sys.executable), "scontrol": SCONTROL}.items():
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    found = {}
    for kind in KINDS:
        word = pattern.format(canary=f"canary-{kind}")
        found[f"slurm {kind}, {number}"] = _run(folder / kind, programs, kind, word)
        found[f"slurm {kind}, {number}, options"] = _refused(kind, word)
    return found


def _run(folder: Path, programs: Path, kind: str, word: str) -> str | None:
    folder.mkdir()
    options = {"array": "0-0"} if kind == "corpus" else {}
    script = render_job(BatchJob(kind, options, ["python", word, "--x", word], environment=(f"WORD={word}",)))
    root = Path(__file__).parent.parent
    environment = {**os.environ, **JOB, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(root)}
    done = subprocess.run(
        ["bash", "-s"], input=script, env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )
    if any("canary" in path.name for path in folder.rglob("*")):
        return "ITS COMMAND RAN"
    if done.returncode or not (folder / "step").is_file():
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    given = os.fsdecode((folder / "step").read_bytes()).split("\0")
    expected = [word, "python", word, "--x", word, *(["--shard", "0/1"] if kind == "corpus" else [])]
    # The shell around an agent stands before its words.
    whole = [given[0], *given[-len(expected) + 1 :]] if kind == "sweep_agent" else given
    return None if whole == expected else f"the step was given {given!r}"


def _refused(kind: str, word: str) -> str | None:
    """Every option of sbatch refuses the word, by name."""
    for name in OPTIONS:
        try:
            render_job(BatchJob(kind, {name: word}, ["python"]))
        except ConfigError as error:
            if str(error).startswith(f"--{name} "):
                continue
        return f"--{name} takes {word!r}"
    return None
