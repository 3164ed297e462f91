"""Greedy answers of a T5, from the parts of transformers' own decoder.

    >>> write_greedily(model, hidden_BSD, mask_BS, start=0, eos=1, max_new_tokens=4)
    ([[1465, 1], [2841, 1]], [0.11, 0.02])

They equal those of transformers' `generate` without beams, sampling or processors; finished rows are dropped.

Shapes: B rows, A rows that have not ended, S source tokens, T written tokens, D model width, C states of a chunk,
V vocabulary.
"""

import numpy as np
import torch

from t5suite.models.classes import bare_model
from t5suite.models.t5.decoder import attended, bias_by_distance, chunks_of_logits, final_states, projected

# What stands in the table of written tokens after a row's end.
UNWRITTEN = -1


def write_greedily(
    model, hidden_BSD, mask_BS, start: int, eos: int, max_new_tokens: int, wants_nll: bool = True
) -> tuple[list[list[int]], list[float] | None]:
    """`(ids, nll)` by row: the likeliest token at each step until end-of-sequence, and the nats of these tokens.

    Args:
      hidden_BSD, mask_BS: the encoder's states, and 1 for a token (None: nothing is padded).
    """
    model = bare_model(model)
    device = hidden_BSD.device
    num_rows = len(hidden_BSD)
    written_BT = torch.full((num_rows, max_new_tokens), UNWRITTEN, device=device)
    nll_B = torch.zeros(num_rows, device=device)
    active_A = torch.arange(num_rows, device=device)
    token_A = torch.full((num_rows,), start, device=device)
    reader = _CachedReader(model, hidden_BSD, mask_BS, max_new_tokens)
    for step in range(max_new_tokens):
        token_A, nll_A = _likeliest(model, reader.read(token_A), wants_nll)
        written_BT[active_A, step] = token_A
        if wants_nll:
            nll_B[active_A] += nll_A
        unfinished_A = token_A.ne(eos).nonzero()[:, 0]
        if not len(unfinished_A):
            break
        if len(unfinished_A) < len(active_A):
            active_A = active_A[unfinished_A]
            token_A = token_A[unfinished_A]
            reader.select_rows(unfinished_A)
    ids = [[token for token in row if token != UNWRITTEN] for row in written_BT.tolist()]
    return ids, nll_B.tolist() if wants_nll else None


def _likeliest(model, states_AD, wants_nll: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The likeliest token after each state, and, if requested, its nats (A), which add a fifth to the work."""
    tokens = []
    nll = []
    for chunk in chunks_of_logits(states_AD, model.config.vocab_size):
        logits_CV = model.lm_head(states_AD[chunk]).float()
        if logits_CV.device.type == "cpu":  # torch 2.13's argmax takes 13 times as long: 3.6 ms for 128 rows of logits
            best_C = torch.from_numpy(np.asarray(logits_CV.detach().numpy().argmax(-1)))[:, None]
        else:
            best_C = logits_CV.argmax(-1)[:, None]
        tokens.append(best_C[:, 0])
        if wants_nll:
            nll.append(logits_CV.logsumexp(-1) - logits_CV.gather(1, best_C)[:, 0])
    return torch.cat(tokens), torch.cat(nll) if wants_nll else None


class _CachedReader:
    """The decoder with a cache for unfinished rows: keys and values of its own tokens, and of the source."""

    def __init__(self, model, hidden_BSD, mask_BS, max_new_tokens: int):
        self.model = model
        self.num_read = 0
        self.mask_B11S = None if mask_BS is None else mask_BS.bool()[:, None, None, :]
        blocks = [block.layer for block in model.decoder.block]
        self.written_keys_values = [None] * len(blocks)
        self.source_keys_values = [
            projected(cross_layer.EncDecAttention, hidden_BSD, "k", "v") for _, cross_layer, _ in blocks
        ]
        self.biases = [_bias_of(self_layer.SelfAttention, max_new_tokens) for self_layer, _, _ in blocks]

    def read(self, token_A) -> torch.Tensor:
        """Reads one more token in every row; returns the input of the output layer (A, D)."""
        self.num_read += 1
        x_A1D = self.model.decoder.embed_tokens(token_A[:, None])
        for index, block in enumerate(self.model.decoder.block):
            self_layer, cross_layer, feed_forward = block.layer
            if self.biases[index] is not None:  # T5's other layers share the first one's
                bias_1H1T = self.biases[index][:, : self.num_read].flip(-1)[None, :, None]
            query, key, value = projected(self_layer.SelfAttention, self_layer.layer_norm(x_A1D), "q", "k", "v")
            keys_values = self._with_written(index, key, value)
            bias = bias_1H1T.expand(len(x_A1D), -1, -1, -1)
            x_A1D = x_A1D + attended(self_layer.SelfAttention, query, *keys_values, bias)
            (query,) = projected(cross_layer.EncDecAttention, cross_layer.layer_norm(x_A1D), "q")
            source = self.source_keys_values[index]
            x_A1D = x_A1D + attended(cross_layer.EncDecAttention, query, *source, self.mask_B11S)
            x_A1D = feed_forward(x_A1D)
        return final_states(self.model, x_A1D)[:, 0]

    def _with_written(self, index: int, key, value) -> list[torch.Tensor]:
        """A block's keys and values of all tokens that it has read, with those of the newest one."""
        written = self.written_keys_values[index]
        if written is None:
            self.written_keys_values[index] = [key, value]
        else:
            self.written_keys_values[index] = [torch.cat([written[0], key], 2), torch.cat([written[1], value], 2)]
        return self.written_keys_values[index]

    def select_rows(self, rows_A) -> None:
        """Drops all rows but these."""
        if self.mask_B11S is not None:
            self.mask_B11S = self.mask_B11S[rows_A]
        self.written_keys_values = [[part[rows_A] for part in pair] for pair in self.written_keys_values]
        self.source_keys_values = [[part[rows_A] for part in pair] for pair in self.source_keys_values]


def _bias_of(attention, max_new_tokens: int) -> torch.Tensor | None:
    """The bias by distance of a layer that has a table of its own."""
    return bias_by_distance(attention, max_new_tokens) if attention.has_relative_attention_bias else None
