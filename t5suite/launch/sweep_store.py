"""A sweep's trials in one journal that several processes on several nodes share: each trial is run once.

    >>> store = TrialStore("runs/sweeps/rte", search)
    >>> claim = store.claim(limit=20)
    >>> claim.number, claim.parameters
    (7, {'learning_rate': 0.00031})
    >>> store.note(claim, process=trial.prepare())
    >>> store.end(claim, "complete", value=71.2, exit_code=0)

The journal is Optuna's (`JournalFileBackend` with its symbolic-link lock, which NFS has too). Who may take which trial
is decided under a lock of the directory, so that the number of trials never exceeds the limit. A trial belongs to the
process that claimed it; a process that lives holds the lock of its folder in `drivers/`, so the trials of one that has
died, and those that were preempted, are claimed again: same number, same parameters, same run directory.
"""

import contextlib
import fcntl
import math
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import named_errors
from t5suite.base.yaml_files import read_yaml
from t5suite.launch import search
from t5suite.launch.commands import check_overrides
from t5suite.launch.search import rungs_of
from t5suite.launch.sweep_files import Parameter, SweepFile, parameters_of
from t5suite.runs.lock import WITHOUT_LOCKS, RunLock

JOURNAL = "journal.log"
STUDY = "sweep"
FINAL = ("complete", "pruned", "failed")


@dataclass(frozen=True)
class Search:
    """How a sweep searches.

    Attributes:
      rungs: after how many logged values trials are compared; none: no early stopping.
      eta: of eta trials one is kept at a rung.
    """

    parameters: list[Parameter]
    method: str
    goal: str = "maximize"
    target: float | None = None
    rungs: tuple[int, ...] = ()
    eta: int = 3
    sampler: str = "tpe"
    seed: int = 0


@dataclass
class Claim:
    """A trial that this process is to run.

    Attributes:
      status: what the journal says of it: state, owner, starts, seconds, process, value, exit_code, last_step, why.
      former: the process that ran it before, if one did.
    """

    number: int
    parameters: dict
    status: dict = field(default_factory=dict)
    former: dict | None = None


class TrialStore:
    """The trials of a sweep's directory, for one process that runs some of them."""

    def __init__(self, directory, wanted: Search):
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        # The link of the lock file leads nowhere if the path is relative, and Optuna 5.0 then waits without a pause.
        self.directory = Path(directory).absolute()
        self.search = wanted
        self.name = f"{os.uname().nodename.split('.')[0]}-{os.getpid()}-{secrets.token_hex(3)}"
        self._lifeline = RunLock(self.directory / "drivers" / self.name).acquire()
        path = str(self.directory / JOURNAL)
        lock = JournalFileSymlinkLock(path)
        self._backend = JournalFileBackend(path, lock_obj=lock)
        _mend(path, lock)
        with self.locked():
            self.study = optuna.create_study(
                study_name=STUDY,
                storage=optuna.storages.JournalStorage(self._backend),
                direction=wanted.goal,
                load_if_exists=True,
                pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=wanted.eta),
            )
        self.distributions = search.searched(wanted.parameters)
        self.grid = search.grid_of(wanted.parameters) if wanted.method == "grid" else None

    def close(self) -> None:
        """Lets others have what this process has not ended."""
        self._lifeline.release()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone in the directory, as against other processes that run the sweep. The lock ends with its owner."""
        descriptor = os.open(self.directory / ".claims", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with _lock_file(descriptor, self.directory / ".claims"):
                yield
        finally:
            os.close(descriptor)

    def describe(self, **entries) -> dict:
        """What the sweep's journal says of the sweep, after these entries were added where they are not there yet."""
        for name, value in entries.items():
            if name not in self.study.user_attrs:
                self.study.set_user_attr(name, value)
        return self.study.user_attrs

    # -----------------------------------------------------------------------------------------------------------------

    def claim(self, limit: float) -> Claim | None:
        """A trial to run: one that nobody runs any more, else a new one; None when all `limit` are taken.

        Raises:
          ConfigError: the values of a trial are not among those of the file.
        """
        with self.locked():
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                claim = self._take_over(trial)
                if claim:
                    return claim
            limit = min(limit, len(self.grid)) if self.grid is not None else limit
            if len(trials) >= limit or self.target_reached(trials):
                return None
            return self._new_trial(trials)

    def _new_trial(self, trials: list) -> Claim:
        from optuna.trial import TrialState, create_trial

        wanted, number = self.search, len(trials)
        if self.grid is not None:
            values = self.grid[number]
        else:
            values = search.propose(trials, wanted.goal, wanted.method, wanted.sampler, wanted.seed, self.distributions)
        status = {"state": "running", "owner": self.name, "starts": 1, "seconds": 0.0}
        self.study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=values,
                distributions=self.distributions,
                user_attrs={"status": status},
            )
        )
        return Claim(number, search.trial_parameters(wanted.parameters, values), status)

    def _take_over(self, trial) -> Claim | None:
        """The trial, if it is unfinished and nobody's."""
        status = trial.user_attrs.get("status", {})
        if trial.state.is_finished() or not self._is_free(status.get("owner")):
            return None
        claim = Claim(trial.number, search.trial_parameters(self.search.parameters, trial.params))
        claim.former = status.get("process")
        claim.status = {**status, "owner": self.name}
        if status.get("state") in FINAL:  # its owner died between its last two words
            self._tell(trial.number, status)
            return None
        claim.status |= {"state": "running", "starts": status.get("starts", 0) + 1}
        self._write(claim)
        return claim

    def _is_free(self, owner: str | None) -> bool:
        if not owner:
            return True
        if owner == self.name:
            return False
        try:
            RunLock(self.directory / "drivers" / owner).acquire().release()
        except ConfigError:
            return False
        return True

    # -----------------------------------------------------------------------------------------------------------------

    def note(self, claim: Claim, **entries) -> None:
        """Writes down what is new of a trial."""
        claim.status |= entries
        self._write(claim)

    def give_back(self, claim: Claim, **entries) -> None:
        """The trial was preempted: whoever has room may go on with it."""
        self.note(claim, **entries, state="preempted", owner="")

    def end(self, claim: Claim, state: str, **entries) -> None:
        """The trial has come to its end."""
        self.note(claim, **entries, state=state)
        self._tell(claim.number, claim.status)

    def _write(self, claim: Claim) -> None:
        trial = self.study.get_trials(deepcopy=False)[claim.number]
        self.study._storage.set_trial_user_attr(trial._trial_id, "status", claim.status)

    def _tell(self, number: int, status: dict) -> None:
        """Tells Optuna, for which NaN is no value: a trial that has none, or whose numbers went wrong, is a bad one.

        A pruned trial without values is TPE's worst; a failed one would not count at all.
        """
        from optuna.trial import TrialState

        value = status.get("value")
        if status["state"] == "complete" and value is not None and math.isfinite(value):
            self.study.tell(number, value)
        elif status["state"] == "failed" and not status.get("diverged"):
            self.study.tell(number, state=TrialState.FAIL)
        else:
            self.study.tell(number, state=TrialState.PRUNED)

    def is_behind(self, claim: Claim, rung: int, value: float) -> bool:
        """Whether a trial is to be stopped at the `rung`-th comparison, where its best value so far is `value`.

        Optuna's pruner compares at `eta ** rung`; so W&B's rungs are given to it under these numbers.
        """
        storage, step = self.study._storage, self.search.eta**rung
        trial = self.study.get_trials(deepcopy=False)[claim.number]
        if step in trial.intermediate_values:
            return False  # it was compared before it was started again
        storage.set_trial_intermediate_value(trial._trial_id, step, value)
        return self.study.pruner.prune(self.study, storage.get_trial(trial._trial_id))

    def target_reached(self, trials: list | None = None) -> bool:
        """Whether a trial has reached `metric.target`: no other is begun."""
        if self.search.target is None:
            return False
        trials = self.study.get_trials(deepcopy=False) if trials is None else trials
        sign = 1 if self.search.goal == "maximize" else -1
        values = [trial.user_attrs.get("status", {}).get("value") for trial in trials]
        return any(value is not None and sign * value >= sign * self.search.target for value in values)

    def statuses(self) -> list[tuple[int, dict, dict]]:
        """`(number, parameters, status)` of every trial."""
        return [
            (
                trial.number,
                search.trial_parameters(self.search.parameters, trial.params),
                trial.user_attrs.get("status", {}),
            )
            for trial in self.study.get_trials(deepcopy=False)
        ]


@contextlib.contextmanager
def _lock_file(descriptor: int, path: Path) -> Iterator[None]:
    """The kernel's lock, or a link beside the file where the file system has none."""
    from optuna.storages.journal import JournalFileSymlinkLock

    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        link = JournalFileSymlinkLock(str(path))
        link.acquire()
        try:
            yield
        finally:
            link.release()
        return
    yield


def _mend(path: str, lock) -> None:
    """Cuts half a line off the journal's end, which a machine that died may leave; Optuna could not read past it."""
    lock.acquire()
    try:
        with open(path, "rb+") as file:
            text = file.read()
            if text and not text.endswith(b"\n"):
                file.truncate(text.rfind(b"\n") + 1)
    finally:
        lock.release()


# What runs log of themselves where a sweep names no metric: fine-tuning, pre-training.
DEFAULT_METRICS = {"eval/average": "maximize", "eval/nll": "minimize"}


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is to do.

    Attributes:
      content: of the sweep file.
      text: the sweep file as it was given; None: one made of flags.
      metric: the name that runs log it by.
      words: added to every trial's command.
      limit: trials of the whole sweep.
    """

    name: str
    content: dict
    search: Search
    metric: str
    command: list | None
    program: str | None
    limit: float
    words: list[str] = field(default_factory=list)
    text: str | None = None


def plan_of(sweep: SweepFile, count: int | None = None, words=(), sampler: str = "tpe", seed: int = 0) -> SweepPlan:
    """The plan of a sweep file that was checked.

    Raises:
      ConfigError: a search that has no end by itself, without `count`; words that set what is searched.
    """
    content = sweep.content
    metric = content.get("metric") or {}
    limit = min((number for number in (count, content.get("run_cap")) if number is not None), default=math.inf)
    if limit == math.inf and content["method"] != "grid":
        raise ConfigError(
            f"--count: a {content['method']} sweep has no end of its own; say how many trials it is to have"
        )
    early = content.get("early_terminate")
    parameters = parameters_of(sweep)
    check_overrides(parameters, words)
    wanted = Search(
        parameters=parameters,
        method=content["method"],
        goal=metric.get("goal", "minimize") if metric else DEFAULT_METRICS[_default_metric(content)],
        target=metric.get("target"),
        rungs=tuple(rungs_of(early)),
        eta=int((early or {}).get("eta", 3)),
        sampler=sampler,
        seed=seed,
    )
    return SweepPlan(
        name=str(content.get("name") or Path(sweep.path).stem),
        content=content,
        search=wanted,
        metric=metric["name"] if metric else _default_metric(content),
        command=content.get("command"),
        program=content.get("program"),
        limit=limit,
        words=list(words),
        text=Path(sweep.path).read_text(encoding="utf-8-sig") if sweep.lines else None,
    )


def _default_metric(content: dict) -> str:
    words = [*(content.get("command") or []), content.get("program")]
    return "eval/nll" if any("pre_train_t5" in str(word) for word in words) else "eval/average"


SWEEP_FILE = "sweep.yaml"


def open_directory(directory: Path, plan: SweepPlan, resume: bool) -> None:
    """Makes a sweep's directory, or finds the same sweep there.

    Raises:
      ConfigError: another sweep's, or the same without `resume`, or files that are no sweep's.
    """
    path = directory / SWEEP_FILE
    if path.is_file() and not resume:
        raise ConfigError(
            f"--sweep_dir {directory} holds a sweep already; go on with it by --resume, or give another --sweep_dir"
        )
    if not path.is_file() and directory.is_dir():
        found = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
        if found and not path.is_file():
            raise ConfigError(
                f"--sweep_dir {directory}: not empty ({', '.join(found[:3])}, ...) and no sweep's; give another one"
            )
    directory.mkdir(parents=True, exist_ok=True)
    _write_once(path, plan)
    changed = changes_between(read_yaml(path).content, plan.content)
    if changed:
        raise ConfigError(
            f"--sweep_dir {directory} holds a sweep of another file ({SWEEP_FILE} there): {'; '.join(changed[:6])}. "
            "Restore the file, or give another --sweep_dir"
        )


def _write_once(path: Path, plan: SweepPlan) -> None:
    """The file appears whole, and only if it is not there: two processes may begin a sweep in the same moment."""
    import yaml

    if path.is_file():
        return
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    text = plan.text or yaml.safe_dump(plan.content, sort_keys=False, allow_unicode=True)
    try:
        with named_errors(path, temporary):
            temporary.write_text(text, encoding="utf-8")
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)


def changes_between(there, here, path: str = "") -> list[str]:
    """What differs between two files' contents, in words.

    >>> changes_between({"metric": {"goal": "minimize"}}, {"metric": {"goal": "maximize"}})
    ["metric.goal 'minimize' there, 'maximize' here"]
    """
    if isinstance(there, dict) and isinstance(here, dict):
        names = [*there, *(name for name in here if name not in there)]
        parts = [changes_between(there.get(n), here.get(n), f"{path}.{n}" if path else str(n)) for n in names]
        return [change for part in parts for change in part]
    return [] if there == here and type(there) is type(here) else [f"{path} {there!r:.80} there, {here!r:.80} here"]
