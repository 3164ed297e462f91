"""C: checkpoints that are torn, damaged, or do not fit on the disk.

    >>> CHECKPOINTS["C3"].function(context)
    Outcome(passed=True, observed='25 of 25 detected, named, exact from the one before')

Kills hit a real save from within, at a point that is given by the function and the file; damage is done to real
checkpoints of a run that was killed; the full disk is a small tmpfs (where that may not be mounted, a limit on the size
of files). Whatever happened, the run is started again and compared with one that nothing happened to.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from faults import patches, sharded, traces
from faults.harness import Check, Context, Outcome, all_hold, difference, outcome
from faults.leftovers import changed_files, files, results_difference
from faults.saves import CONFIGURATIONS, DAMAGES, POINTS, SAVED, SHORT, all_verify, kill_at_point, remains, truncate

# ---------------------------------------------------------------------------------------------------------------------
# Kills inside a save


def c1_kill_in_save(context: Context) -> Outcome:
    """Every point in turn; the next start goes on by itself, exactly, from the newest whole checkpoint."""
    chosen = list(POINTS)[3::5] if context.quick else list(POINTS)
    found = {}
    for number, name in enumerate(chosen):
        script, changes = CONFIGURATIONS[number % len(CONFIGURATIONS)]
        limit = 1 if "rotation" in name else 10
        flags = context.flags(script, **SHORT, **changes, save_total_limit=limit)
        reference = context.reference(script, context.flags(script, **SHORT, **changes, save_total_limit=10))
        found[name] = _killed_then_exact(context, script, flags, name, reference)
    return all_hold(
        found | sharded.killed_in_saves(context), "go on, exact", "" if context.quick else sharded.missing()
    )


def _killed_then_exact(context, script, flags, name, reference) -> str | None:
    killed = context.run(script, flags, patch=partial(kill_at_point, name))
    if killed.codes != [-signal.SIGKILL]:
        return f"was not killed there (exit {killed.codes}): {killed.tail()}"
    problem = all_verify(killed.directory, POINTS[name].resumed_from)
    if problem:
        return f"after the kill: {problem}"
    resumed = context.run(script, flags, directory=killed.directory)
    if resumed.code:
        return f"exit {resumed.codes}: {resumed.tail()}"
    order = traces.read(killed.directory).order
    expected = [1, 2, 3, 4, *range(POINTS[name].resumed_from + 1, 7)]
    if order != expected:
        return f"did the steps {order}, not {expected}"
    return (
        difference(killed.directory, reference)
        or results_difference(killed.directory, reference)
        or remains(killed.directory)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Kills at random times


@dataclass
class Kills:
    """How many kills there are to be, were, and hit a save or a rotation; seconds of an unharmed run, by
    configuration."""

    wanted: int
    cold: int
    done: int = 0
    cold_done: int = 0
    in_save: int = 0
    seconds: dict[int, float] = field(default_factory=dict)


def c2_random_kills(context: Context) -> Outcome:
    """Runs that save and rotate after every step are killed at random times until they end, again and again."""
    kills = Kills(*((6, 0) if context.quick else (200, 10)))
    number, problem = 0, None
    while kills.done < kills.wanted and problem is None:
        configuration = 0 if context.quick else number % len(CONFIGURATIONS)
        script, changes = CONFIGURATIONS[configuration]
        flags = context.flags(script, **changes, save_steps=1, save_total_limit=2)
        started = time.monotonic()
        reference = context.reference(script, flags)
        seconds = kills.seconds.setdefault(configuration, time.monotonic() - started)
        problem = _killed_until_it_ends(context, script, flags, reference, kills, seconds)
        number += 1
    share = f"{kills.done} of {kills.wanted}" + (f", {kills.cold_done} cold" if kills.cold else "")
    observed = f"{share}; {kills.in_save} hit a save or a rotation; {number} runs exact"
    return outcome(problem is None, observed if problem is None else f"after {share}: {problem}")


def _killed_until_it_ends(context, script, flags, reference, kills: Kills, seconds: float) -> str | None:
    """One run under fire, killed within the seconds that it takes by itself; what went wrong."""
    directory, newest = context.folder("fire"), 0
    while True:
        code = _shoot(context, script, flags, directory, kills, seconds)
        if code == 0:
            break
        if code != -signal.SIGKILL:
            return f"exit {code}"
        kills.in_save += directory.exists() and remains(directory) is not None
        problem, newest = _still_there(directory, newest)
        if problem:
            return f"after a kill: {problem}"
    problem = difference(directory, reference) or results_difference(directory, reference) or remains(directory)
    shutil.rmtree(directory)
    return problem


def _shoot(context, script, flags, directory, kills: Kills, seconds: float) -> int:
    """One start of the run; the exit code."""
    fire = kills.done < kills.wanted
    cold = fire and kills.cold_done < kills.cold and kills.done % (kills.wanted // max(1, kills.cold)) == 5
    victim = context.victim(script, flags, directory=directory, cold=cold)
    if cold:  # nearly all of its time goes into imports; what is to be hit comes after them
        victim.wait_until(lambda: victim.output.strip(), "its first word")
    if fire:
        time.sleep(context.rng.uniform(0.0 if cold else 0.1, seconds))
    if fire and victim.code is None:
        victim.kill()
        victim.wait()
        # It may have ended by itself in the moment before.
        kills.done += victim.code != 0
        kills.cold_done += cold and victim.code != 0
    victim.wait()
    if victim.code not in (0, -signal.SIGKILL):
        print(victim.tail(lines=20))
    return victim.code


def _still_there(directory: Path, before: int) -> tuple[str | None, int]:
    """Whether every checkpoint verifies and none was lost; the newest step."""
    from t5suite.training.checkpoints.folders import checkpoint_step, checkpoints

    found = checkpoints(directory)
    newest = checkpoint_step(found[-1]) if found else 0
    if newest < before:
        return f"the newest checkpoint is {newest}; there was {before}", newest
    return all_verify(directory), newest


# ---------------------------------------------------------------------------------------------------------------------
# Damage


DAMAGED_FILES = ("model.safetensors", "optimizer.pt", "rank-0.json", "trainer_state.json", "checkpoint.json")


def c3_damaged_newest(context: Context) -> Outcome:
    """Five files, each damaged in five ways: seen, named with the reason, set aside; the one before is gone on from."""
    found = {}
    for number, file in enumerate(DAMAGED_FILES):
        script, changes = CONFIGURATIONS[number % len(CONFIGURATIONS)]
        flags = context.flags(script, **SHORT, **changes)
        reference, killed = context.reference(script, flags), _killed_at_step_5(context, script, flags)
        kinds = [list(DAMAGES)[number]] if context.quick else list(DAMAGES)
        for kind in kinds[: 0 if context.quick and number > 2 else None]:
            directory = _copy(context, killed)
            DAMAGES[kind](directory / SAVED / file)
            found[f"{file} {kind}"] = _falls_back(context, script, flags, directory, file, reference)
    found |= sharded.damaged_newest(context)
    return all_hold(found, "detected, named, exact from the one before", "" if context.quick else sharded.missing())


def _killed_at_step_5(context, script, flags) -> Path:
    """A run with checkpoints 2 and 4."""
    killed = context.run(script, flags, patch=partial(patches.kill_at_step, 5))
    assert killed.codes == [-signal.SIGKILL], f"exit {killed.codes}: {killed.tail()}"
    return killed.directory


def _copy(context, directory: Path) -> Path:
    """A run's directory and trace once more."""
    from faults.victims import trace_folder

    copy = context.folder("copy")
    shutil.copytree(directory, copy)
    shutil.copytree(trace_folder(directory), trace_folder(copy))
    return copy


def _falls_back(context, script, flags, directory, file, reference) -> str | None:
    victim = context.run(script, flags, directory=directory)
    if victim.code:
        return f"exit {victim.codes}: {victim.tail()}"
    order = traces.read(directory).order
    if order != [1, 2, 3, 4, 5, 3, 4, 5, 6]:
        return f"did the steps {order}"
    named = [line for line in victim.output.splitlines() if SAVED in line and file in line and "damaged" in line]
    if not named:
        return f"does not name {file} and the reason: {victim.tail()}"
    if not (directory / f"damaged-{SAVED}").is_dir():
        return "was not set aside"
    return difference(directory, reference) or results_difference(directory, reference)


def c4_all_damaged(context: Context) -> Outcome:
    """No checkpoint verifies: the run stops with 74 and lists each, every time, and touches nothing."""
    found = {}
    for script, changes in CONFIGURATIONS[: 1 if context.quick else None]:
        flags = context.flags(script, **SHORT, **changes)
        killed = _killed_at_step_5(context, script, flags)
        for name, inflict in {
            "weights cut": lambda folder: truncate(folder / "model.safetensors"),
            "no manifests": lambda folder: (folder / "checkpoint.json").unlink(),
            "emptied": lambda folder: [path.unlink() for path in folder.iterdir() if path.is_file()],
        }.items():
            directory = _copy(context, killed)
            for folder in directory.glob("checkpoint-*"):
                inflict(folder)
            where = f"{script}{' streaming' if changes else ''}, {name}"
            found[where] = _refuses(context, script, flags, directory) or _refuses(context, script, flags, directory)
            if context.quick:
                break
    return all_hold(found, "stop with 74, each listed")


def _refuses(context, script, flags, directory) -> str | None:
    before = files(directory)
    steps = len(traces.read(directory).order)
    victim = context.run(script, flags, directory=directory)
    if victim.code != 74:
        return f"exit {victim.codes}: {victim.tail()}"
    if len(traces.read(directory).order) != steps:
        return "trained"
    missing = [name for name in ("checkpoint-2 (", "checkpoint-4 (") if name not in victim.output]
    if missing:
        return f"does not list {missing}: {victim.tail()}"
    kept = {name: value for name, value in files(directory).items() if name in before and "checkpoint-" in name}
    return changed_files({name: value for name, value in before.items() if "checkpoint-" in name}, kept)


# ---------------------------------------------------------------------------------------------------------------------
# A full disk

# How much of the second checkpoint still fits.
FITTING = {"nothing": 0.0, "a tenth": 0.1, "half": 0.5, "nine tenths": 0.9, "all but its end": 0.99}
# Limits on the size of a file that the weights, or the optimizer's state alone, do not keep.
FILE_LIMITS = (20_000, 140_000)
DISK, PAGE = 64 << 20, 4096


@contextlib.contextmanager
def small_disk(folder: Path):
    """A tmpfs in a new folder; None where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)


def fill_disk(filler: str, step: int, free: int) -> None:
    """When a step begins, writes a file that leaves so many bytes on the disk. Runs in the victim."""

    def fill(trainer, state):
        if state.global_step == step:
            state_of_disk = os.statvfs(Path(filler).parent)
            size = state_of_disk.f_bavail * state_of_disk.f_frsize - free
            with open(filler, "wb") as file:
                file.write(bytes(max(0, size)))

    patches.on_event("on_step_begin", fill)


def limit_files(size: int) -> None:
    """No file may grow beyond so many bytes. Runs in the victim."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def c5_full_disk(context: Context) -> Outcome:
    """The disk is full when the second checkpoint is written: nothing is lost, the cause is stated, and it goes on."""
    found, kind = {}, "tmpfs"
    for number, (name, share) in enumerate(FITTING.items()):
        if context.quick and name != "half":
            continue
        with small_disk(context.folder("disk")) as disk:
            if disk:
                found[name] = _full_tmpfs(context, *CONFIGURATIONS[number % len(CONFIGURATIONS)], disk, share)
            else:
                kind = "files limited, for no tmpfs may be mounted"
    for number, size in enumerate(FILE_LIMITS[: 1 if context.quick else None]):
        found[f"files of {size} bytes at most"] = _limited_files(context, *CONFIGURATIONS[number], size)
    return all_hold(found, f"stop with 74, whole, stated; exact with room again ({kind})")


def _full_tmpfs(context, script, changes, disk, share: float) -> str | None:
    flags = context.flags(script, **SHORT, **changes)
    reference, directory, filler = context.reference(script, flags), disk / "run", disk / "filler"
    free = int(share * _pages(reference / SAVED))
    victim = context.run(script, flags, directory=directory, patch=partial(fill_disk, str(filler), 2, free))
    problem = _stopped_for_room(victim, directory, 2)
    filler.unlink(missing_ok=True)
    return problem or _goes_on(context, script, flags, directory, reference)


def _limited_files(context, script, changes, size: int) -> str | None:
    flags = context.flags(script, **SHORT, **changes)
    reference, directory = context.reference(script, flags), context.folder("limited")
    victim = context.run(script, flags, directory=directory, patch=partial(limit_files, size))
    return _stopped_for_room(victim, directory, None) or _goes_on(context, script, flags, directory, reference)


def _pages(folder: Path) -> int:
    """Bytes that a folder takes on a tmpfs."""
    return sum(-(-path.lstat().st_size // PAGE) * PAGE for path in folder.rglob("*") if path.is_file())


def _stopped_for_room(victim, directory: Path, newest: int | None) -> str | None:
    if victim.code != 74:
        return f"exit {victim.codes}: {victim.tail()}"
    said = victim.output.rpartition("error:")[2]
    missing = [word for word in (str(directory), "bytes wanted", "bytes free") if word not in said]
    if missing:
        return f"does not state {missing}: {victim.tail()}"
    return all_verify(directory, newest) or remains(directory)


def _goes_on(context, script, flags, directory, reference) -> str | None:
    resumed = context.run(script, flags, directory=directory)
    if resumed.code:
        return f"with room again, exit {resumed.codes}: {resumed.tail()}"
    return difference(directory, reference) or results_difference(directory, reference)


# ---------------------------------------------------------------------------------------------------------------------
# One checkpoint at a time


def c6_one_at_a_time(context: Context) -> Outcome:
    """`--save_total_limit 1`: after a kill anywhere in the save or the rotation, a verified checkpoint is there."""
    chosen = ["before the rename", "rotation's rename"] if context.quick else list(POINTS)
    found = {}
    for number, name in enumerate(chosen):
        script, changes = CONFIGURATIONS[number % len(CONFIGURATIONS)]
        flags = context.flags(script, **SHORT, **changes, save_total_limit=1)
        killed = context.run(script, flags, patch=partial(kill_at_point, name))
        found[name] = (
            f"was not killed there: {killed.tail()}"
            if killed.codes != [-signal.SIGKILL]
            else all_verify(killed.directory, POINTS[name].resumed_from)
        )
    flags = context.flags("fine_tune_t5", **SHORT, save_total_limit=1)
    ended = context.run("fine_tune_t5", flags)
    kept = sorted(path.name for path in ended.directory.glob("*checkpoint-*"))
    found["not killed"] = None if kept == ["checkpoint-6"] else f"exit {ended.codes}, kept {kept}"
    return all_hold(found, "one verified checkpoint")


CHECKPOINTS = {
    "C1": Check(
        c1_kill_in_save,
        "SIGKILL at 16 points in save; two ranks' FSDP and ZeRO saves",
        "auto-resume, exact",
        limit=300.0,
    ),
    "C2": Check(c2_random_kills, "200 random SIGKILLs, rotation included", "200 of 200 go on, exact", limit=900.0),
    "C3": Check(
        c3_damaged_newest,
        "5 files x truncate, empty, flip, zero, delete; a bit of FSDP's and ZeRO's",
        "detected, previous used, file and reason logged",
        limit=300.0,
    ),
    "C4": Check(c4_all_damaged, "every checkpoint damaged", "74, each listed; never a silent restart", limit=120.0),
    "C5": Check(
        c5_full_disk, "disk full at 5 sizes", "previous intact, path and bytes stated, 74; goes on", limit=120.0
    ),
    "C6": Check(
        c6_one_at_a_time, "save_total_limit=1, kill anywhere", "one verified checkpoint always exists", limit=120.0
    ),
}
