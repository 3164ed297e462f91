"""Runs of the real scripts in processes of their own, to be killed.

    >>> victim = context.victim("fine_tune_t5", argv, patch=partial(patches.kill_at_step, 5))
    >>> victim.wait()
    [-9]

Most are forked from a parent that has imported the libraries; a cold one is `python fine_tune_t5.py ...`. With several
ranks there are so many processes, which find each other as torchrun's do.
"""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from faults import traces
from faults.fork_server import ROOT, SLACK, ForkServer, call, environment

SECONDS = 50.0
POLL_SECONDS = 0.005


@dataclass
class Victim:
    """A run of one or more processes.

    Attributes:
      directory: its `--output_dir`.
      trace: where its trace is written.
      processes: one a rank.
      logs: standard output and error of each rank.
    """

    directory: Path
    trace: Path
    processes: list = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def wait(self, timeout: float = SECONDS) -> list[int]:
        """The exit codes by rank (-9: killed by signal 9). What has not ended by then is killed.

        Raises:
          TimeoutError: a process did not end, with the end of its output.
        """
        deadline = time.monotonic() + timeout * SLACK
        for rank, process in enumerate(self.processes):
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(signal.SIGKILL)
                raise TimeoutError(f"rank {rank} still ran after {timeout:g} s: {self.tail(rank)}") from None
        self.ended = self.ended or time.monotonic()
        return self.codes

    @property
    def codes(self) -> list[int | None]:
        """Exit codes by rank; None for one that runs."""
        return [process.poll() for process in self.processes]

    @property
    def code(self) -> int | None:
        """The exit code: the one that all ranks agree on, else the first that is not 0."""
        return next((code for code in self.codes if code != 0), 0)

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return (self.ended or time.monotonic()) - self.started

    @property
    def output(self) -> str:
        """What rank 0 wrote."""
        return self.output_of(0)

    def output_of(self, rank: int) -> str:
        """What a rank wrote."""
        path = self.logs[rank]
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def tail(self, rank: int = 0, lines: int = 3) -> str:
        """The last lines that say something, joined: for what a check observed."""
        said = [line.strip() for line in self.output_of(rank).splitlines() if line.strip()]
        return " | ".join(said[-lines:])[-600:]

    def kill(self, number: int = signal.SIGKILL, rank: int | None = None) -> None:
        """Sends a signal to one rank, or to all."""
        for process in self.processes if rank is None else [self.processes[rank]]:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def wait_until(self, condition, what: str, timeout: float = SECONDS) -> None:
        """Waits for `condition()` to be true while the victim runs.

        Raises:
          TimeoutError: it did not come true, or the victim ended before.
        """
        deadline = time.monotonic() + timeout * SLACK
        while not condition():
            if None not in self.codes and not condition():
                raise TimeoutError(f"ended with {self.codes} before {what}: {self.tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"no {what} after {timeout:g} s: {self.tail()}")
            time.sleep(POLL_SECONDS)

    def wait_for_step(self, step: int, rank: int = 0, timeout: float = SECONDS) -> None:
        """Waits until a step has been done (its save and evaluation come after that)."""
        path = self.trace / traces.file_name(rank)
        self.wait_until(lambda: traces.last_step(path) >= step, f"step {step}", timeout)

    def wait_for_line(self, text: str, rank: int = 0, timeout: float = SECONDS) -> None:
        """Waits until a rank has written a text."""
        self.wait_until(lambda: text in self.output_of(rank), f"{text!r} in its output", timeout)


def start(
    server: ForkServer,
    script: str,
    argv,
    directory: Path,
    logs: Path,
    *,
    ranks: int = 1,
    cold: bool = False,
    env: dict | None = None,
    patch=None,
    traced: bool = True,
) -> Victim:
    """Starts `script` ("fine_tune_t5", "pre_train_t5" or "module:function") with `argv`, a process a rank.

    Args:
      patch: called in every process before the script: a function, a `functools.partial` of one with plain arguments,
        "module:function", or a list of these.
      cold: a fresh interpreter. Without patch and trace, the script as a user starts it.
    """
    victim = Victim(directory, trace_folder(directory))
    port = str(_free_port()) if ranks > 1 else ""
    for rank in range(ranks):
        log = logs / f"{directory.name}.{len(list(logs.glob(f'{directory.name}.*')))}.log"
        log.touch()
        spec = {
            "script": script,
            "argv": [str(word) for word in argv],
            "environment": {**_rank_environment(rank, ranks, port), **(env or {})},
            "folder": str(logs),
            "patches": [_plain(part) for part in _as_list(patch)],
            "trace": str(victim.trace) if traced else None,
        }
        victim.logs.append(log)
        if cold:
            victim.processes.append(_start_cold(spec, log, server))
        else:
            victim.processes.append(server.start("faults.victims:live", spec, log, os.getpgrp()))
    return victim


def trace_folder(directory) -> Path:
    """Beside the run, for nothing of the suite's may lie in it."""
    return Path(f"{directory}.trace")


def live(spec: dict) -> int:
    """A victim's life: its surroundings, what is injected, and the script."""
    from t5suite.base.programs import run_command

    os.environ.update(spec["environment"])
    os.chdir(spec["folder"])
    module, _, function = spec["script"].partition(":")
    sys.argv = [str(ROOT / f"{module}.py"), *spec["argv"]]
    if spec["trace"]:
        traces.install(spec["trace"])
    for part in spec["patches"]:
        call(part["target"], *part["arguments"], **part["keywords"])
    return run_command(functools.partial(call, f"{module}:{function or 'main'}"), spec["argv"])


def _start_cold(spec, log, server) -> subprocess.Popen:
    if spec["patches"] or spec["trace"] or ":" in spec["script"]:
        command = [sys.executable, "-m", "faults.victims", json.dumps(spec)]
    else:
        command = [sys.executable, str(ROOT / f"{spec['script']}.py"), *spec["argv"]]
    surroundings = environment(Path(server.address).parent, **spec["environment"])
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=surroundings, cwd=spec["folder"]
        )


def _rank_environment(rank: int, ranks: int, port: str) -> dict[str, str]:
    if ranks == 1:
        return {}
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {**{name: str(number) for name, number in numbers.items()}, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _as_list(patch) -> list:
    if patch is None:
        return []
    return list(patch) if isinstance(patch, (list, tuple)) else [patch]


def _plain(patch) -> dict:
    """A patch as JSON, for it is called in another process.

    >>> _plain(functools.partial(kill_at_step, 5))
    {'target': 'faults.patches:kill_at_step', 'arguments': [5], 'keywords': {}}
    """
    if isinstance(patch, str):
        return {"target": patch, "arguments": [], "keywords": {}}
    if isinstance(patch, functools.partial):
        named = _plain(patch.func)
        return {**named, "arguments": list(patch.args), "keywords": dict(patch.keywords)}
    return {"target": f"{patch.__module__}:{patch.__qualname__}", "arguments": [], "keywords": {}}


if __name__ == "__main__":
    sys.exit(live(json.loads(sys.argv[1])))
