"""Question answering, summarization and translation in the original T5's text.

    >>> TEXT_TO_TEXT["translation"]["wmt14_en_de"]["prefix"]
    'translate English to German: '

Sources: arXiv:1910.10683, appendix D, and the released tasks `squad_v010_allanswers`, `cnn_dailymail_v002` and
`wmt*_v003` (XSum reads as CNN/DailyMail does). SQuAD 2.0 is no task of the original T5, so it has no form there and
none here. Numbers of rows are those of the hub's data sets.
"""

_TRAIN_VALIDATION_TEST = {"train": "train", "validation": "validation", "test": "test"}

TEXT_TO_TEXT = {
    "squad": {
        "squad": {
            "hub_path": "rajpurkar/squad",
            "hub_name": "plain_text",
            "splits": {"train": "train", "validation": "validation"},
            "num_examples": {"train": 87599, "validation": 10570},
            "formatter": "squad",
            "postprocess": "squad_answers",
            "prefix": ["question: ", "context: "],
            "text_column_name": ["question", "context"],
            "label_column_name": "answers.text",
            "labels": None,
            "metric_names": ["f1", "exact_match"],
            "metric_functions": {"f1": "squad_f1", "exact_match": "squad_exact_match"},
            "metric_to_optimize": "average",
        },
    },
    "summarization": {
        "cnn_dailymail": {
            "hub_path": "abisee/cnn_dailymail",
            "hub_name": "3.0.0",
            "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 287113, "validation": 13368, "test": 11490},
            "prefix": "summarize: ",
            "text_column_name": "article",
            "label_column_name": "highlights",
            "labels": None,
            "metric_names": ["rouge1", "rouge2", "rougeLsum"],
            "metric_to_optimize": "rouge",
        },
        "xsum": {
            "hub_path": "EdinburghNLP/xsum",
            "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 204045, "validation": 11332, "test": 11334},
            "prefix": "summarize: ",
            "text_column_name": "document",
            "label_column_name": "summary",
            "labels": None,
            "metric_names": ["rouge1", "rouge2", "rougeLsum"],
            "metric_to_optimize": "rouge",
        },
    },
    "translation": {
        "wmt14_en_de": {
            "hub_path": "wmt/wmt14",
            "hub_name": "de-en",
            "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 4508785, "validation": 3000, "test": 3003},
            "prefix": "translate English to German: ",
            "text_column_name": "translation.en",
            "label_column_name": "translation.de",
            "labels": None,
            "metric_names": ["bleu", "chrf"],
            "metric_to_optimize": "bleu",
        },
        "wmt14_en_fr": {
            "hub_path": "wmt/wmt14",
            "hub_name": "fr-en",
            "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 40836715, "validation": 3000, "test": 3003},
            "prefix": "translate English to French: ",
            "text_column_name": "translation.en",
            "label_column_name": "translation.fr",
            "labels": None,
            "metric_names": ["bleu", "chrf"],
            "metric_to_optimize": "bleu",
        },
        "wmt16_en_ro": {
            "hub_path": "wmt/wmt16",
            "hub_name": "ro-en",
            "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 610320, "validation": 1999, "test": 1999},
            "prefix": "translate English to Romanian: ",
            "text_column_name": "translation.en",
            "label_column_name": "translation.ro",
            "labels": None,
            "metric_names": ["bleu", "chrf"],
            "metric_to_optimize": "bleu",
        },
    },
}

TEXT_TO_TEXT_MIXTURES = {
    "summarization": {
        "all": {
            "train": ["cnn_dailymail", "xsum"],
            "evaluate": ["cnn_dailymail", "xsum"],
            "average": ["cnn_dailymail", "xsum"],
        },
    },
    "translation": {
        "all": {
            "train": ["wmt14_en_de", "wmt14_en_fr", "wmt16_en_ro"],
            "evaluate": ["wmt14_en_de", "wmt14_en_fr", "wmt16_en_ro"],
            "average": ["wmt14_en_de", "wmt14_en_fr", "wmt16_en_ro"],
        },
    },
}
