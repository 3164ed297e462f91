"""What an adapted Gemma computes, in NumPy, from the decoder's tensors: the second opinion of `t5suite adapt --check`.

    >>> logits_TV = NumpyGemma(decoder_tensors, settings).logits(source_ids, target_ids)

Nothing here is transformers' or torch's: it is written from the papers (Gemma 2 arXiv:2408.00118, Gemma 3
arXiv:2503.19786, T5Gemma arXiv:2504.06225, T5Gemma 2 arXiv:2512.14856) and computes one row at a time, without padding
and without a cache, in float64. It reads the decoder's tensors by the decoder's names: a tensor that came to the wrong
place in the adapted model shows.

Shapes: S source, T target, D model, H heads, K key heads, C a head's width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from t5suite.base.errors import ConfigError

ROPE_TYPES = ("default", "linear")


@dataclass(frozen=True)
class NumpyGemma:
    """An encoder-decoder of two copies of one decoder.

    Attributes:
      tensors: the decoder's, by its names.
      settings: of its configuration.
      is_merged: the decoder attends to itself and to the source in one softmax (T5Gemma 2), or in two steps (T5Gemma).
    """

    tensors: Mapping[str, np.ndarray]
    settings: Mapping
    is_merged: bool

    def logits(self, source_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
        """The decoder's logits for one row; shape (T, V)."""
        states_SD = self.encoder_states(source_ids)
        states_TD = self._embedded(target_ids)
        for layer in range(self.settings["num_hidden_layers"]):
            states_TD = self._decoder_layer(layer, states_TD, states_SD)
        states_TD = self._norm(states_TD, "model.norm")
        logits_TV = states_TD @ self.tensors["model.embed_tokens.weight"].T
        return _capped(logits_TV, self.settings["final_logit_softcapping"])

    def encoder_states(self, source_ids: np.ndarray) -> np.ndarray:
        """What the decoder reads of the source; shape (S, D)."""
        states_SD = self._embedded(source_ids)
        for layer in range(self.settings["num_hidden_layers"]):
            allowed_SS = self._encoder_mask(layer, len(states_SD))
            attended_SD = self._self_attention(layer, states_SD, allowed_SS)
            states_SD = states_SD + attended_SD
            states_SD = states_SD + self._feed_forward(layer, states_SD)
        return self._norm(states_SD, "model.norm")

    def _embedded(self, ids: np.ndarray) -> np.ndarray:
        rows = self.tensors["model.embed_tokens.weight"][ids].astype(np.float64)
        return rows * np.sqrt(self.settings["hidden_size"])

    def _decoder_layer(self, layer: int, states_TD: np.ndarray, source_SD: np.ndarray) -> np.ndarray:
        allowed_TT = self._decoder_mask(layer, len(states_TD))
        merged = source_SD if self.is_merged else None
        states_TD = states_TD + self._self_attention(layer, states_TD, allowed_TT, merged)
        if not self.is_merged:
            states_TD = states_TD + self._cross_attention(layer, states_TD, source_SD)
        return states_TD + self._feed_forward(layer, states_TD)

    def _self_attention(self, layer, states_TD, allowed_TT, source_SD=None) -> np.ndarray:
        """Attention of states to themselves, and in the same softmax to those of a source, which have no positions."""
        inputs_TD = self._norm(states_TD, f"model.layers.{layer}.input_layernorm")
        queries_HTC = self._rotated(layer, self._heads(layer, "q", inputs_TD))
        keys_KTC = self._rotated(layer, self._heads(layer, "k", inputs_TD))
        values_KTC = self._heads(layer, "v", inputs_TD)
        allowed = allowed_TT
        if source_SD is not None:
            keys_KTC = np.concatenate([keys_KTC, self._heads(layer, "k", source_SD)], axis=1)
            values_KTC = np.concatenate([values_KTC, self._heads(layer, "v", source_SD)], axis=1)
            sees_source = np.ones((len(states_TD), len(source_SD)), dtype=bool)
            allowed = np.concatenate([allowed_TT, sees_source], axis=1)
        return self._attended(layer, queries_HTC, keys_KTC, values_KTC, allowed)

    def _cross_attention(self, layer: int, states_TD: np.ndarray, source_SD: np.ndarray) -> np.ndarray:
        """Attention of the target to the source by itself, with the layer's self-attention, without positions."""
        inputs_TD = self._norm(states_TD, f"model.layers.{layer}.input_layernorm")
        queries_HTC = self._heads(layer, "q", inputs_TD)
        keys_KSC = self._heads(layer, "k", source_SD)
        values_KSC = self._heads(layer, "v", source_SD)
        allowed_TS = np.ones((len(states_TD), len(source_SD)), dtype=bool)
        return self._attended(layer, queries_HTC, keys_KSC, values_KSC, allowed_TS)

    def _heads(self, layer: int, kind: str, states_TD: np.ndarray) -> np.ndarray:
        """Queries, keys or values by head; Gemma 3 norms queries and keys."""
        name = f"model.layers.{layer}.self_attn.{kind}"
        projected = self._projected(states_TD, f"{name}_proj")
        heads_HTC = projected.reshape(len(states_TD), -1, self.settings["head_dim"]).transpose(1, 0, 2)
        if f"{name}_norm.weight" in self.tensors:
            heads_HTC = self._norm(heads_HTC, f"{name}_norm")
        return heads_HTC

    def _projected(self, states: np.ndarray, name: str) -> np.ndarray:
        projected = states @ self.tensors[f"{name}.weight"].astype(np.float64).T
        bias = self.tensors.get(f"{name}.bias")
        if bias is None:
            return projected
        return projected + bias

    def _attended(self, layer, queries_HTC, keys_KSC, values_KSC, allowed_TS) -> np.ndarray:
        """Softmax attention, output projection and the norm after it."""
        repeats = len(queries_HTC) // len(keys_KSC)
        keys_HSC = keys_KSC.repeat(repeats, axis=0)
        values_HSC = values_KSC.repeat(repeats, axis=0)
        scores_HTS = queries_HTC @ keys_HSC.transpose(0, 2, 1) / np.sqrt(self.settings["query_pre_attn_scalar"])
        if not self.is_merged:  # transformers' Gemma 3 has the setting, and does not use it
            scores_HTS = _capped(scores_HTS, self.settings["attn_logit_softcapping"])
        scores_HTS = np.where(allowed_TS, scores_HTS, -np.inf)
        weights_HTS = np.exp(scores_HTS - scores_HTS.max(axis=-1, keepdims=True))
        weights_HTS /= weights_HTS.sum(axis=-1, keepdims=True)
        mixed_HTC = weights_HTS @ values_HSC
        mixed = mixed_HTC.transpose(1, 0, 2).reshape(len(allowed_TS), -1)
        output_TD = self._projected(mixed, f"model.layers.{layer}.self_attn.o_proj")
        return self._norm(output_TD, f"model.layers.{layer}.post_attention_layernorm")

    def _feed_forward(self, layer: int, states_TD: np.ndarray) -> np.ndarray:
        """Gated GELU (arXiv:2002.05202), between two norms."""
        inputs_TD = self._norm(states_TD, f"model.layers.{layer}.pre_feedforward_layernorm")
        name = f"model.layers.{layer}.mlp"
        gate = _gelu(self._projected(inputs_TD, f"{name}.gate_proj"))
        hidden = gate * self._projected(inputs_TD, f"{name}.up_proj")
        output_TD = self._projected(hidden, f"{name}.down_proj")
        return self._norm(output_TD, f"model.layers.{layer}.post_feedforward_layernorm")

    def _norm(self, states: np.ndarray, name: str) -> np.ndarray:
        """RMSNorm (arXiv:1910.07467) whose stored weights are the distance from 1."""
        mean_square = np.mean(states**2, axis=-1, keepdims=True)
        scale = 1 + self.tensors[f"{name}.weight"].astype(np.float64)
        return states / np.sqrt(mean_square + self.settings["rms_norm_eps"]) * scale

    def _rotated(self, layer: int, heads_HTC: np.ndarray) -> np.ndarray:
        """Rotary positions (arXiv:2104.09864), the first half of a head's width paired with the second."""
        rope = self._rope_of(layer)
        first, second = np.split(heads_HTC, 2, axis=-1)
        half = first.shape[-1]
        frequencies = float(rope["rope_theta"]) ** (-np.arange(half) / half)
        if rope["rope_type"] == "linear":
            frequencies = frequencies / rope["factor"]
        angles_TC = np.arange(heads_HTC.shape[1])[:, None] * frequencies
        rotated_first = first * np.cos(angles_TC) - second * np.sin(angles_TC)
        rotated_second = second * np.cos(angles_TC) + first * np.sin(angles_TC)
        return np.concatenate([rotated_first, rotated_second], axis=-1)

    def _rope_of(self, layer: int) -> Mapping:
        """Gemma 3 has rotary positions for each kind of layer, Gemma 2 for all."""
        rope = self.settings["rope_parameters"]
        rope = rope.get(self.settings["layer_types"][layer], rope)
        if rope["rope_type"] not in ROPE_TYPES:
            raise ConfigError(
                f"--check: rope_type is {rope['rope_type']!r}; what is computed independently knows "
                f"{' and '.join(ROPE_TYPES)}"
            )
        return rope

    def _decoder_mask(self, layer: int, length: int) -> np.ndarray:
        """Who sees whom in the decoder: what came before, in a sliding layer the last `sliding_window` of it."""
        distance_TT = np.arange(length)[:, None] - np.arange(length)
        if self._is_sliding(layer):
            return (distance_TT >= 0) & (distance_TT < self.settings["sliding_window"])
        return distance_TT >= 0

    def _encoder_mask(self, layer: int, length: int) -> np.ndarray:
        """Who sees whom in the encoder: all, in a sliding layer those near.

        T5Gemma 2 divides the window between both sides; T5Gemma has a whole one on each.
        """
        distance_SS = np.arange(length)[:, None] - np.arange(length)
        if not self._is_sliding(layer):
            return np.ones_like(distance_SS, dtype=bool)
        window = self.settings["sliding_window"]
        if self.is_merged:
            return (distance_SS < (window + 1) // 2) & (distance_SS >= -(window // 2))
        return np.abs(distance_SS) <= window

    def _is_sliding(self, layer: int) -> bool:
        return self.settings["layer_types"][layer] == "sliding_attention"


def _capped(values: np.ndarray, cap: float | None) -> np.ndarray:
    """Values pressed between -cap and cap (arXiv:2408.00118, section 2)."""
    if cap is None:
        return values
    return cap * np.tanh(values / cap)


def _gelu(values: np.ndarray) -> np.ndarray:
    """GELU by its tanh (arXiv:1606.08415)."""
    return 0.5 * values * (1 + np.tanh(np.sqrt(2 / np.pi) * (values + 0.044715 * values**3)))
