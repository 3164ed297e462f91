"""Metrics of Hugging Face's `evaluate`: of a folder of the user's own, or of the hub.

    >>> metric = load_evaluate_metric("evaluate:./word_overlap")
    >>> metric([1, 0], [1, 1])
    {'word_overlap': 0.5}

A folder is the user's code, named by the user, so it runs. A name of the hub runs only with `--trust_remote_code`; what
a saved model's task card names does not run at all (`without_evaluate_metrics`).

Values are reported as `compute()` returns them, some from 0 to 1 and others from 0 to 100, under the names that it
gives them. A name that the suite uses itself, for points from 0 to 100, gets `evaluate_` put before it.
"""

import functools
import logging
import numbers
import os
import traceback
from pathlib import Path

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.files import file_sha256
from t5suite.constants import METRIC_GROUPS
from t5suite.tasks.metric_names import SUITE_NAMES
from t5suite.tasks.metrics import METRIC_ALIASES, METRICS

logger = logging.getLogger(__name__)

PREFIX = "evaluate:"
# Where the hub has the metrics that `evaluate` names without an owner.
HUB_OWNER = "evaluate-metric"


def is_evaluate_name(name: str) -> bool:
    """Whether a metric's name is one of `evaluate`'s."""
    return name.startswith(PREFIX)


def evaluate_names(entry: dict) -> list[str]:
    """The metrics of `evaluate` that a task's entry names."""
    return [name for name in entry["metric_names"] if is_evaluate_name(name)]


def without_evaluate_metrics(entry: dict) -> dict:
    """The entry without them, for an entry that comes with a model: its author's code must not run.

    >>> without_evaluate_metrics({"metric_names": ["accuracy", "evaluate:./x"], "metric_to_optimize": "x"})
    {'metric_names': ['accuracy'], 'metric_to_optimize': 'average'}
    """
    if not evaluate_names(entry):
        return entry
    names = [name for name in entry["metric_names"] if not is_evaluate_name(name)]
    return {**entry, "metric_names": names, "metric_to_optimize": "average" if names else None}


class EvaluateMetric:
    """A loaded module of `evaluate`, called with values as metrics compare them.

    Attributes:
      name: as the user gave it.
      script: the file with its code.
      commit: of the hub's repository; None for a folder.
    """

    def __init__(self, name: str, script: Path, module, commit: str | None = None):
        self.name = name
        self.script = script
        self.commit = commit
        self._module = module
        self._noted = False

    @property
    def digest(self) -> str:
        """The SHA-256 of its code."""
        return file_sha256(self.script)

    def __call__(self, predictions: list, references: list) -> dict[str, float]:
        """The numbers that `compute()` returns, by their reported names.

        Raises:
          ConfigError: it fails, or returns no number.
        """
        try:
            result = self._module.compute(predictions=predictions, references=references)
        except UserError:
            raise
        except Exception as error:
            raise ConfigError(f"{self.name}: compute() failed{_place(error, self.script)}: {_line(error)}") from error
        if not isinstance(result, dict):
            raise ConfigError(f"{self.name}: compute() returned {result!r:.80}, not {{name: number}}")
        values = {reported_name(key): float(value) for key, value in result.items() if is_single_number(value)}
        if not values:
            raise ConfigError(f"{self.name}: compute() returned no number: {result!r:.200}")
        self._warn_once([str(key) for key, value in result.items() if not is_single_number(value)])
        return values

    def _warn_once(self, ignored: list[str]) -> None:
        if ignored and not self._noted:
            self._noted = True
            logger.warning("%s: %s of compute() are no numbers, so they are left out", self.name, ", ".join(ignored))


def is_single_number(value) -> bool:
    """Whether a value is a single number: Python's, NumPy's, or an array without axes."""
    if getattr(value, "shape", None) == ():
        value = value.item()
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def reported_name(key: str) -> str:
    """The name in results of a value that `compute()` returns.

    >>> reported_name("word_overlap"), reported_name("accuracy"), reported_name("a/b")
    ('word_overlap', 'evaluate_accuracy', 'a_b')
    """
    name = str(key).replace("/", "_")
    return f"evaluate_{name}" if name in SUITE_NAMES else name


def merged_scores(scores: dict[str, float], values: dict[str, float], where: str) -> dict[str, float]:
    """Both tables in one.

    Raises:
      ConfigError: they have a name in common.
    """
    twice = sorted(set(scores) & set(values))
    if twice:
        raise ConfigError(f"{where}: there are two metrics {twice[0]!r}; give one of them another name")
    return {**scores, **values}


_loaded: dict[str, EvaluateMetric] = {}


def load_evaluate_metric(name: str, trust_remote_code: bool = False, where: str = "metric_names") -> EvaluateMetric:
    """The metric that `evaluate:FOLDER` or `evaluate:NAME` names; loaded once in a process.

    Args:
      where: the flag or setting that names it, for errors.

    Raises:
      ConfigError: there is no such folder, its code cannot be loaded, or it is the hub's and not trusted.
      UserError: as `hub_failures.read_from_hub`.
    """
    key = f"{name} in {os.getcwd()}"
    if key not in _loaded:
        place = name.removeprefix(PREFIX)
        commit = None
        if os.path.exists(place) or _is_path(place):
            script = script_in(place, f"{where} {name}")
        else:
            script, commit = _script_of_hub(place, trust_remote_code, f"{where} {name}")
        _loaded[key] = EvaluateMetric(name, script, _module_of(script, f"{where} {name}"), commit)
    return _loaded[key]


def _is_path(place: str) -> bool:
    return place.startswith((".", "/", "~")) or place.endswith((".py", "/")) or place.count("/") > 1


def script_in(place: str, where: str) -> Path:
    """The script of a metric's folder, which has the folder's name, as `evaluate` wants it.

    Raises:
      ConfigError: there is none.
    """
    path = Path(place).expanduser().resolve()
    script = path if path.suffix == ".py" else path / f"{path.name}.py"
    if script.is_file():
        return script
    if not path.exists():
        raise ConfigError(f"{where}: no folder {place}; give the folder of a metric, which has a file of its name")
    raise ConfigError(f"{where}: the metric's code must be {script.name} in {place}, as evaluate.load wants it")


def _script_of_hub(name: str, trust_remote_code: bool, where: str) -> tuple[Path, str]:
    """The script of a metric of the hub, downloaded with all files beside it, and their commit."""
    repository = name if "/" in name else f"{HUB_OWNER}/{name}"
    if not trust_remote_code:
        same = f"; or use the suite's own: {name}" if name in {**METRICS, **METRIC_ALIASES, **METRIC_GROUPS} else ""
        raise ConfigError(
            f"{where}: no folder {name} here, and the hub's {repository} is code of others, which runs only with "
            f"--trust_remote_code; read it first, or download it and give evaluate:FOLDER{same}"
        )
    from huggingface_hub import snapshot_download

    from t5suite.base.hub_commits import revision_to_read
    from t5suite.base.hub_failures import Reading, read_from_hub

    try:
        revision = revision_to_read("space", repository)
        download = functools.partial(snapshot_download, repository, repo_type="space", revision=revision)
        folder = Path(read_from_hub(Reading("space", repository, revision, "the code of a metric"), download))
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: cannot read {repository} from the hub ({_line(error)})") from error
    script = folder / f"{repository.partition('/')[2]}.py"
    if not script.is_file():
        raise ConfigError(f"{where}: the hub's {repository} has no {script.name}, so it is no metric of evaluate")
    return script, folder.name  # .../snapshots/<commit>


def _module_of(script: Path, where: str):
    # For a script that stands here nothing has to be asked; `evaluate` would also count its uses at the hub.
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    import evaluate

    try:
        # In memory: other runs of this user compute the same metric. A seed of its own: runs that resume draw the same.
        return evaluate.load(str(script), keep_in_memory=True, seed=0)
    except Exception as error:
        raise ConfigError(f"{where}: {script} cannot be loaded{_place(error, script)}: {_line(error)}") from error


def _place(error: Exception, script: Path) -> str:
    """The line of the user's code where an error was raised; `evaluate` runs a copy of the file."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f" ({script}:{error.lineno})"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == script.name
    ]
    return f" ({script}:{lines[-1]})" if lines else ""


def _line(error: Exception) -> str:
    """An error's type and message, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
