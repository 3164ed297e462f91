"""The settings of a run: which affect its result, which may change, which are secrets.

    >>> changed_between({"seed": 1, "run_name": "a"}, {"seed": 2, "run_name": "b"})
    {'seed': (1, 2)}

Two commands are the same run if all settings agree except those that only say how it is executed.
"""

import enum
import hashlib
import json
import re

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.base.redaction import MASK, is_secret_name, redacted, redacted_value
from t5suite.base.script_flags import changes_of_flags

# `changes_of_flags` says what another value of a flag changes in a run that goes on: "length", how long it is;
# "layout", where its examples and weights lie; "nothing", no result. Any other setting makes it another run.
# What `--extend` may raise:
EXTENDABLE_SETTINGS = tuple(name for name, change in changes_of_flags().items() if change == "length")
# Entries of a description of data that change when the data do, each a number or a hash (`files` is how many).
IDENTIFYING = frozenset(
    "fingerprint sha256 held_out_sha256 rows used documents tokens an_epoch files names_and_sizes samples".split()
)
# The setting that has, by flag, a hash of what the file says that the flag names.
FILE_CONTENTS = "file_contents"
# What stands for a variable of the environment in the command of a sweep's trials.
ENVIRONMENT_MACRO = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")


def is_decisive(name: str) -> bool:
    """Whether a setting affects a run's result.

    A flag of the kind `nothing` says where a run executes or how much it prints. One of the kind `layout` says how an
    update's examples lie over devices and micro-batches, or weights over devices: with as many examples, the update is
    the same, up to the order of a sum. The number of examples is a setting besides the flags, `update_size`. A setting
    that is no flag affects the result.
    """
    return changes_of_flags().get(name) not in ("nothing", "layout")


def changed_between(before: dict, now: dict) -> dict[str, tuple]:
    """`{name: (value before, value now)}` of the settings that make it another run.

    Args:
      before, now: `public_settings`, as manifests have them.
    """
    changes = {}
    for name in sorted(name for name in {*before, *now} if is_decisive(name) and name != FILE_CONTENTS):
        if is_changed(name, before, now):
            changes[name] = (before.get(name), now.get(name))
    changes = {**_changed_contents(before, now), **changes}
    if saves_when_it_evaluates(before) and saves_when_it_evaluates(now):
        changes.pop("save_steps", None)
    return changes


def _changed_contents(before: dict, now: dict) -> dict[str, tuple]:
    """The flags whose files say something else than before; an earlier version did not note what they said."""
    contents_before = before.get(FILE_CONTENTS) or {}
    contents_now = now.get(FILE_CONTENTS) or {}
    changes = {}
    for name in sorted(contents_before.keys() & contents_now.keys()):
        if contents_before[name] != contents_now[name]:
            then = f"{before.get(name)} (contents {contents_before[name]})"
            changes[name] = (then, f"{now.get(name)} (contents {contents_now[name]})")
    return changes


def contents_hash(content) -> str:
    """A hash of what a file says: the same whatever the order of a table's keys, comments and layout.

    >>> contents_hash({"prefix": "q: ", "labels": ["bad", "good"]}) == contents_hash(read_yaml("task.yaml").content)
    True
    """
    plain = json.loads(json.dumps(content, default=str, skipkeys=True))  # makes every key a text, to be sorted
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def is_changed(name: str, before: dict, now: dict) -> bool:
    """Whether a setting differs; a flag that one of the two versions does not have is off there.

    >>> is_changed("flag", {}, {"flag": False}), is_changed("flag", {"flag": None}, {"flag": 0.0})
    (False, True)
    """
    values = (before.get(name), now.get(name))
    is_in_both = name in before and name in now
    if not is_in_both and not any(values):
        return False
    return values[0] != values[1]


def saves_when_it_evaluates(settings: dict) -> bool:
    """Whether checkpoints are written at the evaluations, every `eval_steps`, so that each can be the best one.

    `save_steps` has no effect then: it follows `eval_steps`, but manifests of an earlier version have 500.
    """
    strategies = (settings.get("eval_strategy"), settings.get("save_strategy"))
    return bool(settings.get("load_best_model_at_end")) and strategies == ("steps", "steps")


def idle_length(settings: dict) -> str:
    """The flag of a run's length that has no effect: `--max_steps`, if it is given, replaces `--num_train_epochs`.

    >>> idle_length({"max_steps": 150, "num_train_epochs": 3.0})
    'num_train_epochs'
    """
    return "num_train_epochs" if (settings.get("max_steps") or 0) > 0 else "max_steps"


def allowed_names(allow_changed: str | None) -> list[str]:
    """The names in `--allow_changed`, unchecked."""
    return [name.strip().removeprefix("--") for name in (allow_changed or "").split(",") if name.strip()]


def parse_allowed(allow_changed: str | None, settings: dict) -> frozenset[str]:
    """`--allow_changed` as a set of settings, or `data`.

    >>> sorted(parse_allowed("seed,data", {"seed": 1}))
    ['data', 'seed']

    Raises:
      ConfigError: no such setting.
    """
    names = allowed_names(allow_changed)
    possible_names = ["data", *filter(is_decisive, settings)]
    for name in names:
        if name not in possible_names:
            raise ConfigError(
                f"--allow_changed {allow_changed}: no setting {name!r}; {suggestion(name, possible_names)}"
            )
    return frozenset(names)


def data_identity(described, path: str = "") -> dict[str, object]:
    """What identifies a state of the data, from the manifest's description: hashes and counts, no names.

    >>> data_identity({"rte.train": {"origin": "hub", "fingerprint": "ab12", "used": 64}})
    {'rte.train.fingerprint': 'ab12', 'rte.train.used': 64}
    """
    if isinstance(described, (list, tuple)):
        described = dict(enumerate(described))
    if not isinstance(described, dict):
        return {path: described} if path.rpartition(".")[2] in IDENTIFYING else {}
    identity = {}
    for name, value in described.items():
        identity |= data_identity(value, f"{path}.{name}" if path else str(name))
    return identity


def changed_data(before: dict, now: dict) -> dict[str, tuple]:
    """`{name: (value before, value now)}` of what differs in two descriptions of data.

    Which rows are held out differs only where both say it: an earlier version did not.
    """
    before = data_identity(before)
    now = data_identity(now)
    changes = {}
    for name in sorted({*before, *now}):
        is_known = name in before and name in now
        if name.endswith("held_out_sha256") and not is_known:
            continue
        if before.get(name) != now.get(name):
            changes[name] = (before.get(name), now.get(name))
    return changes


def settings_fingerprint(settings: dict) -> str:
    """SHA-256 of the settings that affect a run's result; not of what files say, as in earlier versions."""
    settings = {name: value for name, value in settings.items() if name != FILE_CONTENTS}
    decisive = {name: value for name, value in public_settings(settings).items() if is_decisive(name)}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def public_settings(settings: dict) -> dict:
    """The settings as JSON values, without those that hold a secret, and without secrets in the others' texts."""
    public = {name: value for name, value in settings.items() if not is_secret_name(name)}
    return redacted_value(json.loads(json.dumps(public, default=_as_json_value)))


def _as_json_value(value):
    """What JSON has no form for: an enum's value; a path or a configuration object as text."""
    return value.value if isinstance(value, enum.Enum) else str(value)


def without_secrets(argv) -> list[str]:
    """The command line with the values of secret flags hidden, except `${envvar:NAME}`, which only names one."""
    words = []
    is_secret_value = False
    for token in map(str, argv):
        flag, equals_sign, value = token.partition("=")
        is_secret_flag = flag.startswith("--") and is_secret_name(flag)
        if is_secret_value:
            words.append(_without_secret(token))
        elif is_secret_flag and equals_sign:
            words.append(f"{flag}={_without_secret(value)}")
        else:
            words.append(redacted(token))
        is_secret_value = is_secret_flag and not equals_sign
    return words


def _without_secret(value: str) -> str:
    """`***` for the value of a secret flag; names of variables alone are no secret."""
    if value and not ENVIRONMENT_MACRO.sub("", value):
        return value
    return MASK
