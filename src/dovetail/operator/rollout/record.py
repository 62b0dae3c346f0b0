# SPDX-License-Identifier: Apache-2.0
"""What a rollout knows of itself: written into its ControllerRevision before each act, and read at each start.

A ControllerRevision has the spec of the GPUStack in `data`, which never changes, and the record in an annotation. The
highest `revision` is the present one; the last good one is kept beside it, to go back to.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail import __version__
from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.resources import CONTROLLER_REVISIONS
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.objects.stack import GPUStack, StackSpec, UpgradeSpec
from dovetail.operator.rendering.stack_objects import MANAGED_BY, PART_OF, STACK_LABEL, SYSTEM_NAMESPACE, Document
from dovetail.operator.rollout.states import NodeState

RECORD = "operator.dovetail.dev/rollout"
"""The annotation of a ControllerRevision with its record."""
_HASH_BYTES = 5


class RolloutPhase(StrEnum):
    """As in the status of a GPUStack. Paused is shown in place of Canary and Rolling."""

    CANARY = "Canary"
    ROLLING = "Rolling"
    PAUSED = "Paused"
    DONE = "Done"
    FAILED = "Failed"
    ROLLED_BACK = "RolledBack"


class NodeProgress(Struct, frozen=True, omit_defaults=True):
    """A node that is worked on: its state and since when, and the DaemonSets whose pods were replaced there.
    `drained`: it was chosen to get empty."""

    state: NodeState
    since_ms: int
    drained: bool = False
    sets: tuple[str, ...] = ()


class RolloutRecord(Struct, frozen=True, omit_defaults=True):
    """`canaries` are the nodes that were changed first, `canary_ms` when the last of them was ready (0: not yet).
    `postponed` are nodes that did not get empty in time, with that time. `failed` are nodes that did not get ready, and
    `reason` is why the first did not. `good`: no node is left to change, and this revision was seen working. `back`:
    the nodes go back to the last good revision, and `lost` are those that did not get ready on the way."""

    phase: RolloutPhase = RolloutPhase.CANARY
    started_ms: int = 0
    canaries: tuple[str, ...] = ()
    canary_ms: int = 0
    nodes: dict[str, NodeProgress] = {}
    postponed: dict[str, int] = {}
    failed: tuple[str, ...] = ()
    reason: str = ""
    good: bool = False
    back: bool = False
    lost: tuple[str, ...] = ()


class RevisionData(Wire, frozen=True):
    spec: StackSpec = StackSpec()


class ControllerRevision(Wire, frozen=True):
    """Source: k8s.io/api apps/v1."""

    metadata: ObjectMeta = ObjectMeta()
    revision: int = 0
    data: RevisionData = RevisionData()


class StackRevision(Struct, frozen=True):
    """A revision of a stack as it is kept. `id` is short, and the same for equal specs."""

    id: str
    number: int
    spec: StackSpec
    record: RolloutRecord


def revision_id(spec: StackSpec) -> str:
    """What nodes get by this spec and this release: how they get it (`upgrade`) is left out."""
    text = msgspec.json.encode((replace(spec, upgrade=UpgradeSpec()), __version__), order="sorted")
    return blake2b(text, digest_size=_HASH_BYTES).hexdigest()


def begun(revision: StackRevision, number: int, phase: RolloutPhase) -> StackRevision:
    """A revision that comes back, under this number."""
    return replace(revision, number=number, record=RolloutRecord(phase, good=revision.record.good))


def name_of(stack: str, revision: str) -> str:
    """The name of its ControllerRevision."""
    return f"{stack[:200]}-{revision}"


def document(stack: GPUStack, revision: StackRevision) -> Document:
    """The ControllerRevision as it is applied."""
    owner = {
        "apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "name": stack.metadata.name,
        "uid": stack.metadata.uid, "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    return {
        "apiVersion": CONTROLLER_REVISIONS.api_version,
        "kind": CONTROLLER_REVISIONS.kind,
        "metadata": {
            "name": name_of(stack.metadata.name, revision.id),
            "namespace": SYSTEM_NAMESPACE,
            "labels": {**dict((MANAGED_BY, PART_OF)), STACK_LABEL: stack.metadata.name},
            "annotations": {RECORD: msgspec.json.encode(revision.record, order="sorted").decode()},
            "ownerReferences": [owner],
        },
        "revision": revision.number,
        "data": {"spec": _present(msgspec.to_builtins(revision.spec))},
    }


def read(stack: str, found: ControllerRevision) -> StackRevision | None:
    """The revision of this stack, as it was written; None for another object, and for one that cannot be read."""
    name, prefix = found.metadata.name, f"{stack[:200]}-"
    if not name.startswith(prefix):
        return None
    try:
        record = decode_json(found.metadata.annotations.get(RECORD, "").encode(), RolloutRecord)
    except JsonError:
        return None
    return StackRevision(name.removeprefix(prefix), found.revision, found.data.spec, record)


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _present(one) for name, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_present(one) for one in value]
    return value
