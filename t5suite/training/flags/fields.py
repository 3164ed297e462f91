"""One description of a flag: what the metadata of its dataclass field says.

    few_shot: int | None = flag(None, "Training rows per class.", "report", bounds="[1, inf) rows")

* `help`: the text of `--help`.
* `marks`, words: `common` (in `--help`; others are in `--help_all` alone), `report` (cards and tables of runs show it),
  `shapes` (`t5suite summary` takes it), `pairs` (its value is `name=value,...`), `intro` (the first line of a run
  names it), `apart` (with it the default output directory is not the task's), `fresh` (a command with it does
  not answer from a finished run's files), `object` (it changes a model that is in memory, too).
* `theme`: a key of `script_flags.THEMES`.
* `bounds`, `also`: an interval and what is counted; a value outside of it that is taken as well.
* `needs`: what a run must have, or the flag has no effect; several with commas.
* `change`: what another value makes of a resumed run: `run` (another run; the default), `layout` (the same updates, cut
  in another way), `length` (what `--extend` raises) or `nothing` (the default of the themes in `UNCHANGING`).
* `python`: what `FineTuner` has in its place.

A dataclass's `_facts` are those of its fields that say nothing else; Hugging Face's own flags have theirs in
`hugging_face.FACTS`. Help, checks, warnings and fingerprints of runs read the table that is made of them
(`t5suite.base.script_flags`).
"""

import dataclasses
import functools
import logging
import re

from t5suite.base.errors import ConfigError
from t5suite.base.script_flags import bounds_problem, flags_of

logger = logging.getLogger(__name__)
UNCHANGING = ("tracking", "resuming")


def facts(help: str | None = None, marks: str = "", **others) -> dict:
    """A field's metadata; those that say nothing are left out."""
    return {name: fact for name, fact in {"help": help, "marks": marks, **others}.items() if fact}


def flag(default, help: str = "", marks: str = "", **others):
    """A dataclass field with the facts of its flag as metadata."""
    return dataclasses.field(default=default, metadata=facts(help, marks, **others))


@functools.cache
def facts_of(dataclass_type: type) -> dict[str, dict]:
    """`{flag: facts}` of a dataclass; a field that stands again in a subclass says only what is different there.

    >>> facts_of(DataArguments)["few_shot"]["bounds"]
    '[1, inf) rows'
    """
    from t5suite.training.flags.hugging_face import FACTS, REST

    found: dict[str, dict] = {}
    for kind in reversed(dataclass_type.__mro__):
        is_ours = kind.__module__.startswith("t5suite.")
        for name in vars(kind).get("__annotations__", {}):
            spec = vars(kind).get("__dataclass_fields__", {}).get(name)
            if spec is None or not spec.init:
                continue
            if is_ours:
                theirs = {"theme": REST, **getattr(kind, "_facts", {}), **FACTS.get(name, {})}
                own = found[name] if found.get(name, {}).get("ours") else theirs
                found[name] = {**own, **spec.metadata, "ours": True}
            else:
                words = " ".join(str(spec.metadata.get("help") or "").split())
                first_sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`'])", words, maxsplit=1)[0]
                theirs = {**spec.metadata, "help": first_sentence, "theme": REST}
                found[name] = theirs | FACTS.get(name, {})
            if found[name]["theme"] in UNCHANGING:
                found[name].setdefault("change", "nothing")
    return found


def check_bounds(values: dict, dataclass_types) -> None:
    """Refuses numbers out of their flag's bounds before anything is loaded; each item of a list. None is passed over.

    >>> check_bounds({"per_device_train_batch_size": 0}, FINE_TUNING_ARGUMENTS)
    ConfigError: --per_device_train_batch_size 0: must be at least 1 (examples)

    Raises:
      ConfigError: at the first one.
    """
    for name, value in values.items():
        flag_facts = next((facts_of(kind)[name] for kind in dataclass_types if name in facts_of(kind)), {})
        for item in value if isinstance(value, list) else [value]:
            problem = bounds_problem(flag_facts, item)
            if problem:
                raise ConfigError(f"--{name} {str(item).removesuffix('.0')}: {problem}")


def check_needed_flags(arguments) -> None:
    """Refuses flags that need another one (`--streaming`; `--data_format or --data_class`) where that is not given.

    Raises:
      ConfigError: naming both.
    """
    for name, flag_facts in facts_of(type(arguments)).items():
        value, default = getattr(arguments, name), arguments.__dataclass_fields__[name].default
        for need in flag_facts.get("needs", "").split(", "):
            if need.startswith("--") and value not in (default, None):
                others = [other.removeprefix("--") for other in need.split(" or ")]
                if not any(getattr(arguments, other) for other in others):
                    typed = " ".join(map(str, value)) if isinstance(value, list) else value
                    raise ConfigError(f"--{name} {typed}: it belongs to {need}, which is not given")


def warn_of_idle_flags(script: str, changed, lacking: dict[str, str | None], unused=()) -> list[str]:
    """Warns of every flag that was given and needs what this run lacks; returns the flags.

    >>> warn_of_idle_flags("fine_tune_t5", {"learning_rate": 1e-3}, {"training": "nothing is trained"})
    WARNING --learning_rate has no effect: nothing is trained
    ['learning_rate']

    Args:
      lacking: `{what a flag may need: why it is not there, None where it is}`.
      unused: `{flag: why}` of others.
    """
    known, idle = flags_of(script), []
    for name in changed:
        needs = known.get(name, {}).get("needs", "").split(", ")
        reason = dict(unused).get(name) or next((lacking[need] for need in needs if lacking.get(need)), None)
        if reason:
            logger.warning("--%s has no effect: %s", name, reason)
            idle.append(name)
    return idle
