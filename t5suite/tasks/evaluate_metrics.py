"""Our metrics as `evaluate.Metric`s, for code that speaks that interface.

    >>> import evaluate
    >>> evaluate.combine([as_evaluate_metric("accuracy"), as_evaluate_metric("f1")]).compute(
    ...     predictions=[1, 0, 1], references=[1, 0, 0])
    {'accuracy': 66.66666666666667, 'f1': 66.66666666666666}

Nothing is fetched: the functions are those of `t5suite.tasks.metrics`, and scores are points (0 to 100).
"""

import datasets
import evaluate

from t5suite.base.lookup import find
from t5suite.tasks.metrics import METRIC_ALIASES, METRICS, TEXT_METRICS

NUMBER_METRICS = {"pearson", "spearman"}


def as_evaluate_metric(name: str) -> evaluate.Metric:
    """The metric `name` as an `evaluate.Metric`; `compute` takes predictions, references and the metric's keywords.

    Metrics of texts take one reference a prediction, or a list of them.

    Raises:
      ConfigError: there is no metric of that name.
    """
    name = METRIC_ALIASES.get(name, name)
    return _SuiteMetric(find(name, METRICS, "metric"), name)


class _SuiteMetric(evaluate.Metric):
    def __init__(self, function, name):
        self._function = function
        self._metric_name = name
        super().__init__(config_name=name)

    def _info(self):
        of_text = self._metric_name in TEXT_METRICS | {"exact_match"}
        kind = "string" if of_text else "float64" if self._metric_name in NUMBER_METRICS else "int64"
        value = datasets.Value(kind)
        references = [value, datasets.List(value)] if of_text else [value]
        return evaluate.MetricInfo(
            description=self._function.__doc__ or "",
            citation="",
            features=[datasets.Features({"predictions": value, "references": kind}) for kind in references],
        )

    def _compute(self, predictions, references, **keywords):
        return {self._metric_name: self._function(predictions, references, **keywords)}
