"""`t5suite export`: a trained model for other programs, as a plain Hugging Face folder or as ONNX files.

t5suite export --model_name_or_path runs/mini-sentiment --output_dir exported
t5suite export --model_name_or_path runs/mini-sentiment --output_dir onnx --format onnx --check --quantize int8
"""

import contextlib
import sys
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import check_new_folder
from t5suite.base.lookup import find
from t5suite.commands.shared import (
    add_data_dir_flag,
    add_json_flag,
    add_task_flags,
    check_input_file,
    check_model,
    check_place,
    note,
    print_json,
)

FORMATS = ("hf", "onnx")
PRECISIONS = ("float32", "bfloat16", "float16")


def export_flags(parser) -> None:
    """Flags of `t5suite export`."""
    add = parser.add_argument
    source = "a run directory, checkpoint-N, DeepSpeed's shards, an adapter, or a model of the hub"
    add("--model_name_or_path", help=source)
    add("--output_dir", required=True, help="a new folder, or an empty one")
    add("--format", default="hf", help="hf: safetensors for transformers; onnx: for ONNX Runtime")
    add("--dtype", help="hf: float32, bfloat16 or float16 (default: as the source is stored)")
    add("--quantize", help="onnx: int8, dynamic 8-bit integers for the weights")
    add("--check", action="store_true", help="compare what was written with the source")
    add("--tokenizer_name", help="the tokenizer, if it does not lie beside the model")
    add("--init_checkpoint", help="bare weights (nanoT5's, a state_dict), with --config_name")
    add("--config_name", help="the configuration that --init_checkpoint's weights are of")
    add("--config_overrides", help="changes to it: num_layers=4,tie_word_embeddings=False")
    add("--adapter_base", help="an adapter's base model, if not where the adapter says")
    add("--model_family", help="seq2seq, causal, masked or classification (default: by configuration)")
    add("--model_class", help="module:Class of your own that the model is one of; hf only")
    add("--model_revision", help="branch, tag or commit of a model of the hub")
    add("--trust_remote_code", action="store_true", help="run code that a model of the hub brings")
    add_task_flags(parser, required=False)
    add_data_dir_flag(parser)
    add("--score", action="store_true", help="onnx: score the files on the validation rows that the run was scored on")
    rows = "rows that scores are of (default: all; --score: as many as in the run)"
    add("--max_eval_samples", type=int, help=rows)
    add("--verbose", action="store_true", help="show what libraries say, and their progress bars")
    add_json_flag(parser)


def export(arguments) -> None:
    """Writes the model, and prints what was written.

    Raises:
      ConfigError: flags that do not go together, no such model, or a folder that is not empty.
    """
    check_flags(arguments)
    check_files(arguments)
    if arguments.quantize and not (arguments.benchmark or arguments.score):
        rows = "--score (on the run's own validation rows), or with --benchmark and --dataset_name"
        note(f"what the 8 bits cost in points is measured with {rows}")
    from t5suite.export.exporting import export_model
    from t5suite.export.sources import Wanted
    from t5suite.training.run import start_logging

    start_logging(is_main=True, disable_tqdm=not arguments.verbose, verbose=arguments.verbose)
    # Libraries print, too, when they are first used: standard output is for the result alone.
    with contextlib.redirect_stdout(sys.stderr):
        card = export_model(Wanted.of(arguments))
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
    for name, of_metric in (card.get("scores") or {}).get("metrics", {}).items():
        print(f"score      {name:<28} " + "  ".join(f"{kind} {shown(value)}" for kind, value in of_metric.items()))


def check_flags(arguments) -> None:
    """Refuses flags that would have no effect."""
    named, bare, is_onnx = arguments.model_name_or_path, arguments.init_checkpoint, arguments.format == "onnx"
    if (named is None) == (bare is None):
        raise ConfigError("t5suite export: give --model_name_or_path, or --init_checkpoint with --config_name")
    if (bare is None) != (arguments.config_name is None):
        raise ConfigError("--init_checkpoint and --config_name go together: weights, and the model that they are of")
    of_names = ("model_class", "model_revision", "trust_remote_code", "adapter_base")
    for name in of_names if bare is not None else ("config_overrides",):
        if getattr(arguments, name):
            other = "--init_checkpoint" if bare is not None else "--model_name_or_path"
            raise ConfigError(f"--{name} has no effect with {other}")
    find(arguments.format, dict.fromkeys(FORMATS), "format", where="--format")
    find(arguments.dtype or "float32", dict.fromkeys(PRECISIONS), "precision", where="--dtype")
    if arguments.quantize and not is_onnx:
        raise ConfigError("--quantize has an effect on ONNX files only; add --format onnx")
    if is_onnx and arguments.dtype not in (None, "float32"):
        raise ConfigError(f"--dtype {arguments.dtype}: ONNX files hold float32, or with --quantize int8 integers")
    if arguments.quantize not in (None, "int8"):
        raise ConfigError(f"--quantize {arguments.quantize}: there is int8")
    if bool(arguments.benchmark) != bool(arguments.dataset_name):
        raise ConfigError("--benchmark and --dataset_name go together: they name the task that is scored")
    for name in ("benchmark", "score"):
        if getattr(arguments, name) and not is_onnx:
            raise ConfigError(f"--{name} scores ONNX files; a plain model is scored by fine_tune_t5.py --eval_only")
    if arguments.score and arguments.benchmark:
        raise ConfigError("--score and --benchmark both say which rows are scored; give one of the two")
    scores = arguments.benchmark or arguments.score
    if arguments.max_eval_samples is not None and (not scores or arguments.max_eval_samples < 1):
        raise ConfigError("--max_eval_samples needs --benchmark or --score, and at least one row")


def check_files(arguments) -> None:
    """What is read is there, what is written has a place, the task is one, and ONNX's packages are installed."""
    model = arguments.model_name_or_path
    if model is not None:
        check_model("--model_name_or_path", model)
    else:
        check_input_file("--init_checkpoint", arguments.init_checkpoint, or_folder=True)
    # The manifest of a run, or of a checkpoint's run, says which rows it was scored on.
    if arguments.score and not (
        model and any((folder / "manifest.json").is_file() for folder in (Path(model), Path(model).parent))
    ):
        instead = "name a task by --benchmark and --dataset_name"
        raise ConfigError(f"--score: {model or 'the model'} is no run of fine_tune_t5.py; {instead}")
    check_new_folder(arguments.output_dir)
    check_place("--output_dir", arguments.output_dir)
    if arguments.format == "onnx":
        from t5suite.export.onnx_runtime import require_onnx

        require_onnx()
    if arguments.benchmark:
        from t5suite.constants import MIXTURES
        from t5suite.tasks.entries import load_registry
        from t5suite.tasks.registry import resolve_names

        resolve_names(arguments.benchmark, arguments.dataset_name, load_registry(arguments.task_file), MIXTURES)
