"""C7: a second process in the same run directory is refused, a dead owner's place is taken.

>>> LOCKS["C7"].function(context)
Outcome(passed=True, observed='7 of 7 one owner at a time')
"""

import os
import signal
import time
from functools import partial

from faults import patches, traces
from faults.harness import Check, Context, Outcome, all_hold, difference
from faults.leftovers import results_difference
from faults.victims import Victim

TWO_RANKS = {"per_device_train_batch_size": 4}
STREAMED = {"streaming": True, "num_virtual_streams": 4, "shuffle_buffer_size": 16}
BAD_CONFIGURATION = 78


def c7_two_processes(context: Context) -> Outcome:
    """While one trains, another with the same command, with two ranks, or while the first one does not answer."""
    found = {"the same command": _second_is_refused(context)}
    found["a dead owner's"] = _taken_from_the_dead(context, "fine_tune_t5", {})
    if not context.quick:
        found["two ranks"] = _second_is_refused(context, ranks=2)
        found["an owner that does not answer"] = _second_is_refused(context, answers=False)
        found["four at once"] = _four_at_once(context)
        found["a dead owner's, with workers"] = _taken_from_the_dead(context, "pre_train_t5", {}, workers=2)
        found["a dead owner's, streaming"] = _taken_from_the_dead(context, "pre_train_t5", STREAMED, workers=2)
    return all_hold(found, "one owner at a time")


def _start(context, script, flags, **settings) -> Victim:
    """A run that is slow enough to be met, in its third step."""
    victim = context.victim(script, flags, patch=partial(patches.slow_steps, 0.25), **settings)
    victim.wait_for_step(3)
    return victim


def _second_is_refused(context, ranks: int = 1, answers: bool = True) -> str | None:
    flags = context.flags("fine_tune_t5")
    first = _start(context, "fine_tune_t5", flags)
    if not answers:
        first.kill(signal.SIGSTOP)
    changes = TWO_RANKS if ranks == 2 else {}
    second = context.run(
        "fine_tune_t5", context.flags("fine_tune_t5", **changes), directory=first.directory, ranks=ranks, traced=False
    )
    first.kill(signal.SIGCONT)
    first.wait()
    problem = _names_the_owner(second, first)
    if problem or first.code:
        return problem or f"the first one exits {first.codes}: {first.tail()}"
    reference = context.reference("fine_tune_t5", flags)
    return difference(first.directory, reference) or results_difference(first.directory, reference)


def _names_the_owner(second: Victim, first: Victim) -> str | None:
    if set(second.codes) != {BAD_CONFIGURATION}:
        return f"the second one exits {second.codes}: {second.tail()}"
    wanted = (str(first.directory), "is in use by run ", os.uname().nodename, f"process {first.processes[0].pid}")
    missing = [text for text in wanted if text not in second.output]
    return f"the second one does not name {missing}: {second.tail()}" if missing else None


def _taken_from_the_dead(context, script, changes, workers: int = 0) -> str | None:
    """At once, while the dead one's workers may still be there."""
    flags = context.flags(script, **changes, dataloader_num_workers=workers)
    dead = _start(context, script, flags)
    dead.kill(signal.SIGKILL)
    dead.wait()
    second = context.run(script, flags, directory=dead.directory)
    if second.code or "has ended" not in second.output:
        return f"exit {second.codes}: {second.tail()}"
    reference = context.reference(script, context.flags(script, **changes))
    return difference(dead.directory, reference) or results_difference(dead.directory, reference)


def _four_at_once(context) -> str | None:
    """In a directory that is not there yet: one trains, three are refused, whoever was first."""
    flags, directory = context.flags("fine_tune_t5"), context.folder("run")
    victims = [
        context.victim("fine_tune_t5", flags, directory=directory, patch=partial(patches.slow_steps, 0.25))
        for _ in range(4)
    ]
    deadline = time.monotonic() + 40
    codes = sorted(victim.wait(max(0.1, deadline - time.monotonic()))[0] for victim in victims)
    if codes != [0, *[BAD_CONFIGURATION] * 3]:
        return f"exit {codes}: {' || '.join(victim.tail() for victim in victims)}"
    order = traces.read(directory).order
    reference = context.reference("fine_tune_t5", flags)
    if order != list(range(1, 9)):
        return f"the steps {order} were done"
    return difference(directory, reference) or results_difference(directory, reference)


LOCKS = {
    "C7": Check(
        c7_two_processes,
        injected="a second process in the same directory; SIGKILL of the owner",
        expected="78, the owner named; a dead owner's lock is taken",
        limit=120.0,
    )
}
