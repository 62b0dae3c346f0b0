# SPDX-License-Identifier: Apache-2.0
"""The layouts of an instance that are compared, and those that cannot be.

Rules (the documentation of vLLM and of TensorRT-LLM agree): tensor-parallel ranks are a power of two inside one node,
as they exchange activations in each layer; a model that a node does not hold has pipeline stages, one on each node; a
model with experts can also have groups with their own sequences among which the experts are divided.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.architecture import Architecture
from dovetail.advice.layout import ParallelLayout, PlanError, check
from dovetail.advice.serve.roofline import InstanceLayout
from dovetail.advice.serve.types import GpuOffer

_MOST_STAGES = 16


def check_tp(model: Architecture, tp: int) -> None:
    """Raises PlanError, which names the nearest numbers of ranks that divide the attention heads."""
    heads = model.heads
    if heads % tp:
        fitting = [ranks for ranks in range(1, heads + 1) if heads % ranks == 0]
        below = max(ranks for ranks in fitting if ranks < tp)
        above = [ranks for ranks in fitting if ranks > tp][:1]
        near = " and ".join(map(str, [below, *above]))
        raise PlanError(
            f"--tp {tp} does not divide the {heads} attention heads of the model; the nearest that do: {near}"
        )


def layouts(model: Architecture, offer: GpuOffer, tp: int | None, pp: int | None) -> Iterator[InstanceLayout]:
    """The layouts on these GPUs, the fewest first; the memory is not looked into here."""
    widest = min(offer.gpus_per_node, offer.nodes * offer.gpus_per_node)
    ranks = [tp] if tp else [n for n in _doubling(widest) if model.heads % n == 0]
    stages = [pp] if pp else range(1, min(offer.nodes, _MOST_STAGES, len(model.layers)) + 1)
    experts = any(layer.mlp.experts for layer in model.layers)
    for number in stages:
        # Stages are on nodes of their own, or else tensor parallelism within the node is quicker.
        for n in ranks if number == 1 or tp else ranks[-1:]:
            yield InstanceLayout(n, number)
            if experts and n > 1 and _experts(model) % n == 0:
                yield InstanceLayout(n, number, 1, n)
        if experts and number == 1 and tp is None:
            for n in _doubling(widest)[1:]:
                if _experts(model) % n == 0:
                    yield InstanceLayout(1, 1, n, n)


def refusal(model: Architecture, layout: InstanceLayout, offer: GpuOffer) -> str:
    """Why the layout cannot be on these GPUs; empty if it can."""
    if layout.tp * layout.dp > offer.gpus_per_node:
        return f"{layout.tp * layout.dp} GPUs exchange activations in each layer, and a node has {offer.gpus_per_node}"
    if layout.gpus > offer.nodes * offer.gpus_per_node:
        return f"{layout.gpus} GPUs, and {offer.nodes * offer.gpus_per_node} are at hand"
    columns = InstanceLayout(1, layout.pp) if layout.ep > 1 else layout
    try:
        check(model, ParallelLayout(columns.tp, columns.pp))
    except PlanError as error:
        return str(error)
    return ""


def _experts(model: Architecture) -> int:
    return max(layer.mlp.experts for layer in model.layers)


def _doubling(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]
