"""Proofs that an adapted model holds its decoder: `t5suite adapt --check`.

    >>> check_adapted("gemma-tiny", "adapted")
    {'decoder_without_source': 3.1e-07, 'encoder_as_decoder': 2.4e-07, 'numpy_forward': 4.4e-07, ...}

Three comparisons, each the largest difference divided by the largest number compared:

* `decoder_without_source`: with the source masked (T5Gemma 2), or with what cross-attention adds set to zero (T5Gemma),
  the decoder writes the logits that the Gemma writes. An encoder that is wrong does not show here.
* `encoder_as_decoder`: under causal and sliding masks the encoder's states are the Gemma's.
* `numpy_forward`: with a real source, the logits are those of `gemma_in_numpy`, which reads the Gemma's tensors.

All are computed in float32 from what was written, with windows of a few tokens, so that short texts reach beyond them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from t5suite.base.errors import CheckpointError
from t5suite.base.lookup import listed
from t5suite.export.gemma_configs import ADAPTATIONS, stack_settings, stacks
from t5suite.export.gemma_in_numpy import NumpyGemma
from t5suite.models.configs import load_config
from t5suite.models.pretrained import trained_weights
from t5suite.models.t5.output_layer import random_model
from t5suite.models.weights import load_weights

# The largest difference, as a share of the largest number, that counts as rounding (float32).
TOLERANCE = 1e-4
WINDOW = 7
SOURCE_LENGTHS = (24, 17)
TARGET_LENGTH = 20


@dataclass(frozen=True)
class CheckedModels:
    """A decoder and what it became, in float32, with equal short windows.

    Attributes:
      num_rows: of the decoder's embeddings; the adapted model may have more.
    """

    decoder: PreTrainedModel
    adapted: PreTrainedModel
    num_rows: int

    @property
    def is_merged(self) -> bool:
        """Whether the decoder attends to itself and to the source in one softmax."""
        return ADAPTATIONS[self.decoder.config.model_type].has_merged_attention


def check_adapted(decoder_name, adapted_folder, revision: str | None = None) -> dict:
    """The differences, and the settings that differ (none).

    Raises:
      CheckpointError: they exceed rounding, or a setting differs.
      DataError: weights that are damaged or incomplete.
    """
    decoder_config = load_config(str(decoder_name), revision=revision)
    adapted_config = load_config(str(adapted_folder))
    differing = stack_differences(decoder_config, adapted_config)
    if differing:
        raise CheckpointError(f"{adapted_folder}: settings differ from the decoder's: {listed(differing)}")
    for config in (decoder_config, *stacks(adapted_config).values()):
        config.sliding_window = WINDOW
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    loading_options = {**options, "revision": revision}
    decoder = trained_weights(AutoModelForCausalLM, decoder_name, decoder_config, loading_options)
    adapted = random_model(AutoModelForSeq2SeqLM, adapted_config, **options)
    load_weights(adapted, adapted_folder, "--output_dir")
    models = CheckedModels(decoder.eval(), adapted.eval(), decoder_config.vocab_size)
    differences = largest_differences(models)
    too_large = [f"{name} {value:.3g}" for name, value in differences.items() if not value <= TOLERANCE]
    if too_large:
        raise CheckpointError(
            f"{adapted_folder} does not compute what its decoder computes: {', '.join(too_large)}, and {TOLERANCE:g} "
            "would be rounding"
        )
    return {**differences, "settings_that_differ": 0, "source_rows": len(SOURCE_LENGTHS)}


def stack_differences(decoder_config, adapted_config) -> list[str]:
    """Settings of a stack that are not the decoder's; the rows of the vocabulary may be more.

    >>> stack_differences(decoder_config, adapted_config)
    ['encoder.sliding_window (256, not 512)']
    """
    differing = []
    expected_settings = stack_settings(decoder_config)
    expected_settings.pop("vocab_size")
    for stack, config in stacks(adapted_config).items():
        settings = config.to_dict()
        for name, expected in expected_settings.items():
            if settings.get(name) != expected:
                differing.append(f"{stack}.{name} ({settings.get(name)}, not {expected})")
    return differing


@torch.no_grad()
def largest_differences(models: CheckedModels) -> dict[str, float]:
    """The three differences."""
    rng = np.random.default_rng(0)
    sources_BS, source_mask_BS = _random_sources(models, rng)
    targets_BT = torch.from_numpy(rng.integers(models.num_rows, size=(len(sources_BS), TARGET_LENGTH)))
    return {
        "decoder_without_source": _decoder_without_source(models, sources_BS, targets_BT),
        "encoder_as_decoder": _encoder_as_decoder(models, sources_BS[:1]),
        "numpy_forward": _numpy_forward(models, sources_BS, source_mask_BS, targets_BT),
    }


def _random_sources(models: CheckedModels, rng) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of random ids, shorter ones padded, and which positions are text."""
    longest = max(SOURCE_LENGTHS)
    sources_BS = torch.full((len(SOURCE_LENGTHS), longest), models.decoder.config.pad_token_id)
    mask_BS = torch.zeros_like(sources_BS)
    for row, length in enumerate(SOURCE_LENGTHS):
        sources_BS[row, :length] = torch.from_numpy(rng.integers(models.num_rows, size=length))
        mask_BS[row, :length] = 1
    return sources_BS, mask_BS


def _decoder_without_source(models: CheckedModels, sources_BS: torch.Tensor, targets_BT: torch.Tensor) -> float:
    """How far the decoder's logits are from the Gemma's while nothing of the source reaches it."""
    expected = models.decoder(input_ids=targets_BT, attention_mask=torch.ones_like(targets_BT)).logits
    whole_source = torch.ones_like(sources_BS)
    encoder_outputs = models.adapted.get_encoder()(input_ids=sources_BS, attention_mask=whole_source)
    arguments = {
        "encoder_outputs": encoder_outputs,
        "decoder_input_ids": targets_BT,
        "decoder_attention_mask": torch.ones_like(targets_BT),
    }
    if models.is_merged:
        logits = models.adapted(attention_mask=torch.zeros_like(sources_BS), **arguments).logits
    else:
        with _cross_attention_adds_nothing(models.adapted):
            logits = models.adapted(attention_mask=whole_source, **arguments).logits
    return _difference(logits[..., : models.num_rows], expected)


@contextmanager
def _cross_attention_adds_nothing(adapted) -> Iterator[None]:
    """In this block the output of every cross-attention is zero."""
    handles = [
        layer.cross_attn.register_forward_hook(lambda module, inputs, outputs: (outputs[0] * 0, outputs[1]))
        for layer in adapted.get_decoder().layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _encoder_as_decoder(models: CheckedModels, ids_1S: torch.Tensor) -> float:
    """How far the encoder's states are from the Gemma's, if it sees what came before, and no more."""
    expected = models.decoder.base_model(input_ids=ids_1S, attention_mask=torch.ones_like(ids_1S)).last_hidden_state
    length = ids_1S.shape[1]
    distance_SS = torch.arange(length)[:, None] - torch.arange(length)
    is_past = distance_SS >= 0
    masks = {"full_attention": is_past, "sliding_attention": is_past & (distance_SS < WINDOW)}
    lowest = torch.finfo(torch.float32).min
    added = {kind: torch.where(mask, 0.0, lowest)[None, None] for kind, mask in masks.items()}
    states = models.adapted.get_encoder()(input_ids=ids_1S, attention_mask=added).last_hidden_state
    return _difference(states, expected)


def _numpy_forward(models: CheckedModels, sources_BS, source_mask_BS, targets_BT) -> float:
    """How far the logits for real sources are from what NumPy computes with the Gemma's tensors."""
    logits_BTV = models.adapted(
        input_ids=sources_BS,
        attention_mask=source_mask_BS,
        decoder_input_ids=targets_BT,
        decoder_attention_mask=torch.ones_like(targets_BT),
    ).logits
    tensors = {name: parameter.numpy() for name, parameter in models.decoder.named_parameters()}
    reference = NumpyGemma(tensors, models.decoder.config.to_dict(), models.is_merged)
    differences = []
    for row, length in enumerate(SOURCE_LENGTHS):
        expected_TV = reference.logits(sources_BS[row, :length].numpy(), targets_BT[row].numpy())
        logits_TV = logits_BTV[row, :, : models.num_rows]
        differences.append(_difference(logits_TV, torch.from_numpy(expected_TV)))
    return max(differences)


def _difference(values: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a share of the largest expected value."""
    expected = expected.double()
    return float((values.double() - expected).abs().max() / expected.abs().max())
