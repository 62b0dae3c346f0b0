# SPDX-License-Identifier: Apache-2.0
"""The agent's side of leases: an async library through which a software agent asks for GPUs and uses them.

    async with on_cluster("team/agent") as plane:
        async with plane.lease(Option(gpus=4, minutes=20), on_revoke=save) as lease:
            await train(lease.devices, lease.fence)

- `agent_plane`: the control plane of one agent; `lease`: what it holds; `negotiation`: one open request;
  `waiting`: for answers and news.
- `options`: what to ask for; `policies`: which offer to take; `placement`: pods onto devices of held leases.
- `broker`: what a broker has to do; `fake`: one in memory with the real rules, on a virtual clock
  (`fake_clock`), for tests.
- `kubernetes`: the broker on a cluster; `cluster_clock`, `cluster_view`, `cluster_watches`: the scheduler's time, and
  what is known of the objects of a plane.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dovetail.core.bargaining.types import EndCause, Offer, ServiceClass
from dovetail.plane.agent_plane import AgentPlane as Plane
from dovetail.plane.broker import Broker, BrokerRefused, BrokerUnavailable
from dovetail.plane.lease import LeaseOver, NotGranted, PlaneLease, RenewalRefused, RevokeNotice
from dovetail.plane.options import AgentRequest, Option
from dovetail.plane.placement import AgentPod, Assignment, place
from dovetail.plane.policies import (
    Accept,
    CheapestCredit,
    CounterOffer,
    DeadlineAware,
    Decline,
    FirstFit,
    KeepWaiting,
    OfferRound,
)

if TYPE_CHECKING:
    from dovetail.plane.fake import FakeBroker, FakeFault, FaultKind
    from dovetail.plane.fake_clock import FakeClock
    from dovetail.plane.kubernetes import KubernetesBroker, on_cluster

__all__ = [
    "Accept",
    "AgentPod",
    "AgentRequest",
    "Assignment",
    "Broker",
    "BrokerRefused",
    "BrokerUnavailable",
    "CheapestCredit",
    "CounterOffer",
    "DeadlineAware",
    "Decline",
    "EndCause",
    "FakeBroker",
    "FakeClock",
    "FakeFault",
    "FaultKind",
    "FirstFit",
    "KeepWaiting",
    "KubernetesBroker",
    "LeaseOver",
    "NotGranted",
    "Offer",
    "OfferRound",
    "Option",
    "Plane",
    "PlaneLease",
    "RenewalRefused",
    "RevokeNotice",
    "ServiceClass",
    "on_cluster",
    "place",
]
_LATER = {
    "FakeBroker": "fake", "FakeClock": "fake_clock", "FakeFault": "fake", "FaultKind": "fake",
    "KubernetesBroker": "kubernetes", "on_cluster": "kubernetes",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """The fake broker needs the whole core, and numpy, that of a cluster an API client: each is loaded when it is
    named."""
    if name in _LATER:
        return getattr(import_module(f"dovetail.plane.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
