"""The steps of `t5suite export`: load, write, compare, quantize, score, and say all of it in `export.json`.

>>> export_model(Wanted("runs/mini-sentiment", "exported"))
{'format': 'hf', 'source': 'runs/mini-sentiment', 'family': 'seq2seq', 'model': {...}, 'files': {...}, ...}
"""

import shutil
import tempfile
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import T5Tokenizer

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.files import follow_umask
from t5suite.base.provenance import versions
from t5suite.data.corpora.sentence_pieces import spiece_of
from t5suite.data.rows.jsonl import without_nan
from t5suite.export.folders import CARD, new_folder, sizes_of
from t5suite.export.sources import Source, dtype_for, load_bare_weights, load_source
from t5suite.models.loading import describe
from t5suite.models.own_models import own_names
from t5suite.models.weights import fitted, read_weights
from t5suite.runs.directory import read_json, write_json


@dataclass
class Wanted:
    """What to export, and how; the flags of `t5suite export` by their names."""

    model_name_or_path: str | None
    output_dir: str
    format: str = "hf"
    dtype: str | None = None
    quantize: str | None = None
    check: bool = False
    tokenizer_name: str | None = None
    init_checkpoint: str | None = None
    config_name: str | None = None
    config_overrides: str | None = None
    adapter_base: str | None = None
    model_family: str | None = None
    model_class: str | None = None
    model_revision: str | None = None
    trust_remote_code: bool = False
    benchmark: str | None = None
    dataset_name: str | None = None
    task_file: str | None = None
    data_dir: str | None = None
    max_eval_samples: int | None = None
    score: bool = False

    @classmethod
    def of(cls, arguments) -> "Wanted":
        """From the command's flags."""
        return cls(**{field.name: getattr(arguments, field.name) for field in fields(cls)})


def export_model(wanted: Wanted) -> dict:
    """Writes `output_dir` as a whole or not at all; returns what its `export.json` says.

    Raises:
      ConfigError: no such model; a folder that is not empty; packages that are missing.
      CheckpointError: a damaged source, or an export that is not what was asked for.
    """
    dtype = dtype_for(wanted.dtype) if wanted.dtype else None
    with new_folder(wanted.output_dir) as folder:
        with tempfile.TemporaryDirectory(dir=folder) as staging:
            source = source_of(wanted, staging)
            card = {
                "format": wanted.format,
                "source": wanted.model_name_or_path or wanted.init_checkpoint,
                "family": source.family,
                "model": describe(source.model),
            }
            write = write_plain if wanted.format == "hf" else write_onnx
            card |= write(source, folder, wanted, dtype)
        card = without_nan(card | {"files": sizes_of(folder), "versions": versions()})
        write_json(folder / CARD, card)
    return card


def source_of(wanted: Wanted, staging) -> Source:
    """The model, by whichever flags name it."""
    if wanted.init_checkpoint is not None:
        return load_bare_weights(
            wanted.init_checkpoint,
            wanted.config_name,
            wanted.tokenizer_name,
            wanted.config_overrides,
            wanted.model_family,
        )
    return load_source(
        wanted.model_name_or_path,
        staging,
        wanted.tokenizer_name,
        wanted.model_family,
        wanted.model_revision,
        wanted.trust_remote_code,
        wanted.adapter_base,
        wanted.model_class,
    )


def write_plain(source, folder, wanted: Wanted, dtype) -> dict:
    """`--format hf`."""
    save_plain(source, folder, dtype)
    said = {"dtype": str(source.model.dtype).removeprefix("torch.")}
    if wanted.check:
        differing = differing_weights(folder, source.model)
        if differing:
            raise CheckpointError(f"{len(differing)} weights are not stored as they are: {', '.join(differing[:5])}")
        said["check"] = {"weights_that_differ": 0}
    return said


def write_onnx(source, folder, wanted: Wanted, dtype) -> dict:
    """`--format onnx`."""
    if wanted.model_class is not None:
        raise ConfigError(f"--format onnx --model_class {wanted.model_class}: graphs are made of transformers' classes")
    from t5suite.export.onnx_files import write_graphs
    from t5suite.export.onnx_runtime import PACKAGES, require_onnx

    require_onnx()
    from t5suite.export.onnx_checks import changes, check, compare, eval_sets_for, eval_sets_of_run, score
    from t5suite.export.onnx_files import quantize
    from t5suite.export.onnx_runtime import OnnxModel

    eval_sets = None
    if wanted.score:
        eval_sets = eval_sets_of_run(source, wanted.data_dir, wanted.max_eval_samples)
    elif wanted.benchmark:
        eval_sets = eval_sets_for(
            source,
            wanted.benchmark,
            wanted.dataset_name,
            wanted.task_file,
            wanted.data_dir,
            wanted.max_eval_samples,
        )
    files = write_graphs(source, folder)
    said = {"dtype": wanted.quantize or "float32", "written_by": {name: version(name) for name in PACKAGES}}
    if wanted.check:
        said["check"] = check(source.model, source.family, OnnxModel(folder))
    before = score(OnnxModel(folder), eval_sets) if eval_sets else None
    after = None
    if wanted.quantize:
        said["quantized"] = quantize(folder, files)
        if wanted.check:
            said["check_quantized"] = compare(source.model, source.family, OnnxModel(folder))
        after = score(OnnxModel(folder), eval_sets) if eval_sets else None
    if before is not None:
        rows = {eval_set.name: len(eval_set.rows) for eval_set in eval_sets}
        said["scores"] = {"rows": rows, "metrics": changes(before, after)}
    return said


# What says which task a model is for, and what it reads text by, beside what `save_pretrained` writes.
SPIECE = "spiece.model"
KEPT = ("task.json", SPIECE, "sentencepiece.bpe.model")


def save_plain(source, folder, dtype: torch.dtype | None = None) -> None:
    """Writes model, tokenizer and what belongs to them; the source's model is cast to `dtype` on the way.

    Raises:
      CheckpointError: a weight is no number in that precision, though it is one in the source (float16 ends at 65504).
    """
    cast(source.model, dtype or source.dtype)
    source.model.save_pretrained(folder, state_dict=own_names(source.model))
    follow_umask(Path(folder).glob("*.safetensors"))
    save_beside(source, folder)


def cast(model, dtype: torch.dtype) -> None:
    """Casts a model's floating-point weights in place; float32 to bfloat16 rounds to 8 bits of mantissa."""
    finite = {name for name, tensor in model.named_parameters() if torch.isfinite(tensor).all()}
    model.to(dtype)
    for name, tensor in model.named_parameters():
        if name in finite and not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"{name} has values that {str(dtype).removeprefix('torch.')} cannot hold; choose --dtype bfloat16 or "
                "float32"
            )


def save_beside(source, folder) -> None:
    """The tokenizer, its SentencePiece model, and what says which task the model is for."""
    source.tokenizer.save_pretrained(folder)
    _spell_as_before_5(Path(folder) / "tokenizer_config.json")
    for name in KEPT:
        if source.folder is not None and (source.folder / name).is_file() and not (Path(folder) / name).exists():
            shutil.copyfile(source.folder / name, Path(folder) / name)
    spiece = Path(folder) / SPIECE
    if isinstance(source.tokenizer, T5Tokenizer) and not spiece.exists() and (content := spiece_of(source.tokenizer)):
        spiece.write_bytes(content)


def _spell_as_before_5(file: Path) -> None:
    """Names additional special tokens as all versions of transformers read them.

    5 writes a list called `extra_special_tokens`, which 4.57 takes for a table of that name and stops at.
    """
    settings = read_json(file)
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
        write_json(file, settings)


def differing_weights(folder, model) -> list[str]:
    """Names of weights that a folder does not give back bit by bit.

    >>> differing_weights("exported", source.model)
    []
    """
    stored, mismatch = fitted(model, read_weights(folder))
    own = model.state_dict()
    names = [name for name, tensor in stored.items() if not _same_bits(own[name], tensor)]
    return names + [*mismatch.missing, *mismatch.unknown, *mismatch.reshaped]


def _same_bits(tensor, other) -> bool:
    if other.dtype != tensor.dtype or other.shape != tensor.shape:
        return False
    return torch.equal(tensor.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
