"""What the suite replaces in a library, writes again after its model, or takes from its private part; and its proof.

    >>> unproved(["quick_decoding"])                        # the installed versions are as they were tested
    {}
    >>> unproved(["quick_decoding"])                        # after an upgrade that changed T5's block
    {'quick_decoding': 'transformers 5.25.0 changed T5Block.forward (transformers.models.t5.modeling_t5)'}

An `Entry` (`library_entries`) lists the parts of libraries that one piece of our code was written against: by source,
which is compared with that of tested versions (`library_proofs`), or by a probe, a test of milliseconds. What is not
proved is not used: where libraries have a plain way, that one runs and one line says so (STOCK); where there is none, a
run that needs the entry ends with exit code 78 and the version that works (REFUSE).

    $ python -m t5suite.base.libraries                      # every entry, and whether it is proved here
    $ python -m t5suite.base.libraries --json
    $ python -m t5suite.base.libraries --prove              # adds the installed versions: after a green test run only
"""

import argparse
import contextvars
import functools
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from t5suite.base.errors import ConfigError
from t5suite.base.fingerprints import source_file
from t5suite.base.library_entries import ENTRIES, REFUSE, STOCK, Entry
from t5suite.base.library_proofs import (
    installed,
    newest_proved,
    packages_of,
    proved_table,
    replaced_object,
    source_reason,
    with_installed,
    write_table,
)
from t5suite.base.lookup import listed, load_object
from t5suite.base.reference_code import FAST_PATHS, reference_code

logger = logging.getLogger(__name__)

# What `states` calls an entry that is not proved.
STATES = {STOCK: "stock", REFUSE: "refused"}


@dataclass(frozen=True)
class Libraries:
    """How a run uses the libraries, decided once at its start.

    Attributes:
      off: fast paths that plain code replaces: those that `--reference_code` names and those that are not proved.
    """

    off: frozenset[str] = frozenset()

    @property
    def described(self) -> dict:
        """For the manifest and the model card."""
        return {"off": sorted(self.off), "untested": dict(_untested_in_use)}


def choose_libraries(reference: str | None = None, allow_untested: bool = False) -> Libraries:
    """Decides which fast paths a run uses, and whether it may use what is not proved (`require_proved`).

    Args:
      reference: the value of `--reference_code`.
      allow_untested: `--allow_untested_libraries`.

    Raises:
      ConfigError: a name in `reference` that is not a fast path.
    """
    named = reference_code(reference)
    not_proved = unproved_paths()
    for name in sorted(not_proved.keys() - named):
        logger.warning("%s; %s is off: %s", not_proved[name], name, FAST_PATHS[name])
    _allows_untested.set(allow_untested)
    _untested_in_use.clear()
    return Libraries(named | not_proved.keys())


def require_proved(*names: str) -> None:
    """Called where a piece of code is set up that has no plain way: refuses it, if it is not proved.

    >>> require_proved("diverse_beams")
    ConfigError: beams in groups (--num_beam_groups): not tested with the installed libraries: transformers 5.25.0
    changed GenerationMixin.generate (transformers.generation.utils). Install tested versions: pip install
    'transformers==5.24.0'; or go on at your own risk: --allow_untested_libraries

    Raises:
      ConfigError: not proved, and the run has not allowed it (`choose_libraries`).
    """
    for name, reason in unproved(names).items():
        if not _allows_untested.get():
            raise ConfigError(refusal(name, reason))
        if name not in _untested_in_use:
            logger.warning("--allow_untested_libraries: %s: %s", ENTRIES[name].purpose, reason)
        _untested_in_use[name] = reason


# Of this process, as the installed libraries are.
_allows_untested = contextvars.ContextVar("allows_untested", default=False)
_untested_in_use: dict[str, str] = {}


def refusal(name: str, reason: str) -> str:
    """The message for a run that needs an entry that is not proved."""
    entry = ENTRIES[name]
    packages = " ".join(f"'{package}=={newest_proved(package)}'" for package in packages_of(entry))
    return (
        f"{entry.purpose}: not tested with the installed libraries: {reason}. Install tested versions: "
        f"pip install {packages}; or go on at your own risk: --allow_untested_libraries"
    )


def unproved(names: Iterable[str]) -> dict[str, str]:
    """The entries among these that are not proved with what is installed, and why."""
    reasons = {name: _reason(ENTRIES[name]) for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def unproved_paths() -> dict[str, str]:
    """The fast paths that are not proved with what is installed, and why.

    `quick_tokenizer` has no entry: its ids are compared with the tokenizer's own wherever it is set up.
    """
    return unproved(name for name in FAST_PATHS if name in ENTRIES)


def _reason(entry: Entry) -> str | None:
    reason = source_reason(entry) or replaced_object(entry)
    if reason is None and entry.probe is not None:
        return probed(entry.probe, entry.library)
    return reason


@functools.cache
def probed(probe: str, library: str) -> str | None:
    """What a probe finds, once in a process; one that ends with an error has found that its library has changed."""
    try:
        return load_object(probe, "the probe")()
    except (ImportError, AttributeError, TypeError, RuntimeError) as error:
        return f"{installed(library)}: {type(error).__name__}: {error}"


def main(argv=None) -> None:
    """Prints every entry and its state, or adds the installed versions to the table."""
    parser = argparse.ArgumentParser(prog="python -m t5suite.base.libraries", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--prove", action="store_true", help="add the installed versions: after a green test run only")
    arguments = parser.parse_args(argv)
    if arguments.prove:
        write_table(with_installed(proved_table()))
        proved_table.cache_clear()
    for row in states():
        if arguments.json:
            print(json.dumps(row))
        else:
            print(f"{row['state']:<8}{row['entry']:<20}{row['reason'] or ''}")


def states() -> list[dict]:
    """Every entry's state with what is installed: `proved`, or what happens otherwise (`stock`, `refused`).

    >>> states()[0]
    {'entry': 'quick_attention', 'state': 'proved', 'libraries': ['transformers 5.24.0'], 'reason': None}

    An entry of a library that is not installed has the state `absent`.
    """
    return [_state(name, entry) for name, entry in ENTRIES.items()]


def _state(name: str, entry: Entry) -> dict:
    packages = packages_of(entry)
    missing_packages = [package for package in packages if source_file(package) is None]
    if missing_packages:
        state = "absent"
        reason = f"{listed(missing_packages)} not installed"
    else:
        state = "proved"
        reason = _reason(entry)
        if reason is not None:
            state = STATES[entry.otherwise]
    return {"entry": name, "state": state, "libraries": list(map(installed, packages)), "reason": reason}


if __name__ == "__main__":
    main()
