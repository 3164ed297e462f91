"""What a model does and in which languages, in the hub's words, from what its run was given.

>>> pipeline_tag(facts), languages(facts)
('translation', ['en', 'de'])

The hub's list of tasks is https://github.com/huggingface/huggingface.js, packages/tasks/src/pipelines.ts. It has
`summarization` and `translation`; text2text-generation went into `text-generation` (its pull request 1590).
"""

import re

from t5suite.reports.card_facts import CardFacts, data_set_of_rows
from t5suite.reports.evaluated_rows import LANG_COLUMNS
from t5suite.tasks.targets import TOKEN_LABELS
from t5suite.tasks.task_card import HEADED
from t5suite.tasks.templates import INPUT

ENGLISH = ("glue", "super_glue", "mini", "squad", "summarization", "scrolls")
SUMMARIZATION, TRANSLATION = "summarization", "translation"
# T5's own prefixes (arXiv:1910.10683, appendix D) name the task, also where a user gives them.
PREFIXES = {SUMMARIZATION: re.compile("summarize: *"), TRANSLATION: re.compile(r"translate \w+ to \w+: *")}
# The columns of rows of the form {"translation": {"en": ..., "de": ...}}, and the codes that say nothing: --source_id's
# and --target_id's defaults.
TRANSLATION_COLUMN = "translation."
NO_CODES = ("s", "t")
# SCROLLS scores summaries, and nothing else, by this.
SUMMARY_METRIC = "rouge_geometric_mean"


def pipeline_tag(facts: CardFacts) -> str:
    """The hub's word for what the model does."""
    if facts.family in HEADED:
        return _tag_of_head(facts)
    if languages_differ(facts):
        return TRANSLATION
    tags = {_tag_of_text(entry) for entry in facts.tasks.values()}
    if len(tags) == 1:
        return tags.pop()
    return "text-generation"


def _tag_of_head(facts: CardFacts) -> str:
    if facts.objective:
        return "fill-mask"
    formatters = {entry.get("formatter") for entry in facts.tasks.values()}
    if formatters == {TOKEN_LABELS}:
        return "token-classification"
    return "text-classification"


def _tag_of_text(entry: dict) -> str:
    """The hub's word for a task whose answers are generated."""
    if _translated_codes(entry):
        return TRANSLATION
    beginning = _beginning(entry)
    for tag, prefix in PREFIXES.items():
        if prefix.fullmatch(beginning):
            return tag
    if entry.get("metric_to_optimize") == SUMMARY_METRIC:
        return SUMMARIZATION
    return "text-generation"


def _beginning(entry: dict) -> str:
    """What stands before the first column in every input: the template goes around the prefix and the columns."""
    prefix = entry.get("prefix") or ""
    if not isinstance(prefix, str):
        prefix = prefix[0]
    template = entry.get("input_format") or INPUT
    return template.partition(INPUT)[0] + prefix


def _translated_codes(entry: dict) -> list[str]:
    """The codes in the names of the columns of translated rows; empty for other rows."""
    columns = (str(entry.get("text_column_name")), str(entry.get("label_column_name")))
    if not all(column.startswith(TRANSLATION_COLUMN) for column in columns):
        return []
    return [column.removeprefix(TRANSLATION_COLUMN) for column in columns]


def languages_differ(facts: CardFacts) -> bool:
    """Whether flags say that texts are read in one language and written in another."""
    source = facts.settings.get("source_lang")
    target = facts.settings.get("target_lang")
    return bool(source and target and source != target)


def languages(facts: CardFacts) -> list[str]:
    """The codes of the languages, source first; empty if that of any task is not known.

    Flags name them, the registry for its own rows, or the card of a data set of the hub. Where each row names its own
    in a column, they are not known: rows are not read for the card.
    """
    if any(facts.settings.get(name) for name in LANG_COLUMNS):
        return []
    codes_of_flags = [facts.settings.get("source_lang"), facts.settings.get("target_lang")]
    codes = [language_code(code) for code in codes_of_flags if code]
    if codes:
        return list(dict.fromkeys(codes))
    for name in facts.tasks:
        codes_of_task = _languages_of_task(facts, name)
        if not codes_of_task:
            return []
        codes += codes_of_task
    return list(dict.fromkeys(codes))


def language_code(code: str) -> str:
    """A tokenizer's code of a language as the hub's, which has no script and no country (ISO 639).

    >>> language_code("deu_Latn"), language_code("de_DE"), language_code("de")
    ('deu', 'de', 'de')
    """
    return code.partition("_")[0]


def _languages_of_task(facts: CardFacts, name: str) -> list[str]:
    """The languages of a task's training rows; empty if nobody says them."""
    codes = _translated_codes(facts.tasks[name])
    if not set(codes).isdisjoint(NO_CODES):
        return []  # columns such as `translation.s`, which name a side and no language
    if codes:
        return [language_code(code) for code in codes]
    if facts.settings.get("train_file"):
        return []
    if facts.benchmark in ENGLISH:
        return ["en"]
    return _language_of_data_set(facts, name)


def _language_of_data_set(facts: CardFacts, name: str) -> list[str]:
    """The language that the card of the hub's data set states, if it states one alone."""
    data_set = data_set_of_rows(facts, name, "train")
    stated = facts.data_headers.get(data_set or "", {}).get("language")
    if isinstance(stated, str):
        stated = [stated]
    if isinstance(stated, list) and len(stated) == 1:
        return [str(stated[0])]
    return []
