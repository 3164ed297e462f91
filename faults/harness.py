"""How a check is written.

    def r9_auto_without_a_checkpoint_is_a_fresh_start(context):
        victim = context.run("fine_tune_t5", context.flags("fine_tune_t5", resume="auto"))
        return outcome(victim.code == 0, f"exit {victim.code}")

    RESUME = {"R9": Check(r9_auto_..., injected="resume=auto, no checkpoint", expected="fresh start")}

A check gets a `Context` and returns an `Outcome`. It runs in a process of its own, with everything that it starts in
its process group; what it raises is a failure with the error as what was observed, and so is a hang.
"""

import fcntl
import hashlib
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from faults import traces, victims
from faults.fork_server import ForkServer
from faults.victims import Victim

# A case of a check (a victim) has less than a minute; a check may have a dozen of them.
SECONDS_A_CHECK = 240.0
# Dropout, for it is what random numbers decide in a step.
TINY_MODEL = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2,dropout_rate=0.1"

# The shortest honest runs: eight updates of a one-layer T5, a checkpoint every second one, nearly three passes over the
# data, dropout on, no evaluation before the end. About 1 s each.
COMMON = {
    "max_steps": 8,
    "save_steps": 2,
    "save_strategy": "steps",
    "save_total_limit": 10,
    "eval_strategy": "no",
    "logging_steps": 1,
    "per_device_train_batch_size": 8,
    "config_overrides": TINY_MODEL,
    "max_eval_samples": 8,
    "learning_rate": 1e-2,
    "seed": 1,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}
FLAGS = {
    "fine_tune_t5": {**COMMON, "max_train_samples": 24, "train_sampling_strategy": "random"},
    "pre_train_t5": {**COMMON, "inputs_length": 32, "warmup_steps": 0, "validation_fraction": 0.2},
}
# Documents of the bundled text that pre-training runs read: a few updates a pass.
NUM_DOCUMENTS, DOCUMENT_CHARACTERS = 40, 100


@dataclass(frozen=True)
class Outcome:
    """What a check saw. `pending`: what part of it waits for something that is not there yet."""

    passed: bool
    observed: str
    pending: str = ""


@dataclass(frozen=True)
class Check:
    """One line of the suite's table.

    Attributes:
      function: `Context -> Outcome`.
      injected, expected: for the table.
      limit: seconds after which it counts as hanging.
      pending: why all of it waits; it is not run then.
    """

    function: Callable
    injected: str
    expected: str
    limit: float = SECONDS_A_CHECK
    pending: str = ""


@dataclass
class Context:
    """What a check works with.

    Attributes:
      directory: a fresh folder of its own.
      shared: the suite's folder, where reference runs are kept.
      quick: the shortest honest form is wanted.
      seed: of whatever the check draws at random (`rng`).
    """

    directory: Path
    shared: Path
    server: ForkServer
    quick: bool = False
    seed: int = 0
    rng: random.Random = field(default_factory=random.Random)
    _numbers: itertools.count = field(default_factory=itertools.count, repr=False)

    def folder(self, name: str = "folder") -> Path:
        """The path of a folder that is not there yet."""
        return self.directory / f"{name}-{next(self._numbers)}"

    def flags(self, script: str, **changes) -> list[str]:
        """The flags of a tiny run, with changes; a value of None leaves a flag out, a list is several words.

        >>> context.flags("fine_tune_t5", max_steps=4)
        ['--max_steps', '4', ...]
        """
        given = {**FLAGS[script], **({"train_file": self.text()} if script == "pre_train_t5" else {}), **changes}
        words = []
        for name, value in given.items():
            if value is not None:
                words += [f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
        return words

    def victim(
        self, script: str, argv, *, directory=None, ranks=1, cold=False, env=None, patch=None, traced=True
    ) -> Victim:
        """Starts a run; see `victims.start`. `--output_dir` is added: `directory`, or a new one."""
        directory = Path(directory) if directory else self.folder("run")
        argv = [*argv, "--output_dir", str(directory)] if ":" not in script else argv
        return victims.start(
            self.server, script, argv, directory, self.directory,
            ranks=ranks, cold=cold, env=env, patch=patch, traced=traced,
        )  # fmt: skip

    def run(self, script: str, argv, *, timeout: float = victims.SECONDS, **settings) -> Victim:
        """Starts a run and waits for its end."""
        victim = self.victim(script, argv, **settings)
        victim.wait(timeout)
        return victim

    def reference(self, script: str, argv, ranks: int = 1, env=None) -> Path:
        """The directory of the uninterrupted run of a command; made once for the whole suite.

        Raises:
          AssertionError: it does not end with 0.
        """
        key = hashlib.sha256(json.dumps([script, list(map(str, argv)), ranks, env]).encode()).hexdigest()[:16]
        folder = self.shared / "references"
        folder.mkdir(exist_ok=True)
        directory, done = folder / key, folder / f"{key}.done"
        with (folder / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                for half_done in (directory, victims.trace_folder(directory)):
                    shutil.rmtree(half_done, ignore_errors=True)
                victim = self.run(script, argv, directory=directory, ranks=ranks, env=env)
                assert victim.code == 0, f"the uninterrupted run exits {victim.codes}: {victim.tail()}"
                done.touch()
        return directory

    def text(self) -> Path:
        """A short text for pre-training: `NUM_DOCUMENTS` documents of the bundled one, a line each."""
        path = self.shared / "text.txt"
        if not path.exists():
            from t5suite.data.corpora.documents import bundled_text, read_documents

            documents = itertools.islice(read_documents(bundled_text("train")), NUM_DOCUMENTS)
            lines = "".join(document[:DOCUMENT_CHARACTERS].replace("\n", " ") + "\n" for document in documents)
            temporary = path.with_name(f"text.{os.getpid()}")
            temporary.write_text(lines, encoding="utf-8")
            temporary.rename(path)
        return path


def difference(directory, reference) -> str | None:
    """How two runs differ, or None: their traces bit by bit."""
    return traces.compare(traces.read(directory), traces.read(reference))


def outcome(passed, observed: str, pending: str = "") -> Outcome:
    """An `Outcome`, of anything that is true or not."""
    return Outcome(bool(passed), observed, pending)


def all_hold(cases: dict[str, str | None], done: str, pending: str = "") -> Outcome:
    """An `Outcome` of named cases, each None or what went wrong.

    >>> all_hold({"workers 0": None, "workers 2": "step 5: loss"}, done="exact")
    Outcome(passed=False, observed='1 of 2 exact; workers 2: step 5: loss')
    """
    wrong = {name: problem for name, problem in cases.items() if problem}
    observed = f"{len(cases) - len(wrong)} of {len(cases)} {done}"
    said = "; ".join([observed, *(f"{name}: {problem}" for name, problem in wrong.items())])
    return Outcome(not wrong and bool(cases), said, pending)
