# SPDX-License-Identifier: Apache-2.0
"""The smallest part of a gang that completes it: room is made for no more pods than the gang needs to start."""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import Pod
from dovetail.core.placing.gangs import Group


def smallest_by_shape(cluster: Cluster, group: Group) -> list[tuple[Shape, list[Pod]]]:
    """The fewest pods of the group itself that complete it, by shape: those with the fewest GPUs where there is a
    choice. The shapes with the most GPUs come first."""
    shapes: dict[int, tuple[Shape, list[Pod]]] = {}
    ordered = sorted(((cluster.shape_of(pod), pod) for pod in group.pods), key=lambda pair: pair[0].gpus)
    for shape, pod in reversed(ordered[: group.missing]):
        shapes.setdefault(shape.id, (shape, []))[1].append(pod)
    return list(shapes.values())


def smallest_sub_gangs(group: Group) -> list[Group]:
    """The smallest sub-gangs that complete the group, the largest first."""
    return sorted(group.groups, key=lambda sub: -sub.total_missing())[len(group.groups) - group.groups_needed :]


def smallest_part(cluster: Cluster, group: Group) -> Group:
    """The group with no more than it needs: where there is a choice, the pods with the smallest requests."""
    pods = [pod for _, pods in smallest_by_shape(cluster, group) for pod in pods]
    groups = [smallest_part(cluster, sub) for sub in smallest_sub_gangs(group)]
    return replace(group, pods=pods, room=group.missing, groups=groups)
