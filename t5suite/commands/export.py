"""`t5suite export`: a trained model for other programs, as a Hugging Face folder, ONNX or CTranslate2 files.

t5suite export --model_name_or_path runs/mini-sentiment --output_dir onnx --format onnx --check --quantize int8
"""

import contextlib
import sys

from t5suite.base.errors import ConfigError
from t5suite.base.files import check_new_folder
from t5suite.base.libraries import choose_libraries
from t5suite.base.lookup import find
from t5suite.commands.path_checks import check_input_file, check_model, check_model_revision, check_place
from t5suite.commands.shared import add_json_flag, add_libraries_flag, note, print_json

EXPORT_FORMATS = ("hf", "onnx", "ctranslate2")
EXPORT_PRECISIONS = ("float32", "bfloat16", "float16")
# Flags that have no effect on bare weights, and on a model's folder.
IDLE_WITH_BARE_WEIGHTS = ("model_class", "model_revision", "trust_remote_code", "adapter_base")
IDLE_WITH_MODELS = ("config_overrides",)


def export_flags(parser) -> None:
    """Flags of `t5suite export`."""
    add = parser.add_argument
    add(
        "--model_name_or_path",
        help="a run directory, checkpoint-N, DeepSpeed's shards, an adapter, or a model of the hub",
    )
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
    _check_source_flags(arguments)
    _check_format_flags(arguments)
    choose_libraries(allow_untested=arguments.allow_untested_libraries)
    _check_files(arguments)
    if arguments.quantize:
        note("to measure the cost of int8 in points: t5suite predict from both folders, then t5suite score")
    from t5suite.export.exporting import export_model
    from t5suite.training.process_setup import start_logging

    start_logging(is_main=True, disable_tqdm=not arguments.verbose, verbose=arguments.verbose)
    # Libraries may print when they are first used, but standard output is for the result only.
    with contextlib.redirect_stdout(sys.stderr):
        card = export_model(arguments)
    if arguments.json:
        print_json(card)
    else:
        _print_export(card)


def _check_source_flags(arguments) -> None:
    """Refuses flags of the source that do not go together or have no effect.

    Raises:
      ConfigError: which.
    """
    has_model = arguments.model_name_or_path is not None
    has_bare_weights = arguments.init_checkpoint is not None
    if has_model == has_bare_weights:
        raise ConfigError("t5suite export: give --model_name_or_path, or --init_checkpoint with --config_name")
    if has_bare_weights != (arguments.config_name is not None):
        raise ConfigError("--init_checkpoint and --config_name go together: weights and their configuration")
    if has_bare_weights:
        source_flag = "--init_checkpoint"
        idle_flags = IDLE_WITH_BARE_WEIGHTS
    else:
        source_flag = "--model_name_or_path"
        idle_flags = IDLE_WITH_MODELS
    for name in idle_flags:
        if getattr(arguments, name):
            raise ConfigError(f"--{name} has no effect with {source_flag}")


def _check_format_flags(arguments) -> None:
    """Refuses flags that have no effect on the format.

    Raises:
      ConfigError: which.
    """
    find(arguments.format, dict.fromkeys(EXPORT_FORMATS), "format", where="--format")
    find(arguments.dtype or "float32", dict.fromkeys(EXPORT_PRECISIONS), "precision", where="--dtype")
    if arguments.quantize and arguments.format == "hf":
        raise ConfigError("--quantize has no effect on safetensors; add --format onnx or ctranslate2")
    if arguments.format != "hf" and arguments.encoder_only:
        raise ConfigError(f"--encoder_only --format {arguments.format}: a bare encoder is written only as hf")
    if arguments.format != "hf" and arguments.dtype not in (None, "float32"):
        raise ConfigError(f"--dtype {arguments.dtype}: such files hold float32, or with --quantize int8 integers")
    if arguments.quantize not in (None, "int8"):
        raise ConfigError(f"--quantize {arguments.quantize}: only int8 is supported")


def _check_files(arguments) -> None:
    """Checks that inputs exist, that the output is writable and that the format's packages are installed.

    Raises:
      ConfigError, DataError: which is not.
    """
    if arguments.model_name_or_path is not None:
        check_model("--model_name_or_path", arguments.model_name_or_path, of_run=True)
        check_model_revision(arguments)
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


def _print_export(card: dict) -> None:
    """The files with their sizes, and how they compare with the source."""
    print(f"{card['format']}: {card['model']['class']}, {card['model']['parameters']} parameters")
    for name, num_bytes in card["files"].items():
        print(f"{num_bytes:>12} bytes  {name}")
    for key, heading in (("check", "check"), ("check_quantized", "quantized")):
        for name, measured in card.get(key, {}).items():
            text = f"{measured:.4g}" if isinstance(measured, float) else str(measured)
            print(f"{heading:<9}  {name:<28} {text}")
    if card.get("quantized"):
        before = card["quantized"]["bytes_before"]
        after = card["quantized"]["bytes_after"]
        print(f"int8       {before} -> {after} bytes ({after / before:.2f})")
