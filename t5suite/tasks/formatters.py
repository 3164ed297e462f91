"""A row of a task -> the (inputs, targets) pairs that the model reads and writes.

    >>> join_columns({"question": "Why?", "sentence": "Because."}, ["qnli question: ", "sentence: "],
    ...              ["question", "sentence"])
    'qnli question: Why? sentence: Because.'

Values are inserted unchanged: no stripping, no lower-casing, newlines stay, an empty value leaves its prefix and the
space after it. Texts equal the original T5's to the character (arXiv:1910.10683, appendix D, and the released
preprocessors where the two differ). Every formatter takes `(row, entry, split)` and returns a list of `Example`s.
"""

import numbers
import re
import string
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import DataError
from t5suite.base.lookup import load_object
from t5suite.tasks.targets import (
    INVALID_CLASS,
    UNKNOWN_TARGET,
    class_number,
    is_labelled,
    label_of,
    label_text,
    label_words,
    value_at,
)

# What the original matches with RE2's `[[:punct:]]` and `\s`, which match ASCII only.
PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")
SPACES = re.compile(r"[ \t\n\f\r]+")

WNLI_PRONOUNS = frozenset({"he", "she", "they", "it", "her", "his", "their", "them", "him"})
ARTICLES = ("a", "an", "the")
CLOSING = ".,!?"

# Two sentences of WSC whose pronoun position is wrong in the data: sentence -> sentence with X for the pronoun.
_PONY = (
    "The boy continued to whip the pony , and eventually the pony threw him over. "
    'John laughed out quite loud. "Good for him," he said. '
)
_FARLEY = (
    "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron "
    "safe . Some day they might want to use it , but really for now, what more could they wish for?"
)
MISPLACED_PRONOUNS = {
    _PONY: _PONY.replace("for him,", "for X ,").rstrip(" "),
    _FARLEY: _FARLEY.replace("use it ,", "use X ,"),
}


class Example(NamedTuple):
    """One pair of texts: what the encoder reads and what the decoder should write."""

    inputs: str
    targets: str


def as_list(value) -> list:
    """A string or a list of strings, as a list: prefixes and columns come in both forms."""
    return [value] if isinstance(value, str) else list(value)


# A cell's types, by the requested kind, including those of NumPy and Arrow.
KINDS = {
    object: (object, "value"),
    str: (str, "text"),
    int: (numbers.Integral, "whole number"),
    list: ((list, tuple, np.ndarray), "list"),
}


_NOTHING = object()


def cell(row, column: str, kind: type = object):
    """`value_at` of type `kind`, or a `DataError` that names the column, its value and the row's columns."""
    value = value_at(row, column, _NOTHING)
    if value is _NOTHING:
        raise DataError(f"the row has no column {column!r}; its columns are {', '.join(map(str, row))}")
    types, name = KINDS[kind]
    if not isinstance(value, types) or (kind is int and isinstance(value, bool)):
        raise DataError(f"column {column!r} holds {value!r}, not a {name}")
    return value


def join_columns(row, prefixes, columns) -> str:
    """`' '.join(prefix_i + row[column_i])`."""
    parts = []
    for prefix, column in zip(as_list(prefixes), as_list(columns), strict=True):
        value = cell(row, column)
        if value is None or isinstance(value, (list, dict, bytes)):
            raise DataError(f"column {column!r} holds {value!r:.200}, not a text")
        parts.append(prefix + str(value))
    return " ".join(parts)


def columns(row, entry, split):
    """The task's prefixes and columns; one example a row.

    >>> columns({"sentence": "Good.", "label": 1}, DATASET_VALS["glue"]["sst2"], "train")
    [Example(inputs='sst2 sentence: Good.', targets='positive')]
    """
    return [Example(join_columns(row, entry["prefix"], entry["text_column_name"]), label_text(row, entry))]


def token_labels(row, entry, split):
    """Words, and a label for each: lists, or texts that are split at white space.

    >>> entry = {"prefix": "names: ", "text_column_name": "tokens", "label_column_name": "tags", "labels": ["O", "B"]}
    >>> token_labels({"tokens": ["Ann", "sings"], "tags": [1, 0]}, entry, "train")
    [Example(inputs='names: Ann sings', targets='B O')]

    Raises:
      DataError: the numbers of labels and words differ, or a word is empty.
    """
    words = words_of(row, entry)
    if not is_labelled(row, entry):
        return [Example(entry["prefix"] + " ".join(words), UNKNOWN_TARGET)]
    labels = label_of(row, entry)
    labels = labels.split() if isinstance(labels, str) else list(labels)
    if len(labels) != len(words):
        columns = entry["label_column_name"], entry["text_column_name"]
        raise DataError(
            f"{len(labels)} labels in column {columns[0]!r} for {len(words)} words in column {columns[1]!r} "
            f"({' '.join(words):.60}): each word needs one"
        )
    numbers, names = [class_number(label, entry) for label in labels], label_words(entry["labels"])
    if INVALID_CLASS in numbers:
        raise DataError(f"column {entry['label_column_name']!r} holds {labels!r:.200}: some of its words have no label")
    return [Example(entry["prefix"] + " ".join(words), " ".join(names[number] for number in numbers))]


def words_of(row, entry) -> list[str]:
    """The words of a row whose words have labels.

    Raises:
      DataError: there are no words, or one is empty or contains white space.
    """
    column = entry["text_column_name"]
    value = cell(row, column)
    words = value.split() if isinstance(value, str) else list(cell(row, column, list))
    bad = next((word for word in words if not isinstance(word, str) or len(word.split()) != 1), None)
    if bad is not None or not words:
        raise DataError(f"column {column!r} holds {'no word' if not words else repr(bad)}, where each word has a label")
    return words


def multirc(row, entry, split):
    """As `columns`, then markup is removed from the whole text: `<br>` becomes a space, `<b>` and `</b>` nothing.

    >>> multirc({"question": "Q?", "answer": "A", "paragraph": "<b>Sent 1: </b>Hi.<br>", "label": 1}, entry, "train")
    [Example(inputs='multirc question: Q? answer: A paragraph: Sent 1: Hi. ', targets='True')]
    """
    (example,) = columns(row, entry, split)
    return [Example(re.sub("</?b>", "", example.inputs.replace("<br>", " ")), example.targets)]


def clean_record_passage(passage: str) -> str:
    r"""ReCoRD's bullet points as sentences.

    >>> clean_record_passage('It ended.\n@highlight\nOne point\n@highlight\nAnother')
    'It ended. One point. Another'
    """
    passage = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", passage)
    return passage.replace("\n@highlight\n", ". ")


def record(row, entry, split):
    """One example per answer, in both training and evaluation; without known answers, one with `<unk>`.

    The entities are joined in the order given (the sources sort them).

    >>> record({"query": "@placeholder won.", "entities": ["A", "B"], "passage": "A beat B.", "answers": ["A"]}, ...)
    [Example(inputs='record query: @placeholder won. entities: A, B passage: A beat B.', targets='A')]
    """
    readable = {
        "query": cell(row, "query", str),
        "entities": ", ".join(map(str, cell(row, "entities", list))),
        "passage": clean_record_passage(cell(row, "passage", str)),
    }
    inputs = join_columns(readable, entry["prefix"], entry["text_column_name"])
    column = entry["label_column_name"]
    answers = [] if row.get(column) is None else cell(row, column, list)
    if len(answers) == 0:
        answers = [UNKNOWN_TARGET]
    return [Example(inputs, str(answer)) for answer in answers]


def wsc(row, entry, split):
    """The pronoun is starred and the target is what it refers to; training uses true-label rows only.

    A false row names a wrong referent, so it has no target to learn; evaluation keeps every row and compares
    the written referent with the row's candidate and label (`metrics.wsc_verdict`).

    >>> wsc({"text": "Ann sat as she ate .", "span1_text": "Ann", "span2_index": 3, "span2_text": "she", ...}, ...)
    [Example(inputs='wsc: Ann sat as *she* ate .', targets='Ann')]
    """
    if split == "train" and row.get(entry["label_column_name"]) != 1:
        return []
    text = mark_wsc_pronoun(cell(row, "text", str), cell(row, "span2_index", int), cell(row, "span2_text", str))
    return [Example(as_list(entry["prefix"])[0] + text, cell(row, "span1_text", str))]


def wnli_simple(row, entry, split):
    """WNLI's rows in WSC's form, for evaluation: the premise with its pronoun starred, and the hypothesis' referent.

    >>> wnli_simple({"sentence1": "The cup fell, so it broke.", "sentence2": "The cup broke.", "label": 1}, ...)
    [Example(inputs='wsc: The cup fell, so *it* broke.', targets='The cup')]
    """
    premise_column, hypothesis_column = entry["text_column_name"]
    text, referent = mark_wnli_pronoun(cell(row, premise_column, str), cell(row, hypothesis_column, str))
    return [Example(as_list(entry["prefix"])[0] + text, referent)]


def dpr(row, entry, split):
    """Definite pronoun resolution in WSC's form; the target is the right one of two candidates.

    Only the first ` pronoun` followed by a space, full stop or comma is starred; if there is none (a pronoun at
    the sentence's beginning, or before a question mark) the sentence is unchanged. The pronoun is read as a regular
    expression, as in the original, or literally if it is not a valid one.

    >>> dpr({"sentence": "Bees sting as they fly.", "pronoun": "they", "candidates": ["Bees", "They"], "label": 0}, ...)
    [Example(inputs='wsc: Bees sting as *they* fly.', targets='Bees')]
    """
    pronoun, sentence = cell(row, "pronoun", str), cell(row, "sentence", str)
    try:
        text = re.sub(rf" ({pronoun})( |\.|,)", r" *\1*\2", sentence, count=1)
    except re.error:
        text = re.sub(rf" ({re.escape(pronoun)})( |\.|,)", r" *\1*\2", sentence, count=1)
    candidates = cell(row, "candidates", list)
    label = row.get(entry["label_column_name"], -1)
    if label not in range(-1, len(candidates)):
        raise DataError(f"label {label!r} is not the position of one of the {len(candidates)} candidates")
    return [Example(as_list(entry["prefix"])[0] + text, UNKNOWN_TARGET if label == -1 else candidates[label])]


def document(row, entry, split):
    """Running text: empty inputs, and the text as targets.

    >>> document({"text": "It rains."}, {"text_column_name": "text"}, "train")
    [Example(inputs='', targets='It rains.')]
    """
    return [Example("", cell(row, entry["text_column_name"], str))]


def pad_punctuation(text: str) -> str:
    """Spaces around every ASCII punctuation mark, then single spaces; those at the ends are kept.

    >>> pad_punctuation("U.S. (2-1)?")
    'U . S . ( 2 - 1 ) ? '
    """
    return SPACES.sub(" ", PUNCTUATION.sub(r" \1 ", text))


def squad(row, entry, split):
    """Question and context with padded punctuation; the target is the first answer, padded too.

    >>> squad({"question": "Who won?", "context": "Ann won.", "answers": {"text": ["Ann"]}}, entry, "train")
    [Example(inputs='question: Who won ? context: Ann won . ', targets='Ann')]
    """
    parts = []
    for prefix, column in zip(as_list(entry["prefix"]), as_list(entry["text_column_name"]), strict=True):
        parts.append(prefix + pad_punctuation(cell(row, column, str)))
    labelled = is_labelled(row, entry)
    target = pad_punctuation(str(cell(row, entry["label_column_name"], list)[0])) if labelled else UNKNOWN_TARGET
    return [Example(SPACES.sub(" ", " ".join(parts)), target)]


def super_ni(row, entry, split, fits=lambda text: True):
    """An instance with its task's instruction; training draws one of its references, evaluation takes the first.

    >>> super_ni(row, DATASET_VALS["super_ni"]["english"], "test")
    [Example(inputs='Definition: Name the capital.\\n\\n Positive Example 1 -\\nInput: ...', targets='Lima')]
    """
    settings = entry["instruction"]
    check_instance(row)
    inputs = instruction_text(row, settings, fits)
    if not is_labelled(row, entry):
        return [Example(inputs, UNKNOWN_TARGET)]
    label = value_at(row, entry["label_column_name"])
    references = [str(text) for text in (label if isinstance(label, (list, tuple, np.ndarray)) else [label])]
    return [Example(inputs, drawn_reference(row, references, settings) if split == "train" else references[0])]


def check_instance(row) -> None:
    """Raises a `DataError` that names the part of an instance that is missing or invalid."""
    for column in ("task", "definition", "input"):
        cell(row, column, str)
    for column in ("positive_examples", "negative_examples"):
        for i, example in enumerate(cell(row, column, list)):
            parts = [example.get(key) for key in ("input", "output")] if isinstance(example, Mapping) else [None]
            explanation = example.get("explanation") if isinstance(example, Mapping) else None
            if not all(isinstance(part, str) for part in parts) or not isinstance(explanation, str | None):
                raise DataError(f"column {column!r}: {i} holds {example!r:.100}, not an example's input and output")


def mark_wsc_pronoun(text: str, index: int, pronoun: str) -> str:
    """WSC's sentence with its word at `index` starred; words are split at each space: two spaces enclose an empty word.

    >>> mark_wsc_pronoun("Mark told Pete that he won .", 4, "he")
    'Mark told Pete that *he* won .'

    The marking goes through a stand-alone `X`, so every other stand-alone X of the text is starred too, and a
    pronoun that ends the text leaves a space after it: both as in the original.

    Raises:
      DataError: `index` is outside the text or 0, or the word there is not `pronoun`.
    """
    if text in MISPLACED_PRONOUNS:
        with_placeholder = MISPLACED_PRONOUNS[text]
    else:
        words = text.split(" ")
        if not 0 < index < len(words):
            raise DataError(f"span2_index {index} is not between 1 and {len(words) - 1}, the last word of {text!r}")
        if words[index] != pronoun:
            raise DataError(f"word {index} of {text!r} is {words[index]!r}, but span2_text is {pronoun!r}")
        with_placeholder = " ".join([" ".join(words[:index]), "X", " ".join(words[index + 1 :])])
    return with_placeholder.replace(" X ", f" *{pronoun}* ")


def mark_wnli_pronoun(premise: str, hypothesis: str) -> tuple[str, str]:
    """The premise with its pronoun starred, and the phrase that the hypothesis puts in the pronoun's place.

    >>> mark_wnli_pronoun("The cup fell, so it broke.", "The cup broke.")
    ('The cup fell, so *it* broke.', 'The cup')

    As the original T5's released conversion does it (arXiv:1910.10683, appendix B), quirks included.

    Each pronoun of the premise is rated by how much of the words around it reappears in the hypothesis; the best
    one (the first of equals) is starred. The referent is the text between that matching context; it is empty
    where the hypothesis shares no context with the premise (once in WNLI's 71 validation rows).

    Raises:
      DataError: the premise has no pronoun.
    """
    premise_words, hypothesis_words = _plain_words(premise), _plain_words(hypothesis)
    positions = [i for i, word in enumerate(premise_words) if word in WNLI_PRONOUNS]
    if not positions:
        raise DataError(f"no pronoun ({', '.join(sorted(WNLI_PRONOUNS))}) in {premise!r}")
    contexts = {i: _matching_context(premise_words, i, hypothesis_words) for i in positions}
    best = max(positions, key=lambda i: sum(map(len, contexts[i])))
    before, after = contexts[best]
    referent = _text_between(before, after, " ".join(hypothesis_words))
    return _star_word(premise, best), _as_written(_from_last_article(referent), hypothesis)


def _plain_words(text: str) -> list[str]:
    """Lower-cased words, each without one closing mark."""
    words = (re.sub(r"[.,?!]$", "", word) for word in text.strip().lower().split(" "))
    return [word for word in words if word]


def _matching_context(words, position, hypothesis_words) -> tuple[list[str], list[str]]:
    """The longest run of words before `position`, and after it, that the hypothesis contains."""
    before, after = words[:position], words[position + 1 :]
    backwards = _shared_start(before[::-1], " ".join(hypothesis_words[::-1]))
    forwards = _shared_start(after, " ".join(hypothesis_words))
    return before[len(before) - backwards :], after[:forwards]


def _shared_start(words, text: str) -> int:
    """How many words from the start of `words`, joined by spaces, `text` contains."""
    for count in range(1, len(words) + 1):
        if " ".join(words[:count]) not in text:
            return count - 1
    return len(words)


def _text_between(before, after, text: str) -> str:
    """The part of `text` between the two contexts; else before the second, else after the first.

    As in the original, the contexts' words are read as regular expressions (so `$5` and `(so old)` do not match
    themselves), or literally if they are not valid ones.
    """
    if not before and not after:
        return ""
    for left, gap, right in ((before, "(.+)", after), ((), "^(.+)", after), (before, "(.+)$", ())):
        try:
            match = re.search(" ".join([*left, gap, *right]), text)
        except re.error:
            match = re.search(" ".join([*map(re.escape, left), gap, *map(re.escape, right)]), text)
        if match:
            return match.group(1) or ""
    return ""


def _from_last_article(phrase: str) -> str:
    """The phrase from the article that starts furthest right; matching sometimes takes in too much before it."""
    words = phrase.split(" ")
    return " ".join(words[max((words.index(article) for article in ARTICLES if article in words), default=0) :])


def _as_written(phrase: str, hypothesis: str) -> str:
    """The phrase in the hypothesis' own spelling, without closing mark or possessive ending."""
    pattern = " ".join(re.escape(word) + f"[{CLOSING}]?" for word in phrase.split(" "))
    match = re.search(pattern, hypothesis, re.IGNORECASE)
    if not match:
        raise DataError(f"cannot find {phrase!r} in {hypothesis!r}")
    found = match.group(0)
    found = found[:-1] if found[-1:] in tuple(CLOSING) else found
    return re.sub(r"('s|')$", "", found)


def _star_word(text: str, position: int) -> str:
    """Stars the word at `position`; a closing mark is separated by a space (`*it* .`)."""
    words = text.split(" ")
    word = words[position]
    starred = f"*{word[:-1]}* {word[-1]}" if word[-1:] in tuple(CLOSING) else f"*{word}*"
    return " ".join([*words[:position], starred, *words[position + 1 :]])


# ---------------------------------------------------------------------------------------------------------------------
# Super-NaturalInstructions: an instance and its task's instruction as one text, in Tk-Instruct's encodings.
#
# The form is exactly that of Tk-Instruct (arXiv:2204.07705, table 2; `yizhongw/Tk-Instruct`, `ni_collator.py`): every
# part ends in punctuation, a full stop where it had none. Demonstrations are added one after the other as long as the
# whole fits into the source length, and none after the first that does not. If a row has several references, a training
# example takes one of them, drawn for each row from (seed, the row's `idx`).


# Random streams, so that a row's reference and encoding are drawn independently.
_REFERENCE, _ENCODING = 1, 2
ENCODING_KEYS = ("add_task_definition", "num_pos_examples", "num_neg_examples", "add_explanation", "add_task_name")


def instruction_text(row, settings: dict, fits: Callable[[str], bool] = lambda text: True) -> str:
    """What the model reads for a row.

    Args:
      row: `task`, `definition`, `positive_examples`, `negative_examples` and `input`.
      settings: the entry's `instruction`.
      fits: whether a text is short enough for the model; the default keeps every demonstration.
    """
    chosen = encoding_of(row, settings)
    asked = _closed(f"Now complete the following example -\nInput: {row['input'].strip()}") + "\nOutput: "
    definition = ""
    if chosen["add_task_definition"]:
        definition = _closed(f"Definition: {row['definition'].strip()}") + "\n\n"
    kept = {"Positive": [], "Negative": []}
    for kind, count in (("Positive", chosen["num_pos_examples"]), ("Negative", chosen["num_neg_examples"])):
        for number, example in enumerate(row[f"{kind.lower()}_examples"][:count], start=1):
            text = demonstration(f"{kind} Example {number}", example, chosen["add_explanation"])
            before = " ".join(kept["Positive"]) + " ".join(kept["Negative"])
            if not fits(definition + before + text + asked):
                break
            kept[kind].append(text)
    name = f"{row['task']}. " if chosen["add_task_name"] else ""
    return name + definition + "".join(kept["Positive"] + kept["Negative"]) + asked


def demonstration(title: str, example: dict, explains: bool) -> str:
    r"""One example of a task, with its explanation if requested and present.

    >>> demonstration("Positive Example 1", {"input": "India", "output": "New Delhi"}, False)
    ' Positive Example 1 -\nInput: India.\n Output: New Delhi.\n\n'
    """
    lines = [
        _closed(f" {title} -\nInput: {example['input'].strip()}"),
        _closed(f" Output: {example['output'].strip()}"),
    ]
    if explains and example.get("explanation") is not None:
        lines.append(_closed(f" Explanation: {example['explanation'].strip()}"))
    return "\n".join(lines) + "\n\n"


def drawn_reference(row, references: list[str], settings: dict) -> str:
    """The reference of a training example: a function of the seed and the row's `idx`."""
    if len(references) == 1:
        return references[0]
    return references[int(_random(row, settings, _REFERENCE).integers(len(references)))]


def encoding_of(row, settings: dict) -> dict:
    """The encoding of the row's instruction: from the settings, or (`tk_instruct`) one of five, drawn for the row."""
    if not settings["tk_instruct"]:
        return {key: settings[key] for key in ENCODING_KEYS}
    return MIXED_ENCODINGS[int(_random(row, settings, _ENCODING).integers(len(MIXED_ENCODINGS)))]


def _random(row, settings: dict, stream: int):
    number = row.get("idx", 0)
    if not isinstance(number, (int, np.integer)) or number < 0:
        raise DataError(f"column 'idx' holds {number!r}, not the row's number")
    return np.random.default_rng((settings["seed"], stream, int(number)))


def _closed(text: str) -> str:
    """The text, ending in ASCII punctuation."""
    return text if text[-1] in string.punctuation else text + "."


def _encoding(definition: bool, positive: int, negative: int, explanation: bool) -> dict:
    return dict(zip(ENCODING_KEYS, (definition, positive, negative, explanation, False), strict=True))


# Tk-Instruct's mixture: definition; examples; both; both with negative examples; both with explanations.
MIXED_ENCODINGS = [
    _encoding(True, 0, 0, False),
    _encoding(False, 2, 0, False),
    _encoding(True, 2, 0, False),
    _encoding(True, 2, 2, False),
    _encoding(True, 2, 0, True),
]


def formatter_of(entry: Mapping) -> Callable:
    """The function that an entry of the registry names, or `columns`."""
    formatter = FORMATTERS[entry.get("formatter") or "columns"]
    return load_object(formatter, "FORMATTERS") if isinstance(formatter, str) else formatter


# Functions (row, entry, split) -> examples, or `module:name` of one that is loaded when it is used.
FORMATTERS = {
    "columns": columns,
    "multirc": multirc,
    "record": record,
    "wsc": wsc,
    "wnli_simple": wnli_simple,
    "dpr": dpr,
    "squad": squad,
    "super_ni": super_ni,
    "document": document,
    "token_labels": token_labels,
    "joined_lists": "t5suite.contrib.formatters:joined_lists",
    "instruction": "t5suite.contrib.formatters:instruction",
}

# The columns that a formatter reads besides the entry's own text and label columns.
FORMATTER_COLUMNS = {
    "wsc": ["span1_text", "span2_index", "span2_text"],
    "dpr": ["pronoun", "candidates"],
    "super_ni": ["task", "definition"],
}

# Formatters that drop parts if the whole is too long; they take `fits`, which checks the length.
FITTED_FORMATTERS = {"super_ni"}
