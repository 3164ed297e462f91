"""T: W&B that cannot be reached, that dies, that is offline; X5: secrets.

    >>> TRACKERS["T2"].function(context)
    Outcome(passed=True, observed='8 of 8 finish as without W&B, which gets every step once later')

The real client runs, against a server on the loopback. A run that loses its tracker must be the run that never had one:
same updates, same `metrics.jsonl`, same exit code.
"""

import contextlib
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from faults import patches
from faults.harness import Check, Context, Outcome, all_hold
from faults.mirrored import SCRIPTS, Watched, loopback
from faults.planted_secrets import x5_secrets_stay_secret

LATEST_START = 10.0
UNREACHABLE = ("refused port", "silent host", "no such host", "wrong key", "no key")
FINE_TUNE, PRE_TRAIN = SCRIPTS
LOST = (
    ("service killed", FINE_TUNE),
    ("service killed", PRE_TRAIN),
    ("network dropped", FINE_TUNE),
    ("network dropped", PRE_TRAIN),
    ("mirror killed", PRE_TRAIN),
    ("service hangs", FINE_TUNE),
)
RESUMED = (
    ("offline", FINE_TUNE),
    ("offline", PRE_TRAIN),
    ("offline, all killed", FINE_TUNE),
    ("online", PRE_TRAIN),
    ("online, all killed", FINE_TUNE),
)


def t1_unreachable(context: Context) -> Outcome:
    """W&B cannot be used from the start: the run goes on at once, and its segment can be synced."""
    cases = {}
    faults = UNREACHABLE[:2] if context.quick else UNREACHABLE
    with loopback() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        reach = {
            "refused port": {"WANDB_BASE_URL": f"http://127.0.0.1:{_closed_port()}"},
            "silent host": {"WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"},
            "no such host": {"WANDB_BASE_URL": "http://wandb.invalid"},
            "wrong key": {"WANDB_API_KEY": "f" * 40},
            "no key": {"WANDB_API_KEY": None},
        }
        # Two at once, for their time is mostly waiting; beside a third without W&B, which tells what the machine takes.
        pairs = [(fault, script) for fault in faults for script in SCRIPTS]
        pairs = pairs[::3] if context.quick else pairs[:7] + pairs[7::2]
        while pairs:
            now, pairs = pairs[:2], pairs[2:]
            alone = context.victim(now[0][1], context.flags(now[0][1]), directory=context.folder("without"))
            runs = [Watched.start(context, script, server, seconds=0.0, **reach[fault]) for fault, script in now]
            usual, *starts = _seconds_to_first_step([alone, *(run.victim for run in runs)])
            for (fault, script), run, seconds in zip(now, runs, starts, strict=True):
                cases[f"{fault}, {script}"] = _unreached(run, server, seconds - usual)
            alone.wait()
    return all_hold(cases, "finish as without W&B, start within 10 s, and sync each step once")


def _seconds_to_first_step(victims) -> list[float]:
    """How long each of them took, while all ran side by side.

    Raises:
      TimeoutError: one ended before.
    """
    with ThreadPoolExecutor(len(victims)) as watchers:
        return list(watchers.map(_seconds_of_one, victims))


def _seconds_of_one(victim) -> float:
    victim.wait_for_step(1)
    return victim.seconds


def _unreached(watched: Watched, server, delay: float) -> str | None:
    """What is wrong with the run.

    Args:
      delay: seconds that its first step came later than that of a run without W&B.
    """
    if delay > LATEST_START:
        return f"the first step came {delay:.1f} s later than without W&B"
    watched.victim.wait()
    damage = watched.damage(warnings=1)
    if damage or "wandb sync " not in watched.warnings[0]:
        return damage or f"no command in {watched.warnings[0]!r}"
    return watched.sync(server) or watched.loss(server)


def t2_lost_on_the_way(context: Context) -> Outcome:
    """W&B's processes die or hang in the middle of training, or the network goes; training does not notice."""
    wanted = LOST[:1] if context.quick else LOST
    cases = {}
    with contextlib.ExitStack() as stack:
        # Each fault with a server of its own, for the network goes with it.
        servers = {fault: stack.enter_context(loopback()) for fault, _ in wanted}
        runs = {(fault, script): Watched.start(context, script, servers[fault]) for fault, script in wanted}
        for (fault, _), watched in runs.items():
            watched.wait_until_mirrored(servers[fault])
        for (fault, _), watched in runs.items():
            _inject(fault, watched, servers[fault])
        for (fault, script), watched in runs.items():
            watched.victim.wait()
            servers[fault].restore()
            cases[f"{fault}, {script}"] = _recovered(watched, servers[fault])
    return all_hold(cases, "finish as without W&B, which gets every step once later")


def _inject(fault: str, watched: Watched, server) -> None:
    if fault == "network dropped":
        server.drop()
    elif fault == "service hangs":
        watched.signal("service", signal.SIGSTOP)
    else:
        watched.signal(fault.split()[0])


def _recovered(watched: Watched, server) -> str | None:
    damage = watched.damage(warnings=1)
    if damage or "t5suite.tracking.mirror" not in watched.warnings[0]:
        return damage or f"no command in {watched.warnings[0]!r}"
    return watched.mirror(server) or watched.loss(server)


def t3_one_resume(context: Context) -> Outcome:
    """A run that is killed and goes on is one run of W&B's with every step once, offline and online."""
    wanted = RESUMED[:1] if context.quick else RESUMED
    cases = {}
    with loopback() as server:
        runs = {}
        for kind, script in wanted:  # one by one: a run that has died by itself leaves no processes to be found
            runs[kind, script] = _killed(context, script, server, kind)
            _go_on(runs[kind, script], kind)
        for (kind, script), watched in runs.items():
            watched.victim.wait()
            problem = watched.damage(warnings=0)
            if not problem and kind.startswith("offline"):
                problem = watched.sync(server)
            cases[f"{kind}, {script}"] = problem or watched.loss(server)
    return all_hold(cases, "are one W&B run with each step once")


def _killed(context: Context, script: str, server, kind: str) -> Watched:
    """A run that is killed within step 6, after the checkpoint at 4."""
    mode = {"WANDB_MODE": "offline"} if kind.startswith("offline") else {}
    return Watched.start(context, script, server, patch=[partial(patches.kill_at_step, 5, "on_step_end")], **mode)


def _go_on(watched: Watched, kind: str) -> None:
    if kind.endswith("all killed"):
        # As a scheduler kills: all at once. What the service still held in memory is gone.
        watched.victim.wait_for_step(4)
        for name in ("service", "mirror"):
            if name in watched.processes():
                watched.signal(name)
    watched.victim.wait()
    watched.go(watched.directory)


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


TRACKERS = {
    "T1": Check(
        t1_unreachable,
        injected="W&B: refused port, silent host, no such host, wrong key, no key",
        expected="finishes, exit 0, metrics.jsonl complete, start delay below 10 s, syncs later",
    ),
    "T2": Check(
        t2_lost_on_the_way,
        injected="W&B's service or mirror killed, service stopped, network dropped mid-run",
        expected="finishes unharmed, warned once, W&B complete later",
    ),
    "T3": Check(
        t3_one_resume,
        injected="offline (then sync) and online, killed and resumed once",
        expected="one run id, no step twice or missing",
    ),
    "X5": Check(
        x5_secrets_stay_secret,
        injected="W&B and HF tokens: environment, netrc, flags, YAML, misspelled flags",
        expected="in no file, output, argv or message to W&B",
    ),
}
