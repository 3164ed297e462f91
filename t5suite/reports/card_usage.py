"""Python and commands that use a run's model, for its card.

>>> print("\\n".join(usage_lines(eval_set, "seq2seq", None, manifest, {})))
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
<BLANKLINE>
model = AutoModelForSeq2SeqLM.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")
inputs = tokenizer('sst2 sentence: It was good.', return_tensors="pt")
answer = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=2)[0]
print(tokenizer.decode(answer, skip_special_tokens=True))

All are run in the model's folder.
"""

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from t5suite.data.batches.encodings import LabelsEncoding, LanguageEncoding, with_spaces
from t5suite.models.adapter_kinds import ADAPTERS
from t5suite.models.answering.call_settings import is_heeded, settings_with_effect
from t5suite.models.answering.greedy import NEUTRAL_SETTINGS
from t5suite.reports.next_commands import flags_of_task_file, writing_flags
from t5suite.tasks.cells import value_at, with_value_at
from t5suite.tasks.cut_marks import without_cut
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.formatters import Example
from t5suite.tasks.languages import Languages
from t5suite.tasks.registry import Task
from t5suite.tasks.task_card import HEADED
from t5suite.training.evaluation import number_range

AUTO_CLASSES = {"seq2seq": "AutoModelForSeq2SeqLM", "masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}
# Where the base of an adapter is: PEFT loads one by the name that the adapter stores, and the run keeps another one.
OVER_NAMED_BASE = "over a named base"
OVER_OWN_BASE = "over a base of its own"
# transformers takes a base, and t5suite an adapter, from a folder, but not from a repository of the hub.
FOLDER_LINE = 'folder = "."  # of a model on the hub: huggingface_hub.snapshot_download("OWNER/NAME")'
# Characters of a row whose answer is shown, and how many rows are tried.
LONGEST_ROW = 1000
MOST_ROWS = 100
# In place of every text of a row that is not shown.
NOT_SHOWN = "..."
# A row that a task reads as it is, instead of its own columns.
FINISHED_TEXT = {"inputs": NOT_SHOWN}


def with_hidden_rows(eval_set):
    """The evaluated split with one row, which has '...' in place of its texts: for rows that are not to be shown."""
    languages = getattr(eval_set.encoding, "languages", Languages())
    rows = [hidden_row(row, eval_set.task, languages) for row in eval_set.rows[:1]]
    examples = [Example(inputs=NOT_SHOWN, targets=NOT_SHOWN) for _ in eval_set.examples[:1]]
    example_set = ExampleSet(rows, eval_set.example_set.split, examples, [0] * len(examples))
    return replace(eval_set, example_set=example_set)


def with_short_row(eval_set):
    """The evaluated split with one row, whose answer a card shows: the first that is short and that is read whole.

    Without such a one as `with_hidden_rows`: the Python of a card cuts no text, as the evaluation does.
    """
    for number in range(min(MOST_ROWS, len(eval_set.rows))):
        part = replace(eval_set, example_set=eval_set.example_set.part([number]))
        if not part.examples or len(_row_without_label(part)) > LONGEST_ROW:
            continue
        inputs = part.shown_inputs(0)
        if inputs == without_cut(inputs):
            return part
    return with_hidden_rows(eval_set)


def hidden_row(row: Mapping, task: Task, languages: Languages) -> dict:
    """A row without what it says, or a finished text where the task cannot read that.

    The codes of its languages stay, which a model cannot answer without.
    """
    columns = filter(None, (languages.source_lang_column, languages.target_lang_column))
    codes = {column: value_at(row, column) for column in columns}
    hidden = hidden_value(row)
    for column, code in codes.items():
        hidden = with_value_at(hidden, column, code)
    if is_readable(hidden, task):
        return hidden
    return {**FINISHED_TEXT, **codes}


def is_readable(row: Mapping, task: Task) -> bool:
    """Whether a task makes an input of a row, whatever its answer is.

    >>> is_readable({"text": "...", "span2_index": "...", ...}, load_task("super_glue", "wsc"))
    False
    """
    try:
        task.examples({**row, task.entry["label_column_name"]: None})
    except Exception:  # the formatter may be the user's own
        return False
    return True


def hidden_value(value):
    """A row's value without what it says; columns keep their names, and lists stay lists.

    >>> hidden_value({"name": "Ann", "translation": {"en": "Good.", "de": "Gut."}, "tokens": ["Ann", "sings"]})
    {'name': '...', 'translation': {'en': '...', 'de': '...'}, 'tokens': ['...']}
    """
    if isinstance(value, dict):
        return {name: hidden_value(part) for name, part in value.items()}
    if isinstance(value, list):
        return [NOT_SHOWN]
    return NOT_SHOWN


def own_class_lines(model_class: str) -> list[str]:
    """Python that loads a model of the user's own class."""
    return [
        "from t5suite.models.loading import load_model, load_tokenizer",
        "",
        'tokenizer = load_tokenizer(".")',
        f'model = load_model(".", tokenizer=tokenizer, model_class="{model_class}")',
    ]


def loading_lines(auto_class: str, adapter_base: str | None = None, arguments: str = "") -> list[str]:
    """Python that loads model and tokenizer.

    Args:
      adapter_base: where an adapter's base is, OVER_NAMED_BASE or OVER_OWN_BASE; None without an adapter.
    """
    if adapter_base == OVER_NAMED_BASE:
        peft_class = auto_class.replace("AutoModel", "AutoPeftModel")
        lines = [
            f"from peft import {peft_class}",
            "from transformers import AutoTokenizer",
            "",
            f'model = {peft_class}.from_pretrained("."{arguments})',
        ]
    elif adapter_base == OVER_OWN_BASE:
        return [
            "from peft import PeftModel",
            f"from transformers import {auto_class}, AutoTokenizer",
            "",
            FOLDER_LINE,
            f'base = {auto_class}.from_pretrained(f"{{folder}}/base"{arguments})',
            "model = PeftModel.from_pretrained(base, folder)",
            "tokenizer = AutoTokenizer.from_pretrained(folder)",
        ]
    else:
        lines = [
            f"from transformers import {auto_class}, AutoTokenizer",
            "",
            f'model = {auto_class}.from_pretrained("."{arguments})',
        ]
    return [*lines, 'tokenizer = AutoTokenizer.from_pretrained(".")']


def usage_lines(
    eval_set,
    family: str,
    adapter_base: str | None,
    manifest: Mapping,
    models_own: Mapping,
) -> list[str]:
    """Python that answers the first row of an evaluated split.

    Args:
      eval_set: one with examples; None: texts are '...'.
      family: seq2seq, causal, masked or encoder.
      adapter_base: as in `loading_lines`.
      manifest: of the run; it names the file that its task is from, and the flags of answers.
      models_own: the generation settings that are saved with the model.
    """
    if eval_set is None and (family != "seq2seq" or _has_virtual_tokens(manifest)):
        return _lines_without_rows(manifest)
    if _needs_t5suite(eval_set, family, manifest):
        return _lines_of_row(eval_set, manifest)
    if family == "causal":
        return _prompt_lines(eval_set, adapter_base, _generate_call(eval_set, family, manifest, models_own))
    if family not in HEADED:
        call = _generate_call(eval_set, family, manifest, models_own)
        if eval_set is None:
            language_lines = _language_lines_without_rows(adapter_base, manifest, models_own)
        else:
            language_lines = _language_lines(eval_set, adapter_base, models_own)
        return _text_lines(eval_set, adapter_base, language_lines, call)
    if isinstance(eval_set.encoding, LabelsEncoding):
        return _word_label_lines(eval_set, adapter_base)
    return _head_lines(eval_set, adapter_base)


def _needs_t5suite(eval_set, family: str, manifest: Mapping) -> bool:
    """Whether transformers and PEFT alone would answer otherwise than `t5suite predict`.

    They do not choose among labels, know no head over T5's encoder alone, read other positions behind virtual tokens
    (`models.prompted`), and some tokenizers split words otherwise than `LabelsEncoding`.
    """
    if family == "encoder" or _has_virtual_tokens(manifest):
        return True
    if eval_set is None:
        return False
    reads_words = isinstance(eval_set.encoding, LabelsEncoding)
    return eval_set.method == "score" or (reads_words and _words_for_tokenizer(eval_set) is None)


def _has_virtual_tokens(manifest: Mapping) -> bool:
    adapter = manifest["model"].get("adapter")
    return adapter is not None and ADAPTERS[adapter].is_virtual


def _lines_without_rows(manifest: Mapping) -> list[str]:
    """A model of a run without evaluated rows: each column that its first task reads is '...'.

    None where each row names its language, which '...' is not.
    """
    settings = manifest["settings"]
    if settings.get("source_lang_column") or settings.get("target_lang_column"):
        return []
    name, entry = next(iter(manifest["tasks"].items()))
    task = Task(settings.get("benchmark"), name, entry)
    row = dict.fromkeys(task.text_columns, NOT_SHOWN)
    if not is_readable(row, task):
        row = FINISHED_TEXT
    return _tuner_lines(task, row, {}, manifest)


def _lines_of_row(eval_set, manifest: Mapping) -> list[str]:
    """A model that t5suite alone loads and answers with, and the first evaluated row."""
    row = json.loads(_row_without_label(eval_set))
    return _tuner_lines(eval_set.task, row, _writing_flags_of(eval_set, manifest), manifest)


def _tuner_lines(task: Task, row: Mapping, writing_settings: Mapping, manifest: Mapping) -> list[str]:
    """Python that answers a row with a `FineTuner`, which takes an adapter from a folder alone."""
    task_flags = _task_file_beside(task, manifest)
    lines = ["from t5suite import FineTuner", ""]
    if task_flags is None:
        modules = _modules_of_rows(manifest["settings"])
        lines = [*(f"import {module}  # has functions of the task" for module in modules), *lines]
    folder = '"."'
    if "adapter" in manifest["model"]:
        lines.append(FOLDER_LINE)
        folder = "folder"
    tuner = f"FineTuner({folder}{_keywords(task_flags or {})})"
    settings = _keywords({"dataset_name": task.name, **writing_settings})
    return [*lines, f"row = {row!r}", f"print({tuner}.predict(row{settings}))"]


def _writing_flags_of(eval_set, manifest: Mapping) -> dict[str, int]:
    """`writing_flags` of a split whose answers were written."""
    if eval_set.method != "generate":
        return {}
    return writing_flags(manifest["settings"])


def _keywords(arguments: Mapping) -> str:
    """Python of further arguments of a call."""
    return "".join(f", {name}={value!r}" for name, value in arguments.items())


def _modules_of_rows(settings: Mapping) -> list[str]:
    """The modules of the user's own `--data_class`.

    >>> _modules_of_rows({"data_class": ["my_data:Reviews", "Debug"]})
    ['my_data']
    """
    return [name.partition(":")[0] for name in settings.get("data_class") or () if ":" in name]


def _task_file_beside(task, manifest: Mapping) -> dict[str, str] | None:
    """`flags_of_task_file`, of a file in the model's folder."""
    flags = flags_of_task_file(task, manifest)
    if flags:
        flags["task_file"] = Path(flags["task_file"]).name
    return flags


def _language_lines(eval_set, adapter_base: str | None, models_own: Mapping) -> list[str]:
    """Python that sets the languages of the first row, where each row has its own; others are saved with the model.

    An adapter's folder lacks the language of answers, which is a setting of the model's generation.
    """
    encoding = eval_set.encoding
    if not isinstance(encoding, LanguageEncoding) or encoding.is_marked:
        return []
    languages = encoding.languages
    source, target = languages.of(eval_set.rows[0])
    lines = []
    if languages.source_lang_column:
        lines.append(f"tokenizer.src_lang = {source!r}")
    setting = encoding.setting_of_target
    if languages.target_lang_column:
        lines.append(f"model.generation_config.{setting} = {encoding.ids[target]}  # {target}")
    elif adapter_base:
        lines.append(f"model.generation_config.{setting} = {models_own[setting]}")
    return lines


def _language_lines_without_rows(adapter_base: str | None, manifest: Mapping, models_own: Mapping) -> list[str]:
    """As `_language_lines`, for a run without evaluated rows; tokenizers differ in the setting that is the language."""
    if not adapter_base or "target_lang" not in manifest["encoding"]:
        return []
    names = ("forced_bos_token_id", "decoder_start_token_id")
    return [f"model.generation_config.{name} = {models_own[name]}" for name in names if name in models_own]


def _text_lines(eval_set, adapter_base: str | None, language_lines: list[str], generate_call: str) -> list[str]:
    """An encoder-decoder model."""
    inputs = eval_set.shown_inputs(0) if eval_set else NOT_SHOWN
    return [
        *loading_lines(AUTO_CLASSES["seq2seq"], adapter_base),
        *language_lines,
        f'inputs = tokenizer({inputs!r}, return_tensors="pt")',
        f"answer = {generate_call}[0]",
        "print(tokenizer.decode(answer, skip_special_tokens=True))",
    ]


def _generate_call(eval_set, family: str, manifest: Mapping, models_own: Mapping) -> str:
    """The call with the settings of the evaluation, in place of those that are saved with the model."""
    if not eval_set:
        return "model.generate(**inputs)"
    flags = manifest["settings"]
    num_beams = flags.get("generation_num_beams") or 1
    answer_tokens = flags.get("generation_max_length") or eval_set.max_target_tokens
    arguments = {
        "do_sample": False,
        "num_beams": num_beams,
        "max_new_tokens": eval_set.encoding.num_fixed_tokens + answer_tokens,
    }
    is_plain = eval_set.task.writes_plainly
    for name in settings_with_effect(models_own, num_beams):
        if name not in arguments and not is_heeded(name, is_plain, family == "seq2seq", num_beams):
            arguments[name] = NEUTRAL_SETTINGS.get(name)
    return f"model.generate(**inputs, {', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _prompt_lines(eval_set, adapter_base: str | None, generate_call: str) -> list[str]:
    """A decoder-only model: what follows the prompt is the answer."""
    return [
        "import torch",
        *loading_lines(AUTO_CLASSES["causal"], adapter_base),
        *_prompt_ids_lines(eval_set.encoding, eval_set.shown_inputs(0)),
        'inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}',
        f"answer = {generate_call}[0, len(ids) :]",
        "print(tokenizer.decode(answer, skip_special_tokens=True).strip())",
    ]


def _prompt_ids_lines(encoding, text: str) -> list[str]:
    """Python that makes a prompt's ids; text and separator are tokenized apart, as no token spans both in training."""
    if not text:
        return [f"ids = {encoding.prompts([text])[0]}"]
    calls = []
    for part in filter(None, (text, encoding.separator.rstrip(" "))):
        calls.append(f'    *tokenizer({part!r}, add_special_tokens=False)["input_ids"],')
    return ["ids = [", *(f"    {token_id}," for token_id in encoding.lead), *calls, "]"]


def _head_lines(eval_set, adapter_base: str | None) -> list[str]:
    """A head for one class or one number."""
    if eval_set.encoding.words is None:
        answer = _number_in_range("float(model(**inputs).logits)", *number_range(eval_set.task))
    else:
        words = _label_words(eval_set.encoding, adapter_base)
        answer = f"{words}[int(model(**inputs).logits.argmax())]"
    return [
        *_head_loading_lines("AutoModelForSequenceClassification", eval_set.encoding, adapter_base),
        f'inputs = tokenizer({_texts_read(eval_set)}, return_tensors="pt")',
        f"print({answer})",
    ]


def _number_in_range(number: str, low: float, high: float) -> str:
    """Python for a number that is clipped to the task's range, if it has one.

    >>> _number_in_range("float(model(**inputs).logits)", 0.0, 5.0)
    'min(max(float(model(**inputs).logits), 0.0), 5.0)'
    """
    if math.isinf(low):
        return number
    return f"min(max({number}, {low}), {high})"


def _word_label_lines(eval_set, adapter_base: str | None) -> list[str]:
    """A head for a label at each word."""
    words = _label_words(eval_set.encoding, adapter_base)
    return [
        *_head_loading_lines("AutoModelForTokenClassification", eval_set.encoding, adapter_base),
        f"words = {_words_for_tokenizer(eval_set)!r}",
        'inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")',
        "labels = model(**inputs).logits[0].argmax(-1).tolist()",
        "firsts = [inputs.word_ids().index(place) for place in range(len(words))]  # the first token of each word",
        f'print(" ".join({words}[labels[first]] for first in firsts))',
    ]


def _words_for_tokenizer(eval_set) -> list[str] | None:
    """The first row's words, with or without spaces, such that the tokenizer reads them as in training; else None."""
    encoding = eval_set.encoding
    texts = encoding.texts_read(eval_set.examples[0], eval_set.rows[0], eval_set.task)
    if not encoding.tokenizer.is_fast:  # others do not say which tokens are a word's
        return None
    (ids,) = encoding.inputs([texts])["input_ids"]
    for words in (list(texts), with_spaces(texts)):
        if encoding.tokenizer(words, is_split_into_words=True)["input_ids"] == ids:
            return words
    return None


def _head_loading_lines(auto_class: str, encoding, adapter_base: str | None) -> list[str]:
    """Python that loads a model with a head; PEFT does not know how many outputs an adapter's head has."""
    if not adapter_base:
        return loading_lines(auto_class)
    num_outputs = max(1, len(encoding.words or ()))
    return loading_lines(auto_class, adapter_base, f", num_labels={num_outputs}")


def _label_words(encoding, adapter_base: str | None) -> str:
    """Python for the words of a head's labels, which PEFT does not know."""
    if adapter_base:
        return repr(list(encoding.words))
    return "model.config.id2label"


def _texts_read(eval_set) -> str:
    """The first example's texts as Python, as the tokenizer takes them."""
    texts = eval_set.encoding.texts_read(eval_set.examples[0], eval_set.rows[0], eval_set.task)
    return ", ".join(map(repr, texts))


def pre_trained_usage_lines(family: str, example: str) -> list[str]:
    """Python that reads a text with a pre-trained model."""
    answer = "model.generate(**inputs)[0]"
    if family == "masked":
        answer = "model(**inputs).logits[0].argmax(-1)"
    return [
        *loading_lines(AUTO_CLASSES[family]),
        f'inputs = tokenizer({example!r}, return_tensors="pt")',
        f"print(tokenizer.decode({answer}))",
    ]


def predict_lines(eval_sets, manifest: dict) -> list[str]:
    """The command that answers a row, in lines; none if the model gives no answers.

    None, too, for tasks with functions that are not a task file's.
    """
    for eval_set in eval_sets:
        if eval_set.method == "loss" or not eval_set.rows:
            continue
        task_flags = _task_file_beside(eval_set.task, manifest)
        if task_flags is None:
            return []
        if len(manifest.get("tasks", {})) > 1 and not task_flags:
            task_flags = {"dataset_name": eval_set.task.name}
        task_flags |= _writing_flags_of(eval_set, manifest)
        flags = _flags(manifest["settings"].get("model_class"), **task_flags)
        return [f"t5suite predict {flags} --input - <<'ROWS'", _row_without_label(eval_set), "ROWS"]
    return []


def _row_without_label(eval_set) -> str:
    """The first row as a line of JSON."""
    label = eval_set.task.entry.get("label_column_name")
    columns = {name: value for name, value in eval_set.rows[0].items() if name != label}
    return json.dumps(columns, ensure_ascii=False, default=str)


def _flags(model_class: str | None, **flags_by_name: str | int) -> str:
    """The flags that name the model in this folder, and those by name."""
    flags = ["--model_name_or_path ."]
    for name, value in flags_by_name.items():
        flags.append(f"--{name} {shlex.quote(str(value))}")
    if model_class:
        flags.append(f"--model_class {model_class}")
    return " ".join(flags)


def pre_trained_predict_lines(family: str, model_class: str | None, example: str) -> list[str]:
    """The command that continues a text, in lines; none if the model generates nothing."""
    if family == "masked":
        return []
    row = json.dumps({"inputs": example}, ensure_ascii=False)
    return [f"t5suite predict {_flags(model_class)} --raw --input - <<'ROWS'", row, "ROWS"]


def fine_tune_lines(model_class: str | None) -> list[str]:
    """The command that trains a pre-trained model further, in lines."""
    return [
        f"python -m fine_tune_t5 {_flags(model_class)} \\",
        "  --benchmark mini --dataset_name sentiment --max_steps 100 --output_dir ../fine_tuned",
    ]
