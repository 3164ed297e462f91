"""A run that is killed and started again, as often as asked, and whether it equals the one that was not.

>>> attempts = [Attempt(flags, Kill(4, resumed_from=2)), Attempt(flags)]
>>> go_through(context, "fine_tune_t5", attempts).problem
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from faults import patches, traces
from faults.harness import Context, all_hold, difference
from faults.leftovers import results_difference
from faults.victims import Victim


@dataclass(frozen=True)
class Kill:
    """When an attempt kills itself.

    Attributes:
      step: updates done by then.
      resumed_from: the checkpoint that the next attempt must go on from; 0: there is none.
      event: the trainer's; "on_step_end" comes before the evaluation and the checkpoint of the step.
    """

    step: int
    resumed_from: int
    event: str = "on_step_end"


@dataclass(frozen=True)
class Attempt:
    """One start of the command; without a kill it runs to its end. `patch`: what else is done to it."""

    flags: list[str]
    kill: Kill | None = None
    ranks: int = 1
    cold: bool = False
    patch: Callable | None = None


@dataclass
class Course:
    """What became of the attempts: the last one, and what went wrong on the way."""

    victim: Victim
    problem: str | None = None

    @property
    def directory(self) -> Path:
        """The run's."""
        return self.victim.directory


def go_through(context: Context, script: str, attempts: Sequence[Attempt], total: int | None = 8) -> Course:
    """All attempts, one after the other, in one new directory.

    Args:
      total: steps of the whole run: each attempt must do those after the checkpoint that it goes on from, no others.
    """
    directory, expected, start = context.folder("run"), [], 0
    for number, attempt in enumerate(attempts, 1):
        kill = attempt.kill
        patch = partial(patches.kill_at_step, kill.step, kill.event) if kill else attempt.patch
        victim = context.run(
            script, attempt.flags, directory=directory, ranks=attempt.ranks, cold=attempt.cold, patch=patch
        )
        if (victim.codes[0] != -9 or 0 in victim.codes) if kill else any(victim.codes):
            return Course(victim, f"attempt {number} exits {victim.codes}: {victim.tail()}")
        if kill:
            expected += range(start + 1, kill.step + 1)
            start = kill.resumed_from
        elif total is not None:
            expected += range(start + 1, total + 1)
    order = traces.read(directory).order
    if total is not None and order != expected:
        return Course(victim, f"did the steps {order}, not {expected}")
    return Course(victim)


# The runs of the suite have eight steps, three a pass, a checkpoint every second one.
IN_PASS_1, IN_PASS_2, AT_BOUNDARY = Kill(4, 2), Kill(6, 4), Kill(8, 6)


@dataclass(frozen=True)
class Case:
    """One configuration and where it is killed.

    Attributes:
      changes: flags that make it another configuration than the script's tiny one.
      workers: of the data loader; must change nothing, so the run that is not killed has none.
      quick: part of the quick form.
    """

    kills: tuple[Kill, ...]
    changes: dict = field(default_factory=dict)
    workers: int = 0
    ranks: int = 1
    cold: bool = False
    quick: bool = False


def exactly(context: Context, script: str, cases: dict[str, Case], compare=None, **changes):
    """Every case killed and gone on with, against the run that was not: bit by bit, the final files too.

    Args:
      compare: what else has to be equal: `(directory, reference) -> problem or None`.
      changes: flags that all cases share.
    """
    found = {}
    for name, case in cases.items():
        if context.quick and not case.quick:
            continue
        settings = {**changes, **case.changes}
        reference = context.reference(script, context.flags(script, **settings), case.ranks)
        flags = context.flags(script, **settings, dataloader_num_workers=case.workers)
        attempts = [Attempt(flags, kill, case.ranks, case.cold) for kill in (*case.kills, None)]
        course = go_through(context, script, attempts, traces.read(reference).order[-1])
        found[name] = (
            course.problem
            or difference(course.directory, reference)
            or results_difference(course.directory, reference)
            or (compare(course.directory, reference) if compare else None)
        )
    return all_hold(found, "exact")
