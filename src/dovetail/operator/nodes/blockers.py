# SPDX-License-Identifier: Apache-2.0
"""Why a node is not ready: the closed table of reasons, with what each means and what to do about it.

The texts have no numbers that change by themselves: a status that reads the same is not written again.
docs/reference/gpustack.md has one row for each (tests/docs compares).
"""

from __future__ import annotations

from msgspec import Struct

DRIVER, RUNTIME, AGENT, DEVICES, LABELS, VALIDATED = "driver", "runtime", "agent", "devices", "labels", "validated"
READY = "ready"
STEPS = (DRIVER, RUNTIME, AGENT, DEVICES, LABELS, VALIDATED)
"""In the order in which a node takes them."""


class BlockerKind(Struct, frozen=True):
    """`steps`: where it can block. `meaning` is for the reference. `action` is what to do; it begins with the role that
    has to do it, or with "Nothing to do"."""

    reason: str
    steps: tuple[str, ...]
    meaning: str
    action: str


_COMPONENTS = (DRIVER, RUNTIME, AGENT)
_PODS = (*_COMPONENTS, VALIDATED)

_TABLE = (
    BlockerKind(
        "NoGpuFound", (DRIVER,),
        "nothing shows that the node has a GPU, but it has the start-up taint or a GPUNode",
        "Admin: label the node dovetail.dev/agent=true if it has GPUs; else remove the taint dovetail.dev/not-ready "
        "and delete the GPUNode",
    ),
    BlockerKind(
        "RebootLoop", (DRIVER,),
        "the node has booted three times or more within an hour; it is not validated before half an hour without a "
        "boot",
        "Admin: read the kernel log of the last boots (journalctl -k -b -1) and the events of the node; a driver that "
        "panics, or a watchdog, are usual",
    ),
    BlockerKind(
        "NodeNotReady", (DRIVER,),
        "the kubelet does not report the node as Ready, so nothing else about it is known",
        "Admin: look at the kubelet of the node (journalctl -u kubelet) and at its network plugin",
    ),
    BlockerKind(
        "DriverMissing", (DRIVER,),
        "NVIDIA's driver is not installed, or its kernel module is not loaded",
        "Admin: install NVIDIA's driver on the node, or set spec.driver.mode: Container in the GPUStack",
    ),
    BlockerKind(
        "DriverMismatch", (DRIVER,),
        "kernel module and library of the driver have different versions: the driver was updated without a reboot",
        "Admin: drain the node (dovetail drain) and reboot it",
    ),
    BlockerKind(
        "DriverNotAnswering", (DRIVER,),
        "the driver is there and does not answer, or it lists none of the GPUs",
        "Admin: run nvidia-smi and dmesg on the node; a GPU that fell off the bus needs a reboot or a repair",
    ),
    BlockerKind(
        "DriverTooOld", (DRIVER,),
        "the driver is older than spec.driver.minimumVersion of the GPUStack",
        "Admin: update the driver of the node, or lower spec.driver.minimumVersion",
    ),
    BlockerKind(
        "RuntimeClassMissing", (RUNTIME,),
        "the RuntimeClass that the agent's pods name is not there",
        "Admin: set spec.runtime.createClass: true in the GPUStack, or create the RuntimeClass",
    ),
    BlockerKind(
        "RuntimeNotConfigured", (RUNTIME,),
        "the container runtime of the node has no handler of the name that the RuntimeClass requires",
        "Admin: install NVIDIA's container toolkit on the node and run nvidia-ctk runtime configure, or name a toolkit "
        "image in spec.runtime.configure",
    ),
    BlockerKind(
        "CdiNotEnabled", (RUNTIME, VALIDATED),
        "the container runtime does not know CDI devices",
        "Admin: turn CDI on in the container runtime (containerd: enable_cdi = true), or set spec.runtime.cdi: false",
    ),
    BlockerKind(
        "DaemonSetMissing", _COMPONENTS,
        "the DaemonSet of this component is not there",
        "Nothing to do if the installation is new; else see the conditions of the GPUStack",
    ),
    BlockerKind(
        "PodRefused", _COMPONENTS,
        "the API server refuses the pods of the DaemonSet: a quota, Pod Security or an admission webhook",
        "Admin: allow the pod; the message names what refuses it",
    ),
    BlockerKind(
        "PodMissing", _COMPONENTS,
        "the DaemonSet has no pod on the node",
        "Nothing to do if the node is new; else compare the labels of the node with the DaemonSet's node affinity",
    ),
    BlockerKind(
        "PodUnschedulable", _COMPONENTS,
        "the pod of the DaemonSet is not bound to the node",
        "Admin: make room for the pod on the node; the message is the scheduler's",
    ),
    BlockerKind(
        "PodEvicted", _COMPONENTS,
        "the kubelet rejected or evicted the pod",
        "Admin: free what the message names (disk, memory, process ids) on the node",
    ),
    BlockerKind(
        "ImagePullFailed", _PODS,
        "the image of a container cannot be pulled",
        "Admin: check name, tag and pull secrets of the image in the GPUStack, and that the node reaches the registry",
    ),
    BlockerKind(
        "ContainerConfigError", _PODS,
        "the kubelet cannot make the container: a ConfigMap or Secret is missing, or the image does not suit the pod's "
        "security context",
        "Admin: create what the message names",
    ),
    BlockerKind(
        "SandboxFailed", _PODS,
        "the container runtime cannot make the pod's sandbox",
        "Admin: look at the network plugin and the container runtime of the node; the evidence is its message",
    ),
    BlockerKind(
        "VolumeNotMounted", _PODS,
        "a path of the host or a volume that the pod needs is not there",
        "Admin: create on the node what the message names; for the agent see docs/reference/agent-privileges.md",
    ),
    BlockerKind(
        "ContainerFails", _PODS,
        "a container ends again and again, or cannot be started",
        "Admin: read the line of the evidence, then kubectl logs --previous of that container",
    ),
    BlockerKind(
        "ContainerCreating", _PODS,
        "the pod is new: its image is being pulled, or it starts",
        "Nothing to do: wait; the kubelet pulls or starts it",
    ),
    BlockerKind(
        "PodNotReady", _COMPONENTS,
        "the container runs and its readiness probe fails",
        "Admin: read kubectl logs of that container",
    ),
    BlockerKind(
        "NoPool", (AGENT,),
        "no pool of the GPUStack selects the node, so no agent runs there",
        "Admin: widen the nodeSelector of a pool in spec.agent.pools, or label the node dovetail.dev/agent=false to "
        "leave it out",
    ),
    BlockerKind(
        "AgentSilent", (AGENT,),
        "the agent's pod is ready, but its GPUNode has no status, or an old one",
        "Admin: read the log of the agent; it may not write GPUNodes (RBAC), or not reach the API server",
    ),
    BlockerKind(
        "NodeQuarantined", (DEVICES,),
        "the health watch asks for a reboot or a repair of the node",
        "Admin: do what dovetail nodes NODE lists as next for its GPUs",
    ),
    BlockerKind(
        "GpusUnhealthy", (DEVICES,),
        "no GPU of the node is healthy",
        "Admin: do what dovetail nodes NODE lists as next for its GPUs",
    ),
    BlockerKind(
        "LayoutPending", (DEVICES,),
        "the MIG layout is being applied, or waits until pods release the GPUs",
        "Nothing to do: wait; dovetail drain ends the wait for pods",
    ),
    BlockerKind(
        "LayoutRefused", (DEVICES,),
        "the agent cannot apply the MIG layout",
        "Admin: correct spec.agent.pools[].mig.layout; the message is the agent's",
    ),
    BlockerKind(
        "OtherDevicePlugin", (DEVICES,),
        "another device plugin offers the GPUs of the node, so chosen and allocated devices may differ",
        "Admin: let Dovetail take over (spec.takeOver: [device-plugin]), or set allocation: None in the node's pool",
    ),
    BlockerKind(
        "PluginNotRegistered", (DEVICES,),
        "the kubelet does not have the devices of the agent's device plugin",
        "Nothing to do while the kubelet or the agent restarts; else read the log of the agent",
    ),
    BlockerKind(
        "NoDevices", (DEVICES,),
        "the node offers no GPU: none is in its allocatable resources, or in a ResourceSlice",
        "Admin: read the log of the agent; with allocation: None another component has to offer the GPUs",
    ),
    BlockerKind(
        "LabelsMissing", (LABELS,),
        "the node has no label nvidia.com/gpu.product",
        "Admin: read the log of the agent; another manager may own the labels, or the function labels is off",
    ),
    BlockerKind(
        "NodeInMaintenance", (VALIDATED,),
        "the node is being drained or upgraded; it is validated afterwards",
        "Nothing to do: the node is validated after its maintenance (dovetail drain --undo ends one)",
    ),
    BlockerKind(
        "NodeCordoned", (VALIDATED,),
        "the node is cordoned, so no validation pod is placed there",
        "Admin: kubectl uncordon the node",
    ),
    BlockerKind(
        "ValidationQueued", (VALIDATED,),
        "other nodes are being validated first",
        "Nothing to do: wait",
    ),
    BlockerKind(
        "GpusBusy", (VALIDATED,),
        "all GPUs of the node are in use by pods that prove nothing about its driver and agent; it is validated by the "
        "next pod that Dovetail places there, or when a GPU is free",
        "Nothing to do: jobs come before the validation",
    ),
    BlockerKind(
        "ValidationRefused", (VALIDATED,),
        "the API server refuses the validation pod",
        "Admin: allow the pod in the namespace dovetail-system; the message names what refuses it",
    ),
    BlockerKind(
        "NoScheduler", (VALIDATED,),
        "no scheduler has answered for the validation pod",
        "Admin: see that the Deployment dovetail-scheduler runs, and that spec.scheduler.schedulerName is its name",
    ),
    BlockerKind(
        "ValidationPending", (VALIDATED,),
        "the scheduler has not placed the validation pod on the node",
        "Nothing to do if the pod is new; else the message is why the scheduler does not place it",
    ),
    BlockerKind(
        "ValidationRunning", (VALIDATED,),
        "the validation pod runs",
        "Nothing to do: wait",
    ),
    BlockerKind(
        "ValidationTimedOut", (VALIDATED,),
        "the validation did not end within spec.validation.timeoutSeconds; it is tried again",
        "Admin: see why the pod did not end; the message is what it waited for",
    ),
    BlockerKind(
        "ValidationFailed", (VALIDATED,),
        "the validation pod failed; it is tried again with growing pauses",
        "Admin: read the line of the evidence: the output of the check, or the kubelet's message",
    ),
    BlockerKind(
        "DevicesDiffer", (VALIDATED,),
        "the validation pod got other devices than the scheduler chose",
        "Admin: see that only one device plugin offers the resource on the node, and the log of the agent",
    ),
)  # fmt: skip

BLOCKERS = {one.reason: one for one in _TABLE}
"""By reason."""
