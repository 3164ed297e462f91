"""Registry entries of further benchmarks, in the form that `t5suite.constants` describes; that module joins them.

    >>> TEXT_TO_TEXT["translation"]["wmt14_en_de"]["prefix"]
    'translate English to German: '

Question answering, summarization and translation have the original T5's text: arXiv:1910.10683, appendix D, and the
released tasks `squad_v010_allanswers`, `cnn_dailymail_v002` and `wmt*_v003` (XSum has CNN/DailyMail's format). SQuAD
2.0 is not a task of the original T5, so it has no format there and is not here. Numbers of rows are those of the hub's
datasets.
"""

_THREE_SPLITS = {"train": "train", "validation": "validation", "test": "test"}
_SUMMARIZATION = {
    "splits": _THREE_SPLITS,
    "prefix": "summarize: ",
    "labels": None,
    "metric_names": ["rouge1", "rouge2", "rougeLsum"],
    "metric_to_optimize": "rouge",  # the mean of the three (METRIC_GROUPS)
}


def _translation(year: int, code: str, language: str, *counts: int) -> dict:
    """A direction of WMT, from English."""
    return {
        "hub_path": f"wmt/wmt{year}",
        "hub_name": f"{code}-en",
        "splits": _THREE_SPLITS,
        "num_examples": dict(zip(_THREE_SPLITS, counts, strict=True)),
        "prefix": f"translate English to {language}: ",
        "text_column_name": "translation.en",
        "label_column_name": f"translation.{code}",
        "labels": None,
        "metric_names": ["bleu", "chrf"],
        "metric_to_optimize": "bleu",
    }


TEXT_TO_TEXT = {
    "squad": {
        "squad": {
            "hub_path": "rajpurkar/squad", "hub_name": "plain_text",
            "splits": {"train": "train", "validation": "validation"},
            "num_examples": {"train": 87599, "validation": 10570}, "formatter": "squad",
            "postprocess": "squad_answers", "prefix": ["question: ", "context: "],
            "text_column_name": ["question", "context"], "label_column_name": "answers.text", "labels": None,
            "metric_names": ["f1", "exact_match"],
            "metric_functions": {"f1": "squad_f1", "exact_match": "squad_exact_match"},
            "metric_to_optimize": "average",  # of its metrics
        }
    },
    "summarization": {
        "cnn_dailymail": {
            **_SUMMARIZATION, "hub_path": "abisee/cnn_dailymail", "hub_name": "3.0.0",
            "num_examples": {"train": 287113, "validation": 13368, "test": 11490}, "text_column_name": "article",
            "label_column_name": "highlights",
        },
        "xsum": {
            **_SUMMARIZATION,
            "hub_path": "EdinburghNLP/xsum",
            "num_examples": {"train": 204045, "validation": 11332, "test": 11334},
            "text_column_name": "document",
            "label_column_name": "summary",
        },
    },
    "translation": {
        "wmt14_en_de": _translation(14, "de", "German", 4508785, 3000, 3003),
        "wmt14_en_fr": _translation(14, "fr", "French", 40836715, 3000, 3003),
        "wmt16_en_ro": _translation(16, "ro", "Romanian", 610320, 1999, 1999),
    },
}  # fmt: skip

# SCROLLS (arXiv:2201.03533): seven tasks over long texts, in zip files of the hub's `tau/scrolls`. A row has `id`,
# `pid`, `input` (a question, if there is one, precedes the document) and `output`, hidden in the test split.
# Rows of one `id` are one question with several answers: each is a training example, and together they are one scored
# row, as in the benchmark's own evaluator.
_SUMMARY = {"metric_names": ["rouge1", "rouge2", "rougeL", "rouge_geometric_mean"]}
_SUMMARY["metric_to_optimize"] = "rouge_geometric_mean"
_F1 = {"metric_names": ["f1"], "metric_functions": {"f1": "squad_f1"}, "metric_to_optimize": "f1"}
_EXACT = {"metric_names": ["exact_match"], "metric_functions": {"exact_match": "squad_exact_match"}}
_EXACT["metric_to_optimize"] = "exact_match"


def _scrolls(name: str, metrics: dict, *counts: int) -> dict:
    """A task of SCROLLS; `counts` of its splits, if the hub has them."""
    return {
        "hub_path": "tau/scrolls",
        "hub_name": name,
        "hub_archive": f"{name}.zip",
        "splits": _THREE_SPLITS,
        **({"num_examples": dict(zip(_THREE_SPLITS, counts, strict=True))} if counts else {}),
        "prefix": "",
        "text_column_name": "input",
        "label_column_name": "output",
        "labels": None,
        "references_by": "id",
        **metrics,
    }


SCROLLS = {
    "scrolls": {
        "gov_report": _scrolls("gov_report", _SUMMARY, 17457, 972, 973),
        "summ_screen_fd": _scrolls("summ_screen_fd", _SUMMARY, 3673, 338, 337),
        "qmsum": _scrolls("qmsum", _SUMMARY, 1257, 272, 281),
        "narrative_qa": _scrolls("narrative_qa", _F1),
        "qasper": _scrolls("qasper", _F1),
        "quality": _scrolls("quality", _EXACT, 2523, 2086, 2128),
        "contract_nli": _scrolls("contract_nli", _EXACT, 7191, 1037, 2091),
    }
}


# The mixture of all tasks of a benchmark.
_PARTS = ("train", "evaluate", "average")
TEXT_TO_TEXT_MIXTURES = {
    name: {"all": {part: list(TEXT_TO_TEXT[name]) for part in _PARTS}} for name in ("summarization", "translation")
}
SCROLLS_MIXTURES = {"scrolls": {"all": {part: list(SCROLLS["scrolls"]) for part in _PARTS}}}


# Super-NaturalInstructions (arXiv:2204.07705): train on many tasks' instructions, score on unseen tasks.
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
                "task_lists": "default", "max_num_instances_per_task": 100, "max_num_instances_per_eval_task": 100,
                "add_task_definition": True, "num_pos_examples": 2, "num_neg_examples": 0, "add_explanation": False,
                "add_task_name": False, "tk_instruct": False, "seed": 42,
            },
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "metric_names": ["rougeL", "exact_match"],
            "metric_functions": {"rougeL": "instruction_rougeL", "exact_match": "instruction_exact_match"},
            "metric_to_optimize": "rougeL",
            "report_by": ["category", "task"],
        }
    }
}  # fmt: skip
