"""A sweep without a server: trials are proposed, run as processes, watched, stopped early and recorded.

    >>> plan = plan_of(read_sweep("sweeps/mini_sentiment_sweep.yaml"), count=8)
    >>> records = Sweep(plan, "runs/sweeps/mini_sentiment", workers=2).run()
    >>> records[0]
    {'number': 0, 'state': 'complete', 'parameters': {...}, 'value': 91.0, 'last_step': 200, ...}

A directory holds the sweep: `sweep.yaml` unchanged, Optuna's `journal.log`, a run directory and a log for each
trial in `trials/`, and all of it in `sweep.json`. Several processes may work on one directory, on one node or several;
a killed sweep resumes without losing or repeating a trial (`sweep_store`).
"""

import json
import math
import secrets
import shlex
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from t5suite.base import errors
from t5suite.base.terminal import short_time
from t5suite.launch.commands import DEFAULT_COMMAND, command_without, command_words, flags_in
from t5suite.launch.sweep_directories import locked, open_directory
from t5suite.launch.sweep_plans import SweepPlan
from t5suite.launch.sweep_store import FINAL, Claim, TrialStore
from t5suite.launch.sweep_tables import cell_text, say, shell_line, shown, summary_of
from t5suite.launch.trials import (
    GRACE,
    TrialProcess,
    best_of,
    curve_of,
    describe_exit,
    has_done_all_steps,
    leftovers,
    result_of_run,
    signal_group,
    trial_environment,
)
from t5suite.runs.directory import METRICS, write_json
from t5suite.runs.lock import RunLock

# This many failures before any success mean that the parameters are not the cause.
FIRST_FAILURES = 5
MAX_STARTS = 20
# For processes whose driver has died, before they are signalled again: launchers forward signals, and a script takes
# the third one as a request to stop at once.
SECONDS_TO_END = 5.0
SECONDS_BETWEEN_POLLS = 0.1
SECONDS_BETWEEN_CLAIMS = 2.0
# Exit codes of a trial that something else ended: minus the signal, or 128 and the signal where a launcher reports it.
LOST = [sign for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP) for sign in (-number, 128 + number)]
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class Running:
    """A trial that a worker of this process has.

    Attributes:
      rung: how many comparisons it has passed.
      stopped: why it was asked to end: "pruned", "preempted", or "" if it was not.
      signalled: whether its former process was asked to end, or the wait for it was reported.
    """

    claim: Claim
    process: TrialProcess
    began: float | None = None
    rung: int = 0
    stopped: str = ""
    waiting_since: float = field(default_factory=time.monotonic)
    signalled: bool = False

    def seconds(self) -> float:
        """How long it has run, earlier starts included."""
        now = time.monotonic()
        return round(self.claim.status.get("seconds", 0.0) + (now - self.began if self.began else 0.0), 1)


class Sweep:
    """Runs trials of a plan in a directory until all are taken.

    Args:
      devices: for each worker the GPUs of its trials (`trials.devices_of_workers`).
      grace: seconds that a stopped trial has for its checkpoint.

    Raises:
      ConfigError: the directory holds another sweep, or one begun with other words after `--`.
    """

    def __init__(self, plan: SweepPlan, directory, workers: int = 1, resume=False, devices=None, grace=GRACE):
        self.directory = Path(directory)
        self.workers = workers
        self.devices = devices or [None] * workers
        self.grace = grace
        open_directory(self.directory, plan, resume)
        self.store = TrialStore(self.directory, plan.search)
        with locked(self.directory):
            facts = self.store.describe(sweep_id=secrets.token_hex(4), words=plan.words, name=plan.name)
            ended = [status.get("state") for _, _, status in self.store.statuses()]
        if plan.words and facts["words"] != plan.words:
            self.store.close()
            there, here = (shlex.join(words) or "nothing" for words in (facts["words"], plan.words))
            raise errors.ConfigError(
                f"--sweep_dir {self.directory}: this sweep adds {there} to its trials' command, not {here}; "
                "give the same words after --, or another --sweep_dir"
            )
        self.sweep_id = facts["sweep_id"]
        self.plan = replace(plan, words=facts["words"], name=facts["name"])
        self.later = flags_in(self.plan.words)
        self.slots: list[Running | None] = [None] * workers
        self.failures = 0
        self.succeeded = "complete" in ended or "pruned" in ended
        self.error: errors.ConfigError | None = None

    # -----------------------------------------------------------------------------------------------------------------
    # The loop

    def run(self) -> list[dict]:
        """Runs trials until none is left to claim, and returns the records of all.

        Raises:
          Preempted: a signal asked to stop; the trials have been stopped and can be resumed.
          ConfigError: the first trials all failed, or one was rejected (78) before any finished.
        """
        try:
            with _stop_requests() as asked:
                self._loop(asked)
            records = self.write_summary()
        finally:
            # After an error in the sweep itself its trials end with a checkpoint, and can be resumed.
            begun = [slot.process for slot in filter(None, self.slots) if slot.began is not None]
            for process in begun:
                process.stop(self.grace)
            while [process for process in begun if process.poll() is None]:
                time.sleep(SECONDS_BETWEEN_POLLS)
            self.store.close()
        if self.error:
            raise self.error
        if asked:
            left = sum(record["state"] == "preempted" for record in records)
            raise errors.Preempted(f"{left} trials were stopped before their end; --resume continues {self.directory}")
        return records

    def _loop(self, asked: list) -> None:
        """Until no trial is left to claim, or all were stopped."""
        next_claim = 0.0
        while True:
            if asked or self.error:
                for slot in filter(None, self.slots):
                    slot.stopped = slot.stopped or "preempted"
                    if slot.began is not None:
                        slot.process.stop(self.grace)
                        if len(asked) > 1:
                            slot.process.kill()
            elif None in self.slots and time.monotonic() >= next_claim:
                next_claim = 0.0 if self._fill() else time.monotonic() + SECONDS_BETWEEN_CLAIMS
            for i, slot in enumerate(self.slots):
                if slot is not None and self._advance(slot):
                    self.slots[i], next_claim = None, 0.0
            if not any(self.slots) and (next_claim or asked or self.error):
                return
            time.sleep(SECONDS_BETWEEN_POLLS)

    def _fill(self) -> bool:
        """Gives every free worker a trial; returns whether there was one for each."""
        for i, slot in enumerate(self.slots):
            if slot is not None:
                continue
            claim = self.store.claim(self.plan.limit)
            if claim is None:
                return False
            run_dir = self.run_dir(claim.number)
            run_dir.parent.mkdir(exist_ok=True)
            if "${args_json_file}" in map(str, self.plan.command or ()):
                self._beside(claim.number, ".json").write_text(json.dumps(claim.parameters), encoding="utf-8")
            run_id = f"{self.sweep_id}-{claim.number:04d}"
            environment = trial_environment(run_dir, run_id, self.plan.name, self.workers, self.devices[i])
            words = self.words(claim.number, claim.parameters)
            self.slots[i] = Running(claim, TrialProcess(words, self._beside(claim.number, ".log"), environment))
        return True

    def _advance(self, slot: Running) -> bool:
        """One step of a trial; returns whether it has ended."""
        if slot.began is None:
            return self._begin(slot)
        code = slot.process.poll()
        self._compare(slot, has_ended=code is not None)
        if code is not None:
            self._end(slot, code)
            return True
        return False

    def _compare(self, slot: Running, has_ended: bool) -> None:
        """Compares a trial at the rungs that it has reached since the last look; one that is behind is asked to end.

        One that has ended in the meantime is compared, too: it is what later trials are measured by.
        """
        points = self._curve(slot.claim.number)[0]
        values = [value for _, value in points]
        rungs = self.plan.search.rungs
        while not slot.stopped and slot.rung < len(rungs) and len(values) >= rungs[slot.rung]:
            best = best_of(values[: rungs[slot.rung]], self.plan.search.goal)
            is_behind = self.store.is_behind(slot.claim, slot.rung, math.nan if best is None else best)
            if is_behind and not has_ended and not self._has_done_all_steps(slot.claim.number, points):
                slot.stopped = "pruned"
                slot.process.stop(self.grace)
            slot.rung += 1

    def _begin(self, slot: Running) -> bool:
        """Starts a trial once its former process has ended completely; returns whether it was given back instead."""
        claim, run_dir = slot.claim, self.run_dir(slot.claim.number)
        if slot.stopped:
            self.store.give_back(claim)
            return True
        if leftovers(claim.former):
            waited = time.monotonic() - slot.waiting_since
            late = waited > SECONDS_TO_END + self.grace
            if late or (waited > SECONDS_TO_END and not slot.signalled):
                signal_group(claim.former["pid"], signal.SIGKILL if late else signal.SIGTERM)
                slot.signalled = True
            return False
        if claim.former and run_dir.is_dir():
            try:
                RunLock(run_dir).acquire().release()
            except errors.ConfigError:
                if not slot.signalled:
                    say(f"trial {claim.number}: waiting for its former process, which runs on another machine")
                    slot.signalled = True
                return False
        seconds = claim.status.get("seconds", 0.0)
        if claim.former and (run_dir / METRICS).is_file():
            # The former process's end was not recorded: count until the last line that it logged.
            seconds += max(0.0, (run_dir / METRICS).stat().st_mtime - claim.status.get("since", math.inf))
        self.store.note(claim, process=slot.process.prepare(), since=time.time(), seconds=round(seconds, 1))
        slot.process.start()
        slot.began = time.monotonic()
        again = f" again (start {claim.status['starts']})" if claim.status["starts"] > 1 else ""
        searched = {p.path[0] for p in self.plan.search.parameters if p.distribution != "constant"}
        values = {name: value for name, value in claim.parameters.items() if name in searched}
        begun = f"started{again}, {claim.number + 1} of {self.store.limit(self.plan.limit)}"
        say(f"trial {claim.number}: {begun}{', ' if values else ''}{shown(values)}")
        self.write_summary()
        return False

    # -----------------------------------------------------------------------------------------------------------------
    # A trial's end

    def _end(self, slot: Running, code: int) -> None:
        claim, log = slot.claim, self._beside(slot.claim.number, ".log")
        points, names = self._curve(claim.number)
        value, step = best_of([value for _, value in points], self.plan.search.goal), points[-1][0] if points else None
        facts = {"seconds": slot.seconds(), "exit_code": code, "value": value, "last_step": step}
        was_stopped = slot.stopped == "preempted" and code != errors.EXIT_FINISHED
        again = claim.status["starts"] < MAX_STARTS
        did_all = self._has_done_all_steps(claim.number, points)
        if slot.stopped == "pruned" and code != errors.EXIT_FINISHED and did_all and again:
            # It was asked to stop before its last step, and had made it when it heard: only its scores are left.
            self.store.give_back(claim, **facts, process=None)
            said = f"has done all its steps, to {step}: it goes on to its scores"
        elif slot.stopped == "pruned" and code != errors.EXIT_FINISHED:  # 0: it finished all the same
            self.store.end(claim, "pruned", **facts)
            self.succeeded = True
            said = f"stopped early at step {step}, best {cell_text(value)}"
        elif was_stopped or (code == errors.EXIT_PREEMPTED and again):
            self.store.give_back(claim, **facts, process=None)
            said = f"preempted at step {step}"
        elif code == errors.EXIT_FINISHED:
            if not points and "metric" not in self.plan.content:
                facts["value"] = result_of_run(self.run_dir(claim.number))
            if points or facts["value"] is not None:
                self.store.end(claim, "complete", **facts)
                self.succeeded = True
                said = f"finished, best {cell_text(facts['value'])}"
            else:
                logged = ", ".join(sorted(name for name in names if name.startswith("eval/")))
                why = f"it ended without logging {self.plan.metric}; it logged {logged or 'no metric'}"
                said = self._fail(claim, facts, why, log)
        elif code in LOST and again:
            # This process keeps it and does not restart it: what killed it (lack of memory) may do so again at once.
            self.store.note(claim, **facts, state="preempted", process=None)
            said = f"{describe_exit(code)} from outside; --resume continues it ({log})"
        else:
            said = self._fail(claim, facts, describe_exit(code) + ("" if again else f", {MAX_STARTS} times"), log)
        say(f"trial {claim.number}: {said}{self._progress(self.write_summary())}")

    def _progress(self, records: list[dict]) -> str:
        """How many trials have ended, and about how long this process's workers would take for the others."""
        seconds = [record["seconds"] for record in records if record["state"] in FINAL]
        left = self.store.limit(self.plan.limit) - len(seconds)
        if left <= 0 or not seconds or self.error:
            return ""
        time_left = short_time(sum(seconds) / len(seconds) * left / self.workers)
        return f" · {len(seconds)} of {len(seconds) + left} done, about {time_left} left"

    def _fail(self, claim: Claim, facts: dict, why: str, log: Path) -> str:
        """Records a failure, which ends the sweep if all trials are likely to fail; returns the message."""
        self.store.end(claim, "failed", **facts, why=why, diverged=facts["exit_code"] == errors.EXIT_NUMERICS)
        self.failures += 1
        refused = facts["exit_code"] == errors.EXIT_BAD_CONFIGURATION
        if not self.succeeded and (refused or self.failures >= FIRST_FAILURES):
            said = f"the first {self.failures} trials failed, so their parameters are hardly the cause. The last one"
            if refused:
                said = f"trial {claim.number} was refused, and the others would be"
            tail = log.read_bytes()[-4000:].decode("utf-8", errors="replace").splitlines()[-5:]
            lines = [f"{said}: {why}; {log} ends with:", *(f"  {line}" for line in tail)]
            self.error = errors.ConfigError("\n".join(lines))
        return f"failed, {why} ({log})"

    # -----------------------------------------------------------------------------------------------------------------
    # Trials and their records

    def run_dir(self, number: int) -> Path:
        """A trial's run directory."""
        return self.directory / "trials" / f"{number:04d}"

    def _beside(self, number: int, suffix: str) -> Path:
        return self.run_dir(number).with_suffix(suffix).absolute()

    def words(self, number: int, parameters: dict) -> list[str]:
        """A trial's command: flags after `--` replace the file's."""
        plan = self.plan
        left = {name: value for name, value in parameters.items() if name not in self.later}
        own = command_without(plan.command or DEFAULT_COMMAND, plan.words)
        return [*command_words(own, left, plan.program, self._beside(number, ".json")), *plan.words]

    def records(self) -> list[dict]:
        """All trials, as `sweep.json` has them."""
        running = {slot.claim.number: slot for slot in self.slots if slot}
        found = []
        for number, parameters, status in self.store.statuses():
            state, slot, points = status.get("state", "running"), running.get(number), self._curve(number)[0]
            best = best_of([value for _, value in points], self.plan.search.goal)
            record = {
                "number": number,
                "state": state,
                "parameters": {name: self.later.get(name, value) for name, value in parameters.items()},
                "value": status["value"] if status.get("value") is not None else best,
                "last_step": points[-1][0] if points else None,
                "curve": [[step, None if math.isnan(value) else value] for step, value in points],
                "seconds": slot.seconds() if slot and state == "running" else status.get("seconds"),
                "exit_code": status.get("exit_code") if state != "running" else None,
                "run_dir": str(self.run_dir(number)),
                "command": shell_line(self.words(number, parameters)),
            }
            found.append({**record, "why": status["why"]} if status.get("why") else record)
        return found

    def write_summary(self) -> list[dict]:
        """Writes `sweep.json` under the directory's lock, so that no older state is written after it."""
        with locked(self.directory):
            records = self.records()
            write_json(self.directory / "sweep.json", summary_of(self.plan, records))
        return records

    def _has_done_all_steps(self, number: int, points: list[tuple[int, float]]) -> bool:
        return has_done_all_steps(self.run_dir(number), points[-1][0] if points else None)

    def _curve(self, number: int) -> tuple[list[tuple[int, float]], set[str]]:
        return curve_of(self.run_dir(number) / METRICS, self.plan.metric)


@contextmanager
def _stop_requests():
    """A list to which every stop signal is added."""
    asked: list[int] = []
    heard = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup's is not
    former = {number: signal.signal(number, lambda number, frame: asked.append(number)) for number in heard}
    try:
        yield asked
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
