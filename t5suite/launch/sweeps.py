"""A sweep without a server: trials are proposed, run as processes, watched, stopped early, and told about.

    >>> plan = plan_of(read_sweep("sweeps/mini_sentiment_sweep.yaml"), count=8)
    >>> records = Sweep(plan, "runs/sweeps/mini_sentiment", workers=2).run()
    >>> records[0]
    {'number': 0, 'state': 'complete', 'parameters': {...}, 'value': 91.0, 'last_step': 200, ...}

A directory holds the sweep: `sweep.yaml` as it was given, Optuna's `journal.log`, a run directory and a log for each
trial in `trials/`, and `sweep.json`, which tells it all. Several processes may work on one directory, on one node or
several; one that was killed goes on, without losing or repeating a trial (`trial_store`).
"""

import json
import math
import os
import secrets
import shlex
import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from t5suite.base.errors import (
    EXIT_BAD_CONFIGURATION,
    EXIT_FINISHED,
    EXIT_NUMERICS,
    EXIT_PREEMPTED,
    ConfigError,
    Preempted,
)
from t5suite.launch.commands import (
    DEFAULT_COMMAND,
    command_without,
    command_words,
    needs_json_file,
    not_overridden,
    overridden,
)
from t5suite.launch.sweep_store import Claim, SweepPlan, TrialStore, open_directory
from t5suite.launch.sweep_tables import shell_line, shown, summary_of
from t5suite.launch.trials import (
    GRACE,
    Curve,
    TrialProcess,
    best_of,
    describe_exit,
    leftovers,
    result_of_run,
    signal_group,
    trial_environment,
)
from t5suite.runs.directory import METRICS, write_json
from t5suite.runs.lock import RunLock

SUMMARY = "sweep.json"
TRIALS = "trials"
# As many failures before any success say that it is not the parameters.
FIRST_FAILURES = 5
MAX_STARTS = 20
# For processes that have heard of their driver's death, before they are asked once more: launchers pass signals on, and
# a script takes the third one for that of somebody who cannot wait.
SECONDS_TO_END = 5.0
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BETWEEN_CLAIMS = 2.0
# Exit codes of a trial that somebody else ended: minus the signal, or 128 and the signal where a launcher reports it.
LOST = [sign for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP) for sign in (-number, 128 + number)]
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Running:
    """A trial that a worker of this process has.

    Attributes:
      rung: how many comparisons it has passed.
      verdict: why it was told to end: "pruned", "preempted", or "" if it was not.
    """

    def __init__(self, claim: Claim, process: TrialProcess, curve: Curve):
        self.claim = claim
        self.process = process
        self.curve = curve
        self.began: float | None = None
        self.rung = 0
        self.verdict = ""
        self.waiting_since = time.monotonic()
        self.signalled = False

    @property
    def seconds(self) -> float:
        """That it has run, former starts included."""
        now = time.monotonic()
        return round(self.claim.status.get("seconds", 0.0) + (now - self.began if self.began else 0.0), 1)


class Sweep:
    """Runs trials of a plan in a directory until all are taken.

    Args:
      devices: for each worker the GPUs of its trials (`devices.devices_of_workers`).
      view: told of events and of the state of all trials (`sweep_tables`).
      grace: seconds that a trial that is stopped has for its checkpoint.

    Raises:
      ConfigError: the directory holds another sweep, or one that is not to be gone on with.
    """

    def __init__(
        self, plan: SweepPlan, directory, workers: int = 1, resume=False, devices=None, view=None, grace=GRACE
    ):
        self.plan = plan
        self.directory = Path(directory)
        self.workers = workers
        self.devices = devices or [None] * workers
        self.view = view
        self.grace = grace
        open_directory(self.directory, plan, resume)
        self.store = TrialStore(self.directory, plan.search)
        try:
            with self.store.locked():
                self.facts = self._agree()
                self.plan = replace(plan, words=self.facts["words"], name=self.facts["name"])
                ended = [status.get("state") for _, _, status in self.store.statuses()]
        except BaseException:
            self.store.close()
            raise
        self.slots: list[Running | None] = [None] * workers
        self.curves: dict[int, Curve] = {}
        self.failures = 0
        self.succeeded = "complete" in ended or "pruned" in ended
        self.error: ConfigError | None = None

    def _agree(self) -> dict:
        """What the sweep was begun with, which later processes must not change.

        Raises:
          ConfigError: other words behind `--`.
        """
        facts = self.store.describe(sweep_id=secrets.token_hex(4), words=self.plan.words, name=self.plan.name)
        if self.plan.words and facts["words"] != self.plan.words:
            there, here = (shlex.join(words) or "nothing" for words in (facts["words"], self.plan.words))
            raise ConfigError(
                f"--sweep_dir {self.directory}: this sweep adds {there} to its trials' command, not {here}; "
                "give the same words after --, or another --sweep_dir"
            )
        return facts

    # -----------------------------------------------------------------------------------------------------------------
    # The loop

    def run(self) -> list[dict]:
        """Runs trials until none is left to claim, and returns the records of all.

        Raises:
          Preempted: a signal asked to stop; the trials have been stopped and can be gone on with.
          ConfigError: the first trials all failed, or one was refused (78) before any came to its end.
        """
        try:
            with _stop_requests() as asked:
                self._loop(asked)
            records = self.write_summary()
        finally:
            self._abandon()
            self.store.close()
        if self.error:
            raise self.error
        if asked:
            left = sum(record["state"] == "preempted" for record in records)
            raise Preempted(f"{left} trials were stopped on the way; --resume goes on with {self.directory}")
        return records

    def _loop(self, asked: list) -> None:
        """Until no trial is left to claim, or all were stopped."""
        next_claim = 0.0
        while True:
            if asked or self.error:
                self._stop_all(kill=len(asked) > 1)
            elif None in self.slots and time.monotonic() >= next_claim:
                next_claim = 0.0 if self._fill() else time.monotonic() + SECONDS_BETWEEN_CLAIMS
            for i, slot in enumerate(self.slots):
                if slot is not None and self._look(slot):
                    self.slots[i], next_claim = None, 0.0
            if not any(self.slots) and (next_claim or asked or self.error):
                return
            self._show()
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _fill(self) -> bool:
        """Gives every free worker a trial; whether there was one for each."""
        for i, slot in enumerate(self.slots):
            if slot is None:
                claim = self.store.claim(self.plan.limit)
                if claim is None:
                    return False
                self.slots[i] = self._prepare(claim, i)
        return True

    def _prepare(self, claim: Claim, worker: int) -> Running:
        number, run_dir = claim.number, self.run_dir(claim.number)
        run_dir.parent.mkdir(exist_ok=True)
        if needs_json_file(self.plan.command):
            self._json_file(number).write_text(json.dumps(claim.parameters), encoding="utf-8")
        environment = trial_environment(
            run_dir, f"{self.facts['sweep_id']}-{number:04d}", self.plan.name, self.workers, self.devices[worker]
        )
        log = run_dir.parent / f"{number:04d}.log"
        process = TrialProcess(self.words(claim.number, claim.parameters), log, environment)
        return Running(claim, process, self._curve(number))

    def _look(self, slot: Running) -> bool:
        """One step of a trial; whether it has ended."""
        if slot.began is None:
            return self._begin(slot)
        code = slot.process.poll()
        values = slot.curve.update() if code is None else slot.curve.reread()
        if code is not None:
            self._end(slot, code, values)
            return True
        if not slot.verdict and self._is_behind(slot, [value for _, value in values]):
            slot.verdict = "pruned"
            slot.process.stop(self.grace)
        return False

    def _begin(self, slot: Running) -> bool:
        """Starts a trial once what is left of its former process has gone; whether it was given back instead."""
        claim = slot.claim
        if slot.verdict:
            self.store.give_back(claim)
            return True
        left = leftovers(claim.former)
        if left:
            waited = time.monotonic() - slot.waiting_since
            late = waited > SECONDS_TO_END + self.grace
            if late or (waited > SECONDS_TO_END and not slot.signalled):
                signal_group(claim.former["pid"], signal.SIGKILL if late else signal.SIGTERM)
                slot.signalled = True
            return False
        if claim.former and self._is_owned_elsewhere(claim.number):
            if not slot.signalled:
                self._say(f"trial {claim.number}: waiting for its former process, which lives on another machine")
                slot.signalled = True
            return False
        seconds = claim.status.get("seconds", 0.0) + self._unseen_seconds(claim)
        self.store.note(claim, process=slot.process.prepare(), since=time.time(), seconds=round(seconds, 1))
        slot.process.start()
        slot.began = time.monotonic()
        again = f" again (start {claim.status['starts']})" if claim.status["starts"] > 1 else ""
        searched = {p.path[0] for p in self.plan.search.parameters if p.distribution != "constant"}
        values = {name: value for name, value in claim.parameters.items() if name in searched}
        self._say(f"trial {claim.number}: started{again}{', ' if values else ''}{shown(values)}")
        self.write_summary()
        return False

    def _unseen_seconds(self, claim: Claim) -> float:
        """How long a former process ran whose end nobody saw, by the last line that it logged."""
        metrics = self.run_dir(claim.number) / METRICS
        if not claim.former or not metrics.is_file():
            return 0.0
        return max(0.0, metrics.stat().st_mtime - claim.status.get("since", math.inf))

    def _is_owned_elsewhere(self, number: int) -> bool:
        """Whether a process that is not ours to stop holds the run directory."""
        if not self.run_dir(number).is_dir():
            return False
        try:
            RunLock(self.run_dir(number)).acquire().release()
        except ConfigError:
            return True
        return False

    def _is_behind(self, slot: Running, values: list[float]) -> bool:
        """Whether a comparison with the other trials that is due says that the trial is to end."""
        rungs = self.plan.search.rungs
        while slot.rung < len(rungs) and len(values) >= rungs[slot.rung]:
            best = best_of(values[: rungs[slot.rung]], self.plan.search.goal)
            if self.store.is_behind(slot.claim, slot.rung, math.nan if best is None else best):
                return True
            slot.rung += 1
        return False

    def _stop_all(self, kill: bool = False) -> None:
        for slot in filter(None, self.slots):
            slot.verdict = slot.verdict or "preempted"
            if slot.began is not None:
                slot.process.stop(self.grace)
                if kill:
                    slot.process.kill()

    def _abandon(self) -> None:
        """After an error of the sweep's own its trials end with a checkpoint, and can be gone on with."""
        begun = [slot.process for slot in filter(None, self.slots) if slot.began is not None]
        for process in begun:
            process.stop(self.grace)
        while [process for process in begun if process.poll() is None]:
            time.sleep(SECONDS_BETWEEN_LOOKS)

    # -----------------------------------------------------------------------------------------------------------------
    # A trial's end

    def _end(self, slot: Running, code: int, points: list[tuple[int, float]]) -> None:
        claim, name = slot.claim, f"trial {slot.claim.number}"
        value = best_of([value for _, value in points], self.plan.search.goal)
        facts = {"seconds": slot.seconds, "exit_code": code, "value": value}
        facts["last_step"] = points[-1][0] if points else None
        stopped = slot.verdict == "preempted" and code != EXIT_FINISHED
        again = claim.status["starts"] < MAX_STARTS
        if slot.verdict == "pruned" and code != EXIT_FINISHED:  # 0: it came to its end all the same
            self._finish(
                claim, "pruned", facts, f"{name}: stopped early at step {facts['last_step']}, best {shown(value)}"
            )
        elif stopped or (code == EXIT_PREEMPTED and again):
            self.store.give_back(claim, **facts, process=None)
            self._say(f"{name}: preempted at step {facts['last_step']}")
            self.write_summary()
        elif code == EXIT_FINISHED:
            self._finished(slot, facts, has_values=bool(points))
        elif code in LOST and again:
            # It stays this process's, which does not start it again: what killed it (the memory) may do so at once.
            self.store.note(claim, **facts, state="preempted", process=None)
            self._say(f"{name}: {describe_exit(code)} by others; --resume goes on with it ({self._log(claim.number)})")
            self.write_summary()
        else:
            why = describe_exit(code) + ("" if again else f", {MAX_STARTS} times")
            self._failed(claim, facts, why, diverged=code == EXIT_NUMERICS)

    def _finished(self, slot: Running, facts: dict, has_values: bool) -> None:
        claim = slot.claim
        if not has_values and "metric" not in self.plan.content:
            facts["value"] = result_of_run(self.run_dir(claim.number))
            has_values = facts["value"] is not None
        if has_values:
            self.succeeded = True
            self._finish(claim, "complete", facts, f"trial {claim.number}: finished, best {shown(facts['value'])}")
            return
        logged = ", ".join(sorted(name for name in slot.curve.logged if name.startswith("eval/"))) or "no metric"
        self._failed(claim, facts, f"it ended without logging {self.plan.metric}; it logged {logged}")

    def _failed(self, claim: Claim, facts: dict, why: str, diverged: bool = False) -> None:
        log = self._log(claim.number)
        self._finish(
            claim, "failed", {**facts, "why": why, "diverged": diverged}, f"trial {claim.number}: failed, {why} ({log})"
        )
        self.failures += 1
        refused = facts["exit_code"] == EXIT_BAD_CONFIGURATION
        if not self.succeeded and (refused or self.failures >= FIRST_FAILURES):
            many = f"the first {self.failures} trials failed, so it is hardly their parameters. The last one"
            said = f"trial {claim.number} was refused, and the others would be" if refused else many
            self.error = ConfigError(f"{said}: {why}; {log} ends with:\n{_tail(log)}")

    def _finish(self, claim: Claim, state: str, facts: dict, said: str) -> None:
        if state == "pruned":
            self.succeeded = True
        self.store.end(claim, state, **facts)
        self._say(said)
        self.write_summary()

    # -----------------------------------------------------------------------------------------------------------------
    # What is told

    def run_dir(self, number: int) -> Path:
        """A trial's run directory."""
        return self.directory / TRIALS / f"{number:04d}"

    def words(self, number: int, parameters: dict) -> list[str]:
        """A trial's command."""
        plan = self.plan
        left = not_overridden(parameters, plan.words)
        own = command_without(plan.command or DEFAULT_COMMAND, plan.words)
        return [*command_words(own, left, plan.program, self._json_file(number)), *plan.words]

    def records(self) -> list[dict]:
        """All trials, as `sweep.json` tells them."""
        running = {slot.claim.number: slot for slot in self.slots if slot}
        found = []
        for number, parameters, status in self.store.statuses():
            curve, state = self._curve(number), status.get("state", "running")
            if number not in running and not (state in ("complete", "pruned", "failed") and curve.points):
                curve.update()
            points = curve.values()
            best = best_of([value for _, value in points], self.plan.search.goal)
            record = {
                "number": number,
                "state": state,
                "parameters": overridden(parameters, self.plan.words),
                "value": status["value"] if status.get("value") is not None else best,
                "last_step": points[-1][0] if points else None,
                "curve": [[step, None if math.isnan(value) else value] for step, value in points],
                "seconds": running[number].seconds if number in running else status.get("seconds"),
                "exit_code": status.get("exit_code") if state != "running" else None,
                "run_dir": str(self.run_dir(number)),
                "command": shell_line(self.words(number, parameters)),
            }
            found.append({**record, "why": status["why"]} if status.get("why") else record)
        return found

    def write_summary(self) -> list[dict]:
        """Writes `sweep.json`; alone in the directory, so that nobody's older account comes after it."""
        with self.store.locked():
            records = self.records()
            write_json(self.directory / SUMMARY, summary_of(self.plan, records))
        return records

    def _show(self) -> None:
        if self.view is not None and self.view.is_due():
            self.view.show(summary_of(self.plan, self.records()))

    def _say(self, text: str) -> None:
        if self.view is not None:
            self.view.say(text)

    def _curve(self, number: int) -> Curve:
        if number not in self.curves:
            self.curves[number] = Curve(self.run_dir(number) / METRICS, self.plan.metric)
        return self.curves[number]

    def _json_file(self, number: int) -> Path:
        return self.run_dir(number).with_suffix(".json").absolute()

    def _log(self, number: int) -> Path:
        return self.run_dir(number).with_suffix(".log")


def _tail(path: Path, lines: int = 5) -> str:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4000))
        text = file.read().decode("utf-8", errors="replace")
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


@contextmanager
def _stop_requests():
    """A list that every request to stop is added to."""
    asked: list[int] = []
    heard = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup's is not
    former = {number: signal.signal(number, lambda number, frame: asked.append(number)) for number in heard}
    try:
        yield asked
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
