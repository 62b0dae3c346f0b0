# SPDX-License-Identifier: Apache-2.0
"""GPUs with all that their price depends on, as answers have them."""

from __future__ import annotations

from msgspec import Struct

from dovetail.kube.nodes.purchase import NodePurchase


class PricedNode(Struct, frozen=True):
    """What the price of a node with so many GPUs of a model depends on beside its name."""

    model: str
    gpus: int
    purchase: NodePurchase


class ChangedNodes(Struct, frozen=True):
    """Nodes of one kind that a change adds, or takes away."""

    kind: PricedNode
    names: tuple[str, ...]
    added: bool


class SubmittedGpus(Struct, frozen=True):
    """Pods of a job that go to one node: together `gpus_milli`, each for at most `run_ms` (0: not known). `node` is ""
    and `kind` None where it is not known."""

    job: str
    gpus_milli: int
    run_ms: int
    node: str = ""
    kind: PricedNode | None = None
