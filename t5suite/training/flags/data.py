"""The flags of fine-tuning's data: a benchmark's tasks, rows of your own, and Super-NaturalInstructions.

    >>> DataFormatArguments(data_format="csv", text_column="text", target_column="label").is_given
    True

`--data_format` names the format of one data set; `--data_class` and its list flags describe several data sets, one
value each, with the names of IBM/dolomite-engine (Apache-2.0). Instruction flags have Tk-Instruct's names; given values
are stored in the task's entry, so that manifest, caches and task card contain the whole format.
"""

import os
from dataclasses import dataclass, fields, replace
from typing import Literal

from t5suite.base.errors import ConfigError
from t5suite.tasks.instructions import ENCODING_KEYS
from t5suite.training.flags.fields import check_needed_flags, facts, flag
from t5suite.training.flags.plug_ins import named_metrics

# The `needs` of a mixture's flags.
MIXED = "training, several tasks"


@dataclass
class DataArguments:
    """The task, and the source of its rows."""

    shared_facts = facts(theme="data")

    benchmark: str = flag("mini", "glue, super_glue, ... (t5suite tasks), or one of --task_file.", "common data intro")
    dataset_name: str = flag("sentiment", "A task, several with commas, or a mixture such as all.", "common data intro")
    task_file: str | None = flag(
        None, "Tasks of your own: YAML {benchmark: {task: entry}}, or Python with DATASET_VALS.", "common data fresh"
    )
    data_dir: str | None = flag(
        None,
        "DIR/<benchmark>/<task>/<split>.jsonl[.gz]. Default: $T5SUITE_DATA_DIR, else the hub.",
        "common intro",
        change="nothing",
    )
    train_file: str | None = flag(
        None,
        "Training rows: .csv, .tsv, .parquet, .jsonl, or what --data_format says.",
        "common rows intro apart",
        needs="training",
    )
    validation_file: str | None = flag(
        None, "A file of validation rows, which are scored.", "common rows", needs="validation"
    )
    test_file: str | None = flag(None, "A file of test rows.", "rows", needs="prediction")
    data_revision: str | None = flag(
        None, "Branch, tag or commit of the hub's data set; of several: NAME=REVISION,NAME=REVISION."
    )
    max_source_length: int = flag(512, "Longest input; the rest is cut off.", "common report", bounds="[2, inf) tokens")
    max_target_length: int = flag(
        512, "Longest target in tokens.", "common report", bounds="[2, inf) tokens", needs="written targets"
    )
    answer_separator: str | None = flag(None, "Between prompt and answer. Default: as trained.", needs="a shared row")
    source_lang: str | None = flag(None, "Language read: deu_Latn (NLLB), de (M2M100), de_DE (mBART).", "report")
    target_lang: str | None = flag(None, "Language written. Default: as trained, else the tokenizer's.", "report")
    source_lang_column: str | None = flag(None, "A column of each row's language, in place of --source_lang.")
    target_lang_column: str | None = flag(None, "The column with each target's language, instead of --target_lang.")
    max_train_samples: int | None = flag(
        None, "Largest number of training rows a task.", "common report", bounds="[1, inf) rows", needs="training"
    )
    max_eval_samples: int | None = flag(None, "Evaluation rows, at most.", bounds="[1, inf) rows", needs="validation")
    max_predict_samples: int | None = flag(
        None, "At most this many test rows a split.", bounds="[1, inf) rows", needs="prediction"
    )
    mixing: Literal["proportional", "equal"] = flag(
        "proportional", "How often a mixture's tasks are drawn.", "report", needs=MIXED
    )
    mixing_limit: float | None = flag(
        None, "A task counts for at most so many examples.", "report", bounds="(0, inf) a number", needs=MIXED
    )
    mixing_temperature: float = flag(
        1.0, "Rates are taken to the power 1/temperature.", "report", bounds="(0, inf) a number", needs=MIXED
    )
    allow_missing_tasks: bool = flag(
        False, "Leave out members of a mixture that have no local training split.", needs="several tasks"
    )
    selection_split: str = flag(
        "validation", "What selects checkpoints: validation, or a part held out: 'train[5%%]'.", needs="training"
    )

    def __post_init__(self):
        self.data_dir = self.data_dir or os.environ.get("T5SUITE_DATA_DIR")
        check_needed_flags(self)


OWN_ROWS, TABLES = "--data_format or --data_class", "jsonl csv tsv parquet hub"
FORMATS = ("jsonl", "csv", "tsv", "parquet", "translation", "alpaca", "text", "hub")


@dataclass
class FormatArguments:
    """Settings of `--data_format`."""

    shared_facts = facts(theme="rows", needs="--data_format")

    train_dir: str | None = flag(None, "Folder of --data_format's splits: train/ or train.csv, ...", "rows intro apart")
    text_column: str | None = flag(
        None, "Input column(s), with commas. Default: input (text: text).", "common", formats=f"{TABLES} text"
    )
    target_column: str | None = flag(None, "What is to be written. Default: output.", "common", formats=TABLES)
    delimiter: str | None = flag(
        None, "Between cells: ';', tab, ... Default: what fits the file (tsv: tab).", formats="csv tsv"
    )
    source_id: str = flag("s", "The language read of {'translation': {...}}.", formats="translation")
    target_id: str = flag("t", "The language to be written.", formats="translation")
    prefix: str | None = flag(None, r"Text put before every input: 'Translate: ' (\n, \t and \\ are understood).")
    hub_path: str | None = flag(None, "Hub name or folder of --data_format hub.", "rows", formats="hub")
    hub_name: str | None = flag(None, "Its configuration.", formats="hub")
    text_unit: Literal["line", "paragraph", "file"] = flag(
        "line", "What a document is in a .txt file of --data_format text.", formats="text"
    )
    block_size: int | None = flag(
        None, "Tokens of a block of text. Default: --max_target_length.", bounds="[8, inf) tokens", formats="text"
    )


@dataclass
class DataSetArguments:
    """Your own data sets."""

    shared_facts = facts(theme="rows")

    data_format: Literal[FORMATS] | None = flag(
        None, "What your own files hold. Default: as their names say (reviews.csv).", "common data intro apart"
    )
    metrics: str | None = flag(None, "Metrics, with commas: names, module:function, evaluate:FOLDER; or none.")
    no_eval: bool = flag(False, "Train on all training rows, evaluate nothing, keep the last checkpoint.")
    data_class: list[str] | None = flag(
        None, "Data sets: JSONLines, SST2, Alpaca, Debug, module:Class; below, a value each.", "data intro apart"
    )
    data_path: list[str] | None = flag(None, "Folder of each data set; none for no folder.", needs="--data_class")
    data_config: list[str] | None = flag(
        None,
        "Settings of each data set: JSON text, or a .json or .yaml file; none for none.",
        "fresh",
        needs="--data_class",
    )
    data_sampling_proportion: list[float] | None = flag(
        None,
        "How often each data set is drawn. Default: by --mixing.",
        "report",
        bounds="(0, inf) a weight",
        needs="training, --data_class",
    )


@dataclass
class DataFormatArguments(FormatArguments, DataSetArguments):
    """Your own rows, in any format."""

    shared_facts = facts(theme="rows", needs=OWN_ROWS)

    labels: str | None = flag(
        None, "Words of the labels, with commas, by their ids.", "common", formats=f"{TABLES} translation alpaca"
    )
    validation_split: float | None = flag(
        None, "Share held out where there is no validation split. Default: 0.05.", "common", bounds="(0, 1) a share"
    )
    input_format: list[str] | None = flag(None, r"Template of inputs, such as 'Ask:\n__input__'; one per data set.")
    output_format: list[str] | None = flag(None, "Template of targets, such as 'Answer: __output__'; one per data set.")
    max_input_tokens: list[int] | None = flag(
        None, "Longest input in tokens; one number per data set.", bounds="[1, inf) tokens"
    )
    max_output_tokens: list[int] | None = flag(
        None, "Longest target in tokens; one number per data set.", bounds="[1, inf) tokens"
    )

    @property
    def is_given(self) -> bool:
        """Whether the run's rows are the user's own."""
        return bool(self.data_format or self.data_class)

    def __post_init__(self):
        if self.data_format and self.data_class:
            raise ConfigError(f"--data_format {self.data_format} and --data_class are two ways to name data; give one")
        check_needed_flags(self)
        if not self.is_given and named_metrics(self.metrics) is not None:
            raise ConfigError(
                f"--metrics {self.metrics}: it belongs to --data_format or --data_class, which is not given (a "
                "function of your own, module:function, is taken by every task)"
            )
        count = len(self.data_class) if self.data_class else 1
        for name, values in vars(self).items():
            if isinstance(values, list) and len(values) != count:
                sets = f"--data_class names {count}" if self.data_class else "--data_format is one"
                raise ConfigError(f"--{name} has {len(values)} values, but {sets}: one value for each data set")


@dataclass
class InstructionArguments:
    """How instances and instructions of `--benchmark super_ni` are selected and formatted."""

    shared_facts = facts(theme="instructions")

    task_lists: str | None = flag(None, "The folder below DIR/splits whose lists of tasks are used (default).")
    max_num_instances_per_task: int | None = flag(
        None, "At most this many instances of each training task (100); 0: all.", bounds="[0, inf) rows"
    )
    max_num_instances_per_eval_task: int | None = flag(
        None, "The first ones of each test task: at most the 100 official ones (100).", bounds="[1, 100] rows"
    )
    add_task_definition: bool | None = flag(None, "Begin with the task's definition (yes).")
    num_pos_examples: int | None = flag(None, "Positive examples shown (2).", bounds="[0, inf) rows")
    num_neg_examples: int | None = flag(None, "Negative examples shown (0).", bounds="[0, inf) rows")
    add_explanation: bool | None = flag(None, "Explain the examples (no).")
    add_task_name: bool | None = flag(None, "Begin with the task's name (no).")
    tk_instruct: bool | None = flag(None, "Draw each row's form from Tk-Instruct's five, in place of the flags before.")

    def __post_init__(self):
        if self.tk_instruct and self.gives_form:
            idle_flag = next(name for name in ENCODING_KEYS if name in self.given)
            raise ConfigError(f"--tk_instruct draws each row's form; it cannot be combined with --{idle_flag}")

    @property
    def given(self) -> dict:
        """The flags that were given, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    @property
    def gives_form(self) -> bool:
        """Whether a flag says what stands in an instruction."""
        return not self.given.keys().isdisjoint(ENCODING_KEYS)

    def take_form(self, trained: dict, usual: dict) -> dict:
        """Sets the flags that are not given to a model's own form; returns those that change the usual one.

        Args:
          trained, usual: `instruction` of the model's task, and of the run's without flags.
        """
        if self.tk_instruct:
            return {}
        names = ENCODING_KEYS if self.gives_form else (*ENCODING_KEYS, "tk_instruct")
        changes = {name: trained[name] for name in names if name not in self.given and trained[name] != usual[name]}
        for name, value in changes.items():
            setattr(self, name, value)
        return changes

    def applied(self, plan, seed: int):
        """The plan, with the given settings and the seed in the entries of its tasks with instructions.

        Raises:
          ConfigError: flags were given, but no task has instructions.
        """
        if not any(task.entry.get("instruction") for task in plan.tasks):
            if self.given:
                raise ConfigError(
                    f"--{next(iter(self.given))} is for tasks with instructions (--benchmark super_ni), "
                    f"not for {plan.benchmark}/{plan.dataset_name}"
                )
            return plan
        changes = {**self.given, "seed": seed}
        if self.max_num_instances_per_task == 0:
            changes["max_num_instances_per_task"] = None
        return replace(
            plan,
            train=[with_instruction(task, changes) for task in plan.train],
            evaluate=[with_instruction(task, changes) for task in plan.evaluate],
        )


def with_instruction(task, changes: dict):
    """The task with changed instruction settings; a task without instructions is returned unchanged."""
    settings = task.entry.get("instruction")
    return task if not settings else replace(task, entry={**task.entry, "instruction": {**settings, **changes}})
