"""What exported files score on a task, with the suite's own texts, parsing and metrics.

    >>> score(OnnxModel("exported"), eval_sets)
    {'sentiment': {'accuracy': 97.5, 'invalid_rate': 0.0}}
    >>> changes({"sentiment": {"accuracy": 97.5}}, {"sentiment": {"accuracy": 97.0}})
    {'sentiment accuracy': {'float32': 97.5, 'int8': 97.0, 'change': -0.5}}

Answers are written greedily, or chosen by an encoder's head, as `fine_tune_t5.py --eval_only` does without further
flags: the score of float32 files is that of the model. Scores are points, from 0 to 100.
"""

from types import SimpleNamespace

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.rows.formats import format_source, rows_stay
from t5suite.data.rows.sources import DataOptions
from t5suite.export.onnx_runtime import OnnxModel
from t5suite.models.family_encodings import encoding_for
from t5suite.reports.evaluations import FILES, settings_by_place
from t5suite.runs.directory import MANIFEST, read_json
from t5suite.tasks.registry import Lengths
from t5suite.tasks.task_card import read_task_card
from t5suite.training.eval_batches import batches_by_length
from t5suite.training.eval_sets import EvalSet, load_eval_sets
from t5suite.training.evaluation import number_range
from t5suite.training.fine_tuning import plan_tasks

BATCH_SIZE = 16
INSTEAD = "name a task by --benchmark and --dataset_name"
# Where no task.json says how long the model's texts were: fine-tuning's own defaults.
DEFAULT_LENGTHS = Lengths(512, 512)


def eval_sets_for(source, benchmark: str, dataset_name: str, task_file=None, data_dir=None, limit=None):
    """The rows that a model is scored on, tokenized as it reads them.

    Raises:
      ConfigError: an unknown task; a model that cannot answer it.
      DataError: a split is missing.
    """
    tasks = plan_tasks(benchmark, dataset_name, task_file).evaluate
    return _loaded(source, tasks, DataOptions(data_dir=data_dir), limit)[0]


def eval_sets_of_run(source, data_dir=None, limit=None):
    """The rows that a run was evaluated on, read again from where it read them (or from `data_dir`).

    Raises:
      ConfigError: the model is no run's, or its rows are not to be had again; the message says why.
    """
    manifest, card = _manifest(source.folder), read_task_card(source.folder) if source.folder else None
    if manifest is None or card is None:
        raise ConfigError(f"--score: {source.folder or 'the model'} is no run of fine_tune_t5.py; {INSTEAD}")
    if not rows_stay(manifest["settings"]):
        raise ConfigError(f"--score: the run's rows were in memory or made by a class, and are not kept; {INSTEAD}")
    reasons = []
    for settings in settings_by_place(manifest, data_dir):
        try:
            sets, told = _sets_by_settings(source, list(card.tasks.values()), settings, limit)
        except (DataError, ConfigError, OSError) as error:
            reasons.append(str(error))
            continue
        changed = [name for name, facts in told.items() if _differs(facts, (manifest.get("data") or {}).get(name))]
        if not changed:
            return sets
        reasons.append(f"{', '.join(changed)}: not the rows that the run was evaluated on, they have changed since")
    raise ConfigError(f"--score: {reasons[0]}; name the place they are in now by --data_dir, or {INSTEAD}")


def _manifest(folder) -> dict | None:
    """That of a run, also for one of its checkpoints."""
    places = (folder, folder.parent) if folder is not None else ()
    found = next((place / MANIFEST for place in places if (place / MANIFEST).is_file()), None)
    content = {} if found is None else read_json(found)
    return content if "settings" in content else None


def _sets_by_settings(source, tasks: list, settings: dict, limit: int | None):
    own = {task.name: format_source(settings) for task in tasks} if settings.get("data_format") else {}
    files = {name: settings.get(name) for name in FILES}
    options = DataOptions(settings.get("data_dir"), data_revision=settings.get("data_revision"), own=own, **files)
    sets, told, _ = _loaded(source, tasks, options, limit or settings.get("max_eval_samples"), settings["seed"])
    return sets, told


def _differs(facts: dict, before: dict | None) -> bool:
    """Whether rows are others; the hub's fingerprint says how a data set was loaded, too, and is passed over."""
    known = (before or {}).get("fingerprint")
    return known not in (None, facts["fingerprint"]) and not known.startswith("datasets:")


def _loaded(source, tasks: list, options: DataOptions, limit: int | None, seed: int = 42):
    """`load_eval_sets` of tasks, tokenized as the model reads them."""
    card = read_task_card(source.folder) if source.folder else None
    encoding = encoding_for(source.model, source.tokenizer, card.lengths if card else DEFAULT_LENGTHS)
    method = "classify" if source.family == "classification" else "generate"
    return load_eval_sets(
        tasks, "validation", options, source.tokenizer, encoding.lengths, method, limit, seed, encoding=encoding
    )


def score(exported: OnnxModel, eval_sets: list[EvalSet]) -> dict[str, dict[str, float]]:
    """The metrics of each split that has labels."""
    answer = _chosen if exported.family == "encoder" else _written
    found = {}
    for eval_set in eval_sets:
        texts = {}
        for positions in batches_by_length(eval_set.features.input_ids.lengths, BATCH_SIZE):
            texts |= dict(zip(positions, answer(exported, eval_set, positions), strict=True))
        predictions = [texts[position] for position in range(len(eval_set.examples))]
        found[eval_set.name] = eval_set.compute_metrics(SimpleNamespace(predictions=predictions, label_ids=None))
    return found


def changes(before: dict, after: dict | None) -> dict[str, dict[str, float]]:
    """Metrics of float32 files, beside those of quantized ones where there are any."""
    lines = {}
    for name, metrics in before.items():
        for metric, value in metrics.items():
            lines[f"{name} {metric}"] = {"float32": value}
            if after is not None:
                new = after[name][metric]
                lines[f"{name} {metric}"] |= {"int8": new, "change": new - value}
    return lines


def _written(exported: OnnxModel, eval_set: EvalSet, positions) -> list[str]:
    prompts = [eval_set.features[position]["input_ids"].tolist() for position in positions]
    return eval_set.encoding.texts(exported.generate(prompts, eval_set.max_target_tokens))


def _chosen(exported: OnnxModel, eval_set: EvalSet, positions) -> list[str]:
    features = [eval_set.features[position] for position in positions]
    rows = [feature["input_ids"].tolist() for feature in features]
    segments = [feature["token_type_ids"].tolist() for feature in features if "token_type_ids" in feature]
    limits = number_range(eval_set.task)
    return [eval_set.encoding.word(scores, *limits) for scores in exported.logits(rows, segments or None).tolist()]
