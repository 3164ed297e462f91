"""Candidate answers as a tree of their beginnings: what they share is read once.

    >>> tree = tree_of([[3, 7, 1], [3, 9, 1], [4, 1]])                 # as ids, end-of-sequence last
    >>> tree.tokens.tolist(), tree.depths.tolist()                     # the nodes: -, 3, 3 7, 3 9, 4
    ([-1, 3, 7, 9, 4], [0, 1, 2, 2, 1])
    >>> tree.edge_nodes.tolist(), tree.edge_tokens.tolist()            # behind a node, this token
    ([0, 1, 2, 1, 3, 0, 4], [3, 7, 1, 9, 1, 4, 1])
    >>> tree.paths.tolist()                                            # a candidate's edges, filled up with 7
    [[0, 1, 2], [0, 3, 4], [5, 6, 7]]

A node is what a decoder has read, the start token first; an edge is a token that it may write next. The candidates'
probabilities are those of their edges. MNLI's three labels have eight tokens, but five or six nodes; the 26 numbers of
STS-B about a hundred, but under forty. Shapes: B rows, N nodes, E edges, C candidates, L tokens of the longest one.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from t5suite.models.families import plain
from t5suite.models.t5_decoder import (
    Source,
    attended,
    bias_by_distance,
    chunks_of_logits,
    cross_attention,
    final_states,
    keys_and_values,
    projected,
    to_device,
)

START = -1  # the root reads the decoder's start token, which the model names


@dataclass(frozen=True, eq=False)
class CandidateTree:
    """The beginnings of one row's candidates.

    Attributes:
      tokens: (N) the token that a node has read last; START at the root, which is node 0.
      depths: (N) how many tokens it has read behind the start token.
      sees: (N, N) bool; a node's row marks itself and the nodes on its way from the root.
      edge_nodes, edge_tokens: (E) a node, and a token that may follow.
      paths: (C, L) the edges of each candidate, filled up with E.
    """

    tokens: np.ndarray
    depths: np.ndarray
    sees: np.ndarray
    edge_nodes: np.ndarray
    edge_tokens: np.ndarray
    paths: np.ndarray

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest candidate."""
        return self.paths.shape[1]


def tree_of(candidates) -> CandidateTree:
    """The tree of a row's candidates, as ids; an empty one has no edges."""
    nodes, tokens, depths, parents = {(): 0}, [START], [0], [0]
    edges, edge_nodes, edge_tokens, paths = {}, [], [], []
    for candidate in candidates:
        node, path = 0, []
        candidate = tuple(map(int, candidate))
        for place, token in enumerate(candidate):
            edge = edges.setdefault((node, token), len(edges))
            if edge == len(edge_nodes):
                edge_nodes.append(node)
                edge_tokens.append(token)
            path.append(edge)
            if place + 1 == len(candidate):
                break
            beginning = candidate[: place + 1]
            if beginning not in nodes:
                nodes[beginning] = len(tokens)
                tokens.append(token)
                depths.append(place + 1)
                parents.append(node)
            node = nodes[beginning]
        paths.append(path)
    longest = max(map(len, paths), default=0)
    filled = [[*path, *[len(edges)] * (longest - len(path))] for path in paths]
    return CandidateTree(
        tokens=np.array(tokens),
        depths=np.array(depths),
        sees=_ways(parents),
        edge_nodes=np.array(edge_nodes, dtype=np.int64),
        edge_tokens=np.array(edge_tokens, dtype=np.int64),
        paths=np.array(filled, dtype=np.int64).reshape(len(paths), longest),
    )


def _ways(parents: list[int]) -> np.ndarray:
    """(N, N) bool: who stands on whose way from the root, oneself included; parents come before their children."""
    sees = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents[1:], start=1):
        sees[node] |= sees[parent]
    return sees


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """The trees of a batch's rows, filled up to the same sizes; of one row where all rows have the same tree.

    Attributes:
      trees: the rows' trees.
      tokens, depths, sees, edge_nodes, edge_tokens: as in `CandidateTree`, with rows in front: B, or 1.
        Nodes that fill up see themselves alone; edges that fill up have the token -1, which nothing is.
      kept: what was copied to a device.
    """

    trees: list[CandidateTree]
    tokens: np.ndarray
    depths: np.ndarray
    sees: np.ndarray
    edge_nodes: np.ndarray
    edge_tokens: np.ndarray
    kept: dict = field(default_factory=dict)

    def on(self, name: str, device) -> torch.Tensor:
        """One of its arrays on a device; copied once."""
        if (name, device) not in self.kept:
            self.kept[name, device] = to_device(torch.from_numpy(getattr(self, name)), device)
        return self.kept[name, device]

    @property
    def num_nodes(self) -> int:
        """Nodes of the largest tree."""
        return self.tokens.shape[1]

    def rows(self, chunk: slice) -> "TreeBatch":
        """Some of the rows."""
        return TreeBatch(self.trees[chunk], *(getattr(self, name)[chunk] for name in FILLED))


FILLED = ("tokens", "depths", "sees", "edge_nodes", "edge_tokens")


def batch_of(trees: list[CandidateTree], start: int, pad: int) -> TreeBatch:
    """The trees of a batch, one a row.

    Args:
      start: the decoder's start token.
      pad: what nodes read that fill up.
    """
    kept = trees[:1] if all(tree is trees[0] for tree in trees) else trees
    num_nodes = max(len(tree.tokens) for tree in kept)
    num_edges = max(len(tree.edge_nodes) for tree in kept)

    def filled(name: str, width: int, value: int) -> np.ndarray:
        rows = np.full((len(kept), width), value, dtype=np.int64)
        for row, tree in zip(rows, kept, strict=True):
            values = getattr(tree, name)
            row[: len(values)] = values
        return rows

    sees = np.broadcast_to(np.eye(num_nodes, dtype=bool), (len(kept), num_nodes, num_nodes)).copy()
    for row, tree in zip(sees, kept, strict=True):
        row[: len(tree.tokens), : len(tree.tokens)] = tree.sees
    tokens = filled("tokens", num_nodes, pad)
    tokens[:, 0] = start
    return TreeBatch(
        trees=trees,
        tokens=tokens,
        depths=filled("depths", num_nodes, 0),
        sees=sees,
        edge_nodes=filled("edge_nodes", num_edges, 0),
        edge_tokens=filled("edge_tokens", num_edges, -1),
    )


def sums_of_paths(trees: list[CandidateTree], edges_BE: np.ndarray) -> list[list[float]]:
    """Per row, each candidate's sum of its edges' values; equal candidates have equal sums, to the last bit.

    >>> sums_of_paths([tree_of([[3, 1], [4, 1]])], np.array([[-0.5, -0.25, -2.0, -1.0]]))
    [[-0.75, -3.0]]
    """
    padded = np.concatenate([edges_BE, np.zeros((len(edges_BE), 1))], axis=1)
    if all(tree is trees[0] for tree in trees):
        return padded[:, np.minimum(trees[0].paths, edges_BE.shape[1])].sum(-1).tolist()
    return [
        np.append(edges[: len(tree.edge_nodes)], 0.0)[tree.paths].sum(-1).tolist()
        for tree, edges in zip(trees, edges_BE, strict=True)
    ]


# A tree with more nodes than this is read candidate by candidate: nodes see each other in a square.
MOST_NODES = 1024
# Pairs of node and source token that are attended at once.
ATTENDED_AT_ONCE = 2**22


def edge_log_probs(model, batch: TreeBatch, hidden_BSD, mask_BS) -> torch.Tensor:
    """(B, E), float32: the log-probability of each edge's token behind its node, in a row that sees the encoder's
    states of its own (`mask_BS`: 1 for a token).

    A node sees itself and the nodes on its way from the root, and knows their distances by depth, so that it is
    computed as if its beginning stood alone. Rows are read in chunks where trees or sources are long; of a chunk's
    logits only the picked log-probabilities are kept.
    """
    model, rows = plain(model), len(hidden_BSD)
    each = max(1, ATTENDED_AT_ONCE // (batch.num_nodes * hidden_BSD.shape[1]))
    shared, found = len(batch.tokens) == 1, []
    for start in range(0, rows, each):
        chunk = slice(start, start + each)
        trees = batch if shared else batch.rows(chunk)
        source = Source.of(hidden_BSD[chunk], mask_BS if mask_BS is None else mask_BS[chunk], batch.num_nodes)
        found.append(_picked(model, trees, _node_states(model, trees, source)))
    return torch.cat(found)


def _picked(model, batch: TreeBatch, states_BND) -> torch.Tensor:
    device, rows = states_BND.device, len(states_BND)
    nodes_BE = batch.on("edge_nodes", device).expand(rows, -1)
    tokens_BE = batch.on("edge_tokens", device).clamp(min=0).expand(rows, -1)
    found = []
    for chunk in chunks_of_logits(states_BND, model.config.vocab_size):
        # of log_softmax, which takes half of logsumexp's time on a CPU
        log_probs_CNV = model.lm_head(states_BND[chunk]).float().log_softmax(-1)
        places_CE = nodes_BE[chunk] * log_probs_CNV.shape[-1] + tokens_BE[chunk]
        found.append(log_probs_CNV.flatten(1).gather(1, places_CE))
    return torch.cat(found)


def _node_states(model, batch: TreeBatch, source: Source) -> torch.Tensor:
    decoder, device = model.decoder, source.hidden_BSD.device
    tokens_BN, depths_BN, sees_BNN = (batch.on(name, device) for name in ("tokens", "depths", "sees"))
    distances_BNN = (depths_BN[:, :, None] - depths_BN[:, None, :]).clamp(min=0)
    rows = len(source.hidden_BSD)
    x_BND = decoder.embed_tokens(tokens_BN).expand(rows, -1, -1)
    for block in decoder.block:
        own, cross, feed_forward = block.layer
        if own.SelfAttention.has_relative_attention_bias:  # umT5 has one a layer, T5 one for all
            by_distance_HL = bias_by_distance(own.SelfAttention, int(batch.depths.max()) + 1)
            bias_BHNN = by_distance_HL[:, distances_BNN].transpose(0, 1).masked_fill(~sees_BNN[:, None], -torch.inf)
            bias_BHNN = bias_BHNN.expand(rows, -1, -1, -1)
        query, key, value = projected(own.SelfAttention, own.layer_norm(x_BND), "q", "k", "v")
        x_BND = x_BND + attended(own.SelfAttention, query, key, value, bias_BHNN)
        attention = cross.EncDecAttention
        x_BND = x_BND + cross_attention(attention, cross.layer_norm(x_BND), source, keys_and_values(attention, source))
        x_BND = feed_forward(x_BND)
    return final_states(model, x_BND)
