"""The steps that are specific to a fine-tuning run: texts, data, trainer, scores.

    >>> encoding = encoding_by_flags(model, tokenizer, arguments.data)
    >>> data = data_for(plan, tokenizer, arguments, True, encoding)
    >>> trainer, rates = trainer_for(model, tokenizer, data, arguments)

`fine_tune_t5.py` calls them one after the other, between those of `run`; `t5suite.FineTuner` calls the same ones.
"""

import bisect
import copy
import itertools
import logging
from dataclasses import dataclass

import numpy as np
from tqdm.auto import tqdm
from transformers import EarlyStoppingCallback

from t5suite.base.errors import ConfigError
from t5suite.base.hub import set_patience
from t5suite.base.hub_commits import Request, hub_reads, is_repository, revision_of
from t5suite.base.libraries import Libraries
from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.data.batches.encodings import SegmentEncoding, TextEncoding
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.training_data import (
    Mixing,
    Schedule,
    Subset,
    TrainingSet,
    load_training_sets,
    make_epoch_order,
    tokenize_training_sets,
)
from t5suite.data.rows.sources import DataOptions
from t5suite.data.rows.subsets import selection_share
from t5suite.models.adapter_files import is_adapter
from t5suite.models.config_limits import check_length, check_resumes
from t5suite.models.families import encoding_for, recognize_family
from t5suite.models.families.causal import SEPARATOR
from t5suite.models.loading import describe_model
from t5suite.models.tokenizer_checks import KEY as TOKENIZER
from t5suite.models.tokenizer_checks import describe_tokenizer
from t5suite.models.weights import load_weights
from t5suite.runs.opening import hub_before
from t5suite.tasks.evaluate_metrics import evaluate_names, load_evaluate_metric
from t5suite.tasks.languages import Languages
from t5suite.tasks.registry import Task
from t5suite.tasks.task_card import TaskCard, make_task_card, read_task_card
from t5suite.tasks.templates import unescaped
from t5suite.tasks.tokenization import Lengths
from t5suite.training.best_per_task import BestPerTaskCallback
from t5suite.training.callback import call_on_final
from t5suite.training.checkpoints.selection import selected_a_checkpoint
from t5suite.training.distillation import distilled_loss, note_teacher
from t5suite.training.eval_sets import (
    EvalSet,
    Report,
    load_eval_sets,
    report_of,
    selection_eval_sets,
    widen_for_training_targets,
)
from t5suite.training.evaluation import Decoding, Evaluator, batch_tokens
from t5suite.training.flags.fields import warn_of_idle_flags as idle_flags
from t5suite.training.flags.fine_tuning import add_profile
from t5suite.training.flags.plug_ins import plug_ins_of
from t5suite.training.hub_reads import begin_hub_reads, data_requests, model_requests, settle_hub_reads
from t5suite.training.losses import SquaredLoss
from t5suite.training.monitoring.terminal import shows_bars
from t5suite.training.plans import Plan
from t5suite.training.plug_ins import (
    NO_PLUG_INS,
    PlugIns,
    add_metrics,
    add_plug_in_callbacks,
    try_evaluate_metrics,
    with_transform,
)
from t5suite.training.run import note_libraries, note_tokenizer, update_size
from t5suite.training.samples import SampleCallback
from t5suite.training.step_lines import MetricsCallback
from t5suite.training.trainer import SuiteTrainer

logger = logging.getLogger(__name__)


@dataclass
class Data:
    """What a run trains on and is scored on.

    Attributes:
      selecting: the sets that are evaluated during training; `eval_sets`, unless `--selection_split train[...]`.
      described: what the manifest says of every split.
      missing: members of a mixture that were skipped.
      languages: of the texts, for a model that has languages.
    """

    training_sets: list[TrainingSet]
    features: list[TokenArrays]
    eval_sets: list[EvalSet]
    test_sets: list[EvalSet]
    selecting: list[EvalSet]
    described: dict[str, dict]
    missing: list[str]
    languages: Languages | None = None

    @property
    def scored(self) -> list[EvalSet]:
        return [*self.eval_sets, *self.test_sets]


# ---------------------------------------------------------------------------------------------------------------------
# Commits of the hub


def begin_reads(arguments) -> None:
    """Notes revisions of the hub that flags name; looks up that of `--hub_path`, whose rows the plan already reads.

    A run that resumes in a named `--output_dir` reads the commit that it began with.
    """
    model_revision, data_revision = arguments.model.model_revision, arguments.data.data_revision
    set_patience(arguments.model.hub_timeout)
    begin_hub_reads(model_revision, data_revision)
    path = arguments.formats.hub_path
    if is_repository(path):
        args, before = arguments.training, {}
        if args.output_dir_given:
            before = hub_before(args.output_dir, arguments.evaluation.resume, args.overwrite_output_dir)
        settle_hub_reads([Request("dataset", path, revision_of(data_revision, path))], before)


def settle_reads(arguments, plan: Plan, trains: bool, earlier: dict | None = None) -> None:
    """Looks up the commits of all models and data sets of the hub that the run reads (`hub_reads`).

    Args:
      earlier: what a run that resumes has read.

    Raises:
      ConfigError: a flag gives a revision to a repository that the run does not read.
    """
    evaluation = arguments.evaluation
    reads = {
        "train": trains,
        "validation": not evaluation.predict_only,
        "test": evaluation.predict_only or arguments.training.do_predict,
    }
    roles = [role for role, is_read in reads.items() if is_read]
    requests = model_requests(arguments.model, arguments.distillation.teacher)
    settle_hub_reads([*requests, *data_requests(plan, arguments.data, roles)], earlier)


# ---------------------------------------------------------------------------------------------------------------------
# Data


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
        "answers": "only the loss is evaluated" if method == "loss" else "",
        "fast paths": "this evaluation does not use it" if paths.get(changed.get("reference_code")) else "",
        "Hugging Face's evaluation": "answers are written or scored, and evaluated by our own loop",
    }
    return idle_flags("fine_tune_t5", changed, lacking)


def plug_ins_by_flags(arguments) -> PlugIns:
    model = arguments.model
    return plug_ins_of(arguments.plug_ins, arguments.formats.metrics, model.model_class, model.trust_remote_code)


def lengths_of(data_args) -> Lengths:
    return Lengths(data_args.max_source_length, data_args.max_target_length)


def encoding_by_flags(model, tokenizer, data_args, changed: dict | None = None, folder: str | None = None):
    """How the model's family reads rows and writes answers; warns of flags that have no effect in the family.

    Args:
      folder: where the model is from; an adapter's separator is in its `task.json`, not in its base model.
    """
    separator, changed = unescaped(data_args.answer_separator), changed or {}
    if separator is None and is_adapter(folder):
        card = read_task_card(folder)
        setattr(model.config, SEPARATOR, card.settings.get(SEPARATOR) if card else None)
    languages = Languages(*(getattr(data_args, name) for name in Languages._fields))
    if folder is not None and (card := read_task_card(folder)):
        languages = languages.with_defaults(card.settings.get("languages") or {})
    encoding = encoding_for(model, tokenizer, lengths_of(data_args), separator, languages)
    heads = isinstance(encoding, SegmentEncoding)
    answer = "an encoder's head gives the answer" if heads else ""
    lacking = {
        "a choice of method": answer if changed.get("eval_method") != "loss" else "",
        "writing": answer,
        "written targets": "an encoder's head writes nothing" if heads else "",
        "a loss of tokens": "the head predicts a number" if heads and encoding.words is None else "",
        "a T5": "" if type(encoding) is TextEncoding else "only a T5 can be evaluated this way",
        "a shared row": "" if hasattr(encoding, "separator") else "prompt and answer do not share a row",
    }
    idle_flags("fine_tune_t5", changed, lacking)
    return encoding


def data_for(plan: Plan, tokenizer, arguments, trains: bool, encoding=None, plug_ins: PlugIns = NO_PLUG_INS) -> Data:
    """Loads, checks and tokenizes every split that the flags ask for, and binds its metrics.

    Args:
      encoding: how the model's family reads and writes (`models.families`); text to text by default.

    Raises:
      DataError, ConfigError: a split is missing, a row is wrong, a method does not fit.
    """
    data_args, eval_args, args = arguments.data, arguments.evaluation, arguments.training
    method, allow_missing, lengths = eval_args.eval_method, data_args.allow_missing_tasks, lengths_of(data_args)
    encoding = encoding or TextEncoding(tokenizer, lengths)
    options = DataOptions(
        data_args.data_dir,
        data_args.train_file,
        data_args.validation_file,
        data_args.test_file,
        data_args.data_revision,
        plan.sources,
        tokenizer,
    )
    for task in plan.evaluate:
        for name in evaluate_names(task.entry):
            load_evaluate_metric(name, arguments.model.trust_remote_code, f"{task.benchmark}/{task.name}: metric_names")
    share = selection_share(data_args.selection_split)
    training_sets, missing, features = [], [], []
    if trains:
        subset = Subset(data_args.max_train_samples, data_args.train_fraction, data_args.few_shot, share)
        training_sets, missing = load_training_sets(plan.train, options, subset, args.seed, allow_missing)
        features = tokenize_training_sets(training_sets, encoding, data_args.token_cache)
        for part, tokens in zip(training_sets, features, strict=True):
            note_cut_texts(part.task, tokens, part.task.lengths(lengths))
    described = {f"{part.task.name}.train": part.describe() for part in training_sets}
    kept = [task for task in plan.evaluate if task.name not in missing]
    evaluates = not eval_args.predict_only and (not trains or args.eval_strategy.value != "no")
    sets = {"validation": [], "test": []}
    for role, wanted, limit in (
        ("validation", evaluates, data_args.max_eval_samples),
        ("test", eval_args.predict_only or args.do_predict, data_args.max_predict_samples),
    ):
        tasks = [task for task in kept if role == "validation" or task.splits("test")] if wanted else []
        sets[role], found, left_out = load_eval_sets(
            tasks, role, options, encoding, method, limit, args.seed, allow_missing, plan.alone
        )
        described.update(found)
        missing = missing + left_out
    selecting = sets["validation"]
    if trains and share:
        selecting = selection_eval_sets(training_sets, encoding, method)
    widen_for_training_targets([*sets["validation"], *sets["test"], *selecting], training_sets, features)
    languages = getattr(encoding, "languages", None)
    data = Data(training_sets, features, sets["validation"], sets["test"], selecting, described, missing, languages)
    try_evaluate_metrics(data)
    if plug_ins.metrics:
        add_metrics(data, plug_ins.metrics, args.metric_for_best_model)
    return data


def note_cut_texts(task: Task, features: TokenArrays, lengths: Lengths) -> None:
    """Warns of truncated targets, which are wrong; most published systems truncate inputs, which is only noted."""
    for level, rows, flag, longest in (
        (logging.INFO, features.input_ids, "max_source_length", lengths.source),
        (logging.WARNING, features.labels, "max_target_length", lengths.target),
    ):
        count = int((rows.lengths >= longest).sum())
        if count:
            message = "%s/%s: %d of %d texts fill --%s %d (tokens); what is longer loses its end"
            logger.log(level, message, task.benchmark, task.name, count, len(rows), flag, longest)


# ---------------------------------------------------------------------------------------------------------------------
# Trainer


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
    data_args, proportions = arguments.data, arguments.formats.data_sampling_proportion
    mixing = Mixing(
        data_args.mixing, data_args.mixing_limit, data_args.mixing_temperature, proportions and tuple(proportions)
    )
    patience = arguments.evaluation.early_stopping_patience if selects else None
    loss = None
    if arguments.distillation.teacher is not None and data.features:
        tasks = [part.task for part in data.training_sets]
        loss = distilled_loss(model, tokenizer, arguments.distillation, arguments.training, tasks)
    trainer, rates = make_trainer(
        model, tokenizer, arguments.training, data, mixing, patience, plug_ins, loss, libraries
    )
    if loss is not None:
        loss.autocast = trainer.accelerator.autocast
    trainer.checkpoints.task_card = task_card_of(data, lengths_of(data_args), model, tokenizer)
    return trainer, rates


def make_trainer(
    model,
    tokenizer,
    args,
    data: Data,
    mixing: Mixing,
    patience: int | None = None,
    plug_ins: PlugIns = NO_PLUG_INS,
    loss=None,
    libraries: Libraries | None = None,
):
    """`(trainer, {task: mixing rate})`; without training data, a trainer that evaluates only.

    Args:
      loss: replaces the one that goes with the model (`trainer.SuiteTrainer`).
    """
    order, rates, features, eval_sets = None, {}, None, data.selecting
    names = [part.task.name for part in data.training_sets]
    if data.features:
        schedule = Schedule(args.num_train_epochs, update_size(args), args.max_steps, args.train_sampling_strategy)
        order, rates = make_epoch_order(data.features, names, mixing, schedule, args.seed)
        features = TokenArrays.concatenate(data.features)
    args = copy.copy(args)  # the trainer's own; the user's stays unchanged
    if not any(eval_set.selects and eval_set.labelled for eval_set in eval_sets):
        args.load_best_model_at_end = False
    if not eval_sets:
        args.eval_strategy = type(args.eval_strategy)("no")
    if patience is not None and not args.load_best_model_at_end:
        raise ConfigError(
            f"--early_stopping_patience {patience} has nothing to wait for; evaluate with --eval_strategy epoch (or "
            "steps, with --eval_steps) and leave --load_best_model_at_end on"
        )
    scored = any(eval_set.task.entry["metric_names"] for eval_set in eval_sets) or plug_ins.metrics
    by_loss = args.metric_for_best_model == "loss" or (args.metric_for_best_model is None and not scored)
    check_positions(model, data)
    if plug_ins.transforms_evaluation and recognize_family(model).answers_in_prompt_row:
        raise ConfigError("--transform_evaluation: prompts of decoder-only models are not collated for evaluation")
    collator = make_collator(model, args.fp16 or args.bf16)
    trained = with_transform(collator, plug_ins)
    if getattr(model.config, "problem_type", None) == "regression":
        loss = SquaredLoss()
    trainer = SuiteTrainer(
        model=model,
        args=args,
        train_dataset=features,
        epoch_order=order,
        collator=trained,
        eval_sets=eval_sets,
        selection_metric="loss" if by_loss else None,
        name_example=example_namer(names, data.features),
        loss=loss,
        processing_class=tokenizer,
        libraries=libraries,
    )
    evaluates = with_transform(collator, plug_ins) if plug_ins.transforms_evaluation else collator
    show_progress = trainer.is_world_process_zero() and shows_bars(args)
    trainer.evaluator = make_evaluator(
        evaluates, tokenizer, args, trainer.accelerator, show_progress, trainer.libraries.off
    )
    if plug_ins.batch_metrics:
        trainer.measure(plug_ins.batch_metrics)
    add_plug_in_callbacks(trainer, plug_ins.callbacks)
    if patience is not None:
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=patience))
    return trainer, rates


def check_positions(model, data: Data) -> None:
    """Refuses examples that are longer than the model has positions for, or that it cannot be trained exactly on.

    Raises:
      ConfigError: with the flag to change.
    """
    lengths = [int(features.input_ids.lengths.min()) for features in data.features if len(features)]
    if lengths:
        check_resumes(model.config, min(lengths))
    behind = recognize_family(model).answers_in_prompt_row
    sets = [(features, 0) for features in data.features]
    sets += [(eval_set.features, eval_set.max_target_tokens) for eval_set in [*data.scored, *data.selecting]]
    for features, answer in sets:
        if len(features):
            answers = np.maximum(features.labels.lengths, answer) if behind else 0
            check_length(model.config, int((features.input_ids.lengths + answers).max()), "--max_source_length")


def task_card_of(data: Data, lengths: Lengths, model, tokenizer) -> TaskCard:
    """What a saved model says of its tasks: how their texts are made, and how long their answers may be."""
    answers = {part.task.name: int(max(f.labels.lengths)) for part, f in zip(data.training_sets, data.features)}
    for eval_set in data.scored:
        name = eval_set.task.name
        answers[name] = max(answers.get(name, 1), eval_set.max_target_tokens)
    tasks = [part.task for part in data.training_sets] + [eval_set.task for eval_set in data.scored]
    separator = getattr(model.config, SEPARATOR, None)  # an adapter's folder has no configuration to keep it
    settings = {TOKENIZER: describe_tokenizer(tokenizer)}
    if separator is not None:
        settings[SEPARATOR] = separator
    if data.languages:
        settings["languages"] = {name: value for name, value in data.languages._asdict().items() if value is not None}
    return make_task_card(tasks, lengths, answers, recognize_family(model).name, **settings)


def make_collator(model, fp16_or_bf16: bool = False) -> Seq2SeqCollator:
    """The family's collator; under mixed precision lengths are multiples of 8, in which tensor cores work."""
    return recognize_family(model).make_collator(model.config, pad_to_multiple_of=8 if fp16_or_bf16 else 1)


def make_evaluator(
    collator, tokenizer, args, accelerator, show_progress: bool, off: frozenset[str] = frozenset()
) -> Evaluator:
    """An `Evaluator` from the flags of generated answers, batches and loss.

    Args:
      off: the fast paths that are off.
    """
    bars = (lambda turns, name: tqdm(turns, desc=f"evaluating {name}", leave=False)) if show_progress else None
    synced = accelerator.num_processes > 1 and accelerator.distributed_type.value in ("DEEPSPEED", "FSDP")
    decoding = Decoding(
        num_beams=args.generation_num_beams or 1,
        max_length=args.generation_max_length,
        synced=synced,
        reference=off,
        loss=args.eval_loss,
        batch_tokens=batch_tokens(args.eval_batch_tokens, accelerator.device) if args.evaluates_by_tokens else None,
    )
    return Evaluator(collator, tokenizer, decoding, args.per_device_eval_batch_size, accelerator, bars)


def example_namer(names: list[str], features: list[TokenArrays]):
    """Index into the tasks' concatenated examples -> the name of the example.

    >>> example_namer(["cola", "rte"], [cola_tokens, rte_tokens])(len(cola_tokens) + 7)
    'rte.train:7'
    """
    ends = list(itertools.accumulate(len(tokens) for tokens in features))

    def name(index: int) -> str:
        task = bisect.bisect_right(ends, index)
        return f"{names[task]}.train:{index - (ends[task - 1] if task else 0)}"

    return name


def note_in_manifest(run, plan: Plan, data: Data, rates: dict, trainer: SuiteTrainer, encoding: TextEncoding) -> None:
    """Writes to the manifest what the run is made of: tasks, rows, model, texts."""
    run.use_data(data.described)
    note_teacher(run, trainer.compute_loss_func)
    run.update(
        tasks={task.name: task.entry for task in plan.tasks},
        mixing_rates=rates,
        missing_tasks=data.missing,
        model=describe_model(trainer.model),
        encoding=encoding.described,
        trained_on=[plan.benchmark, plan.dataset_name],
        hub=hub_reads().described(),
    )
    note_tokenizer(run, trainer.processing_class)
    note_libraries(run, trainer.libraries)
    trainer.checkpoints.run_details = run.checkpoint_details


def add_callbacks(trainer: SuiteTrainer, directory, trackers, keep_task_weights: bool) -> BestPerTaskCallback:
    """Adds callbacks that write metrics to `metrics.jsonl` and trackers, and remember each task's best step.

    Raises:
      ConfigError: the weights of single tasks cannot be loaded into a sharded model.
    """
    if keep_task_weights and (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
        raise ConfigError("--select per_task reloads weights, which ZeRO and FSDP cannot; choose --select average")
    report_of = lambda: trainer.last_report
    best = BestPerTaskCallback(directory, report_of, trainer.save_best_of_task if keep_task_weights else None)
    trainer.add_callback(SampleCallback(directory, trainer.args.num_samples, trainer.eval_sets, report_of))
    trainer.add_callback(MetricsCallback(directory, trackers))
    add_profile(trainer, directory)
    trainer.add_callback(best)
    return best


# ---------------------------------------------------------------------------------------------------------------------
# Scores


def evaluate_finally(
    trainer: SuiteTrainer, data: Data, best: BestPerTaskCallback | None = None, trained: bool = False
) -> Report:
    """Scores everything with the weights as they are, or each task with those of its own best step (`best` kept them).

    Args:
      trained: the weights were trained in this run, and selected if `--load_best_model_at_end` is on.
    """
    selects = trained and trainer.args.load_best_model_at_end
    train_subsets = {part.task.name for part in data.training_sets if part.is_subset}
    for eval_set in data.scored:
        if selects and eval_set in data.selecting and eval_set.selects and eval_set.labelled:
            selected = is_selected(trainer, eval_set.task.name, best)
            eval_set.marks.append("chosen on these rows" if selected else "nothing selected")
        if eval_set.task.name in train_subsets:
            eval_set.marks.append("train subset")
    if best is not None and best.save_weights:
        report = evaluate_each_at_its_best(trainer, data.scored, best)
    else:
        report = trainer.score(data.scored)
    call_on_final(trainer, report, data.scored)
    return report


def is_selected(trainer: SuiteTrainer, task: str, best: BestPerTaskCallback | None) -> bool:
    """Whether an evaluation has chosen the weights with which a task is scored; a NaN chooses none."""
    if best is not None and best.save_weights and task in best.best:
        return True
    return selected_a_checkpoint(trainer.state)


def evaluate_each_at_its_best(trainer: SuiteTrainer, eval_sets: list[EvalSet], best: BestPerTaskCallback) -> Report:
    """`--select per_task`: every task's splits are scored with the weights of that task's own best step."""
    results = {}
    names = list(dict.fromkeys(eval_set.task.name for eval_set in eval_sets))
    final = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
    for name in names:
        of_task = [eval_set for eval_set in eval_sets if eval_set.task.name == name]
        if name in best.best:
            best.check_weights(name)
            load_weights(trainer.accelerator.unwrap_model(trainer.model), best.folder(name), "--select per_task")
            for eval_set in of_task:
                eval_set.marks.append(f"step {best.best[name]['step']}")
        else:
            trainer.model.load_state_dict(final)
        results.update(trainer.score(of_task).results)
    trainer.model.load_state_dict(final)
    return report_of(eval_sets, results)
