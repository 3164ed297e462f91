"""Registry entries of further benchmarks, in the form that `t5suite.constants` describes; it puts them together.

    >>> TEXT_TO_TEXT["translation"]["wmt14_en_de"]["prefix"]
    'translate English to German: '

Question answering, summarization and translation have the original T5's text: arXiv:1910.10683, appendix D, and the
released tasks `squad_v010_allanswers`, `cnn_dailymail_v002` and `wmt*_v003` (XSum reads as CNN/DailyMail does). SQuAD
2.0 is no task of the original T5, so it has no form there and none here. Numbers of rows are those of the hub's data
sets.
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

# SCROLLS (arXiv:2201.03533): seven tasks over long texts, in the form of the hub's `tau/scrolls`. A row has `id`,
# `pid`, `input` (a question, where there is one, stands before the document) and `output`, hidden in the test split.
# Rows of one `id` are one question with several answers: each is a training example, and together they are one scored
# row, as in the benchmark's own evaluator.
_SCROLLS = {
    "hub_path": "tau/scrolls",
    "splits": _TRAIN_VALIDATION_TEST,
    "prefix": "",
    "text_column_name": "input",
    "label_column_name": "output",
    "labels": None,
    "references_by": "id",
}
_SUMMARY = {
    "metric_names": ["rouge1", "rouge2", "rougeL", "rouge_geometric_mean"],
    "metric_to_optimize": "rouge_geometric_mean",
}
SCROLLS = {
    "scrolls": {
        "gov_report": {
            **_SCROLLS,
            "hub_name": "gov_report",
            "num_examples": {"train": 17457, "validation": 972, "test": 973},
            **_SUMMARY,
        },
        "summ_screen_fd": {
            **_SCROLLS,
            "hub_name": "summ_screen_fd",
            "num_examples": {"train": 3673, "validation": 338, "test": 337},
            **_SUMMARY,
        },
        "qmsum": {
            **_SCROLLS,
            "hub_name": "qmsum",
            "num_examples": {"train": 1257, "validation": 272, "test": 281},
            **_SUMMARY,
        },
        "narrative_qa": {
            **_SCROLLS,
            "hub_name": "narrative_qa",
            "metric_names": ["f1"],
            "metric_functions": {"f1": "squad_f1"},
            "metric_to_optimize": "f1",
        },
        "qasper": {
            **_SCROLLS,
            "hub_name": "qasper",
            "metric_names": ["f1"],
            "metric_functions": {"f1": "squad_f1"},
            "metric_to_optimize": "f1",
        },
        "quality": {
            **_SCROLLS,
            "hub_name": "quality",
            "num_examples": {"train": 2523, "validation": 2086, "test": 2128},
            "metric_names": ["exact_match"],
            "metric_functions": {"exact_match": "squad_exact_match"},
            "metric_to_optimize": "exact_match",
        },
        "contract_nli": {
            **_SCROLLS,
            "hub_name": "contract_nli",
            "num_examples": {"train": 7191, "validation": 1037, "test": 2091},
            "metric_names": ["exact_match"],
            "metric_functions": {"exact_match": "squad_exact_match"},
            "metric_to_optimize": "exact_match",
        },
    },
}

_TASKS = ["gov_report", "summ_screen_fd", "qmsum", "narrative_qa", "qasper", "quality", "contract_nli"]

SCROLLS_MIXTURES = {"scrolls": {"all": {"train": _TASKS, "evaluate": _TASKS, "average": _TASKS}}}


# Super-NaturalInstructions (arXiv:2204.07705): train on many tasks' instructions, be scored on tasks never seen.
# `instruction` says which instances are read and how an instruction is written; its keys are the flags' names, which
# are Tk-Instruct's own. The values are Tk-Instruct's recipe: the definition, two positive examples, at most 100
# instances of a training task, and the first 100 of a test task, which are its official test instances.
SUPER_NATURAL_INSTRUCTIONS = {
    "super_ni": {
        "english": {
            "source": "super_ni",
            "splits": {"train": "train", "test": "test"},
            "formatter": "super_ni",
            "instruction": {
                "task_lists": "default",
                "max_num_instances_per_task": 100,
                "max_num_instances_per_eval_task": 100,
                "add_task_definition": True,
                "num_pos_examples": 2,
                "num_neg_examples": 0,
                "add_explanation": False,
                "add_task_name": False,
                "tk_instruct": False,
                "seed": 42,
            },
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "metric_names": ["rougeL", "exact_match"],
            "metric_functions": {"rougeL": "instruction_rougeL", "exact_match": "instruction_exact_match"},
            "metric_to_optimize": "rougeL",
            "report_by": ["category", "task"],
        },
    },
}
