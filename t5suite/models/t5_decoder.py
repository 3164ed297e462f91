"""The parts of transformers' own T5 decoder, called one by one: for a tree of candidates, or for greedy answers.

    >>> takes_apart(model)                                            # a T5, mT5 or umT5 as it came, in one piece
    True
    >>> begin_writing(model, hidden_BSD, mask_BS, start=0, eos=1, most_tokens=4)()
    Written(ids=[[1465, 1], [2841, 1]], nll=[0.11, 0.02])

Writes what transformers' `generate` writes without beams, sampling or processors. A row that has ended is worked on no
longer, as soon as that is seen: a GPU works behind the host, and every look at a value makes the host wait, so that
copies go by pinned memory, and counts come a few steps late.

Cross-attention often has few queries here for many keys (source tokens). Where that is less work, queries are taken
into the space of the encoder's states instead of all states into the space of keys and values: with weights K and V,
(x Q) (h K)' = (x Q K') h' and a (h V) = (a h) V. The same numbers but for rounding.

Shapes: B rows, A rows that have not ended, N tokens that the decoder reads, S source tokens,
D model width, H heads, K width of a head.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from t5suite.models.attention import stock_class
from t5suite.models.families import plain

# How many looks a GPU may be behind: by then it has most often come that far, and nobody waits.
LAG = 2


def to_device(tensor: torch.Tensor, device) -> torch.Tensor:
    """The tensor on a device; what follows there finds it complete."""
    device = torch.device(device)
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begins to copy a tensor to the host; what it returns waits for that copy and gives it."""
    if tensor.device.type != "cuda":
        return lambda: tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def wait() -> torch.Tensor:
        event.synchronize()
        return copy

    return wait


class LateCounts:
    """A number that changes at every step, told a few steps late where the device works behind.

    >>> numbers = LateCounts(torch.device("cpu"))                     # here at once
    >>> numbers.look(torch.tensor(7))
    7
    >>> numbers = LateCounts(torch.device("cuda"))
    >>> [numbers.look(count) for count in counts]                      # of counts that are 7, 5, 3, ...
    [None, None, 7, 5, ...]
    """

    def __init__(self, device: torch.device, lag: int | None = None):
        self.lag = (LAG if device.type == "cuda" else 0) if lag is None else lag
        self.coming = deque()

    def look(self, number: torch.Tensor) -> int | None:
        """Hands in this step's number; returns the one of `lag` steps ago, None where there was none."""
        self.coming.append(to_host(number))
        return int(self.coming.popleft()()) if len(self.coming) > self.lag else None


def takes_apart(model) -> bool:
    """Whether a model's decoder is transformers' own T5, mT5 or umT5, whole in this process, in a dtype that is wide
    enough (float16 needs T5's clamps), and without learned prompts in front of what it reads."""
    inner = plain(model)
    if not is_stock(inner, STOCK_ATTENTION) or model.dtype == torch.float16:
        return False
    layers = [layer for b in inner.decoder.block for layer in (b.layer[0].SelfAttention, b.layer[1].EncDecAttention)]
    stock = all(is_stock(layer, STOCK_ATTENTION.values()) for layer in layers)
    adapters = getattr(model, "peft_config", None) or {}
    return stock and not any(config.is_prompt_learning for config in adapters.values()) and not in_pieces(model)


def is_stock(module, names) -> bool:
    """Whether a module is transformers' own of one of these names, or the suite's quick form of it."""
    known = stock_class(module)
    return known.__name__ in names and known.__module__.startswith("transformers.models.")


def in_pieces(model) -> bool:
    """Whether weights lie on several ranks, or on no device yet, and are put together by the whole model alone."""
    return any(p.numel() == 0 or hasattr(p, "ds_id") or hasattr(p, "placements") for p in model.parameters()) or any(
        type(module).__name__ == "FullyShardedDataParallel" or hasattr(module, "_hf_hook") for module in model.modules()
    )


@dataclass(frozen=True)
class Source:
    """What the encoder said: its states, and who may be seen (bool (B, 1, 1, S); None: everybody).

    Attributes:
      reads: how many tokens the decoder will read of each row, by which the cheaper way to attend is chosen.
    """

    hidden_BSD: torch.Tensor
    mask_B11S: torch.Tensor | None
    reads: int

    @classmethod
    def of(cls, hidden_BSD, mask_BS, reads: int) -> "Source":
        """Of the encoder's states and its mask (1 for a token; None where nothing is padded)."""
        return cls(hidden_BSD, None if mask_BS is None else mask_BS.bool()[:, None, None, :], reads)

    def rows(self, rows_A) -> "Source":
        """Of these rows alone."""
        return Source(self.hidden_BSD[rows_A], None if self.mask_B11S is None else self.mask_B11S[rows_A], self.reads)


def bias_by_distance(attention, longest: int) -> torch.Tensor:
    """T5's bias of a token that stands 0, 1, ... tokens before the one that looks (H, longest)."""
    return attention.compute_bias(longest, longest)[0, :, -1].flip(-1)


def final_states(model, x_BND) -> torch.Tensor:
    """What the output layer takes."""
    x_BND = normed(model.decoder.final_layer_norm, x_BND)
    return x_BND * model.config.d_model**-0.5 if SCALED[type(model).__name__](model.config) else x_BND


def projected(attention, x_BND, *names: str) -> list[torch.Tensor]:
    """Queries, keys, values ("q", "k", "v") by head (B, H, N, K)."""
    shape = attention.n_heads, attention.key_value_proj_dim
    return [getattr(attention, name)(x_BND).unflatten(-1, shape).transpose(1, 2) for name in names]


def attended(attention, query_BHNK, key_BHSK, value_BHSK, bias) -> torch.Tensor:
    """Attention with T5's bias, or a mask, without scaling; as the block adds it (B, N, D)."""
    if bias is not None and bias.dtype != torch.bool:
        bias = bias.to(query_BHNK.dtype)
    found = F.scaled_dot_product_attention(query_BHNK, key_BHSK, value_BHSK, attn_mask=bias, scale=1.0)
    return attention.o(found.transpose(1, 2).flatten(2))


def keys_and_values(attention, source: Source) -> list[torch.Tensor] | None:
    """Of cross-attention; None where attending to the states themselves is less work."""
    return None if _absorbs(attention, source) else projected(attention, source.hidden_BSD, "k", "v")


def cross_attention(attention, x_BND, source: Source, kept=None) -> torch.Tensor:
    """Attention to the source; `kept` is what `keys_and_values` said."""
    (query_BHNK,) = projected(attention, x_BND, "q")
    if kept is None:
        return _absorbed_attention(attention, query_BHNK, source)
    return attended(attention, query_BHNK, *kept, source.mask_B11S)


def _absorbs(attention, source: Source) -> bool:
    """Whether taking queries to the states is less work than taking states to keys and values; plain weights only."""
    weights = all(map(is_plain_linear, (attention.k, attention.v)))
    num_source = source.hidden_BSD.shape[1]
    by_query = source.reads * (attention.inner_dim + attention.n_heads * num_source)
    by_state = num_source * attention.inner_dim + source.reads * num_source * attention.inner_dim / attention.d_model
    return weights and by_query < by_state


def is_plain_linear(part) -> bool:
    """Whether a module is a product with its weights and nothing else, so that these may be used without it."""
    return type(part) is nn.Linear and part.bias is None and bare(part)


def bare(part) -> bool:
    """Whether nothing is hooked into a module's forward pass but what transformers and the suite hook in themselves:
    the former's write states down for who asks for them."""
    hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    return all((getattr(hook, "__module__", None) or "").startswith(("transformers.", "t5suite.")) for hook in hooks)


def normed(norm, x: torch.Tensor) -> torch.Tensor:
    """T5's layer norm, in one operation where that rounds as the module does."""
    if type(norm).__name__ in NORMS and x.dtype == norm.weight.dtype == torch.float32:
        return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
    return norm(x)


def _absorbed_attention(attention, query_BHNK, source: Source) -> torch.Tensor:
    """Attention whose keys and values are the states themselves. Weights are never copied for each row: heads go in
    front of rows where they meet weights, and behind where they meet states."""
    hidden_BSD = source.hidden_BSD.to(query_BHNK.dtype)
    num_rows, num_heads, num_nodes, width = query_BHNK.shape
    key_HKD, value_HKD = (
        part.weight.view(num_heads, width, -1).to(query_BHNK.dtype) for part in (attention.k, attention.v)
    )
    query_HXK = query_BHNK.transpose(0, 1).flatten(1, 2)
    query_BHND = torch.bmm(query_HXK, key_HKD).unflatten(1, (num_rows, num_nodes)).transpose(0, 1)
    scores_BYS = torch.bmm(query_BHND.flatten(1, 2), hidden_BSD.transpose(1, 2)).float()
    if source.mask_B11S is not None:
        scores_BYS = scores_BYS.masked_fill(~source.mask_B11S[:, 0], -torch.inf)
    context_BYD = torch.bmm(scores_BYS.softmax(-1).to(hidden_BSD.dtype), hidden_BSD)
    context_HXD = context_BYD.unflatten(1, (num_heads, num_nodes)).transpose(0, 1).flatten(1, 2)
    found_HBNK = torch.bmm(context_HXD, value_HKD.transpose(1, 2)).unflatten(1, (num_rows, num_nodes))
    return attention.o(found_HBNK.permute(1, 2, 0, 3).flatten(2))


def chunks_of_logits(states: torch.Tensor, vocab_size: int):
    """Slices of the states' rows whose logits are kept at once; the rest of a row's shape counts."""
    most = LOGITS_AT_ONCE.get(states.device.type, LOGITS_AT_ONCE["cuda"])
    each = max(1, most // (states[0].numel() // states.shape[-1] * vocab_size)) if len(states) else 1
    return (slice(start, start + each) for start in range(0, len(states), each))


def likeliest(model, states_AD, tells_nll: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The likeliest token behind each state, and its nats (A) if they are asked for: a fifth more work."""
    tokens, nll = [], []
    for chunk in chunks_of_logits(states_AD, model.config.vocab_size):
        logits_CV = model.lm_head(states_AD[chunk]).float()
        best_C = largest(logits_CV)[:, None]
        tokens.append(best_C[:, 0])
        if tells_nll:
            nll.append(logits_CV.logsumexp(-1) - logits_CV.gather(1, best_C)[:, 0])
    return torch.cat(tokens), torch.cat(nll) if tells_nll else None


def largest(logits_CV) -> torch.Tensor:
    """The place of each row's largest number, the first of equals. torch 2.13's own takes 13 times as long on a CPU,
    for it has no vector instructions there: 3.6 ms beside 15 ms of making 128 rows of logits."""
    if logits_CV.device.type != "cpu" or logits_CV.requires_grad:
        return logits_CV.argmax(-1)
    return torch.from_numpy(np.asarray(logits_CV.numpy().argmax(-1)))


# Elements of logits that are kept at once: on a CPU as many as stay in its caches.
LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**28}
# transformers' models, and the attention in them; by name, so that none is imported that is not there.
STOCK_ATTENTION = {
    "T5ForConditionalGeneration": "T5Attention",
    "MT5ForConditionalGeneration": "MT5Attention",
    "UMT5ForConditionalGeneration": "UMT5Attention",
}
NORMS = ("T5LayerNorm", "MT5LayerNorm", "UMT5LayerNorm")
# Whether the decoder's states are scaled before the output layer (transformers 5.23).
SCALED = {
    "T5ForConditionalGeneration": lambda config: config.scale_decoder_outputs,
    "MT5ForConditionalGeneration": lambda config: False,
    "UMT5ForConditionalGeneration": lambda config: config.tie_word_embeddings,
}


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


def begin_writing(
    model, hidden_BSD, mask_BS, start: int, eos: int, most_tokens: int, tells_nll=True, lag: int | None = None
) -> Callable[[], Written]:
    """The likeliest token, and the likeliest behind that, until end-of-sequence or so many tokens. What it returns
    waits for the answers, which a GPU may still be writing meanwhile.

    Args:
      hidden_BSD, mask_BS: the encoder's states, and 1 for a token (None: nothing is padded).
      tells_nll: whether somebody wants to know how likely they are.
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
