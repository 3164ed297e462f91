"""What a finished run says of itself, read so that it can be checked: settings, scores and answers.

>>> record = read_record("runs/mini-sentiment")
>>> record.splits[0].name, record.splits[0].facts["method"], len(record.splits[0].lines)
('sentiment', 'generate', 400)

The folder may be a stranger's. Files in it are data: JSON, tensors, vocabularies. A run that cannot be repeated without
code of its author is refused, by the name of the code's file.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.json_schemas import first_problem
from t5suite.base.lookup import check_name
from t5suite.base.model_files import table_or_empty
from t5suite.reports.evaluated_rows import ScoredSplit
from t5suite.reports.evaluations import read_prediction_lines, scored_splits_of_role, with_class_ids
from t5suite.reports.finished_runs import has_weights, hub_commits
from t5suite.reports.record_shapes import CONFIGURATION_SHAPE, MANIFEST_SHAPE, RESULTS_SHAPE, TASK_CARD_SHAPE
from t5suite.reports.shared_files import PREDICTIONS, has_own_rows
from t5suite.runs.directory import MANIFEST, RESULTS, read_manifest, read_results, tasks_named
from t5suite.tasks.entry_checks import check_entry
from t5suite.tasks.evaluate_metrics import evaluate_names
from t5suite.tasks.registry import Task
from t5suite.tasks.task_card import TASK_CARD

# Files that may name code of a model's repository.
CODE_KEY = "auto_map"
CONFIGURATION = "config.json"
FILES_WITH_CODE = (CONFIGURATION, "tokenizer_config.json")


@dataclass(frozen=True)
class RecordedSplit:
    """A split as a run has answered it.

    Attributes:
      scored: which split.
      facts: what the manifest's `scored` says of it.
      lines: of the predictions file, one per example.
    """

    scored: ScoredSplit
    facts: dict
    lines: list[dict]

    @property
    def name(self) -> str:
        """The split's name in results."""
        return self.scored.name

    @property
    def answers(self) -> list[str]:
        """The recorded answers, in the examples' order."""
        return [line["prediction"] for line in self.lines]


@dataclass(frozen=True)
class RunRecord:
    """A finished run's own account.

    Attributes:
      folder: where its files are.
      results: as `results.json` has them.
      splits: those that it answered, in the manifest's order.
      commit: of the repository on the hub that it was downloaded from.
    """

    folder: Path
    manifest: dict
    results: dict
    splits: tuple[RecordedSplit, ...]
    commit: str | None = None

    @property
    def settings(self) -> dict:
        """Every flag by name."""
        return self.manifest["settings"]

    @property
    def answering(self) -> dict:
        """How answers were made: `Evaluator.described`; empty in runs of earlier versions."""
        return self.manifest.get("answering") or {}

    @property
    def model(self) -> str:
        """The folder or hub name of the model that answered."""
        if has_weights(self.folder) or "training" in self.manifest:
            return str(self.folder)
        name = self.settings.get("model_name_or_path") or str(self.folder)
        beside_start = Path(self.manifest.get("working_directory") or ".", name)
        if not Path(name).is_dir() and beside_start.is_dir():
            return str(beside_start)
        return name

    @property
    def model_folder(self) -> Path | None:
        """The folder of a model that the run has evaluated, not trained, if it is here."""
        folder = Path(self.model)
        if folder == self.folder or not folder.is_dir():
            return None
        return folder

    @property
    def model_revision(self) -> str | None:
        """The commits of the hub's models that the run has read, as `--model_revision` takes them."""
        return hub_commits(self.manifest.get("hub") or {}, "models") or self.settings.get("model_revision")

    def has_own_rows(self, split: RecordedSplit) -> bool:
        """Whether a split's rows are the author's own, by task and flags, whatever the manifest says of it."""
        return has_own_rows(split.scored.task, split.scored.role, self.settings)


def read_record(folder, commit: str | None = None) -> RunRecord:
    """The record of a finished run.

    Args:
      commit: as in `RunRecord`.

    Raises:
      DataError: a file is missing or damaged, or repeating the run needs code of its author; names the file.
    """
    folder = Path(folder)
    for name in (MANIFEST, RESULTS):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder}: {name} is missing: nothing says how its scores were made; {what_to_give_instead(folder)}"
            )
    with as_data_errors():
        manifest = read_manifest(folder)
        results = read_results(folder)
    check_is_of_a_task(folder, manifest)
    if manifest.get("status") != "finished":
        raise DataError(f"{folder}: {MANIFEST}: the run is not finished (status {manifest.get('status')!r})")
    check_shape(folder / MANIFEST, manifest, MANIFEST_SHAPE)
    check_shape(folder / RESULTS, results, RESULTS_SHAPE)
    check_shape(folder / TASK_CARD, table_or_empty(folder / TASK_CARD), TASK_CARD_SHAPE)
    check_shape(folder / CONFIGURATION, table_or_empty(folder / CONFIGURATION), CONFIGURATION_SHAPE)
    check_needs_no_code(folder, manifest)
    return RunRecord(folder, manifest, results, read_splits(folder, manifest), commit)


def check_is_of_a_task(folder: Path, manifest: Mapping) -> None:
    """Refuses a pre-training run, whose files look otherwise than those that are checked here.

    Raises:
      DataError: it is one.
    """
    if "objective" in manifest["settings"]:
        raise DataError(
            f"{folder}: a pre-training run, which has no answers to verify: t5suite verify checks runs that were "
            "fine-tuned or evaluated"
        )


def check_shape(path: Path, content, shape: dict) -> None:
    """Refuses a file of the record that does not look like one that a run has written.

    Raises:
      DataError: names the key and its value.
    """
    problem = first_problem(content, shape)
    if problem:
        raise DataError(f"{path}: not as a run writes it: {problem}")


def what_to_give_instead(folder: Path) -> str:
    """What to give in place of a folder without a record."""
    if folder.name.startswith("checkpoint-") and (folder.parent / MANIFEST).is_file():
        return f"a checkpoint has no scores of its own: give its run, {folder.parent}"
    return "give a finished run of t5suite fine_tune or evaluate"


@contextlib.contextmanager
def as_data_errors() -> Iterator[None]:
    """What is wrong with files of the record is bad data (65), whoever reads them."""
    try:
        yield
    except ConfigError as error:
        raise DataError(str(error)) from None


def check_model_is_here(record: RunRecord) -> None:
    """Refuses an evaluation whose model was a folder that is not here.

    Raises:
      DataError: names the folder.
    """
    name = record.model
    of_the_hub = (record.manifest.get("hub") or {}).get("models", {})
    if not Path(name).is_dir() and name not in of_the_hub:
        raise DataError(f"{record.folder}: the model that answered, {name}, is missing: no such folder here")


def check_needs_no_code(folder: Path, manifest: Mapping) -> None:
    """Refuses a run whose answers or scores depend on code of its author, which is never run here.

    Raises:
      DataError: names the file of the code.
    """
    settings = manifest["settings"]
    for code in code_of_author(folder, settings):
        raise DataError(
            f"{folder}: cannot be verified without its author's code, which is never run: {code}. If you trust it, "
            "repeat the evaluation yourself: t5suite evaluate with the flags of its command"
        )


def code_of_author(folder: Path, settings: Mapping) -> Iterator[str]:
    """The code that a run's answers or scores depend on: the flag, and the file."""
    yield from code_of_flags(settings)
    config = table_or_empty(folder / CONFIGURATION)
    if config.get("model_class"):
        yield f"config.json: model_class {config['model_class']} ({file_of_code(config['model_class'])})"
    for key, value in config.items():
        if key.endswith("attn_implementation") and "/" in str(value):
            yield f"config.json: {key} {value} (a kernel of the hub)"
    if settings.get("trust_remote_code"):
        for name in FILES_WITH_CODE:
            for target in code_named_in(folder / name):
                yield f"--trust_remote_code, {name}: {target} ({file_of_code(target)})"


def code_of_flags(settings: Mapping) -> Iterator[str]:
    """The code that flags name: tasks in Python, metrics, a class of models, a kernel of the hub."""
    task_file = settings.get("task_file")
    if task_file and not str(task_file).endswith((".yaml", ".yml")):
        yield f"--task_file {task_file}"
    plug_ins = settings.get("plug_ins") or {}
    metrics = [plug_in["name"] for plug_in in plug_ins.get("metrics", ())]
    metrics += [word.strip() for word in str(settings.get("metrics") or "").split(",") if ":" in word]
    for metric in dict.fromkeys(metrics):
        yield f"--metrics {metric} ({file_of_code(metric)})"
    attention = settings.get("attn_implementation")
    if "/" in str(attention):
        yield f"--attn_implementation {attention} (a kernel of the hub)"
    if settings.get("model_class"):
        yield f"--model_class {settings['model_class']} ({file_of_code(settings['model_class'])})"


def code_named_in(path: Path) -> list[str]:
    """The classes that a configuration's `auto_map` names."""
    configuration = table_or_empty(path)
    check_shape(path, configuration, CONFIGURATION_SHAPE)
    auto_map = configuration.get(CODE_KEY) or {}
    targets = []
    for target in auto_map.values():
        names = target if isinstance(target, list) else [target]
        targets += [str(name) for name in names if name]
    return targets


def file_of_code(name: str) -> str:
    """The file of `module:name`, of `module.name`, or of a metric of `evaluate`.

    >>> file_of_code("my_package.scores:strict"), file_of_code("modeling_x.XForMaskedLM")
    ('my_package/scores.py', 'modeling_x.py')
    """
    if name.startswith("evaluate:"):
        return name.removeprefix("evaluate:")
    repository, _, name = name.rpartition("--")
    module, colon, _ = name.partition(":")
    if not colon:
        module = name.rpartition(".")[0]
    file = f"{module.replace('.', '/')}.py"
    return f"{repository}: {file}" if repository else file


def read_splits(folder: Path, manifest: dict) -> tuple[RecordedSplit, ...]:
    """The splits that a run answered, with its answers.

    Raises:
      DataError: the record names no answers, or a file of answers is missing.
    """
    facts_by_name = manifest.get("scored")
    if not facts_by_name:
        raise DataError(f"{folder}: {MANIFEST} names no answers ('scored'): a run of an old version has none to verify")
    scored_by_name = splits_of_tasks(folder, manifest)
    splits = []
    for name, facts in facts_by_name.items():
        if name not in scored_by_name:
            raise DataError(f"{folder}: {MANIFEST}: 'scored' has {name!r}, which is a split of none of its 'tasks'")
        scored = scored_by_name[name]
        path = folder / PREDICTIONS / f"{scored.key}.jsonl"
        if not path.is_file():
            raise DataError(f"{path.relative_to(folder)} is missing in {folder}{reason_of_absence(facts)}")
        splits.append(RecordedSplit(scored, facts, read_prediction_lines(path)))
    return tuple(splits)


def reason_of_absence(facts: Mapping) -> str:
    """Why a file of answers may be missing."""
    if facts.get("own_rows"):
        return ": its author has not shared the answers to rows of their own (--share_rows)"
    return ": without the recorded answers nothing can be compared"


def splits_of_tasks(folder: Path, manifest: dict) -> dict[str, ScoredSplit]:
    """The splits of the recorded tasks, by their names in results.

    Raises:
      DataError: an entry that is no task's, or one that calls code of its author.
    """
    benchmark = str(tasks_named(manifest)[0])
    splits = {}
    for name, entry in (manifest.get("tasks") or {}).items():
        place = f"{folder}: {MANIFEST}: {benchmark}/{name}"
        with as_data_errors():
            check_name(name, "task", place)
            entry = with_class_ids(entry)
            check_entry(place, entry)
        for metric in evaluate_names(entry):
            raise DataError(
                f"{place}: its metric {metric} is code of its author ({file_of_code(metric)}), which is never run"
            )
        task = Task(benchmark, name, entry)
        for role in ("validation", "test"):
            for scored in scored_splits_of_role(task, role, manifest["settings"]):
                with as_data_errors():
                    check_name(scored.split, "split", place)
                splits[scored.name] = scored
    return splits
