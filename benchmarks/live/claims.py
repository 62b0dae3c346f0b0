# SPDX-License-Identifier: Apache-2.0
"""Scenarios with claims: each pod has its own ResourceClaim, for one GPU or for all GPUs of a node.

Rules: each node publishes its GPUs in one ResourceSlice and has no resource `nvidia.com/gpu`. The class and the claim
have one CEL selector each. Claims exist before the scheduler starts: the benchmark creates them, or
kube-controller-manager creates them from a template and keeps running. In a correct result every device is allocated at
most once, on the node of its pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.live.scenario import (
    AMOUNTS_BESIDE_GPUS,
    GPUS_PER_NODE,
    NAMESPACE,
    Arrivals,
    Document,
    Kinds,
    Meta,
    SeenPod,
    node_documents,
)
from dovetail.kube.api.resources import CLAIM_TEMPLATES, DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES

DRIVER = "gpu.nvidia.com"
_CLAIM_CONTROLLER = "resourceclaim-controller"


class _Result(Struct, frozen=True):
    pool: str = ""
    device: str = ""


class _Devices(Struct, frozen=True):
    results: tuple[_Result, ...] = ()


class _Allocation(Struct, frozen=True):
    devices: _Devices = _Devices()


class _Consumer(Struct, frozen=True):
    uid: str = ""


class _ClaimStatus(Struct, rename="camel", frozen=True):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] = ()


class SeenClaim(Struct, frozen=True):
    """The fields of a claim that show its allocation."""

    metadata: Meta
    status: _ClaimStatus = _ClaimStatus()


class ClaimScenario(Struct, frozen=True):
    """`pods` pods with `gpus` GPUs each. `templates`: their claims come from a template."""

    title: str
    nodes: int
    pods: int
    gpus: int
    templates: bool = False
    run_s: float = 0.0
    alone: str = ""

    @property
    def pod_count(self) -> int:
        return self.pods

    @property
    def backlog(self) -> int:
        return self.pods

    def arrivals(self, scheduler_name: str) -> Arrivals:
        """No arrivals: all pods exist at the start."""
        return iter(())

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers of kube-controller-manager to run."""
        return (_CLAIM_CONTROLLER,) if self.templates else ()

    def scaled(self, scale: float) -> ClaimScenario:
        return replace(self, nodes=ceil(self.nodes * scale), pods=max(1, int(self.pods * scale)))

    def kinds(self, scheduler_name: str) -> Kinds:
        yield NODES, node_documents(self.nodes, self.nodes, AMOUNTS_BESIDE_GPUS)
        yield DEVICE_CLASSES, [self._class()]
        yield RESOURCE_SLICES, self._slices()
        if self.templates:
            yield CLAIM_TEMPLATES, [{"metadata": {"name": "gpus"}, "spec": {"spec": self._spec()}}]
        else:
            spec = self._spec()
            yield RESOURCE_CLAIMS, ({"metadata": {"name": f"pod-{i:05}"}, "spec": spec} for i in range(self.pods))
        yield PODS, self._pods(scheduler_name)

    def _class(self) -> Document:
        chosen = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
        return {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": chosen}}]}}

    def _spec(self) -> Document:
        large = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
        exactly: Document = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": large}}]}
        return {"devices": {"requests": [{"name": "gpus", "exactly": exactly | {"count": self.gpus}}]}}

    def _slices(self) -> Iterator[Document]:
        for number in range(self.nodes):
            node = f"node-{number:05}"
            devices = [
                {
                    "name": f"gpu-{gpu}",
                    "attributes": {
                        "type": {"string": "gpu"},
                        "uuid": {"string": f"GPU-{number:05}-{gpu}"},
                        "productName": {"string": "NVIDIA H100 80GB HBM3"},
                        "driverVersion": {"version": "580.65.6"},
                        "resource.kubernetes.io/pciBusID": {"string": f"0000:{gpu + 1:02x}:00.0"},
                    },
                    "capacity": {"memory": {"value": "80Gi"}},
                }
                for gpu in range(GPUS_PER_NODE)
            ]
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec: Document = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
            yield {"metadata": {"name": f"{node}-gpus"}, "spec": spec}

    def _pods(self, scheduler_name: str) -> Iterator[Document]:
        amounts = {"cpu": str(8 * self.gpus), "memory": f"{64 * self.gpus}Gi"}
        for number in range(self.pods):
            name = f"pod-{number:05}"
            source = {"resourceClaimTemplateName": "gpus"} if self.templates else {"resourceClaimName": name}
            container = {
                "name": "main",
                "image": "train",
                "resources": {"requests": amounts, "limits": amounts, "claims": [{"name": "gpus"}]},
            }
            spec: Document = {
                "schedulerName": scheduler_name,
                "resourceClaims": [{"name": "gpus"} | source],
                "containers": [container],
            }
            yield {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}

    def ready(self, pods: Iterable[SeenPod]) -> bool:
        """Whether the claims of all pods exist."""
        return sum(bool(pod.status.resource_claim_statuses) for pod in pods) == self.pods

    def problems(self, pods: Iterable[SeenPod], claims: Iterable[SeenClaim]) -> list[str]:
        """The errors in the placement and the allocations, one line per kind of error."""
        node_of = {pod.metadata.uid: pod.spec.node_name for pod in pods if pod.spec.node_name}
        allocations = [(claim.status.allocation, claim.status.reserved_for) for claim in claims]
        results = [(r, users) for allocation, users in allocations if allocation for r in allocation.devices.results]
        twice = [device for device, times in Counter((r.pool, r.device) for r, _ in results).items() if times > 1]
        # A pool has the name of its node.
        elsewhere = [r for r, users in results if [node_of.get(user.uid) for user in users] != [r.pool]]
        checks = (
            (len(node_of) < self.pods, f"{len(node_of)} of {self.pods} pods are bound"),
            (len(results) != self.pods * self.gpus, f"{len(results)} of {self.pods * self.gpus} devices are allocated"),
            (bool(twice), f"{len(twice)} devices are allocated twice, e.g. {twice[:1]}"),
            (bool(elsewhere), f"{len(elsewhere)} devices are not where their pod is, e.g. {elsewhere[:1]}"),
        )
        return [text for wrong, text in checks if wrong]


CLAIM_SCENARIOS = {
    "claims": ClaimScenario("2,000 claims of 1 GPU made beforehand, on 500 nodes", 500, 2_000, 1),
    "templates": ClaimScenario("2,000 claims of 1 GPU made of a template, on 500 nodes", 500, 2_000, 1, templates=True),
    "wide-claims": ClaimScenario("500 claims of 8 GPUs made beforehand, on 500 nodes", 500, 500, 8),
}
