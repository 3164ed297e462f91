"""The steps of a fine-tuning run that are more than one call, each as a function of plain values.

    >>> plan = plan_tasks("glue", "cola,rte")
    >>> [task.name for task in plan.train]
    ['cola', 'rte']

`fine_tune_t5.py` calls them one after the other; `t5suite.FineTuner` calls the same ones.
"""

import bisect
import itertools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from tqdm.auto import tqdm
from transformers import EarlyStoppingCallback

from t5suite.base.errors import ConfigError
from t5suite.base.reference_code import reference_code
from t5suite.constants import MIXTURES
from t5suite.data.batches.collators import COLLATORS, ModuleCollator, Seq2SeqCollator, with_few_shapes
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.packed_rows import with_packed_rows
from t5suite.data.batches.training_data import (
    Mixing,
    Schedule,
    Subset,
    TokenCache,
    TrainingSet,
    load_training_sets,
    make_epoch_order,
    tokenize_training_sets,
)
from t5suite.data.rows.own_rows import RowSource
from t5suite.data.rows.sources import DataOptions
from t5suite.models.families import family_of_model
from t5suite.models.own_models import OwnModel
from t5suite.models.whole_weights import load_weights
from t5suite.tasks.entries import load_registry
from t5suite.tasks.registry import Lengths, Task, load_task, resolve_names
from t5suite.training.callbacks import BestPerTaskCallback, MetricsCallback, note_final
from t5suite.training.checks import (
    check_module,
    check_packable,
    check_positions,
    sampling_for,
    warn_of_cut_texts,
)
from t5suite.training.eval_batches import batch_tokens
from t5suite.training.eval_results import Report, task_values
from t5suite.training.eval_sets import EvalSet, load_eval_sets, selection_eval_sets, widen_for_training_targets
from t5suite.training.evaluation import Decoding, Evaluator
from t5suite.training.flags.fields import warn_of_idle_flags as idle_flags
from t5suite.training.flags.rows import PackedRows
from t5suite.training.flags.tracking import add_profile
from t5suite.training.losses import ModuleLoss, SquaredLoss
from t5suite.training.monitoring.progress import shows_bars
from t5suite.training.monitoring.samples import SampleCallback
from t5suite.training.plug_ins import NO_PLUG_INS, PlugIns, add_plug_in_callbacks, with_transform
from t5suite.training.steps import update_size
from t5suite.training.trainer import SuiteTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """Which tasks a run trains on, evaluates and averages; `published`: the average is the benchmark's own.

    `sources` has where the rows of tasks made from flags come from, by task.
    """

    benchmark: str
    dataset_name: str
    train: list[Task]
    evaluate: list[Task]
    average: list[str]
    published: bool
    sources: Mapping[str, RowSource] = field(default_factory=dict)

    @property
    def tasks(self) -> list[Task]:
        """Every task of the run, once."""
        return list({task.name: task for task in [*self.train, *self.evaluate]}.values())

    @property
    def alone(self) -> bool:
        """Whether the run is about one task."""
        return len(self.evaluate) == 1


def plan_tasks(
    benchmark: str,
    dataset_name: str,
    task_file: str | None = None,
    metric: str | None = None,
    own_metrics: bool = False,
) -> Plan:
    """The tasks behind `--benchmark` and `--dataset_name`.

    Args:
      metric: the metric that selects checkpoints instead of the task's own, for a single task ('loss': any run).
      own_metrics: there are metrics of the user's own, which `metric` may name (`plug_ins.add_metrics` looks).
    """
    registry = load_registry(task_file)
    train, evaluate, average = resolve_names(benchmark, dataset_name, registry, MIXTURES)
    tasks = {name: load_task(benchmark, name, registry=registry) for name in {*train, *evaluate}}
    tasks = {name: choose_metric(task, metric, len(tasks), own_metrics) for name, task in tasks.items()}
    published = dataset_name in MIXTURES.get(benchmark, {})
    return Plan(benchmark, dataset_name, [tasks[n] for n in train], [tasks[n] for n in evaluate], average, published)


def check_patience(patience: int, args) -> None:
    """Raises `ConfigError` where `--early_stopping_patience` waits for evaluations that do not come."""
    if not args.load_best_model_at_end:
        why = "--eval_strategy no" if args.eval_strategy == "no" else "--load_best_model_at_end False"
        raise ConfigError(
            f"--early_stopping_patience {patience} has nothing to wait for: {why}; evaluate with --eval_strategy epoch "
            "(or steps, with --eval_steps) and leave --load_best_model_at_end on"
        )


def choose_metric(task: Task, metric: str | None, num_tasks: int = 1, own_metrics: bool = False) -> Task:
    """The task, selected by the metric that `--metric_for_best_model` names, if it names one.

    Raises:
      ConfigError: one of several tasks, or no metric of the task.
    """
    if metric in (None, "loss", "average", "selection"):
        return task
    if num_tasks > 1:
        raise ConfigError(f"--metric_for_best_model {metric}: a mixture is selected by average or loss")
    try:
        return task.with_metric_to_optimize(metric, where="--metric_for_best_model")
    except ConfigError:
        if not own_metrics:
            raise
        return task


@dataclass
class Data:
    """What a run trains on and is scored on.

    Attributes:
      selecting: the sets that are evaluated during training; `eval_sets`, unless `--selection_split train[...]`.
      described: what the manifest says of every split.
      missing: members of a mixture that were left out.
    """

    training_sets: list[TrainingSet]
    features: list[TokenArrays]
    eval_sets: list[EvalSet]
    test_sets: list[EvalSet]
    selecting: list[EvalSet]
    described: dict[str, dict]
    missing: list[str]

    @property
    def scored(self) -> list[EvalSet]:
        """Everything that is scored or predicted at the end."""
        return [*self.eval_sets, *self.test_sets]


def load_data(
    plan: Plan,
    options: DataOptions,
    tokenizer,
    lengths: Lengths,
    *,
    trains: bool,
    evaluates: bool,
    predicts: bool,
    subset: Subset,
    method: str = "generate",
    max_eval_samples: int | None = None,
    max_predict_samples: int | None = None,
    allow_missing: bool = False,
    seed: int = 42,
    encoding: TextEncoding | None = None,
) -> Data:
    """Loads, checks and tokenizes every split that the run needs.

    Args:
      encoding: how the model's family reads and writes (`models.family_encodings`); text to text without one.

    Raises:
      DataError, ConfigError: a split is missing, a row is wrong, a method does not fit.
    """
    training_sets, missing, features = [], [], []
    if trains:
        training_sets, missing = load_training_sets(plan.train, options, subset, seed, allow_missing)
        cache = TokenCache(options.token_cache)
        features = tokenize_training_sets(training_sets, tokenizer, lengths, encoding, cache)
        for part, tokens in zip(training_sets, features, strict=True):
            warn_of_cut_texts(f"{part.task.benchmark}/{part.task.name}", tokens, part.task.lengths(lengths))
    described = {f"{part.task.name}.train": part.describe() for part in training_sets}
    kept = [task for task in plan.evaluate if task.name not in missing]
    sets = {"validation": [], "test": []}
    for role, wanted, limit in (("validation", evaluates, max_eval_samples), ("test", predicts, max_predict_samples)):
        tasks = [task for task in kept if role == "validation" or task.splits("test")] if wanted else []
        sets[role], found, left_out = load_eval_sets(
            tasks, role, options, tokenizer, lengths, method, limit, seed, allow_missing, plan.alone, encoding
        )
        described.update(found)
        missing = missing + left_out
    widen_for_training_targets([*sets["validation"], *sets["test"]], training_sets, features)
    selecting = sets["validation"]
    if trains and subset.selection_share:
        selecting = selection_eval_sets(training_sets, tokenizer, lengths, method, encoding)
        widen_for_training_targets(selecting, training_sets, features)
    return Data(training_sets, features, sets["validation"], sets["test"], selecting, described, missing)


def make_collator(model, fp16_or_bf16: bool = False) -> Seq2SeqCollator:
    """The family's; lengths are multiples of 8 under mixed precision, which is what tensor cores work in."""
    config = model.config
    start = getattr(config, "decoder_start_token_id", None)
    return COLLATORS[family_of_model(model)](config.pad_token_id, start, 8 if fp16_or_bf16 else 1)


def make_evaluator(collator, tokenizer, args, accelerator, show_progress: bool) -> Evaluator:
    """An `Evaluator` that heeds the flags of generated answers, quick ways, batches and loss."""
    bars = (lambda turns, name: tqdm(turns, desc=f"evaluating {name}", leave=False)) if show_progress else None
    synced = accelerator.num_processes > 1 and accelerator.distributed_type.value in ("DEEPSPEED", "FSDP")
    decoding = Decoding(
        num_beams=args.generation_num_beams or 1,
        max_length=args.generation_max_length,
        synced=synced,
        reference=reference_code(args.reference_code),
        loss=args.eval_loss,
        batch_tokens=batch_tokens(args.eval_batch_tokens, accelerator.device) if args.evaluates_by_tokens else None,
    )
    return Evaluator(collator, tokenizer, decoding, args.per_device_eval_batch_size, accelerator, bars)


def warn_of_idle_flags(changed: dict, plan: Plan, trains: bool, predicts: bool) -> list[str]:
    """Warns of every flag that was given and has no effect in this run, with the reason; returns the flags."""
    unscored = trains and changed.get("eval_strategy") == "no"
    if unscored:
        logger.info("--eval_strategy no: nothing is evaluated, and no checkpoint is chosen; there will be no scores")
    method, unseen = changed.get("eval_method"), "--eval_strategy no evaluates nothing"
    paths = {"quick_decoding": method == "score" and plan.alone, "candidate_trees": method != "score"}
    lacking = {
        "training": "" if trains else "nothing is trained",
        "transformed batches": "" if trains or "transform_evaluation" in changed else "nothing is trained",
        "several tasks": "there is one task" if len(plan.train) == 1 else "",
        "prediction": "" if predicts else "test splits are predicted with --do_predict only",
        "validation": unseen if unscored else "",
        "evaluation": unseen if unscored and not predicts else "",
        "writing": "this --eval_method writes nothing" if method in ("score", "loss") else "",
        "answers": "the loss is all that is evaluated" if method == "loss" else "",
        "fast paths": "nothing is written or scored so" if paths.get(changed.get("reference_code")) else "",
        "Hugging Face's evaluation": "answers are written or scored, and evaluated by our own loop",
    }
    return idle_flags("fine_tune_t5", changed, lacking)


def make_trainer(
    model,
    tokenizer,
    args,
    data: Data,
    mixing: Mixing,
    patience: int | None = None,
    plug_ins: PlugIns = NO_PLUG_INS,
    rows: PackedRows | None = None,
):
    """`(trainer, {task: mixing rate})`; without training data, a trainer that evaluates only.

    Args:
      rows: those that training examples share (`--pack_rows`); each has one of its own without.
    """
    order, rates, eval_sets = None, {}, data.selecting
    if data.features:
        sampling = sampling_for(args, rows is not None)
        schedule = Schedule(args.num_train_epochs, update_size(args), args.max_steps, sampling)
        names = [part.task.name for part in data.training_sets]
        order, rates = make_epoch_order(data.features, names, mixing, schedule, args.seed)
    if not eval_sets or not any(eval_set.selects and eval_set.labelled for eval_set in eval_sets):
        args.load_best_model_at_end = False
    if not eval_sets:
        args.eval_strategy = type(args.eval_strategy)("no")
    check_positions(model, data)
    collator = make_collator(model, args.fp16 or args.bf16)
    features = TokenArrays.concatenate(data.features) if data.features else None
    if rows is not None:
        check_packable(model, args, plug_ins)
    shaped = shaped_collator(collator, features, order, args, rows)
    transformed = with_transform(collator, plug_ins)
    trained = with_transform(shaped, plug_ins)
    if plug_ins.transforms_evaluation and family_of_model(model) == "causal":
        raise ConfigError("--transform_evaluation: prompts of decoder-only models are not collated for evaluation")
    loss = SquaredLoss() if getattr(model.config, "problem_type", None) == "regression" else None
    if isinstance(model, OwnModel):
        check_module(args, eval_sets)
        loss = ModuleLoss()
    trainer = SuiteTrainer(
        model=model,
        args=args,
        train_dataset=features,
        epoch_order=order,
        collator=ModuleCollator(trained, model.takes_labels) if isinstance(model, OwnModel) else trained,
        eval_sets=eval_sets,
        selection_metric="loss" if args.selection_metric == "loss" else None,
        name_example=example_namer([part.task.name for part in data.training_sets], data.features),
        loss=loss,
        processing_class=tokenizer,
    )
    if args.torch_compile:
        compile_each_shape(trainer, shaped.num_shapes)
    evaluates = transformed if plug_ins.transforms_evaluation else collator
    show_progress = trainer.is_world_process_zero() and shows_bars(args)
    trainer.evaluator = make_evaluator(evaluates, tokenizer, args, trainer.accelerator, show_progress)
    if plug_ins.batch_metrics:
        trainer.measure(plug_ins.batch_metrics)
    add_plug_in_callbacks(trainer, plug_ins.callbacks)
    if patience is not None:
        check_patience(patience, args)
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=patience))
    return trainer, rates


# Shapes of batches under --torch_compile, if --length_buckets does not say how many: as many as it compiles by default.
COMPILED_SHAPES = 8


def shaped_collator(
    collator: Seq2SeqCollator, features: TokenArrays | None, order, args, rows: PackedRows | None = None
) -> Seq2SeqCollator:
    """The collator with a few shapes for training, where `--length_buckets` or `--torch_compile` ask for them; packing
    where `--pack_rows` does."""
    most = args.length_buckets
    if most is None:
        most = COMPILED_SHAPES if args.torch_compile else 0
    if rows is not None and features is not None:
        return with_packed_rows(collator, features, order, args.train_batch_size, most, rows)
    if most == 0 or features is None:
        return collator
    return with_few_shapes(collator, features, order, args.train_batch_size, most, args.world_size)


def compile_each_shape(trainer: SuiteTrainer, num_shapes: int) -> None:
    """Has `--torch_compile` make a graph of each of a few shapes; where there are none, of any shape at once."""
    if num_shapes:
        trainer.accelerator.state.dynamo_plugin.dynamic = False
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, num_shapes)


def example_namer(names: list[str], features: list[TokenArrays]):
    """Index into the tasks' examples, one task behind the other -> a name that says which it is.

    >>> example_namer(["cola", "rte"], [cola_tokens, rte_tokens])(len(cola_tokens) + 7)
    'rte.train:7'
    """
    ends = list(itertools.accumulate(len(tokens) for tokens in features))

    def name(index: int) -> str:
        task = bisect.bisect_right(ends, index)
        return f"{names[task]}.train:{index - (ends[task - 1] if task else 0)}"

    return name


def add_callbacks(trainer: SuiteTrainer, directory, trackers, keep_task_weights: bool) -> BestPerTaskCallback:
    """Metrics to `metrics.jsonl` and trackers; each task's best step remembered.

    Raises:
      ConfigError: weights of single tasks cannot be put into a model that is in pieces.
    """
    if keep_task_weights and (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
        raise ConfigError("--select per_task puts weights back, which ZeRO and FSDP cannot; choose --select average")
    best = BestPerTaskCallback(directory, trainer.save_model if keep_task_weights else None)
    best.report_of = lambda: trainer.last_report
    samples = SampleCallback(
        directory, trackers, trainer.args.num_samples, trainer.eval_sets, lambda: trainer.last_report
    )
    trainer.add_callback(samples)
    trainer.add_callback(MetricsCallback(directory, trackers))
    add_profile(trainer, directory)
    trainer.add_callback(best)
    return best


def mark_for_table(data: Data, selected: bool) -> None:
    """Notes for the table: these rows also chose the checkpoint; the training rows were a subset."""
    train_subsets = {part.task.name for part in data.training_sets if part.is_subset}
    for eval_set in data.scored:
        if selected and eval_set in data.selecting and eval_set.selects and eval_set.labelled:
            eval_set.marks.append("selected on")
        if eval_set.task.name in train_subsets:
            eval_set.marks.append("train subset")


def evaluate_finally(trainer: SuiteTrainer, data: Data, best: BestPerTaskCallback | None = None) -> Report:
    """Scores everything: with the weights as they are, or (`best`) each task with those of its own best step."""
    report = trainer.score(data.scored) if best is None else evaluate_each_at_its_best(trainer, data.scored, best)
    note_final(trainer, report, data.scored)
    return report


def evaluate_each_at_its_best(trainer: SuiteTrainer, eval_sets: list[EvalSet], best: BestPerTaskCallback) -> Report:
    """`--select per_task`: every task's splits are scored with the weights of that task's own best step."""
    results = {}
    names = list(dict.fromkeys(eval_set.task.name for eval_set in eval_sets))
    final = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
    for name in names:
        of_task = [eval_set for eval_set in eval_sets if eval_set.task.name == name]
        if name in best.best:
            load_weights(trainer.accelerator.unwrap_model(trainer.model), best.folder(name), "--select per_task")
            for eval_set in of_task:
                eval_set.marks.append(f"step {best.best[name]['step']}")
        else:
            trainer.model.load_state_dict(final)
        results.update(trainer.score(of_task).results)
    trainer.model.load_state_dict(final)
    by_task = task_values(eval_sets, results, None)
    values = list(by_task.values())
    return Report(results, sum(values) / len(values) if values else math.nan, by_task)
