"""T5's decoder over a tree of candidates: all that a row may answer is read in one row of the decoder.

    >>> edge_log_probs(model, batch_of([tree] * 64, start=0, pad=0), hidden_BSD, mask_BS).shape       # (B, E)
    (64, 7)

A node sees itself and the nodes on its way from the root, and knows their distances by depth, so that it is computed
as if its beginning stood alone. Rows share the encoder's states; each candidate's beginning is read once, however many
candidates begin so. The output layer is asked for a chunk of rows at a time, and only the picked log-probabilities are
kept; where nothing but the best candidate is asked for, it is asked at the promising nodes alone (`best_candidates`).

Shapes: B rows, N nodes, E edges, S source tokens, D model width, H heads, V vocabulary.
"""

import torch

from t5suite.models.best_candidates import Best, best_candidates
from t5suite.models.cached_prompts import plain
from t5suite.models.candidate_trees import TreeBatch
from t5suite.models.t5_decoder import (
    Source,
    attended,
    bias_by_distance,
    chunks_of_logits,
    cross_attention,
    final_states,
    keys_and_values,
    projected,
)

# A tree with more nodes than this is read candidate by candidate: nodes see each other in a square.
MOST_NODES = 1024
# Pairs of node and source token that are attended at once.
ATTENDED_AT_ONCE = 2**22


def edge_log_probs(model, batch: TreeBatch, hidden_BSD, mask_BS) -> torch.Tensor:
    """(B, E), float32: the log-probability of each edge's token behind its node, in a row that sees the encoder's
    states of its own (`mask_BS`: 1 for a token). Rows are read in chunks where trees or sources are long.
    """
    chunks = _states_in_chunks(plain(model), batch, hidden_BSD, mask_BS)
    return torch.cat([_picked(plain(model), trees, states_BND) for _, trees, states_BND in chunks])


def best_of_trees(model, batch: TreeBatch, hidden_BSD, mask_BS, told: list[int | None] | None = None) -> Best:
    """Each row's likeliest candidate, as `edge_log_probs` would have it, and the nats of those that are asked for."""
    places, nll = [], []
    for rows, trees, states_BND in _states_in_chunks(plain(model), batch, hidden_BSD, mask_BS):
        best = best_candidates(plain(model), trees, states_BND, told and told[rows])
        places += best.places
        nll += best.nll or [None] * len(states_BND)
    return Best(places, nll)


def _states_in_chunks(model, batch: TreeBatch, hidden_BSD, mask_BS):
    """`(rows, their trees, what the output layer takes at every node)`."""
    rows, num_source = hidden_BSD.shape[:2]
    each = max(1, ATTENDED_AT_ONCE // (batch.num_nodes * num_source))
    shared = len(batch.tokens) == 1
    for start in range(0, rows, each):
        chunk = slice(start, start + each)
        trees = batch if shared else batch.rows(chunk)
        source = Source.of(hidden_BSD[chunk], mask_BS if mask_BS is None else mask_BS[chunk], batch.num_nodes)
        yield chunk, trees, _node_states(model, trees, source)


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
