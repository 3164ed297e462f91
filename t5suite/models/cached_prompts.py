"""Prompts that a decoder-only model reads once, and answers that are scored behind them.

    >>> prompts = read_prompts(model, {"input_ids": ids_BS, "attention_mask": mask_BS})
    >>> prompts.nll([0, 0, 1], [[1465, 1], [2841, 1], [1465, 1]])
    [0.11, 2.31, 1.87]

The keys and values of a prompt are the same whatever stands behind it. So they are kept, those of the prompt's row are
taken for each answer, and the model reads the answer's tokens alone: with C candidates a prompt is read once, not C
times. Prompts are padded on the left, answers on the right. Shapes: B prompts of S tokens, P pairs of a prompt and an
answer of T tokens, V vocabulary.
"""

import copy
import inspect
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from t5suite.data.collators import IGNORED

# Layers whose kept states are rows of tensors; others (state spaces, quantized, static ones) are read anew.
PLAIN_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)


def read_prompts(model, batch) -> "CachedPrompts | None":
    """Reads prompts padded on the left; None where the model keeps no keys and values that rows can be taken of.

    Args:
      batch: `input_ids` and `attention_mask`, (B, S); every row has a token.
    """
    mask_BS = batch["attention_mask"]
    outputs = model(**batch, **reading_options(model, mask_BS, mask_BS.shape[1], 1), use_cache=True)
    cache = getattr(outputs, "past_key_values", None)
    rows = type(cache) is DynamicCache and all(type(layer) in PLAIN_LAYERS for layer in cache.layers)
    kept = rows and all(layer.get_seq_length() >= mask_BS.shape[1] for layer in cache.layers)
    return CachedPrompts(model, mask_BS, cache, outputs.logits[:, -1].float()) if kept else None


@dataclass(frozen=True)
class CachedPrompts:
    """What a model keeps of prompts, and its logits for the token behind each."""

    model: object
    mask_BS: torch.Tensor
    cache: DynamicCache
    logits_BV: torch.Tensor

    def nll(self, rows, answers) -> list[float]:
        """The nats of each answer behind the prompt of its row; every answer has a token."""
        device = self.mask_BS.device
        rows_P = torch.tensor(rows, device=device)
        width = max(2, *(len(answer) for answer in answers))  # ranks make the same passes, whatever their answers are
        padded = [[*answer, *[IGNORED] * (width - len(answer))] for answer in answers]
        labels_PT = torch.tensor(padded, dtype=torch.long, device=device)
        first_P = F.cross_entropy(self.logits_BV[rows_P], labels_PT[:, 0], reduction="none")
        ids_PT = labels_PT[:, :-1].clamp(min=0)
        mask_PX = torch.cat([self.mask_BS[rows_P], labels_PT[:, :-1].ne(IGNORED).to(self.mask_BS.dtype)], dim=1)
        options = reading_options(self.model, mask_PX, ids_PT.shape[1], ids_PT.shape[1])
        logits_PTV = self.model(
            input_ids=ids_PT,
            attention_mask=mask_PX,
            past_key_values=rows_of(self.cache, rows_P),
            use_cache=True,
            **options,
        ).logits.float()
        rest_PT = F.cross_entropy(logits_PTV.transpose(1, 2), labels_PT[:, 1:], ignore_index=IGNORED, reduction="none")
        return (first_P + rest_PT.sum(dim=1)).tolist()


def rows_of(cache: DynamicCache, rows_P) -> DynamicCache:
    """A cache of these rows, which may come several times; the one given stays as it is."""
    picked = copy.copy(cache)
    picked.layers = [copy.copy(layer) for layer in cache.layers]
    picked.batch_select_indices(rows_P)
    return picked


def keeps_prompts(model) -> bool:
    """Whether reading on behind a prompt is the same as reading both: PEFT's prefixes replace what was kept."""
    adapters = getattr(model, "peft_config", None) or {}
    return not any("PREFIX" in str(config.peft_type) for config in adapters.values())


def reading_options(model, mask_PX, number: int, logits: int) -> dict:
    """The positions of the last `number` columns and how many logits to make, where the model's `forward` asks."""
    taken = inspect.signature(plain(model).forward).parameters
    options = {}
    if "position_ids" in taken:
        options["position_ids"] = (mask_PX.cumsum(-1) - 1).clamp(min=0)[:, -number:]
    if "logits_to_keep" in taken:
        options["logits_to_keep"] = logits
    return options


def plain(model):
    """The model inside wrappers and adapters, whose `forward` says what it takes."""
    model = getattr(model, "module", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model
