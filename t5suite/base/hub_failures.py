"""Failures of the Hugging Face hub: their true cause, whether they may pass, and what to do.

    >>> read_from_hub(Reading("model", "google/t5-v1_1-small", part="spiece.model"), download)
    TemporaryError: google/t5-v1_1-small (spiece.model): the hub limits the rate of requests (429 Too Many ...

`huggingface_hub`, `datasets` and `transformers` wrap what happened: a rate limit becomes a missing file, a connection
that broke becomes a wrong name. `failure_of` looks below the wrapping, at the exceptions that an error was raised from.
What may pass is tried again a bounded number of times, and then ends with exit code 75. What does not pass ends at
once: with 65 if a data set lacks a file, with 74 if the disk is full or fails, with 78 for anything else, such as a
token that the hub refuses, a gated repository or a name that it does not have.
"""

import contextlib
import email.utils
import errno
import logging
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from t5suite.base.errors import ConfigError, DataError, DiskError, TemporaryError, UserError
from t5suite.base.lookup import closest
from t5suite.base.redaction import redacted

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

RATE_LIMIT, SERVER, TRANSFER, TIMEOUT, CONNECTION = "rate limit", "server", "transfer", "timeout", "connection"
CERTIFICATE, TOKEN, GATED, FORBIDDEN = "certificate", "token", "gated", "forbidden"
REPOSITORY, REVISION, FILE = "repository", "revision", "file"
FULL_DISK, DISK = "full disk", "disk"
MAY_PASS = (RATE_LIMIT, SERVER, TRANSFER, TIMEOUT, CONNECTION)

ATTEMPTS = 4
# Between attempts; the hub's own word (Retry-After) goes first, up to its longest window of five minutes.
PAUSE_SECONDS = (1.0, 4.0, 16.0)
LONGEST_PAUSE_SECONDS = 300.0
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# How long the hub may take to tell of a repository for a better message; lists have the client's own limit.
ADVICE_SECONDS = 10.0

# By the names of an error's classes, because the libraries stand on several libraries for HTTP: httpx and httpx2,
# requests and urllib3, aiohttp, and Python's own.
KINDS_BY_CLASS = {
    "SSLCertVerificationError": CERTIFICATE, "CertificateError": CERTIFICATE,
    "TimeoutException": TIMEOUT, "Timeout": TIMEOUT, "TimeoutError": TIMEOUT, "FSTimeoutError": TIMEOUT,
    "ConnectTimeout": TIMEOUT, "ServerTimeoutError": TIMEOUT,
    "RemoteProtocolError": TRANSFER, "ReadError": TRANSFER, "WriteError": TRANSFER, "ProtocolError": TRANSFER,
    "DecodingError": TRANSFER, "ContentDecodingError": TRANSFER, "ChunkedEncodingError": TRANSFER,
    "IncompleteRead": TRANSFER, "IncompleteReadError": TRANSFER, "ClientPayloadError": TRANSFER,
    "ServerDisconnectedError": TRANSFER, "ConnectionResetError": TRANSFER, "ConnectionAbortedError": TRANSFER,
    "BrokenPipeError": TRANSFER, "XetDownloadError": TRANSFER, "SSLEOFError": TRANSFER, "SSLZeroReturnError": TRANSFER,
    "ConnectError": CONNECTION, "NetworkError": CONNECTION, "ProxyError": CONNECTION, "NewConnectionError": CONNECTION,
    "NameResolutionError": CONNECTION, "ClientConnectionError": CONNECTION, "gaierror": CONNECTION,
    "ConnectionError": CONNECTION, "SSLError": CONNECTION,
}  # fmt: skip
KINDS_BY_NUMBER = {
    errno.ENOSPC: FULL_DISK, errno.EDQUOT: FULL_DISK, errno.ENETUNREACH: CONNECTION, errno.EHOSTUNREACH: CONNECTION,
    errno.ETIMEDOUT: TIMEOUT, errno.EIO: DISK, errno.EROFS: DISK, errno.ESTALE: DISK,
}  # fmt: skip
# The class that the libraries raise where the network is switched off, by HF_HUB_OFFLINE say.
OFFLINE = "OfflineModeIsEnabled"
# What the libraries raise as an error without a class of its own.
KINDS_BY_TEXT = {
    "Consistency check failed": TRANSFER,  # huggingface_hub: a file is shorter than announced
    "Data processing error": TRANSFER,  # hf_xet
    "CAS service error": TRANSFER,  # hf_xet
}
KINDS_BY_CODE = {
    "GatedRepo": GATED, "RepoNotFound": REPOSITORY, "RevisionNotFound": REVISION, "EntryNotFound": FILE,
}  # fmt: skip
# The error classes of `huggingface_hub`, which chooses them by the code or, without one, by the address that was asked.
KINDS_BY_CLIENT_CLASS = {
    "GatedRepoError": GATED, "RepositoryNotFoundError": REPOSITORY, "RevisionNotFoundError": REVISION,
    "RemoteEntryNotFoundError": FILE,
}  # fmt: skip
KINDS_BY_STATUS = {401: TOKEN, 403: FORBIDDEN, 404: FILE, 408: TIMEOUT, 429: RATE_LIMIT}


class Reading(NamedTuple):
    """What is read from the hub.

    Attributes:
      kind: model, dataset or space.
      part: what of the repository is read: a file's name, or a word such as "tokenizer".
    """

    kind: str
    repository: str
    revision: str | None = None
    part: str | None = None


@dataclass(frozen=True)
class HubFailure:
    """What happened beneath an error.

    Attributes:
      kind: one of this module's kinds.
      reason: the status, or the transport's error.
      retry_after: seconds after which the hub wants to be asked again.
      file: the one that was asked for, if it is known.
    """

    kind: str
    reason: str
    retry_after: float | None = None
    file: str | None = None

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in MAY_PASS


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def read_from_hub(reading: Reading, read: Callable[[], Result]) -> Result:
    """`read()`; a failure that may pass is tried again, at most three times.

    Raises:
      TemporaryError: it has not passed.
      DiskError: there is no room for the file, or it cannot be written or read.
      ConfigError: the hub refuses the token, the repository is gated or forbidden, there is no such repository,
        revision or file, or its certificate cannot be verified.
      DataError: a data set lacks a file.
      whatever else `read` raises that is no failure of the hub, as it is.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return read()
        except UserError:  # of a reading within this one, which has been tried again and explained already
            raise
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            if not failure.may_pass or attempt == ATTEMPTS:
                raise hub_error(failure, reading) from error
            pause_before_retry(failure, reading, attempt)
    raise AssertionError("unreachable")


def pause_before_retry(failure: HubFailure, reading: Reading, attempt: int) -> None:
    """Waits and says why in the log: as long as the hub asks to; if it does not, each time longer than before."""
    seconds = PAUSE_SECONDS[attempt - 1]
    if failure.retry_after is not None:
        seconds = min(failure.retry_after, LONGEST_PAUSE_SECONDS)
    logger.warning(
        "%s: %s; trying again in %g s (attempt %d of %d)",
        _place(failure, reading),
        described(failure),
        seconds,
        attempt + 1,
        ATTEMPTS,
    )
    time.sleep(seconds)


# ---------------------------------------------------------------------------------------------------------------------
# What happened


def failure_of(error: BaseException) -> HubFailure | None:
    """The hub's failure beneath an error; None if it has another cause, or the network is switched off.

    >>> failure_of(OSError("We couldn't connect to ..."))  # raised from a response with status 429
    HubFailure(kind='rate limit', reason='429 Too Many Requests', retry_after=2.0, file=None)
    """
    connection_failure = None
    for link, is_caused in _errors_beneath(error):
        if OFFLINE in _class_names(link) or OFFLINE in str(link):  # `datasets` keeps only the name of the class
            return None
        failure = _failure_of_link(link)
        if failure is None:
            continue
        # Libraries look for optional files all the time. Whatever fails after that, for a reason of its own, has the
        # missing file as its context.
        if failure.kind == FILE and not is_caused:
            continue
        if failure.kind != CONNECTION:
            return failure
        # Libraries wrap a timeout, a certificate or a status in an error of a connection: what is below may say more.
        if connection_failure is None:
            connection_failure = failure
    return connection_failure


def _errors_beneath(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """An error and those beneath it, each once, and whether it was reached through causes alone.

    Of each error the causes come first, and then the context. A context is looked at even if `raise ... from None`
    hides it from tracebacks: the libraries hide statuses like this.
    """
    pending = [(error, True)]
    seen = set()
    while pending:
        link, is_caused = pending.pop()  # the one that was added last
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link, is_caused
        context = link.__context__
        if context is not None and context is not link.__cause__:
            pending.append((context, False))
        for cause in _causes_of(link):
            pending.append((cause, is_caused))


def _causes_of(error: BaseException) -> list[BaseException]:
    """The errors that an error was made of; the last one is looked at first."""
    reason = getattr(error, "reason", None)  # of urllib3's and urllib's errors
    members = getattr(error, "exceptions", ())  # of a group
    candidates = [reason, *error.args, error.__cause__, *members]
    return [candidate for candidate in candidates if isinstance(candidate, BaseException)]


def _class_names(error: BaseException) -> list[str]:
    """The names of an error's class and of all that it is derived from."""
    return [error_class.__name__ for error_class in type(error).__mro__]


def _failure_of_link(error: BaseException) -> HubFailure | None:
    status = _status_of(error)
    if status is not None:
        return _failure_of_status(error, status)
    kind = _kind_of_transport_error(error)
    if kind is None:
        return None
    return HubFailure(kind, _reason_of(error))


def _kind_of_transport_error(error: BaseException) -> str | None:
    number = getattr(error, "errno", None)
    if number in KINDS_BY_NUMBER:
        return KINDS_BY_NUMBER[number]
    if isinstance(error, PermissionError) and error.filename is not None:  # a connection's names no file
        return DISK
    for name in _class_names(error):
        if name in KINDS_BY_CLASS:
            return KINDS_BY_CLASS[name]
    for text, kind in KINDS_BY_TEXT.items():
        if str(error).startswith(text):
            return kind
    return None


def _reason_of(error: BaseException) -> str:
    """An error's class and message, in one line without secrets."""
    text = f"{type(error).__name__}: {error}".strip().rstrip(":")
    line = " ".join(text.split())
    return redacted(line)[:300]


def _status_of(error: BaseException) -> int | None:
    """The status of a response: httpx's and requests' errors hold the response, aiohttp's and urllib's are one."""
    holders = (getattr(error, "response", None), error)
    for holder in holders:
        for name in ("status_code", "status", "code"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and 100 <= status <= 599:
                return status
    return None


def _failure_of_status(error: BaseException, status: int) -> HubFailure | None:
    headers = _headers_of(error)
    kind = _kind_of_response(error, status, headers)
    if kind is None:
        return None
    reason = f"{status} {PHRASES.get(status, '')}".strip()
    return HubFailure(kind, reason, _retry_after(headers), _file_of(error))


def _kind_of_response(error: BaseException, status: int, headers: Mapping[str, str]) -> str | None:
    """The kind by the hub's own code; without one by the class of the client's error, else by the status."""
    code = headers.get("x-error-code", "")
    if code in KINDS_BY_CODE:
        return KINDS_BY_CODE[code]
    for name in _class_names(error):
        if name in KINDS_BY_CLIENT_CLASS:
            return KINDS_BY_CLIENT_CLASS[name]
    if status >= 500:
        return SERVER
    return KINDS_BY_STATUS.get(status)


def _file_of(error: BaseException) -> str | None:
    """The file that an address such as `https://huggingface.co/x/y/resolve/main/config.json` names."""
    path = urllib.parse.urlsplit(_address_of(error)).path
    _, _, revision_and_file = path.partition("/resolve/")
    _, _, file = revision_and_file.partition("/")  # a revision with slashes stands there as refs%2Fpr%2F1
    return urllib.parse.unquote(file) or None


def _address_of(error: BaseException) -> str:
    """The address that was asked last, after redirections; an empty text if it is not known."""
    response = getattr(error, "response", None)
    with contextlib.suppress(RuntimeError):  # httpx's, of a response that was made without a request
        request = getattr(response, "request", None)
        return str(getattr(request, "url", None) or getattr(response, "url", None) or "")
    return ""


def _headers_of(error: BaseException) -> dict[str, str]:
    response = getattr(error, "response", None)
    if response is None:
        response = error  # aiohttp's and urllib's errors are the response
    headers = getattr(response, "headers", None)
    if headers is None or not hasattr(headers, "items"):
        return {}
    return {str(name).lower(): str(value) for name, value in headers.items()}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: `Retry-After: 120`, the same as a date, or the hub's `RateLimit: "api";r=0;t=55`.

    `r` of the last one is how many requests are left, and `t` the seconds until there are new ones: with requests left
    there is nothing to wait for.
    """
    text = headers.get("retry-after", "").strip()
    if text.isdigit():
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        moment = email.utils.parsedate_to_datetime(text)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    match = re.search(r"r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", headers.get("ratelimit", ""))
    if match is None:
        return None
    return float(match[1])


# ---------------------------------------------------------------------------------------------------------------------
# What to say


def described(failure: HubFailure) -> str:
    """What happened, in a few words.

    >>> described(HubFailure("rate limit", "429 Too Many Requests"))
    'the hub limits the rate of requests (429 Too Many Requests)'
    """
    return f"{WORDS[failure.kind]} ({failure.reason})"


def hub_error(failure: HubFailure, reading: Reading) -> UserError:
    """The error for a failure: what happened, and what to do; its attribute `failure` is the failure."""
    message = f"{_place(failure, reading)}: {described(failure)}"
    if failure.may_pass:
        error: UserError = TemporaryError(f"{message}, {ATTEMPTS} times; {_patience(failure)}")
    elif failure.kind == FULL_DISK:
        error = DiskError(f"{message}; make room, or set HF_HOME to a folder on another disk")
    elif failure.kind == DISK:
        error = DiskError(f"{message}; check that disk and the permissions, or set HF_HOME to a folder elsewhere")
    elif failure.kind == FILE and reading.kind == "dataset":
        error = DataError(f"{message}; {_advice(failure, reading)}")
    else:
        error = ConfigError(f"{message}; {_advice(failure, reading)}")
    error.failure = failure
    return error


def _place(failure: HubFailure, reading: Reading) -> str:
    """The repository, what of it was read, and the file that was asked for unless the whole repository failed."""
    parts = []
    if reading.part:
        parts.append(reading.part)
    is_of_repository = failure.kind in (TOKEN, GATED, REPOSITORY, REVISION)
    if failure.file and not is_of_repository:
        parts.append(failure.file)
    if not parts:
        return reading.repository
    return f"{reading.repository} ({', '.join(dict.fromkeys(parts))})"


def _patience(failure: HubFailure) -> str:
    later = "it may pass: run the same command again later"
    if failure.kind == RATE_LIMIT:
        return f"{later}; `hf auth login` or HF_TOKEN raises the limit"
    if failure.kind == CONNECTION:
        return f"{later}; on a machine without a network give local folders, and set HF_HUB_OFFLINE=1"
    if failure.kind == TIMEOUT:
        return f"{later}, or with more patience: HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT, in seconds"
    return later


def _advice(failure: HubFailure, reading: Reading) -> str:
    """What to do about a failure that does not pass; the hub is asked for what it has instead."""
    section = {"dataset": "datasets/", "space": "spaces/"}.get(reading.kind, "")
    page = f"{_endpoint()}/{section}{reading.repository}"
    where_token_is = token_source()
    if failure.kind == GATED:
        return _advice_on_terms(where_token_is, page)
    if failure.kind == TOKEN:
        return _advice_on_token(where_token_is, reading)
    if failure.kind == FORBIDDEN:
        return f"the account or its token may not read it; see {page}"
    if failure.kind == CERTIFICATE:
        return "name the certificates of your proxy or mirror by SSL_CERT_FILE=FILE.pem"
    if failure.kind == REPOSITORY:
        return _advice_on_repository(where_token_is, reading)
    if failure.kind == REVISION:
        return _choice_among(reading.revision or "main", _revisions(reading))
    return _choice_among(failure.file or reading.part or "", _files(reading))


def _advice_on_terms(where_token_is: str | None, page: str) -> str:
    """What to do where the terms of a repository must be accepted first; `page` is where."""
    if where_token_is:
        return f"accept its terms at {page} with the account of the token"
    return f"accept its terms at {page} and log in by `hf auth login`, or set HF_TOKEN"


def _advice_on_repository(where_token_is: str | None, reading: Reading) -> str:
    """What to do where there is no such repository, or none that can be seen without a token."""
    advice = _names_like(reading.repository, _repositories_like(reading)) or "check the name"
    if where_token_is:
        return advice
    return f"{advice}; if it is private, log in by `hf auth login`, or set HF_TOKEN"


def _advice_on_token(where_token_is: str | None, reading: Reading) -> str:
    """What to do where the hub does not accept the token, or there is none."""
    if where_token_is is None:
        return "log in by `hf auth login`, or set HF_TOKEN"
    remedy = "log in again by `hf auth login`, or log out by `hf auth logout`"
    if where_token_is in TOKEN_VARIABLES:
        remedy = f"set {where_token_is} to a valid one, or unset it and log in by `hf auth login`"
    advice = f"the token ({where_token_is}) is wrong or has expired: {remedy}"
    if _is_public(reading):
        advice += f"; {reading.repository} is public and needs no token"
    return advice


def _names_like(name: str, names: list[str]) -> str | None:
    """Advice: the names that are like this one; None if there are none.

    >>> _names_like("spiece.modle", ["config.json", "spiece.model"])
    'did you mean spiece.model?'
    """
    near = closest(name, names)
    if near:
        return f"did you mean {', '.join(near)}?"
    return None


def _choice_among(name: str, names: list[str]) -> str:
    """Advice on a file or revision that a repository lacks: those that are like it, else the first ones that it has."""
    if not names:
        return "check the name"
    return _names_like(name, names) or f"it has {', '.join(names[:8])}"


def token_source() -> str | None:
    """Where the token is that the hub's client sends, a variable's name or a few words; None if it sends none."""
    from huggingface_hub import get_token

    for name in TOKEN_VARIABLES:
        if os.environ.get(name):
            return name
    with contextlib.suppress(Exception):
        if get_token():
            return "stored by `hf auth login`"
    return None


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _answer(ask: Callable[[], Result], default: Result) -> Result:
    """What the hub says; the default if it fails once more, which adds nothing to the first failure."""
    try:
        return ask()
    except Exception as error:
        logger.info("the hub could not be asked for more (%s)", type(error).__name__)
        return default


def _is_public(reading: Reading) -> bool:
    """Whether the repository can be read without a token, as a gated one cannot, although the hub tells of it."""
    from huggingface_hub import HfApi

    def ask() -> bool:
        info = HfApi(token=False).repo_info(reading.repository, repo_type=reading.kind, timeout=ADVICE_SECONDS)
        is_gated = bool(getattr(info, "gated", False))  # spaces have no such field
        return not info.private and not is_gated

    return _answer(ask, False)


def _repositories_like(reading: Reading) -> list[str]:
    from huggingface_hub import HfApi

    owner, _, name = reading.repository.rpartition("/")
    api = HfApi()
    lists = {"model": api.list_models, "dataset": api.list_datasets, "space": api.list_spaces}
    list_them = lists[reading.kind]

    def ids(**query) -> list[str]:
        return [repository.id for repository in list_them(**query)]

    if not owner:
        return _answer(lambda: ids(search=name, limit=500), [])
    repositories_of_owner = _answer(lambda: ids(author=owner, limit=500), [])
    if repositories_of_owner:
        return repositories_of_owner
    return _answer(lambda: ids(search=name, limit=50), [])


def _revisions(reading: Reading) -> list[str]:
    from huggingface_hub import HfApi

    def ask() -> list[str]:
        refs = HfApi().list_repo_refs(reading.repository, repo_type=reading.kind)
        return [ref.name for ref in (*refs.branches, *refs.tags)]

    return _answer(ask, [])


def _files(reading: Reading) -> list[str]:
    from huggingface_hub import HfApi

    def ask() -> list[str]:
        revision = reading.revision
        info = HfApi().repo_info(reading.repository, repo_type=reading.kind, revision=revision, timeout=ADVICE_SECONDS)
        return [file.rfilename for file in info.siblings or ()]

    return _answer(ask, [])


PHRASES = {
    401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 408: "Request Timeout", 429: "Too Many Requests",
    500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
WORDS = {
    RATE_LIMIT: "the hub limits the rate of requests", SERVER: "the hub has an error of its own",
    TRANSFER: "the transfer broke", TIMEOUT: "the hub did not answer in time",
    CONNECTION: "the hub cannot be reached", CERTIFICATE: "the hub's certificate cannot be verified",
    FULL_DISK: "the disk of the hub's cache is full", DISK: "a file cannot be written or read",
    TOKEN: "the hub refuses the login",
    GATED: "the repository is gated", FORBIDDEN: "the hub forbids it",
    REPOSITORY: "there is no such repository on the hub, or it is private",
    REVISION: "the repository has no such revision", FILE: "the repository has no such file",
}  # fmt: skip
