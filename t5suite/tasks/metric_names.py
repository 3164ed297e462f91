"""The names under which the suite itself reports, without the libraries that compute: sweep files are checked by them.

>>> "rougeL" in SUITE_NAMES, "wer" in SUITE_NAMES
(True, False)
"""

# The keys of METRICS, METRIC_ALIASES and METRIC_GROUPS (`metrics`), and what an evaluation reports beside them.
SUITE_NAMES = frozenset({
    "accuracy", "matthews_correlation", "f1", "precision", "recall", "f1_macro", "precision_macro", "recall_macro",
    "mean_3class_f1", "pearson", "spearman", "neg_mean_absolute_error", "exact_match", "grouped_exact_match",
    "gender_parity", "squad_f1", "squad_exact_match", "bleu", "chrf", "rouge1", "rouge2", "rougeL", "rougeLsum",
    "rouge_geometric_mean", "instruction_rougeL", "instruction_exact_match", "json_match", "token_accuracy",
    "token_f1_macro", "span_f1", "micro_f1", "macro_f1", "subset_accuracy", "mcc", "pearsonr", "spearmanr",
    "sacrebleu", "squad", "rouge",
    "loss", "average", "invalid_rate", "truncated_rate",
})  # fmt: skip
