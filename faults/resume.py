"""R: runs that are killed and go on equal the ones that were not, bit by bit."""

from functools import partial

from faults import patches
from faults.harness import Check, all_hold, difference


def r1_map_data(context):
    """SIGKILL between two checkpoints; padding and dropout."""
    flags = context.flags("fine_tune_t5")
    reference = context.reference("fine_tune_t5", flags)
    cases = {}
    for step in (3, 5, 6):
        killed = context.run("fine_tune_t5", flags, patch=partial(patches.kill_at_step, step))
        resumed = context.run("fine_tune_t5", flags, directory=killed.directory)
        if killed.codes != [-9] or resumed.codes != [0]:
            cases[f"killed at {step}"] = f"exit {killed.codes}, then {resumed.codes}: {resumed.tail()}"
        else:
            cases[f"killed at {step}"] = difference(killed.directory, reference)
    return all_hold(cases, "exact")


RESUME = {"R1": Check(r1_map_data, injected="SIGKILL", expected="exact")}
