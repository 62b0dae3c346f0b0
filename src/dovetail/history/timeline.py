# SPDX-License-Identifier: Apache-2.0
"""Records from the states of a cluster: a fold over time.

Rules
- `advance` examines only nodes that the journals of the cluster list since the last call, nodes where pods use devices
  by claim, and pods that are `touched`. The result is what to write: records that begin, change or end.
- A GPU is in a span while its node is there. A pod holds a GPU from its bind to its end; also while its node offers no
  GPUs, as long as the node is there. A pod of which the end has a time of its own ended then; any other one when it was
  seen to be gone, or before, when another pod began to hold the GPU.
- Two nodes that list one GPU, as when a node is renamed: the one that listed it later has it.
- A timeline goes on from records that are open (`begun`). The time since then is a gap. What is still there as it was
  goes on without a break; what is gone ended at the last time that was known, a pod as `Lost`.
- Time does not go back. While the clock is behind, changes are recorded at the last time, and a gap lists the time
  that the clock went back. A time of more than `gap_ms` between two calls is a gap too, if `gap_ms` is not 0.
- Not known here: a pod that came and went between two calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import Pod
from dovetail.core.queues.node_gpus import ListedGpu, NodeGpu, gpus_on
from dovetail.core.state import State
from dovetail.history.holdings import HeldGpu, held_on
from dovetail.history.ledger import WHOLE_MILLI
from dovetail.history.pod_records import NO_FACT, PodFact, asks_gpus, is_lease, record_of
from dovetail.history.records import Gap, GpuHold, GpuSpan, HistoryBatch, Outcome, PodRecord
from dovetail.kube.nodes.purchase import purchase_of

NOT_RUN = "nothing was recorded: the collector did not run"
NOT_ADVANCED = "nothing was recorded: the collector stood still"
CLOCK_BACK = "the clock went back"

_Key = tuple[str, str]
"""GPU and device of a hold."""


class Seen(Struct, frozen=True):
    """What changed since the last call beside the state: pods that are `touched`, by uid (None: any may be), the GPUs
    of nodes whose list is another than before (empty where there is no list any more), and facts of pods."""

    touched: Collection[str] | None = None
    gpus: Mapping[str, Sequence[ListedGpu]] = {}
    facts: Mapping[str, PodFact] = {}


ANYTHING = Seen()


class Timeline:
    """`offset_ms` is added to the times of the state: a simulation begins at 0."""

    def __init__(self, begun: HistoryBatch | None = None, offset_ms: int = 0, gap_ms: int = 0) -> None:
        self._offset_ms = offset_ms
        self._gap_ms = gap_ms
        self._last_ms = begun.until_ms if begun is not None else 0
        self._clock_ms = 0
        self._cursors = (-1, -1, -1)
        self._listed: dict[str, Sequence[ListedGpu]] = {}
        self._facts: dict[str, PodFact] = {}
        self._spans: dict[str, GpuSpan] = {}
        """Those that are open, by GPU."""
        self._gpus: dict[str, tuple[NodeGpu, ...]] = {}
        """By node, as they were seen last."""
        self._names: dict[int, str] = {}
        """The node of each slot, as it was seen last."""
        self._holds: dict[str, dict[_Key, GpuHold]] = {}
        """Those that are open, by pod."""
        self._on_node: dict[str, set[str]] = {}
        """The pods with open holds, by node."""
        self._claiming: set[str] = set()
        """The nodes where pods use devices by claim."""
        self._known: dict[str, Pod] = {}
        """The pods that are there, as they were seen last."""
        self._records: dict[str, PodRecord] = {}
        """Those that are open, by pod."""
        self._batch = _Written()
        self._restarts = begun is not None and begun.until_ms > 0
        if begun is not None:
            self._begin(begun)

    def _begin(self, begun: HistoryBatch) -> None:
        self._spans = {span.gpu: span for span in begun.spans}
        nodes = {span.gpu: span.node for span in begun.spans}
        for span in begun.spans:
            self._gpus.setdefault(span.node, ())
        self._records = {record.uid: record for record in begun.pods}
        for hold in begun.holds:
            self._holds.setdefault(hold.pod_uid, {})[hold.gpu, hold.device] = hold
            record = self._records.get(hold.pod_uid)
            node = record.node if record is not None else nodes.get(hold.gpu, "")
            self._on_node.setdefault(node, set()).add(hold.pod_uid)

    def advance(self, state: State, now_ms: int, seen: Seen = ANYTHING) -> HistoryBatch:
        """What is to be written, as of now."""
        before_ms = self._last_ms
        now_ms += self._offset_ms
        self._batch = batch = _Written()
        if self._restarts and now_ms > before_ms:
            batch.gaps.append(Gap(before_ms, now_ms, NOT_RUN))
        elif self._gap_ms and before_ms and now_ms - before_ms > self._gap_ms:
            batch.gaps.append(Gap(before_ms, now_ms, NOT_ADVANCED))
        if now_ms < max(self._clock_ms, before_ms if self._restarts else 0):
            batch.gaps.append(Gap(now_ms, before_ms, CLOCK_BACK))
        self._clock_ms = now_ms
        now_ms = max(now_ms, before_ms)
        since_ms = before_ms or now_ms
        gone_ms = before_ms if self._restarts else now_ms
        times = _Times(since_ms, now_ms, gone_ms)
        self._listed |= seen.gpus
        self._facts |= seen.facts
        for name in self._changed(state, seen.gpus):
            self._advance_node(state, name, times)
        anything = seen.touched is None or self._restarts
        self._advance_pods(state, times, None if anything else (*(seen.touched or ()), *seen.facts))
        for uid in seen.facts:
            if uid not in self._records:
                self._facts.pop(uid, None)
        self._last_ms, self._restarts = now_ms, False
        return batch.made(now_ms)

    def _changed(self, state: State, listed: Iterable[str]) -> list[str]:
        """The nodes to be examined, in an order that depends on the cluster alone."""
        nodes = state.cluster.nodes
        journals = nodes.amounts_journal, nodes.records_journal, nodes.devices_journal
        first = self._cursors[0] < 0
        changed = [None if first else one.since(at) for one, at in zip(journals, self._cursors, strict=True)]
        self._cursors = journals[0].end, journals[1].end, journals[2].end
        found: dict[str, None] = {}
        every = any(some is None for some in changed)
        for slot in (
            range(nodes.used) if every else [int(slot) for slots in changed if slots is not None for slot in slots]
        ):
            name, before = nodes.names[slot], self._names.get(slot, "")
            if before and before != name:
                found[before] = None
            if name:
                found[name] = None
            self._names[slot] = name
        if first:
            found |= dict.fromkeys([*self._gpus, *self._on_node])
        found |= dict.fromkeys([*sorted(self._claiming), *(name for name in listed if name in nodes.slots)])
        return list(found)

    def _advance_node(self, state: State, name: str, times: _Times) -> None:
        slot = state.cluster.nodes.slots.get(name)
        gpus = gpus_on(state, slot, self._listed.get(name, ())) if slot is not None else ()
        self._put_spans(state, name, gpus, times)
        own = self._on_node.get(name, set())
        kept = {uid: [_held(one) for one in self._holds[uid].values()] for uid in own}
        held = held_on(state, slot, gpus, kept) if slot is not None and gpus else {}
        new = [one for uid, some in held.items() for one in self._new_holds(state, uid, some, times)]
        for uid in sorted(own):
            end_ms = times.now_ms if uid in held else self._end_ms(state, uid, times)
            self._put_old(uid, held.get(uid, ()), new, end_ms)
        for hold in new:
            self._holds.setdefault(hold.pod_uid, {})[hold.gpu, hold.device] = hold
            self._batch.holds.append(hold)
            self._batch.held[hold.pod_uid] = None
        for uid in own:
            if not self._holds[uid]:
                del self._holds[uid]
        self._on_node[name] = set(held)
        if not held:
            del self._on_node[name]
        placements = [state.cluster.placements[uid] for uid in held]
        if any(one.pod.device_claims or one.grants for one in placements):
            self._claiming.add(name)
        else:
            self._claiming.discard(name)

    def _new_holds(self, state: State, uid: str, held: Iterable[HeldGpu], times: _Times) -> Iterator[GpuHold]:
        """What the pod holds now and did not hold before."""
        before, bound_ms = self._holds.get(uid, {}), state.cluster.placements[uid].pod.bound_ms + self._offset_ms
        start_ms = bound_ms if times.since_ms <= bound_ms <= times.now_ms and not before else times.now_ms
        for one in held:
            hold = before.get((one.gpu, one.device))
            if hold is None or (hold.milli, hold.kind) != (one.milli, one.kind):
                yield GpuHold(uid, one.gpu, one.milli, one.kind, start_ms, 0, one.device, one.named)

    def _put_old(self, uid: str, held: Iterable[HeldGpu], new: Sequence[GpuHold], end_ms: int) -> None:
        """Of what the pod held, end what it does not hold any more: when it gave that up, or before, when another
        hold began for which there is no room otherwise."""
        holds, now = self._holds[uid], {(one.gpu, one.device): one for one in held}
        for key, hold in list(holds.items()):
            one = now.get(key)
            if one is None or (one.milli, one.kind) != (hold.milli, hold.kind):
                starts = [
                    other.start_ms
                    for other in new
                    if other.gpu == hold.gpu and other.pod_uid != uid and other.milli + hold.milli > WHOLE_MILLI
                ]
                end_ms_here = max(min([end_ms, *starts]), hold.start_ms)
                self._batch.holds.append(replace(holds.pop(key), end_ms=end_ms_here))
                self._batch.held[uid] = None
            elif one.named != hold.named:
                # It is known better, or less well, than before.
                holds[key] = replace(hold, named=one.named)
                self._batch.holds.append(holds[key])

    def _put_spans(self, state: State, name: str, gpus: tuple[NodeGpu, ...], times: _Times) -> None:
        before = {one.name for one in self._gpus.get(name, ())}
        bought = purchase_of(state.cluster.nodes.labels[state.cluster.nodes.slots[name]] if gpus else {})
        there: set[str] = set()
        for one in gpus:
            span = GpuSpan(
                one.name, name, one.index, len(gpus), one.model, "healthy" if one.healthy else "unhealthy", 0, 0,
                bought.instance_type, bought.region, bought.zone, bought.spot,
            )  # fmt: skip
            now = self._spans.get(one.name)
            there.add(one.name)
            if now is not None and now.node != name and one.name in before:
                continue  # The other node listed it later.
            if now is not None and replace(now, start_ms=0) == span:
                continue
            if now is not None:
                self._end_span(now, times.gone_ms)
            self._spans[one.name] = span = replace(span, start_ms=times.now_ms)
            self._batch.spans.append(span)
        gone = [one for one in before if one not in there]
        if not self._gpus.get(name):
            # After a restart the spans are all that is known of the node.
            gone = [span.gpu for span in self._spans.values() if span.node == name and span.gpu not in there]
        for gpu in sorted(gone):
            if (now := self._spans.get(gpu)) is not None and now.node == name:
                self._end_span(now, times.gone_ms)
                del self._spans[gpu]
        if gpus:
            self._gpus[name] = gpus
        else:
            self._gpus.pop(name, None)
            if state.cluster.nodes.slots.get(name) is None:
                self._listed.pop(name, None)

    def _end_span(self, span: GpuSpan, end_ms: int) -> None:
        self._batch.spans.append(replace(span, end_ms=max(end_ms, span.start_ms)))

    def _end_ms(self, state: State, uid: str, times: _Times) -> int:
        """When a pod that holds nothing on its node any more gave that up."""
        if uid in state.cluster.placements or uid in state.workloads.pods:
            return times.now_ms
        ended_ms = self._facts.get(uid, NO_FACT).ended_ms
        return min(max(ended_ms, times.since_ms), times.now_ms) if ended_ms else times.gone_ms

    def _advance_pods(self, state: State, times: _Times, touched: Collection[str] | None) -> None:
        pods = state.workloads.pods
        if touched is None:
            uids = [uid for uid, pod in pods.items() if self._known.get(uid) is not pod]
            uids += [uid for uid in self._records if uid not in pods]
        else:
            uids = list(touched)
        for uid in dict.fromkeys([*uids, *self._batch.held]):
            pod = pods.get(uid)
            if pod is None:
                self._known.pop(uid, None)
                self._end_pod(uid, times)
                continue
            self._known[uid] = pod
            if asks_gpus(pod) and (not is_lease(pod) or uid in self._holds):
                self._put_pod(state, pod, times)

    def _put_pod(self, state: State, pod: Pod, times: _Times) -> None:
        uid, before = pod.uid, self._records.get(pod.uid)
        fact = self._facts.get(uid) or _fact(before)
        record = record_of(state, pod, fact, self._offset_ms)
        holds = self._holds.get(uid)
        if holds:
            bound_ms = record.bound_ms or (before.bound_ms if before is not None else 0)
            record = replace(
                record,
                gpu_milli=sum(hold.milli for hold in holds.values()),
                bound_ms=bound_ms or min(hold.start_ms for hold in holds.values()),
            )
        submitted_ms = record.submitted_ms or (before.submitted_ms if before is not None else times.now_ms)
        record = replace(record, submitted_ms=submitted_ms)
        if record != before:
            self._records[uid] = record
            self._batch.pods.append(record)

    def _end_pod(self, uid: str, times: _Times) -> None:
        record, fact = self._records.pop(uid, None), self._facts.pop(uid, None)
        if record is None:
            return
        known = fact or NO_FACT
        outcome: Outcome = known.outcome or ("Lost" if self._restarts else "Deleted")
        ended_ms = min(max(known.ended_ms, record.submitted_ms), times.now_ms) if known.ended_ms else times.gone_ms
        self._batch.pods.append(
            replace(
                record,
                kind=record.kind or known.kind,
                started_ms=known.started_ms or record.started_ms,
                restarts=max(known.restarts, record.restarts),
                ended_ms=max(ended_ms, record.submitted_ms),
                outcome=outcome,
                code=known.code or record.code,
                message=known.message or record.message,
            )
        )


class _Times(Struct, frozen=True):
    """The last time that is known, the time now, and when what is gone ended if nothing else is known of it."""

    since_ms: int
    now_ms: int
    gone_ms: int


class _Written:
    """A batch in the making. `held` are the pods that hold other GPUs than before."""

    def __init__(self) -> None:
        self.spans: list[GpuSpan] = []
        self.holds: list[GpuHold] = []
        self.pods: list[PodRecord] = []
        self.gaps: list[Gap] = []
        self.held: dict[str, None] = {}

    def made(self, until_ms: int) -> HistoryBatch:
        return HistoryBatch(until_ms, self.spans, self.holds, self.pods, (), self.gaps)


def _held(hold: GpuHold) -> HeldGpu:
    return HeldGpu(hold.gpu, hold.milli, hold.kind, hold.device, hold.named)


def _fact(record: PodRecord | None) -> PodFact:
    """What was known before."""
    if record is None:
        return NO_FACT
    return PodFact(
        record.kind, record.scheduler, record.started_ms, 0, record.restarts, "", record.code, record.message
    )
