"""The steps of `t5suite export`: load, write, compare, quantize, and record all of it in `export.json`.

>>> export_model(parse_arguments(["export", "--model_name_or_path", "runs/mini-sentiment", "--output_dir", "exported"]))
{'format': 'hf', 'source': 'runs/mini-sentiment', 'family': 'seq2seq', 'model': {...}, 'files': {...}, ...}
"""

import shutil
import tempfile
from pathlib import Path

import torch
from transformers import T5Tokenizer

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.files import follow_umask, new_folder
from t5suite.base.provenance import versions
from t5suite.data.corpora.encoding import spiece_of
from t5suite.data.rows.jsonl import without_nan
from t5suite.export.ctranslate2_files import check as ctranslate2_check
from t5suite.export.ctranslate2_files import compare as ctranslate2_compare
from t5suite.export.ctranslate2_files import write_files
from t5suite.export.onnx_files import check, compare, quantize, write_graphs
from t5suite.export.onnx_runtime import OnnxModel, require_onnx
from t5suite.export.sources import Source, load_source
from t5suite.models.loading import describe_model
from t5suite.models.matrix import why_lacking
from t5suite.models.tokenizer_checks import KEY as TOKENIZER
from t5suite.models.tokenizer_checks import describe_tokenizer
from t5suite.models.weight_files import read_weights
from t5suite.models.weights import fit_to_model
from t5suite.runs.directory import read_json, write_json

CARD, SPIECE = "export.json", "spiece.model"
# The task card and tokenizer files, copied in addition to what `save_pretrained` writes.
KEPT = ("task.json", SPIECE, "sentencepiece.bpe.model")


def export_model(wanted) -> dict:
    """Writes `output_dir` as a whole or not at all; returns the content of its `export.json`.

    Args:
      wanted: the flags of `t5suite export`.

    Raises:
      ConfigError: no such model; a folder that is not empty; packages that are missing.
      CheckpointError: a damaged source, or an export that fails its check.
    """
    with new_folder(wanted.output_dir) as folder:
        with tempfile.TemporaryDirectory(dir=folder) as staging:
            source = load_source(wanted, staging)
            card = {
                "format": wanted.format,
                "source": wanted.model_name_or_path or wanted.init_checkpoint,
                "family": source.family,
                "model": describe_model(source.model),
                TOKENIZER: describe_tokenizer(source.tokenizer),
            }
            card |= WRITERS[wanted.format](source, folder, wanted)
        written = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        files = {file.relative_to(folder).as_posix(): file.stat().st_size for file in written}
        card = without_nan(card | {"files": files, "versions": versions()})
        write_json(folder / CARD, card)
    return card


def write_plain(source: Source, folder, wanted) -> dict:
    """`--format hf`: model, tokenizer and the files with them; the source's model is cast in place.

    Raises:
      CheckpointError: a weight is finite in the source but not in that precision (float16 ends at 65504), or, with
        `--check`, is not stored bit for bit.
    """
    cast(source.model, getattr(torch, wanted.dtype) if wanted.dtype else source.dtype)
    source.model.save_pretrained(folder)
    follow_umask(Path(folder).glob("*.safetensors"))
    save_beside(source, folder)
    if wanted.check and (differing := differing_weights(folder, source.model)):
        raise CheckpointError(f"{len(differing)} weights are not stored bit for bit: {', '.join(differing[:5])}")
    checked = {"check": {"weights_that_differ": 0}} if wanted.check else {}
    return {"dtype": str(source.model.dtype).removeprefix("torch."), **checked}


def write_onnx(source: Source, folder, wanted) -> dict:
    """`--format onnx`."""
    if wanted.model_class is not None:
        raise ConfigError(f"--format onnx --model_class {wanted.model_class}: only transformers' classes have graphs")
    if why := why_lacking(source.model.config, "onnx"):
        raise ConfigError(f"--format onnx: models of type {source.model.config.model_type!r} cannot be exported: {why}")
    require_onnx()
    cast(source.model, torch.float32)
    files = write_graphs(source, folder)
    save_beside(source, folder)
    card = {"dtype": wanted.quantize or "float32"}
    if wanted.check:
        card["check"] = check(source.model, OnnxModel(folder))
    if wanted.quantize:
        card["quantized"] = quantize(folder, files)
        if wanted.check:
            card["check_quantized"] = compare(source.model, OnnxModel(folder))
    return card


def write_ctranslate2(source: Source, folder, wanted) -> dict:
    """`--format ctranslate2`."""
    cast(source.model, torch.float32)
    card = {"dtype": wanted.quantize or "float32"}
    if wanted.quantize and wanted.check:
        write_files(source, folder)
        card["check"] = ctranslate2_check(source.model, source.tokenizer, folder)
    write_files(source, folder, wanted.quantize)
    if wanted.check:
        compared = ctranslate2_compare if wanted.quantize else ctranslate2_check
        card["check_quantized" if wanted.quantize else "check"] = compared(source.model, source.tokenizer, folder)
    save_beside(source, folder)
    return card


def cast(model, dtype: torch.dtype) -> None:
    """Casts a model's floating-point weights in place; float32 to bfloat16 rounds to 8 bits of mantissa."""
    finite = {name for name, tensor in model.named_parameters() if torch.isfinite(tensor).all()}
    model.to(dtype)
    for name, tensor in model.named_parameters():
        if name in finite and not torch.isfinite(tensor).all():
            raise CheckpointError(f"{name} has values that {dtype} cannot hold; choose --dtype bfloat16 or float32")


def save_beside(source: Source, folder) -> None:
    """Saves the tokenizer, its SentencePiece model and the task card."""
    folder = Path(folder)
    source.tokenizer.save_pretrained(folder)
    settings = read_json(folder / "tokenizer_config.json")
    # transformers 5 writes a list here, where 4.57 expects a dict and fails.
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
        write_json(folder / "tokenizer_config.json", settings)
    for name in KEPT:
        if source.folder is not None and (source.folder / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source.folder / name, folder / name)
    spiece = folder / SPIECE
    if isinstance(source.tokenizer, T5Tokenizer) and not spiece.exists() and (content := spiece_of(source.tokenizer)):
        spiece.write_bytes(content)


def differing_weights(folder, model) -> list[str]:
    """Names of the weights that do not load from a folder bit for bit.

    >>> differing_weights("exported", source.model)
    []
    """
    stored, mismatch = fit_to_model(model, read_weights(folder))
    own, names = model.state_dict(), [*mismatch.missing, *mismatch.unknown, *mismatch.reshaped]
    for name, tensor in stored.items():
        bits = [t.contiguous().view(torch.uint8) for t in (own[name], tensor)]
        if own[name].dtype != tensor.dtype or own[name].shape != tensor.shape or not torch.equal(*bits):
            names.append(name)
    return names


WRITERS = {"hf": write_plain, "onnx": write_onnx, "ctranslate2": write_ctranslate2}
