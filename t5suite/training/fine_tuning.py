"""The steps of a fine-tuning run that are more than one call, each as a function of plain values.

    >>> plan = plan_tasks("glue", "cola,rte")
    >>> [task.name for task in plan.train]
    ['cola', 'rte']

`fine_tune_t5.py` calls them one after the other; `t5suite.FineTuner` calls the same ones.
"""

import dataclasses
import logging
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm
from transformers import EarlyStoppingCallback, set_seed
from transformers.utils import logging as transformers_logging

from t5suite.constants import MIXTURES
from t5suite.data.collators import Seq2SeqCollator
from t5suite.data.features import TokenArrays
from t5suite.data.sources import DataOptions
from t5suite.data.training_data import (
    Mixing,
    Schedule,
    Subset,
    TrainingSet,
    load_training_sets,
    make_epoch_order,
    tokenize_training_sets,
)
from t5suite.errors import ConfigError
from t5suite.tasks.registry import Lengths, Task, load_task, resolve_names
from t5suite.tasks.task_files import load_registry
from t5suite.training.callbacks import BestPerTaskCallback, MetricsCallback
from t5suite.training.eval_sets import load_eval_sets, selection_eval_sets, widen_for_training_targets
from t5suite.training.evaluation import Decoding, EvalSet, Evaluator, Report, task_values
from t5suite.training.trainer import SuiteTrainer

logger = logging.getLogger(__name__)


# Flags that only training heeds, and those that only generation heeds.
TRAINING_FLAGS = (
    "train_file max_train_samples train_fraction few_shot mixing mixing_limit mixing_temperature selection_split "
    "select early_stopping_patience learning_rate num_train_epochs max_steps per_device_train_batch_size optim z_loss "
    "gradient_accumulation_steps label_smoothing_factor eval_steps save_steps lr_scheduler_type warmup_steps optimizer "
    "optim_args schedule lr_scheduler_kwargs clip_grad_value max_grad_norm max_minutes reset extend"
).split()
GENERATION_FLAGS = ("generation_num_beams", "generation_max_length")


@dataclass(frozen=True)
class Plan:
    """Which tasks a run trains on, evaluates and averages; `published`: the average is the benchmark's own."""

    benchmark: str
    dataset_name: str
    train: list[Task]
    evaluate: list[Task]
    average: list[str]
    published: bool

    @property
    def alone(self) -> bool:
        """Whether the run is about one task."""
        return len(self.evaluate) == 1


def plan_tasks(benchmark: str, dataset_name: str, task_file: str | None = None, metric: str | None = None) -> Plan:
    """The tasks behind `--benchmark` and `--dataset_name`.

    Args:
      metric: the metric that selects checkpoints instead of the task's own, for a single task ('loss': any run).
    """
    registry = load_registry(task_file)
    train, evaluate, average = resolve_names(benchmark, dataset_name, registry, MIXTURES)
    tasks = {name: load_task(benchmark, name, registry=registry) for name in {*train, *evaluate}}
    if metric not in (None, "loss", "average", "selection"):
        metric = metric.removeprefix("eval_").removeprefix("eval/")
        if len(tasks) > 1:
            raise ConfigError(f"--metric_for_best_model {metric}: a mixture is selected by average or loss")
        tasks = {name: task.with_metric_to_optimize(metric) for name, task in tasks.items()}
    published = dataset_name in MIXTURES.get(benchmark, {})
    return Plan(benchmark, dataset_name, [tasks[n] for n in train], [tasks[n] for n in evaluate], average, published)


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
) -> Data:
    """Loads, checks and tokenizes every split that the run needs.

    Raises:
      DataError, ConfigError: a split is missing, a row is wrong, a method does not fit.
    """
    training_sets, missing, features = [], [], []
    if trains:
        training_sets, missing = load_training_sets(plan.train, options, subset, seed, allow_missing)
        features = tokenize_training_sets(training_sets, tokenizer, lengths)
    described = {f"{part.task.name}.train": part.describe() for part in training_sets}
    kept = [task for task in plan.evaluate if task.name not in missing]
    sets = {"validation": [], "test": []}
    for role, wanted, limit in (("validation", evaluates, max_eval_samples), ("test", predicts, max_predict_samples)):
        tasks = [task for task in kept if role == "validation" or task.splits("test")] if wanted else []
        sets[role], found, left_out = load_eval_sets(
            tasks, role, options, tokenizer, lengths, method, limit, seed, allow_missing, alone=plan.alone
        )
        described.update(found)
        missing = missing + left_out
    widen_for_training_targets([*sets["validation"], *sets["test"]], training_sets, features)
    selecting = sets["validation"]
    if trains and subset.selection_share:
        selecting = selection_eval_sets(training_sets, tokenizer, lengths, method)
        widen_for_training_targets(selecting, training_sets, features)
    return Data(training_sets, features, sets["validation"], sets["test"], selecting, described, missing)


def start_logging(is_main: bool, disable_tqdm: bool = False) -> None:
    """Our log lines on standard error; other ranks and the libraries speak up for warnings only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("t5suite")
    root.handlers, root.propagate = [handler], False
    root.setLevel(logging.INFO if is_main else logging.ERROR)
    transformers_logging.set_verbosity(logging.WARNING if is_main else logging.ERROR)
    transformers_logging.disable_progress_bar()
    logging.getLogger("transformers.trainer").addFilter(_is_news)
    if disable_tqdm or not is_main:
        import datasets

        datasets.disable_progress_bars()


def seed_everything(seed: int) -> None:
    """Python's, NumPy's and torch's random numbers; weights and dropout follow from them."""
    set_seed(seed)


def _is_news(record: logging.LogRecord) -> bool:
    """Tied weights are stored once: that a checkpoint lacks their other names is no news."""
    return "missing keys in the checkpoint" not in record.getMessage()


def all_settings(*arguments) -> dict:
    """Every flag of the argument dataclasses by name, as the user gave it."""
    settings = {
        spec.name: getattr(part, spec.name)
        for part in arguments
        for spec in dataclasses.fields(part)
        if spec.init and not spec.name.startswith("_")
    }
    training = arguments[-1]
    return {**settings, "report_to": training.trackers, "metric_for_best_model": training.selection_metric}


def check_precision(fp16: bool, model_type: str) -> None:
    """T5's activations overflow fp16: checkpoints trained in bfloat16 reach 65504 within a few layers."""
    if fp16 and model_type in ("t5", "mt5", "umt5", "longt5"):
        logger.warning(
            "--fp16 with T5 overflows: losses become nan and the weights are lost. Use --bf16 (same speed, float32's "
            "range). The run stops at the first steps in a row whose loss is no number"
        )


def make_collator(model, fp16_or_bf16: bool = False) -> Seq2SeqCollator:
    """Lengths are multiples of 8 under mixed precision, which is what tensor cores work in."""
    return Seq2SeqCollator(model.config.pad_token_id, model.config.decoder_start_token_id, 8 if fp16_or_bf16 else 1)


def make_evaluator(collator, tokenizer, args, accelerator, show_progress: bool) -> Evaluator:
    """An `Evaluator` with the flags `--generation_num_beams` and `--generation_max_length`."""
    bars = (lambda turns, name: tqdm(turns, desc=f"evaluating {name}", leave=False)) if show_progress else None
    synced = accelerator.num_processes > 1 and accelerator.distributed_type.value in ("DEEPSPEED", "FSDP")
    decoding = Decoding(args.generation_num_beams or 1, args.generation_max_length, synced)
    return Evaluator(collator, tokenizer, decoding, args.per_device_eval_batch_size, accelerator, bars)


def update_size(args) -> int:
    """Examples that one update takes, over micro-batches and ranks."""
    return args.train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size)


def one_device_a_process(args) -> None:
    """Several GPUs need several processes: `DataParallel`, the trainer's other way, scales the loss by their number."""
    if args.n_gpu > 1:
        logger.warning("one of %d GPUs is used; start with torchrun or accelerate launch to use them all", args.n_gpu)
        args._n_gpu = 1


def warn_of_idle_flags(changed: dict, plan: Plan, trains: bool, predicts: bool) -> list[str]:
    """Warns of every flag that was given and has no effect in this run, with the reason; returns the flags."""
    alone = len(plan.train) == 1
    reasons = [
        (not trains, TRAINING_FLAGS, "nothing is trained"),
        (alone, ("mixing", "mixing_limit", "mixing_temperature", "allow_missing_tasks"), "there is one task"),
        (alone, ("select",), "there is one task"),
        (not predicts, ("max_predict_samples", "test_file"), "test splits are predicted with --do_predict only"),
        (changed.get("eval_method") == "score", GENERATION_FLAGS, "--eval_method score writes nothing"),
        (True, ("predict_with_generate", "sortish_sampler"), "evaluation always writes or scores whole answers"),
        (True, ("eval_accumulation_steps", "batch_eval_metrics", "prediction_loss_only"), "evaluation is our own"),
    ]
    idle = {name: why for applies, names, why in reasons if applies for name in names if name in changed}
    for name, why in idle.items():
        logger.warning("--%s has no effect: %s", name, why)
    return list(idle)


def make_trainer(model, tokenizer, args, data: Data, mixing: Mixing, patience: int | None = None):
    """`(trainer, {task: mixing rate})`; without training data, a trainer that evaluates only."""
    order, rates, eval_sets = None, {}, data.selecting
    if data.features:
        schedule = Schedule(args.num_train_epochs, update_size(args), args.max_steps, args.train_sampling_strategy)
        names = [part.task.name for part in data.training_sets]
        order, rates = make_epoch_order(data.features, names, mixing, schedule, args.seed)
    if not eval_sets or not any(eval_set.selects and eval_set.labelled for eval_set in eval_sets):
        args.load_best_model_at_end = False
    if not eval_sets:
        args.eval_strategy = type(args.eval_strategy)("no")
    collator = make_collator(model, args.fp16 or args.bf16)
    trainer = SuiteTrainer(
        model=model,
        args=args,
        train_dataset=TokenArrays.concatenate(data.features) if data.features else None,
        epoch_order=order,
        collator=collator,
        eval_sets=eval_sets,
        selection_metric="loss" if args.selection_metric == "loss" else None,
        processing_class=tokenizer,
    )
    trainer.evaluator = make_evaluator(
        collator, tokenizer, args, trainer.accelerator, trainer.is_world_process_zero() and not args.disable_tqdm
    )
    if patience is not None:
        if patience < 1 or not args.load_best_model_at_end:
            raise ConfigError(
                "--early_stopping_patience must be at least 1 and needs evaluations that select checkpoints"
            )
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=patience))
    return trainer, rates


def add_callbacks(
    trainer: SuiteTrainer, directory, trackers, keep_task_weights: bool, resume_from
) -> BestPerTaskCallback:
    """Metrics to `metrics.jsonl` and trackers; each task's best step remembered."""
    best = BestPerTaskCallback(directory, trainer.save_model if keep_task_weights else None, resume_from)
    best.report_of = lambda: trainer.last_report
    trainer.add_callback(MetricsCallback(directory, trackers))
    trainer.add_callback(best)
    return best


def train(trainer: SuiteTrainer, resume_from=None) -> dict:
    """Trains (or goes on from a checkpoint) and returns the trainer's own numbers."""
    if resume_from is not None:
        logger.info("going on from %s", resume_from)
    output = trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
    return {"steps": output.global_step, "loss": output.training_loss, **output.metrics}


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
    if best is None:
        return trainer.evaluator.evaluate(trainer.model, data.scored)
    return evaluate_each_at_its_best(trainer, data.scored, best)


def evaluate_each_at_its_best(trainer: SuiteTrainer, eval_sets: list[EvalSet], best: BestPerTaskCallback) -> Report:
    """`--select per_task`: every task's splits are scored with the weights of that task's own best step."""
    from safetensors.torch import load_model

    results = {}
    names = list(dict.fromkeys(eval_set.task.name for eval_set in eval_sets))
    final = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
    for name in names:
        of_task = [eval_set for eval_set in eval_sets if eval_set.task.name == name]
        weights = best.folder(name) / "model.safetensors"
        if name in best.best and weights.is_file():
            load_model(trainer.model, weights, strict=False)
            for eval_set in of_task:
                eval_set.marks.append(f"step {best.best[name]['step']}")
        else:
            trainer.model.load_state_dict(final)
        results.update(trainer.evaluator.evaluate(trainer.model, of_task).results)
    trainer.model.load_state_dict(final)
    by_task = task_values(eval_sets, results, None)
    values = list(by_task.values())
    return Report(results, sum(values) / len(values) if values else math.nan, by_task)


def model_title(model, name: str | None, from_scratch: bool = False) -> str:
    """What tables and cards call the model.

    >>> model_title(model, "google/t5-v1_1-small")
    't5-v1_1-small'
    """
    if name and not from_scratch:
        return Path(name).name
    count = sum(parameter.numel() for parameter in model.parameters())
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}K"
    return f"{model.config.model_type} from scratch ({size} parameters)"
