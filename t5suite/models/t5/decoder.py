"""The parts of transformers' own T5 decoder, called one by one: for a tree of candidates, or for greedy answers.

    >>> takes_apart(model)                                            # a T5, mT5 or umT5 as it came, in one piece
    True
    >>> write_greedily(model, hidden_BSD, mask_BS, start=0, eos=1, most_tokens=4)
    ([[1465, 1], [2841, 1]], [0.11, 0.02])
    >>> tree = tree_of(((3, 7, 1), (3, 9, 1), (4, 1)))                 # candidates as ids, end-of-sequence last
    >>> tree.tokens, tree.depths                                       # the nodes: -, 3, 3 7, 3 9, 4
    ([-1, 3, 7, 9, 4], [0, 1, 2, 2, 1])

Greedy answers equal those of transformers' `generate` without beams, sampling or processors; finished rows are
dropped. In a tree, a node is what the decoder has read, the start token first; an edge is a token that it may write
next. A candidate's probability is the product of its edges'. MNLI's three labels have eight tokens, but five or six
nodes; the 26 numbers of STS-B about a hundred, but under forty.

Shapes: B rows, A rows that have not ended, N tokens that the decoder reads or nodes, E edges, C candidates, L tokens
of the longest one, S source tokens, D model width, H heads, K width of a head.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from transformers import UMT5Config

from t5suite.models.classes import bare_model
from t5suite.models.t5.attention import stock_class


def takes_apart(model) -> bool:
    """Whether a model's decoder is transformers' own T5, mT5 or umT5, whole in this process, in a dtype that is wide
    enough (float16 needs T5's clamps), and without learned prompts before its input."""
    inner = bare_model(model)
    if not is_stock(inner, STOCK_ATTENTION) or model.dtype == torch.float16:
        return False
    layers = [layer for b in inner.decoder.block for layer in (b.layer[0].SelfAttention, b.layer[1].EncDecAttention)]
    stock = all(is_stock(layer, STOCK_ATTENTION.values()) for layer in layers)
    adapters = getattr(model, "peft_config", None) or {}
    prompted = any(config.is_prompt_learning for config in adapters.values())
    hooked = any(hasattr(module, "_hf_hook") for module in model.modules())  # offloaded weights, fetched on use
    return stock and not prompted and not hooked and not holds_parts(model)


def is_stock(module, names) -> bool:
    """Whether a module is of a transformers class with one of these names, or the suite's quick form of it."""
    known = stock_class(module)
    return known.__name__ in names and known.__module__.startswith("transformers.models.")


def holds_parts(model) -> bool:
    """Whether a rank has only a part of the weights (FSDP, ZeRO-3), so that ranks may differ."""
    return any(p.numel() == 0 or hasattr(p, "ds_id") or hasattr(p, "placements") for p in model.parameters()) or any(
        type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()
    )


def bias_by_distance(attention, longest: int) -> torch.Tensor:
    """T5's bias for a key that is 0, 1, ... tokens before the query (H, longest)."""
    return attention.compute_bias(longest, longest)[0, :, -1].flip(-1)


def final_states(model, x_BND) -> torch.Tensor:
    """The input of the output layer."""
    return scaled_for_output(model, model.decoder.final_layer_norm(x_BND))


def scaled_for_output(model, states: torch.Tensor) -> torch.Tensor:
    """The decoder's last states as the output layer reads them."""
    return states * model.config.d_model**-0.5 if scales_outputs(model) else states


def scales_outputs(model) -> bool:
    """Whether a T5, mT5 or umT5 scales the decoder's last states before the output layer."""
    field = SCALE_FIELDS[type(model).__name__]
    return field is not None and bool(getattr(model.config, field))


def projected(attention, x_BND, *names: str) -> list[torch.Tensor]:
    """Queries, keys, values ("q", "k", "v") by head (B, H, N, K)."""
    shape = attention.n_heads, attention.key_value_proj_dim
    return [getattr(attention, name)(x_BND).unflatten(-1, shape).transpose(1, 2) for name in names]


def attended(attention, query_BHNK, key_BHSK, value_BHSK, bias) -> torch.Tensor:
    """Attention with T5's bias, or a mask, without scaling; the block adds the result (B, N, D)."""
    if bias is not None and bias.dtype != torch.bool:
        bias = bias.to(query_BHNK.dtype)
    found = F.scaled_dot_product_attention(query_BHNK, key_BHSK, value_BHSK, attn_mask=bias, scale=1.0)
    return attention.o(found.transpose(1, 2).flatten(2))


def chunks_of_logits(states: torch.Tensor, vocab_size: int):
    """Slices of the states' rows whose logits are kept at once; a row may have several positions."""
    most = LOGITS_AT_ONCE.get(states.device.type, LOGITS_AT_ONCE["cuda"])
    each = max(1, most // (states[0].numel() // states.shape[-1] * vocab_size)) if len(states) else 1
    return (slice(start, start + each) for start in range(0, len(states), each))


def _likeliest(model, states_AD, wants_nll: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The likeliest token after each state, and, if requested, its nats (A), which add a fifth to the work."""
    tokens, nll = [], []
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


# Elements of logits that are kept at once: on a CPU as many as fit in its caches.
LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**28}
# transformers' models, and the attention in them; by name, so that no missing class is imported.
STOCK_ATTENTION = {
    "T5ForConditionalGeneration": "T5Attention",
    "MT5ForConditionalGeneration": "MT5Attention",
    "UMT5ForConditionalGeneration": "UMT5Attention",
}
# The field of the configuration by which a model scales the decoder's states before the output layer, if it does.
SCALE_FIELDS = {
    "T5ForConditionalGeneration": "scale_decoder_outputs",
    "MT5ForConditionalGeneration": None,
    # transformers 5.23 reads whether the matrices are tied; from 5.24 on the configuration has a field of its own.
    "UMT5ForConditionalGeneration": (
        "scale_decoder_outputs" if hasattr(UMT5Config(), "scale_decoder_outputs") else "tie_word_embeddings"
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# Greedy answers


def write_greedily(
    model, hidden_BSD, mask_BS, start: int, eos: int, most_tokens: int, wants_nll: bool = True
) -> tuple[list[list[int]], list[float] | None]:
    """`(ids, nll)` by row: the likeliest token at each step until end-of-sequence, and the nats of these tokens.

    Args:
      hidden_BSD, mask_BS: the encoder's states, and 1 for a token (None: nothing is padded).
    """
    model, device, num_rows = bare_model(model), hidden_BSD.device, len(hidden_BSD)
    written_BT = torch.full((num_rows, most_tokens), -1, device=device)
    nll_B = torch.zeros(num_rows, device=device)
    active_A = torch.arange(num_rows, device=device)
    token_A = torch.full((num_rows,), start, device=device)
    rows = _Rows(model, hidden_BSD, mask_BS, most_tokens)
    for step in range(most_tokens):
        token_A, nll_A = _likeliest(model, rows.read(token_A), wants_nll)
        written_BT[active_A, step] = token_A
        if wants_nll:
            nll_B[active_A] += nll_A
        left_A = token_A.ne(eos).nonzero()[:, 0]
        if not len(left_A):
            break
        if len(left_A) < len(active_A):
            active_A, token_A = active_A[left_A], token_A[left_A]
            rows.keep(left_A)
    ids = [[token for token in row if token >= 0] for row in written_BT.tolist()]
    return ids, nll_B.tolist() if wants_nll else None


class _Rows:
    """The decoder's cache for unfinished rows: keys and values of its own tokens, and of the source."""

    def __init__(self, model, hidden_BSD, mask_BS, most_tokens: int):
        self.model, self.length = model, 0
        self.mask_B11S = None if mask_BS is None else mask_BS.bool()[:, None, None, :]
        blocks = [block.layer for block in model.decoder.block]
        self.own = [None] * len(blocks)
        self.kept = [projected(cross.EncDecAttention, hidden_BSD, "k", "v") for _, cross, _ in blocks]
        self.biases = [
            bias_by_distance(own.SelfAttention, most_tokens) if own.SelfAttention.has_relative_attention_bias else None
            for own, _, _ in blocks
        ]

    def read(self, token_A) -> torch.Tensor:
        """Reads one more token in every row; returns the input of the output layer (A, D)."""
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
            (query,) = projected(cross.EncDecAttention, cross.layer_norm(x_A1D), "q")
            x_A1D = x_A1D + attended(cross.EncDecAttention, query, *self.kept[i], self.mask_B11S)
            x_A1D = feed_forward(x_A1D)
        return final_states(self.model, x_A1D)[:, 0]

    def keep(self, left_A) -> None:
        """Drops all rows but these."""
        self.mask_B11S = None if self.mask_B11S is None else self.mask_B11S[left_A]
        self.own = [[part[left_A] for part in pair] for pair in self.own]
        self.kept = [[part[left_A] for part in pair] for pair in self.kept]


# ---------------------------------------------------------------------------------------------------------------------
# Candidates as a tree

START = -1  # the root reads the decoder's start token, which the model names
# A tree with more nodes than this is read candidate by candidate: attention between nodes is quadratic.
MOST_NODES = 1024
# Pairs of node and source token that are attended at once.
ATTENDED_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class CandidateTree:
    """The prefixes of one row's candidates.

    Attributes:
      tokens: [N] the token that a node has read last; START at the root, which is node 0.
      depths: [N] how many tokens it has read after the start token.
      sees: (N, N) bool; a node's row marks itself and its ancestors.
      edge_nodes, edge_tokens: [E] a node, and a token that may follow.
      paths: (C, L) the edges of each candidate, padded with E.
    """

    tokens: list[int]
    depths: list[int]
    sees: np.ndarray
    edge_nodes: list[int]
    edge_tokens: list[int]
    paths: np.ndarray


@lru_cache(4096)
def tree_of(candidates: tuple[tuple[int, ...], ...]) -> CandidateTree:
    """The tree of a row's candidates; rows that have the same ones share it."""
    nodes, tokens, parents = {(): 0}, [START], [0]
    edges, paths = {}, []
    for candidate in candidates:
        path = []
        for place, token in enumerate(candidate):
            node = nodes[candidate[:place]]
            path.append(edges.setdefault((node, token), len(edges)))
            beginning = candidate[: place + 1]
            if beginning not in nodes and len(beginning) < len(candidate):
                nodes[beginning] = len(tokens)
                tokens.append(token)
                parents.append(node)
        paths.append(path)
    longest = max(map(len, paths), default=0)
    filled = [[*path, *[len(edges)] * (longest - len(path))] for path in paths]
    sees = np.eye(len(tokens), dtype=bool)
    for node, parent in enumerate(parents[1:], start=1):  # parents come before their children
        sees[node] |= sees[parent]
    return CandidateTree(
        tokens=tokens,
        depths=[len(beginning) for beginning in nodes],
        sees=sees,
        edge_nodes=[node for node, _ in edges],
        edge_tokens=[token for _, token in edges],
        paths=np.array(filled, dtype=np.int64).reshape(len(paths), longest),
    )


def candidate_log_probs(model, trees: list[CandidateTree], hidden_BSD, mask_BS, start: int, pad: int) -> list:
    """`[B][C]` log-probabilities of each row's candidates; equal candidates have bit-identical ones.

    A node sees itself and its ancestors, at distances computed from their depths, so that it is computed as if its
    prefix were read alone. Rows are read in chunks where trees or sources are long.

    Args:
      hidden_BSD, mask_BS: as in `write_greedily`.
      start, pad: the decoder's start token, and the token that padding nodes read.
    """
    model, found = bare_model(model), []
    num_nodes = max(len(tree.tokens) for tree in trees)
    each = max(1, ATTENDED_AT_ONCE // (num_nodes * hidden_BSD.shape[1]))
    for first in range(0, len(trees), each):
        chunk = slice(first, first + each)
        mask_B11S = None if mask_BS is None else mask_BS[chunk].bool()[:, None, None, :]
        edges_BE = _edge_log_probs(model, trees[chunk], hidden_BSD[chunk], mask_B11S, start, pad)
        edges_BE = edges_BE.double().cpu().numpy()
        for tree, edges_E in zip(trees[chunk], edges_BE, strict=True):
            found.append(np.append(edges_E[: len(tree.edge_nodes)], 0.0)[tree.paths].sum(-1).tolist())
    return found


def _edge_log_probs(model, trees, hidden_BSD, mask_B11S, start: int, pad: int) -> torch.Tensor:
    """(B, E), float32: the log-probability of each edge's token after its node."""
    rows, device, decoder = len(trees), hidden_BSD.device, model.decoder
    trees = trees[:1] if all(tree is trees[0] for tree in trees) else trees

    def filled(name: str, fill: int) -> torch.Tensor:
        lists = [getattr(tree, name) for tree in trees]
        width = max(map(len, lists))
        return torch.tensor(
            [[*values, *[fill] * (width - len(values))] for values in lists], dtype=torch.long, device=device
        )

    tokens_BN, depths_BN = filled("tokens", pad), filled("depths", 0)
    tokens_BN[:, 0] = start
    num_nodes = tokens_BN.shape[1]
    sees_BNN = np.tile(np.eye(num_nodes, dtype=bool), (len(trees), 1, 1))  # padding nodes see only themselves
    for sees_NN, tree in zip(sees_BNN, trees, strict=True):
        sees_NN[: len(tree.tokens), : len(tree.tokens)] = tree.sees
    hidden_B1NN = ~torch.from_numpy(sees_BNN).to(device)[:, None]
    distances_BNN = (depths_BN[:, :, None] - depths_BN[:, None, :]).clamp(min=0)
    longest = max(max(tree.depths) for tree in trees) + 1
    x_BND = decoder.embed_tokens(tokens_BN).expand(rows, -1, -1)
    for block in decoder.block:
        own, cross, feed_forward = block.layer
        if own.SelfAttention.has_relative_attention_bias:  # umT5 has one per layer, T5 one for all
            by_distance_HL = bias_by_distance(own.SelfAttention, longest)
            bias_BHNN = by_distance_HL[:, distances_BNN].transpose(0, 1).masked_fill(hidden_B1NN, -torch.inf)
            bias_BHNN = bias_BHNN.expand(rows, -1, -1, -1)
        query, key, value = projected(own.SelfAttention, own.layer_norm(x_BND), "q", "k", "v")
        x_BND = x_BND + attended(own.SelfAttention, query, key, value, bias_BHNN)
        (query,) = projected(cross.EncDecAttention, cross.layer_norm(x_BND), "q")
        key, value = projected(cross.EncDecAttention, hidden_BSD, "k", "v")
        x_BND = x_BND + attended(cross.EncDecAttention, query, key, value, mask_B11S)
        x_BND = feed_forward(x_BND)
    states_BND = final_states(model, x_BND)
    nodes_BE, labels_BE = (filled(name, 0).expand(rows, -1) for name in ("edge_nodes", "edge_tokens"))
    found = []
    for chunk in chunks_of_logits(states_BND, model.config.vocab_size):
        # log_softmax takes half of logsumexp's time on a CPU
        log_probs_CNV = model.lm_head(states_BND[chunk]).float().log_softmax(-1)
        places_CE = nodes_BE[chunk] * log_probs_CNV.shape[-1] + labels_BE[chunk]
        found.append(log_probs_CNV.flatten(1).gather(1, places_CE))
    return torch.cat(found)
