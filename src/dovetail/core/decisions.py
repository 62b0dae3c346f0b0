# SPDX-License-Identifier: Apache-2.0
"""What can be decided. The state already counts a decision as done; the driver carries it out or reports its failure.

`step` is the number of the step that decided: one id leads from the event to the decision, the bind and its records.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dovetail.core.bargaining.types import EndCause, GpuLease, Offer, Revocation
from dovetail.core.dra.extended import ExtendedUse
from dovetail.core.dra.types import Allocation, ClaimSpec
from dovetail.core.model import Instance
from dovetail.core.reasons import Refusal


class VolumePick(Struct, frozen=True):
    """Bind `claim` ("namespace/name") to `volume`, or, where `volume` is "", have it provisioned for the node."""

    claim: str
    volume: str


class ClaimGrant(Struct, frozen=True):
    """Write this allocation into `claim` ("namespace/name")."""

    claim: str
    allocation: Allocation


class ClaimToMake(Struct, frozen=True):
    """Make `claim` ("namespace/name") for the extended resources of the pod, if it is not there already, and pass its
    kubelet which container has what by which request of it."""

    claim: str
    spec: ClaimSpec
    uses: tuple[ExtendedUse, ...]

    @property
    def resources(self) -> tuple[str, ...]:
        """What the pod has by it, sorted."""
        return tuple(sorted({use.resource for use in self.uses}))


class Bind(Struct, frozen=True):
    """Put a pod on a node. `gang` is the root gang ("" for a lone pod). `devices` are the indices of the GPUs on the
    node that the state now holds for the pod, and `mbps` the bandwidth between them where there are several and their
    links are known (0 otherwise), of the `ideal_mbps` that such a node can give. `rank` is the pod's place in its gang:
    pods that follow each other are close in the fabric; -1 for lone pods and for those that join a gang that runs."""

    uid: str
    node: str
    step: int
    gang: str = ""
    devices: tuple[int, ...] = ()
    volumes: tuple[VolumePick, ...] = ()
    level: str = ""
    """The narrowest fabric level (a node label key) that holds the whole gang; "" where none does or none is known."""
    rank: int = -1
    mbps: int = 0
    ideal_mbps: int = 0
    unsure: str = ""
    """Why it is not known whether the kubelet will admit the pod; "" where it is known, or nothing is managed."""
    claims: tuple[ClaimGrant, ...] = ()
    """What is allocated for the pod's claims; those of its claims that have an allocation already are not here."""
    instances: tuple[Instance, ...] = ()
    """The MIG instances that the state now holds for the pod, where those of the node are known."""
    reserve: tuple[str, ...] = ()
    """The ResourceClaims that the pod names: it must be among their consumers before it is bound."""
    made: ClaimToMake | None = None
    """The claim of its extended resources, as far as the node has none of them; what it has is among `claims`, unless
    it was allocated before."""


class Hold(Struct, frozen=True):
    """These pods stay pending. Decided when the reason is new or its numbers are old."""

    gang: str
    uids: tuple[str, ...]
    refusal: Refusal
    step: int


class Release(Struct, frozen=True):
    """Evict these bound pods of a gang. It started in part and was not completed in time (`half`), or a pod of it
    failed for good and the others are too few (`broken`)."""

    gang: str
    uids: tuple[str, ...]
    refusal: Refusal
    step: int
    cause: Literal["half", "broken"] = "half"


Cause = Literal["reclaim", "preempt", "move"]


class Evict(Struct, frozen=True):
    """Evict the pods `uids` for a gang (`gang` "": a lone pod): for another queue that reclaims what is due to it
    (reclaim), for a higher priority in the same queue (preempt), or because there is room for them elsewhere, which is
    kept for the new pods of their owners (move: `targets` are the nodes, pod by pod). `nominations` are the pods (uid)
    of the preemptor with their nominated nodes; they are bound once the victims are gone. `lost_milli_ms` is the work
    that is lost, in milli-GPU times ms. `message` names the preemptor and the reason."""

    gang: str
    uids: tuple[str, ...]
    cause: Cause
    nominations: tuple[tuple[str, str], ...]
    lost_milli_ms: int
    message: str
    step: int
    targets: tuple[str, ...] = ()


class Drain(Struct, frozen=True):
    """Evict the pods `uids` of one gang (`gang` "": a lone pod), as their node `node` is in maintenance, or, where that
    is "", as their `queue` is drained. `targets` are the nodes where room is kept for the new pods of their owners, pod
    by pod; empty where none is. `lost_milli_ms` is the work that is lost, in milli-GPU times ms."""

    gang: str
    uids: tuple[str, ...]
    node: str
    targets: tuple[str, ...]
    lost_milli_ms: int
    message: str
    step: int
    queue: str = ""


class Unnominate(Struct, frozen=True):
    """Clear the nominated nodes of these pods: the reservation after an `Evict` has ended."""

    gang: str
    uids: tuple[str, ...]
    message: str
    step: int


class MakeOffers(Struct, frozen=True):
    """Offer these to the agent of a request. The devices of the first are held until `until_ms`."""

    request: str
    offers: tuple[Offer, ...]
    until_ms: int
    step: int


class RequestStatus(Struct, frozen=True):
    """The state of a request (see `bargaining.states.RequestState`), and why it is not granted. Decided when that is
    new. `until_ms` is when it is tried again, 0 for whenever something changes."""

    request: str
    state: str
    refusal: Refusal | None
    step: int
    until_ms: int = 0


class GrantLease(Struct, frozen=True):
    """The lease is live, and the request with its id is granted."""

    lease: GpuLease
    step: int


class LeaseStatus(Struct, frozen=True):
    """A live lease has another state (see `bargaining.states.LeaseState`) or another end, or a renewal is refused:
    `refused` is why."""

    lease: GpuLease
    state: str
    step: int
    refused: str = ""


class RevokeLease(Struct, frozen=True):
    """The agent has to save its work now: its devices are taken back at the deadline."""

    lease: str
    revocation: Revocation
    step: int


class EndLease(Struct, frozen=True):
    """The lease is over. The pods `uids` still run in it: delete them. `rate_milli` is what it charged its queue, in
    milli-GPU."""

    lease: str
    cause: EndCause
    uids: tuple[str, ...]
    step: int
    rate_milli: int = 0


Decision = (
    Bind
    | Hold
    | Release
    | Evict
    | Drain
    | Unnominate
    | MakeOffers
    | RequestStatus
    | GrantLease
    | LeaseStatus
    | RevokeLease
    | EndLease
)
