"""`t5suite summary`: a model's parameters by module and the memory of training it, before anything is loaded.

t5suite summary --config_name t5-3b --batch_size 32 --optimizer adafactor --gradient_checkpointing --freeze embeddings
"""

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.base.script_flags import flags_marked, flags_of
from t5suite.commands.shared import add_json_flag, check_at_least, check_model, print_json

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
    add("--gradient_checkpointing", action="store_true", help="compute layers again, keep less")
    add("--deepspeed", help="zero1, zero2, zero2_offload, zero3 or zero3_offload")
    add("--num_gpus", type=int, default=1, help="ranks that --deepspeed shards over (default: 1)")
    add("--use_cpu", action="store_true", help="count attention as a CPU computes it")
    model = parser.add_argument_group("the model: flags of fine_tune_t5.py")
    flags = flags_of(SCRIPT)
    for name in flags_marked("shapes"):
        kind = flags[name]
        optional = {"nargs": "?", "const": "True"} if kind["type"] == "bool" else {}
        model.add_argument(f"--{name}", choices=kind["choices"], **optional)
    add_json_flag(parser)


def summary(arguments) -> None:
    """Prints the tables, or one JSON object."""
    lengths = dict.fromkeys(("batch_size", "source_length", "target_length", "gradient_accumulation_steps"), 1)
    check_at_least(arguments, **lengths, num_gpus=1)
    if arguments.num_gpus > 1 and not arguments.deepspeed:
        said = "without --deepspeed every GPU holds all of it; leave it out"
        raise ConfigError(f"--num_gpus {arguments.num_gpus}: {said}")
    for name, known in KNOWN.items():
        if getattr(arguments, name) is not None:
            find(getattr(arguments, name), dict.fromkeys(known), "name", where=f"--{name}")
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


# What `t5suite.models.memory` knows, by flag; it imports torch, so a test keeps its tables' names equal to these.
KNOWN = {
    "optimizer": (
        "adamw adamw_rms adafactor muon adamw_torch adamw_torch_fused adamw_bnb_8bit adamw_8bit lion_8bit lion_32bit "
        "sgd adagrad rmsprop"
    ).split(),
    "deepspeed": ["zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"],
}
