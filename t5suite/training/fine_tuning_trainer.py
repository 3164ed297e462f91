"""The trainer of a fine-tuning run, complete with its loss, its evaluator and the task card that models are saved with.

>>> trainer, rates = trainer_for(model, tokenizer, data, arguments)
>>> rates
{'cola': 8551, 'rte': 2490}
"""

import bisect
import copy
import functools
import itertools
from collections.abc import Callable

import numpy as np
from transformers import EarlyStoppingCallback
from transformers.trainer_utils import SaveStrategy

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import Libraries
from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.training_data import Mixing, make_epoch_order
from t5suite.models.adapters import num_virtual_tokens
from t5suite.models.config_limits import check_length, check_resumes
from t5suite.models.families import recognize_family
from t5suite.models.families.causal import SEPARATOR
from t5suite.models.tokenizer_checks import TOKENIZER_KEY, describe_tokenizer
from t5suite.tasks.entry_metrics import optimised_metrics
from t5suite.tasks.targets import has_label_sets
from t5suite.tasks.task_card import LABELS_OF_SETS, TaskCard, make_task_card
from t5suite.tasks.tokenization import Lengths
from t5suite.training.checkpoints.data_positions import ExampleOrder
from t5suite.training.distillation import DistilledLoss, distilled_loss
from t5suite.training.eval_sets import EvalSet, has_fixed_answers, longest_label, method_for
from t5suite.training.evaluation import Evaluator, EvaluatorSettings, batch_tokens
from t5suite.training.fine_tuning_data import Data, lengths_of
from t5suite.training.losses import SquaredLoss
from t5suite.training.monitoring.terminal import evaluation_bar, shows_bars
from t5suite.training.plans import Plan
from t5suite.training.plug_ins import NO_PLUG_INS, PlugIns, add_plug_in_callbacks, with_transform
from t5suite.training.run_directory import update_size
from t5suite.training.trainer import SuiteTrainer


def trainer_for(
    model,
    tokenizer,
    data: Data,
    arguments,
    selects: bool = True,
    plug_ins: PlugIns = NO_PLUG_INS,
    libraries: Libraries | None = None,
):
    """`(trainer, {task: mixing rate})`; without `selects`, early stopping is off."""
    args = arguments.training
    loss = distilled_loss_by_flags(model, tokenizer, data, arguments)
    patience = arguments.evaluation.early_stopping_patience if selects else None
    if patience is not None:
        check_patience(patience, trainer_arguments(args, data.selecting))
    trainer, rates = make_trainer(
        model, tokenizer, args, data, mixing_by_flags(arguments), plug_ins=plug_ins, loss=loss, libraries=libraries
    )
    if patience is not None:
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=patience))
    if loss is not None:
        loss.autocast = trainer.accelerator.autocast
    trainer.checkpoints.task_card = task_card_of(data, lengths_of(arguments.data), model, tokenizer)
    return trainer, rates


def mixing_by_flags(arguments) -> Mixing:
    """How often each task of a mixture is drawn."""
    data_args = arguments.data
    proportions = arguments.formats.data_sampling_proportion
    return Mixing(
        data_args.mixing,
        data_args.mixing_limit,
        data_args.mixing_temperature,
        proportions and tuple(proportions),
    )


def distilled_loss_by_flags(model, tokenizer, data: Data, arguments) -> DistilledLoss | None:
    """The loss of `--teacher`; None without one, or if nothing is trained."""
    if arguments.distillation.teacher is None or not data.features:
        return None
    tasks = [part.task for part in data.training_sets]
    return distilled_loss(model, tokenizer, arguments, tasks)


def check_patience(patience: int, args) -> None:
    """Refuses early stopping in a run that selects no checkpoint."""
    if args.load_best_model_at_end:
        return
    remedy = "evaluate with --eval_strategy epoch (or steps, with --eval_steps) and leave --load_best_model_at_end on"
    if args.save_strategy == SaveStrategy.NO:
        remedy = "--save_strategy no writes no checkpoint, so that none can be the best; leave it out"
    raise ConfigError(f"--early_stopping_patience {patience} has nothing to wait for; {remedy}")


def make_trainer(
    model,
    tokenizer,
    args,
    data: Data,
    mixing: Mixing,
    *,
    plug_ins: PlugIns = NO_PLUG_INS,
    loss=None,
    libraries: Libraries | None = None,
):
    """`(trainer, {task: mixing rate})`; without training data, a trainer that evaluates only.

    Args:
      loss: replaces the one that goes with the model (`trainer.SuiteTrainer`).
    """
    names = [part.task.name for part in data.training_sets]
    order = ExampleOrder()
    rates = {}
    features = None
    if data.features:
        order, rates = example_order(data.features, names, args, mixing)
        features = TokenArrays.concatenate(data.features)
    check_positions(model, data, args.generation_max_length)
    collator = make_collator(model, args.fp16 or args.bf16)
    if getattr(model.config, "problem_type", None) == "regression":
        loss = SquaredLoss()
    trainer = SuiteTrainer(
        model=model,
        args=trainer_arguments(args, data.selecting),
        train_dataset=features,
        data=order,
        collator=with_transform(collator, plug_ins),
        make_evaluator=lambda trainer: evaluator_of(trainer, collator, tokenizer),
        eval_sets=data.selecting,
        selection_metric=selection_metric(args, data.selecting),
        loss=loss,
        processing_class=tokenizer,
        libraries=libraries,
    )
    if plug_ins.batch_metrics:
        trainer.measure(plug_ins.batch_metrics)
    add_plug_in_callbacks(trainer, plug_ins.callbacks)
    return trainer, rates


def example_order(
    features: list[TokenArrays], names: list[str], args, mixing: Mixing
) -> tuple[ExampleOrder, dict[str, float]]:
    """The order of the training examples, and `{task: mixing rate}`."""
    make_order = functools.partial(
        make_epoch_order, features, names, mixing, args.train_sampling_strategy, args.order_seed
    )
    epoch_order, rates = make_order(update_size(args))

    def order_by_update_size(examples: int):
        return make_order(examples)[0]

    return ExampleOrder(epoch_order, example_namer(names, features), order_by_update_size), rates


def trainer_arguments(args, eval_sets: list[EvalSet]):
    """The trainer's own copy of the training arguments: without sets to evaluate, it evaluates and selects nothing."""
    args = copy.copy(args)
    if not any(eval_set.is_validation and eval_set.labelled for eval_set in eval_sets):
        args.load_best_model_at_end = False
    if not eval_sets:
        args.eval_strategy = type(args.eval_strategy)("no")
    return args


def selection_metric(args, eval_sets: list[EvalSet]) -> str | None:
    """'loss' if checkpoints are selected by loss; None if by the tasks' own metrics, or by one that a flag names."""
    if args.metric_for_best_model is not None:
        return "loss" if args.metric_for_best_model == "loss" else None
    have_own_metrics = any(optimised_metrics(eval_set.task.entry) for eval_set in eval_sets)
    return None if have_own_metrics else "loss"


def check_positions(model, data: Data, generation_max_length: int | None = None) -> None:
    """Refuses examples that are longer than the model has positions for, or that it cannot be trained exactly on.

    Args:
      generation_max_length: tokens of written answers, instead of what the tasks need.

    Raises:
      ConfigError: with the flag to change.
    """
    shortest = [int(features.input_ids.lengths.min()) for features in data.features if len(features)]
    if shortest:
        check_resumes(model.config, min(shortest))
    family = recognize_family(model)
    for features in data.features:
        _check_lengths(model, family, features)
    eval_sets = [*data.scored, *data.selecting]
    for eval_set in eval_sets:
        writes_as_tasks_need = eval_set.method == "generate" and not generation_max_length
        max_written_tokens = eval_set.max_target_tokens if writes_as_tasks_need else 0
        _check_lengths(model, family, eval_set.features, eval_set.max_target_tokens, max_written_tokens)
    writes = any(eval_set.method == "generate" for eval_set in eval_sets)
    if generation_max_length and writes and family.has_decoder_inputs:
        _check_length(model, generation_max_length, "--generation_max_length", "decoder")


def _check_lengths(model, family, features, max_target_tokens: int = 0, max_written_tokens: int = 0) -> None:
    """Refuses a set of examples of which one is longer than the model has positions for.

    Args:
      max_target_tokens: of the set's answers, which a decoder-only model has in the row of the prompt.
      max_written_tokens: those of answers that a decoder writes.
    """
    if not len(features):
        return
    lengths = features.input_ids.lengths
    if family.answers_in_prompt_row:
        lengths = lengths + np.maximum(features.labels.lengths, max_target_tokens)
    _check_length(model, int(lengths.max()), "--max_source_length")
    if family.has_decoder_inputs:
        longest_target = max(int(features.labels.lengths.max()), max_written_tokens)
        _check_length(model, longest_target, "--max_target_length", "decoder")


def _check_length(model, length: int, flag: str, stack: str = "encoder") -> None:
    check_length(model.config, length, flag, stack, num_virtual_tokens(model, stack))


def example_namer(names: list[str], features: list[TokenArrays]) -> Callable[[int], str]:
    """Index into the tasks' concatenated examples -> the name of the example.

    >>> example_namer(["cola", "rte"], [cola_tokens, rte_tokens])(len(cola_tokens) + 7)
    'rte.train:7'
    """
    ends = list(itertools.accumulate(len(tokens) for tokens in features))

    def name(index: int) -> str:
        task = bisect.bisect_right(ends, index)
        start = ends[task - 1] if task else 0
        return f"{names[task]}.train:{index - start}"

    return name


def make_collator(model, fp16_or_bf16: bool = False) -> Seq2SeqCollator:
    """The family's collator; under mixed precision lengths are multiples of 8, in which tensor cores work."""
    return recognize_family(model).make_collator(model.config, pad_to_multiple_of=8 if fp16_or_bf16 else 1)


def evaluator_of(trainer: SuiteTrainer, collator, tokenizer) -> Evaluator:
    """The evaluator of a trainer, on its devices."""
    show_progress = trainer.is_world_process_zero() and shows_bars(trainer.args)
    return make_evaluator(collator, tokenizer, trainer.args, trainer.accelerator, show_progress, trainer.libraries.off)


def make_evaluator(
    collator, tokenizer, args, accelerator, show_progress: bool, off: frozenset[str] = frozenset()
) -> Evaluator:
    """An `Evaluator` from the flags of generated answers and batches.

    Args:
      off: the fast paths that are off.
    """
    is_sharded = accelerator.distributed_type.value in ("DEEPSPEED", "FSDP")
    settings = EvaluatorSettings(
        num_beams=args.generation_num_beams or 1,
        max_length=args.generation_max_length,
        synced=accelerator.num_processes > 1 and is_sharded,
        reference=off,
        batch_tokens=batch_tokens(accelerator.device) if args.evaluates_by_tokens else None,
    )
    progress = evaluation_bar if show_progress else None
    return Evaluator(collator, tokenizer, settings, args.per_device_eval_batch_size, accelerator, progress)


def task_card_of(data: Data, lengths: Lengths, model, tokenizer) -> TaskCard:
    """What a saved model says of its tasks: how their texts are made, and how long their answers may be."""
    answer_lengths = {
        part.task.name: int(max(features.labels.lengths)) for part, features in zip(data.training_sets, data.features)
    }
    for eval_set in data.scored:
        name = eval_set.task.name
        answer_lengths[name] = max(answer_lengths.get(name, 1), eval_set.max_target_tokens)
    tasks = [part.task for part in data.training_sets] + [eval_set.task for eval_set in data.scored]
    settings = {TOKENIZER_KEY: describe_tokenizer(tokenizer)}
    separator = getattr(model.config, SEPARATOR, None)  # an adapter's folder has no configuration to keep it
    if separator is not None:
        settings[SEPARATOR] = separator
    if data.languages is not None:
        settings["languages"] = {name: value for name, value in data.languages._asdict().items() if value is not None}
    labels_of_sets = {
        part.task.name: part.labels_of_sets for part in data.training_sets if has_label_sets(part.task.entry)
    }
    if labels_of_sets:
        settings[LABELS_OF_SETS] = labels_of_sets
    evaluated_sets = [*data.scored, *data.selecting]
    scored_by_labels = dict.fromkeys(part.task.name for part in evaluated_sets if part.method == "score")
    return make_task_card(
        tasks,
        lengths,
        answer_lengths,
        recognize_family(model).name,
        scored_by_labels=scored_by_labels,
        made_by_flags=data.made_by_flags,
        **settings,
    )


def task_card_by_flags(plan: Plan, arguments, encoding, model) -> TaskCard:
    """What the flags say of the tasks of a model that has seen no rows yet: how it is asked, as it would be scored.

    Args:
      encoding: how the model's family reads and writes.
    """
    tasks = plan.tasks
    method = arguments.evaluation.eval_method
    methods = {task.name: method_for(encoding, method, task, is_single_task=False) for task in tasks}
    label_lengths = {}
    for task in tasks:
        if methods[task.name] == "classify":
            label_lengths[task.name] = 1
        elif has_fixed_answers(task):
            label_lengths[task.name] = longest_label(task, encoding.for_task(task))
    return make_task_card(
        tasks,
        lengths_of(arguments.data),
        label_lengths,
        recognize_family(model).name,
        scored_by_labels=[name for name, method in methods.items() if method == "score"],
        made_by_flags=bool(plan.sources),
        **{TOKENIZER_KEY: describe_tokenizer(encoding.tokenizer)},
    )
