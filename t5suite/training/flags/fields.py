"""The facts of a flag, stored as metadata of its dataclass field.

    max_predict_samples: int | None = flag(None, "At most this many test rows a split.", bounds="[1, inf) rows")

* `help`: the text of `--help`.
* `marks`, words: `common` (in `--help`; others are only in `--help_all`), `report` (cards and tables of runs show it),
  `shapes` (`t5suite summary` accepts it), `pairs` (its value is `name=value,...`), `intro` (the first line of a run
  names it), `apart` (with it, the default output directory is not the task's), `fresh` (a command with it does
  not answer from a finished run's files), `object` (it also applies to a model in memory).
* `theme`: a key of `script_flags.THEMES`.
* `bounds`, `also`: an interval and its unit; a value outside the interval that is also accepted.
* `needs`: what a run must have for the flag to have an effect; separated by commas.
* `change`: the effect of another value on a resumed run: `run` (it is another run; the default), `layout` (the same
  updates, split differently), `length` (`--extend` raises it) or `nothing` (the default of the themes in `UNCHANGING`).
* `python`: what to use instead in `FineTuner`.

A dataclass's `shared_facts` are the defaults of its fields; those of Hugging Face's own flags are in
`hugging_face.FACTS`. Help, checks, warnings and fingerprints of runs read a table generated from them
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


def facts(help: str | None = None, marks: str = "", **by_name) -> dict:
    """A field's metadata, without empty facts."""
    return {name: fact for name, fact in {"help": help, "marks": marks, **by_name}.items() if fact}


def flag(default, help: str = "", marks: str = "", **facts_by_name):
    """A dataclass field with its flag's facts as metadata."""
    return dataclasses.field(default=default, metadata=facts(help, marks, **facts_by_name))


@functools.cache
def facts_of(dataclass_type: type) -> dict[str, dict]:
    """`{flag: facts}` of a dataclass; a field redefined in a subclass states only what differs.

    >>> facts_of(DataArguments)["max_predict_samples"]["bounds"]
    '[1, inf) rows'
    """
    from t5suite.training.flags.hugging_face import FACTS, REST

    facts_by_flag: dict[str, dict] = {}
    for kind in reversed(dataclass_type.__mro__):
        is_of_the_suite = kind.__module__.startswith("t5suite.")
        for name in vars(kind).get("__annotations__", {}):
            spec = vars(kind).get("__dataclass_fields__", {}).get(name)
            if spec is None or not spec.init:
                continue
            if is_of_the_suite:
                facts_of_flag = facts_by_flag.get(name, {})
                if not facts_of_flag.get("ours"):
                    facts_of_flag = {"theme": REST, **getattr(kind, "shared_facts", {}), **FACTS.get(name, {})}
                facts_of_flag = {**facts_of_flag, **spec.metadata, "ours": True}
            else:
                sentence = _first_sentence(str(spec.metadata.get("help") or ""))
                facts_of_flag = {**spec.metadata, "help": sentence, "theme": REST, **FACTS.get(name, {})}
            if facts_of_flag["theme"] in UNCHANGING:
                facts_of_flag.setdefault("change", "nothing")
            facts_by_flag[name] = facts_of_flag
    return facts_by_flag


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`'])", " ".join(text.split()), maxsplit=1)[0]


def check_bounds(values: dict, dataclass_types) -> None:
    """Refuses numbers outside their flag's bounds, also in lists, before anything is loaded. None is skipped.

    >>> check_bounds({"per_device_train_batch_size": 0}, FINE_TUNING_ARGUMENTS)
    ConfigError: --per_device_train_batch_size 0: must be at least 1 (examples)

    Raises:
      ConfigError: for the first one.
    """
    for name, value in values.items():
        flag_facts = next((facts_of(kind)[name] for kind in dataclass_types if name in facts_of(kind)), {})
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            problem = bounds_problem(flag_facts, number)
            if problem:
                raise ConfigError(f"--{name} {str(number).removesuffix('.0')}: {problem}")


def check_needed_flags(arguments) -> None:
    """Refuses flags that need another one (`--streaming`; `--data_format or --data_class`) if it is not given.

    Raises:
      ConfigError: names both.
    """
    for name, flag_facts in facts_of(type(arguments)).items():
        value = getattr(arguments, name)
        if value in (arguments.__dataclass_fields__[name].default, None):
            continue
        for need in flag_facts.get("needs", "").split(", "):
            if need.startswith("--") and not _has_one_of(arguments, need.split(" or ")):
                typed = " ".join(map(str, value)) if isinstance(value, list) else value
                raise ConfigError(f"--{name} {typed}: it belongs to {need}, which is not given")


def _has_one_of(arguments, flags: list[str]) -> bool:
    return any(getattr(arguments, flag_name.removeprefix("--")) for flag_name in flags)


def warn_of_flags_without_effect(script: str, changed, lacking: dict[str, str | None], unused=()) -> list[str]:
    """Warns about every given flag that needs something this run lacks; returns those flags.

    >>> warn_of_flags_without_effect("fine_tune_t5", {"learning_rate": 1e-3}, {"training": "nothing is trained"})
    WARNING --learning_rate has no effect: nothing is trained
    ['learning_rate']

    Args:
      lacking: `{what a flag may need: why it is missing, or None if it is not}`.
      unused: `{flag: why it has no effect}` of other flags.
    """
    flags = flags_of(script)
    reasons_by_flag = dict(unused)
    idle = []
    for name in changed:
        needs = flags.get(name, {}).get("needs", "").split(", ")
        reasons = [reasons_by_flag.get(name), *(lacking.get(need) for need in needs)]
        reason = next((reason for reason in reasons if reason), None)
        if reason:
            logger.warning("--%s has no effect: %s", name, reason)
            idle.append(name)
    return idle
