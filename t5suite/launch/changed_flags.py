"""What a command changes about a run that is there already, by the flags that either command has written out.

    >>> changed_flags("fine_tune_t5", read_manifest("runs/reviews-t5-small"), {"learning_rate": "1e-3"})
    {'learning_rate': (0.0005, 0.001)}

It needs no torch, and so a command that would be refused is refused at once. It is no complete comparison: whether all
settings agree is checked when the run is opened.
"""

import os
from collections.abc import Mapping

from t5suite.base.errors import ConfigError
from t5suite.base.redaction import redacted
from t5suite.base.script_flags import NUMBER_TYPES, TRUE_WORDS, flags_of
from t5suite.launch.command_line import flag_values
from t5suite.launch.row_formats import with_format
from t5suite.runs.settings import is_decisive

# Flags whose value also depends on other flags (`--eval_strategy`) or on the machine.
SETTLED_LATER = ("save_strategy", "save_steps", "load_best_model_at_end", "metric_for_best_model", "use_cpu")
# Beginnings of variables by which accelerate counts micro-batches or ranks otherwise than by the flags and WORLD_SIZE.
COUNTED_BY_ACCELERATE = ("ACCELERATE_", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


def changed_flags(script: str, manifest: Mapping, values: Mapping[str, object]) -> dict[str, tuple]:
    """`{flag: (value of the run, value now)}` of decisive flags that are written otherwise now, or left out.

    A flag whose value the run itself has replaced is left to the comparison of all settings. The run may give a flag
    that is left out now the value that it had: only `certain_changes` make another run whatever it does.

    Args:
      manifest: of the run that is there.
      values: `{flag: value}` as this command and its files have them.
    """
    earlier_values = written_then(script, manifest)
    if earlier_values is None:
        return {}
    settings = manifest["settings"]
    changed_since = {
        name: value for entry in manifest.get("changes", ()) for name, (_, value) in entry["changed"].items()
    }
    changes = {}
    for name in sorted({*earlier_values, *values}):
        is_collection = isinstance(values.get(name), (list, dict))
        if name not in settings or is_collection or not is_decisive(name):
            continue
        before = changed_since.get(name, typed_value(script, name, earlier_values))
        now = typed_value(script, name, values)
        if settings[name] == before and now != before:
            changes[name] = (before, now)
    before = settings.get("update_size")
    now = examples_per_update(script, values)
    if None not in (before, now) and now != before:
        changes["update_size"] = (before, now)
    return changes


def certain_changes(changes: Mapping[str, tuple], values: Mapping[str, object]) -> dict[str, tuple]:
    """Those of `changed_flags` that the run cannot undo: `update_size`, and flags that are given a value now."""
    certain = {}
    for name, (before, now) in changes.items():
        is_written = name in values and now is not None and name not in SETTLED_LATER
        if is_written or name == "update_size":
            certain[name] = (before, now)
    return certain


def examples_per_update(script: str, values: Mapping[str, object]) -> int | None:
    """Examples per update, over micro-batches and ranks; None where DeepSpeed's or accelerate's settings decide."""
    if "deepspeed" in values or any(name.startswith(COUNTED_BY_ACCELERATE) for name in os.environ):
        return None
    batch_size = typed_value(script, "per_device_train_batch_size", values)
    micro_batches = typed_value(script, "gradient_accumulation_steps", values)
    if batch_size is None or micro_batches is None:  # the parser refuses it
        return None
    return batch_size * micro_batches * int(os.environ.get("WORLD_SIZE", "1"))


def written_then(script: str, manifest: Mapping) -> dict[str, object] | None:
    """`{flag: value}` of a run's command; None if it cannot be read from here."""
    command = manifest.get("command")
    if not isinstance(command, list) or manifest.get("working_directory") != redacted(os.getcwd()):
        return None
    try:
        values = flag_values(script, command[1:])
    except (ConfigError, OSError):  # a file that has gone, a flag of another version
        return None
    return with_format(values) if script == "fine_tune_t5" else values


def typed_value(script: str, name: str, values: Mapping[str, object]) -> object:
    """A flag's value, or its default, as the parser makes it of a word; None where that takes more, or is refused."""
    entry = flags_of(script)[name]
    value = values.get(name, entry.get("default"))
    if value is None or value == "None" or isinstance(value, (list, dict)):
        return None
    if entry["type"] in NUMBER_TYPES:
        try:
            return NUMBER_TYPES[entry["type"]](value)
        except (OverflowError, TypeError, ValueError):  # no number, in a file
            return None
    if entry["type"] == "bool" and not isinstance(value, bool):
        return str(value).lower() in TRUE_WORDS
    return value
