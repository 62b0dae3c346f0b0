# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node as one letter each, for the grid of the fleet page.

Rules
- A GPU that is not healthy has the letter of its state, whatever holds it: a fault is what somebody has to act on.
- Pods whose GPUs are only counted hold the first ones that nothing else holds: `exact` is false then.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.views.held_types import HeldPart, NodeHolder
from dovetail.views.node_types import NodeHealthView

FREE, HELD, PART, DEGRADED, DRAINING, QUARANTINED = ".", "#", "%", "!", "v", "x"
OF_HEALTH = {"degraded": DEGRADED, "draining": DRAINING, "quarantined": QUARANTINED}
_COUNT_LABEL = "nvidia.com/gpu.count"


def cells_of(node: NodeHealthView, holders: Iterable[NodeHolder]) -> tuple[str, bool]:
    """The letters, and whether they are exact."""
    use = [FREE] * gpu_count(node)
    counted: list[str] = []
    for holder in holders:
        if holder.gpus is None:
            counted += [HELD] * holder.count
        else:
            _hold(use, holder.gpus, HELD)
        for part in holder.parts:
            index = _index(part)
            if index is None:
                counted.append(HELD if part.kind == "claimed" else PART)
            else:
                _hold(use, (index,), PART)
    left = [index for index, one in enumerate(use) if one == FREE]
    for index, one in zip(left, counted, strict=False):
        use[index] = one
    for device in node.devices:
        if device.state in OF_HEALTH and device.index < len(use):
            use[device.index] = OF_HEALTH[device.state]
    return "".join(use), not counted


def gpu_count(node: NodeHealthView) -> int:
    """The GPUs that the node has; those of a node that offers only parts of them, or claims, are in a label."""
    labelled = node.labels.get(_COUNT_LABEL, "")
    count = int(labelled) if labelled.isascii() and labelled.isdecimal() and len(labelled) < 4 else 0
    return max(node.gpus, count, max((one.index + 1 for one in node.devices), default=0))


def _hold(use: list[str], gpus: Iterable[int], letter: str) -> None:
    for gpu in gpus:
        if gpu < len(use) and use[gpu] != HELD:
            use[gpu] = letter


def _index(part: HeldPart) -> int | None:
    """The GPU that a part is of, None if it is not known."""
    index = part.device.partition("/")[0]
    return int(index) if part.kind != "claimed" and index.isdecimal() else None
