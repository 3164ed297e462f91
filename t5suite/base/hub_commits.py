"""Commits of hub repositories: a revision is looked up once, and everything is then read from the commit that it names.

    >>> commit_to_read("model", "google/t5-v1_1-small", "main")
    '4e79f2ee4c5b3d5e1d7c0e8a7a0f1d0a6a1b7c33'
    >>> hub_reads().described()
    {'models': {'google/t5-v1_1-small': {'revision': 'main', 'commit': '4e79f2ee4c5b3d5e1d7c0e8a7a0f1d0a6a1b7c33'}}}

A branch may move while a run reads configuration, tokenizer, weights and rows one after the other. `HubReads` holds
which commit each revision stands for in a run, and which of them the run has read; the manifest gets the latter, and a
run that resumes begins with them. Without a network a revision is the commit that the local cache has for it. Folders
have no commit.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.hub import patience, prepare_hub
from t5suite.base.hub_failures import REVISION, Reading, read_from_hub

logger = logging.getLogger(__name__)

# Kinds of repositories, as the hub's client names them: what the manifest calls them, and a file that most have. The
# client's own cache remembers which commit a branch stands for when this file is asked for by the branch's name.
KINDS = {"model": "models", "dataset": "datasets", "space": "spaces"}
COMMON_FILES = {"model": "config.json", "dataset": "README.md", "space": "README.md"}
COMMIT = re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
LOOKUP_SECONDS = 30


class Request(NamedTuple):
    """A revision of a repository, as the user asked for it; None is the repository's main branch."""

    kind: str
    repository: str
    revision: str | None = None


@dataclass
class HubReads:
    """What one run reads from the hub.

    Attributes:
      commits: the commit that each request stands for.
      read: the requests whose files were read, with their commits.
      revisions: by kind and repository, the revisions that flags name; they apply where a caller names none.
      fetched: the models whose files are in the local cache, with the commit, and whether the weights are.
    """

    commits: dict[Request, str] = field(default_factory=dict)
    read: dict[Request, str] = field(default_factory=dict)
    revisions: dict[tuple[str, str], str] = field(default_factory=dict)
    fetched: set[tuple[str, str, bool]] = field(default_factory=set)

    def note(self, request: Request, commit: str | None) -> None:
        """Records that a request's files are read from this commit; None, an unknown one, is not recorded."""
        if commit is not None:
            self.read[request] = commit

    def described(self) -> dict:
        """What was read, for the manifest: `{"models": {repository: {"revision": ..., "commit": ...}}}`."""
        described: dict = {}
        for request, commit in self.read.items():
            section = described.setdefault(KINDS[request.kind], {})
            name = request.repository
            if section.get(name, {}).get("commit", commit) != commit:
                name = f"{name}@{request.revision or commit}"
            section[name] = {"revision": request.revision, "commit": commit}
        return described

    def continue_from(self, described: Mapping) -> None:
        """Reads the commits of an earlier start again; `described` is what its manifest says.

        What was looked up before stays.
        """
        for kind, section in KINDS.items():
            for name, entry in described.get(section, {}).items():
                request = Request(kind, name.partition("@")[0], entry.get("revision"))
                self.commits.setdefault(request, entry["commit"])


_current = HubReads()


def hub_reads() -> HubReads:
    """What this run, or this process, has read from the hub so far."""
    return _current


def forget_hub_reads() -> None:
    """A new run begins in this process: revisions are looked up anew."""
    global _current
    _current = HubReads()


@contextlib.contextmanager
def reading_as(reads: HubReads) -> Iterator[HubReads]:
    """Within this block the hub is read as `reads` says, and reads are recorded there."""
    global _current
    former_reads = _current
    _current = reads
    try:
        yield reads
    finally:
        _current = former_reads


def is_commit(revision: str | None) -> bool:
    """Whether a revision is a whole commit hash, which never stands for anything else."""
    return revision is not None and COMMIT.fullmatch(revision) is not None


def is_repository(name: str | None) -> bool:
    """Whether a name is a repository's rather than that of a local file or folder."""
    if not name or not REPOSITORY.fullmatch(name):
        return False
    return not os.path.exists(name)


def commit_to_read(kind: str, name: str, revisions: str | None = None) -> str | None:
    """The commit to read a repository from; it is recorded as read.

    Args:
      kind: model, dataset or space.
      name: a repository. A local folder has no commit: the result is None.
      revisions: a branch, tag or commit, or a list of the form `repository=revision,...`; None: the one that flags
        name for this repository, else its main branch.

    Returns:
      None also if there is no network, and the local cache does not know the revision.

    Raises:
      UserError: as `hub_failures.read_from_hub`; not if the local cache has a commit of this revision.
      ValueError: not a name of a repository.
    """
    if not is_repository(name):
        return None
    reads = hub_reads()
    revision = revision_of(revisions, name) or reads.revisions.get((kind, name))
    request = Request(kind, name, revision)
    commit = look_up(request)
    reads.note(request, commit)
    return commit


def revision_to_read(kind: str, name: str, revisions: str | None = None) -> str | None:
    """What to give a library as `revision`: the commit to read; if none is known, the revision that is asked for.

    As `commit_to_read`.
    """
    commit = commit_to_read(kind, name, revisions)
    if commit is None:
        return revision_of(revisions, name)
    return commit


def look_up(request: Request) -> str | None:
    """The commit that a request stands for in this run, without recording it as read; as `commit_to_read`."""
    if is_commit(request.revision):
        return request.revision
    commits = hub_reads().commits
    if request not in commits:
        commit = _commit_of(request)
        if commit is None:
            return None
        commits[request] = commit
    return commits[request]


def _commit_of(request: Request) -> str | None:
    """What the hub says; without a network, and if the hub fails, what its local cache says."""
    if not prepare_hub():
        return _cached_commit(request)
    try:
        return ask_for_commit(request)
    except UserError as error:
        failure = getattr(error, "failure", None)
        commit = _cached_commit(request)
        if commit is None:
            raise
        if failure is None or failure.kind == REVISION:
            raise
        logger.warning(
            "%s; the copy in the local cache is read, of commit %s, which may no longer be the newest", error, commit
        )
        return commit


def ask_for_commit(request: Request) -> str:
    """The commit that a request stands for on the hub now.

    Raises:
      UserError: as `read_from_hub`.
    """
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import RemoteEntryNotFoundError

    kind, repository, revision = request
    address = hf_hub_url(repository, COMMON_FILES[kind], repo_type=kind, revision=revision)

    def ask() -> str:
        try:
            get_hf_file_metadata(address, timeout=patience())  # fails where a download falls back to the cache
            file = hf_hub_download(repository, COMMON_FILES[kind], repo_type=kind, revision=revision)
        except RemoteEntryNotFoundError:  # a repository without this file
            return HfApi().repo_info(repository, repo_type=kind, revision=revision, timeout=LOOKUP_SECONDS).sha
        return Path(file).parent.name  # .../snapshots/<commit>/config.json

    return read_from_hub(Reading(kind, repository, revision), ask)


def _cached_commit(request: Request) -> str | None:
    """The commit that the cache of the hub's client has for a branch or tag."""
    from huggingface_hub import constants

    folder = f"{request.kind}s--{request.repository.replace('/', '--')}"
    file = Path(constants.HF_HUB_CACHE) / folder / "refs" / (request.revision or "main")
    if not file.is_file():
        return None
    return file.read_text(encoding="utf-8").strip()


# ---------------------------------------------------------------------------------------------------------------------
# The flags: --model_revision, --data_revision


def parse_revisions(text: str | None, flag: str) -> str | dict[str, str] | None:
    """One revision, or a table of revisions by repository.

    >>> parse_revisions("aps/super_glue=3de24c,community-datasets/definite_pronoun_resolution=v1", "--data_revision")
    {'aps/super_glue': '3de24c', 'community-datasets/definite_pronoun_resolution': 'v1'}
    >>> parse_revisions("main", "--data_revision")
    'main'

    Raises:
      ConfigError: an item of a list that is not of the form repository=revision, or a repository that occurs twice.
    """
    if text is None or "=" not in text:
        return text
    revisions: dict[str, str] = {}
    for item in text.split(","):
        repository, _, revision = (part.strip() for part in item.partition("="))
        if not repository or not revision:
            raise ConfigError(f"{flag} {text!r}: {item!r} is not of the form repository=revision")
        if repository in revisions:
            raise ConfigError(f"{flag} {text!r}: {repository} occurs twice")
        revisions[repository] = revision
    return revisions


def revision_of(text: str | None, repository: str, flag: str = "revision") -> str | None:
    """The revision of one repository; None if the flag names none for it."""
    revisions = parse_revisions(text, flag)
    if isinstance(revisions, dict):
        return revisions.get(repository)
    return revisions


def check_revisions(text: str | None, flag: str, repositories: Iterable[str]) -> dict[str, str]:
    """The revision of each repository that the flag names one for.

    Args:
      repositories: those that the run reads.

    Raises:
      ConfigError: the flag names a repository that the run does not read; or it gives one commit, and the run reads
        several repositories.
    """
    names = list(dict.fromkeys(repositories))
    revisions = parse_revisions(text, flag)
    if revisions is None:
        return {}
    listed = ", ".join(names) or "nothing"
    if isinstance(revisions, dict):
        for repository in revisions:
            if repository not in names:
                raise ConfigError(f"{flag}: this run does not read {repository!r} from the hub; it reads {listed}")
        return revisions
    if is_commit(revisions) and len(names) > 1:
        form = ",".join(f"{name}=REVISION" for name in names)
        raise ConfigError(
            f"{flag} {revisions}: a commit belongs to one repository, and this run reads {listed}; give {flag} {form}"
        )
    return dict.fromkeys(names, revisions)
