"""`t5suite predict`: rows in, answers out.

t5suite predict --model_name_or_path runs/mini-sentiment-tiny --input rows.jsonl --output answers.jsonl
echo "A fine film." | t5suite predict --model_name_or_path runs/mini-sentiment-tiny --input - --labels
"""

import contextlib
import itertools
import os

from t5suite.base.errors import ConfigError
from t5suite.commands.shared import (
    STANDARD_INPUT,
    check_at_least,
    check_input_file,
    check_model,
    check_output_file,
    is_alone,
)


def predict_flags(parser) -> None:
    """Flags of `t5suite predict`."""
    add = parser.add_argument
    add("--model_name_or_path", required=True, help="a run, checkpoint, adapter or model folder, or a hub name")
    add("--input", help="JSON lines or lines of text (.gz, .zst too); - for standard input")
    add("--output", help="JSON lines; a half-written file is continued. Default: standard output")
    add("--overwrite", action="store_true", help="begin --output anew, whatever is there")
    add("--interactive", action="store_true", help="answer what is typed, until the end of file (Ctrl-D)")
    add("--json", action="store_true", help="--interactive: answers as JSON lines, as files have them")
    add = parser.add_argument_group("texts").add_argument
    add("--input_type", choices=["auto", "jsonl", "text"], default="auto", help="default: by the file's name")
    add("--raw", action="store_true", help="rows hold finished texts: no prefixes are put before them")
    add("--benchmark", help="the task's benchmark, if not the one that the model was trained on")
    add("--dataset_name", help="the task; needed where the model knows several")
    add("--task_file", help="YAML or Python file with tasks of your own")
    add("--max_source_length", type=int, help="longest input in tokens; default: as in training, else 512")
    add("--answer_separator", help=r"between a decoder-only model's prompt and answer (\n works); default: training's")
    add = parser.add_argument_group("answers").add_argument
    add("--max_new_tokens", type=int, help="longest answer in tokens; default: what the task needs, else 64")
    add("--min_new_tokens", type=int, help="shortest answer in tokens")
    add("--num_beams", type=int, default=1, help="beams; 1 is greedy")
    add("--num_beam_groups", type=int, default=1, help="groups of beams that avoid each other's tokens")
    add("--diversity_penalty", type=float, help="what a token loses that another group has chosen; such as 0.5")
    add("--length_penalty", type=float, help="beams' scores are divided by length ** this")
    add("--do_sample", action="store_true", help="draw answers at random; the same --seed draws the same")
    add("--temperature", type=float, help="of the drawn distribution; default 1")
    add("--top_k", type=int, help="draw among so many likeliest tokens; default: all")
    add("--top_p", type=float, help="draw among the likeliest tokens of this probability; default 1")
    add("--seed", type=int, default=42, help="decides what is drawn for a row, whatever batch it is in")
    add("--repetition_penalty", type=float, help="above 1: tokens that stand there already become less likely")
    add("--no_repeat_ngram_size", type=int, help="no run of so many tokens comes twice")
    add("--num_return_sequences", type=int, default=1, help="answers a row, with their scores")
    add("--scores", action="store_true", help="also each answer's log-probability")
    add("--labels", nargs="?", const="task", help="choose, with probabilities: the task's labels, or a,b,c")
    add("--include_inputs", action="store_true", help="also the text that the model read")
    add = parser.add_argument_group("model and machine").add_argument
    add("--batch_size", type=int, default=16, help="rows answered at once on a device")
    add("--window", type=int, default=512, help="rows read, sorted by length and written at once")
    add("--tokenizer_name", help="folder or hub name of a tokenizer, if not the model's")
    add("--model_family", choices=["auto", "seq2seq", "causal", "masked"], help="default: what the configuration says")
    add("--model_class", help="module:Class of your own that the model is one of")
    add("--model_revision", help="branch, tag or commit of the hub's model")
    add("--adapter_base", help="the base of an adapter, if not where the adapter says that it is")
    add("--attn_implementation", help="sdpa, eager, ...; default: transformers' choice")
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="what weights are computed in")
    add("--device_map", help="balanced, sequential or a JSON file: deal the layers out to the devices")
    add("--max_memory", help="what --device_map may fill: 0=10GiB,cpu=30GiB")
    add("--deepspeed", help="zero3, zero3_offload or a file: ranks share the weights")
    add("--use_cpu", action="store_true", help="do without a GPU")
    add("--verbose", action="store_true", help="show what libraries say, and their progress bars")
    add("--trust_remote_code", action="store_true", help="run code that a hub repository brings along")


def predict(arguments) -> None:
    """Answers every row, or what is typed."""
    _check_flags(arguments)
    check_model("--model_name_or_path", arguments.model_name_or_path)
    if is_alone():
        _check_task_and_files(arguments)
    from t5suite.training.processes.launchers import join_srun
    from t5suite.training.processes.signals import catching_signals

    join_srun()
    with contextlib.nullcontext() if arguments.interactive else catching_signals():
        from t5suite.inference.running import predict_by_flags

        predict_by_flags(arguments)


def _check_flags(arguments) -> None:
    """What can be seen without a model."""
    if arguments.interactive and (arguments.input or arguments.output):
        raise ConfigError("--interactive takes no --input and no --output")
    if not arguments.interactive and arguments.input is None:
        raise ConfigError("give --input FILE (or - for standard input), or --interactive")
    check_at_least(arguments, batch_size=1, window=1, max_source_length=1)
    if arguments.device_map is not None and arguments.deepspeed is not None:
        raise ConfigError("--device_map and --deepspeed both say where the weights lie; give one of the two")
    if arguments.json and not arguments.interactive:
        raise ConfigError("--json: answers to --input are JSON lines always; the flag is for --interactive")
    if arguments.overwrite and not arguments.output:
        raise ConfigError("--overwrite has no effect without --output")


def _check_task_and_files(arguments) -> None:
    """The task, the labels and the decoding fit; what is read begins with a row of the task, what is written can be."""
    from t5suite.inference.rows import ResumableOutput, RowSource, input_text
    from t5suite.inference.settings import decoding_by_flags, given_labels, text_settings
    from t5suite.tasks.formatters import FITTED_FORMATTERS
    from t5suite.tasks.task_card import read_task_card

    names = ("benchmark", "dataset_name", "task_file", "raw", "model_family")
    flags = {name: getattr(arguments, name) for name in names}
    text = text_settings(read_task_card(arguments.model_name_or_path), **flags, warns=False)
    decoding_by_flags(arguments, text)
    given_labels(arguments.labels, text, warns=False)
    if arguments.interactive:
        return
    check_input_file("--input", arguments.input)
    if arguments.output:
        check_output_file("--output", arguments.output, arguments.input)
        if os.path.exists(arguments.output) and not arguments.overwrite:
            ResumableOutput(arguments.output, {}).read_progress()
            return
    # Texts of as many examples as fit are made with the tokenizer; standard input can be read once alone.
    is_fitted = text.task is not None and text.task.entry.get("formatter") in FITTED_FORMATTERS
    if arguments.input != STANDARD_INPUT and not is_fitted:
        for row in itertools.islice(RowSource(arguments.input, arguments.input_type).rows(), 1):
            input_text(row, text.task, arguments.raw)
