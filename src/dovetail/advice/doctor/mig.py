# SPDX-License-Identifier: Apache-2.0
"""MIG: checks that the labels of a node match its allocatable resources.

Rules
- Labels are those of GPU Feature Discovery (`nvidia.com/gpu.product`, `mig.strategy`, `mig-PROFILE.count`), which reads
  the hardware. Allocatable resources come from the device plugin. If they differ, one of the two has an older layout or
  another strategy.
- Not checked: nodes without allocatable GPUs, nodes with a DRA driver for GPUs, nodes with a pending layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dovetail.advice.doctor.records import PRODUCT, Check, ClusterFacts, NodeRecord, Problems

MIG_STATE = "nvidia.com/mig.config.state"
MIG_STRATEGY = "nvidia.com/mig.strategy"
_MIG = "nvidia.com/mig-"
_GPU = "nvidia.com/gpu.count"
_INVALID = "-MIG-INVALID"
_RESTART = "restart the pods of the device plugin and of GPU Feature Discovery on the node"


def mig_failed(node: NodeRecord, seen: ClusterFacts) -> Problems:
    status = seen.gpu_node(node.name)
    refused = (
        f"GPUNode {node.name}, status.mig is refused: {status.mig_message}" if status.mig_state == "refused" else ""
    )
    failed = f"label {MIG_STATE}=failed" if node.labels.get(MIG_STATE) == "failed" else ""
    if failed or refused:
        fix = "correct what the message names" if refused else "read the log of the MIG manager on that node"
        evidence = "; ".join(filter(None, (failed, refused)))
        yield f"node/{node.name}", evidence, f"{fix}, then set the label nvidia.com/mig.config again"


def mig_pending(node: NodeRecord, seen: ClusterFacts) -> Problems:
    status, state = seen.gpu_node(node.name), node.labels.get(MIG_STATE)
    waits = f"GPUNode {node.name}, status.mig is pending: {status.mig_message}" if status.mig_state == "pending" else ""
    label = f"label {MIG_STATE}={state}" if state in ("pending", "rebooting") else ""
    if waits or label:
        holders = sorted(one.pod for one in seen.pods.running if one.node == node.name) if seen.pods is not None else []
        held = f"; pods with GPUs there: {', '.join(holders)}" if holders else ""
        fix = (
            "drain the pods that hold the GPUs, or wait"
            if holders or waits
            else "wait; if it stays, read the MIG manager's log"
        )
        yield f"node/{node.name}", "; ".join(filter(None, (label, waits))) + held, fix


def _invalid(node: NodeRecord, _: ClusterFacts) -> Problems:
    if node.labels.get(PRODUCT, "").endswith(_INVALID):
        evidence = f"label {PRODUCT}={node.labels[PRODUCT]}"
        fix = "with strategy single all GPUs of a node need MIG instances of one profile: create them, or use mixed"
        yield f"node/{node.name}", evidence, fix


def _strategy(node: NodeRecord, seen: ClusterFacts) -> Problems:
    offered = _offered(node, seen)
    if offered is None or PRODUCT not in node.labels:
        return
    strategy = node.labels.get(MIG_STRATEGY, "none")
    profiles = [f"{name}: {number}" for name, number in offered.items() if name.startswith(_MIG) and number]
    if profiles and strategy != "mixed":
        strategies = (
            f"label {MIG_STRATEGY}={strategy}" if MIG_STRATEGY in node.labels else f"there is no label {MIG_STRATEGY}"
        )
        fix = "give the device plugin and GPU Feature Discovery the same MIG strategy, or restart the older of them"
        yield f"node/{node.name}", f"{strategies}, and allocatable is {', '.join(profiles)}", fix


def _counts(node: NodeRecord, seen: ClusterFacts) -> Problems:
    offered = _offered(node, seen)
    if offered is None:
        return
    for resource, label in _counted(node):
        labelled = _number(node.labels, f"{label}.count") * max(1, _number(node.labels, f"{label}.replicas"))
        has = offered.get(resource, 0) + offered.get(f"{resource}.shared", 0)
        if labelled != has:
            times = node.labels.get(f"{label}.replicas", "1")
            shared = f" with {label}.replicas={times}" if times not in ("0", "1") else ""
            evidence = f"label {label}.count={node.labels[f'{label}.count']}{shared}; allocatable {resource}: {has}"
            yield (
                f"node/{node.name}",
                evidence,
                f"{_RESTART}; if it stays, instances are unhealthy: read the log of the plugin",
            )


def _offered(node: NodeRecord, seen: ClusterFacts) -> Mapping[str, int] | None:
    """The allocatable GPU resources of a node; None if the node is not checked."""
    if not any(node.gpus.values()) or seen.claimed(node.name) or any(True for _ in mig_pending(node, seen)):
        return None
    return node.gpus


def _counted(node: NodeRecord) -> Iterator[tuple[str, str]]:
    """(resource, label prefix) of the resources of MIG instances and the labels that count them."""
    strategy, product = node.labels.get(MIG_STRATEGY), node.labels.get(PRODUCT, "")
    if strategy == "mixed":
        for key in sorted(node.labels):
            if key.startswith(_MIG) and key.endswith(".count"):
                yield key.removesuffix(".count"), key.removesuffix(".count")
    elif strategy == "single" and "-MIG-" in product and not product.endswith(_INVALID) and _GPU in node.labels:
        yield "nvidia.com/gpu", "nvidia.com/gpu"


def _number(labels: Mapping[str, str], key: str) -> int:
    value = labels.get(key, "")
    return int(value) if value.isdecimal() else 0


def _each(check: Callable[[NodeRecord, ClusterFacts], Problems]) -> Callable[[ClusterFacts], Problems]:
    return lambda seen: (problem for node in seen.nodes or () for problem in check(node, seen))


CHECKS = (
    Check("node-without-gpus/mig-failed", "error", "the MIG layout of the node could not be applied",
          ("nodes",), _each(mig_failed)),
    Check("mig/pending", "warning", "the MIG layout of the node is not applied yet", ("nodes",), _each(mig_pending)),
    Check("mig/invalid", "error", "the MIG instances of the node do not match its MIG strategy",
          ("nodes",), _each(_invalid)),
    Check("mig/strategy-differs", "error", "the device plugin and the labels follow different MIG strategies",
          ("nodes", "drivers"), _each(_strategy)),
    Check("mig/count-differs", "warning", "allocatable MIG instances and labels differ in number",
          ("nodes", "drivers"), _each(_counts)),
)  # fmt: skip
