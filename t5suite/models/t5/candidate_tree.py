"""Log-probabilities of a T5's candidates, which the decoder reads together: as a tree of their prefixes.

    >>> tree = make_tree(((3, 7, 1), (3, 9, 1), (4, 1)))                # candidates as ids, end-of-sequence last
    >>> tree.tokens, tree.depths                                       # the nodes: -, 3, 3 7, 3 9, 4
    ([-1, 3, 7, 9, 4], [0, 1, 2, 2, 1])

A node is what the decoder has read, the start token first; an edge is a token that it may write next. A candidate's
probability is the product of its edges'. MNLI's three labels have eight tokens, but five or six nodes; the 26 numbers
of STS-B about a hundred, but under forty.

Shapes: B rows, N nodes, E edges, C candidates, L tokens of the longest one, S source tokens, D model width, H heads,
V vocabulary.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from t5suite.models.classes import bare_model
from t5suite.models.t5.decoder import attended, bias_by_distance, chunks_of_logits, final_states, projected

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
def make_tree(candidates: tuple[tuple[int, ...], ...]) -> CandidateTree:
    """The tree of a row's candidates; rows that have the same ones share it."""
    nodes = {(): 0}  # by prefix
    tokens = [START]
    parents = [0]
    edges = {}  # by node and token
    paths = []
    for candidate in candidates:
        path = []
        for place, token in enumerate(candidate):
            node = nodes[candidate[:place]]
            path.append(edges.setdefault((node, token), len(edges)))
            prefix = candidate[: place + 1]
            if prefix not in nodes and len(prefix) < len(candidate):
                nodes[prefix] = len(tokens)
                tokens.append(token)
                parents.append(node)
        paths.append(path)
    return CandidateTree(
        tokens=tokens,
        depths=[len(prefix) for prefix in nodes],
        sees=_ancestors(parents),
        edge_nodes=[node for node, _ in edges],
        edge_tokens=[token for _, token in edges],
        paths=_padded_paths(paths, len(edges)),
    )


def _ancestors(parents: list[int]) -> np.ndarray:
    """(N, N) bool: a node's row marks itself and its ancestors; parents come before their children."""
    sees_NN = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents[1:], start=1):
        sees_NN[node] |= sees_NN[parent]
    return sees_NN


def _padded_paths(paths: list[list[int]], num_edges: int) -> np.ndarray:
    """(C, L): paths padded to the longest one with the number of edges, which is no edge's."""
    longest = max(map(len, paths), default=0)
    padded = [[*path, *[num_edges] * (longest - len(path))] for path in paths]
    return np.array(padded, dtype=np.int64).reshape(len(paths), longest)


def candidate_log_probs(model, trees: list[CandidateTree], hidden_BSD, mask_BS, start: int, pad: int) -> list:
    """`[B][C]` log-probabilities of each row's candidates; equal candidates have bit-identical ones.

    A node sees itself and its ancestors, at distances computed from their depths, so that it is computed as if its
    prefix were read alone. Rows are read in chunks where trees or sources are long.

    Args:
      hidden_BSD, mask_BS: as in `greedy.write_greedily`.
      start, pad: the decoder's start token, and the token that padding nodes read.
    """
    model = bare_model(model)
    num_nodes = max(len(tree.tokens) for tree in trees)
    rows_at_once = max(1, ATTENDED_AT_ONCE // (num_nodes * hidden_BSD.shape[1]))
    log_probs = []
    for first in range(0, len(trees), rows_at_once):
        chunk = slice(first, first + rows_at_once)
        mask_B11S = None if mask_BS is None else mask_BS[chunk].bool()[:, None, None, :]
        edges_BE = _edge_log_probs(model, trees[chunk], hidden_BSD[chunk], mask_B11S, start, pad)
        edges_BE = edges_BE.double().cpu().numpy()
        for tree, edges_E in zip(trees[chunk], edges_BE, strict=True):
            with_padding = np.append(edges_E[: len(tree.edge_nodes)], 0.0)
            log_probs.append(with_padding[tree.paths].sum(-1).tolist())
    return log_probs


def _edge_log_probs(model, trees, hidden_BSD, mask_B11S, start: int, pad: int) -> torch.Tensor:
    """(B, E), float32: the log-probability of each edge's token after its node."""
    num_rows = len(trees)
    device = hidden_BSD.device
    if all(tree is trees[0] for tree in trees):
        trees = trees[:1]
    states_BND = _node_states(model, trees, hidden_BSD, mask_B11S, start, pad)
    nodes_BE = _padded([tree.edge_nodes for tree in trees], 0, device).expand(num_rows, -1)
    labels_BE = _padded([tree.edge_tokens for tree in trees], 0, device).expand(num_rows, -1)
    log_probs = []
    for chunk in chunks_of_logits(states_BND, model.config.vocab_size):
        # log_softmax takes half of logsumexp's time on a CPU
        log_probs_CNV = model.lm_head(states_BND[chunk]).float().log_softmax(-1)
        places_CE = nodes_BE[chunk] * log_probs_CNV.shape[-1] + labels_BE[chunk]
        log_probs.append(log_probs_CNV.flatten(1).gather(1, places_CE))
    return torch.cat(log_probs)


def _node_states(model, trees, hidden_BSD, mask_B11S, start: int, pad: int) -> torch.Tensor:
    """(B, N, D): the input of the output layer after each node; one tree may stand for all rows."""
    num_rows = len(hidden_BSD)
    device = hidden_BSD.device
    tokens_BN = _padded([tree.tokens for tree in trees], pad, device)
    tokens_BN[:, 0] = start
    depths_BN = _padded([tree.depths for tree in trees], 0, device)
    distances_BNN = (depths_BN[:, :, None] - depths_BN[:, None, :]).clamp(min=0)
    unseen_B1NN = ~torch.from_numpy(_visible_nodes(trees)).to(device)[:, None]
    longest = max(max(tree.depths) for tree in trees) + 1
    x_BND = model.decoder.embed_tokens(tokens_BN).expand(num_rows, -1, -1)
    for block in model.decoder.block:
        self_layer, cross_layer, feed_forward = block.layer
        if self_layer.SelfAttention.has_relative_attention_bias:  # umT5 has one per layer, T5 one for all
            by_distance_HL = bias_by_distance(self_layer.SelfAttention, longest)
            bias_BHNN = by_distance_HL[:, distances_BNN].transpose(0, 1).masked_fill(unseen_B1NN, -torch.inf)
            bias_BHNN = bias_BHNN.expand(num_rows, -1, -1, -1)
        query, key, value = projected(self_layer.SelfAttention, self_layer.layer_norm(x_BND), "q", "k", "v")
        x_BND = x_BND + attended(self_layer.SelfAttention, query, key, value, bias_BHNN)
        (query,) = projected(cross_layer.EncDecAttention, cross_layer.layer_norm(x_BND), "q")
        key, value = projected(cross_layer.EncDecAttention, hidden_BSD, "k", "v")
        x_BND = x_BND + attended(cross_layer.EncDecAttention, query, key, value, mask_B11S)
        x_BND = feed_forward(x_BND)
    return final_states(model, x_BND)


def _visible_nodes(trees: list[CandidateTree]) -> np.ndarray:
    """(B, N, N) bool: the nodes that each node sees; padding nodes see only themselves."""
    num_nodes = max(len(tree.tokens) for tree in trees)
    sees_BNN = np.tile(np.eye(num_nodes, dtype=bool), (len(trees), 1, 1))
    for sees_NN, tree in zip(sees_BNN, trees, strict=True):
        sees_NN[: len(tree.tokens), : len(tree.tokens)] = tree.sees
    return sees_BNN


def _padded(lists: list[list[int]], fill: int, device) -> torch.Tensor:
    """(B, longest): lists of whole numbers as one tensor."""
    width = max(map(len, lists))
    rows = [[*numbers, *[fill] * (width - len(numbers))] for numbers in lists]
    return torch.tensor(rows, dtype=torch.long, device=device)
