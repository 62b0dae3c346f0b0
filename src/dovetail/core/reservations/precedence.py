# SPDX-License-Identifier: Apache-2.0
"""Which workload may hold a reservation, and which one displaces that of another.

Rules
- A reservation is sticky: it stays until its workload starts, is gone or cannot be tried, or until another workload
  displaces it. Among workloads of one queue (and user) that is one of a higher precedence. From another queue it is
  one that stays within its guarantee where the owner does not; or one that is larger than all that is due to its queue
  and whose turn it is, where the owner is smaller and beyond what is due. Precedence counts within a queue alone, and
  owners from other queues can only be larger: else two workloads could displace each other for ever. A reservation for
  which pods are evicted is never displaced; it ends when an eviction fails or takes too long.
- In queues that order by attained service, a workload that has a level of service already gets no reservation:
  workloads on the same level pass it, and are evicted once they had more service than it.
- Where both owners could use a node of the other's reservation there is only the first one, with one exception: a
  workload that is larger than all that is due to its queue, and whose turn it is, gets a second one beside that of a
  smaller owner, on other nodes. Else it would wait for that owner first, and gather its room only then. A workload that
  may hold none bars those behind it from the same nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.shapes import Shape
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.queues.queue_order import QueueOrder
from dovetail.core.queues.shares import Shares
from dovetail.core.reservations.reservation import Reservation
from dovetail.core.reservations.table import Reservations
from dovetail.core.workloads.index import Precedence


class ReservationPrecedence:
    def __init__(
        self,
        reservations: Reservations,
        cluster: Cluster,
        score_cache: ScoreCache,
        shares: Shares,
        queue_order: QueueOrder,
        reserve: bool,
    ) -> None:
        """reserve: whether there are reservations at all."""
        self._reservations, self._cluster, self._score_cache = reservations, cluster, score_cache
        self._shares, self._queue_order, self._reserve = shares, queue_order, reserve
        self._barred: NDArray[np.bool_] | None = None
        """The slots on which later workloads may hold no reservation: an earlier one that has none could use them."""

    def may_hold(self, precedence: Precedence) -> bool:
        """Whether workloads of this precedence get reservations."""
        return self._reserve and precedence[1] == 0

    def conflicts(self, shapes: Iterable[Shape], others: Iterable[Reservation]) -> bool:
        """Whether pods of these shapes could use a node that one of the reservations holds."""
        held = {int(slot) for one in others for slot in one.slots}
        if not held:
            return False
        slots = np.array(sorted(held), dtype=np.int64)
        return any(bool(self._score_cache.of(shape).suitable[slots].any()) for shape in shapes)

    def never(self, shapes: Sequence[Shape], queue: str, precedence: Precedence, wanted: Mapping[str, int]) -> bool:
        """Whether a workload of the queue that has no reservation cannot get one, whichever user it is of. If so, it
        bars those behind it."""
        guaranteed = self._shares.quota.within_guarantee(queue, wanted)
        staying = [
            one
            for one in self._reservations
            if not (any(_beats(one, queue, precedence, guaranteed)) or self._has_turn(queue, wanted, one))
        ]
        return self.denies(shapes, self.in_the_way(queue, wanted, staying))

    def in_the_way(
        self, queue: str, wanted: Mapping[str, int], staying: Sequence[Reservation]
    ) -> Sequence[Reservation]:
        """Those of the staying reservations beside which a workload of the queue may not hold room."""
        if len(staying) > 1:
            return staying
        return [one for one in staying if not self._outsizes(queue, wanted, one)]

    def _outsizes(self, queue: str, wanted: Mapping[str, int], one: Reservation) -> bool:
        return self._shares.quota.outsizes(queue, wanted, one.queue, self._shares.wanted_next(one.workload))

    def denies(self, shapes: Sequence[Shape], staying: Iterable[Reservation]) -> bool:
        """Whether a workload with pods of these shapes may hold no reservation: it could use nodes of a reservation
        that stays, or nodes that an earlier workload bars. If so, it bars those behind it."""
        suitable = self._suitable(shapes)
        barred = self._barred
        waited = barred is not None and bool((barred[: len(suitable)] & suitable[: len(barred)]).any())
        if not waited and not self.conflicts(shapes, staying):
            return False
        self.bar(shapes)
        return True

    def bar(self, shapes: Sequence[Shape]) -> None:
        """No later workload gets a reservation on nodes that pods of these shapes could use."""
        suitable = self._suitable(shapes)
        if self._barred is not None:
            suitable[: len(self._barred)] |= self._barred
        self._barred = suitable

    def _suitable(self, shapes: Sequence[Shape]) -> NDArray[np.bool_]:
        suitable = np.zeros(self._cluster.nodes.size, dtype=np.bool_)
        for shape in shapes:
            suitable |= self._score_cache.of(shape).suitable
        return suitable

    @property
    def barred(self) -> NDArray[np.bool_] | None:
        """By slot, where later workloads may hold no reservation; None for nowhere."""
        return self._barred

    def restore(self, barred: Sequence[int] | None) -> None:
        """Have these slots barred."""
        self._barred = None
        if barred is not None:
            self._barred = np.zeros(self._cluster.nodes.size, dtype=np.bool_)
            self._barred[list(barred)] = True

    def clear(self) -> None:
        """All waiting workloads are tried again, in their order."""
        self._barred = None

    def displaced(
        self,
        workload: str,
        precedence: Precedence,
        wanted: Mapping[str, int],
        guaranteed: bool,
        others: Iterable[Reservation],
    ) -> list[Reservation]:
        """The reservations of others that a workload with this request displaces. `guaranteed`: its queue stays within
        its guarantee with it."""
        queue_user, found = self._queue_order.queue_user(workload), []
        for one in others:
            within, beyond = _beats(one, queue_user[0], precedence, guaranteed)
            same = self._queue_order.queue_user(one.workload) == queue_user
            if within if same else beyond or self._has_turn(queue_user[0], wanted, one):
                found.append(one)
        return found

    def _has_turn(self, queue: str, wanted: Mapping[str, int], one: Reservation) -> bool:
        """Whether it is the turn of a workload that is larger than all that is due to its queue, so that it takes the
        place of a smaller one that is beyond what is due; not where pods are evicted for that one."""
        owner = self._shares.tree.queues.get(one.queue)
        if owner is None or one.evicts or self._cluster.now_ms - one.made_ms < (owner.reclaim_min_runtime_ms or 0):
            return False
        return self._shares.quota.outranks(queue, wanted, one.queue, self._shares.wanted_next(one.workload))


def _beats(one: Reservation, queue: str, precedence: Precedence, guaranteed: bool) -> tuple[bool, bool]:
    """Whether a workload of the queue displaces a reservation: where both are of one queue and user, and where not."""
    if one.evicts:
        return False, False
    return one.queue == queue and one.precedence < precedence, guaranteed and not one.guaranteed
