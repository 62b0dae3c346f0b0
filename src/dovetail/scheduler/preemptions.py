# SPDX-License-Identifier: Apache-2.0
"""Executes preemptions: the evictions of the victims, the nominations of the preemptors, and the events on both.

Rules: a preemption is a transaction of the core. It ends when the preemptors are bound, or is dropped (`Unnominate`)
by the core itself or because a victim stays (`EvictionFailed`). Then the nominations are cleared, and victims that are
not evicted yet stay. The pods of a released gang are evicted the same way, but independently: a pod that a budget
protects does not keep the others, and the core releases it again after another deadline. The pods of a workload on a
node in maintenance, or in a drained queue, are evicted all or, as far as a dry run shows, none.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Literal

from dovetail.core.decisions import Drain, Evict, Release, Unnominate
from dovetail.core.events import EvictionFailed
from dovetail.core.model import Pod
from dovetail.kube.api.client import Client
from dovetail.kube.informers import Informers
from dovetail.scheduler import metrics
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.events import EventKind, Events
from dovetail.scheduler.evictor import Evictor, Victim
from dovetail.scheduler.messages import eviction_text, refusal_text
from dovetail.scheduler.nominations import Nominations

Released = Literal["release", "broken"]
_WHY: dict[Released, str] = {
    "release": "the gang started by half and was not completed in time",
    "broken": "the gang cannot go on",
}
_KINDS: dict[str, EventKind] = {
    "release": EventKind.RELEASED, "broken": EventKind.BROKEN, "move": EventKind.MOVED, "drain": EventKind.DRAINED,
    "stop": EventKind.DRAINED,
}  # fmt: skip
"""The events of evictions that are no preemptions, by cause."""
_ALONE = ("release", "broken")
"""The causes for which a pod that stays changes nothing for others."""


class Preemptions:
    """`spawn` runs the evictions as tasks in the background."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        mirror: Informers,
        events: Events,
        nominations: Nominations,
        *,
        may_write: Callable[[], bool],
        spawn: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self._clock = clock
        self._mirror = mirror
        self._events = events
        self._nominations = nominations
        self._spawn = spawn
        self._evictor = Evictor(
            client, clock, mirror.feed, may_write=may_write, evicted=self._evicted, failed=self._stays
        )

    def evict(self, evict: Evict) -> None:
        """Nominate the preemptors and send their events first, then evict the victims."""
        workload = evict.gang or (evict.nominations[0][0] if evict.nominations else "")
        note = eviction_text(evict)
        for uid, node in evict.nominations:
            self._nominations.put(uid, node, evict.step)
            target = self._mirror.feed.reported(uid)
            if target is not None:
                waits = f"waiting for room on {node}: {note}"
                self._events.put(target, EventKind.PREEMPTING, waits, step=evict.step)
        metrics.log.info("evicting %d pods: %s", len(evict.uids), note)
        preemptor = self._mirror.feed.reported(evict.nominations[0][0]) if evict.nominations else None
        targets = self._targets(evict.uids)
        if targets:
            victims = [Victim(target, evict.cause, workload, note, evict.step, preemptor) for target in targets]
            self._spawn(self._evictor.evict(victims))

    def give_up(self, unnominate: Unnominate) -> None:
        self._evictor.withdraw(unnominate.gang or next(iter(unnominate.uids), ""))
        metrics.log.info("room is no longer held for %d pods: %s", len(unnominate.uids), unnominate.message)
        for uid in unnominate.uids:
            self._nominations.clear(uid)
        for target in self._targets(unnominate.uids):
            self._events.put(target, EventKind.PREEMPTION_ENDED, unnominate.message, step=unnominate.step)

    def release(self, release: Release) -> None:
        why = refusal_text(release.refusal, self._clock.now_ms())
        cause: Released = "broken" if release.cause == "broken" else "release"
        note = f"{_WHY[cause]}: {why}"
        metrics.log.warning("releasing %d pods of %s: %s", len(release.uids), release.gang, note)
        for target in self._targets(release.uids):
            self._spawn(self._evictor.evict([Victim(target, cause, release.gang, note, release.step)]))

    def drain(self, drain: Drain) -> None:
        note, what = eviction_text(drain), drain.node or f"queue {drain.queue}"
        cause: Literal["drain", "stop"] = "drain" if drain.node else "stop"
        metrics.log.info("draining %s of %d pods: %s", what, len(drain.uids), note)
        victims = [Victim(target, cause, what, note, drain.step) for target in self._targets(drain.uids)]
        if victims:
            self._spawn(self._evictor.evict(victims))

    def bind_failed(self, uid: str) -> None:
        self._nominations.bind_failed(uid)

    def seen(self, pod: Pod) -> None:
        """Process the current state of a pod that is bound or nominated."""
        self._nominations.seen(pod)

    def gone(self, uid: str) -> None:
        """The pod is deleted or finished."""
        self._nominations.gone(uid)

    def _evicted(self, victim: Victim) -> None:
        kind = _KINDS.get(victim.cause, EventKind.PREEMPTED)
        self._events.put(victim.target, kind, victim.note, step=victim.step, related=victim.preemptor)

    def _stays(self, victim: Victim, why: str) -> None:
        if victim.cause not in _ALONE:
            self._mirror.put([EvictionFailed(victim.target.uid, f"pod {victim.target.key} stays: {why}")])

    def _targets(self, uids: Iterable[str]) -> list[Pod]:
        return [target for target in map(self._mirror.feed.reported, uids) if target is not None]
