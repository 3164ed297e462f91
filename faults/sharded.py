"""Sharded checkpoints, written by two ranks: killed while they save (C1), damaged afterwards (C3).

    >>> killed_in_saves(context)
    {'FSDP2, before the rename': None, 'ZeRO-2, parts written': None, ...}

FSDP's and DeepSpeed's checkpoints take the same way as all others: a folder of another name, a barrier, a manifest, one
rename by rank 0. DeepSpeed compiles what its ranks on a CPU talk through, once a machine: without it or a compiler its
cases are left out, and the check says so.
"""

import contextlib
import importlib.util
import shutil
import signal
from functools import partial
from pathlib import Path

from faults import patches
from faults.leftovers import history_difference, results_difference
from faults.saves import POINTS, SAVED, SHARDED_POINTS, SHORT, all_verify, flip, kill_at_point, remains

SCRIPT, RANKS = "fine_tune_t5", 2
ENVIRONMENT = {"DS_ACCELERATOR": "cpu"}
SHARDINGS = {"FSDP2": {"fsdp": True}, "ZeRO-2": {"deepspeed": "zero2"}, "ZeRO-3": {"deepspeed": "zero3"}}
# Points of `saves.POINTS` -> where the run goes on; DeepSpeed alone writes parts with `torch.save`.
KILLS = {
    "FSDP2": ("weights half written", "renamed, not synced"),
    "ZeRO-2": ("parts written", "before the rename"),
    "ZeRO-3": ("parts written", "renamed, not synced"),
}
DAMAGED = {
    "FSDP2": "optimizer.pt",
    "ZeRO-2": "global_step4/*rank_1*optim_states.pt",
    "ZeRO-3": "global_step4/*rank_0*model_states.pt",
}
# The first build takes minutes.
SECONDS = 200.0


def missing() -> str:
    """What DeepSpeed's cases lack here; empty if nothing."""
    if importlib.util.find_spec("deepspeed") is None:
        return "DeepSpeed's cases need `pip install 't5suite[deepspeed]'`"
    return "" if shutil.which("g++") and shutil.which("ninja") else "DeepSpeed's cases need g++ and ninja"


def kinds(quick: bool) -> list[str]:
    """The ways of sharding that can be tried here."""
    return list(SHARDINGS)[: 1 if quick or missing() else None]


def killed_in_saves(context) -> dict[str, str | None]:
    """SIGKILL within a save; the same start goes on exactly."""
    found = {}
    for kind in kinds(context.quick):
        for point in KILLS[kind]:
            found[f"{kind}, {point}"] = _killed_then_exact(context, kind, point)
    return found


def damaged_newest(context) -> dict[str, str | None]:
    """A bit flipped in a rank's part of the newest checkpoint: set aside unread, and the one before gone on from."""
    return {f"{kind}, {DAMAGED[kind]} flipped": _falls_back(context, kind) for kind in kinds(context.quick)}


def _killed_then_exact(context, kind: str, point: str) -> str | None:
    killed = _run(context, kind, patch=partial(kill_at_point, point))
    if -signal.SIGKILL not in killed.codes:
        return f"was not killed there (exit {killed.codes}): {killed.tail()}"
    problem = all_verify(killed.directory, (POINTS | SHARDED_POINTS)[point].resumed_from)
    if problem:
        return f"after the kill: {problem}"
    resumed = _run(context, kind, directory=killed.directory)
    return _difference(context, kind, resumed) or remains(killed.directory)


def _falls_back(context, kind: str) -> str | None:
    killed = _run(context, kind, patch=partial(patches.kill_at_step, 5))
    found = sorted((killed.directory / SAVED).glob(DAMAGED[kind]))
    if not found:
        return f"{SAVED} has no {DAMAGED[kind]}: {killed.tail()}"
    flip(found[0])
    resumed = _run(context, kind, directory=killed.directory)
    if f"{found[0].name}" not in resumed.output or "checkpoint-2" not in resumed.output:
        return f"does not name {found[0].name} and checkpoint-2: {resumed.tail()}"
    if not (killed.directory / f"damaged-{SAVED}").is_dir():
        return "was not set aside"
    return _difference(context, kind, resumed)


def _flags(context, kind: str) -> list[str]:
    return context.flags(SCRIPT, **SHORT, per_device_train_batch_size=4, **SHARDINGS[kind])


def _run(context, kind: str, **settings):
    return context.run(
        SCRIPT, _flags(context, kind), ranks=RANKS, env=ENVIRONMENT, traced=False, timeout=SECONDS, **settings
    )


def _difference(context, kind: str, resumed) -> str | None:
    """What the run that went on left otherwise than one that nothing happened to; bytes, and every logged number."""
    if resumed.code:
        return f"exit {resumed.codes}: {resumed.tail()}"
    reference = context.shared / "references" / f"sharded-{kind}"
    if not Path(reference).is_dir():
        whole = _run(context, kind)
        assert whole.code == 0, f"exit {whole.codes}: {whole.tail()}"
        reference.parent.mkdir(exist_ok=True)
        # Two checks may make it at once; either will do, as long as it appears whole.
        with contextlib.suppress(OSError):
            whole.directory.rename(reference)
    return results_difference(resumed.directory, reference) or history_difference(resumed.directory, reference)
