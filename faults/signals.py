"""S: requests to stop, in every phase, to one process or several; a rank that is killed; and C7, the owner's lock.

    >>> SIGNALS["S1"].function(context)
    Outcome(passed=True, observed='14 of 14 stop at the step, 75, and go on exactly')

Where a signal must meet a certain moment, the victim sends it to itself there; else it comes from outside. What was
stopped is started again and compared with a run that was not.
"""

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from faults import patches
from faults.batch_jobs import BATCH_JOBS
from faults.harness import Check, Context, Outcome, all_hold, difference
from faults.leftovers import results_difference
from faults.locks import LOCKS
from faults.stops import (
    PREEMPTED,
    block_at_call,
    catches,
    goes_on,
    kill_rank_at_call,
    processes_of,
    send_at_call,
    sleep_at_call,
    stopped,
    torn,
)
from faults.victims import Victim

# Victims are not started as scripts, whose first line this is.
CATCH = "t5suite.training.processes.signals:catch_signals"
STREAMED = {"streaming": True, "num_virtual_streams": 4, "shuffle_buffer_size": 16}
ACCUMULATED = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}
TWO_RANKS = {"per_device_train_batch_size": 4}
CONFIGURATIONS = {
    "fine-tuning": ("fine_tune_t5", {}),
    "corpus": ("pre_train_t5", {}),
    "stream": ("pre_train_t5", STREAMED),
}
# No checkpoint but that of the stop, and the last one.
RARELY = {"save_steps": 1000}
STOP_SECONDS = 30.0


# ---------------------------------------------------------------------------------------------------------------------
# S1: while training


@dataclass(frozen=True)
class Moment:
    """A signal that the victim sends to itself, and the step at which it must then stop.

    Attributes:
      step, event: updates done by then, and where in the next one it is.
    """

    configuration: str
    name: str
    step: int
    stops_at: int
    event: str = "on_step_begin"
    changes: dict = field(default_factory=dict)
    quick: bool = False


MOMENTS = {
    "in a step": Moment("fine-tuning", "SIGTERM", 3, 4, quick=True),
    "in a step of a corpus": Moment("corpus", "SIGUSR1", 3, 4),
    "in a step of a stream": Moment("stream", "SIGINT", 3, 4),
    "in the first step": Moment("corpus", "SIGINT", 0, 1),
    "in an accumulation window": Moment("fine-tuning", "SIGINT", 3, 4, "on_substep_end", ACCUMULATED),
    "in an accumulation window of a stream": Moment("stream", "SIGTERM", 3, 4, "on_substep_end", ACCUMULATED),
    "between the vote and the step's end": Moment("fine-tuning", "SIGUSR1", 4, 5, "on_step_end"),
    "at the end of a pass": Moment("fine-tuning", "SIGTERM", 2, 3),
    "at the end of a pass over a corpus": Moment("corpus", "SIGTERM", 2, 3),
    "where an evaluation is due": Moment("fine-tuning", "SIGUSR1", 3, 4, changes=EVALUATED),
    "in the last step": Moment("fine-tuning", "SIGTERM", 7, 8),
    "in the last step of a stream": Moment("stream", "SIGUSR1", 7, 8),
    "2 ranks, one of them": Moment("stream", "SIGTERM", 3, 4, changes=TWO_RANKS),
}  # fmt: skip


def s1_while_training(context: Context) -> Outcome:
    """At a known moment from within; and at any moment from outside, to all processes, with workers."""
    found = {}
    for name, moment in MOMENTS.items():
        if context.quick and not moment.quick:
            continue
        script, changes = CONFIGURATIONS[moment.configuration]
        flags = context.flags(script, **RARELY, **changes, **moment.changes)
        ranks = 2 if "ranks" in name else 1
        send = partial(patches.signal_at_step, moment.step, moment.name, moment.event, ranks - 1)
        victim = context.run(script, flags, patch=[CATCH, send], ranks=ranks)
        found[name] = stopped(victim, moment.stops_at, only="eval_steps" not in moment.changes) or goes_on(
            context, script, flags, victim.directory, context.reference(script, flags, ranks), ranks
        )
    for number, (name, (script, changes)) in enumerate(CONFIGURATIONS.items()):
        if not context.quick:
            sent = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)[number]
            found[f"{name}, 2 workers, from outside"] = _signal_all_processes(context, script, changes, sent)
    return all_hold(found, "stop at the step, 75, and go on exactly")


def _signal_all_processes(context, script, changes, number) -> str | None:
    """Workers that make batches are signalled as well, and must not take the run with them."""
    rows = {"max_train_samples": 128} if script == "fine_tune_t5" else {}  # no pass, and so no worker, ends meanwhile
    flags = context.flags(script, **RARELY, **rows, **changes)
    with_workers = [*flags, "--dataloader_num_workers", 2]
    victim = context.victim(script, with_workers, patch=[CATCH, partial(patches.slow_steps, 0.2)])
    victim.wait_for_step(2)
    time.sleep(context.rng.uniform(0, 0.3))
    pids = processes_of(victim)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    victim.wait(STOP_SECONDS)
    if len(pids) < 3:
        return f"has {len(pids)} processes, so no worker was signalled"
    return stopped(victim) or goes_on(context, script, with_workers, victim.directory, context.reference(script, flags))


# ---------------------------------------------------------------------------------------------------------------------
# S2: in the other phases


def s2_other_phases(context: Context) -> Outcome:
    """While modules are imported, in set-up, in evaluations and in saves."""
    found = {}
    deaf = None if context.quick else _start_deaf(context)
    for delay in (0.5,) if context.quick else (0.0, 1.0, 2.5):
        found[f"{delay} s after its start"] = _in_imports(context, delay)
    for name, (configuration, target) in {} if context.quick else SET_UP_CALLS.items():
        found[name] = _in_set_up(context, *CONFIGURATIONS[configuration], target)
    for name, phase in PHASES.items():
        if phase.quick or not context.quick:
            found[name] = _in_phase(context, phase)
    if deaf:
        found["2 ranks, 1 s apart, in set-up"] = _ranks_in_set_up(context)
        found["a call that hangs in set-up"] = _end_of_deaf(deaf)
    return all_hold(found, f"75 within {STOP_SECONDS:g} s, nothing torn")


SET_UP_CALLS = {
    "before the model": ("fine-tuning", "t5suite.run_steps:tokenizer_and_model"),
    "before the data": ("fine-tuning", "t5suite.run_steps:data_of"),
    "before the trainer": ("fine-tuning", "t5suite.training.fine_tuning_trainer:make_trainer"),
    "before the corpus": ("corpus", "pre_train_t5:text_by_flags"),
    "before the stream": ("stream", "pre_train_t5:streamed_data"),
}


@dataclass(frozen=True)
class Phase:
    """A signal in the middle of something that is not a step.

    Attributes:
      target, number: the call that it comes at.
      stops_at: the step after which the run stops; its checkpoint is the newest then.
      total: whether only what comes after training is left.
    """

    configuration: str
    target: str
    number: int
    stops_at: int
    quick: bool = False


SCORE, WRITE = ("t5suite.training.trainer:SuiteTrainer.score", "t5suite.training.trainer:SuiteTrainer.write_checkpoint")
FINALLY = "t5suite.run_steps:evaluate_finally"
ROTATE, RENAME = ("t5suite.training.checkpoints.saving:rotate", "t5suite.training.checkpoints.committing:sync_tree")
PHASES = {
    "evaluation": Phase("fine-tuning", SCORE, 1, 2, quick=True),
    "a later evaluation": Phase("fine-tuning", SCORE, 3, 6),
    "evaluation of a corpus": Phase("corpus", SCORE, 2, 4),
    "evaluation of a stream": Phase("stream", SCORE, 2, 4),
    "the evaluation after training": Phase("fine-tuning", FINALLY, 1, 8),
    "the evaluation after pre-training": Phase("corpus", SCORE, 5, 8),
    "save": Phase("fine-tuning", WRITE, 2, 5, quick=True),
    "save, before its rename": Phase("corpus", RENAME, 2, 5),
    "save of a stream": Phase("stream", WRITE, 1, 3),
    "rotation": Phase("fine-tuning", ROTATE, 2, 5),
    "the last save": Phase("fine-tuning", WRITE, 4, 8),
}  # fmt: skip


def _in_phase(context, phase: Phase) -> str | None:
    """The checkpoint, and what was pending, are there when the command is given again."""
    script, changes = CONFIGURATIONS[phase.configuration]
    flags = context.flags(script, **changes, **EVALUATED)
    started = time.monotonic()
    victim = context.run(script, flags, patch=[CATCH, partial(send_at_call, phase.target, "SIGTERM", phase.number)])
    if time.monotonic() - started > STOP_SECONDS:
        return f"took {time.monotonic() - started:.0f} s"
    return stopped(victim, phase.stops_at, only=False) or goes_on(
        context, script, flags, victim.directory, context.reference(script, flags)
    )


def _in_set_up(context, script, changes, target) -> str | None:
    flags = context.flags(script, **changes)
    victim = context.run(script, flags, patch=[CATCH, partial(send_at_call, target)])
    return _ended_empty(victim) or goes_on(context, script, flags, victim.directory, context.reference(script, flags))


def _in_imports(context, delay) -> str | None:
    """A script as a user starts it, signalled some time after its first line."""
    flags = context.flags("fine_tune_t5")
    victim = context.victim("fine_tune_t5", flags, cold=True, traced=False)
    victim.wait_until(lambda: catches(victim.processes[0].pid), "handler")
    time.sleep(delay)
    victim.kill(signal.SIGTERM)
    started = time.monotonic()
    victim.wait(STOP_SECONDS)
    if "Traceback" in victim.output:
        return f"a traceback: {victim.tail()}"
    return _ended_empty(victim) or (f"took {time.monotonic() - started:.0f} s" if victim.ended is None else None)


def _ended_empty(victim) -> str | None:
    """Set-up has nothing to keep, and says so."""
    if set(victim.codes) != {PREEMPTED}:
        return f"exit {victim.codes}: {' || '.join(victim.tail(rank) for rank in range(len(victim.codes)))}"
    if "set-up" not in victim.output:
        return f"does not say that it was stopped in set-up: {victim.tail()}"
    return next((f"{path.name} is there" for path in victim.directory.glob("*checkpoint-*")), None)


def _start_deaf(context) -> tuple[Victim, float]:
    """Its promise takes 20 s to be kept, so it is waited for last."""
    flags = context.flags("fine_tune_t5")
    victim = context.victim("fine_tune_t5", flags, patch=[CATCH, partial(block_at_call, "t5suite.run_steps:data_of")])
    victim.wait_for_line("blocked")
    victim.kill(signal.SIGTERM)
    return victim, time.monotonic()


def _end_of_deaf(deaf) -> str | None:
    victim, signalled = deaf
    victim.wait(max(0.0, signalled + STOP_SECONDS - time.monotonic()))
    return _ended_empty(victim)


def _ranks_in_set_up(context) -> str | None:
    """The rank that is signalled later may see the other one leave before."""
    flags = context.flags("fine_tune_t5", **TWO_RANKS)
    slow = partial(sleep_at_call, "t5suite.run_steps:data_of", 0.3)
    victim = context.victim("fine_tune_t5", flags, ranks=2, patch=[CATCH, slow])
    victim.wait_for_line("in t5suite.run_steps:data_of")
    victim.kill(signal.SIGTERM, rank=0)
    time.sleep(1.0)
    victim.kill(signal.SIGTERM, rank=1)
    victim.wait(STOP_SECONDS)
    return _ended_empty(victim)


# ---------------------------------------------------------------------------------------------------------------------
# S3: several ranks

SKEWS = (0.0, 0.1, 0.4, 1.0, None)


def s3_ranks(context: Context) -> Outcome:
    """Twenty times two ranks; four of each skew, None being one rank alone."""
    trials = [(skew, name) for name in [*CONFIGURATIONS, "accumulation"] for skew in SKEWS]
    chosen = [trials[i] for i in (7, 4)] if context.quick else trials  # 0.4 s apart; one rank alone
    draws = [(context.rng.randrange(2), context.rng.choice(("SIGTERM", "SIGUSR1", "SIGINT"))) for _ in chosen]
    with ThreadPoolExecutor(2) as pool:
        problems = pool.map(partial(_signal_ranks, context), chosen, draws)
    names = [f"{name}, {'one rank' if skew is None else f'{skew} s'}" for skew, name in chosen]
    return all_hold(dict(zip(names, problems, strict=True)), "stop at one step, 75, and go on exactly")


def _signal_ranks(context, trial, draw) -> str | None:
    (skew, configuration), (first, name) = trial, draw
    script, changes = CONFIGURATIONS.get(configuration, ("fine_tune_t5", {"gradient_accumulation_steps": 2}))
    flags = context.flags(script, **RARELY, **changes, **TWO_RANKS, max_steps=40)
    victim = context.victim(script, flags, ranks=2, patch=[CATCH, partial(patches.slow_steps, 0.05)])
    victim.wait_for_step(2, rank=first)
    victim.kill(getattr(signal, name), rank=first)
    if skew is not None:
        time.sleep(skew)
        victim.kill(getattr(signal, name), rank=1 - first)
    victim.wait(STOP_SECONDS)
    return stopped(victim) or goes_on(
        context, script, flags, victim.directory, context.reference(script, flags, 2), 2, 40
    )


# ---------------------------------------------------------------------------------------------------------------------
# S4: three signals


def s4_three_signals(context: Context) -> Outcome:
    """The second changes nothing, the third ends the process at once."""
    cases = {"SIGINT x 3": ("SIGINT",) * 3, "SIGUSR1, SIGTERM, SIGINT": ("SIGUSR1", "SIGTERM", "SIGINT")}
    found = {"two": _two_signals(context)}
    for name, signals in list(cases.items())[: 1 if context.quick else None]:
        found[name] = _three_signals(context, signals)
    if not context.quick:
        found["three while it waits for another rank"] = _three_to_a_waiting_rank(context)
    return all_hold(found, "as promised: one checkpoint; 128 + n at the third")


def _two_signals(context) -> str | None:
    """One while it trains, one while it saves what the first asked for: one checkpoint."""
    script, flags, victim = _start_slow_save(context)
    _send_in_training_then_in_save(victim, ("SIGTERM", "SIGINT"))
    victim.wait(STOP_SECONDS)
    return stopped(victim) or goes_on(context, script, flags, victim.directory, context.reference(script, flags))


def _three_signals(context, signals) -> str | None:
    script, flags, victim = _start_slow_save(context)
    _send_in_training_then_in_save(victim, signals)
    started = time.monotonic()
    victim.wait(STOP_SECONDS)
    seconds, number = time.monotonic() - started, getattr(signal, signals[-1])
    if victim.codes != [128 + number] or seconds > 1.0:
        return f"exit {victim.codes} after {seconds:.1f} s: {victim.tail()}"
    if any(victim.directory.glob("checkpoint-*")):
        return "a checkpoint was finished after all"
    directory, reference = victim.directory, context.reference(script, flags)
    again = context.run(script, flags, directory=directory)
    if again.code:
        return f"started again, exit {again.codes}: {again.tail()}"
    return torn(directory) or difference(directory, reference) or results_difference(directory, reference)


def _start_slow_save(context):
    script, flags = "fine_tune_t5", context.flags("fine_tune_t5", **RARELY)
    slow = [partial(patches.slow_steps, 0.05), partial(sleep_at_call, WRITE, 2.0)]
    return script, flags, context.victim(script, flags, patch=[CATCH, *slow])


def _send_in_training_then_in_save(victim, signals) -> None:
    victim.wait_for_step(2)
    victim.kill(getattr(signal, signals[0]))
    victim.wait_for_line(f"in {WRITE}")
    for name in signals[1:]:
        victim.kill(getattr(signal, name))
        time.sleep(0.05)


def _three_to_a_waiting_rank(context) -> str | None:
    """Rank 1 is stopped (SIGSTOP), so rank 0 waits for it in a collective, where no handler of Python's runs."""
    flags = context.flags("fine_tune_t5", **RARELY, **TWO_RANKS, max_steps=40)
    victim = context.victim("fine_tune_t5", flags, ranks=2, patch=[CATCH, partial(patches.slow_steps, 0.05)])
    victim.wait_for_step(2)
    victim.kill(signal.SIGSTOP, rank=1)
    time.sleep(0.5)
    for _ in range(3):
        victim.kill(signal.SIGINT, rank=0)
        time.sleep(0.05)
    started = time.monotonic()
    victim.wait_until(lambda: victim.codes[0] is not None, "end of rank 0", 10)
    seconds = time.monotonic() - started
    victim.kill(signal.SIGCONT, rank=1)
    victim.wait(STOP_SECONDS)
    if victim.codes[0] != 128 + signal.SIGINT or not victim.codes[1] or seconds > 1.0:
        return f"exit {victim.codes} after {seconds:.1f} s: {victim.tail()}"
    return torn(victim.directory)


# ---------------------------------------------------------------------------------------------------------------------
# S6: a rank is killed


def s6_killed_rank(context: Context) -> Outcome:
    """The others end too, soon and not with 0; then the run goes on exactly."""
    at_step, at_call = patches.kill_at_step, kill_rank_at_call
    ends = {
        "in training": ("stream", lambda rank: partial(at_step, 5, "on_step_begin", rank)),
        "in an accumulation window": ("fine-tuning", lambda rank: partial(at_step, 5, "on_substep_end", rank)),
        "in an evaluation": ("fine-tuning", lambda rank: partial(at_call, SCORE, rank, 2)),
        "in a save": ("corpus", lambda rank: partial(at_call, WRITE, rank, 2)),
        "in set-up": ("fine-tuning", lambda rank: partial(at_call, "t5suite.run_steps:data_of", rank)),
    }
    found = {}
    for number, (name, (configuration, make)) in enumerate(ends.items()):
        for rank in (number % 2,) if number or context.quick else (0, 1):
            if number == 0 or not context.quick:
                found[f"rank {rank} {name}"] = _kill_rank(context, *CONFIGURATIONS[configuration], make(rank), rank)
    if not context.quick:
        found["rank 0 while rank 1 is suspended"] = _kill_beside_a_suspended_rank(context)
    return all_hold(found, "all end, and go on exactly")


def _kill_beside_a_suspended_rank(context) -> str | None:
    """It finds the other's last data and its end at once, after which gloo waits for more in one of four cases."""
    flags = context.flags("fine_tune_t5", **TWO_RANKS, max_steps=40)
    victim = context.victim("fine_tune_t5", flags, ranks=2, patch=[CATCH, partial(patches.slow_steps, 0.05)])
    victim.wait_for_step(3)
    victim.kill(signal.SIGSTOP, rank=1)
    time.sleep(0.5)
    victim.kill(signal.SIGKILL, rank=0)
    time.sleep(0.1)
    victim.kill(signal.SIGCONT, rank=1)
    victim.wait(60)
    if victim.codes[0] != -signal.SIGKILL or victim.codes[1] in (0, PREEMPTED):
        return f"exit {victim.codes}: {victim.tail(1)}"
    reference = context.reference("fine_tune_t5", flags, 2)
    again = context.run("fine_tune_t5", flags, directory=victim.directory, ranks=2)
    if any(again.codes):
        return f"started again, exit {again.codes}: {again.tail()}"
    return difference(victim.directory, reference) or results_difference(victim.directory, reference)


def _kill_rank(context, script, changes, patch, rank) -> str | None:
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    flags = context.flags(script, **changes, **batch, **EVALUATED)
    victim = context.victim(script, flags, ranks=2, patch=[CATCH, patch])
    victim.wait_until(lambda: victim.codes[rank] is not None, f"end of rank {rank}")
    started = time.monotonic()
    victim.wait(60)
    if victim.codes[rank] != -signal.SIGKILL or victim.codes[1 - rank] in (0, PREEMPTED):
        return f"exit {victim.codes} after {time.monotonic() - started:.1f} s: {victim.tail(1 - rank)}"
    directory, reference = victim.directory, context.reference(script, flags, 2)
    again = context.run(script, flags, directory=directory, ranks=2)
    if any(again.codes):
        return f"started again, exit {again.codes}: {again.tail()}"
    return torn(directory) or difference(directory, reference) or results_difference(directory, reference)


SIGNALS = {
    "S1": Check(
        s1_while_training,
        "SIGTERM, SIGUSR1, SIGINT while training",
        "boundary checkpoint, 75, resume exact",
        limit=300.0,
    ),
    "S2": Check(
        s2_other_phases, "signal during set-up, evaluation, save", "<= 30 s, 75, no torn checkpoint", limit=300.0
    ),
    "S3": Check(
        s3_ranks, "2 ranks; skew 0/0.1/0.4/1 s; one rank", "all exit 75 at one step, 20/20, no hang", limit=400.0
    ),
    "S4": Check(s4_three_signals, "three signals", "one checkpoint; the third: 128 + n at once", limit=120.0),
    **BATCH_JOBS,
    "S6": Check(s6_killed_rank, "SIGKILL one rank", "the others exit non-zero <= 60 s", limit=300.0),
    # The lock's module stands beside this one: the other checks of its letter are about what a checkpoint holds.
    **LOCKS,
}
