"""`.eval_results/*.yaml`: scores as the hub's leaderboards read them, by huggingface_hub's `EvalResultEntry`.

>>> write_eval_results("runs/glue-rte-t5-small", facts)
>>> Path("runs/glue-rte-t5-small/.eval_results/nyu-mll--glue.yaml").read_text()
'- dataset:\\n    id: nyu-mll/glue\\n    task_id: rte\\n    revision: bcdcba79...\\n  value: 66.8\\n  notes: ...'

A data set of the hub is a benchmark if its `eval.yaml` defines tasks, each by an id, a configuration and a split
(https://huggingface.co/docs/hub/eval-results). A score gets an entry only if it is of the whole of such a split, read
from the hub, by a task of the registry, whose text and metric are the benchmark's own. A user's task or file gets none.
"""

import logging
from pathlib import Path

import yaml

from t5suite.base.files import whole_file
from t5suite.base.hub_statements import repository_file
from t5suite.constants import DATASET_VALS
from t5suite.reports.card_facts import CardFacts, data_set_of_rows, hub_commit
from t5suite.tasks.entry_metrics import optimised_metrics, task_figure

logger = logging.getLogger(__name__)

EVAL_RESULTS = ".eval_results"
DEFINITIONS = "eval.yaml"


def write_eval_results(directory, facts: CardFacts) -> None:
    """Writes a file for each data set of the hub that defines a task that was scored; removes an earlier start's."""
    folder = Path(directory) / EVAL_RESULTS
    for data_set, names in results_by_data_set(facts).items():
        entries = eval_entries(facts, data_set, names)
        path = folder / f"{data_set.replace('/', '--')}.yaml"
        if entries:
            _write_entries(path, entries)
        else:
            path.unlink(missing_ok=True)


def _write_entries(path: Path, entries: list) -> None:
    from huggingface_hub import eval_result_entries_to_yaml

    text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)
    path.parent.mkdir(exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def results_by_data_set(facts: CardFacts) -> dict[str, list[str]]:
    """The names of the results of the registry's tasks, by the hub's data set that their rows are from."""
    by_data_set: dict[str, list[str]] = {}
    for name in facts.results["tasks"]:
        scored = facts.scored[name]
        if scored.task not in DATASET_VALS.get(facts.benchmark, {}):
            continue
        if facts.settings.get("data_format"):
            continue
        data_set = data_set_of_rows(facts, scored.task, scored.role)
        if data_set:
            by_data_set.setdefault(data_set, []).append(name)
    return by_data_set


def eval_entries(facts: CardFacts, data_set: str, names: list[str]) -> list:
    """The entries of a data set's results."""
    from huggingface_hub import EvalResultEntry

    commit = hub_commit(facts, "datasets", data_set)
    definitions = defined_tasks(data_set, commit)
    entries = []
    for name in names:
        task_id = _task_id(facts, name, definitions)
        value = _figure(facts, name)
        if task_id is None or value is None:
            continue
        entries.append(
            EvalResultEntry(
                dataset_id=data_set,
                task_id=task_id,
                value=value,
                dataset_revision=commit,
                notes=_notes(facts, name),
            )
        )
    return entries


def defined_tasks(data_set: str, commit: str | None) -> list[dict]:
    """The tasks that a data set's `eval.yaml` defines; empty if it is no benchmark, or cannot be read."""
    path = repository_file("dataset", data_set, commit, DEFINITIONS)
    if path is None:
        return []
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        logger.warning("%s: its %s cannot be read: %.300s", data_set, DEFINITIONS, error)
        return []
    if not isinstance(content, dict) or not isinstance(content.get("tasks"), list):
        return []
    return [task for task in content["tasks"] if isinstance(task, dict) and task.get("id")]


def _task_id(facts: CardFacts, name: str, definitions: list[dict]) -> str | None:
    """The data set's id of the task that a result is of; None if it defines none of this configuration and split."""
    scored = facts.scored[name]
    configuration = _registered(facts, name).get("hub_name") or "default"
    for definition in definitions:
        place = (definition.get("config") or "default", definition.get("split"))
        if place == (configuration, scored.split):
            return str(definition["id"])
    return None


def _figure(facts: CardFacts, name: str) -> float | None:
    """The benchmark's own figure in points; None for part of a split, for weights that are not the model's, for NaN."""
    marks = facts.scored[name].marks
    if any(mark == "subset" or mark.startswith("step ") for mark in marks):
        return None
    scores = facts.results["tasks"][name]
    entry = _registered(facts, name)
    if not set(optimised_metrics(entry)) <= set(scores):
        return None
    value = task_figure(scores, entry)
    if value is None or value != value:
        return None
    return value


def _notes(facts: CardFacts, name: str) -> str:
    """How the figure came about."""
    metrics = " and ".join(optimised_metrics(_registered(facts, name)))
    scored = facts.scored[name]
    remarks = [f"{metrics}, in points", f"answers by {scored.method}", *scored.marks, "fine-tuned with t5suite"]
    return "; ".join(remarks)


def _registered(facts: CardFacts, name: str) -> dict:
    """The registry's own entry of a result's task, whatever flags have changed in the run's."""
    return DATASET_VALS[facts.benchmark][facts.scored[name].task]
