"""Greedy answers of a T5, with the work that is left to do and no more.

    >>> write_greedily(model, hidden_BSD, mask_BS, start=0, eos=1, most_tokens=4)
    Written(ids=[[1465, 1], [2841, 1]], nll=[0.11, 0.02])

Writes what transformers' `generate` writes without beams, sampling or processors. A row that has ended is worked on no
longer, as soon as that is seen: a GPU works behind the host, which never waits for its last token here. A short answer
attends to the encoder's states as they are (`t5_decoder`), a long one to keys and values made of them once.
Shapes: B rows, A rows that have not ended, T tokens written, S source tokens, D model width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from t5suite.models.cached_prompts import plain
from t5suite.models.t5_decoder import (
    Source,
    attended,
    bias_by_distance,
    cross_attention,
    final_states,
    keys_and_values,
    likeliest,
    projected,
)
from t5suite.models.transfers import LateCounts, to_host

# On a GPU, rows that have ended are dropped when they leave this share or less: it takes kernels of its own.
WORTH_DROPPING = 0.75


class Written(NamedTuple):
    """Answers, and how likely they are.

    Attributes:
      ids: by row, the tokens, with end-of-sequence where it was written.
      nll: by row, the nats of those tokens; None where nobody wants them.
    """

    ids: list[list[int]]
    nll: list[float] | None


def write_greedily(model, hidden_BSD, mask_BS, start: int, eos: int, most_tokens: int, tells_nll=True) -> Written:
    """The likeliest token, and the likeliest behind that, until end-of-sequence or so many tokens.

    Args:
      hidden_BSD, mask_BS: the encoder's states, and 1 for a token (None: nothing is padded).
      tells_nll: whether somebody wants to know how likely they are.
    """
    return begin_writing(model, hidden_BSD, mask_BS, start, eos, most_tokens, tells_nll)()


def begin_writing(
    model, hidden_BSD, mask_BS, start: int, eos: int, most_tokens: int, tells_nll=True, lag: int | None = None
) -> Callable[[], Written]:
    """As `write_greedily`; what it returns waits for the answers. A GPU may still be writing them meanwhile.

    Args:
      lag: how many tokens late it is seen that rows have ended; as the device is without it (`LateCounts`).
    """
    model, device, num_rows = plain(model), hidden_BSD.device, len(hidden_BSD)
    written_BT = torch.full((num_rows, most_tokens), -1, device=device)
    nll_B = torch.zeros(num_rows, device=device)
    active_A = torch.arange(num_rows, device=device)
    token_A = torch.full((num_rows,), start, device=device)
    ended_A = torch.zeros(num_rows, dtype=torch.bool, device=device)
    rows, left = _Rows(model, Source.of(hidden_BSD, mask_BS, most_tokens), most_tokens), LateCounts(device, lag)
    for step in range(most_tokens):
        token_A, nll_A = likeliest(model, rows.read(token_A), tells_nll)
        written_BT[active_A, step] = token_A.masked_fill(ended_A, -1)
        if tells_nll:
            nll_B[active_A] += nll_A.masked_fill(ended_A, 0.0)
        ended_A = ended_A | token_A.eq(eos)
        if step + 1 == most_tokens:
            break
        alive = left.look(ended_A.logical_not().sum())
        if alive == 0:
            break
        if alive is not None and alive < len(active_A) * (1.0 if left.lag == 0 else WORTH_DROPPING):
            kept = ended_A.byte().argsort(stable=True)[:alive]  # nobody has come back to life since
            active_A, token_A, ended_A = active_A[kept], token_A[kept], ended_A[kept]
            rows.keep(kept)
    ids_BT, nats_B = to_host(written_BT), to_host(nll_B)

    def answers() -> Written:
        ids = [[token for token in row if token >= 0] for row in ids_BT().tolist()]
        return Written(ids, nats_B().tolist() if tells_nll else None)

    return answers


class _Rows:
    """What the decoder keeps of the rows that have not ended: keys and values of its own tokens, and of the source."""

    def __init__(self, model, source: Source, most_tokens: int):
        self.model, self.source, self.length = model, source, 0
        blocks = [block.layer for block in model.decoder.block]
        self.own = [None] * len(blocks)
        self.kept = [keys_and_values(cross.EncDecAttention, source) for _, cross, _ in blocks]
        self.biases = [
            bias_by_distance(own.SelfAttention, most_tokens) if own.SelfAttention.has_relative_attention_bias else None
            for own, _, _ in blocks
        ]

    def read(self, token_A) -> torch.Tensor:
        """One token more in every row: what the output layer takes (A, D)."""
        self.length += 1
        x_A1D = self.model.decoder.embed_tokens(token_A[:, None])
        for i, block in enumerate(self.model.decoder.block):
            own, cross, feed_forward = block.layer
            if self.biases[i] is not None:  # T5's other layers share the first one's
                bias_1H1T = self.biases[i][:, : self.length].flip(-1)[None, :, None]
            query, key, value = projected(own.SelfAttention, own.layer_norm(x_A1D), "q", "k", "v")
            before = self.own[i]
            self.own[i] = [key, value] if before is None else [torch.cat(p, 2) for p in zip(before, (key, value))]
            bias = bias_1H1T.expand(len(x_A1D), -1, -1, -1)
            x_A1D = x_A1D + attended(own.SelfAttention, query, *self.own[i], bias)
            attention = cross.EncDecAttention
            x_A1D = x_A1D + cross_attention(attention, cross.layer_norm(x_A1D), self.source, self.kept[i])
            x_A1D = feed_forward(x_A1D)
        return final_states(self.model, x_A1D)[:, 0]

    def keep(self, left_A) -> None:
        """Forgets all rows but these."""
        self.source = self.source.rows(left_A)
        self.own = [[part[left_A] for part in pair] for pair in self.own]
        self.kept = [None if pair is None else [part[left_A] for part in pair] for pair in self.kept]
