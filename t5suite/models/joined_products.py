"""Compiled, linear layers that read the same input are one matrix product over their weights side by side.

    >>> join_products()
    >>> torch.compile(t5)        # a layer's queries, keys and values: 1 product, not 3; wi_0 and wi_1: 1, not 2
                                 # keys and values of all decoder layers on the encoder's states: 1, not 24

It is done to the graph, so that weights, checkpoints and adapters stay as they are, and before autograd sees it, so
that the gradients are joined, too: that of the input is one product where it was three and a sum. Under autocast the
weights are copied to bfloat16 in every step anyway; written side by side, the copy costs the same. In float32 it would
be a second copy of most weights, hence the trainer joins under --bf16 and --fp16 alone.

A T5 of 2 + 2 layers of width 32 has 71 products less of 117 in a step; forward and backward pass together take 0.86 of
the time on a CPU (docs/log.md, 2026-11-22). Numbers differ by what another order of the same sums does.
"""

import operator
from collections.abc import Iterable

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

LINEAR = (torch.nn.functional.linear, torch._C._nn.linear)
GIVEN = ("placeholder", "get_attr")
# What changes how all nodes behind it are computed.
MODES = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled", "_enter_inference_mode", "_exit_inference_mode")


class JoinProducts(CustomGraphPass):
    """A pass of inductor's over a graph of torch's functions, as Dynamo has recorded them."""

    def __call__(self, graph: fx.Graph) -> None:
        """Joins in place."""
        for nodes in joinable(graph.nodes):
            join(graph, nodes)

    def uuid(self):
        """What kept code is found by, beside the graph."""
        return get_hash_for_files((__file__,))


def joinable(nodes: Iterable[fx.Node]) -> list[list[fx.Node]]:
    """Linear layers of one input, under one autocast, with weights of one type that are all trained or all frozen."""
    groups, mode = {}, 0
    for node in nodes:
        if node.op != "call_function":
            continue
        mode += getattr(node.target, "__name__", "") in MODES
        if node.target not in LINEAR or node.kwargs:
            continue
        read, weight, bias = (*node.args, None)[:3]
        if weight.op not in GIVEN or (bias is not None and bias.op not in GIVEN):
            continue
        tensors = [weight.meta.get("example_value"), bias.meta.get("example_value") if bias is not None else None]
        whole = torch.is_tensor(tensors[0]) and tensors[0].ndim == 2 and not hasattr(tensors[0], "placements")
        if not whole or any(map(changed, (read, weight, node))):
            continue
        kinds = tuple(None if t is None else (t.dtype, t.device, t.requires_grad) for t in tensors)
        groups.setdefault((read, mode, kinds), []).append(node)
    return [group for group in groups.values() if len(group) > 1]


def changed(node: fx.Node) -> bool:
    """Whether something writes into what a node gives, or into a part of it."""
    views = ("view", "transpose", "reshape", "getitem", "chunk", "split", "permute", "squeeze", "unsqueeze", "expand")
    for user in node.users:
        name = user.target if isinstance(user.target, str) else getattr(user.target, "__name__", "")
        if (name.endswith("_") and not name.endswith("__")) or name in ("setitem", "iadd", "imul", "isub", "itruediv"):
            return True
        if name in views and changed(user):
            return True
    return False


def join(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    """One product in the place of the first, and its parts in the places of all."""
    first = nodes[0]
    weights = [node.args[1] for node in nodes]
    biases = [node.args[2] for node in nodes if len(node.args) > 2 and node.args[2] is not None]
    with graph.inserting_before(first):
        weight = graph.call_function(torch.cat, (weights,), {"dim": 0})
        bias = graph.call_function(torch.cat, (biases,), {"dim": 0}) if biases else None
        product = graph.call_function(first.target, (first.args[0], weight, bias))
        widths = [given.meta["example_value"].shape[0] for given in weights]
        parts = graph.call_function(torch.split, (product, widths), {"dim": -1})
        found = [graph.call_function(operator.getitem, (parts, place)) for place in range(len(nodes))]
    for node, part in zip(nodes, found, strict=True):
        part.meta.update(node.meta)
        node.replace_all_uses_with(part)
        graph.erase_node(node)


def join_products(wanted: bool = True) -> None:
    """What is compiled from here on in this process has products joined, or not; passes of the user's own stay."""
    passes = config.pre_grad_custom_pass
    others = list(passes) if isinstance(passes, (list, tuple)) else [passes] if passes is not None else []
    others = [each for each in others if not isinstance(each, JoinProducts)]
    config.pre_grad_custom_pass = [*others, *([JoinProducts()] if wanted else [])] or None
