"""Argument dataclasses -> the plain parameters of the steps; what the entry script and `FineTuner` share.

>>> tokenizer, model = tokenizer_and_model(ModelArguments(model_name_or_path="t5-small"))
"""

import logging
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from t5suite.base.errors import ChangedDataError, ConfigError
from t5suite.constants import DATASET_VALS
from t5suite.data.batches.training_data import Mixing, Subset
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.rows.files import check_benchmark_file
from t5suite.data.rows.sources import DataOptions
from t5suite.data.rows.subsets import selection_share
from t5suite.models.adapters import is_adapter
from t5suite.models.added_tokens import add_words, begin_at_mean, parse_tokens
from t5suite.models.families import family_of_model
from t5suite.models.family_encodings import SEPARATOR, encoding_for
from t5suite.models.freezing import freeze
from t5suite.models.loading import load_model, load_model_shapes, load_tokenizer
from t5suite.models.placement import check_alone, place_model
from t5suite.models.quantization import quantization_of
from t5suite.models.vocabulary import add_sentinels, add_tokens, ensure_padding
from t5suite.runs.settings import allowed_names
from t5suite.tasks.registry import Lengths
from t5suite.tasks.targets import unescaped
from t5suite.tasks.task_card import TaskCard, make_task_card, read_task_card
from t5suite.training.checks import warn_of_idle_family_flags
from t5suite.training.fine_tuning import (
    Data,
    Plan,
    load_data,
    make_trainer,
    plan_tasks,
)
from t5suite.training.flags.plug_ins import metric_functions, module_settings, plug_ins_of
from t5suite.training.monitoring.throughput import peak_flops
from t5suite.training.own_plans import own_plan, settle_no_eval
from t5suite.training.plug_ins import NO_PLUG_INS, PlugIns, add_metrics
from t5suite.training.pre_training import control_ids, make_collator
from t5suite.training.pre_training_data import Examples, block_data, pair_data, stream_data, tokenized_text
from t5suite.training.pre_training_evaluation import EVALUATION_SEED
from t5suite.training.resuming.resets import Start, choose_start

logger = logging.getLogger(__name__)


def tokenizer_and_model(
    model_args, mode_tokens=(), sentence_pairs: bool = False, without_weights: bool = False, tasks=(), tokenizer=None
):
    """`(tokenizer, model)` of the model flags, the model in float32.

    Args:
      tasks: what the model is fine-tuned for; a masked model gets a head for their labels.
      mode_tokens: tokens that an objective needs and the tokenizer may lack (`vocabulary.MODE_TOKENS` for UL2).
      sentence_pairs: give a masked model a head for pairs of sentences.
      without_weights: make a new model's shapes alone (on the meta device), which a dry run needs.
      tokenizer: one that is there already.
    """
    tokenizer = tokenizer or load_tokenizer(
        model_args.tokenizer_name or model_args.model_name_or_path,
        model_args.model_revision,
        model_args.trust_remote_code,
        flag="--tokenizer_name" if model_args.tokenizer_name else "--model_name_or_path",
    )
    if model_args.allow_missing_keys and not (model_args.init_checkpoint or model_args.model_name_or_path):
        logger.warning("--allow_missing_keys has no effect: no weights are loaded")
    added = 0 if model_args.num_sentinels is None else add_sentinels(tokenizer, model_args.num_sentinels)
    added += add_tokens(tokenizer, mode_tokens)
    words = add_words(tokenizer, parse_tokens(model_args.add_tokens))
    if tasks:
        ensure_padding(tokenizer)
    quantization = quantization_of(model_args.load_in_8bit, model_args.load_in_4bit)
    load = load_model_shapes if without_weights else load_model
    model = load(
        model_args.model_name_or_path,
        tokenizer=tokenizer,
        config_name=model_args.config_name,
        from_scratch=model_args.from_scratch,
        config_overrides=model_args.config_overrides,
        dropout_rate=model_args.dropout_rate,
        family=model_args.model_family,
        sentence_pairs=sentence_pairs,
        tasks=tasks,
        num_new_tokens=added + len(words),
        init_checkpoint=model_args.init_checkpoint,
        allow_missing_keys=model_args.allow_missing_keys,
        attn_implementation=model_args.attn_implementation,
        adapter_base=model_args.adapter_base,
        **({"quantization": quantization} if quantization and not without_weights else {}),
        revision=model_args.model_revision,
        trust_remote_code=model_args.trust_remote_code,
        model_class=model_args.model_class,
        model_class_args=module_settings(model_args),
    )
    if model_args.model_name_or_path and not (model_args.from_scratch or model_args.config_name):
        begin_at_mean(model, words)
    freeze(model, model_args.freeze, model_args.freeze_regex, model_args.unfreeze_regex)
    return tokenizer, model


def trained_as(model_args, folder):
    """The model flags for what lies in `folder`, whatever weights and configuration the run began with."""
    begun = {"config_name": None, "from_scratch": False, "config_overrides": None, "init_checkpoint": None}
    return replace(model_args, model_name_or_path=str(folder), allow_missing_keys=False, **begun)


def place_by_flags(model, model_args, args, trains: bool) -> None:
    """Puts the model where `--device_map` and `--embedding_on_cpu` say; else the trainer does, on one device.

    Raises:
      ConfigError: several processes, or DeepSpeed or FSDP, which place it themselves; or it cannot be done.
    """
    if model_args.device_map is None and not model_args.embedding_on_cpu:
        return
    flag = "--embedding_on_cpu" if model_args.embedding_on_cpu else f"--device_map {model_args.device_map}"
    asked = {"DeepSpeed": args.deepspeed, "FSDP": args.fsdp}
    launched = {name: os.environ.get(f"ACCELERATE_USE_{name.upper()}", "").lower() == "true" for name in asked}
    check_alone(flag, args.world_size, next((name for name in asked if asked[name] or launched[name]), None))
    place_model(
        model,
        device_map=model_args.device_map,
        max_memory=model_args.max_memory,
        embedding_on_cpu=model_args.embedding_on_cpu,
        device=args.device,
        trains=trains,
        folder=args.output_dir,
    )


def encoding_by_flags(model, tokenizer, data_args, changed: dict | None = None, folder: str | None = None):
    """How the model's family reads rows and writes answers; warns of flags that its family does not heed.

    Args:
      folder: where the model is from: an adapter's separator stands in its `task.json`, not in its base.
    """
    separator = unescaped(data_args.answer_separator)
    if separator is None and is_adapter(folder):
        card = read_task_card(folder)
        setattr(model.config, SEPARATOR, card.settings.get(SEPARATOR) if card else None)
    encoding = encoding_for(model, tokenizer, lengths_of(data_args), separator)
    warn_of_idle_family_flags(changed or {}, encoding)
    return encoding


def plan_for(arguments, rows=None, own_metrics: bool = False) -> Plan:
    """The tasks that the flags name, or make of rows of one's own.

    Args:
      rows: those that are in memory, by split.
      own_metrics: there are metrics of the user's own beside those that `--metrics` names.
    """
    data_args = arguments.data
    settle_no_eval(arguments)
    if arguments.formats.is_given:
        return arguments.instruction.applied(own_plan(arguments, rows, own_metrics), arguments.training.seed)
    take_known_tasks(data_args, arguments.model.model_name_or_path)
    for flag in ("train_file", "validation_file", "test_file"):
        if getattr(data_args, flag):
            check_benchmark_file(getattr(data_args, flag), f"--{flag}")
    plan = plan_tasks(
        data_args.benchmark,
        data_args.dataset_name,
        data_args.task_file,
        arguments.training.selection_metric,
        own_metrics or bool(metric_functions(arguments.formats.metrics)),
    )
    return arguments.instruction.applied(plan, arguments.training.seed)


def take_known_tasks(data_args, model_name: str | None) -> None:
    """Where no flag names a task, the tasks that a saved model was trained on take the default's place.

    Raises:
      ConfigError: they were rows of the user's own, which nothing names here.
    """
    given = getattr(data_args, "flags_given", frozenset())
    if model_name is None or given & {"benchmark", "dataset_name", "task_file"}:
        return
    card = read_task_card(model_name)
    tasks = list(card.tasks.values()) if card else []
    if not tasks:
        return
    names = [task.name for task in tasks]
    if any(task.name not in DATASET_VALS.get(task.benchmark, {}) for task in tasks):
        raise ConfigError(
            f"--model_name_or_path {model_name} was trained on {tasks[0].benchmark}/{','.join(names)}, whose rows no "
            "flag names; give them (--data_format ..., or --task_file), or another task (--benchmark, --dataset_name)"
        )
    data_args.benchmark, data_args.dataset_name = tasks[0].benchmark, ",".join(names)
    logger.info("%s was trained on %s/%s, which is the task here", model_name, tasks[0].benchmark, ",".join(names))


def plug_ins_by_flags(arguments) -> PlugIns:
    """The functions and callbacks of the user's own."""
    return plug_ins_of(arguments.plug_ins, arguments.formats.metrics, arguments.model.model_class)


def data_for(plan: Plan, tokenizer, arguments, trains: bool, encoding=None, plug_ins: PlugIns = NO_PLUG_INS) -> Data:
    """Every split that the flags ask for, tokenized as `encoding` does, with its metrics bound."""
    data_args, eval_args, args = arguments.data, arguments.evaluation, arguments.training
    data = load_data(
        plan,
        DataOptions(
            data_args.data_dir,
            data_args.train_file,
            data_args.validation_file,
            data_args.test_file,
            data_args.data_revision,
            plan.sources,
            tokenizer,
            token_cache=data_args.token_cache,
        ),
        tokenizer,
        lengths_of(data_args),
        trains=trains,
        evaluates=not eval_args.predict_only and (not trains or args.eval_strategy.value != "no"),
        predicts=eval_args.predict_only or args.do_predict,
        subset=Subset(
            data_args.max_train_samples,
            data_args.train_fraction,
            data_args.few_shot,
            selection_share(data_args.selection_split),
        ),
        method=eval_args.eval_method,
        max_eval_samples=data_args.max_eval_samples,
        max_predict_samples=data_args.max_predict_samples,
        allow_missing=data_args.allow_missing_tasks,
        seed=args.seed,
        encoding=encoding,
    )
    if plug_ins.metrics:
        add_metrics(data, plug_ins.metrics, args.selection_metric)
    return data


def trainer_for(model, tokenizer, data: Data, arguments, selects: bool = True, plug_ins: PlugIns = NO_PLUG_INS):
    """`(trainer, {task: mixing rate})`; without `selects`, one that no early stopping ends."""
    patience = arguments.evaluation.early_stopping_patience if selects else None
    trainer, rates = make_trainer(
        model, tokenizer, arguments.training, data, mixing_of(arguments), patience, plug_ins, arguments.data.rows
    )
    trainer.task_card = task_card_of(data, lengths_of(arguments.data), model)
    trainer.monitor.peak = peak_flops(arguments.training.device, arguments.training.peak_tflops)
    return trainer, rates


def task_card_of(data: Data, lengths: Lengths, model) -> TaskCard:
    """What a saved model says of its tasks: how their texts are made, and how long their answers may be."""
    answers = {part.task.name: int(max(f.labels.lengths)) for part, f in zip(data.training_sets, data.features)}
    for eval_set in data.scored:
        name = eval_set.task.name
        answers[name] = max(answers.get(name, 1), eval_set.max_target_tokens)
    tasks = [part.task for part in data.training_sets] + [eval_set.task for eval_set in data.scored]
    separator = getattr(model.config, SEPARATOR, None)  # an adapter's folder has no configuration to keep it
    settings = {} if separator is None else {SEPARATOR: separator}
    return make_task_card(tasks, lengths, answers, family_of_model(model), **settings)


def start_of(run, resume: str, args, ranks) -> Start:
    """Which checkpoint the run goes on from, by its flags; the same on every rank."""
    return ranks.together(
        choose_start,
        args.output_dir,
        resume,
        args.reset,
        run_id=run.run_id,
        fingerprint=run.manifest["fingerprint"],
        trust=args.trust_checkpoint,
    )


def lengths_of(data_args) -> Lengths:
    """The longest sequences kept."""
    return Lengths(data_args.max_source_length, data_args.max_target_length)


def mixing_of(arguments) -> Mixing:
    """How often a mixture's tasks are drawn."""
    data_args, proportions = arguments.data, arguments.formats.data_sampling_proportion
    return Mixing(
        data_args.mixing, data_args.mixing_limit, data_args.mixing_temperature, proportions and tuple(proportions)
    )


def pre_training_collators(objective_args, tokenizer, model, seed: int):
    """`(for training, for evaluation)`: the latter's noise is the same in every run, and its rows are not packed."""
    settings = asdict(objective_args)
    for name in ("document_separator", "sentence_language", "mode_tokens"):
        del settings[name]
    if objective_args.modes:
        ids = tokenizer.convert_tokens_to_ids(list(objective_args.modes))
        settings["mode_token_ids"] = dict(zip("RSX", ids, strict=True))
    unpacked = {**settings, "pack": None, "row_inputs_length": None, "row_targets_length": None}
    return (
        make_collator(tokenizer=tokenizer, model=model, seed=seed, **settings),
        make_collator(tokenizer=tokenizer, model=model, seed=EVALUATION_SEED, **unpacked),
    )


def _tokenized_anew_if_allowed(args, tokenizer, folder: Path, options, **settings):
    """`tokenized_text`; the run's own corpus is built again where its text has changed and may.

    Raises:
      ConfigError: the text has changed since the run began.
    """
    try:
        return tokenized_text(tokenizer, folder, options, **settings)
    except ChangedDataError as error:
        if "data" not in allowed_names(args.allow_changed):
            raise ConfigError(
                f"the data of this run have changed: {error}; or build its corpus anew: --allow_changed data"
            ) from None
        logger.warning("%s; --allow_changed data: it is built anew", error)
    shutil.rmtree(folder)
    return tokenized_text(tokenizer, folder, options, **settings)


def pre_training_data(arguments, tokenizer, train_collator, eval_collator) -> tuple[dict, Examples, object]:
    """`(what the manifest says of the text, examples, stream)` of the text flags; the stream is None for files.

    The main process tokenizes first; the others find its work done.
    """
    _, text_args, objective_args, run_args, args = arguments
    options = TextOptions(text_args.text_column_name, text_args.text_unit, text_args.bad_lines)
    shared = {
        "validation_files": text_args.validation_file or (),
        "validation_fraction": text_args.validation_fraction,
        "document_separator": objective_args.separator,
        "tokenizer_engine": text_args.tokenizer_engine,
    }
    scored = {"control_ids": control_ids(tokenizer), "max_eval_samples": text_args.max_eval_samples}
    folder, weights = Path(args.output_dir) / "corpus", text_args.corpus_weights
    with args.main_process_first(local=False, desc="tokenizing"):
        if text_args.streaming:
            return stream_data(
                tokenizer,
                folder,
                options,
                train_collator,
                eval_collator,
                args,
                inputs=[[name] for name in text_args.train_file] if weights else [text_args.train_file],
                weights=weights,
                num_virtual_streams=text_args.num_virtual_streams,
                buffer_size=text_args.shuffle_buffer_size,
                trains=not run_args.eval_only,
                **shared,
                **scored,
            )
        text = _tokenized_anew_if_allowed(
            args,
            tokenizer,
            folder,
            options,
            train_files=text_args.train_file or (),
            corpora=text_args.train_corpus or (),
            apart=weights is not None,
            split_sentences=objective_args.sentence_language if objective_args.sentence_pairs else None,
            trains=not run_args.eval_only,
            **shared,
        )
    if objective_args.sentence_pairs:
        examples = pair_data(text, train_collator, seed=args.seed, **scored)
    else:
        examples = block_data(text, train_collator, seed=args.seed, weights=weights, **scored)
    return {**text.described, "examples": examples.counts()}, examples, None
