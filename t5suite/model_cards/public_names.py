"""What a card may say of places: names on the hub, and no folders of somebody's machine.

>>> without_folders("--data_dir=/home/ada/data --output_dir runs/rte")
'--data_dir=…/data --output_dir runs/rte'
>>> hub_name("google/t5-v1_1-small"), hub_name("/home/ada/models/best")
('google/t5-v1_1-small', None)
"""

import os
import re
from pathlib import Path

# A path from the root or from a home; the two slashes of an address are none.
FOLDERS = re.compile(r"(?<![^\s=,:'\"(\[`])(?:~[\w.-]*/|/(?!/))[^\s,:'\")\]`]*")
# A name on the hub: OWNER/NAME, or one of the first models' without an owner.
HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
# Where the hub's cache keeps a model: models--google--t5-v1_1-small/snapshots/4e79f2...
CACHED = re.compile(r"models--(.+?)/snapshots/")


def without_folders(text: str) -> str:
    """The text with the last name alone of every absolute path."""
    return FOLDERS.sub(lambda found: f"…/{Path(found[0]).name}", str(text))


def hub_name(name: str | None) -> str | None:
    """The name on the hub of what a flag named; None for folders and for what is in memory.

    >>> hub_name("/cache/models--google--mt5-small/snapshots/73fb5d/")
    'google/mt5-small'
    """
    cached = CACHED.search(name or "")
    if cached:
        return cached[1].replace("--", "/")
    if not name or os.path.exists(name) or not HUB_NAME.fullmatch(name):
        return None
    return name
