"""The steps that fine-tuning and pre-training share, each as a function of plain values.

    >>> is_main = prepare_process(args)
    >>> run.update(training=train(trainer, folder))

`fine_tuning` and `pre_training` have those that are theirs alone.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import sys
from pathlib import Path

import torch
from transformers import TrainerState, set_seed
from transformers.utils import logging as transformers_logging

from t5suite.base.errors import CheckpointError, ConfigError, DataError, Preempted
from t5suite.base.redaction import RedactingFormatter
from t5suite.data.corpora.store import MANIFEST as CORPUS
from t5suite.models.own_models import OwnModel, class_name
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, Run
from t5suite.runs.lock import LOCK_FILE, RunLock
from t5suite.training.checkpoints import STATE_FILE, clean_leftovers
from t5suite.training.monitoring.chatter import hush
from t5suite.training.monitoring.energy import metered
from t5suite.training.monitoring.progress import settle_bars
from t5suite.training.plug_ins import NO_PLUG_INS, PlugIns
from t5suite.training.processes.lost_ranks import watching_ranks
from t5suite.training.processes.ranks import RankLog, Ranks, attached, logging_to
from t5suite.training.processes.signals import stop_requests

logger = logging.getLogger(__name__)

REFUSALS = (ConfigError, DataError, CheckpointError)
# What another start could use: steps, scores, and text that is tokenized.
WORTH_KEEPING = (METRICS, "checkpoint-*", RESULTS, f"**/{CORPUS}")


def start_logging(is_main: bool, disable_tqdm: bool = False, verbose: bool = False, rank: int = 0) -> None:
    """Our log lines on standard error, and every rank's for its own file; other ranks and the libraries speak up for
    warnings only, and of those not for the ones that `chatter` has a reason to leave out.

    Args:
      verbose: the libraries' own logs, progress bars and all of their warnings, too (`--verbose`).
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.NOTSET if is_main else logging.ERROR)
    root = logging.getLogger("t5suite")
    known = attached()
    if known is not None:
        known.detach()
    root.handlers, root.propagate = [handler], False
    root.setLevel(logging.INFO)
    RankLog(rank).attach()
    hush(verbose)
    loud = is_main and verbose
    transformers_logging.set_verbosity(logging.INFO if loud else logging.WARNING if is_main else logging.ERROR)
    if verbose:
        transformers_logging.enable_progress_bar()
    else:
        transformers_logging.disable_progress_bar()
    if disable_tqdm or not is_main:
        import datasets

        datasets.disable_progress_bars()


def prepare_process(args, device_map: str | None = None) -> bool:
    """Logging, random numbers and the device of this process; returns whether it is the main one.

    Raises:
      ConfigError: a launcher started several processes, but they do not know of each other.
    """
    is_main = args.process_index == 0
    settle_bars(args)
    start_logging(is_main, bool(args.disable_tqdm), args.verbose, args.process_index)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != args.world_size:
        raise ConfigError(
            f"{launched} processes were launched (WORLD_SIZE), but this one finds {args.world_size}: they would be so "
            "many runs in one directory. Check the devices that the launcher gives them (--use_cpu without any)"
        )
    if args.halving_asked_for:
        logger.warning("--auto_find_batch_size has no effect: a micro-batch that does not fit is halved without it")
    seed_everything(args.seed)
    if not args.cudnn_attention:
        leave_out_cudnn_attention(args.device)
    elif args.device.type != "cuda":
        logger.warning("--cudnn_attention has no effect: cuDNN is a GPU's")
    if device_map is None:
        one_device_a_process(args)
    return is_main


def leave_out_cudnn_attention(device) -> None:
    """Keeps `scaled_dot_product_attention` from cuDNN's kernel on a GPU, for the whole process.

    torch takes it first on Hopper for masks without a gradient, T5's cross-attention and evaluation among them: its
    gradients are nan for some masks where lengths leave a rest of 64 by 128 (pytorch issue 196678, torch 2.11), and it
    plans for a second at every new shape. The memory-efficient kernel serves masks of all kinds.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def seed_everything(seed: int) -> None:
    """Python's, NumPy's and torch's random numbers; weights and dropout follow from them."""
    set_seed(seed)


def all_settings(*arguments, plug_ins: PlugIns = NO_PLUG_INS) -> dict:
    """Every flag of the argument dataclasses by name, as the user gave it, and the files of what is the user's own."""
    settings = {
        spec.name: getattr(part, spec.name)
        for part in arguments
        for spec in dataclasses.fields(part)
        if spec.init and not spec.name.startswith("_")
    }
    training = arguments[-1]
    settings["update_size"] = update_size(training)
    if plug_ins.described:
        settings["plug_ins"] = plug_ins.described
    return {**settings, "report_to": training.trackers, "metric_for_best_model": training.selection_metric}


def check_precision(fp16: bool, model_type: str) -> None:
    """T5's activations overflow fp16: checkpoints trained in bfloat16 reach 65504 within a few layers."""
    if fp16 and model_type in ("t5", "mt5", "umt5", "longt5"):
        logger.warning(
            "--fp16 with T5 overflows: losses become nan and the weights are lost. Use --bf16 (same speed, float32's "
            "range). The run stops at the first steps in a row whose loss is no number"
        )


def update_size(args) -> int:
    """Examples that one update takes, over micro-batches and ranks."""
    return args.train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size)


def one_device_a_process(args) -> None:
    """Several GPUs need several processes: `DataParallel`, the trainer's other way, scales the loss by their number."""
    if args.n_gpu > 1:
        logger.warning("one of %d GPUs is used; start with torchrun or accelerate launch to use them all", args.n_gpu)
        args._n_gpu = 1


@contextlib.contextmanager
def owned(run: Run, ranks: Ranks):
    """While this run, and no other process, writes into its directory; how it ended is noted there.

    Should a rank die meanwhile, the others do not wait for it for ever. A new run that is refused leaves nothing.

    Raises:
      ConfigError: another process does.
    """
    lock = RunLock(run.directory)
    made = [folder for folder in (run.directory, *run.directory.parents) if not folder.exists()]
    try:
        ranks.together(_take, lock, run)
        with logging_to(run.directory, ranks.rank), watching_ranks(ranks, stop_requests()):
            yield run
    except BaseException as error:
        if ranks.is_main and not lock.held:
            raise
        if isinstance(error, REFUSALS) and ranks.world_size == 1 and _came_to_nothing(run):
            _remove(run.directory, made)
            raise
        stopped = isinstance(error, Preempted) or stop_requests().explains(error)
        status = "preempted" if stopped else "failed"
        # What comes after the end, such as an upload, does not undo it.
        with contextlib.suppress(OSError):
            if run.manifest.get("status") != "finished":
                run.update(status=status, ended=f"{type(error).__name__}: {error}"[:1000])
        raise
    finally:
        lock.release()


def _came_to_nothing(run: Run) -> bool:
    return not run.resumed and not any(next(run.directory.glob(kind), None) for kind in WORTH_KEEPING)


def _remove(directory: Path, made: list[Path]) -> None:
    """Empties a directory of what a run has written, and removes it where the run `made` it, with those above it.

    Several ranks write there, and none knows when the last of the others has ended: then it stays.
    """
    with contextlib.suppress(OSError):  # the refusal is what counts; a folder above may be somebody else's, too
        for path in [*directory.iterdir()] * 2:  # a thread of a corpus's build may be writing its last file
            if directory in made or path.name == LOCK_FILE or not path.name.startswith("."):  # or it was there before
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for folder in made:
            folder.rmdir()


def _take(lock: RunLock, run: Run) -> None:
    lock.acquire(run.run_id)
    if not run.resumed and (run.directory / MANIFEST).exists():
        lock.release()
        raise ConfigError(f"--output_dir {run.directory}: another process has made a run there in the meantime")
    clean_leftovers(run.directory)
    if not run.resumed:
        run.update()  # before anything else is written: a directory without a manifest would belong to no run
    run.keep_code()


def train(trainer, resume_from=None) -> dict:
    """Trains (or goes on from a checkpoint) and returns the trainer's own numbers."""
    if resume_from is not None:
        logger.info("going on from %s", resume_from)
    begun = TrainerState.load_from_json(str(Path(resume_from) / STATE_FILE)).global_step if resume_from else 0
    with metered(trainer.is_world_process_zero()) as meter:
        output = trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
    found = {"steps": output.global_step, "loss": output.metrics["train_loss"], **output.metrics}
    return {**found, **({"from_step": begun} if begun else {}), "energy": meter.described()}


def model_title(model, name: str | None, from_scratch: bool = False) -> str:
    """What tables and cards call the model.

    >>> model_title(model, "google/t5-v1_1-small")
    't5-v1_1-small'
    """
    if name and not from_scratch:
        return Path(name).name
    count = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())  # ZeRO-3's
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}K"
    kind = class_name(model) if isinstance(model, OwnModel) else model.config.model_type
    return f"{kind} from scratch ({size} parameters)"
