"""Several metrics under one name.

    >>> METRIC_GROUPS["rouge"]
    ['rouge1', 'rouge2', 'rougeLsum']

In `metric_names` a group stands for its members, in `metric_to_optimize` for their mean.
"""

METRIC_GROUPS = {
    "squad": ["squad_f1", "squad_exact_match"],
    "rouge": ["rouge1", "rouge2", "rougeLsum"],
}
