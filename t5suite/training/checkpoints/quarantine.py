"""Checkpoints that do not verify are set aside under another name, never deleted.

>>> set_aside(Path("runs/x/checkpoint-400"), "optimizer.safetensors: 4096 bytes of 8192 (cut short?)")
PosixPath('runs/x/damaged-checkpoint-400')
"""

import logging
import os
from pathlib import Path

from t5suite.training.checkpoints.naming import DAMAGED

logger = logging.getLogger(__name__)


def set_aside(checkpoint: Path, reason: str) -> Path:
    """Renames a checkpoint to `damaged-checkpoint-N`, or `-2`, `-3` behind it, and says so in a warning."""
    place = checkpoint.with_name(DAMAGED + checkpoint.name)
    number = 1
    while os.path.lexists(place):
        number += 1
        place = checkpoint.with_name(f"{DAMAGED}{checkpoint.name}-{number}")
    os.rename(checkpoint, place)
    logger.warning("%s is damaged (%s); it is set aside as %s", checkpoint, reason, place.name)
    return place
