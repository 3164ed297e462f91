"""T5's decoder over a tree of candidates: all that a row may answer is read in one row of the decoder.

    >>> reading = read_tree(model, batch_of([tree] * 64, start=0, pad=0), hidden_BSD, mask_BS)
    >>> reading.edge_log_probs().shape                                # (B, E): one number an edge
    (64, 7)
    >>> reading.walk(eos=1, steps=4)                                  # what greedy decoding writes
    Walk(ids=[[3, 7, 1], None, ...], nll=[0.02, nan, ...])

A node sees itself and the nodes on its way from the root, and knows their distances by depth, so that it is computed
as if its beginning stood alone. Rows share the encoder's states; each candidate's beginning is read once, however many
candidates begin so. The output layer is asked for the nodes that count, a chunk at a time, and of its logits only the
sums (log-sum-exp) and the picked ones are kept.

Cross-attention has few queries here (nodes) for many keys (source tokens). Where that is less work, queries are taken
into the space of the encoder's states instead of all states into the space of keys and values: with weights K and V,
(x Q) (h K)' = (x Q K') h' and a (h V) = (a h) V. The same numbers but for rounding.

Shapes: B rows, N nodes, E edges, S source tokens, D model width, H heads, K width of a head, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from t5suite.models.cached_prompts import plain
from t5suite.models.candidate_trees import TreeBatch

# A tree with more nodes than this is read candidate by candidate: nodes see each other in a square.
MOST_NODES = 1024
# Pairs of node and source token that are attended at once, and elements of logits that are kept at once.
ATTENDED_AT_ONCE = 2**22
LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**28}


def reads_trees(model) -> bool:
    """Whether a model's decoder is transformers' own T5, mT5 or umT5, whole in this process, in a dtype that is wide
    enough (float16 needs T5's clamps), and without learned prompts in front of what it reads."""
    inner = plain(model)
    if not _is_stock(inner, DECODERS) or model.dtype == torch.float16:
        return False
    layers = [layer for b in inner.decoder.block for layer in (b.layer[0].SelfAttention, b.layer[1].EncDecAttention)]
    stock = all(_is_stock(layer, DECODERS.values()) for layer in layers)
    adapters = getattr(model, "peft_config", None) or {}
    return stock and not any(config.is_prompt_learning for config in adapters.values()) and not _in_pieces(model)


def _is_stock(module, names) -> bool:
    return type(module).__name__ in names and type(module).__module__.startswith("transformers.models.")


def _in_pieces(model) -> bool:
    """Whether weights lie on several ranks, or on no device yet, and are put together by the whole model alone."""
    return any(p.numel() == 0 or hasattr(p, "ds_id") or hasattr(p, "placements") for p in model.parameters()) or any(
        type(module).__name__ == "FullyShardedDataParallel" or hasattr(module, "_hf_hook") for module in model.modules()
    )


class Walk(NamedTuple):
    """What greedy decoding writes, where it stays in the tree.

    Attributes:
      ids: by row, the tokens with end-of-sequence; None where another token was likelier than the tree's.
      nll: by row, the nats of those tokens; not a number where there are none.
    """

    ids: list[list[int] | None]
    nll: list[float]


@dataclass(frozen=True)
class TreeReading:
    """The decoder's last states of every node, ready for the output layer (B, N, D)."""

    model: object
    batch: TreeBatch
    states_BND: torch.Tensor

    def edge_log_probs(self) -> torch.Tensor:
        """(B, E) on the device, float32: the log-probability of each edge's token behind its node."""
        device, rows = self.states_BND.device, len(self.states_BND)
        nodes_BE = torch.from_numpy(self.batch.edge_nodes).to(device).expand(rows, -1)
        tokens_BE = torch.from_numpy(self.batch.edge_tokens).to(device).clamp(min=0).expand(rows, -1)
        num_nodes = self.states_BND.shape[1]
        found = []
        for chunk in self._chunks(rows, num_nodes):
            logits_CNV = self._logits(self.states_BND[chunk])
            sums_CN = logits_CNV.logsumexp(-1)
            places_CE = nodes_BE[chunk] * logits_CNV.shape[-1] + tokens_BE[chunk]
            found.append(logits_CNV.flatten(1).gather(1, places_CE) - sums_CN.gather(1, nodes_BE[chunk]))
        return torch.cat(found)

    def walk(self, eos: int, steps: int) -> Walk:
        """What greedy decoding writes in at most so many tokens: the likeliest token of each node, while it is an edge.

        Every tree must end with end-of-sequence (`CandidateTree.ends_with`).
        """
        device, rows = self.states_BND.device, len(self.states_BND)
        edges = [torch.from_numpy(getattr(self.batch, f"edge_{name}")).to(device) for name in EDGES]
        nodes_BE, tokens_BE, targets_BE = (values.expand(rows, -1) for values in edges)
        active = torch.arange(rows, device=device)
        node = torch.zeros(rows, dtype=torch.long, device=device)
        nll_B = torch.zeros(rows, device=device)
        ended_B = torch.zeros(rows, dtype=torch.bool, device=device)
        written_BT = torch.full((rows, steps), -1, device=device)
        for step in range(steps):
            token, nll = self._likeliest(active, node)
            is_next_AE = (nodes_BE[active] == node[:, None]) & (tokens_BE[active] == token[:, None])
            target = (targets_BE[active] * is_next_AE).sum(1)  # a node has one edge of a token at most
            written_BT[active, step] = token
            nll_B[active] += nll
            ends = is_next_AE.any(1) & (token == eos)
            ended_B[active] |= ends
            goes_on = is_next_AE.any(1) & ~ends
            active, node = active[goes_on], target[goes_on]
            if not len(active):
                break
        written = [[token for token in row if token >= 0] for row in written_BT.tolist()]
        ended = ended_B.tolist()
        return Walk(
            [ids if whole else None for ids, whole in zip(written, ended, strict=True)],
            [value if whole else math.nan for value, whole in zip(nll_B.tolist(), ended, strict=True)],
        )

    def _likeliest(self, rows_A, nodes_A) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest token behind a node of each row, and its nats."""
        states_AD = self.states_BND[rows_A, nodes_A]
        tokens, nll = [], []
        for chunk in self._chunks(len(states_AD), 1):
            logits_CV = self._logits(states_AD[chunk])
            best_C = logits_CV.argmax(-1, keepdim=True)
            tokens.append(best_C[:, 0])
            nll.append(logits_CV.logsumexp(-1) - logits_CV.gather(1, best_C)[:, 0])
        return torch.cat(tokens), torch.cat(nll)

    def _logits(self, states) -> torch.Tensor:
        return plain(self.model).lm_head(states).float()

    def _chunks(self, rows: int, nodes: int):
        """Slices of rows whose logits are kept at once."""
        most = LOGITS_AT_ONCE.get(self.states_BND.device.type, LOGITS_AT_ONCE["cuda"])
        each = max(1, most // (nodes * plain(self.model).config.vocab_size))
        return (slice(start, start + each) for start in range(0, rows, each))


def read_tree(model, batch: TreeBatch, hidden_BSD, mask_BS) -> TreeReading:
    """The decoder over the batch's trees, in which rows see the encoder's states of theirs (`mask_BS`: 1 for a token).

    Rows are read in chunks where trees or sources are long.
    """
    rows, num_source = mask_BS.shape
    each = max(1, ATTENDED_AT_ONCE // (batch.num_nodes * num_source))
    chunks = [slice(start, start + each) for start in range(0, rows, each)]
    shared = len(batch.tokens) == 1
    states = [
        _decoder_states(plain(model), batch, slice(0, 1) if shared else chunk, hidden_BSD[chunk], mask_BS[chunk])
        for chunk in chunks
    ]
    return TreeReading(model, batch, torch.cat(states) if len(states) > 1 else states[0])


def _decoder_states(model, batch: TreeBatch, of_tree: slice, hidden_BSD, mask_BS) -> torch.Tensor:
    decoder, device = model.decoder, hidden_BSD.device
    tokens_BN, depths_BN, sees_BNN = (
        torch.from_numpy(values[of_tree]).to(device) for values in (batch.tokens, batch.depths, batch.sees)
    )
    x_BND = decoder.embed_tokens(tokens_BN).expand(len(hidden_BSD), -1, -1)
    distances_BNN = (depths_BN[:, :, None] - depths_BN[:, None, :]).clamp(min=0)
    cross_B11S = None if bool(mask_BS.all()) else mask_BS.bool()[:, None, None, :]
    bias_BHNN = None
    for block in decoder.block:
        own, cross, feed_forward = block.layer
        if own.SelfAttention.has_relative_attention_bias:
            bias_BHNN = _distance_bias(own.SelfAttention, distances_BNN, sees_BNN)
        x_BND = x_BND + _own_attention(own.SelfAttention, own.layer_norm(x_BND), bias_BHNN)
        x_BND = x_BND + _cross_attention(cross.EncDecAttention, cross.layer_norm(x_BND), hidden_BSD, cross_B11S)
        x_BND = feed_forward(x_BND)
    x_BND = decoder.final_layer_norm(x_BND)
    return x_BND * model.config.d_model**-0.5 if SCALED[type(model).__name__](model.config) else x_BND


def _distance_bias(attention, distances_BNN, sees_BNN) -> torch.Tensor:
    """T5's bias of each distance, and minus infinity for nodes that are not on the way (B, H, N, N)."""
    longest = int(distances_BNN.max()) + 1
    by_distance_HL = attention.compute_bias(longest, longest, device=distances_BNN.device)[0, :, -1].flip(-1)
    bias_BHNN = by_distance_HL[:, distances_BNN].transpose(0, 1)
    return bias_BHNN.masked_fill(~sees_BNN[:, None], -torch.inf)


def _own_attention(attention, x_BND, bias_BHNN) -> torch.Tensor:
    query, key, value = (_heads(attention, project(x_BND)) for project in (attention.q, attention.k, attention.v))
    bias = bias_BHNN.to(query.dtype).expand(len(query), -1, -1, -1)
    return _joined(attention, F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0))


def _cross_attention(attention, x_BND, hidden_BSD, mask_B11S) -> torch.Tensor:
    query_BHNK = _heads(attention, attention.q(x_BND))
    num_nodes, num_source = x_BND.shape[1], hidden_BSD.shape[1]
    if _absorbs(attention, num_nodes, num_source):
        return _absorbed_attention(attention, query_BHNK, hidden_BSD, mask_B11S)
    key, value = (_heads(attention, project(hidden_BSD)) for project in (attention.k, attention.v))
    return _joined(attention, F.scaled_dot_product_attention(query_BHNK, key, value, attn_mask=mask_B11S, scale=1.0))


def _absorbs(attention, num_nodes: int, num_source: int) -> bool:
    """Whether taking queries to the states is less work than taking states to keys and values; plain weights only."""
    weights = all(type(part) is nn.Linear and not _hooked(part) for part in (attention.k, attention.v))
    by_query = num_nodes * (attention.inner_dim + attention.n_heads * num_source)
    by_state = num_source * attention.inner_dim + num_nodes * num_source * attention.inner_dim / attention.d_model
    return weights and by_query < by_state


def _hooked(part) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks)


def _absorbed_attention(attention, query_BHNK, hidden_BSD, mask_B11S) -> torch.Tensor:
    """Attention whose keys and values are the states themselves."""
    num_rows, num_heads, num_nodes, width = query_BHNK.shape
    key_HKD, value_HKD = (
        part.weight.view(num_heads, width, -1).to(query_BHNK.dtype) for part in (attention.k, attention.v)
    )
    query_BHND = torch.matmul(query_BHNK, key_HKD)
    scores_BXS = torch.matmul(query_BHND.flatten(1, 2), hidden_BSD.to(query_BHND.dtype).transpose(1, 2))
    scores_BHNS = scores_BXS.unflatten(1, (num_heads, num_nodes)).float()
    if mask_B11S is not None:
        scores_BHNS = scores_BHNS.masked_fill(~mask_B11S, -torch.inf)
    shares_BXS = scores_BHNS.softmax(-1).to(hidden_BSD.dtype).flatten(1, 2)
    context_BHND = torch.matmul(shares_BXS, hidden_BSD).unflatten(1, (num_heads, num_nodes))
    return _joined(attention, torch.matmul(context_BHND.to(value_HKD.dtype), value_HKD.transpose(1, 2)))


def _heads(attention, x_BTI) -> torch.Tensor:
    """(B, T, H x K) -> (B, H, T, K)."""
    return x_BTI.unflatten(-1, (attention.n_heads, attention.key_value_proj_dim)).transpose(1, 2)


def _joined(attention, x_BHTK) -> torch.Tensor:
    return attention.o(x_BHTK.transpose(1, 2).flatten(2))


EDGES = ("nodes", "tokens", "targets")
# transformers' models, and the attention in their decoders; by name, so that none is imported that is not there.
DECODERS = {
    "T5ForConditionalGeneration": "T5Attention",
    "MT5ForConditionalGeneration": "MT5Attention",
    "UMT5ForConditionalGeneration": "UMT5Attention",
}
# Whether the decoder's states are scaled before the output layer (transformers 5.23).
SCALED = {
    "T5ForConditionalGeneration": lambda config: config.scale_decoder_outputs,
    "MT5ForConditionalGeneration": lambda config: False,
    "UMT5ForConditionalGeneration": lambda config: config.tie_word_embeddings,
}
