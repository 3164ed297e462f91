"""The steps of `t5suite export`: load, write, compare, quantize, and record all of it in `export.json`.

>>> flags = parse_command_line(["export", "--model_name_or_path", "runs/mini-sentiment", "--output_dir", "exported"])
>>> export_model(flags)
{'format': 'hf', 'source': 'runs/mini-sentiment', 'family': 'seq2seq', 'model': {...}, 'files': {...}, ...}
"""

import shutil
import tempfile
from pathlib import Path

import torch
from transformers import T5Tokenizer

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.files import new_folder, read_json, write_json
from t5suite.base.provenance import versions
from t5suite.data.corpora.spiece_conversion import convert_to_spiece
from t5suite.data.rows.jsonl import without_nan
from t5suite.export.ctranslate2_checks import check_ctranslate2, compare_ctranslate2
from t5suite.export.ctranslate2_files import write_files
from t5suite.export.onnx_checks import check_onnx, compare_onnx
from t5suite.export.onnx_files import quantize, write_graphs
from t5suite.export.onnx_graphs import why_no_graphs
from t5suite.export.onnx_runtime import OnnxModel, require_onnx
from t5suite.export.sources import ExportSource, load_source
from t5suite.models.generation_settings import save_generation_settings, save_with_generation_settings
from t5suite.models.loading import describe_model
from t5suite.models.tokenizer_checks import TOKENIZER_KEY, describe_tokenizer
from t5suite.models.weight_files import read_weights
from t5suite.models.weights import fit_to_model
from t5suite.tasks.task_card import TASK_CARD

CARD = "export.json"
SPIECE = "spiece.model"
# Tokenizer files of a folder, copied in addition to what `save_pretrained` writes.
COPIED_FILES = (SPIECE, "sentencepiece.bpe.model")


def export_model(flags) -> dict:
    """Writes `output_dir` as a whole or not at all; returns the content of its `export.json`.

    Args:
      flags: those of `t5suite export`.

    Raises:
      ConfigError: no such model; a folder that is not empty; packages that are missing.
      CheckpointError: a damaged source, or an export that fails its check.
    """
    with new_folder(flags.output_dir) as folder:
        with tempfile.TemporaryDirectory(dir=folder) as staging:
            source = load_source(flags, staging)
            card = {
                "format": flags.format,
                "source": flags.model_name_or_path or flags.init_checkpoint,
                "family": source.family,
                "model": describe_model(source.model),
                TOKENIZER_KEY: describe_tokenizer(source.tokenizer),
            }
            card |= WRITERS[flags.format](source, folder, flags)
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
        card = without_nan(card | {"files": files, "versions": versions()})
        write_json(folder / CARD, card)
    return card


def write_plain(source: ExportSource, folder, flags) -> dict:
    """`--format hf`: model, tokenizer and the files with them; the source's model is cast in place.

    Raises:
      CheckpointError: a weight is finite in the source but not in that precision (float16 ends at 65504), or, with
        `--check`, is not stored bit for bit.
    """
    cast(source.model, getattr(torch, flags.dtype) if flags.dtype else source.dtype)
    save_with_generation_settings(source.model, folder)
    save_other_files(source, folder)
    card = {"dtype": str(source.model.dtype).removeprefix("torch.")}
    if flags.check:
        names = differing_weights(folder, source.model)
        if names:
            raise CheckpointError(f"{len(names)} weights are not stored bit for bit: {', '.join(names[:5])}")
        card["check"] = {"weights_that_differ": 0}
    return card


def write_onnx(source: ExportSource, folder, flags) -> dict:
    """`--format onnx`."""
    if flags.model_class is not None:
        raise ConfigError(f"--format onnx --model_class {flags.model_class}: only transformers' classes have graphs")
    model_type = source.model.config.model_type
    reason = why_no_graphs(model_type, source.family)
    if reason:
        raise ConfigError(f"--format onnx: models of type {model_type!r} cannot be exported: {reason}")
    require_onnx()
    cast(source.model, torch.float32)
    files = write_graphs(source, folder)
    save_other_files(source, folder)
    card = {"dtype": flags.quantize or "float32"}
    if flags.check:
        card["check"] = check_onnx(source.model, OnnxModel(folder))
    if flags.quantize:
        card["quantized"] = quantize(folder, files)
        if flags.check:
            card["check_quantized"] = compare_onnx(source.model, OnnxModel(folder))
    return card


def write_ctranslate2(source: ExportSource, folder, flags) -> dict:
    """`--format ctranslate2`."""
    cast(source.model, torch.float32)
    card = {"dtype": flags.quantize or "float32"}
    if flags.check or not flags.quantize:
        write_files(source, folder)
    if flags.check:
        card["check"] = check_ctranslate2(source.model, source.tokenizer, folder)
    if flags.quantize:
        write_files(source, folder, flags.quantize)
        if flags.check:
            card["check_quantized"] = compare_ctranslate2(source.model, source.tokenizer, folder)
    save_generation_settings(source.model.generation_config, folder)
    save_other_files(source, folder)
    return card


def cast(model, dtype: torch.dtype) -> None:
    """Casts a model's floating-point weights in place; float32 to bfloat16 rounds to 8 bits of mantissa."""
    finite = {name for name, tensor in model.named_parameters() if torch.isfinite(tensor).all()}
    model.to(dtype)
    for name, tensor in model.named_parameters():
        if name in finite and not torch.isfinite(tensor).all():
            raise CheckpointError(f"{name} has values that {dtype} cannot hold; choose --dtype bfloat16 or float32")


def save_other_files(source: ExportSource, folder) -> None:
    """Saves the tokenizer, its SentencePiece model and the task card."""
    folder = Path(folder)
    source.tokenizer.save_pretrained(folder)
    settings = read_json(folder / "tokenizer_config.json")
    # transformers 5 writes a list here, where 4.57 expects a dict and fails.
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
        write_json(folder / "tokenizer_config.json", settings)
    if source.task_card is not None:
        shutil.copyfile(source.task_card, folder / TASK_CARD)
    for name in COPIED_FILES:
        if source.folder is not None and (source.folder / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source.folder / name, folder / name)
    spiece_file = folder / SPIECE
    if isinstance(source.tokenizer, T5Tokenizer) and not spiece_file.exists():
        content = convert_to_spiece(source.tokenizer)
        if content:
            spiece_file.write_bytes(content)


def differing_weights(folder, model) -> list[str]:
    """Names of the weights that do not load from a folder bit for bit.

    >>> differing_weights("exported", source.model)
    []
    """
    stored, mismatch = fit_to_model(model, read_weights(folder))
    tensors_of_model = model.state_dict()
    names = [*mismatch.missing, *mismatch.unknown, *mismatch.reshaped]
    for name, tensor in stored.items():
        if not _has_same_bits(tensors_of_model[name], tensor):
            names.append(name)
    return names


def _has_same_bits(tensor: torch.Tensor, stored_tensor: torch.Tensor) -> bool:
    if tensor.dtype != stored_tensor.dtype or tensor.shape != stored_tensor.shape:
        return False
    return torch.equal(tensor.contiguous().view(torch.uint8), stored_tensor.contiguous().view(torch.uint8))


WRITERS = {"hf": write_plain, "onnx": write_onnx, "ctranslate2": write_ctranslate2}
