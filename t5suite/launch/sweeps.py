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
import os
import secrets
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from t5suite.base import errors
from t5suite.base.files import write_json
from t5suite.base.programs import code_of_workers, read_notes
from t5suite.base.redaction import MASK, redacted_value
from t5suite.base.terminal import short_time
from t5suite.launch.commands import (
    DEFAULT_COMMAND,
    command_without,
    command_words,
    flags_in,
    installed_script,
)
from t5suite.launch.running_trials import LOST, MAX_STARTS, RunningTrial, TrialFiles, was_killed
from t5suite.launch.sweep_directories import SWEEP_FILE, locked, open_directory
from t5suite.launch.sweep_files import parameters_of, read_sweep
from t5suite.launch.sweep_plans import SweepPlan
from t5suite.launch.sweep_store import FINAL, Claim, TrialStore
from t5suite.launch.sweep_summaries import summary_of
from t5suite.launch.sweep_tables import cell_text, parameters_text, say, shell_line
from t5suite.launch.trial_environments import trial_environment
from t5suite.launch.trial_metrics import TrialCurve, best_of, has_done_all_steps, read_curve, result_of_run
from t5suite.launch.trials import GRACE, TrialProcess, describe_exit, end_of_log
from t5suite.runs.settings import without_secrets

# This many failures before any success mean that the parameters are not the cause.
FIRST_FAILURES = 5
SECONDS_BETWEEN_POLLS = 0.1
SECONDS_BETWEEN_CLAIMS = 2.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Sweep:
    """Runs trials of a plan in a directory until all are taken.

    Args:
      devices: for each worker the GPUs of its trials (`trial_environments.devices_of_workers`).
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
        # In the directory's order, which numbers a grid's combinations: that of another copy may have changed.
        parameters = parameters_of(read_sweep(self.directory / SWEEP_FILE))
        search = replace(plan.search, parameters=parameters)
        self.store = TrialStore(self.directory, search)
        with locked(self.directory):
            words = without_secrets(plan.words)  # the journal is a file like others
            entries = self.store.describe(sweep_id=secrets.token_hex(4), words=words, name=plan.name)
        self.sweep_id = entries["sweep_id"]
        words = self._words_after_flags(plan.words, entries["words"])
        self.plan = replace(plan, search=search, words=words, name=entries["name"])
        self.replaced_flags = flags_in(self.plan.words)
        self.slots: list[RunningTrial | None] = [None] * workers
        self.error: errors.ConfigError | None = None

    def _words_after_flags(self, words: list[str], words_of_directory: list[str]) -> list[str]:
        """The words after `--`; without any, those that the directory's sweep began with.

        Raises:
          ConfigError: others than those, or none where those had a secret, which the directory does not hold.
        """
        words_there = shlex.join(without_secrets(words_of_directory))
        words_here = shlex.join(without_secrets(words))
        if words_here == words_there:
            return words
        if not words and MASK not in words_there:
            return words_of_directory
        self.store.close()
        if not words:
            raise errors.ConfigError(
                f"--sweep_dir {self.directory}: this sweep adds {words_there} to its trials' command, and the "
                "directory holds no secrets; give the same words after -- again"
            )
        raise errors.ConfigError(
            f"--sweep_dir {self.directory}: this sweep adds {words_there or 'nothing'} to its trials' command, not "
            f"{words_here}; give the same words after --, or another --sweep_dir"
        )

    def run(self) -> list[dict]:
        """Runs trials until none is left to claim, and returns the records of all.

        Raises:
          Preempted: a signal asked to stop; the trials have been stopped and can be resumed.
          ConfigError: the first trials all failed, or one was rejected (78) before any finished.
        """
        try:
            with _stop_signals() as signals:
                self._loop(signals)
            records = self.write_summary()
        finally:
            # After an error in the sweep itself its trials end with a checkpoint, and can be resumed.
            self._end_processes()
            self.store.close()
        if self.error:
            raise self.error
        if signals:
            stopped_count = sum(record["state"] == "preempted" for record in records)
            raise errors.Preempted(
                f"{stopped_count} trials were stopped before their end; --resume continues {self.directory}"
            )
        return records

    def _end_processes(self) -> None:
        """Stops the trials that still run, and waits for their end."""
        processes = [slot.process for slot in self.slots if slot is not None and slot.began is not None]
        for process in processes:
            process.stop(self.grace)
        while [process for process in processes if process.poll() is None]:
            time.sleep(SECONDS_BETWEEN_POLLS)

    def _loop(self, signals: list[int]) -> None:
        """Until no trial is left to claim, or all were stopped."""
        next_claim = 0.0  # 0: at once
        while True:
            if signals or self.error:
                self._stop_trials(by_force=len(signals) > 1)
            elif None in self.slots and time.monotonic() >= next_claim:
                next_claim = 0.0
                if not self._fill_slots():
                    next_claim = time.monotonic() + SECONDS_BETWEEN_CLAIMS
            if self._advance_trials():
                next_claim = 0.0
            claims_no_more = next_claim or signals or self.error
            if claims_no_more and not any(self.slots):
                return
            time.sleep(SECONDS_BETWEEN_POLLS)

    def _stop_trials(self, by_force: bool) -> None:
        """Asks all trials to end; by force, they are ended now."""
        for slot in filter(None, self.slots):
            slot.ask_to_end("preempted", self.grace)
            if by_force and slot.began is not None:
                slot.process.kill()

    def _fill_slots(self) -> bool:
        """Gives every free worker a trial; returns whether there was one for each."""
        for worker, slot in enumerate(self.slots):
            if slot is not None:
                continue
            claim = self.store.claim(self.plan.limit)
            if claim is None:
                return False
            self.slots[worker] = self._new_trial(claim, worker)
        return True

    def _new_trial(self, claim: Claim, worker: int) -> RunningTrial:
        """A claimed trial with its process, which is not created yet."""
        files = TrialFiles(self.directory, claim.number)
        files.run_dir.parent.mkdir(exist_ok=True)
        if "${args_json_file}" in map(str, self.plan.command or ()):
            files.parameters.write_text(json.dumps(claim.parameters), encoding="utf-8")
        run_id = f"{self.sweep_id}-{claim.number:04d}"
        environment = trial_environment(
            files.run_dir, files.exit_codes, run_id, self.plan.name, self.workers, self.devices[worker]
        )
        words = self.words(claim.number, claim.parameters, os.environ)
        return RunningTrial(claim, files, TrialProcess(words, files.log, environment))

    def _advance_trials(self) -> bool:
        """One step of every trial; returns whether any has ended."""
        has_any_ended = False
        for worker, slot in enumerate(self.slots):
            if slot is not None and self._advance(slot):
                self.slots[worker] = None
                has_any_ended = True
        return has_any_ended

    def _advance(self, slot: RunningTrial) -> bool:
        """One step of a trial; returns whether it has ended, or was given back before it began."""
        if slot.began is None:
            return self._begin(slot)
        exit_code = slot.process.poll()
        self._compare(slot, has_ended=exit_code is not None)
        if exit_code is None:
            return False
        self._end(slot, exit_code)
        return True

    def _compare(self, slot: RunningTrial, has_ended: bool) -> None:
        """Compares a trial at the rungs that it has reached since the last look; one that is behind is asked to end.

        One that has ended in the meantime is compared, too: it is what later trials are measured by.
        """
        curve = self._curve(slot.files)
        for value_count in self.plan.search.rungs[slot.rung :]:
            if slot.stopped or len(curve.points) < value_count:
                return
            best = best_of(curve.values[:value_count], self.plan.search.goal)
            if best is None:
                best = math.nan
            is_behind = self.store.is_behind(slot.claim, slot.rung, best)
            if is_behind and not has_ended:
                self._stop_early(slot, curve.last_step)
            slot.pass_rung()

    def _stop_early(self, slot: RunningTrial, step: int | None) -> None:
        """Asks a trial that is behind to end, unless only its scores are left."""
        if not has_done_all_steps(slot.files.run_dir, step):
            slot.ask_to_end("pruned", self.grace)

    def _begin(self, slot: RunningTrial) -> bool:
        """Starts a trial once its former process has ended completely; returns whether it was given back instead."""
        claim = slot.claim
        if slot.stopped:
            self.store.give_back(claim)
            return True
        if slot.waits_for_former_process(self.grace):
            return False
        seconds = slot.seconds_before()
        self.store.note(claim, process=slot.process.prepare(), since=time.time(), seconds=seconds)
        slot.begin()
        self._say_start(claim)
        self.write_summary()
        return False

    def _say_start(self, claim: Claim) -> None:
        """`trial 3: started, 4 of 20, learning_rate 0.001`."""
        text = f"trial {claim.number}: started"
        starts = claim.status["starts"]
        if starts > 1:
            text += f" again (start {starts})"
        text += f", {claim.number + 1} of {self.store.limit(self.plan.limit)}"
        parameters = self.plan.search.parameters
        searched = {parameter.path[0] for parameter in parameters if parameter.distribution != "constant"}
        values = {name: value for name, value in claim.parameters.items() if name in searched}
        if values:
            text += f", {parameters_text(values)}"
        say(text)

    def _end(self, slot: RunningTrial, exit_code: int) -> None:
        """Records the end of a trial's processes: its own, or one from which it goes on."""
        claim = slot.claim
        notes = read_notes(slot.files.exit_codes)
        exit_code = code_of_workers(exit_code, notes)
        curve = self._curve(slot.files)
        facts = {
            "seconds": slot.seconds(),
            "exit_code": exit_code,
            "value": best_of(curve.values, self.plan.search.goal),
            "last_step": curve.last_step,
        }
        match slot.cause_of_end(exit_code, notes):
            case "finished":
                message = self._finish(slot, facts, curve)
            case "pruned":
                message = self._prune(slot, facts)
            case "preempted":
                self.store.give_back(claim, **facts, process=None)
                message = f"preempted at step {curve.last_step}"
            case "killed":
                message = self._leave(slot, facts)
            case "failed":
                interrupted = exit_code == errors.EXIT_PREEMPTED or was_killed(exit_code, notes)
                message = self._fail(slot, facts, _text_of_failure(slot, exit_code), interrupted)
        records = self.write_summary()
        say(f"trial {claim.number}: {message}{self._progress(records)}")

    def _leave(self, slot: RunningTrial, facts: dict) -> str:
        """Records a trial that was killed; returns the message.

        This process keeps it and does not restart it: what killed it (lack of memory) may do so again at once.
        """
        self.store.note(slot.claim, **facts, state="preempted", process=None)
        why = "the trial's processes were killed, for example because memory ran out"
        if facts["exit_code"] in LOST:
            why = f"{describe_exit(facts['exit_code'])} from outside"
        return f"{why}; --resume continues it ({slot.files.log})"

    def _finish(self, slot: RunningTrial, facts: dict, curve: TrialCurve) -> str:
        """Records a trial that ended by itself, a failure if it has no value; returns the message."""
        value = facts["value"]
        if not curve.points and "metric" not in self.plan.content:
            value = result_of_run(slot.files.run_dir, self.plan.metric)
        if not curve.points and value is None:
            evaluated_names = sorted(name for name in curve.metric_names if name.startswith("eval/"))
            logged = ", ".join(evaluated_names) or "no metric"
            why = f"it ended without logging {self.plan.metric}; it logged {logged}"
            return self._fail(slot, facts, why, interrupted=False)
        self.store.end(slot.claim, "complete", **{**facts, "value": value})
        if value is None:
            return f"finished, but {self.plan.metric} was never a number; {slot.files.log} says why"
        return f"finished, best {cell_text(value)}"

    def _prune(self, slot: RunningTrial, facts: dict) -> str:
        """Records a trial that was stopped early; returns the message."""
        step = facts["last_step"]
        if slot.may_restart() and has_done_all_steps(slot.files.run_dir, step):
            # It was asked to stop before its last step, and had made it when it heard: only its scores are left.
            self.store.give_back(slot.claim, **facts, process=None)
            return f"has done all its steps, to {step}: it goes on to its scores"
        self.store.end(slot.claim, "pruned", **facts)
        return f"stopped early at step {step}, best {cell_text(facts['value'])}"

    def _fail(self, slot: RunningTrial, facts: dict, why: str, interrupted: bool) -> str:
        """Records a failure, which ends the sweep if all trials are likely to fail; returns the message.

        Args:
          interrupted: whether the failure says nothing of the trial's values.
        """
        self.store.end(slot.claim, "failed", **facts, why=why, interrupted=interrupted)
        states = [status.get("state") for _, _, status in self.store.statuses()]
        failure_count = states.count("failed")
        is_refused = facts["exit_code"] == errors.EXIT_BAD_CONFIGURATION
        is_hopeless = is_refused or failure_count >= FIRST_FAILURES
        if is_hopeless and "complete" not in states and "pruned" not in states:
            cause = f"the first {failure_count} trials failed, so their parameters are hardly the cause. The last one"
            if is_refused:
                cause = f"trial {slot.claim.number} was refused, and the others would be"
            self.error = _error_of_sweep(slot, f"{cause}: {why}")
        return f"failed, {why} ({slot.files.log})"

    def _progress(self, records: list[dict]) -> str:
        """How many trials have ended, and about how long this process's workers would take for the others."""
        seconds = [record["seconds"] for record in records if record["state"] in FINAL]
        if self.error or not seconds:
            return ""
        unfinished_count = self.store.limit(self.plan.limit) - len(seconds)
        if unfinished_count <= 0:
            return ""
        time_left = short_time(sum(seconds) / len(seconds) * unfinished_count / self.workers)
        return f" · {len(seconds)} of {len(seconds) + unfinished_count} done, about {time_left} left"

    def words(self, number: int, parameters: dict, environment: Mapping[str, str] | None) -> list[str]:
        """A trial's command: flags after `--` replace the file's; scripts that are not here are the installed ones.

        Args:
          environment: of `${envvar:NAME}`; None: it stays as it is.
        """
        plan = self.plan
        remaining = {name: value for name, value in parameters.items() if name not in self.replaced_flags}
        command = command_without(plan.command or DEFAULT_COMMAND, plan.words, plan.program)
        json_file = TrialFiles(self.directory, number).parameters
        words = [*command_words(command, remaining, plan.program, json_file, environment), *plan.words]
        return [installed_script(word) for word in words]

    def records(self) -> list[dict]:
        """All trials, as `sweep.json` has them."""
        running = {slot.claim.number: slot for slot in self.slots if slot}
        records = []
        for number, parameters, status in self.store.statuses():
            records.append(self._record(number, parameters, status, running.get(number)))
        return records

    def _record(self, number: int, parameters: dict, status: dict, slot: RunningTrial | None) -> dict:
        """One trial, as `sweep.json` has it."""
        state = status.get("state", "running")
        is_running = state == "running"
        files = TrialFiles(self.directory, number)
        curve = self._curve(files)
        value = None
        if state in FINAL:
            value = status.get("value")
        if value is None:
            value = best_of(curve.values, self.plan.search.goal)
        seconds = status.get("seconds")
        if slot and is_running:
            seconds = slot.seconds()
        exit_code = None
        if not is_running:
            exit_code = status.get("exit_code")
        parameters_used = {name: self.replaced_flags.get(name, setting) for name, setting in parameters.items()}
        record = {
            "number": number,
            "state": state,
            "parameters": redacted_value(parameters_used),
            "value": value,
            "scores": curve.scores_at_best(self.plan.search.goal),
            "last_step": curve.last_step,
            "curve": _json_points(curve),
            "seconds": seconds,
            "exit_code": exit_code,
            "run_dir": str(files.run_dir),
            "command": shell_line(without_secrets(self.words(number, parameters, environment=None))),
        }
        if status.get("why"):
            record["why"] = status["why"]
        return record

    def write_summary(self) -> list[dict]:
        """Writes `sweep.json` under the directory's lock, so that no older state is written after it."""
        with locked(self.directory):
            records = self.records()
            write_json(self.directory / "sweep.json", summary_of(self.plan, records))
        return records

    def _curve(self, files: TrialFiles) -> TrialCurve:
        """The sweep's metric, as a trial has logged it so far."""
        return read_curve(files.metrics, self.plan.metric)


def _text_of_failure(slot: RunningTrial, exit_code: int) -> str:
    """`exit code 70: it diverged`; of a trial that was started too often, also how often."""
    text = describe_exit(exit_code)
    if slot.may_restart():
        return text
    return f"{text}, {MAX_STARTS} times"


def _error_of_sweep(slot: RunningTrial, why: str) -> errors.ConfigError:
    """That all trials are likely to fail, with the end of the log of this one."""
    log = slot.files.log
    tail = [f"  {line}" for line in end_of_log(log)]
    return errors.ConfigError("\n".join([f"{why}; {log} says:", *tail]))


def _json_points(curve: TrialCurve) -> list[list]:
    """A curve as JSON has it, with None for NaN."""
    points = []
    for step, value in curve.points:
        if math.isnan(value):
            value = None
        points.append([step, value])
    return points


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """A list to which every stop signal is added."""
    received: list[int] = []
    former_handlers = {}
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup's stays
            former_handlers[number] = signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield received
    finally:
        for number, handler in former_handlers.items():
            signal.signal(number, handler)
