"""Checks within seconds, without retries, whether the Hugging Face hub can be reached.

    >>> hub_reachable()
    False

Without a network, `datasets` and `huggingface_hub` retry for some 20 seconds before they say so; `prepare_hub` asks
once and then switches both libraries to their offline mode, in which cached files still load at once. A hub that is
there but slow is no missing network: it is read, with retries (`hub_failures`). How long is slow is the client's own
setting, HF_HUB_ETAG_TIMEOUT (10 seconds).
"""

import functools
import http.client
import logging
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

from t5suite.base.errors import ConfigError, TemporaryError, UserError

logger = logging.getLogger(__name__)

# Seconds more than the client's own patience, after which a look-up of the server's name is given up.
LOOKUP_SECONDS = 1


@functools.cache
def hub_reachable() -> bool:
    """One HEAD request to the hub by the client's own session (its proxies and certificates), once per process."""
    if _is_switched_off():
        return False
    reason = why_hub_unreachable(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), patience())
    if reason is not None:
        _network.trouble = reason
    return reason is None


def _is_switched_off() -> bool:
    """Whether the environment asks for no network, now or when the hub's client read it: as it was imported."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            return True
    from huggingface_hub.constants import is_offline_mode

    return is_offline_mode()


class _Network:
    """What is known of the network.

    Attributes:
      trouble: why the hub cannot be reached; None if it can, or if the environment asks for no network.
    """

    trouble: str | None = None


_network = _Network()


def absent(message: str, usual: type[UserError] = ConfigError) -> UserError:
    """The error for something that is neither in the local cache nor, without the hub, to be had.

    Returns:
      the usual error if the environment says that there is no network; if it failed, one that says how, and that
      starting again may help (75).
    """
    if _network.trouble is None:
        return usual(message)
    return TemporaryError(
        f"{message}. The hub did not answer ({_network.trouble}): if that may pass, run the same command again; on a "
        "machine without a network set HF_HUB_OFFLINE=1"
    )


def patience() -> float:
    """Seconds that the hub's client waits for the hub's first answer."""
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


def why_hub_unreachable(server: str, seconds: float) -> str | None:
    """As `why_unreachable`, by the session of the hub's client.

    A server that takes the connection and is slow to answer is reachable.
    """
    from huggingface_hub import get_session

    def ask() -> str | None:
        try:
            get_session().head(server, timeout=seconds, follow_redirects=False)
        except Exception as error:  # the client's library for HTTP has its own errors
            name = type(error).__name__
            if name in ("ReadTimeout", "RemoteProtocolError", "ReadError"):
                logger.warning("%s is slow, or busy (%s within %g s); it is tried again", server, name, seconds)
                return None
            return f"{name}: {error}"
        return None

    return _within(seconds + LOOKUP_SECONDS, ask)


def why_unreachable(server: str, seconds: float) -> str | None:
    """Why a server cannot be reached within this many seconds; None if it answers, with any status."""

    def ask() -> str | None:
        try:
            urllib.request.urlopen(urllib.request.Request(server, method="HEAD"), timeout=seconds).close()
        except urllib.error.HTTPError:
            return None
        except (OSError, ValueError) as error:
            return str(getattr(error, "reason", error)) or type(error).__name__
        except http.client.HTTPException as error:  # no address of a web server, or no answer of one
            return f"{type(error).__name__}: {str(error).strip():.100}"
        return None

    return _within(seconds, ask)


def _within(seconds: float, ask: Callable[[], str | None]) -> str | None:
    """What `ask` answers; in a thread, because a DNS lookup has no time limit."""
    answers: list[str | None] = []
    thread = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        return f"nothing within {seconds:g} s"
    return answers[0]


def prepare_hub() -> bool:
    """Returns whether the hub is reachable; if it is not, puts the libraries into offline mode."""
    if hub_reachable():
        return True
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    # Both libraries read the variable when they are imported, which may have happened before.
    for module_name in ("huggingface_hub.constants", "datasets.config"):
        if module_name in sys.modules:
            sys.modules[module_name].HF_HUB_OFFLINE = True
    return False
