# SPDX-License-Identifier: Apache-2.0
"""Hypothetical pods: how many of them would start now, and why not one more.

Rules: the answers are those of the scheduler's own score cache and refusals. Nodes that are cordoned, tainted or
invalid are closed. A taint with the key nvidia.com/gpu does not close a node, as most pods with GPUs tolerate it. The
admission of kubelets is not predicted, and waiting pods do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Mask
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.model import CPU, GPU, MEMORY, NodeTerm, Pod, Request, Requirement, Toleration
from dovetail.core.placing import filters, refusals, repartition
from dovetail.core.placing.refusals import Verdict
from dovetail.core.quantities import display
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State
from dovetail.kube.nodes.layouts import PRODUCT
from dovetail.views.free_types import Beside, Blocked
from dovetail.views.held_types import DEVICES, SHARE, HolderRefused
from dovetail.views.holders import holders, only
from dovetail.views.refused import refused

NAME = "free"
_TOLERATED = (Toleration(GPU, "Exists"),)


class Probe:
    """Queries of the core for hypothetical pods."""

    def __init__(self, state: State, beside: Beside) -> None:
        self.state = state
        self.cluster = state.cluster
        self.nodes = state.cluster.nodes
        self._beside = beside
        self.there = np.array([record is not None for record in self.nodes.records], dtype=np.bool_)
        self.there = np.append(self.there, np.zeros(self.nodes.size - len(self.there), dtype=np.bool_))
        open_ = filters.suitable(self.nodes, Request(tolerations=_TOLERATED), slice(0, self.nodes.size))
        self.open: Mask = self.there & open_

    def by_model(self, where: Mask) -> Iterator[tuple[str, Mask]]:
        """These nodes by their label nvidia.com/gpu.product, in the order of the labels."""
        found: dict[str, list[int]] = {}
        for slot in np.flatnonzero(where).tolist():
            found.setdefault(self.nodes.labels[slot].get(PRODUCT, ""), []).append(slot)
        for model, slots in sorted(found.items()):
            mask = np.zeros_like(where)
            mask[slots] = True
            yield model, mask

    def pod(self, model: str | None, count: int, *resources: tuple[str, int], **more: Any) -> Pod:
        """A pod for nodes with this GPU label (None: all nodes), with CPU and memory for `count` GPUs or parts."""
        amounts = [(CPU, count * self._beside.cpu_milli), (MEMORY, count * self._beside.memory_bytes), *resources]
        request = Request(tuple(sorted(one for one in amounts if one[1])), tolerations=_TOLERATED)
        if model:
            request = replace(request, node_selector=((PRODUCT, model),))
        elif model is not None:
            request = replace(request, node_terms=(NodeTerm((Requirement(PRODUCT, "DoesNotExist"),)),))
        return Pod("", "", NAME, replace(request, **more))

    def copies(self, pod: Pod, where: Mask) -> NDArray[np.int64]:
        """The number of such pods that fit now on each of these nodes, by slot."""
        row = self.state.score_cache.of(self.cluster.shape_of(pod))
        return np.where(where & self.open, row.copies(), 0)

    def allocatable(self, resource: str) -> NDArray[np.int64]:
        return np.asarray(self.nodes.allocatable[self.nodes.column(resource)])

    def free(self, resource: str) -> NDArray[np.int64]:
        return np.asarray(np.maximum(self.nodes.free[self.nodes.column(resource)], 0))

    def sharing(self, slot: int) -> Sharing:
        """The sharing of a node that shares its GPUs."""
        found = self.nodes.sharing(slot)
        assert found is not None
        return found

    def blocked(self, pod: Pod, where: Mask, need: int) -> Blocked:
        """Why the pod fits on none of these nodes. `need` is the amount of GPUs, instances or devices it requests."""
        where = where & self.open
        found = [
            replace(verdict, slots=slots)
            for verdict in refusals.verdicts(self.cluster, pod)
            if len(slots := verdict.slots[where[verdict.slots]])
        ]
        devices = refused(self.cluster, pod, found)
        proposal = repartition.proposal(self.cluster, self.cluster.shape_of(pod))
        nearest = [self._nearest(pod, verdict, devices, need) for verdict in found if verdict.when is When.NOT_YET]
        if not nearest:
            rule = "; ".join(dict.fromkeys(f"{one.reason.text} {one.detail}".rstrip() for one in found))
            return Blocked(rule or "all such nodes are closed", devices=devices[:1], repartition=proposal)
        _, node, lacking, missing, verdict = min(nearest, key=lambda one: one[0])
        own = tuple(one for one in devices if one.node == node)
        here = only(verdict, self.nodes.slots[node])
        asked = [name for name, _ in pod.request.resources]
        rule = f"{verdict.reason.text} {verdict.detail}".rstrip()
        return Blocked(rule, node, lacking, missing, holders(self.cluster, asked, [here], own), own, proposal)

    def _nearest(
        self, pod: Pod, verdict: Verdict, devices: tuple[HolderRefused, ...], need: int
    ) -> tuple[int, str, str, str, Verdict]:
        """The closest node of a verdict: the missing part of the request in thousandths, the node, what is missing, how
        much, and the verdict."""
        names = self.nodes.names
        if verdict.reason is Reason.INSUFFICIENT:
            column = self.nodes.column(verdict.detail)
            slot = int(verdict.slots[np.argmax(self.nodes.free[column, verdict.slots])])
            wanted = dict(pod.request.resources)[verdict.detail]
            missing = wanted - int(self.nodes.free[column, slot])
            return 1000 * missing // wanted, names[slot], verdict.detail, display(verdict.detail, missing), verdict
        refusing = {names[slot] for slot in verdict.slots.tolist()}
        device = next((one for one in devices if one.node in refusing), None)
        if verdict.reason is Reason.GPU_SHARE and device is not None:
            return device.lacks, device.node, SHARE, f"{device.lacks}/1000", verdict
        if verdict.reason is Reason.DEVICES and device is not None:
            return 1000 * device.lacks // need, device.node, DEVICES, str(device.lacks), verdict
        return 1000, names[int(verdict.slots[0])], "", "", verdict
