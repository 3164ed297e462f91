"""Texts that were too long for `--max_source_length` and `--max_target_length`: none is cut without a word.

>>> warn_of_cut_texts("mini/similarity", features, Lengths(512, 2))
WARNING mini/similarity: 96 of 400 targets fill --max_target_length 2 (tokens); what is longer loses its end
"""

import logging

from t5suite.data.features import TokenArrays
from t5suite.tasks.registry import Lengths

logger = logging.getLogger(__name__)


def warn_of_cut_texts(place: str, features: TokenArrays, lengths: Lengths) -> dict[str, int]:
    """`{flag: number of texts that fill it}`, logged where there are any.

    A cut target is a wrong one, and warned of; inputs are cut in most published systems, and only noted.
    """
    found = {}
    for level, what, rows, flag, longest in (
        (logging.INFO, "inputs", features.input_ids, "max_source_length", lengths.source),
        (logging.WARNING, "targets", features.labels, "max_target_length", lengths.target),
    ):
        count = int((rows.lengths >= longest).sum())
        if count:
            found[flag] = count
            message = "%s: %d of %d %s fill --%s %d (tokens); what is longer loses its end"
            logger.log(level, message, place, count, len(rows), what, flag, longest)
    return found
