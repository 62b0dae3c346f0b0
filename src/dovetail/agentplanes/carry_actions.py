# SPDX-License-Identifier: Apache-2.0
"""What can be done for a plane: on its endpoint, on the host, and about its leases. `decisions` decides, `carrier` does
it."""

from __future__ import annotations

from msgspec import Struct

from dovetail.agentplanes.facts import RequestKey
from dovetail.apiserver.objects import Key, Object


class CreateOnHost(Struct, frozen=True):
    pod_uid: str
    document: Object


class DeleteOnHost(Struct, frozen=True):
    """Delete the pod of this name and uid."""

    name: str
    uid: str
    grace_s: int


class ShowStatus(Struct, frozen=True):
    key: Key
    uid: str
    status: Object


class BindOnEndpoint(Struct, frozen=True):
    key: Key
    uid: str
    node: str


class RemoveFromEndpoint(Struct, frozen=True):
    """The pod was deleted there, and nothing of it is left on the host."""

    key: Key
    uid: str


class Announce(Struct, frozen=True):
    """An Event about the pod on the endpoint. Of one `reason` and `deadline_ms` there is one."""

    key: Key
    uid: str
    reason: str
    message: str
    deadline_ms: int


class Negotiate(Struct, frozen=True):
    key: RequestKey
    pods: int


class Withdraw(Struct, frozen=True):
    key: RequestKey


class Renew(Struct, frozen=True):
    lease: str
    duration_ms: int


class GiveBack(Struct, frozen=True):
    lease: str


CarryAction = (
    CreateOnHost | DeleteOnHost | ShowStatus | BindOnEndpoint | RemoveFromEndpoint | Announce | Negotiate | Withdraw
    | Renew | GiveBack
)  # fmt: skip


class CarryPlan(Struct, frozen=True):
    """`unused` are the leases that no pod needs now. Without other news the plan is the same until `wake_ms` (None:
    for ever)."""

    actions: tuple[CarryAction, ...]
    unused: frozenset[str] = frozenset()
    wake_ms: int | None = None
