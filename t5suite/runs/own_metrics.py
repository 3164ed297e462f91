"""The metrics of the user's own code that a run was scored by: its manifest names them, and only a flag runs them.

>>> own_metrics_of_model("runs/orders")                    # --metrics exact_match,order_metrics:field_share
['order_metrics:field_share']
"""

from t5suite.base.errors import ConfigError
from t5suite.runs.directory import read_manifest
from t5suite.runs.trained_splits import run_of_model


def own_metrics_of_model(name: str | None) -> list[str]:
    """The functions of `--metrics`, and the metrics of `evaluate`, by which the run of a model was scored.

    Args:
      name: as `run_of_model` takes it; anything else than a run has none that are known here.
    """
    folder = run_of_model(name)
    if folder is None:
        return []
    try:
        settings = read_manifest(folder)["settings"]
    except ConfigError:  # the model may be whole though its run's manifest is not
        return []
    plug_ins = settings.get("plug_ins") or {}
    return [described["name"] for described in plug_ins.get("metrics", [])]
