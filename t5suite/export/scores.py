"""What exported files score on a task, with the suite's own texts, parsing and metrics.

    >>> score(OnnxModel("exported"), eval_sets)
    {'sentiment': {'accuracy': 97.5, 'invalid_rate': 0.0}}
    >>> changes({"sentiment": {"accuracy": 97.5}}, {"sentiment": {"accuracy": 97.0}})
    {'sentiment accuracy': {'float32': 97.5, 'int8': 97.0, 'change': -0.5}}

Answers are written greedily, or chosen by an encoder's head, as `fine_tune_t5.py --eval_only` does without further
flags: the score of float32 files is that of the model. Scores are points, from 0 to 100.
"""

from types import SimpleNamespace

from t5suite.data.sources import DataOptions
from t5suite.export.onnx_runtime import OnnxModel
from t5suite.models.family_encodings import encoding_for
from t5suite.tasks.registry import Lengths
from t5suite.tasks.task_card import read_task_card
from t5suite.training.eval_sets import load_eval_sets
from t5suite.training.evaluation import EvalSet, batches_by_length, number_range
from t5suite.training.fine_tuning import plan_tasks

BATCH_SIZE = 16
# Where no task.json says how long the model's texts were: fine-tuning's own defaults.
DEFAULT_LENGTHS = Lengths(512, 512)


def eval_sets_for(source, benchmark: str, dataset_name: str, task_file=None, data_dir=None, limit=None):
    """The rows that a model is scored on, tokenized as it reads them.

    Raises:
      ConfigError: an unknown task; a model that cannot answer it.
      DataError: a split is missing.
    """
    card = read_task_card(source.folder) if source.folder else None
    encoding = encoding_for(source.model, source.tokenizer, card.lengths if card else DEFAULT_LENGTHS)
    method = "classify" if source.family == "classification" else "generate"
    tasks = plan_tasks(benchmark, dataset_name, task_file).evaluate
    sets, _, _ = load_eval_sets(
        tasks,
        "validation",
        DataOptions(data_dir=data_dir),
        source.tokenizer,
        encoding.lengths,
        method,
        limit,
        encoding=encoding,
    )
    return sets


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
