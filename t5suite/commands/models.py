"""`t5suite predict`, `export` and `summary`: a model's answers, its form for other programs, its size.

t5suite predict --model_name_or_path runs/mini-sentiment-tiny --input rows.jsonl --output answers.jsonl
t5suite export --model_name_or_path runs/mini-sentiment --output_dir onnx --format onnx --check --quantize int8
t5suite summary --config_name t5-3b --batch_size 32 --optimizer adafactor --gradient_checkpointing --freeze embeddings
"""

import contextlib
import importlib.util
import itertools
import os
import sys
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import check_new_folder
from t5suite.base.libraries import choose_libraries
from t5suite.base.lookup import find
from t5suite.base.script_flags import flags_marked, flags_of
from t5suite.commands.shared import (
    STANDARD_INPUT,
    add_json_flag,
    add_libraries_flag,
    check_at_least,
    check_input_file,
    check_model,
    check_output_file,
    check_place,
    is_alone,
    note,
    print_json,
)
from t5suite.models.presets import PRESETS


def predict_flags(parser) -> None:
    """Flags of `t5suite predict`."""
    add = parser.add_argument
    add("--model_name_or_path", required=True, help="a run, checkpoint, adapter or model folder, or a hub name")
    kinds = (
        "JSON lines, CSV, TSV, Parquet or lines of text (.gz, .zst too), a folder of such files, - for standard input"
    )
    add("--input", help=kinds)
    add("--output", help="JSON lines; a half-written file is continued. Default: standard output")
    add("--overwrite", action="store_true", help="start --output over, discarding its answers")
    web = "a page for this machine only (loopback): type a row, see answer and label probabilities; needs t5suite[web]"
    add("--web", action="store_true", help=web)
    add = parser.add_argument_group("texts").add_argument
    types = ["auto", "jsonl", "text", "csv", "tsv", "parquet"]
    add("--input_type", choices=types, default="auto", help="default: by the file's name")
    add("--text_column", help="the rows' column(s), with commas, if not those that the model was trained on")
    add("--delimiter", help="between cells of CSV and TSV: ';', tab, ...; default: what fits the file (TSV: tab)")
    add("--raw", action="store_true", help="rows hold finished texts: no prefix is added")
    add("--input_format", help=r"template of finished texts, for outside models: 'Ask:\n__input__' (\n, \t work)")
    add("--benchmark", help="the task's benchmark, if not the one that the model was trained on")
    add("--dataset_name", help="the task; needed where the model knows several")
    add("--task_file", help="YAML or Python file with tasks of your own")
    add("--max_source_length", type=int, help="longest input in tokens; default: as in training, else 512")
    add("--answer_separator", help=r"between a decoder-only model's prompt and answer (\n works); default: training's")
    for name in ("source_lang", "target_lang", "source_lang_column", "target_lang_column"):
        add(f"--{name}", help=flags_of("fine_tune_t5")[name]["help"])
    add = parser.add_argument_group("answers").add_argument
    add("--max_new_tokens", type=int, help="longest answer in tokens; default: what the task needs, else 64")
    add("--min_new_tokens", type=int, help="shortest answer in tokens")
    add("--num_beams", type=int, default=1, help="beams; 1 is greedy")
    add("--num_beam_groups", type=int, default=1, help="groups of beams that avoid each other's tokens")
    add("--diversity_penalty", type=float, help="lowers the score of a token that another group chose; such as 0.5")
    add("--length_penalty", type=float, help="beams' scores are divided by length ** this")
    add("--do_sample", action="store_true", help="draw answers at random; the same --seed draws the same")
    add("--temperature", type=float, help="of the drawn distribution; default 1")
    add("--top_k", type=int, help="draw from this many likeliest tokens; default: all")
    add("--top_p", type=float, help="draw from the likeliest tokens with this total probability; default 1")
    add("--seed", type=int, default=42, help="seed of the draws; a row's draws do not depend on its batch")
    add("--repetition_penalty", type=float, help="above 1: tokens that occurred before become less likely")
    add("--no_repeat_ngram_size", type=int, help="no n-gram of this many tokens occurs twice")
    add("--num_return_sequences", type=int, default=1, help="answers per row, with their scores")
    add("--scores", action="store_true", help="also each answer's log-probability")
    add("--labels", nargs="?", const="task", help="choose, with probabilities: the task's labels, or a,b,c")
    add("--include_inputs", action="store_true", help="also the text that the model read")
    add = parser.add_argument_group("model and machine").add_argument
    add("--batch_size", type=int, default=16, help="rows answered at once on a device")
    add("--window", type=int, default=512, help="rows read, sorted by length and written at once")
    add("--tokenizer_name", help="folder or hub name of a tokenizer, if not the model's")
    families = ["auto", "seq2seq", "causal", "masked", "encoder"]
    add("--model_family", choices=families, help="default: what the configuration says")
    add("--model_class", help="module:Class of your own that the model is one of")
    add("--model_revision", help="branch, tag or commit of the hub's model")
    add("--adapter_base", help="an adapter's base model, if not where the adapter says")
    add("--attn_implementation", help="sdpa, eager, ...; default: transformers' choice")
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="precision of the weights")
    add("--device_map", choices=["balanced", "auto", "sequential"], help="distribute the layers over the devices")
    add("--max_memory", help="memory that --device_map may use: 0=10GiB,cpu=30GiB")
    add("--use_cpu", action="store_true", help="use no GPU")
    add("--verbose", action="store_true", help="show what libraries say, and their progress bars")
    add("--trust_remote_code", action="store_true", help="run code from the hub repository")
    add_libraries_flag(parser)


def predict(arguments) -> None:
    """Answers every row, or what is typed."""
    _check_flags(arguments)
    choose_libraries(allow_untested=arguments.allow_untested_libraries)
    check_model("--model_name_or_path", arguments.model_name_or_path)
    if is_alone():
        _check_task_and_files(arguments)
    from t5suite.training.processes.launchers import check_launched_ranks, join_srun
    from t5suite.training.processes.signals import catching_signals

    join_srun()
    check_launched_ranks(os.environ)
    with contextlib.nullcontext() if arguments.web else catching_signals():
        from t5suite.inference.running import predict_by_flags

        predict_by_flags(arguments)


def _check_flags(arguments) -> None:
    """Checks that need no model."""
    if arguments.web and (arguments.input or arguments.output):
        raise ConfigError("--web takes no --input and no --output")
    if not arguments.web and arguments.input is None:
        raise ConfigError("give --input FILE (or - for standard input) or --web")
    if arguments.web and not importlib.util.find_spec("gradio"):
        raise ConfigError("--web needs Gradio: python -m pip install 't5suite[web]'")
    check_at_least(arguments, batch_size=1, window=1, max_source_length=1)
    if arguments.overwrite and not arguments.output:
        raise ConfigError("--overwrite has no effect without --output")


def _check_task_and_files(arguments) -> None:
    """Checks that task, labels and decoding fit, the input starts with a row of the task, the output is writable."""
    from t5suite.inference.rows import ResumableOutput, input_text
    from t5suite.inference.settings import (
        decoding_by_flags,
        given_labels,
        source_by_flags,
        template_by_flags,
        text_settings,
    )
    from t5suite.tasks.formatters import FITTED_FORMATTERS
    from t5suite.tasks.task_card import read_task_card

    names = ("benchmark", "dataset_name", "task_file", "raw", "model_family")
    flags = {name: getattr(arguments, name) for name in names}
    text = text_settings(read_task_card(arguments.model_name_or_path), **flags, warns=False)
    decoding_by_flags(arguments, text)
    template_by_flags(arguments, text)
    given_labels(arguments.labels, text, warns=False)
    if arguments.web:
        return
    check_input_file("--input", arguments.input, or_folder=os.path.isdir(arguments.input))
    if arguments.output:
        if os.path.realpath(os.path.dirname(arguments.output) or ".") == os.path.realpath(arguments.input):
            raise ConfigError(f"--output {arguments.output}: it would be among the files that are read (--input)")
        check_output_file("--output", arguments.output, arguments.input)
        if os.path.exists(arguments.output) and not arguments.overwrite:
            ResumableOutput(arguments.output, {}).read_progress()
            return
    # Texts with as many examples as fit need the tokenizer; standard input can be read only once; a model that may be
    # the hub's, or nowhere, is looked for before rows are said not to fit it.
    is_fitted = text.task is not None and text.task.entry.get("formatter") in FITTED_FORMATTERS
    is_here = os.path.isdir(arguments.model_name_or_path)
    if arguments.input != STANDARD_INPUT and not is_fitted and is_here:
        for row in itertools.islice(source_by_flags(arguments, text).rows(), 1):
            input_text(row, text.task, arguments.raw)


FORMATS = ("hf", "onnx", "ctranslate2")
PRECISIONS = ("float32", "bfloat16", "float16")


def export_flags(parser) -> None:
    """Flags of `t5suite export`."""
    add = parser.add_argument
    source = "a run directory, checkpoint-N, DeepSpeed's shards, an adapter, or a model of the hub"
    add("--model_name_or_path", help=source)
    add("--output_dir", required=True, help="a new folder, or an empty one")
    add("--format", default="hf", help="hf: safetensors for transformers; onnx: for ONNX Runtime; ctranslate2")
    add("--dtype", help="hf: float32, bfloat16 or float16 (default: as the source is stored)")
    add("--quantize", help="onnx, ctranslate2: int8, 8-bit integers for the weights")
    add("--check", action="store_true", help="compare what was written with the source")
    add("--tokenizer_name", help="the tokenizer, if it is not in the model's folder")
    add("--init_checkpoint", help="bare weights (nanoT5's, a state_dict), with --config_name")
    add("--config_name", help="the configuration of --init_checkpoint's weights")
    add("--config_overrides", help="changes to it: num_layers=4,tie_word_embeddings=False")
    add("--adapter_base", help="an adapter's base model, if not where the adapter says")
    add("--model_family", help="seq2seq, causal, masked, encoder or classification (default: by configuration)")
    add("--encoder_only", action="store_true", help="hf: only the encoder, as in T5EncoderModel")
    add("--model_class", help="module:Class of your own that the model is one of; hf only")
    add("--model_revision", help="branch, tag or commit of a model of the hub")
    add("--trust_remote_code", action="store_true", help="run code from the hub repository")
    add("--verbose", action="store_true", help="show what libraries say, and their progress bars")
    add_libraries_flag(parser)
    add_json_flag(parser)


def export(arguments) -> None:
    """Writes the model, and prints what was written.

    Raises:
      ConfigError: flags that do not go together, no such model, or a folder that is not empty.
    """
    check_flags(arguments)
    choose_libraries(allow_untested=arguments.allow_untested_libraries)
    check_files(arguments)
    if arguments.quantize:
        note("to measure the cost of int8 in points: t5suite predict from both folders, then t5suite score")
    from t5suite.export.exporting import export_model
    from t5suite.training.run import start_logging

    start_logging(is_main=True, disable_tqdm=not arguments.verbose, verbose=arguments.verbose)
    # Libraries may print when they are first used, but standard output is for the result only.
    with contextlib.redirect_stdout(sys.stderr):
        card = export_model(arguments)
    if arguments.json:
        print_json(card)
        return

    def shown(value) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    print(f"{card['format']}: {card['model']['class']}, {card['model']['parameters']} parameters")
    for name, size in card["files"].items():
        print(f"{size:>12} bytes  {name}")
    for kind, heading in (("check", "check"), ("check_quantized", "quantized")):
        for name, value in card.get(kind, {}).items():
            print(f"{heading:<9}  {name:<28} {shown(value)}")
    if card.get("quantized"):
        before, after = card["quantized"]["bytes_before"], card["quantized"]["bytes_after"]
        print(f"int8       {before} -> {after} bytes ({after / before:.2f})")


def check_flags(arguments) -> None:
    """Refuses flags that would have no effect."""
    named, bare = arguments.model_name_or_path, arguments.init_checkpoint
    if (named is None) == (bare is None):
        raise ConfigError("t5suite export: give --model_name_or_path, or --init_checkpoint with --config_name")
    if (bare is None) != (arguments.config_name is None):
        raise ConfigError("--init_checkpoint and --config_name go together: weights and their configuration")
    of_names = ("model_class", "model_revision", "trust_remote_code", "adapter_base")
    for name in of_names if bare is not None else ("config_overrides",):
        if getattr(arguments, name):
            other = "--init_checkpoint" if bare is not None else "--model_name_or_path"
            raise ConfigError(f"--{name} has no effect with {other}")
    find(arguments.format, dict.fromkeys(FORMATS), "format", where="--format")
    find(arguments.dtype or "float32", dict.fromkeys(PRECISIONS), "precision", where="--dtype")
    if arguments.quantize and arguments.format == "hf":
        raise ConfigError("--quantize has no effect on safetensors; add --format onnx or ctranslate2")
    if arguments.format != "hf" and arguments.encoder_only:
        raise ConfigError(f"--encoder_only --format {arguments.format}: a bare encoder is written only as hf")
    if arguments.format != "hf" and arguments.dtype not in (None, "float32"):
        raise ConfigError(f"--dtype {arguments.dtype}: such files hold float32, or with --quantize int8 integers")
    if arguments.quantize not in (None, "int8"):
        raise ConfigError(f"--quantize {arguments.quantize}: only int8 is supported")


def check_files(arguments) -> None:
    """Checks that inputs exist, that the output is writable and that the format's packages are installed."""
    model = arguments.model_name_or_path
    if model is not None:
        check_model("--model_name_or_path", model, of_run=True)
    else:
        check_input_file("--init_checkpoint", arguments.init_checkpoint, or_folder=True)
    check_new_folder(arguments.output_dir)
    check_place("--output_dir", arguments.output_dir)
    if arguments.format == "onnx":
        from t5suite.export.onnx_runtime import require_onnx

        require_onnx()
    if arguments.format == "ctranslate2":
        from t5suite.export.ctranslate2_files import require_ctranslate2

        require_ctranslate2()


SCRIPT = "fine_tune_t5"


def summary_flags(parser) -> None:
    """Flags of `t5suite summary`."""
    add = parser.add_argument_group("a step of training on one device").add_argument
    add("--batch_size", type=int, default=32, help="rows of a micro-batch (default: 32)")
    add("--source_length", type=int, default=512, help="tokens of an input (default: 512)")
    add("--target_length", type=int, default=512, help="tokens of a target (default: 512)")
    add("--gradient_accumulation_steps", type=int, default=1, help="micro-batches of an update")
    add("--optimizer", default="adamw", help="adamw, adafactor, adamw_bnb_8bit, ... (default: adamw)")
    add("--bf16", action="store_true", help="autocast to bfloat16; with --deepspeed, bf16 weights")
    add("--gradient_checkpointing", action="store_true", help="recompute activations, store fewer")
    add("--deepspeed", help="zero1, zero2, zero2_offload, zero3 or zero3_offload")
    add("--num_gpus", type=int, default=1, help="ranks that --deepspeed shards over (default: 1)")
    add("--use_cpu", action="store_true", help="estimate attention as on a CPU")
    model = parser.add_argument_group("the model: flags of fine_tune_t5.py")
    flags = flags_of(SCRIPT)
    for name in flags_marked("shapes"):
        kind = flags[name]
        optional = {"nargs": "?", "const": "True"} if kind["type"] == "bool" else {}
        model.add_argument(f"--{name}", choices=kind["choices"], **optional)
    add_libraries_flag(parser)
    add_json_flag(parser)


def summary(arguments) -> None:
    """Prints the tables, or one JSON object."""
    choose_libraries(allow_untested=arguments.allow_untested_libraries)
    lengths = dict.fromkeys(("batch_size", "source_length", "target_length", "gradient_accumulation_steps"), 1)
    check_at_least(arguments, **lengths, num_gpus=1)
    if arguments.num_gpus > 1 and not arguments.deepspeed:
        said = "without --deepspeed every GPU holds the whole model; drop it"
        raise ConfigError(f"--num_gpus {arguments.num_gpus}: {said}")
    for name, known in KNOWN.items():
        if getattr(arguments, name) is not None:
            find(getattr(arguments, name), dict.fromkeys(known), "name", where=f"--{name}")
    preset = (arguments.model_name_or_path or "").removeprefix("google/")
    if preset in PRESETS and not Path(arguments.model_name_or_path).exists():  # its shapes are known without the hub
        arguments.config_name, arguments.model_name_or_path = preset, None
    for name in ("model_name_or_path", "tokenizer_name", "adapter_base"):
        if getattr(arguments, name) is not None:
            check_model(f"--{name}", getattr(arguments, name))
    from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, FineTuningArguments
    from t5suite.training.flags.parser import parse_arguments
    from t5suite.training.memory_summary import Load, print_summary, shapes_by_flags, summarize

    given = {name: getattr(arguments, name) for name in flags_marked("shapes") if getattr(arguments, name) is not None}
    argv = ["--use_cpu", *(f"--{name}={value}" for name, value in given.items())]
    model = shapes_by_flags(FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, argv)))
    load = Load(
        arguments.batch_size,
        arguments.source_length,
        arguments.target_length,
        arguments.bf16,
        arguments.gradient_checkpointing,
        arguments.gradient_accumulation_steps,
    )
    found = summarize(model, load, arguments.optimizer, not arguments.use_cpu, arguments.deepspeed, arguments.num_gpus)
    if arguments.json:
        print_json(found)
    else:
        print_summary(found)


# Names in `t5suite.models.memory`, by flag; that module imports torch, so a test keeps its tables equal to these.
KNOWN = {
    "optimizer": (
        "adamw adamw_rms adafactor adamw_torch adamw_torch_fused adamw_bnb_8bit adamw_8bit lion_8bit lion_32bit "
        "sgd adagrad rmsprop"
    ).split(),
    "deepspeed": ["zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"],
}
