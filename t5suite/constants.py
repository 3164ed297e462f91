"""The task registry and the mixtures: plain data, standard library only.

    >>> DATASET_VALS["glue"]["sst2"]["labels"]
    ['negative', 'positive']

An entry needs six fields, and a new task needs no others:

    prefix, text_column_name   a string each, or two lists of equal length: the input text is
                               ' '.join(prefix_i + row[column_i]), each prefix here ending in ': '
    label_column_name          the column that holds the label
    labels                     the target words by label id (a list, or {0: word, ...}); None for free text and numbers
    metric_names               names in `t5suite.tasks.metrics.METRICS`, printed in this order
    metric_to_optimize         one metric name, or 'average' (the mean of `metric_names`)

Fields for tasks that need more:

    hub_path, hub_name         the hub's dataset and its configuration
    splits                     {'train'|'validation'|'test': split name} of the source; a list of them for the last two
    num_examples               the official number of rows of each source split
    rows_of                    the task whose rows this one reads (default: its own)
    formatter                  a name in FORMATTERS, for rows that need more than prefixes and columns
    target                     a name in TARGETS: the grid of a number's target (default: as the data writes it)
    target_decimals            how many decimals the target of a number is rounded to
    postprocess                a name in POSTPROCESSORS: how generated texts become what the metrics compare
    metric_functions           {metric name: the function's name in METRICS} where the two differ
    group_by                   the column (dots reach inside) whose equal values make one group, for grouped metrics
    input_format               a template with __input__ in it, which the input replaces
    output_format              likewise with __output__ for the target; metrics compare what replaces it
    max_input_tokens,          the task's own lengths, instead of --max_source_length and --max_target_length
    max_output_tokens
    source                     a name in SOURCES that reads the rows, instead of the hub and `--data_dir`'s files
    instruction                Super-NaturalInstructions: which instances are read and how an instruction is written
    references_by              the column whose equal values make one scored row; their labels are its references
    report_by                  columns: scores are also reported for each of their values

A column's name may reach inside with dots: `translation.en`.

Texts, label words and counts are those of the original T5 (arXiv:1910.10683, `text-to-text-transfer-transformer`
0.9.4); its text form of every task is written out in docs/tasks.md. Further benchmarks are in
`t5suite.benchmark_entries`.
"""

from t5suite.benchmark_entries import (
    SCROLLS,
    SCROLLS_MIXTURES,
    SUPER_NATURAL_INSTRUCTIONS,
    TEXT_TO_TEXT,
    TEXT_TO_TEXT_MIXTURES,
)

_GLUE = "nyu-mll/glue"
_SUPER_GLUE = "aps/super_glue"
_TRAIN_VALIDATION_TEST = {"train": "train", "validation": "validation", "test": "test"}

_ENTAILMENT_2 = ["entailment", "not_entailment"]
_ENTAILMENT_3 = ["entailment", "neutral", "contradiction"]
_FALSE_TRUE = ["False", "True"]

DATASET_VALS = {
    "glue": {
        "cola": {
            "hub_path": _GLUE, "hub_name": "cola", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 8551, "validation": 1043, "test": 1063},
            "prefix": "cola sentence: ",
            "text_column_name": "sentence", "label_column_name": "label",
            "labels": ["unacceptable", "acceptable"],
            "metric_names": ["matthews_correlation"], "metric_to_optimize": "matthews_correlation",
        },
        "sst2": {
            "hub_path": _GLUE, "hub_name": "sst2", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 67349, "validation": 872, "test": 1821},
            "prefix": "sst2 sentence: ",
            "text_column_name": "sentence", "label_column_name": "label",
            "labels": ["negative", "positive"],
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "mrpc": {
            "hub_path": _GLUE, "hub_name": "mrpc", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 3668, "validation": 408, "test": 1725},
            "prefix": ["mrpc sentence1: ", "sentence2: "],
            "text_column_name": ["sentence1", "sentence2"], "label_column_name": "label",
            "labels": ["not_equivalent", "equivalent"],
            "metric_names": ["f1", "accuracy"], "metric_to_optimize": "average",
        },
        "qqp": {
            "hub_path": _GLUE, "hub_name": "qqp", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 363846, "validation": 40430, "test": 390965},
            "prefix": ["qqp question1: ", "question2: "],
            "text_column_name": ["question1", "question2"], "label_column_name": "label",
            "labels": ["not_duplicate", "duplicate"],
            "metric_names": ["f1", "accuracy"], "metric_to_optimize": "average",
        },
        "stsb": {
            "hub_path": _GLUE, "hub_name": "stsb", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 5749, "validation": 1500, "test": 1379},
            "prefix": ["stsb sentence1: ", "sentence2: "],
            "text_column_name": ["sentence1", "sentence2"], "label_column_name": "label",
            "labels": None,
            "target": "nearest_fifth",
            "metric_names": ["pearson", "spearman"], "metric_to_optimize": "average",
        },
        "mnli": {
            "hub_path": _GLUE,
            "hub_name": "mnli",
            "splits": {
                "train": "train",
                "validation": ["validation_matched", "validation_mismatched"],
                "test": ["test_matched", "test_mismatched"],
            },
            "num_examples": {
                "train": 392702,
                "validation_matched": 9815,
                "validation_mismatched": 9832,
                "test_matched": 9796,
                "test_mismatched": 9847,
            },
            "prefix": ["mnli hypothesis: ", "premise: "],
            "text_column_name": ["hypothesis", "premise"], "label_column_name": "label",
            "labels": _ENTAILMENT_3,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "qnli": {
            "hub_path": _GLUE, "hub_name": "qnli", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 104743, "validation": 5463, "test": 5463},
            "prefix": ["qnli question: ", "sentence: "],
            "text_column_name": ["question", "sentence"], "label_column_name": "label",
            "labels": _ENTAILMENT_2,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "rte": {
            "hub_path": _GLUE, "hub_name": "rte", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 2490, "validation": 277, "test": 3000},
            "prefix": ["rte sentence1: ", "sentence2: "],
            "text_column_name": ["sentence1", "sentence2"], "label_column_name": "label",
            "labels": _ENTAILMENT_2,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "wnli": {
            "hub_path": _GLUE, "hub_name": "wnli", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 635, "validation": 71, "test": 146},
            "prefix": ["wnli sentence1: ", "sentence2: "],
            "text_column_name": ["sentence1", "sentence2"], "label_column_name": "label",
            "labels": ["not_entailment", "entailment"],
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "wnli_simple": {
            "hub_path": _GLUE,
            "hub_name": "wnli",
            "rows_of": "wnli",
            "splits": {"validation": "validation", "test": "test"},
            "num_examples": {"validation": 71, "test": 146},
            "formatter": "wnli_simple",
            "postprocess": "wsc_verdict",
            "prefix": "wsc: ",
            "text_column_name": ["sentence1", "sentence2"], "label_column_name": "label",
            "labels": None,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "ax": {
            "hub_path": _GLUE, "hub_name": "ax", "splits": {"test": "test"},
            "num_examples": {"test": 1104},
            "prefix": ["mnli hypothesis: ", "premise: "],
            "text_column_name": ["hypothesis", "premise"], "label_column_name": "label",
            "labels": _ENTAILMENT_3,
            "metric_names": [], "metric_to_optimize": None,
        },
    },
    "super_glue": {
        "boolq": {
            "hub_path": _SUPER_GLUE, "hub_name": "boolq", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 9427, "validation": 3270, "test": 3245},
            "prefix": ["boolq passage: ", "question: "],
            "text_column_name": ["passage", "question"], "label_column_name": "label",
            "labels": _FALSE_TRUE,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "cb": {
            "hub_path": _SUPER_GLUE, "hub_name": "cb", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 250, "validation": 56, "test": 250},
            "prefix": ["cb hypothesis: ", "premise: "],
            "text_column_name": ["hypothesis", "premise"], "label_column_name": "label",
            "labels": ["entailment", "contradiction", "neutral"],
            "metric_names": ["mean_3class_f1", "accuracy"], "metric_to_optimize": "average",
        },
        "copa": {
            "hub_path": _SUPER_GLUE, "hub_name": "copa", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 400, "validation": 100, "test": 500},
            "prefix": ["copa choice1: ", "choice2: ", "premise: ", "question: "],
            "text_column_name": ["choice1", "choice2", "premise", "question"], "label_column_name": "label",
            "labels": ["choice1", "choice2"],
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "multirc": {
            "hub_path": _SUPER_GLUE, "hub_name": "multirc", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 27243, "validation": 4848, "test": 9693},
            "formatter": "multirc",
            "prefix": ["multirc question: ", "answer: ", "paragraph: "],
            "text_column_name": ["question", "answer", "paragraph"], "label_column_name": "label",
            "labels": _FALSE_TRUE,
            "group_by": "idx.question",
            "metric_names": ["f1", "exact_match"],
            "metric_functions": {"exact_match": "grouped_exact_match"},
            "metric_to_optimize": "average",
        },
        "record": {
            "hub_path": _SUPER_GLUE, "hub_name": "record", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 100730, "validation": 10000, "test": 10000},
            "formatter": "record",
            "postprocess": "first_answer",
            "prefix": ["record query: ", "entities: ", "passage: "],
            "text_column_name": ["query", "entities", "passage"], "label_column_name": "answers",
            "labels": None,
            "metric_names": ["f1", "exact_match"],
            "metric_functions": {"f1": "squad_f1", "exact_match": "squad_exact_match"},
            "metric_to_optimize": "average",
        },
        "rte": {
            "hub_path": _SUPER_GLUE, "hub_name": "rte", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 2490, "validation": 277, "test": 3000},
            "prefix": ["rte hypothesis: ", "premise: "],
            "text_column_name": ["hypothesis", "premise"], "label_column_name": "label",
            "labels": _ENTAILMENT_2,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "wic": {
            "hub_path": _SUPER_GLUE, "hub_name": "wic", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 5428, "validation": 638, "test": 1400},
            "prefix": ["wic sentence1: ", "sentence2: ", "word: "],
            "text_column_name": ["sentence1", "sentence2", "word"], "label_column_name": "label",
            "labels": _FALSE_TRUE,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "wsc": {
            "hub_path": _SUPER_GLUE, "hub_name": "wsc", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 554, "validation": 104, "test": 146},
            "formatter": "wsc",
            "postprocess": "wsc_verdict",
            "prefix": "wsc: ",
            "text_column_name": "text", "label_column_name": "label",
            "labels": None,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "wsc.fixed": {
            "hub_path": _SUPER_GLUE, "hub_name": "wsc.fixed", "splits": _TRAIN_VALIDATION_TEST,
            "num_examples": {"train": 554, "validation": 104, "test": 146},
            "formatter": "wsc",
            "postprocess": "wsc_verdict",
            "prefix": "wsc: ",
            "text_column_name": "text", "label_column_name": "label",
            "labels": None,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "axb": {
            "hub_path": _SUPER_GLUE, "hub_name": "axb", "splits": {"test": "test"},
            "num_examples": {"test": 1104},
            "prefix": ["rte hypothesis: ", "premise: "],
            "text_column_name": ["sentence2", "sentence1"], "label_column_name": "label",
            "labels": _ENTAILMENT_2,
            "metric_names": ["matthews_correlation"], "metric_to_optimize": "matthews_correlation",
        },
        "axg": {
            "hub_path": _SUPER_GLUE, "hub_name": "axg", "splits": {"test": "test"},
            "num_examples": {"test": 356},
            "prefix": ["rte hypothesis: ", "premise: "],
            "text_column_name": ["hypothesis", "premise"], "label_column_name": "label",
            "labels": _ENTAILMENT_2,
            "group_by": "hypothesis",
            "metric_names": ["accuracy", "gender_parity"], "metric_to_optimize": "accuracy",
        },
        "dpr": {
            "hub_path": "community-datasets/definite_pronoun_resolution",
            "hub_name": "plain_text",
            "splits": {"train": "train", "test": "test"},
            "num_examples": {"train": 1322, "test": 564},
            "formatter": "dpr",
            "prefix": "wsc: ",
            "text_column_name": "sentence", "label_column_name": "label",
            "labels": None,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
    },
    "mini": {
        "sentiment": {
            "splits": _TRAIN_VALIDATION_TEST,
            "prefix": "sentiment sentence: ",
            "text_column_name": "sentence", "label_column_name": "label",
            "labels": ["negative", "positive"],
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "entailment": {
            "splits": _TRAIN_VALIDATION_TEST,
            "prefix": ["entailment premise: ", "hypothesis: "],
            "text_column_name": ["premise", "hypothesis"], "label_column_name": "label",
            "labels": _ENTAILMENT_3,
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
        },
        "similarity": {
            "splits": _TRAIN_VALIDATION_TEST,
            "prefix": ["similarity sentence1: ", "sentence2: "],
            "text_column_name": ["sentence1", "sentence2"], "label_column_name": "label",
            "labels": None,
            "target": "nearest_fifth",
            "metric_names": ["pearson", "spearman"], "metric_to_optimize": "average",
        },
    },
    **TEXT_TO_TEXT,
    **SUPER_NATURAL_INSTRUCTIONS,
    **SCROLLS,
}  # fmt: skip

# Mixtures by benchmark and name: the tasks to train on, those to evaluate, and those whose mean is the published
# average (GLUE: eight groups without WNLI and AX, MNLI's two halves one group; SuperGLUE: eight groups without AX).
MIXTURES = {
    "glue": {
        "all": {
            "train": ["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte"],
            "evaluate": ["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli", "ax"],
            "average": ["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte"],
        }
    },
    "super_glue": {
        "all": {
            "train": ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc.fixed", "dpr"],
            "evaluate": ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc.fixed", "axb", "axg"],
            "average": ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc.fixed"],
        }
    },
    "mini": {
        "all": {
            "train": ["sentiment", "entailment", "similarity"],
            "evaluate": ["sentiment", "entailment", "similarity"],
            "average": ["sentiment", "entailment", "similarity"],
        }
    },
    **TEXT_TO_TEXT_MIXTURES,
    **SCROLLS_MIXTURES,
}

# Several metrics under one name: a group in `metric_names` is its members, in `metric_to_optimize` their mean.
METRIC_GROUPS = {"squad": ["squad_f1", "squad_exact_match"], "rouge": ["rouge1", "rouge2", "rougeLsum"]}

# The benchmark of tasks that flags make of your own rows.
OWN_BENCHMARK = "own"
