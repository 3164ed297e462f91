"""`t5suite summary`: a model's parameters, and an estimate of the memory of training it.

t5suite summary --config_name t5-3b --batch_size 32 --optimizer adafactor --gradient_checkpointing --freeze embeddings
"""

from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import choose_libraries
from t5suite.base.lookup import find
from t5suite.base.script_flags import flags_marked, flags_of
from t5suite.commands.path_checks import check_model, check_model_revision
from t5suite.commands.shared import add_json_flag, add_libraries_flag, check_at_least, print_json
from t5suite.models.presets import PRESETS

# The script whose flags say which model is summed up.
MODEL_FLAGS_SCRIPT = "fine_tune_t5"
# Names in `t5suite.models.memory`, by flag; that module imports torch, so a test keeps its tables equal to these.
NAMES_BY_FLAG = {
    "optimizer": (
        "adamw adamw_rms adafactor adamw_torch adamw_torch_fused adamw_bnb_8bit adamw_8bit lion_8bit lion_32bit "
        "sgd adagrad rmsprop"
    ).split(),
    "deepspeed": ["zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"],
}


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
    script_flags = flags_of(MODEL_FLAGS_SCRIPT)
    for name in flags_marked("shapes"):
        flag = script_flags[name]
        optional = {"nargs": "?", "const": "True"} if flag["type"] == "bool" else {}
        model.add_argument(f"--{name}", choices=flag["choices"], **optional)
    add_libraries_flag(parser)
    add_json_flag(parser)


def summary(arguments) -> None:
    """Prints the tables, or one JSON object.

    Raises:
      ConfigError: flags that do not go together, or no such model.
    """
    choose_libraries(allow_untested=arguments.allow_untested_libraries)
    _check_summary_flags(arguments)
    check_model_revision(arguments)
    _name_preset(arguments)
    for name in ("model_name_or_path", "tokenizer_name", "adapter_base"):
        if getattr(arguments, name) is not None:
            check_model(f"--{name}", getattr(arguments, name))
    from t5suite.training.memory_summary import Load, print_summary, summarize

    load = Load(
        batch_size=arguments.batch_size,
        source_length=arguments.source_length,
        target_length=arguments.target_length,
        bf16=arguments.bf16,
        gradient_checkpointing=arguments.gradient_checkpointing,
        micro_batches=arguments.gradient_accumulation_steps,
    )
    model = _model_shapes(arguments)
    check_step_lengths(model, arguments.source_length, arguments.target_length)
    memory = summarize(
        model,
        load,
        arguments.optimizer,
        not arguments.use_cpu,
        arguments.deepspeed,
        arguments.num_gpus,
    )
    if arguments.json:
        print_json(memory)
    else:
        print_summary(memory)


def _check_summary_flags(arguments) -> None:
    """Checks the step of training.

    Raises:
      ConfigError: a flag out of its range or without effect, an unknown optimizer or setup.
    """
    check_at_least(arguments, batch_size=1, source_length=1, target_length=1, gradient_accumulation_steps=1, num_gpus=1)
    if arguments.num_gpus > 1 and not arguments.deepspeed:
        raise ConfigError(
            f"--num_gpus {arguments.num_gpus}: without --deepspeed every GPU holds the whole model; drop it"
        )
    for name, known_names in NAMES_BY_FLAG.items():
        if getattr(arguments, name) is not None:
            find(getattr(arguments, name), dict.fromkeys(known_names), "name", where=f"--{name}")


def check_step_lengths(model, source_length: int, target_length: int) -> None:
    """Refuses texts that are longer than the model has positions for; a model of one stack has both in one row.

    Raises:
      ConfigError: with the flag to change.
    """
    from t5suite.models.adapters import inner_model, num_virtual_tokens
    from t5suite.models.config_limits import check_length
    from t5suite.models.families import recognize_family

    config = inner_model(model).config
    if recognize_family(inner_model(model)).has_decoder_inputs:
        check_length(config, source_length, "--source_length", "encoder", num_virtual_tokens(model, "encoder"))
        check_length(config, target_length, "--target_length", "decoder", num_virtual_tokens(model, "decoder"))
        return
    both = "--source_length and --target_length"
    check_length(config, source_length + target_length, both, "encoder", num_virtual_tokens(model))


def _name_preset(arguments) -> None:
    """Reads a hub name of a preset as `--config_name`: its shapes are known without the hub.

    Where tokens are added, its tokenizer says how many there are then.
    """
    preset = (arguments.model_name_or_path or "").removeprefix("google/")
    if preset in PRESETS and not Path(arguments.model_name_or_path).exists():
        if arguments.add_tokens is not None or arguments.num_sentinels is not None:
            arguments.tokenizer_name = arguments.tokenizer_name or arguments.model_name_or_path
        arguments.config_name = arguments.config_name or preset
        arguments.model_name_or_path = None


def _model_shapes(arguments):
    """The model that the flags describe, without storage for its weights."""
    from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, FineTuningArguments
    from t5suite.training.flags.parser import parse_arguments
    from t5suite.training.memory_summary import shapes_by_flags

    model_flags = {name: getattr(arguments, name) for name in flags_marked("shapes")}
    words = [f"--{name}={text}" for name, text in model_flags.items() if text is not None]
    return shapes_by_flags(FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, ["--use_cpu", *words])))
