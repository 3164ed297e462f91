"""The proof of an entry: its parts of libraries, as installed and as in memory, against those that were tested.

    >>> source_reason(ENTRIES["quick_decoding"])                # None: proved
    >>> source_reason(ENTRIES["quick_decoding"], lambda module: b"")
    'transformers 5.24.0 has no T5Attention (transformers.models.t5.modeling_t5)'

`proved_sources.json` holds, of every tested version, the SHA-256 of each file and the fingerprint of each definition
that an entry lists. A file with a known digest is proved at once, only an unknown one is parsed; no library is
imported. A definition that is in memory already is compared with the file, too: another library may have replaced it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType

from t5suite.base.errors import ConfigError
from t5suite.base.fingerprints import fingerprints, source_file
from t5suite.base.library_entries import ENTRIES, Entry

TABLE = Path(__file__).with_name("proved_sources.json")
# The suite's own replacements: code of ours in a library's place is no other library's patch.
OUR_CODE = Path(__file__).resolve().parent.parent
# Libraries whose decorators stand on definitions of others: `torch.no_grad`, `huggingface_hub`'s `strict`.
DECORATORS = ("huggingface_hub", "torch")
STANDARD_DECORATORS = frozenset(Path(module.__file__).resolve() for module in (contextlib, dataclasses))


def read_installed(module: str) -> bytes | None:
    """The source of an installed module; None if there is none."""
    path = source_file(module)
    if path is None:
        return None
    state = path.stat()
    return _content(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=64)  # about as many modules as all entries list
def _content(path: Path, changed_ns: int, size: int) -> bytes:
    """The bytes of a file, read once as long as it is the same: a run asks for the same proofs at several places."""
    return path.read_bytes()


@functools.lru_cache(maxsize=64)
def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def source_reason(entry: Entry, read: Callable[[str], bytes | None] = read_installed) -> str | None:
    """What in an entry's sources no tested version has; None if all parts are those of one tested version.

    Args:
      read: module -> its source.
    """
    versions: dict[str, set[str]] = {}
    for module, names in entry.names.items():
        package = package_of(module)
        content = read(module)
        if content is None:
            return f"{installed(package)} has no module {module}"
        proved, reason = _proved_versions(module, names, content)
        if reason is not None:
            return f"{installed(package)} {reason} ({module})"
        versions[package] = versions.get(package, proved) & proved
        if not versions[package]:
            return f"{installed(package)} mixes parts of several tested versions ({module})"
    return None


def _proved_versions(module: str, names: list[str], content: bytes) -> tuple[set[str], str | None]:
    """The tested versions whose parts these are, and what differs if there is none."""
    table = proved_table()
    by_file = table["files"].get(module, {}).get(_digest(content))
    if by_file is not None:
        return set(by_file), None
    versions = None
    for name, fingerprint in _parsed(content, tuple(names)).items():
        if fingerprint is None:
            return set(), f"has no {name}"
        by_name = table["names"].get(f"{module}:{name}", {}).get(fingerprint)
        if by_name is None:
            return set(), f"changed {name}"
        if versions is None:
            versions = set(by_name)
        versions &= set(by_name)
    if not versions:
        return set(), "mixes parts of several tested versions"
    return versions, None


@functools.cache
def _parsed(content: bytes, names: tuple[str, ...]) -> dict[str, str | None]:
    """The fingerprints of names in a source; parsed once in a process."""
    return fingerprints(content.decode("utf-8"), names)


def replaced_object(entry: Entry) -> str | None:
    """A function of the entry that other code has replaced in memory; None if there is none."""
    for module, names in entry.names.items():
        if module not in sys.modules:
            continue  # nobody can have replaced anything in it
        for name in names:
            place = _foreign_code(module, name)
            if place is not None:
                return f"{place} has replaced {name} of {installed(package_of(module))} ({module})"
    return None


def _foreign_code(module: str, name: str) -> str | None:
    """The file of the code that stands in a name's place in memory, if it is neither the library's nor ours."""
    value = sys.modules[module]
    for part in name.split("."):
        value = inspect.getattr_static(value, part, None)
    for function in _functions_of(value):
        *decorators, code = _layers(function)
        for decorator in decorators:
            if not _may_decorate(decorator.co_filename, module):
                return decorator.co_filename
        if not _is_expected(code.co_filename, code.co_qualname, module, name):
            return code.co_filename
    return None


def _layers(function) -> list[CodeType]:
    """The code of a function's decorators, the outermost first, and of the function itself.

    Another library's patch may call itself a decorator of what it replaces (`functools.wraps`).
    """
    layers = [function.__code__]
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
        layers.append(function.__code__)
    return layers


@functools.cache
def _may_decorate(code_file: str, module: str) -> bool:
    """Whether code of a file is of the module's library, of one that is known for its decorators, or ours."""
    file = _resolved(code_file)
    if file in STANDARD_DECORATORS:
        return True
    libraries = (package_of(module), *DECORATORS)
    folders = [_file_of(library).parent for library in libraries]
    return not {OUR_CODE, *folders}.isdisjoint(file.parents)


@functools.cache
def _is_expected(code_file: str, qualified_name: str, module: str, name: str) -> bool:
    """Whether code is the module's own under its name; or a method that a decorator has added; or ours."""
    if code_file.startswith("<"):  # written by `dataclasses`
        return True
    if _resolved(code_file) == _file_of(module):
        return qualified_name.startswith(name)
    return _may_decorate(code_file, module)


def _functions_of(value) -> list:
    """The functions behind a function, a property, a class or static method, or a class; none behind other values."""
    if not inspect.isclass(value):
        return _functions_of_member(value)
    functions = []
    for member in vars(value).values():
        functions += _functions_of_member(member)
    return functions


def _functions_of_member(value) -> list:
    if isinstance(value, property):
        candidates = [value.fget, value.fset]
    else:
        candidates = [getattr(value, "__func__", value)]
    return [candidate for candidate in candidates if inspect.isfunction(candidate)]


@functools.cache
def _resolved(file: str) -> Path:
    return Path(file).resolve()


@functools.cache
def _file_of(module: str) -> Path:
    return source_file(module).resolve()


def package_of(module: str) -> str:
    """The distribution of a module, which has its top package's name for all libraries here."""
    return module.partition(".")[0]


def packages_of(entry: Entry) -> list[str]:
    """The libraries whose parts an entry lists or probes."""
    packages = {package_of(module) for module in entry.sources}
    return sorted(packages or {entry.library})


@functools.cache
def installed(package: str) -> str:
    """`transformers 5.24.0`; the name alone if it is not installed."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def _installed_release(package: str) -> str:
    """A package's version without its build: `2.13.0` of `2.13.0+cu130`."""
    return importlib.metadata.version(package).split("+")[0]


def newest_proved(package: str) -> str:
    """The newest version of a library that is in the table."""
    return max(proved_table()["versions"][package], key=_as_numbers)


def _as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split("+")[0].split(".") if part.isdigit()]


@functools.cache
def proved_table() -> dict:
    """`{"versions": {package: [version]}, "files": {module: {digest: [version]}}, "names": {"module:name": {...}}}`."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def with_installed(table: dict) -> dict:
    """A table that also has the parts of the installed versions; packages that are not installed stay as they are."""
    versions = {package: set(tested) for package, tested in table["versions"].items()}
    files = _with_sets(table["files"])
    names = _with_sets(table["names"])
    for entry in ENTRIES.values():
        for module, listed_names in entry.names.items():
            content = read_installed(module)
            if content is None:
                continue
            package = package_of(module)
            version = _installed_release(package)
            versions.setdefault(package, set()).add(version)
            digest = hashlib.sha256(content).hexdigest()
            files.setdefault(module, {}).setdefault(digest, set()).add(version)
            for name, fingerprint in fingerprints(content.decode("utf-8"), listed_names).items():
                if fingerprint is None:
                    raise ConfigError(f"{installed(package)} has no {name} ({module})")
                names.setdefault(f"{module}:{name}", {}).setdefault(fingerprint, set()).add(version)
    probed_packages = {entry.library for entry in ENTRIES.values() if not entry.sources}
    for package in probed_packages:
        versions.setdefault(package, set()).add(_installed_release(package))
    return {"versions": versions, "files": files, "names": names}


def _with_sets(versions_by_digest: dict) -> dict:
    """A part of the table, each list of versions a set that can grow."""
    sets_by_name = {}
    for name, by_digest in versions_by_digest.items():
        sets_by_name[name] = {digest: set(versions) for digest, versions in by_digest.items()}
    return sets_by_name


def write_table(table: dict) -> None:
    """Writes the table, sorted, so that a new version is a small change."""
    text = json.dumps(table, indent=1, sort_keys=True, default=lambda versions: sorted(versions, key=_as_numbers))
    TABLE.write_text(text + "\n", encoding="utf-8")
