"""Hyperpartisan news detection (SemEval-2019 task 4): does an article follow a party without question?

    >>> HYPERPARTISAN["hyperpartisan"]["byarticle"]["labels"]
    ['false', 'true']

`byarticle`: labels by readers, in the form and the split of the hub's `zapsdcn/hyperpartisan_news` (`text` and `label`,
`true` or `false`; arXiv:2004.10964). `bypublisher`: labels by the publisher's bias, in the hub's own columns (`text`,
`title`, `hyperpartisan`, `url`, `published_at`, `bias`). The task's ranking is by accuracy.
"""

HYPERPARTISAN = {
    "hyperpartisan": {
        "byarticle": {
            "hub_path": "zapsdcn/hyperpartisan_news",
            "splits": {"train": "train", "validation": "validation", "test": "test"},
            "num_examples": {"train": 515, "validation": 65, "test": 65},
            "prefix": "hyperpartisan text: ",
            "text_column_name": "text",
            "label_column_name": "label",
            "labels": ["false", "true"],
            "metric_names": ["accuracy", "f1", "precision", "recall"],
            "metric_to_optimize": "accuracy",
        },
        "bypublisher": {
            "hub_path": "SemEvalWorkshop/hyperpartisan_news_detection",
            "hub_name": "bypublisher",
            "splits": {"train": "train", "validation": "validation"},
            "num_examples": {"train": 600000, "validation": 150000},
            "prefix": "hyperpartisan text: ",
            "text_column_name": "text",
            "label_column_name": "hyperpartisan",
            "labels": ["false", "true"],
            "metric_names": ["accuracy", "f1", "precision", "recall"],
            "metric_to_optimize": "accuracy",
        },
    },
}
