# SPDX-License-Identifier: Apache-2.0
"""The agent's side of leases: an async library through which a software agent asks for GPUs and uses them.

    plane = Plane(broker, "team/agent")
    async with plane, plane.lease(Option(gpus=4, minutes=20), on_revoke=save) as lease:
        await train(lease.devices, lease.fence)

- `agent_plane`: the control plane of one agent; `lease`: what it holds; `negotiation`: one open request;
  `waiting`: for answers and news.
- `options`: what to ask for; `policies`: which offer to take; `placement`: pods onto devices of held leases.
- `broker`: what a broker has to do; `fake`: one in memory with the real rules, on a virtual clock, for tests.
"""

from __future__ import annotations

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
    from dovetail.plane.fake import FakeBroker, FakeClock, FakeFault, FaultKind

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
    "place",
]
_FAKE = ("FakeBroker", "FakeClock", "FakeFault", "FaultKind")


def __getattr__(name: str) -> object:
    """The fake broker needs the whole core, and numpy: it is loaded when it is named."""
    if name in _FAKE:
        from dovetail.plane import fake

        return getattr(fake, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
