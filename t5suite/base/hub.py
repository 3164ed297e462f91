"""Whether the Hugging Face hub can be reached, found out in seconds and not in retries.

    >>> hub_reachable()
    False

Without a network, `datasets` and `huggingface_hub` retry for some 20 seconds before they say so; `prepare_hub` asks
once and then switches both libraries to their offline mode, in which cached files still load at once.
"""

import functools
import os
import sys
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
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def prepare_hub() -> bool:
    """Asks whether the hub is reachable; where it is not, puts the libraries into offline mode. Returns the answer."""
    if hub_reachable():
        return True
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    # Both libraries read the variable when they are imported, which may have happened before.
    for module_name in ("huggingface_hub.constants", "datasets.config"):
        if module_name in sys.modules:
            sys.modules[module_name].HF_HUB_OFFLINE = True
    return False
