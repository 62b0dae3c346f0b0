# SPDX-License-Identifier: Apache-2.0
"""What one job may reclaim from other queues, one unit (see `preemption.units`) after another.

The queues of the job and of a unit are compared where their paths part in the tree, and at every level below. A unit
with GPUs is judged by its GPUs if the job requests GPUs, else by the CPU and memory that it holds and the job requests.
`due` is the exact fair share of a queue. `after` is what the job's queue holds beyond its due once the job runs.
`excess` is what the unit's queue holds beyond its due now, and `rest` the same without the unit.

1. A queue within its guarantee keeps what it holds. A class that the guarantee does not name is not guaranteed, and
   takes nothing away from the named classes. A unit may have `pieces`, pods that the rest of its workload could do
   without: they count as gone first. So a gang that can shrink is taken as a whole only where its rest could be taken.
2. A job that stays within its queue's guarantee takes whatever other queues hold beyond theirs.
3. Any other job takes units that have run for the least run time of their queue (`settled` is the multiple), that have
   more work left than they lose as far as that is known, and of which at least half is excess, if

   - `after < excess`, and the unit is `cheap`: it loses at most a tenth of its work since it started; or
   - the eviction settles both queues, by their due now and by their due without history (`FairShare.lasting`). They are
     settled if `after <= 0 <= rest` (within an eighth for a job of several GPUs); or if `after` is less than a whole
     GPU, `after < excess` and `rest > 0`; or if the job's queue holds nothing and `after <= 0`: from a unit n times as
     large as the job once it has run for n times the least run time.

   A job that is larger than its queue's due takes only cheap units, and only while its queue holds nothing.

So an eviction that loses work is never reversed by history, which changes with usage: the reverse eviction is allowed
only once some queue requests more or less. An eviction that follows history loses at most a tenth of the work. Decided
evictions count as done for the job that they are for. So do units taken from the job's own queue, and from those beside
it for the queues above both, up to the amounts of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from dovetail.core.queues.fair_share import FairShare
from dovetail.core.queues.guarantees import within
from dovetail.core.queues.totals import QueueTotals
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import DIVIDED, GPU

_NOTHING: Mapping[str, int] = {}
LONG_SETTLED = 1024
"""Such a multiple of the least run time settles a unit for any job; so does a queue without a least run time."""


class ReclaimRight(IntEnum):
    """The right by which a queue takes more: it stays within its guarantee; or within its due, rounded up to a whole
    GPU; or takes its turn, since the job is larger than the due."""

    GUARANTEED = 0
    DUE = 1
    TURN = 2


class Reclaim:
    def __init__(
        self, tree: Tree, totals: QueueTotals, fair_share: FairShare, pledged: Mapping[str, Mapping[str, int]],
        queue: str, amounts: Mapping[str, int], rights: Sequence[ReclaimRight | None] | None = None,
    ) -> None:  # fmt: skip
        """pledged: the change of what queues hold once all decided evictions are done. rights: those of the queues on
        the job's path, where they are known."""
        self._tree = tree
        self._totals = totals
        self._fair_share = fair_share
        self._queue = queue
        self._path = tree.known_path(queue)
        self._amounts = amounts
        self._wanted = [resource for resource in DIVIDED if amounts.get(resource, 0)]
        self._taken: dict[str, dict[str, int]] = {}
        """What was taken from each queue, including from the queues below it."""
        self._pledged = pledged
        self._rights = [self._right(name) for name in self._path] if rights is None else list(rights)

    @property
    def hopeless(self) -> bool:
        """Whether the queue may take nothing at all."""
        return not self._rights or self._rights[0] is None

    def copy(self) -> Reclaim:
        """An independent copy."""
        other = Reclaim(
            self._tree, self._totals, self._fair_share, self._pledged, self._queue, self._amounts, self._rights
        )
        other._taken = {name: dict(taken) for name, taken in self._taken.items()}
        return other

    def level(self, queue: str) -> int:
        """The number of levels from the job's queue up to where the queue's path parts; 0 for its siblings, -1 where
        the paths never part."""
        level = self._parting(queue, [name for name in self._tree.known_path(queue) if name not in self._path])
        return -1 if level is None else level

    def takes(
        self, queue: str, amounts: Mapping[str, int], *, settled: int = LONG_SETTLED, cheap: bool = True,
        pieces: Mapping[str, int] = _NOTHING,
    ) -> bool:  # fmt: skip
        """Whether a unit of the queue with these amounts may be taken, of which the `pieces` could be taken one by one.
        If so, it counts as taken. Without amounts: whether any unit could be."""
        theirs = [name for name in self._tree.known_path(queue) if name not in self._path]
        level = self._parting(queue, theirs)
        if level is None:
            return False
        rights = [right for right in self._rights[: level + 1] if right is not None]
        if len(rights) <= level:
            return False
        judged = self._judged(amounts)
        if rights[level] is ReclaimRight.GUARANTEED:
            allowed = all(self._beyond_guarantee(name, judged, pieces) for name in theirs)
        else:
            allowed = False
        if not allowed and settled:
            turn = ReclaimRight.TURN in rights
            mine = self._path[level]
            allowed = all(
                any(
                    self._improves(mine, name, one, amounts.get(one, 0), pieces.get(one, 0), settled, cheap, turn)
                    for one in judged
                )
                and not self._kept(name, judged, pieces)
                for name in theirs
            )
        if allowed and amounts:
            self.count(queue, amounts)
        return allowed

    def count(self, queue: str, amounts: Mapping[str, int]) -> None:
        """Count the amounts as taken from the queue, and from those above it."""
        names = self._tree.known_path(queue)
        for name in names:
            taken = self._taken.setdefault(name, {})
            for resource, amount in amounts.items():
                taken[resource] = taken.get(resource, 0) + amount
        self._rights = [
            self._right(name) if name in names else right for name, right in zip(self._path, self._rights, strict=True)
        ]

    def _parting(self, queue: str, theirs: list[str]) -> int | None:
        """The index on the job's path where the two paths part; None where they never part."""
        if not theirs or queue == self._path[0]:
            return None
        queues = self._tree.queues
        parent = queues[theirs[-1]].parent
        return next((level for level, name in enumerate(self._path) if queues[name].parent == parent), None)

    def _judged(self, amounts: Mapping[str, int]) -> list[str]:
        """The classes by which a unit is judged."""
        if not amounts:
            return self._wanted
        if GPU in self._wanted and amounts.get(GPU, 0):
            return [GPU]
        return [resource for resource in self._wanted if amounts.get(resource, 0)]

    def _right(self, name: str) -> ReclaimRight | None:
        """The right of a queue on the job's path, including what is pledged to it, and without what was taken from it:
        that counts up to the amounts of the job, since the job needs no more."""
        pledged, taken = self._pledged.get(name, {}), self._taken.get(name, {})
        more = {resource: amount + pledged.get(resource, 0) for resource, amount in self._amounts.items()}
        less = {resource: min(amount, self._amounts.get(resource, 0)) for resource, amount in taken.items()}
        if within(self._tree.queues[name].guarantee, self._totals.held(name), more, less):
            return ReclaimRight.GUARANTEED
        exact = self._fair_share.exact
        beyond = [r for r in self._wanted if self._after(name, r, exact) > max(self._slack(r), DIVIDED[r] - 1)]
        if not beyond:
            return ReclaimRight.DUE
        return None if any(self._holds(name, one) for one in beyond) else ReclaimRight.TURN

    def _holds(self, name: str, resource: str) -> int:
        """What a queue on the job's path holds without the job, including what is pledged to it, and without what was
        taken from it, which counts up to the amounts of the job."""
        taken = self._taken.get(name, {}).get(resource, 0)
        beyond = max(0, taken - self._amounts.get(resource, 0))
        return self._left(name, resource) + beyond

    def _after(self, name: str, resource: str, due: Callable[[str], Mapping[str, int]]) -> int:
        """What a queue on the job's path holds beyond its due once the job runs."""
        return self._holds(name, resource) + self._amounts.get(resource, 0) - due(name).get(resource, 0)

    def _slack(self, resource: str) -> int:
        """How far a job of several GPUs may miss its due, which changes with usage: by an eighth of what it requests
        beyond one GPU."""
        return max(0, self._amounts.get(resource, 0) - DIVIDED[resource]) // 8 if resource == GPU else 0

    def _left(self, name: str, resource: str) -> int:
        """What a queue holds, including what is pledged to it, and without what was taken."""
        held, pledged = self._totals.held(name), self._pledged.get(name, {})
        return held.get(resource, 0) + pledged.get(resource, 0) - self._taken.get(name, {}).get(resource, 0)

    def _kept(self, name: str, judged: list[str], pieces: Mapping[str, int]) -> bool:
        """Whether the queue keeps its holdings in these classes, being within its guarantee without the pieces."""
        guarantee = dict(self._tree.queues[name].guarantee)
        named = [resource for resource in judged if resource in guarantee]
        return bool(named) and all(self._left(name, r) - pieces.get(r, 0) <= guarantee[r] for r in named)

    def _beyond_guarantee(self, name: str, judged: list[str], pieces: Mapping[str, int]) -> bool:
        """Whether the queue exceeds its guarantee even without the pieces, in one of the classes that the guarantee
        names, or in any class where it names none of them."""
        guarantee = dict(self._tree.queues[name].guarantee)
        named = [resource for resource in judged if resource in guarantee] or judged
        return any(self._left(name, r) - pieces.get(r, 0) > guarantee.get(r, 0) for r in named)

    def _improves(
        self, mine: str, name: str, resource: str, amount: int, pieces: int, settled: int, cheap: bool, turn: bool
    ) -> bool:  # fmt: skip
        """Whether both queues are nearer to their due once the job runs instead of the unit (rule 3)."""
        dues, core = self._fair_share, amount - pieces
        after = self._after(mine, resource, dues.exact)
        excess = self._left(name, resource) - dues.exact(name).get(resource, 0)
        rest = excess - pieces
        if rest <= 0 or 2 * rest < core:
            return False
        if cheap and after < rest:
            return True
        if turn or not self._settles(mine, resource, amount, after, excess, settled):
            return False
        after = self._after(mine, resource, dues.lasting)
        excess = self._left(name, resource) - dues.lasting(name).get(resource, 0)
        return 2 * (excess - pieces) >= core and self._settles(mine, resource, amount, after, excess, settled)

    def _settles(self, mine: str, resource: str, amount: int, after: int, excess: int, settled: int) -> bool:
        """Whether both queues are then near their due, so that no queue asks for the reverse eviction."""
        rest, slack = excess - amount, self._slack(resource)
        return (
            (after <= slack and rest >= -slack)
            or (0 < after < DIVIDED[resource] and rest > 0 and after < excess)
            or (after <= 0 and not self._holds(mine, resource) and amount <= settled * self._amounts.get(resource, 0))
        )
