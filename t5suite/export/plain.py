"""A whole model as a plain Hugging Face folder: what any version of transformers, and most other programs, read.

    >>> save_plain(source, "exported", torch.bfloat16)
    >>> sorted(os.listdir("exported"))
    ['config.json', 'generation_config.json', 'model.safetensors', 'spiece.model', 'task.json', 'tokenizer.json', ...]

Tied weights are stored once. `spiece.model`, which transformers 5 does not save, is copied or made anew: transformers
before 5 makes T5's slow tokenizer of it. Nothing of a run's training state is copied. The weights
of a plain module of the user's own have that module's names.
"""

import shutil
from pathlib import Path

import torch
from transformers import T5Tokenizer

from t5suite.base.errors import CheckpointError
from t5suite.data.text.sentence_pieces import spiece_of
from t5suite.models.own_models import own_names
from t5suite.models.weight_files import read_weights
from t5suite.models.whole_weights import fitted
from t5suite.runs.directory import read_json, write_json
from t5suite.training.checkpoints import recorded_weights, settle

# What says which task a model is for, and what it reads text by, beside what `save_pretrained` writes.
SPIECE = "spiece.model"
KEPT = ("task.json", SPIECE, "sentencepiece.bpe.model")


def save_plain(source, folder, dtype: torch.dtype | None = None) -> None:
    """Writes model, tokenizer and what belongs to them; the source's model is cast to `dtype` on the way.

    Raises:
      CheckpointError: a weight is no number in that precision, though it is one in the source (float16 ends at 65504).
    """
    cast(source.model, dtype or source.dtype)
    records = {}
    # Written by our own hand: what safetensors 0.8 writes, only its owner can read.
    with recorded_weights(folder, records):
        source.model.save_pretrained(folder, state_dict=own_names(source.model))
    settle(records)
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
