"""What a fine-tuning run trains on and is scored on: the splits of its tasks, read as the model's family reads them.

>>> encoding = encoding_by_flags(model, tokenizer, arguments.data, changed, "google/t5-v1_1-small")
>>> data = data_for(plan, tokenizer, arguments, True, encoding)
>>> [(part.task.name, len(tokens)) for part, tokens in zip(data.training_sets, data.features)]
[('rte', 2490)]
>>> [(eval_set.name, eval_set.method) for eval_set in data.scored]
[('rte', 'generate')]
"""

import dataclasses
import logging
from dataclasses import dataclass
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.reference_code import reference_code
from t5suite.data.batches.encodings import SegmentEncoding, TextEncoding
from t5suite.data.batches.features import RaggedColumn, TokenArrays
from t5suite.data.batches.training_data import Subset, TrainingSet, load_training_sets, tokenize_training_sets
from t5suite.data.rows.sources import DataOptions
from t5suite.data.rows.subsets import selection_share
from t5suite.models.adapter_files import is_adapter
from t5suite.models.families import encoding_for
from t5suite.models.families.causal import SEPARATOR
from t5suite.models.t5.attention import has_quick_attention
from t5suite.models.t5.chunked_loss import takes_loss_labels
from t5suite.models.t5.decoder import has_stock_decoder
from t5suite.tasks.evaluate_metrics import evaluate_names, load_evaluate_metric
from t5suite.tasks.languages import Languages
from t5suite.tasks.registry import Task
from t5suite.tasks.task_card import TaskCard, task_card_of_model
from t5suite.tasks.templates import unescaped
from t5suite.tasks.tokenization import Lengths
from t5suite.training.eval_sets import (
    EvalSet,
    SplitOptions,
    leave_errors_out_of_average,
    leave_out_of_average,
    load_eval_sets,
    selection_eval_sets,
    warn_of_absent_labels,
    warn_of_errors_left_out,
    warn_of_few_rows,
    warn_of_other_method,
    warn_of_unlearned_labels,
    widen_for_trained_answers,
    widen_for_training_targets,
)
from t5suite.training.flags.fields import warn_of_flags_without_effect
from t5suite.training.label_checks import check_labels, hint_at_labels
from t5suite.training.plans import Plan, languages_by_flags
from t5suite.training.plug_ins import NO_PLUG_INS, PlugIns
from t5suite.training.target_checks import warn_of_unwritable_targets
from t5suite.training.user_metrics import add_metrics, try_evaluate_metrics, warn_of_metrics_left_out

# Lines of the log name the step, whichever module of it writes them.
logger = logging.getLogger("t5suite.training.fine_tuning")


@dataclass
class Data:
    """What a run trains on and is scored on.

    Attributes:
      selecting: the sets that are evaluated during training; `eval_sets`, unless `--selection_split train[...]`.
      described: what the manifest says of every split.
      missing: members of a mixture that were skipped.
      languages: of the texts, for a model that has languages.
      made_by_flags: whether flags made the tasks (`TaskCard`).
    """

    training_sets: list[TrainingSet]
    features: list[TokenArrays]
    eval_sets: list[EvalSet]
    test_sets: list[EvalSet]
    selecting: list[EvalSet]
    described: dict[str, dict]
    missing: list[str]
    languages: Languages | None = None
    made_by_flags: bool = False

    @property
    def scored(self) -> list[EvalSet]:
        """The sets that are scored at the end of the run."""
        return [*self.eval_sets, *self.test_sets]

    @property
    def evaluated(self) -> list[EvalSet]:
        """The sets that are scored, and those that are evaluated during training alone."""
        scored = self.scored
        return [*scored, *(eval_set for eval_set in self.selecting if eval_set not in scored)]


def lengths_of(data_args) -> Lengths:
    """The most tokens of an input and of a target."""
    return Lengths(data_args.max_source_length, data_args.max_target_length)


def encoding_by_flags(model, tokenizer, data_args, changed: dict | None, name: str | None, revision: str | None = None):
    """How the model's family reads rows and writes answers; warns of flags that have no effect in the family.

    Args:
      name, revision: where the model is from; an adapter's separator is in its `task.json`, not in its base model.
    """
    card = task_card_of_model(name, revision)
    separator = unescaped(data_args.answer_separator)
    if separator is None and is_adapter(name):
        setattr(model.config, SEPARATOR, card.settings.get(SEPARATOR) if card else None)
    languages = languages_by_flags(data_args, card)
    encoding = encoding_for(model, tokenizer, lengths_of(data_args), separator, languages)
    changed = changed or {}
    missing = missing_needs_of_encoding(encoding, changed)
    named = reference_code(changed.get("reference_code"))
    if named and named <= missing_fast_paths(model):
        missing["fast paths"] = "this model has no such fast path"
    warn_of_flags_without_effect("fine_tune_t5", changed, missing)
    return encoding


def missing_needs_of_encoding(encoding: TextEncoding, changed: dict) -> dict[str, str]:
    """What flags need (their field's `needs`) and the model's family lacks, with the reason."""
    missing = {}
    if isinstance(encoding, SegmentEncoding):
        missing["writing"] = "an encoder's head gives the answer"
        missing["written targets"] = "an encoder's head writes nothing"
        if changed.get("eval_method") != "loss":
            missing["a choice of method"] = "an encoder's head gives the answer"
        if encoding.words is None:
            missing["a loss of tokens"] = "the head predicts a number"
    if not hasattr(encoding, "separator"):
        missing["a shared row"] = "prompt and answer do not share a row"
    return missing


def missing_fast_paths(model) -> set[str]:
    """The fast paths that a model does not have, whatever is done with it.

    >>> sorted(missing_fast_paths(gpt2))
    ['candidate_trees', 'loss_chunks', 'quick_attention', 'quick_decoding']
    """
    missing = set()
    if not has_stock_decoder(model):
        missing |= {"candidate_trees", "quick_decoding"}
    if not takes_loss_labels(model):
        missing.add("loss_chunks")
    if not has_quick_attention(model):
        missing.add("quick_attention")
    return missing


def data_for(
    plan: Plan,
    tokenizer,
    arguments,
    trains: bool,
    encoding=None,
    plug_ins: PlugIns = NO_PLUG_INS,
    trained_card: TaskCard | None = None,
) -> Data:
    """Loads, checks and tokenizes every split that the flags ask for, and binds its metrics.

    Args:
      encoding: how the model's family reads and writes (`models.families`); text to text by default.
      trained_card: what the model's weights were trained for, where they are only scored.

    Raises:
      DataError, ConfigError: a split is missing, a row is wrong, a method does not fit.
    """
    encoding = encoding or TextEncoding(tokenizer, lengths_of(arguments.data))
    check_labels([*plan.train, *plan.evaluate], encoding, arguments.evaluation.eval_method, trains)
    options = data_options(plan, tokenizer, arguments.data)
    load_metrics_of_evaluate(plan, arguments.model.trust_remote_code)

    training = TrainingData([], [], [])
    if trains:
        training = load_training_data(plan, arguments, options, encoding)
        warn_of_unwritable_targets(training.sets, encoding, arguments.evaluation.eval_method)
    described = {f"{part.task.name}.train": part.describe() for part in training.sets}
    missing = list(training.missing)

    eval_sets: dict[str, list[EvalSet]] = {"validation": [], "test": []}
    remaining_tasks = [task for task in plan.evaluate if task.name not in training.missing]
    for role, tasks in evaluated_tasks(remaining_tasks, arguments, trains).items():
        loaded = load_eval_sets(tasks, role, options, encoding, split_options(role, arguments, plan))
        eval_sets[role] = loaded.sets
        described.update(loaded.described)
        missing += loaded.missing

    selecting = eval_sets["validation"]
    eval_sets = each_split_once(eval_sets["validation"], eval_sets["test"])
    if trains and selection_share(arguments.data.selection_split):
        selecting = selection_eval_sets(training.sets, encoding, arguments.evaluation.eval_method)
        warn_of_few_rows(selecting)
        warn_of_absent_labels(selecting)
    scored = [*eval_sets["validation"], *eval_sets["test"]]
    if not (trains or scored or missing):
        raise ConfigError(nothing_to_score(plan, arguments))
    if plan.published:
        leave_out_of_average(scored, plan.average)
        leave_out_of_average(selecting, plan.average)
    average_points([*scored, *selecting], arguments, trains)
    warn_of_few_rows(scored)
    warn_of_absent_labels(scored)
    warn_of_unlearned_labels(scored, training.sets, trained_card)
    widen_for_training_targets([*scored, *selecting], training.sets, training.features)
    if not trains:
        widen_for_trained_answers(scored, trained_card)
        warn_of_other_method(scored, trained_card)
    data = Data(
        training.sets,
        training.features,
        eval_sets["validation"],
        eval_sets["test"],
        selecting,
        described,
        missing,
        languages=getattr(encoding, "languages", None),
        made_by_flags=bool(plan.sources),
    )
    try_evaluate_metrics(data)
    if plug_ins.metrics:
        add_metrics(data, plug_ins.metrics, arguments.training.metric_for_best_model)
    if not trains:
        warn_of_metrics_left_out(data, plug_ins.metrics, arguments.model.model_name_or_path, trained_card)
    return data


def average_points(eval_sets: list[EvalSet], arguments, trains: bool) -> None:
    """Leaves errors out of the average of points; warns of them if one checkpoint is chosen by that average."""
    args = arguments.training
    if args.metric_for_best_model == "loss":
        return
    tasks_left_out = leave_errors_out_of_average(eval_sets)
    if trains and args.load_best_model_at_end and arguments.evaluation.select == "average":
        warn_of_errors_left_out(tasks_left_out)


def nothing_to_score(plan: Plan, arguments) -> str:
    """The message of a run that trains nothing and has no rows to score, with what would give it some."""
    tasks = ", ".join(f"{task.benchmark}/{task.name}" for task in plan.evaluate)
    if arguments.evaluation.predict_only:
        message = f"{tasks}: no test rows, so nothing to predict"
        if any(task.splits("validation") for task in plan.evaluate):
            message += "; without --predict_only (split='test') validation is scored"
        return message
    if plan.sources:
        return (
            f"{tasks}: no validation rows, so nothing to score: with --no_eval (valid=False) or --eval_strategy no, "
            "none are held out; score the trained model on rows of their own, with --validation_file"
        )
    return f"{tasks}: no validation or test rows, so nothing to score: the task's entry names no such split (splits)"


def data_options(plan: Plan, tokenizer, data_args) -> DataOptions:
    """Where the rows of the plan's tasks come from."""
    return DataOptions(
        data_args.data_dir,
        data_args.train_file,
        data_args.validation_file,
        data_args.test_file,
        data_args.data_revision,
        plan.sources,
        tokenizer,
    )


def load_metrics_of_evaluate(plan: Plan, trust_remote_code: bool) -> None:
    """Loads the metrics of `evaluate` that tasks name, so that one that cannot be loaded ends the run at once."""
    for task in plan.evaluate:
        for name in evaluate_names(task.entry):
            load_evaluate_metric(name, trust_remote_code, f"{task.benchmark}/{task.name}: metric_names")


class TrainingData(NamedTuple):
    """Training sets, their tokens, and the members of a mixture that were skipped."""

    sets: list[TrainingSet]
    features: list[TokenArrays]
    missing: list[str]


def load_training_data(plan: Plan, arguments, options: DataOptions, encoding: TextEncoding) -> TrainingData:
    """The tokenized training splits of the plan's tasks."""
    data_args = arguments.data
    subset = Subset(data_args.max_train_samples, selection_share(data_args.selection_split))
    training_sets, missing = load_training_sets(
        plan.train, options, subset, arguments.training.seed, data_args.allow_missing_tasks
    )
    features = tokenize_training_sets(training_sets, encoding)
    formats = arguments.formats
    # Running text is in blocks of the length that a target may have: one that fills it has lost nothing.
    targets_fit = formats.data_format == "text" and formats.max_output_tokens is None
    for part, tokens in zip(training_sets, features, strict=True):
        note_cut_texts(part.task, tokens, part.task.lengths(lengths_of(data_args)), targets_fit)
    if formats.data_format and formats.labels is None and formats.metrics is None:
        for part in training_sets:
            hint_at_labels(part)
    return TrainingData(training_sets, features, missing)


def evaluated_tasks(tasks: list[Task], arguments, trains: bool) -> dict[str, list[Task]]:
    """The tasks that are scored, by role of their split: validation, test."""
    predicts_only = arguments.evaluation.predict_only
    by_role = {}
    if not predicts_only and (not trains or arguments.training.eval_strategy.value != "no"):
        by_role["validation"] = tasks
    if predicts_only or arguments.training.do_predict:
        by_role["test"] = [task for task in tasks if task.splits("test")]
    return by_role


def each_split_once(validation_sets: list[EvalSet], test_sets: list[EvalSet]) -> dict[str, list[EvalSet]]:
    """The sets that are scored at the end, by role, none of them twice.

    A task without a validation split is evaluated on its test split. Where that is predicted, too, it is scored on the
    rows to predict, by the task's name.
    """
    sets_to_predict = {(eval_set.task.name, eval_set.split): eval_set for eval_set in test_sets}
    scored_sets = []
    for eval_set in validation_sets:
        same_split = sets_to_predict.pop((eval_set.task.name, eval_set.split), None)
        if same_split is None:
            scored_sets.append(eval_set)
        else:
            scored_sets.append(dataclasses.replace(same_split, name=eval_set.name))
    return {"validation": scored_sets, "test": list(sets_to_predict.values())}


def split_options(role: str, arguments, plan: Plan) -> SplitOptions:
    """How the flags say that splits are evaluated."""
    data_args = arguments.data
    return SplitOptions(
        method=arguments.evaluation.eval_method,
        limit=data_args.max_eval_samples if role == "validation" else data_args.max_predict_samples,
        seed=arguments.training.seed,
        allow_missing=data_args.allow_missing_tasks,
        is_single_task=plan.alone,
    )


def note_cut_texts(task: Task, features: TokenArrays, lengths: Lengths, targets_fit: bool = False) -> None:
    """Warns of truncated targets, which are wrong; most published systems truncate inputs, which is only noted.

    Args:
      targets_fit: no target is longer than `lengths.target`, so that none is truncated.
    """
    source_limit = _name_of_limit(task, "max_input_tokens", "max_source_length")
    _note_full_texts(task, logging.INFO, features.input_ids, source_limit, lengths.source)
    if not targets_fit:
        target_limit = _name_of_limit(task, "max_output_tokens", "max_target_length")
        _note_full_texts(task, logging.WARNING, features.labels, target_limit, lengths.target)


def _note_full_texts(task: Task, level: int, rows: RaggedColumn, limit: str, longest: int) -> None:
    count = int((rows.lengths >= longest).sum())
    if count:
        message = "%s/%s: %d of %d texts fill %s %d (tokens); what is longer loses its end"
        logger.log(level, message, task.benchmark, task.name, count, len(rows), limit, longest)


def _name_of_limit(task: Task, field: str, flag: str) -> str:
    """What says how long a task's texts may be: a field of its entry, else the flag."""
    return f"the task's {field}" if task.entry.get(field) else f"--{flag}"
