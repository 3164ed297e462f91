"""Checks within seconds, without retries, whether the Hugging Face hub can be reached.

    >>> hub_reachable()
    False

Without a network, `datasets` and `huggingface_hub` retry for some 20 seconds before they say so; `prepare_hub` asks
once and then switches both libraries to their offline mode, in which cached files still load at once.
"""

import functools
import os
import sys
import threading
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 4


@functools.cache
def hub_reachable() -> bool:
    """One HEAD request to the hub (through the proxies of the environment), asked once per process."""
    if any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    ):
        return False
    return why_unreachable(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), TIMEOUT_SECONDS) is None


def why_unreachable(server: str, seconds: float) -> str | None:
    """Why a server cannot be reached within this many seconds; None if it answers, with any status.

    In a thread, because a DNS lookup has no time limit.
    """
    said: list[str | None] = []

    def ask():
        try:
            urllib.request.urlopen(urllib.request.Request(server, method="HEAD"), timeout=seconds).close()
            said.append(None)
        except urllib.error.HTTPError:
            said.append(None)
        except (OSError, ValueError) as error:
            said.append(str(getattr(error, "reason", error)) or type(error).__name__)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return said[0] if said else f"nothing within {seconds:g} s"


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
