"""A run's `README.md`: its model card, from `card.md.jinja`.

>>> write_fine_tuned_card("runs/glue-rte-t5-small", "t5-small on rte", manifest, results, eval_sets, report, model)
PosixPath('runs/glue-rte-t5-small/README.md')

The same run makes the same card, to the byte; it is rewritten whenever the run finishes again.
"""

import ast
import functools
import shlex
from dataclasses import replace
from pathlib import Path

import jinja2
from huggingface_hub import ModelCard

from t5suite.base.files import whole_file
from t5suite.base.hub_statements import CARD, card_header, header_of_file
from t5suite.base.lookup import listed
from t5suite.base.redaction import printable, redacted, without_folders
from t5suite.data.objectives import OBJECTIVES
from t5suite.models.families import recognize_family
from t5suite.reports.card_facts import CardFacts, ScoredResult, data_sets_of_tasks, hub_commit, hub_name
from t5suite.reports.card_metadata import hub_metadata, licence
from t5suite.reports.card_tables import (
    data_rows,
    first_examples,
    hub_rows,
    machine_rows,
    revision_flags,
    score_notes,
    score_rows,
    setting_rows,
)
from t5suite.reports.card_usage import (
    FOLDER_LINE,
    OVER_NAMED_BASE,
    OVER_OWN_BASE,
    fine_tune_lines,
    own_class_lines,
    pre_trained_predict_lines,
    pre_trained_usage_lines,
    predict_lines,
    usage_lines,
    with_hidden_rows,
    with_short_row,
)
from t5suite.reports.eval_results import write_eval_results
from t5suite.reports.learning_curves import LEARNING_CURVES
from t5suite.reports.markdown import block, code
from t5suite.reports.run_facts import call_with_program, is_python_call
from t5suite.reports.run_records import code_of_author
from t5suite.runs.directory import BASE_FOLDER
from t5suite.tasks.cells import as_list
from t5suite.tasks.evaluate_metrics import evaluate_names
from t5suite.tasks.segments import SEPARATOR, reads_columns
from t5suite.tasks.targets import has_free_numbers, has_label_sets, label_words
from t5suite.tracking.tables import markdown_table

# Label words of a task that a card names.
MOST_LABELS = 12


def write_fine_tuned_card(directory, title: str, manifest: dict, results: dict, eval_sets, report, model) -> Path:
    """Writes `README.md` into the directory of a fine-tuning run.

    Args:
      eval_sets: what was scored, whose first rows are the examples; the author's own only with `--share_rows`.
      report: the scores with their marks.
      model: the trained one; its settings of generation are those of plain transformers, too.
    """
    scored = {}
    shown_sets = []
    for eval_set in eval_sets:
        shows_rows = may_show_rows(eval_set.name, manifest)
        scored[eval_set.name] = scored_result(eval_set, report.results[eval_set.name], shows_rows)
        shown_sets.append(with_short_row(eval_set) if shows_rows else with_hidden_rows(eval_set))
    example_set = next((eval_set for eval_set in shown_sets if eval_set.examples), None)
    family = recognize_family(model).name
    own_class = manifest["settings"].get("model_class")
    if own_class:
        usage = own_class_lines(own_class)
    else:
        generation = getattr(model, "generation_config", None)
        models_own = {} if generation is None else generation.to_diff_dict()
        usage = usage_lines(example_set, family, adapter_of(directory, manifest), manifest, models_own)
    facts = CardFacts(
        title=title,
        results=results,
        manifest=manifest,
        scored=scored,
        family=family,
        usage=usage,
        predict=predict_lines(shown_sets, manifest),
    )
    return write_card(directory, facts)


def adapter_of(directory, manifest: dict) -> str | None:
    """What an adapter of the run is over, as `loading_lines` takes it; None without an adapter."""
    if "adapter" not in manifest.get("model", {}):
        return None
    return OVER_OWN_BASE if Path(directory, BASE_FOLDER).is_dir() else OVER_NAMED_BASE


def may_show_rows(name: str, manifest: dict) -> bool:
    """Whether a card may show rows of an evaluated split: the author's own need `--share_rows`."""
    return not manifest["scored"][name]["own_rows"] or bool(manifest["settings"].get("share_rows"))


def scored_result(eval_set, result, shows_rows: bool) -> ScoredResult:
    """What a card says of an evaluated split and its result, with an example if its rows may be shown."""
    example = None
    if shows_rows and eval_set.examples:
        targets = ""
        if eval_set.labelled:
            targets = eval_set.examples[0].targets
        example = (eval_set.shown_inputs(0), targets)
    return ScoredResult(
        task=eval_set.task.name,
        split=eval_set.split,
        role=eval_set.role,
        rows=result.num_rows,
        method=result.method,
        marks=tuple(result.marks),
        example=example,
    )


def write_pre_trained_card(
    directory, title: str, manifest: dict, results: dict, objective: str, family: str, example: str
) -> Path:
    """Writes `README.md` into the directory of a pre-training run.

    Args:
      objective: its name in `OBJECTIVES`.
      family: seq2seq, causal or masked.
      example: an input text of held-out data.
    """
    own_class = manifest["settings"].get("model_class")
    if own_class:
        usage = own_class_lines(own_class)
    else:
        usage = pre_trained_usage_lines(family, example)
    facts = CardFacts(
        title=title,
        results=results,
        manifest=manifest,
        scored={name: ScoredResult(name, "held-out") for name in results["tasks"]},
        family=family,
        usage=usage,
        predict=pre_trained_predict_lines(family, own_class, example),
        fine_tune=fine_tune_lines(own_class),
        objective=f"{objective} ({OBJECTIVES[objective].reference})",
    )
    return write_card(directory, facts)


def write_card(directory, facts: CardFacts) -> Path:
    """Writes the card through a temporary sibling, so that a reader never sees half of it."""
    facts = with_headers(facts)
    write_eval_results(directory, facts)
    path = Path(directory) / CARD
    text = card_text(facts, path.parent)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def with_headers(facts: CardFacts) -> CardFacts:
    """The facts with what the cards of the base model and of the hub's data sets say."""
    return replace(facts, base_header=base_header(facts), data_headers=data_headers(facts))


def base_header(facts: CardFacts) -> dict:
    """The metadata of the base model's card: in its folder, or on the hub."""
    if not facts.base:
        return {}
    if Path(facts.base).is_dir():
        return header_of_file(Path(facts.base) / CARD)
    return card_header("model", facts.base, hub_commit(facts, "models", facts.base))


def data_headers(facts: CardFacts) -> dict[str, dict]:
    """The metadata of the cards of the hub's data sets that training rows are from."""
    headers = {}
    for name in data_sets_of_tasks(facts):
        headers[name] = card_header("dataset", name, hub_commit(facts, "datasets", name))
    return headers


def card_text(facts: CardFacts, directory: Path) -> str:
    """The card: metadata and sections, without secrets.

    Args:
      directory: of the run, whose learning curves are shown if they are there.
    """
    manifest = facts.manifest
    picture = ""
    if (directory / LEARNING_CURVES).is_file():
        picture = LEARNING_CURVES
    text = card_template().render(
        card_data=hub_metadata(facts).to_yaml(),
        facts=facts,
        summary=summary_sentence(facts),
        template=functools.partial(input_template, form=(manifest.get("encoding") or {}).get("form")),
        answers=answer_words,
        examples=first_examples(facts),
        separator=answer_separator(manifest),
        scores=score_rows(facts),
        notes=score_notes(facts),
        verify=verify_line(facts, directory),
        task_file=needed_task_file(facts),
        data=data_rows(manifest),
        settings=setting_rows(facts),
        hub=hub_rows(manifest),
        revisions=revision_flags(manifest),
        picture=picture,
        command=command_text(manifest),
        command_language="" if is_python_call(manifest.get("command", [])) else "bash",
        machine=machine_rows(manifest),
        base=hub_name(facts.base),
        licence=licence(facts)["license"],
        folder_line=FOLDER_LINE,
        code=code,
        block=lambda language, lines: "\n".join(block(language, lines)),
        table=markdown_table,
    )
    ModelCard(text)  # checks the metadata
    return printable(redacted(f"{text.rstrip()}\n"))


@functools.cache
def card_template() -> jinja2.Template:
    """The card's template; `ModelCard.from_template` compiles it at every call (20 ms)."""
    text = Path(__file__).with_name("card.md.jinja").read_text(encoding="utf-8")
    return jinja2.Template(text, undefined=jinja2.StrictUndefined)


def needed_task_file(facts: CardFacts) -> str:
    """The name of the Python file of a task that the card's lines name; empty if they name none."""
    file = Path(facts.settings.get("task_file") or "").name
    if file.endswith(".py") and any(file in line for line in [*facts.usage, *facts.predict]):
        return file
    return ""


def verify_line(facts: CardFacts, directory: Path) -> str:
    """How to check the scores; empty where nothing was answered, or only code of the author repeats it."""
    scored = facts.manifest.get("scored")
    codes = [*code_of_author(directory, facts.settings)]
    for entry in facts.tasks.values():
        codes += evaluate_names(entry)
    if not scored or codes:
        return ""
    line = "`t5suite verify .` fetches these rows, answers every one again and compares"
    if facts.settings.get("select") == "per_task" and "training" in facts.manifest:
        return f"{line}, in the run's own folder alone: the weights of each task's best step are not uploaded."
    has_own_rows = any(split.get("own_rows") for split in scored.values())
    if has_own_rows and not facts.settings.get("share_rows"):
        return f"{line}; some of the rows are the author's own and not shared (`--data_dir DIR` if you have them)."
    return f"{line} (elsewhere: its path, or its name on the hub, in place of `.`)."


def answer_separator(manifest: dict) -> str:
    """What stands between a decoder-only model's prompt and its answer, as Python; empty if nothing does."""
    encoding = manifest.get("encoding") or {}
    separator = encoding.get("answer_separator")
    if not separator:
        return ""
    return repr(separator)


# How a user starts the scripts.
COMMANDS_OF_SCRIPTS = {
    "fine_tune_t5.py": ("t5suite", "fine_tune"),
    "pre_train_t5.py": ("t5suite", "pre_train"),
}


def command_text(manifest: dict) -> str:
    """The command of the run, or its call from Python, the paths in it without their folders."""
    command = manifest.get("command", [])
    if not command:
        return "(not recorded)"
    words = [without_folders(word) for word in command]
    script = Path(words[0]).name
    if script in COMMANDS_OF_SCRIPTS:
        return shlex.join([*COMMANDS_OF_SCRIPTS[script], *words[1:]])
    if is_python_call(command):
        return call_with_program(_call_without_folders(command[1]), words[0])
    return f"python {shlex.join(words)}"


def _call_without_folders(call: str) -> str:
    """A call from Python, each path in its arguments without its folders."""
    try:
        tree = ast.parse(call, mode="eval")
    except SyntaxError:  # a value that Python shows as <...>
        return without_folders(call)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = without_folders(node.value)
    return ast.unparse(tree)


def summary_sentence(facts: CardFacts) -> str:
    """What the model is, in a sentence."""
    training = "fine-tuned"
    if facts.objective:
        training = f"pre-trained by {facts.objective}"
    adapter = facts.model.get("adapter")
    if adapter:
        training = f"an adapter ({adapter}), {training}"
    initial = "random weights"
    if facts.base:
        initial = code(hub_name(facts.base) or without_folders(facts.base))
    version = facts.manifest["versions"].get("t5suite") or ""
    return f"{model_size(facts.model)}{training} from {initial} with t5suite {version}."


def model_size(model: dict) -> str:
    """The class and the number of parameters, if they are known.

    >>> model_size({"class": "T5ForConditionalGeneration", "parameters": 60506624, "trainable": 1024})
    'T5ForConditionalGeneration, 60,506,624 parameters, of which 1,024 were trained; '
    """
    if "parameters" not in model:
        return ""
    text = f"{model['class']}, {model['parameters']:,} parameters"
    num_trained = model.get("trainable", model["parameters"])
    if num_trained != model["parameters"]:
        text += f", of which {num_trained:,} were trained"
    return f"{text}; "


def input_template(entry: dict, form: str | None = None) -> str:
    """What a model reads of a task's row, with the columns in braces.

    >>> entry = {"prefix": ["rte sentence1: ", "sentence2: "], "text_column_name": ["sentence1", "sentence2"]}
    >>> input_template(entry)
    'rte sentence1: {sentence1} sentence2: {sentence2}'
    >>> input_template(entry, form="segments")
    '{sentence1} | {sentence2}'

    Args:
      form: of the model's encoding, as the manifest describes it.
    """
    columns = as_list(entry.get("text_column_name") or "")
    reads_no_prefix = form == "words" or (form == "segments" and reads_columns(entry))
    if reads_no_prefix:
        return f" {SEPARATOR} ".join(f"{{{column}}}" for column in columns)
    prefixes = as_list(entry.get("prefix") or "")
    parts = [f"{prefix}{{{column}}}" for prefix, column in zip(prefixes, columns)]
    text = " ".join(parts)
    if entry.get("input_format"):
        text = entry["input_format"].replace("__input__", text)
    if entry.get("formatter"):
        text = f"{text} (formatter {entry['formatter']})"
    return text


def answer_words(entry: dict) -> str:
    """The words of a task's labels, or what its answers are without any.

    >>> answer_words({"labels": {0: "no", 1: "yes", -1: "other"}})
    '`no`, `yes`'
    >>> answer_words({"labels": None, "metric_names": ["micro_f1"]})
    "a row's labels, each once, in the order of the alphabet, commas between them"
    """
    words = [code(str(word)) for word in label_words(entry.get("labels") or [])]
    if words:
        return listed(words, MOST_LABELS)
    if has_label_sets(entry):
        return "a row's labels, each once, in the order of the alphabet, commas between them"
    if has_free_numbers(entry):
        return "a number"
    if entry.get("target") is None:
        return "free text"
    return f"text (target {code(str(entry['target']))})"
