"""A sweep's search and its trials, in a journal that several processes on several nodes share: each trial runs once.

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

How W&B's searches become Optuna's: the table in docs/sweeps.md.
"""

import contextlib
import fcntl
import hashlib
import itertools
import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import whole_file
from t5suite.base.yaml_files import read_yaml
from t5suite.launch.commands import flags_in
from t5suite.launch.sweep_files import Parameter, SweepFile, multiples_of_q, no_counterpart, parameters_of
from t5suite.runs.lock import WITHOUT_LOCKS, RunLock

# Random trials before a sampler starts to learn from them; Optuna's default, 10, is more than many sweeps have.
FIRST_AT_RANDOM = 5
MAX_RUNGS = 30
MAX_GRID = 100_000
JOURNAL = "journal.log"
STUDY = "sweep"
SWEEP_FILE = "sweep.yaml"
FINAL = ("complete", "pruned", "failed")
# The metric of runs if a sweep names none: fine-tuning, pre-training.
DEFAULT_METRICS = {"eval/average": "maximize", "eval/nll": "minimize"}


# ---------------------------------------------------------------------------------------------------------------------
# The search


def distribution_of(parameter: Parameter):
    """Optuna's distribution of a parameter that is searched.

    >>> distribution_of(Parameter(("learning_rate",), "log_uniform_values", {"min": 1e-5, "max": 1e-2}, 11))
    FloatDistribution(high=0.01, log=True, low=1e-05, step=None)

    Raises:
      ConfigError: it has no counterpart.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    reason = no_counterpart(parameter)
    if reason:
        raise ConfigError(f"{parameter.name}: {reason}")
    kind, settings = parameter.distribution, parameter.settings
    low, high, q = settings.get("min"), settings.get("max"), settings.get("q", 1.0)
    if kind == "categorical":
        return CategoricalDistribution([json.dumps(value) for value in settings["values"]])
    if kind == "int_uniform":
        return IntDistribution(low, high)
    if kind == "log_uniform":
        return FloatDistribution(math.exp(low), math.exp(high), log=True)
    if kind in ("uniform", "log_uniform_values"):
        return FloatDistribution(float(low), float(high), log=kind != "uniform")
    first, last = multiples_of_q(parameter)
    if kind == "q_uniform" and not isinstance(q, int):
        return FloatDistribution(_rounded(first * q), _rounded(last * q), step=q)
    return IntDistribution(first * int(q), last * int(q), step=int(q), log=kind != "q_uniform")


def searched(parameters: Iterable[Parameter]) -> dict[str, object]:
    """Optuna's distributions by name; constants are not searched."""
    return {p.name: distribution_of(p) for p in parameters if p.distribution != "constant"}


def trial_parameters(parameters: Iterable[Parameter], found: dict) -> dict:
    """What a trial is given: constants and the values that Optuna found, in the file's order, nested ones as tables.

    >>> trial_parameters([constant, rate], {"learning_rate": 0.001})
    {'seed': 1, 'learning_rate': 0.001}
    """
    given = {}
    for parameter in parameters:
        kind, settings, table = parameter.distribution, parameter.settings, given
        value = settings["value"] if kind == "constant" else found[parameter.name]
        if kind == "categorical":
            value = json.loads(value)
        elif kind == "q_uniform" and isinstance(value, float):
            value = _rounded(value)
        for name in parameter.path[:-1]:
            table = table.setdefault(name, {})
        table[parameter.path[-1]] = value
    return given


def _rounded(number: float) -> float:
    """0.3 rather than 0.30000000000000004."""
    return float(f"{number:.12g}")


def grid_of(parameters: list[Parameter]) -> list[dict]:
    """Every combination of Optuna's values; the last parameter changes first.

    Raises:
      ConfigError: more than MAX_GRID.
    """
    from optuna.distributions import CategoricalDistribution

    values = {}
    for name, kind in searched(parameters).items():
        if isinstance(kind, CategoricalDistribution):
            values[name] = kind.choices
            continue
        count = round((kind.high - kind.low) / kind.step) + 1
        if count > MAX_GRID:
            raise ConfigError(f"{name}: more than {MAX_GRID} values in a grid")
        numbers = [kind.low + k * kind.step for k in range(count)]
        values[name] = [_rounded(number) if isinstance(number, float) else number for number in numbers]
    size = math.prod(map(len, values.values()))
    if size > MAX_GRID:
        raise ConfigError(f"the grid has {size} combinations, and {MAX_GRID} is the limit")
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


def rungs_of(early_terminate: dict | None) -> list[int]:
    """After how many logged values of the metric a trial is compared with others.

    `min_iter * eta ** k`, or the `s` rungs `max_iter / eta ** k` below `max_iter`
    (W&B, `sweeps/hyperband_stopping.py`); equal ones count once.

    >>> rungs_of({"type": "hyperband", "max_iter": 27, "s": 2})
    [3, 9]
    """
    if not early_terminate:
        return []
    eta = early_terminate.get("eta", 3)
    if "max_iter" in early_terminate:
        bands = [early_terminate["max_iter"] / eta**k for k in range(1, min(int(early_terminate["s"]), MAX_RUNGS) + 1)]
    else:
        bands = [early_terminate["min_iter"] * eta**k for k in range(MAX_RUNGS)]
    return sorted({int(band) for band in bands if band >= 1})


def propose(trials: list, direction: str, method: str, sampler: str, seed: int, distributions: dict) -> dict:
    """Optuna's values for the next trial, after these `FrozenTrial`s.

    They are proposed in a copy in memory, so that the journal gets a trial with all its values in one line or not at
    all. Each trial number has its own seed, so that a killed sweep resumes with the same proposals. TPE is
    arXiv:2304.11127; running trials count as bad (constant liar), so that workers propose different values.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    own = int.from_bytes(hashlib.sha256(f"{seed} {len(trials)}".encode()).digest()[:4], "big")
    if method == "random":
        engine = optuna.samplers.RandomSampler(seed=own)
    elif sampler == "gp":
        engine = optuna.samplers.GPSampler(seed=own, n_startup_trials=FIRST_AT_RANDOM)
    else:
        engine = optuna.samplers.TPESampler(seed=own, n_startup_trials=FIRST_AT_RANDOM, constant_liar=True)
    study = optuna.create_study(direction=direction, sampler=engine)
    study.add_trials(trials)
    return study.ask(distributions).params


@dataclass(frozen=True)
class Search:
    """How a sweep searches.

    Attributes:
      rungs: after how many logged values trials are compared; none: no early stopping.
      eta: one of eta trials is kept at a rung.
    """

    parameters: list[Parameter]
    method: str
    goal: str = "maximize"
    target: float | None = None
    rungs: tuple[int, ...] = ()
    eta: int = 3
    sampler: str = "tpe"
    seed: int = 0


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is to do.

    Attributes:
      content: of the sweep file.
      text: the sweep file, unchanged; None: one made from flags.
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
      ConfigError: an endless search without `count`; words that set a searched parameter.
    """
    content, metric, early = sweep.content, sweep.table("metric"), sweep.table("early_terminate")
    limit = min((number for number in (count, content.get("run_cap")) if number is not None), default=math.inf)
    if limit == math.inf and content["method"] != "grid":
        said = "sweep has no end of its own; give its number of trials"
        raise ConfigError(f"--count: a {content['method']} {said}")
    parameters, given = parameters_of(sweep), flags_in(words)
    for parameter in parameters:
        flag = parameter.path[0]
        if flag in given and parameter.distribution != "constant":
            raise ConfigError(
                f"--{flag} {given[flag]} after --: the sweep searches {parameter.name}, and every "
                "trial would have the same value; omit the flag, or give the parameter one `value:` in the file"
            )
    programs = [*(content.get("command") or []), content.get("program")]
    default = "eval/nll" if any("pre_train_t5" in str(word) for word in programs) else "eval/average"
    wanted = Search(
        parameters=parameters,
        method=content["method"],
        goal=metric.get("goal", "minimize") if metric else DEFAULT_METRICS[default],
        target=metric.get("target"),
        rungs=tuple(rungs_of(early)),
        eta=int(early.get("eta", 3)),
        sampler=sampler,
        seed=seed,
    )
    return SweepPlan(
        name=str(content.get("name") or Path(sweep.path).stem),
        content=content,
        search=wanted,
        metric=metric["name"] if metric else default,
        command=content.get("command"),
        program=content.get("program"),
        limit=limit,
        words=list(words),
        text=Path(sweep.path).read_text(encoding="utf-8-sig") if sweep.lines else None,
    )


# ---------------------------------------------------------------------------------------------------------------------
# The trials


@dataclass
class Claim:
    """A trial that this process is to run.

    Attributes:
      status: what the journal records: state, owner, starts, seconds, process, value, exit_code, last_step, why.
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
        # The link of the lock file is broken if the path is relative, and Optuna 5.0 then busy-waits.
        self.directory = Path(directory).absolute()
        self.search = wanted
        self.name = f"{os.uname().nodename.split('.')[0]}-{os.getpid()}-{secrets.token_hex(3)}"
        self._lifeline = RunLock(self.directory / "drivers" / self.name).acquire()
        path = self.directory / JOURNAL
        lock = JournalFileSymlinkLock(str(path))
        backend = JournalFileBackend(str(path), lock_obj=lock)
        # A machine that crashed may leave half a line at the journal's end, at which Optuna fails.
        lock.acquire()
        try:
            text = path.read_bytes()
            if text and not text.endswith(b"\n"):
                os.truncate(path, text.rfind(b"\n") + 1)
        finally:
            lock.release()
        self.storage = optuna.storages.JournalStorage(backend)
        with locked(self.directory):
            self.study = optuna.create_study(
                study_name=STUDY,
                storage=self.storage,
                direction=wanted.goal,
                load_if_exists=True,
                pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=wanted.eta),
            )
        self.distributions = searched(wanted.parameters)
        self.grid = grid_of(wanted.parameters) if wanted.method == "grid" else None

    def close(self) -> None:
        """Releases the trials that this process has not ended."""
        self._lifeline.release()

    def describe(self, **entries) -> dict:
        """The journal's entries about the sweep itself, after adding those of these that are missing."""
        for name, value in entries.items():
            if name not in self.study.user_attrs:
                self.study.set_user_attr(name, value)
        return self.study.user_attrs

    def limit(self, wanted: float) -> float:
        """How many trials the sweep has at most: as many as are wanted, or a grid's."""
        return min(wanted, math.inf if self.grid is None else len(self.grid))

    def claim(self, limit: float) -> Claim | None:
        """A trial to run: one that no process runs any more, else a new one.

        None when all `limit` are taken, or one has reached `metric.target`.

        Raises:
          ConfigError: the values of a trial are not among those of the file.
        """
        from optuna.trial import TrialState, create_trial

        wanted = self.search
        with locked(self.directory):
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                claim = self._take_over(trial)
                if claim:
                    return claim
            number = len(trials)
            values = [trial.user_attrs.get("status", {}).get("value") for trial in trials]
            sign = 1 if wanted.goal == "maximize" else -1
            is_reached = wanted.target is not None and any(
                value is not None and sign * value >= sign * wanted.target for value in values
            )
            if is_reached or number >= self.limit(limit):
                return None
            if self.grid is not None:
                values = self.grid[number]
            else:
                values = propose(trials, wanted.goal, wanted.method, wanted.sampler, wanted.seed, self.distributions)
            status = {"state": "running", "owner": self.name, "starts": 1, "seconds": 0.0}
            trial = create_trial(
                state=TrialState.RUNNING, params=values, distributions=self.distributions, user_attrs={"status": status}
            )
            self.study.add_trial(trial)
            return Claim(number, trial_parameters(wanted.parameters, values), status)

    def _take_over(self, trial) -> Claim | None:
        """The trial, if it is unfinished and has no living owner."""
        status = trial.user_attrs.get("status", {})
        owner = status.get("owner")
        if trial.state.is_finished() or owner == self.name:
            return None
        if owner:
            try:
                RunLock(self.directory / "drivers" / owner).acquire().release()
            except ConfigError:  # it lives
                return None
        if status.get("state") in FINAL:  # its owner died between its last two writes
            self._finish(trial.number, status)
            return None
        claim = Claim(trial.number, trial_parameters(self.search.parameters, trial.params))
        claim.former = status.get("process")
        claim.status = {**status, "owner": self.name, "state": "running", "starts": status.get("starts", 0) + 1}
        self.note(claim)
        return claim

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
        """Ends the trial in Optuna, which does not accept NaN: a trial that diverged or has no value counts as bad.

        A pruned trial without values is TPE's worst; a failed one would be ignored.
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
        """Whether to stop a trial at the `rung`-th comparison, where its best value so far is `value`.

        Optuna's pruner compares at steps `eta ** rung`, so W&B's rungs are reported as these steps.
        """
        step = self.search.eta**rung
        if step in self.study.get_trials(deepcopy=False)[claim.number].intermediate_values:
            return False  # it was compared before it was restarted
        trial = self._open_trial(claim.number)
        trial.report(value, step)
        return trial.should_prune()

    def _open_trial(self, number: int):
        """Optuna's object that writes to an existing trial, whichever process created it.

        Such an object is made with the trial's id in the journal, and only the storage tells the id of a number.
        """
        from optuna.trial import Trial

        study_id = self.storage.get_study_id_from_name(STUDY)
        return Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def statuses(self) -> list[tuple[int, dict, dict]]:
        """`(number, parameters, status)` of every trial."""
        return [
            (t.number, trial_parameters(self.search.parameters, t.params), t.user_attrs.get("status", {}))
            for t in self.study.get_trials(deepcopy=False)
        ]


# ---------------------------------------------------------------------------------------------------------------------
# The directory


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Excludes other processes that run the sweep from its directory.

    It is a kernel lock, which ends with its owner, or a link next to the file if the file system has no locks.
    """
    from optuna.storages.journal import JournalFileSymlinkLock

    path, link = directory.absolute() / ".claims", None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            link = JournalFileSymlinkLock(str(path))
            link.acquire()
        yield
    finally:
        if link is not None:
            link.release()
        os.close(descriptor)


def open_directory(directory: Path, plan: SweepPlan, resume: bool) -> None:
    """Creates a sweep's directory, or finds the same sweep there.

    Raises:
      ConfigError: it holds another sweep, or the same one without `resume`, or files that are not a sweep's.
    """
    import yaml

    path, found = directory / SWEEP_FILE, sorted(directory.glob("[!.]*"))
    if path.is_file() and not resume:
        said = "holds a sweep already; continue it with --resume, or give another --sweep_dir"
        raise ConfigError(f"--sweep_dir {directory} {said}")
    if found and not path.is_file():  # another process may have written it meanwhile
        named = ", ".join(entry.name for entry in found[:3])
        raise ConfigError(f"--sweep_dir {directory}: not empty ({named}, ...) and not a sweep's; give another one")
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        if not path.is_file():
            with whole_file(path) as temporary:
                text = plan.text or yaml.safe_dump(plan.content, sort_keys=False, allow_unicode=True)
                temporary.write_text(text, encoding="utf-8")
    changed = changes_between(read_yaml(path).content, plan.content)
    if changed:
        raise ConfigError(
            f"--sweep_dir {directory} holds a sweep of another file ({SWEEP_FILE} there): {'; '.join(changed[:6])}. "
            "Restore the file, or give another --sweep_dir"
        )


def changes_between(there, here, path: str = "") -> list[str]:
    """What differs between two files' contents, in words.

    >>> changes_between({"metric": {"goal": "minimize"}}, {"metric": {"goal": "maximize"}})
    ["metric.goal 'minimize' there, 'maximize' here"]
    """
    if isinstance(there, dict) and isinstance(here, dict):
        names = dict.fromkeys([*there, *here])
        parts = [changes_between(there.get(n), here.get(n), f"{path}.{n}" if path else str(n)) for n in names]
        return [change for part in parts for change in part]
    return [] if there == here and type(there) is type(here) else [f"{path} {there!r:.80} there, {here!r:.80} here"]
