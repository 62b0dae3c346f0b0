# SPDX-License-Identifier: Apache-2.0
"""The components of NVIDIA's stack, by table: how each is recognised, which part of Dovetail does the same, and whether
Dovetail can take it over.

Sources: manifests of NVIDIA/gpu-operator (assets/), NVIDIA/k8s-device-plugin (deployments/), NVIDIA/mig-parted,
NVIDIA/dcgm-exporter, kubernetes-sigs/dra-driver-nvidia-gpu and kubernetes-sigs/node-feature-discovery.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from dovetail.operator.found import ALLOCATION_LABEL, EXPORTER_LABEL

TAKEN_OVER = "dovetail.dev/taken-over."
"""With the name of a component: the label of a node on which Dovetail has switched that component off."""
OPERANDS = "nvidia.com/gpu.deploy.operands"
"""`false`: the GPU Operator puts none of its components on the node."""
_DEPLOY = "nvidia.com/gpu.deploy."
_GKE_PLUGIN_OFF = "gke-no-default-nvidia-gpu-device-plugin"


class AgentFunction(StrEnum):
    """What an agent does that a component of NVIDIA's stack does, too. Of ALLOCATION and EXPORTER labels of the node
    decide which side does it; LABELS and MIG the agent leaves alone by itself while the other side does them."""

    EXPORTER = "exporter"
    LABELS = "labels"
    MIG = "mig"
    ALLOCATION = "allocation"
    NONE = ""


ORDER = (AgentFunction.EXPORTER, AgentFunction.LABELS, AgentFunction.MIG, AgentFunction.ALLOCATION)
"""In which order functions move on a node, one at a time. Moving an exporter replaces the agent's pod, so that it comes
before the agent has GPUs to offer."""
SIDE_LABELS = {AgentFunction.ALLOCATION: ALLOCATION_LABEL, AgentFunction.EXPORTER: EXPORTER_LABEL}


class NvidiaComponent(Struct, frozen=True):
    """`name` is the one of spec.takeOver and status.foreign. A container is of the component by its name (without
    -ctr), by a program that its command names, or by the last part of its image. `switch` is the GPU Operator's label
    for it, `off` other labels (with value true) that its usual DaemonSets obey. `kept` is why Dovetail does not take it
    over, "" if it can; `beside` what to know when it is taken over, or left."""

    name: str
    title: str
    function: AgentFunction = AgentFunction.NONE
    switch: str = ""
    off: tuple[str, ...] = ()
    containers: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    kept: str = ""
    beside: str = ""


def _names(*names: str) -> frozenset[str]:
    return frozenset(names)


COMPONENTS = (
    NvidiaComponent(
        "device-plugin", "NVIDIA's device plugin", AgentFunction.ALLOCATION,
        switch=f"{_DEPLOY}device-plugin", off=(_GKE_PLUGIN_OFF,),
        containers=_names("nvidia-device-plugin", "nvidia-gpu-device-plugin"),
        programs=_names("nvidia-device-plugin", "nvidia-gpu-device-plugin"),
        images=_names("k8s-device-plugin", "nvidia-gpu-device-plugin"),
        beside="its configuration is not read: write sharing and MIG strategy in the pool of the GPUStack",
    ),
    NvidiaComponent(
        "mps-control-daemon", "the MPS control daemon of NVIDIA's device plugin", AgentFunction.ALLOCATION,
        switch=f"{_DEPLOY}device-plugin", containers=_names("mps-control-daemon"),
        programs=_names("mps-control-daemon"),
        beside="pods that share a GPU by MPS lose their daemon: take over nodes without such pods",
    ),
    NvidiaComponent(
        "dra-driver", "NVIDIA's DRA driver for GPUs", AgentFunction.ALLOCATION,
        switch=f"{_DEPLOY}dra-driver", programs=_names("gpu-kubelet-plugin", "nvidia-dra-plugin"),
        beside="compute domains end on the node where its pod has them, too; claims that are prepared stay",
    ),
    NvidiaComponent(
        "gpu-feature-discovery", "GPU Feature Discovery", AgentFunction.LABELS,
        switch=f"{_DEPLOY}gpu-feature-discovery", containers=_names("gpu-feature-discovery"),
        programs=_names("gpu-feature-discovery"), images=_names("gpu-feature-discovery"),
        beside="its labels go with it; the agent writes them at its next look, within six minutes",
    ),
    NvidiaComponent(
        "mig-manager", "NVIDIA's MIG manager", AgentFunction.MIG,
        switch=f"{_DEPLOY}mig-manager", containers=_names("nvidia-mig-manager"),
        programs=_names("nvidia-mig-manager"), images=_names("k8s-mig-manager"),
        beside="left beside our device plugin it cannot pause it while it divides GPUs: take over both",
    ),
    NvidiaComponent(
        "dcgm-exporter", "dcgm-exporter", AgentFunction.EXPORTER,
        switch=f"{_DEPLOY}dcgm-exporter", containers=_names("dcgm-exporter", "nvidia-dcgm-exporter"),
        programs=_names("dcgm-exporter"), images=_names("dcgm-exporter"),
        beside="the agent's metrics have the same names and labels; job and instance differ",
    ),
    NvidiaComponent(
        "driver", "the driver container", switch=f"{_DEPLOY}driver", containers=_names("nvidia-driver"),
        programs=_names("nvidia-driver"),
        kept="a new driver ends every pod with GPUs: drain the node first; until then spec.driver.mode is Preinstalled",
    ),
    NvidiaComponent(
        "container-toolkit", "NVIDIA's container toolkit", switch=f"{_DEPLOY}container-toolkit",
        containers=_names("nvidia-container-toolkit"), programs=_names("nvidia-toolkit"),
        images=_names("container-toolkit"),
        kept="it changes the container runtime of the node, which Dovetail uses as it is",
    ),
    NvidiaComponent(
        "dcgm", "the DCGM host engine", switch=f"{_DEPLOY}dcgm", containers=_names("nvidia-dcgm"),
        programs=_names("nv-hostengine"), images=_names("dcgm"),
        kept="the agent reads profiling values of it, for GPUs before Hopper",
    ),
    NvidiaComponent(
        "compute-domains", "the compute domains of NVIDIA's DRA driver", switch=f"{_DEPLOY}dra-driver",
        programs=_names("compute-domain-kubelet-plugin"), kept="Dovetail has no equal of it, and works beside it",
    ),
    NvidiaComponent(
        "node-feature-discovery", "Node Feature Discovery", containers=_names("nfd-worker", "nfd-master"),
        programs=_names("nfd-worker", "nfd-master"), kept="Dovetail reads its labels, and works beside it",
    ),
    NvidiaComponent(
        "operator-validator", "the validator of the GPU Operator", switch=f"{_DEPLOY}operator-validator",
        containers=_names("nvidia-operator-validator"), images=_names("gpu-operator-validator"),
        kept="other components of the GPU Operator wait for it; with the device plugin taken over it finds the agent's "
        "resources",
    ),
    NvidiaComponent(
        "gpu-operator", "the GPU Operator", containers=_names("gpu-operator"), programs=_names("gpu-operator"),
        kept="uninstall it, by its own means, when nothing is left to it",
    ),
)  # fmt: skip
BY_NAME = {component.name: component for component in COMPONENTS}
FOLLOWS = {"mps-control-daemon": "device-plugin"}
"""Components that are taken over with another one."""


def components_of(function: AgentFunction) -> tuple[NvidiaComponent, ...]:
    """The components that do what this function of the agent does."""
    return tuple(one for one in COMPONENTS if one.function is function)
