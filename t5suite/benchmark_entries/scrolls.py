"""SCROLLS (arXiv:2201.03533): seven tasks over long texts, in the form of the hub's `tau/scrolls`.

    >>> SCROLLS["scrolls"]["qasper"]["references_by"]
    'id'

A row has `id`, `pid`, `input` (a question, where there is one, stands before the document) and `output`, hidden in the
test split. Rows of one `id` are one question with several answers: each is a training example, and together they are
one scored row, as in the benchmark's own evaluator.
"""

_SPLITS = {"train": "train", "validation": "validation", "test": "test"}
_SUMMARY_METRICS = ["rouge1", "rouge2", "rougeL", "rouge_geometric_mean"]

SCROLLS = {
    "scrolls": {
        "gov_report": {
            "hub_path": "tau/scrolls",
            "hub_name": "gov_report",
            "splits": _SPLITS,
            "num_examples": {"train": 17457, "validation": 972, "test": 973},
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "references_by": "id",
            "metric_names": _SUMMARY_METRICS,
            "metric_to_optimize": "rouge_geometric_mean",
        },
        "summ_screen_fd": {
            "hub_path": "tau/scrolls",
            "hub_name": "summ_screen_fd",
            "splits": _SPLITS,
            "num_examples": {"train": 3673, "validation": 338, "test": 337},
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "references_by": "id",
            "metric_names": _SUMMARY_METRICS,
            "metric_to_optimize": "rouge_geometric_mean",
        },
        "qmsum": {
            "hub_path": "tau/scrolls",
            "hub_name": "qmsum",
            "splits": _SPLITS,
            "num_examples": {"train": 1257, "validation": 272, "test": 281},
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "references_by": "id",
            "metric_names": _SUMMARY_METRICS,
            "metric_to_optimize": "rouge_geometric_mean",
        },
        "narrative_qa": {
            "hub_path": "tau/scrolls",
            "hub_name": "narrative_qa",
            "splits": _SPLITS,
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "references_by": "id",
            "metric_names": ["f1"],
            "metric_functions": {"f1": "squad_f1"},
            "metric_to_optimize": "f1",
        },
        "qasper": {
            "hub_path": "tau/scrolls",
            "hub_name": "qasper",
            "splits": _SPLITS,
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "references_by": "id",
            "metric_names": ["f1"],
            "metric_functions": {"f1": "squad_f1"},
            "metric_to_optimize": "f1",
        },
        "quality": {
            "hub_path": "tau/scrolls",
            "hub_name": "quality",
            "splits": _SPLITS,
            "num_examples": {"train": 2523, "validation": 2086, "test": 2128},
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "references_by": "id",
            "metric_names": ["exact_match"],
            "metric_functions": {"exact_match": "squad_exact_match"},
            "metric_to_optimize": "exact_match",
        },
        "contract_nli": {
            "hub_path": "tau/scrolls",
            "hub_name": "contract_nli",
            "splits": _SPLITS,
            "num_examples": {"train": 7191, "validation": 1037, "test": 2091},
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "references_by": "id",
            "metric_names": ["exact_match"],
            "metric_functions": {"exact_match": "squad_exact_match"},
            "metric_to_optimize": "exact_match",
        },
    },
}

_TASKS = ["gov_report", "summ_screen_fd", "qmsum", "narrative_qa", "qasper", "quality", "contract_nli"]

SCROLLS_MIXTURES = {"scrolls": {"all": {"train": _TASKS, "evaluate": _TASKS, "average": _TASKS}}}
