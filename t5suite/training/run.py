"""The steps that all runs share: fine-tuning and pre-training scripts, `FineTuner` and the sub-commands call them.

    >>> is_main = prepare_process(args)                                       # 2. seed and accelerator
    >>> with run_directory(args, settings, argv, resume) as run:              # 3. run directory
    ...     tokenizer, model = tokenizer_and_model(model_args)                # 4. tokenizer and model
    ...     place_model(model, model_args, args, trains=True)
    ...     ...                                                               # 5., 6. data, trainer
    ...     with trackers_of(run, args, settings) as trackers:
    ...         train(trainer, run, resume)                                   # 7. training

`fine_tuning` and `pre_training` have their own steps.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch
from transformers import TrainerState, set_seed
from transformers.utils import logging as transformers_logging

from t5suite.base.errors import CheckpointError, ConfigError, DataError, FullDiskError, Preempted, TemporaryError
from t5suite.base.libraries import Libraries, choose_libraries, require_proved
from t5suite.base.redaction import RedactingFormatter
from t5suite.data.corpora.store import MANIFEST as CORPUS
from t5suite.data.rows.sources import BUNDLED_BENCHMARK
from t5suite.models.added_tokens import add_words, parse_tokens, set_rows_to_mean
from t5suite.models.freezing import freeze
from t5suite.models.loading import describe_model, load_model, load_model_shapes, load_tokenizer
from t5suite.models.placement import check_alone
from t5suite.models.placement import place_model as place_model_on_devices
from t5suite.models.quantization import quantization_kind
from t5suite.models.tokenizer_checks import KEY as TOKENIZER
from t5suite.models.tokenizer_checks import describe_tokenizer, tokenizer_differences
from t5suite.models.vocabulary import add_sentinels, add_tokens, ensure_padding
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, Run
from t5suite.runs.lock import LOCK_FILE, RunLock
from t5suite.runs.opening import open_run
from t5suite.runs.settings import public_settings
from t5suite.tracking.trackers import CALLBACKS, Trackers, tracker_names
from t5suite.training.callback import Callback
from t5suite.training.checkpoints.folders import STATE_FILE, clean_leftovers
from t5suite.training.checkpoints.restarts import prepared_start
from t5suite.training.checkpoints.selection import check_best_is_there
from t5suite.training.checkpoints.starts import choose_start
from t5suite.training.flags.fine_tuning import identity_of
from t5suite.training.monitoring.library_noise import quiet_libraries
from t5suite.training.monitoring.terminal import AboveBars, shows_bars
from t5suite.training.plug_ins import NO_PLUG_INS, PlugIns
from t5suite.training.processes.lost_ranks import watching_ranks
from t5suite.training.processes.ranks import RankLog, Ranks, attached, logging_to
from t5suite.training.processes.signals import stop_requests

logger = logging.getLogger(__name__)

REFUSALS = (ConfigError, DataError, CheckpointError, FullDiskError, TemporaryError)
# What a later start could use: steps, scores, and tokenized text.
WORTH_KEEPING = (METRICS, "checkpoint-*", RESULTS, f"**/{CORPUS}")


# ---------------------------------------------------------------------------------------------------------------------
# 2. Process


def prepare_process(args, device_map: str | None = None) -> bool:
    """Logging, random numbers and the device of this process; returns whether it is the main one.

    Raises:
      ConfigError: a launcher started several processes, but they did not form one group.
    """
    is_main = args.process_index == 0
    args.disable_tqdm = not shows_bars(args)  # libraries and our own evaluation draw bars where progress does
    start_logging(is_main, bool(args.disable_tqdm), args.verbose, args.process_index)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != args.world_size:
        raise ConfigError(
            f"{launched} processes were launched (WORLD_SIZE), but this one finds {args.world_size}: they would be "
            "separate runs in one directory. Check the devices that the launcher gives them (--use_cpu without any)"
        )
    if args.auto_find_batch_size:
        logger.warning("--auto_find_batch_size has no effect: a micro-batch that does not fit is halved without it")
    set_seed(args.seed)
    if not args.cudnn_attention:
        leave_out_cudnn_attention(args.device)
    elif args.device.type != "cuda":
        logger.warning("--cudnn_attention has no effect: cuDNN needs a GPU")
    if device_map is None and args.n_gpu > 1:  # `DataParallel`, the trainer's way, scales the loss by their number
        logger.warning("one of %d GPUs is used; start with torchrun or accelerate launch to use them all", args.n_gpu)
        args._n_gpu = 1
    return is_main


def libraries_of(args) -> Libraries:
    """How the run uses the libraries: the same on all ranks. A collective call.

    Raises:
      ConfigError: a library's part that every run needs is not one that was tested.
    """
    chosen = choose_libraries(args.reference_code, args.allow_untested_libraries)
    require_proved("flag_parsing", "process_state", "model_loading", "training_loop")
    off_by_rank = Ranks.of_process().gather(chosen.off)
    return Libraries(frozenset().union(*off_by_rank))


def note_libraries(run: Run, libraries: Libraries) -> None:
    """Writes to the manifest which fast paths are off and what is used untested; warns if a resumed run has changed it.

    A fast path and its plain code agree up to rounding, so that such a run does not go on bit for bit.
    """
    before, now = run.manifest.get("libraries"), libraries.described
    if before is not None and before != now:
        logger.warning("the libraries are used in another way than before the restart: %s, now %s", before, now)
    run.update(libraries=now)


def start_logging(is_main: bool, disable_tqdm: bool = False, verbose: bool = False, rank: int = 0) -> None:
    """Writes our log lines to standard error (other ranks: errors only) and every rank's to its own file.

    Args:
      verbose: also show the libraries' own logs, progress bars and all of their warnings (`--verbose`).
    """
    handler = AboveBars(sys.stderr)
    handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.NOTSET if is_main else logging.ERROR)
    root = logging.getLogger("t5suite")
    known = attached()
    if known is not None:
        known.detach()
    root.handlers, root.propagate = [handler], False
    root.setLevel(logging.INFO)
    RankLog(rank).attach()
    quiet_libraries(verbose)
    loud = is_main and verbose
    transformers_logging.set_verbosity(logging.INFO if loud else logging.WARNING if is_main else logging.ERROR)
    if verbose:
        transformers_logging.enable_progress_bar()
    else:
        transformers_logging.disable_progress_bar()
    if disable_tqdm or not is_main:
        import datasets

        datasets.disable_progress_bars()


def leave_out_cudnn_attention(device) -> None:
    """Stops `scaled_dot_product_attention` from using cuDNN's kernel on a GPU, for the whole process.

    torch prefers it on Hopper for masks without a gradient: its gradients are NaN for some lengths (pytorch issue
    196678, torch 2.11), and planning takes it a second for every new shape.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


# ---------------------------------------------------------------------------------------------------------------------
# 3. Run directory


def all_settings(*arguments, plug_ins: PlugIns = NO_PLUG_INS) -> dict:
    """Every flag of the argument dataclasses by name, as the user gave it, and the user's plug-ins."""
    settings = {
        spec.name: getattr(part, spec.name)
        for part in arguments
        for spec in dataclasses.fields(part)
        if spec.init and not spec.name.startswith("_")
    }
    settings["update_size"] = update_size(arguments[-1])
    if plug_ins.described:
        settings["plug_ins"] = plug_ins.described
    return settings


def update_size(args) -> int:
    """Examples per update, over micro-batches and ranks."""
    return args.train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size)


@contextlib.contextmanager
def run_directory(args, settings: dict, argv, resume: str):
    """The run of `--output_dir`: a new one, or this same run from an earlier start; a finished one is only read.

    Raises:
      ConfigError: another run is there, or another process writes into it.
    """
    ranks = Ranks.of_process()
    run = ranks.together(
        open_run,
        args.output_dir,
        settings,
        argv,
        True,
        resume == "none",
        args.extend,
        args.allow_changed,
        args.overwrite_output_dir,
    )
    run.is_main = args.process_index == 0
    if run.finished:
        yield run
        return
    with owned(run, ranks):
        yield run


@contextlib.contextmanager
def owned(run: Run, ranks: Ranks):
    """Locks the run's directory against other processes, and notes in it how the run ended.

    A new run that is refused leaves no files.
    """
    lock = RunLock(run.directory)
    made = [folder for folder in (run.directory, *run.directory.parents) if not folder.exists()]

    def take() -> None:
        lock.acquire(run.run_id)
        if not run.resumed and (run.directory / MANIFEST).exists():
            lock.release()
            raise ConfigError(f"--output_dir {run.directory}: another process has started a run there in the meantime")
        clean_leftovers(run.directory)
        if not run.resumed:
            run.update()  # before anything else is written: a directory without a manifest would belong to no run
        run.keep_code()

    try:
        ranks.together(take)
        with logging_to(run.directory, ranks.rank), watching_ranks(ranks, stop_requests()):
            yield run
    except BaseException as error:
        if ranks.is_main and not lock.held:
            raise
        empty = not run.resumed and not any(next(run.directory.glob(kind), None) for kind in WORTH_KEEPING)
        if isinstance(error, REFUSALS) and ranks.world_size == 1 and empty:
            _remove(run.directory, made)
            raise
        stopped = isinstance(error, Preempted) or stop_requests().explains(error)
        status = "preempted" if stopped else "failed"
        # A failure after the end, in an upload say, does not change the status.
        with contextlib.suppress(OSError):
            if run.manifest.get("status") != "finished":
                run.update(status=status, ended=f"{type(error).__name__}: {error}"[:1000])
        raise
    finally:
        lock.release()


def _remove(directory: Path, made: list[Path]) -> None:
    """Deletes what a run has written into a directory, and the directory and its parents if the run `made` them."""
    with contextlib.suppress(OSError):  # the refusal matters more; another run may use a parent folder, too
        for path in [*directory.iterdir()] * 2:  # a thread of a corpus's build may be writing its last file
            if directory in made or path.name == LOCK_FILE or not path.name.startswith("."):  # or it was there before
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for folder in made:
            folder.rmdir()


# ---------------------------------------------------------------------------------------------------------------------
# 4. Tokenizer and model


def tokenizer_and_model(
    model_args, mode_tokens=(), sentence_pairs: bool = False, without_weights: bool = False, tasks=(), tokenizer=None
):
    """`(tokenizer, model)` of the model flags, the model in float32.

    Args:
      tasks: what the model is fine-tuned for; a masked model gets a head for their labels.
      mode_tokens: tokens that an objective needs and the tokenizer may lack (`vocabulary.MODE_TOKENS` for UL2).
      sentence_pairs: give a masked model a head for pairs of sentences.
      without_weights: make only a new model's shapes (on the meta device), which a dry run needs.
      tokenizer: one that is already loaded.
    """
    given = tokenizer is not None
    tokenizer = tokenizer or load_tokenizer(
        model_args.tokenizer_name or model_args.model_name_or_path,
        model_args.model_revision,
        model_args.trust_remote_code,
        flag="--tokenizer_name" if model_args.tokenizer_name else "--model_name_or_path",
    )
    if not without_weights:
        note_toys(model_args, tasks, 0 if given else len(tokenizer))
    if model_args.allow_missing_keys and not (model_args.init_checkpoint or model_args.model_name_or_path):
        logger.warning("--allow_missing_keys has no effect: no weights are loaded")
    added = 0 if model_args.num_sentinels is None else add_sentinels(tokenizer, model_args.num_sentinels)
    added += add_tokens(tokenizer, mode_tokens)
    words = add_words(tokenizer, parse_tokens(model_args.add_tokens))
    if tasks:
        ensure_padding(tokenizer)
    quantization = quantization_kind(model_args.load_in_8bit, model_args.load_in_4bit)
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
    )
    if model_args.model_name_or_path and not (model_args.from_scratch or model_args.config_name):
        set_rows_to_mean(model, words)
    freeze(model, model_args.freeze, model_args.freeze_regex, model_args.unfreeze_regex)
    return tokenizer, model


def note_toys(model_args, tasks, num_pieces: int) -> None:
    """Says that the bundled model or vocabulary is used because none was given; it is made to learn the bundled rows.

    It is a warning for other rows: no score of it is worth anything.

    Args:
      tasks: what the model is fine-tuned for; none in pre-training.
      num_pieces: of the tokenizer that the flags name; 0 if one was already loaded.
    """
    given, at_home = model_args.model_name_or_path, {task.benchmark for task in tasks} == {BUNDLED_BENCHMARK}
    if not (given or model_args.config_name or model_args.model_class or model_args.init_checkpoint):
        cure = "--model_name_or_path" if tasks else "--model_name_or_path or --config_name"
        level = logging.WARNING if tasks and not at_home else logging.INFO
        logger.log(level, "model: bundled toy T5 with random weights%s", "" if at_home else f" (give {cure})")
    if num_pieces and not (given or model_args.tokenizer_name or at_home):
        logger.info("vocabulary: the bundled toy's %d pieces (give --tokenizer_name)", num_pieces)


def note_tokenizer(run: Run, tokenizer) -> None:
    """Writes to the manifest what identifies the tokenizer.

    Raises:
      ConfigError: the run began with another one; says what differs.
    """
    description = run.manifest.get(TOKENIZER)
    lines = tokenizer_differences(description, tokenizer) if description else []
    if lines:
        raise ConfigError(
            f"--output_dir {run.directory}: this run began with another tokenizer: {'; '.join(lines)}. Restore it, or "
            "start another run with --output_dir"
        )
    run.update(**{TOKENIZER: describe_tokenizer(tokenizer)})


def trained_as(model_args, folder):
    """The model flags for the model in `folder`, whatever weights and configuration the run began with."""
    begun = {"config_name": None, "from_scratch": False, "config_overrides": None, "init_checkpoint": None}
    return replace(model_args, model_name_or_path=str(folder), allow_missing_keys=False, **begun)


def place_model(model, model_args, args, trains: bool) -> None:
    """Places the model as `--device_map` and `--embedding_on_cpu` say; without them the trainer places it.

    Raises:
      ConfigError: several processes, or DeepSpeed or FSDP, which place it themselves; or it cannot be done.
    """
    if args.fp16 and model.config.model_type in ("t5", "mt5", "umt5", "longt5"):
        # Checkpoints trained in bfloat16 reach 65504 within a few layers.
        logger.warning(
            "--fp16 with T5 overflows: losses become nan and the weights are lost. Use --bf16 (same speed, float32's "
            "range). The run stops at the first steps in a row whose loss is not finite"
        )
    logger.info("%(class)s, %(parameters)d parameters", describe_model(model))
    if model_args.device_map is None and not model_args.embedding_on_cpu:
        return
    flag = "--embedding_on_cpu" if model_args.embedding_on_cpu else f"--device_map {model_args.device_map}"
    asked = {"DeepSpeed": args.deepspeed, "FSDP": args.fsdp}
    launched = {name: os.environ.get(f"ACCELERATE_USE_{name.upper()}", "").lower() == "true" for name in asked}
    check_alone(flag, args.world_size, next((name for name in asked if asked[name] or launched[name]), None))
    place_model_on_devices(
        model,
        device_map=model_args.device_map,
        max_memory=model_args.max_memory,
        embedding_on_cpu=model_args.embedding_on_cpu,
        device=args.device,
        trains=trains,
        folder=args.output_dir,
    )


def model_title(model, name: str | None, from_scratch: bool = False) -> str:
    """The model's name in tables and cards.

    >>> model_title(model, "google/t5-v1_1-small")
    't5-v1_1-small'
    """
    if name and not from_scratch:
        return Path(name).name
    count = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())  # ZeRO-3's
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}K"
    return f"{model.config.model_type} from scratch ({size} parameters)"


# ---------------------------------------------------------------------------------------------------------------------
# 7. Training


def trackers_of(run: Run, args, settings: dict) -> Trackers:
    """The trackers that mirror `metrics.jsonl`, on the main process; keep them open until the results are written."""
    names = tracker_names(args.report_to) if run.is_main else []
    if not set(CALLBACKS).isdisjoint(names):
        require_proved("tracker_callbacks")
    return Trackers(names, run.directory, run.run_id, public_settings(settings), identity_of(args))


class TotalSteps(Callback):
    """Writes to the manifest after how many steps the run ends; sweeps read it."""

    def __init__(self, run: Run):
        self.run = run

    def on_train_begin(self, args, state, control, **kwargs):
        self.run.update(total_steps=state.max_steps)


def train(trainer, run: Run, resume: str, check_start=None) -> None:
    """Trains, or resumes from the checkpoint that `--resume` and `--reset` choose, and saves the model.

    Args:
      check_start: called with the `Start`, before anything is loaded.
    """
    args = trainer.args
    start = trainer.ranks.together(
        choose_start,
        args.output_dir,
        resume,
        args.reset,
        run_id=run.run_id,
        fingerprint=run.manifest["fingerprint"],
        trust=args.trust_checkpoint,
    )
    if args.load_best_model_at_end and start.of_this_run:
        trainer.ranks.together(check_best_is_there, start.checkpoint)
    if check_start is not None:
        check_start(start)
    trainer.add_callback(TotalSteps(run))
    with prepared_start(trainer, start, run) as folder:
        begun = 0
        if folder is not None:
            logger.info("resuming from %s", folder)
            begun = TrainerState.load_from_json(str(Path(folder) / STATE_FILE)).global_step
        output = trainer.train(resume_from_checkpoint=str(folder) if folder else None)
        found = {"steps": output.global_step, "loss": output.metrics["train_loss"], **output.metrics}
        run.update(training=found | ({"from_step": begun} if begun else {}))
    trainer.save_model(args.output_dir)
