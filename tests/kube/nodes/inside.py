# SPDX-License-Identifier: Apache-2.0
"""Objects that describe the inside of the node n1, and what is made of them."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from dovetail.kube.nodes.wiring import Wiring
from dovetail.kube.objects.base import Node
from dovetail.kube.objects.claims import ResourceSlice
from dovetail.kube.objects.topology import GPUNode, NodeResourceTopology
from dovetail.kube.translate.translator import Translator
from tests.kube.yaml_objects import added

GPU_NODE: dict[str, Any] = yaml.safe_load("""
observedTime: "2026-01-31T12:00:00Z"
gpus:
- {index: 0, uuid: GPU-a, product: NVIDIA A100 80GB PCIe, memoryMiB: 81920, numaNode: 0, pciBusId: "0000:19:00.0"}
- {index: 1, uuid: GPU-b, product: NVIDIA A100 80GB PCIe, memoryMiB: 81920, numaNode: 0, pciBusId: "0000:1a:00.0"}
- {index: 2, uuid: GPU-c, product: NVIDIA A100 80GB PCIe, memoryMiB: 81920, numaNode: 1, pciBusId: "0000:b3:00.0"}
- {index: 3, uuid: GPU-d, product: NVIDIA A100 80GB PCIe, memoryMiB: 81920, numaNode: 1, pciBusId: "0000:b4:00.0"}
pcieLevels: [[X, PIX, SYS, SYS], [PIX, X, SYS, SYS], [SYS, SYS, X, PXB], [SYS, SYS, PXB, X]]
nvlinks: [[0, 12, 0, 0], [12, 0, 0, 0], [0, 0, 0, 12], [0, 0, 12, 0]]
rates: {socketMBps: 9000}
nics: [{name: mlx5_0, numaNode: 0, speedMBps: 25000, rdma: true, levels: [PXB, PXB, SYS, SYS]}]
clique: ""
kubelet:
  version: v1.36.2
  featureGates: {PodLevelResourceManagers: true, SomeOther: true}
  topologyManagerPolicy: restricted
  topologyManagerScope: pod
  topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true", max-allowable-numa-nodes: "12"}
  cpuManagerPolicy: static
  cpuManagerPolicyOptions: {full-pcpus-only: "true", distribute-cpus-across-numa: "false"}
  memoryManagerPolicy: Static
  reservedSystemCPUs: "0,4"
  numaNodes:
  - id: 0
    distances: [10, 21]
    memory:
    - {type: memory, totalBytes: 68719476736, reservedBytes: 1073741824}
    - {type: hugepages-2Mi, totalBytes: 2097152}
  - id: 1
    distances: [21, 10]
    memory:
    - {type: memory, totalBytes: 68719476736}
    - {type: hugepages-2Mi, totalBytes: 0}
  cpus:
  - {uncore: 0, socket: 0, numaNode: 0, cores: ["0,4", "1,5"]}
  - {uncore: 1, socket: 1, numaNode: 1, cores: ["2,6", "3,7"]}
  devices:
  - resource: nvidia.com/gpu
    prefersAllocation: true
    devices:
    - {id: GPU-a, numaNodes: [0]}
    - {id: GPU-b, numaNodes: [0]}
    - {id: GPU-c, numaNodes: [1]}
    - {id: GPU-d, numaNodes: [1]}
  - resource: rdma/hca
    devices: [{id: a}, {id: b, numaNodes: [], healthy: false}]
""")


def node(gpus: int = 4, **labels: str) -> Node:
    named = {f"nvidia.com/gpu.{key}": value for key, value in labels.items()}
    amounts = {"cpu": "8", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return msgspec.convert({"metadata": {"name": "n1", "labels": named}, "status": {"allocatable": amounts}}, Node)


def gpu_node(status: dict[str, Any]) -> GPUNode:
    return msgspec.convert({"metadata": {"name": "n1"}, "status": status}, GPUNode)


def zones(text: str, **attributes: str) -> NodeResourceTopology:
    """`text` is the list of zones."""
    reported = [{"name": name, "value": value} for name, value in attributes.items()]
    document = {"metadata": {"name": "n1"}, "attributes": reported, "zones": yaml.safe_load(text)}
    return msgspec.convert(document, NodeResourceTopology)


def slice_of(devices: str, name: str = "s1", **pool: int) -> ResourceSlice:
    """`devices` is a list of name and attributes, the latter with their values alone."""
    listed = []
    for device in yaml.safe_load(devices):
        attributes = {
            key: {"int": value}
            if isinstance(value, int)
            else {"ints": value}
            if isinstance(value, list)
            else {"string": value}
            for key, value in device["attributes"].items()
        }
        listed.append({"name": device["name"], "attributes": attributes})
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1", **pool}, "devices": listed}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


def feed_of(*reported: Any) -> Translator:
    """A feed that received all of these objects, in this order."""
    feed = Translator()
    for obj in reported:
        if isinstance(obj, Node):
            feed.node_records.nodes(added(obj))
        elif isinstance(obj, GPUNode):
            feed.gpu_nodes(added(obj))
        elif isinstance(obj, NodeResourceTopology):
            feed.node_records.node_topologies(added(obj))
        else:
            feed.node_records.resource_slices(added(obj))
    return feed


def wiring(*reported: Any) -> Wiring:
    return feed_of(*reported).node_records.wiring("n1")
