"""A sweep's trials, in a journal that several processes on several nodes share: each trial runs once.

    >>> store = TrialStore("runs/sweeps/rte", search)
    >>> claim = store.claim(limit=20)
    >>> claim.number, claim.parameters
    (7, {'learning_rate': 0.00031})
    >>> store.note(claim, process=trial.prepare())
    >>> store.end(claim, "complete", value=71.2, exit_code=0)

The journal is Optuna's (`JournalFileBackend` with its symbolic-link lock, which NFS has too). Trials are claimed under
a lock of the directory, so that their number never exceeds the limit. A trial belongs to the process that claimed it. A
living process holds the lock of its folder in `drivers/`, so the trials of a dead process, and preempted trials, are
claimed again: same number, same parameters, same run directory.
"""

import json
import logging
import math
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import whole_file
from t5suite.launch.sweep_directories import locked
from t5suite.launch.sweep_search import Search, distributions_of, grid_of, propose, trial_parameters
from t5suite.runs.lock import RunLock

logger = logging.getLogger(__name__)

JOURNAL = "journal.log"
# How Optuna 5.0 begins a line of the journal.
RECORD_START = b'{"op_code":'
STUDY = "sweep"
FINAL = ("complete", "pruned", "failed")


@dataclass
class Claim:
    """A trial that this process is to run.

    Attributes:
      status: what the journal records: state, owner, starts, seconds, process, value, exit_code, last_step, why,
        behind_at (the comparison at which it fell behind), interrupted (whether a failure says nothing of its values).
      former: the process that ran it before, if one did.
    """

    number: int
    parameters: dict
    status: dict = field(default_factory=dict)
    former: dict | None = None


class TrialStore:
    """The trials of a sweep's directory, for one process that runs some of them.

    Raises:
      DataError: a line of the journal has no whole record.
    """

    def __init__(self, directory, search: Search):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        # The link of the lock file is broken if the path is relative, and Optuna 5.0 then busy-waits.
        self.directory = Path(directory).absolute()
        self.search = search
        self.name = f"{os.uname().nodename.split('.')[0]}-{os.getpid()}-{secrets.token_hex(3)}"
        self._lifeline = RunLock(self.directory / "drivers" / self.name).acquire()
        self.storage = _open_journal(self.directory / JOURNAL)
        with locked(self.directory):
            self.study = optuna.create_study(
                study_name=STUDY,
                storage=self.storage,
                direction=search.goal,
                load_if_exists=True,
                pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=search.eta),
            )
        self.distributions = distributions_of(search.parameters)
        self.grid = None
        if search.method == "grid":
            self.grid = grid_of(search.parameters)

    def close(self) -> None:
        """Releases the trials that this process has not ended."""
        self._lifeline.release()

    def describe(self, **entries) -> dict:
        """The journal's entries about the sweep itself, after adding those that it has not."""
        for name, value in entries.items():
            if name not in self.study.user_attrs:
                self.study.set_user_attr(name, value)
        return self.study.user_attrs

    def limit(self, limit_of_plan: float) -> float:
        """How many trials the sweep has at most: the plan's, or a grid's."""
        if self.grid is None:
            return limit_of_plan
        return min(limit_of_plan, len(self.grid))

    def claim(self, limit: float) -> Claim | None:
        """A trial to run: one that no process runs any more, else a new one.

        None when all `limit` are taken, or one has reached `metric.target`.

        Raises:
          ConfigError: the values of a trial are not among those of the file.
        """
        with locked(self.directory):
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                claim = self._take_over(trial)
                if claim:
                    return claim
            if self._is_target_reached(trials) or len(trials) >= self.limit(limit):
                return None
            return self._add_trial(trials)

    def _is_target_reached(self, trials: list) -> bool:
        """Whether a trial's value is `metric.target` or better."""
        target = self.search.target
        if target is None:
            return False
        values = [trial.user_attrs.get("status", {}).get("value") for trial in trials]
        numbers = [value for value in values if value is not None]
        if self.search.goal == "maximize":
            return any(number >= target for number in numbers)
        return any(number <= target for number in numbers)

    def _add_trial(self, trials: list) -> Claim:
        """A new trial, after these, which belongs to this process."""
        from optuna.trial import TrialState, create_trial

        number = len(trials)
        if self.grid is None:
            values = propose(trials, self.search, self.distributions)
        else:
            values = self.grid[number]
        status = {"state": "running", "owner": self.name, "starts": 1, "seconds": 0.0}
        trial = create_trial(
            state=TrialState.RUNNING, params=values, distributions=self.distributions, user_attrs={"status": status}
        )
        self.study.add_trial(trial)
        return Claim(number, trial_parameters(self.search.parameters, values), status)

    def _take_over(self, trial) -> Claim | None:
        """The trial, if it is unfinished and has no living owner."""
        status = trial.user_attrs.get("status", {})
        owner = status.get("owner")
        if trial.state.is_finished():
            return None
        if owner == self.name or self._is_alive(owner):
            return None
        if status.get("state") in FINAL:  # its owner died between its last two writes
            self._finish(trial.number, status)
            return None
        claim = Claim(
            number=trial.number,
            parameters=trial_parameters(self.search.parameters, trial.params),
            status={**status, "owner": self.name, "state": "running", "starts": status.get("starts", 0) + 1},
            former=status.get("process"),
        )
        self.note(claim)
        return claim

    def _is_alive(self, owner: str | None) -> bool:
        """Whether the process that claimed a trial still holds the lock of its folder."""
        if not owner:
            return False
        try:
            RunLock(self.directory / "drivers" / owner).acquire().release()
        except ConfigError:
            return True
        return False

    def note(self, claim: Claim, **entries) -> None:
        """Records changes of a trial's status."""
        claim.status |= entries
        self._open_trial(claim.number).set_user_attr("status", claim.status)

    def give_back(self, claim: Claim, **entries) -> None:
        """Records that the trial was preempted: any process may resume it."""
        self.note(claim, **entries, state="preempted", owner="")

    def end(self, claim: Claim, state: str, **entries) -> None:
        """Records that the trial has ended."""
        self.note(claim, **entries, state=state)
        self._finish(claim.number, claim.status)

    def _finish(self, number: int, status: dict) -> None:
        """Ends the trial in Optuna, which does not accept NaN: a trial that failed or has no value counts as bad.

        A pruned trial without values is TPE's worst; one that failed in Optuna would be ignored, and the search drawn
        to where trials fail. Gaussian processes ignore both, so `propose` gives a pruned trial a value.
        """
        from optuna.trial import TrialState

        value = status.get("value")
        has_number = value is not None and math.isfinite(value)
        if status["state"] == "complete" and has_number:
            self.study.tell(number, value)
        elif status.get("interrupted"):  # again and again: its parameters are hardly the cause
            self.study.tell(number, state=TrialState.FAIL)
        else:
            self.study.tell(number, state=TrialState.PRUNED)

    def is_behind(self, claim: Claim, rung: int, value: float) -> bool:
        """Whether to stop a trial at the `rung`-th comparison, where its best value so far is `value`.

        Optuna's pruner compares at steps `eta ** rung`, so W&B's rungs are reported as these steps.
        """
        step = self.search.eta**rung
        if step not in self.study.get_trials(deepcopy=False)[claim.number].intermediate_values:
            trial = self._open_trial(claim.number)
            trial.report(value, step)
            if trial.should_prune():
                self.note(claim, behind_at=rung)
        return claim.status.get("behind_at") == rung  # also if it was compared before it was restarted

    def _open_trial(self, number: int):
        """Optuna's object that writes to an existing trial, whichever process created it.

        Such an object is made with the trial's id in the journal, and only the storage tells the id of a number.
        """
        from optuna.trial import Trial

        study_id = self.storage.get_study_id_from_name(STUDY)
        return Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def statuses(self) -> list[tuple[int, dict, dict]]:
        """`(number, parameters, status)` of every trial."""
        statuses = []
        for trial in self.study.get_trials(deepcopy=False):
            parameters = trial_parameters(self.search.parameters, trial.params)
            statuses.append((trial.number, parameters, trial.user_attrs.get("status", {})))
        return statuses


class _WholeLinesLock:
    """Optuna's lock of the journal; whoever takes it cuts off half a line at the journal's end.

    A full disk or a machine that crashed leaves one, and Optuna fails at a record that stands behind it.
    """

    def __init__(self, path: Path):
        from optuna.storages.journal import JournalFileSymlinkLock

        self.path = path
        self.lock = JournalFileSymlinkLock(str(path))

    def acquire(self) -> bool:
        self.lock.acquire()
        try:
            _cut_half_line(self.path)
        except BaseException:
            self.lock.release()
            raise
        return True

    def release(self) -> None:
        self.lock.release()


def _cut_half_line(path: Path) -> None:
    """Cuts a file behind its last whole line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        last_byte = file.read()
    if last_byte not in (b"", b"\n"):
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _cut_halves_before_records(path: Path) -> None:
    """Cuts off half a record that stands before another process's whole one in a line.

    The whole one stays, since Optuna numbers trials by their records.

    Raises:
      DataError: a line has no whole record.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    mended_numbers = []
    for number, line in enumerate(lines, start=1):
        if _is_json(line):
            continue
        start = max(line.rfind(RECORD_START), 0)
        record = line[start:]
        if not _is_json(record):
            raise DataError(
                f"{path}:{number}: no record of a sweep: the file was damaged or edited, and trials are numbered by "
                "its lines; restore it from a backup, or begin the sweep anew in another directory"
            )
        lines[number - 1] = record
        mended_numbers.append(str(number))
    if mended_numbers:
        with whole_file(path) as temporary:
            temporary.write_bytes(b"".join(lines))
        logger.warning(
            "%s: cut off halves of records, which a full disk or a crash had left, in lines %s",
            path,
            ", ".join(mended_numbers),
        )


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _open_journal(path: Path):
    """Optuna's storage of the journal."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    lock = _WholeLinesLock(path)
    backend = JournalFileBackend(str(path), lock_obj=lock)
    lock.acquire()
    try:
        _cut_halves_before_records(path)
    finally:
        lock.release()
    return JournalStorage(backend)
