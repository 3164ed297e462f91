"""The flags for rows of one's own: files of many kinds, hub data sets, lists of data sets.

>>> DataFormatArguments(data_format="csv", text_column="text", target_column="label").is_given
True

`--data_format` names one data set's form; `--data_class` and the lists beside it name several data sets, one value
each, under the names of IBM/dolomite-engine (Apache-2.0).
"""

from dataclasses import dataclass
from typing import Literal

from t5suite.base.errors import ConfigError
from t5suite.training.flags.fields import flag
from t5suite.training.flags.plug_ins import named_metrics

FORMATS = ("jsonl", "csv", "tsv", "parquet", "translation", "alpaca", "text", "hub")
# Lists of equal length: one value for each data set.
LISTS = (
    "data_class",
    "data_path",
    "data_config",
    "data_sampling_proportion",
    "input_format",
    "output_format",
    "max_input_tokens",
    "max_output_tokens",
)
# Flags for one data set of --data_format.
SINGLE = "train_dir text_column target_column source_id target_id prefix hub_path hub_name text_unit block_size".split()


@dataclass
class DataFormatArguments:
    """Rows of one's own, in whatever form they come."""

    _theme = "rows"

    data_format: Literal[FORMATS] | None = flag(
        None, "What --train_dir, --train_file and so on hold, if not a benchmark's rows.", "common"
    )
    train_dir: str | None = flag(
        None, "A folder with the splits of --data_format: train/, val/, test/, or train.csv and so on."
    )
    text_column: str | None = flag(
        None, "What is read: a column, or several with commas. Default: input (text: text).", "common"
    )
    target_column: str | None = flag(None, "What is to be written. Default: output.", "common")
    source_id: str = flag("s", "The language read of {'translation': {...}}.")
    target_id: str = flag("t", "The language to be written.")
    prefix: str | None = flag(None, r"What stands before every input: 'Translate: ' (\n, \t and \\ likewise).")
    labels: str | None = flag(None, "Label words by id, with commas: makes a task of classes of free text.")
    metrics: str | None = flag(
        None,
        "Metrics, with commas, or none; module:function of your own (for every task). Default: accuracy "
        "with labels, else what suits the format.",
    )
    hub_path: str | None = flag(None, "Hub name, or a local folder, of the data set of --data_format hub.")
    hub_name: str | None = flag(None, "Its configuration.")
    text_unit: Literal["line", "paragraph", "file"] = flag(
        "line", "What a document is in a .txt file of --data_format text."
    )
    block_size: int | None = flag(
        None, "Tokens of a block of --data_format text. Default: --max_target_length.", bounds="[8, inf) tokens"
    )
    validation_split: float | None = flag(
        None,
        "Share of the training rows that validates where nothing else does. Default: 0.05.",
        bounds="(0, 1) the share that is held out",
    )
    no_eval: bool = flag(False, "Train on all training rows, evaluate nothing, keep the last checkpoint.")
    data_class: list[str] | None = flag(
        None,
        "Data sets: JSONLines, SST2, Alpaca, Debug, or module:Class of your own. This and the lists below "
        "have one value for each data set.",
    )
    data_path: list[str] | None = flag(None, "The folder of each; none for no folder.")
    data_config: list[str] | None = flag(
        None, "Settings of each: JSON text, or a .json or .yaml file; none for no settings."
    )
    data_sampling_proportion: list[float] | None = flag(
        None,
        "How often each is drawn, as parts of the sum. Default: after --mixing.",
        bounds="(0, inf) parts of the sum",
        needs="training",
    )
    input_format: list[str] | None = flag(
        None, r"Around each one's inputs: 'Ask:\n__input__' (\n, \t and \\ are understood)."
    )
    output_format: list[str] | None = flag(None, "Likewise around each one's targets: '__output__'.")
    max_input_tokens: list[int] | None = flag(
        None, "Longest input of each in tokens. Default: --max_source_length.", bounds="[1, inf) tokens"
    )
    max_output_tokens: list[int] | None = flag(
        None, "Longest target of each in tokens. Default: --max_target_length.", bounds="[1, inf) tokens"
    )

    @property
    def is_given(self) -> bool:
        """Whether the run's rows are the user's own."""
        return bool(self.data_format or self.data_class)

    def __post_init__(self):
        if self.data_format and self.data_class:
            raise ConfigError(f"--data_format {self.data_format} and --data_class are two ways to name data; give one")
        if not self.data_format:
            self._refuse_flags_of(SINGLE, "--data_format")
        if not self.is_given:
            needed = "--data_format or --data_class"
            self._refuse_flags_of(("labels", "validation_split", *LISTS), needed)
            if named_metrics(self.metrics) is not None:
                raise ConfigError(
                    f"--metrics {self.metrics}: it belongs to {needed}, which is not given (a function of "
                    "one's own, module:function, is taken by every task)"
                )
        self._check_lengths()

    def _refuse_flags_of(self, names, needed: str) -> None:
        fields = type(self).__dataclass_fields__
        given = [name for name in names if getattr(self, name) != fields[name].default]
        if given:
            raise ConfigError(f"--{given[0]} {getattr(self, given[0])}: it belongs to {needed}, which is not given")

    def _check_lengths(self) -> None:
        count = len(self.data_class) if self.data_class else 1
        for name in LISTS:
            values = getattr(self, name)
            if values is None:
                continue
            if not self.data_class and name in ("data_path", "data_config", "data_sampling_proportion"):
                raise ConfigError(
                    f"--{name} {' '.join(map(str, values))}: it belongs to --data_class, which is not given"
                )
            if len(values) != count:
                sets = f"--data_class names {count}" if self.data_class else "--data_format is one"
                raise ConfigError(f"--{name} has {len(values)} values, but {sets}: one value for each data set")
