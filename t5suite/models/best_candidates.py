"""Which candidate of a row is the likeliest, with the output layer asked at as few nodes of their tree as that takes.

    >>> best = best_candidates(model, batch, states_BND)          # trees of a batch, and what the decoder said there
    >>> best.places, best.nll
    ([0, 2], None)
    >>> best_candidates(model, batch, states_BND, told=[0, None]).nll[0]       # nats of a candidate that is asked for
    0.11

A log-probability is a token's logit less the sum of all (log-sum-exp); logits of the few tokens that candidates have
are cheap, the sums are not: each is one row of the vocabulary's size. The root's sum is common to all candidates and
decides nothing. Elsewhere the sum over the tree's own tokens is less than the whole one, so that leaving the others out
gives an upper bound of a candidate's log-probability. The most promising candidate's sums are worked out first; who
cannot reach it any more is never looked at. The choice is that of all scores (`tests/test_best_candidates.py`).

Shapes: B rows, N nodes, E edges, C candidates, L tokens of the longest one, D model width, V vocabulary, Q questions.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from t5suite.models.candidate_trees import TreeBatch
from t5suite.models.t5_decoder import chunks_of_logits, is_plain_linear, largest

# A candidate is passed over if its upper bound is lower than the best one by this many nats at least: rounding is less.
MARGIN = 1e-3


class Best(NamedTuple):
    """The likeliest candidates.

    Attributes:
      places: by row, the place of its likeliest candidate, the first of equals.
      nll: by row, the nats of the candidate that was asked for; None where none was, or by no row.
    """

    places: list[int]
    nll: list[float | None] | None


def can_choose(model) -> bool:
    """Whether logits of some tokens alone can be had: the output layer is a plain product. On a GPU all logits take
    less time than to ask which ones are needed; under autocast they are rounded on the way."""
    device = model.lm_head.weight.device.type
    return device == "cpu" and is_plain_linear(model.lm_head) and not torch.is_autocast_enabled(device)


def best_candidates(model, batch: TreeBatch, states_BND, told: list[int | None] | None = None) -> Best:
    """The likeliest candidate of each row.

    Args:
      states_BND: what the output layer takes, at every node.
      told: by row, a candidate whose nats are wanted, too.
    """
    search = _Search(model, batch, states_BND)
    told = told or [None] * len(states_BND)
    rows = [row for row, place in enumerate(told) if place is not None]
    if rows:
        places = [told[row] for row in rows]
        search.ask_for(np.array(rows), np.array(places), with_root=True)
        nats = search.root_sums_B[rows] - search.bounds()[rows, places]
    search.finish()
    found = dict(zip(rows, nats.tolist(), strict=True)) if rows else {}
    return Best(search.bounds().argmax(-1).tolist(), [found.get(row) for row in range(len(told))] if found else None)


class _Search:
    """What is known of a batch: logits of all edges, sums of some nodes, and so a bound of every candidate.

    The root's sum counts as 0, for rows compare their own candidates alone.
    """

    def __init__(self, model, batch: TreeBatch, states_BND):
        self.model, self.states_BND = model, states_BND
        num_rows, num_nodes = states_BND.shape[:2]
        self.paths_BCL, self.nodes_BCL, self.none_BC = _paths(batch, num_rows)
        self.edge_nodes_BE = np.broadcast_to(batch.edge_nodes, (num_rows, batch.edge_nodes.shape[1]))
        self.logits_BE = _edge_logits(model, batch, states_BND)
        self.sums_BN = _sums_of_known(self.logits_BE, self.edge_nodes_BE, batch, num_nodes)
        self.sums_BN[:, 0] = 0.0
        self.root_sums_B = np.full(num_rows, np.nan)
        self.exact_BN = np.zeros((num_rows, num_nodes), bool)
        self.exact_BN[:, 0] = True

    def bounds(self) -> np.ndarray:
        """(B, C): what each candidate has at most; exactly, where all of its nodes' sums are."""
        rows = np.arange(len(self.logits_BE))[:, None]
        by_edge_BE = self.logits_BE - self.sums_BN[rows, self.edge_nodes_BE]
        padded = np.concatenate([by_edge_BE, np.zeros((len(rows), 1))], axis=1)
        bounds_BC = padded[rows[:, :, None], self.paths_BCL].sum(-1)
        return np.where(self.none_BC, -np.inf, bounds_BC)

    def finish(self) -> None:
        """Asks until no candidate can be better than the best that is known exactly."""
        rows = np.arange(len(self.logits_BE))
        while len(rows):
            bounds_BC = self.bounds()[rows]
            known_BC = self.exact_BN[rows[:, None, None], self.nodes_BCL[rows]].all(-1)
            best_B = np.where(known_BC, bounds_BC, -np.inf).max(-1)
            open_BC = np.where(known_BC, -np.inf, bounds_BC)
            left = (open_BC > -np.inf).any(-1) & (open_BC.max(-1) >= best_B - MARGIN)
            rows = rows[left]
            if len(rows):
                self.ask_for(rows, open_BC[left].argmax(-1))

    def ask_for(self, rows, candidates, with_root: bool = False) -> None:
        """Works out the sums that these rows' candidates need."""
        asked_BN = np.zeros_like(self.exact_BN)
        asked_BN[rows[:, None], self.nodes_BCL[rows, candidates]] = True
        asked_BN &= ~self.exact_BN
        asked_BN[rows, 0] = with_root
        asked_rows, asked_nodes = asked_BN.nonzero()
        sums_Q = _sums(self.model, self.states_BND[torch.from_numpy(asked_rows), torch.from_numpy(asked_nodes)])
        root = asked_nodes == 0
        self.root_sums_B[asked_rows[root]] = sums_Q[root]
        self.sums_BN[asked_rows[~root], asked_nodes[~root]] = sums_Q[~root]
        self.exact_BN |= asked_BN


def _paths(batch: TreeBatch, num_rows: int):
    """Each candidate's edges, filled up with E, and the nodes they start from, filled up with the root (B, C, L); and
    which candidates only fill up (B, C)."""
    shared = len(batch.tokens) == 1
    trees = batch.trees[:1] if shared else batch.trees
    num_edges = batch.edge_nodes.shape[1]
    most, longest = (max(tree.paths.shape[axis] for tree in trees) for axis in (0, 1))
    paths_BCL = np.full((len(trees), most, longest), num_edges)
    none_BC = np.ones((len(trees), most), bool)
    for tree, paths, none in zip(trees, paths_BCL, none_BC, strict=True):
        number, length = tree.paths.shape
        paths[:number, :length] = np.where(tree.paths < len(tree.edge_nodes), tree.paths, num_edges)
        none[:number] = False
    nodes_BX = np.concatenate([batch.edge_nodes, np.zeros((len(trees), 1), np.int64)], axis=1)
    nodes_BCL = nodes_BX[np.arange(len(trees))[:, None, None], paths_BCL]
    return tuple(np.broadcast_to(part, (num_rows, *part.shape[1:])) for part in (paths_BCL, nodes_BCL, none_BC))


def _edge_logits(model, batch: TreeBatch, states_BND) -> np.ndarray:
    """(B, E), float64: the logit of each edge's token behind its node."""
    nodes_BE, tokens_BE = torch.from_numpy(batch.edge_nodes), torch.from_numpy(batch.edge_tokens).clamp(min=0)
    shared, weight_VD, found = len(nodes_BE) == 1, model.lm_head.weight, []
    for rows in chunks_of_logits(states_BND.flatten(1), nodes_BE.shape[1] * weight_VD.shape[1]):
        states = states_BND[rows]
        weights = weight_VD[tokens_BE[0] if shared else tokens_BE[rows]]
        picked = states[:, nodes_BE[0]] if shared else states[torch.arange(len(states))[:, None], nodes_BE[rows]]
        found.append((picked * weights).sum(-1).double())
    return torch.cat(found).numpy()


def _sums_of_known(logits_BE, edge_nodes_BE, batch: TreeBatch, num_nodes: int) -> np.ndarray:
    """(B, N): log-sum-exp of the tree's own edges behind each node, less than that of all tokens."""
    sums_BN = np.full((len(logits_BE), num_nodes), -np.inf)
    known_BE = np.where(batch.edge_tokens >= 0, logits_BE, -np.inf)
    np.logaddexp.at(sums_BN, (np.arange(len(logits_BE))[:, None], edge_nodes_BE), known_BE)
    return np.where(np.isfinite(sums_BN), sums_BN, 0.0)


def _sums(model, states_QD) -> np.ndarray:
    """(Q), float64: log-sum-exp over the vocabulary. Cross-entropy takes half of `logsumexp`'s time on a CPU."""
    found = [np.zeros(0)]
    for chunk in chunks_of_logits(states_QD, model.config.vocab_size):
        logits_CV = model.lm_head(states_QD[chunk]).float()
        best_C = largest(logits_CV)
        nats_C = F.cross_entropy(logits_CV, best_C, reduction="none")
        found.append((nats_C.double() + logits_CV.gather(1, best_C[:, None])[:, 0].double()).numpy())
    return np.concatenate(found)
