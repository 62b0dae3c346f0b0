# SPDX-License-Identifier: Apache-2.0
"""The time of all GPUs of a UTC day, added up: what an answer for many days needs instead of all records.

Rules
- Sums are by all that the price of a GPU may depend on, but for the name of its node (`Place`), by state, and by all
  of a pod that the common groups are made of (`PodOwner`). Money is not kept: it is time x price.
- They are of a whole day, and exactly what the records of the day have together (`gpu_use`). So they can be dropped and
  made again at any time, and have to be when a record of that day changes.
- Pods and jobs are listed by numbers (`number_of`), so that those of several days can be counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from dovetail.history.gpu_use import UseOfPods
from dovetail.history.ledger import GpuTime, State
from dovetail.history.records import DAY_MS, GpuSpan, Period, PodRecord


class Place(Struct, frozen=True, array_like=True):
    """Of a GPU, as in `GpuSpan`."""

    model: str
    instance_type: str
    region: str
    zone: str
    spot: bool
    gpus: int
    index: int

    def span(self, node: str = "") -> GpuSpan:
        """A GPU at this place."""
        kind = self.instance_type, self.region, self.zone, self.spot
        return GpuSpan("", node, self.index, self.gpus, self.model, "healthy", 0, 0, *kind)


class PodOwner(Struct, frozen=True, array_like=True):
    """Of a pod, as in `PodRecord`."""

    namespace: str
    queue: str
    user: str


class TimeSum(Struct, array_like=True, gc=False):
    """GPU time of one place, state and owner, in thousandths times milliseconds (see `gpu_use`). `place` and `owner`
    are indices into the lists of the day; `owner` -1 is nobody, or a pod of which there is no record."""

    place: int
    state: State
    owner: int
    time: int = 0
    start_up_time: int = 0
    used_time: int = 0
    idle_time: int = 0


class HeldSum(Struct, array_like=True, gc=False):
    """The pods of an owner that held GPUs of a model: of each its number, that of its job, when it was bound (0: never)
    and how long it waited for that. A pod without a record has the job 0."""

    model: str
    owner: int
    pods: list[int]
    jobs: list[int]
    bound_ms: list[int]
    wait_ms: list[int]


class DaySums(Struct, array_like=True):
    """The day that begins at `start_ms`. `unknown_ms` is for how long holds were of GPUs in no span, `assumed_time` the
    allocated time where it is assumed which GPU was held."""

    start_ms: int
    places: list[Place]
    owners: list[PodOwner]
    times: list[TimeSum]
    held: list[HeldSum]
    unknown_ms: int = 0
    assumed_time: int = 0

    @property
    def period(self) -> Period:
        return Period(self.start_ms, self.start_ms + DAY_MS)

    def owner(self, index: int) -> PodOwner | None:
        return self.owners[index] if index >= 0 else None


_DECODER = Decoder(DaySums)
_ENCODER = Encoder()


def encoded(day: DaySums) -> bytes:
    """The sums as MessagePack."""
    return _ENCODER.encode(day)


def decoded(blob: bytes) -> DaySums:
    """Raises MsgspecError."""
    return _DECODER.decode(blob)


def number_of(*names: str) -> int:
    """A number for a name, which is never 0. That two of a million names have the same one has a chance of less than 1
    to ten million."""
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=8).digest()) | 1


def pod_number(pod_uid: str) -> int:
    return number_of(pod_uid)


def job_number(pod: PodRecord) -> int:
    return number_of(pod.namespace, pod.job or pod.name)


def wait_ms(pod: PodRecord) -> int:
    """How long a pod that was bound waited for that."""
    return max(0, pod.bound_ms - pod.submitted_ms)


class DaySummer:
    """Adds up the times of one day. They come by GPU."""

    def __init__(self, start_ms: int, pods: Mapping[str, PodRecord]) -> None:
        self.unknown_ms = self.assumed_time = 0
        self._start_ms, self._pods = start_ms, pods
        self._places: dict[Place, int] = {}
        self._owners: dict[PodOwner, int] = {}
        self._times: dict[tuple[int, State, int], TimeSum] = {}
        self._held: dict[tuple[str, int], dict[str, None]] = {}
        self._owner_of: dict[str, int] = {}

    def add(self, times: Iterable[GpuTime], use: UseOfPods) -> None:
        span: GpuSpan | None = None
        place = 0
        for one in times:
            if one.span is not span:
                span = one.span
                place = self._place(span)
            hold, amount = one.hold, one.amount
            owner = self._owner(hold.pod_uid) if hold is not None else -1
            key = place, one.state, owner
            found = self._times.get(key)
            if found is None:
                found = self._times[key] = TimeSum(*key)
            found.time += amount
            if hold is None:
                continue
            start_up, used, idle = use.parts(one, hold)
            found.start_up_time += start_up
            found.used_time += used
            found.idle_time += idle
            self._held.setdefault((span.model, owner), {})[hold.pod_uid] = None
            if not hold.named:
                self.assumed_time += amount

    def _place(self, span: GpuSpan) -> int:
        kind = span.instance_type, span.region, span.zone, span.spot
        return self._places.setdefault(Place(span.model, *kind, span.gpus, span.index), len(self._places))

    def _owner(self, uid: str) -> int:
        found = self._owner_of.get(uid)
        if found is None:
            pod, found = self._pods.get(uid), -1
            if pod is not None:
                owner = PodOwner(pod.namespace, pod.queue, pod.user)
                found = self._owners.setdefault(owner, len(self._owners))
            self._owner_of[uid] = found
        return found

    def made(self) -> DaySums:
        held = [self._held_sum(*key, list(uids)) for key, uids in self._held.items()]
        return DaySums(
            self._start_ms, list(self._places), list(self._owners), list(self._times.values()), held,
            self.unknown_ms, self.assumed_time,
        )  # fmt: skip

    def _held_sum(self, model: str, owner: int, uids: list[str]) -> HeldSum:
        numbers = [pod_number(uid) for uid in uids]
        if owner < 0:
            none = [0] * len(uids)
            return HeldSum(model, owner, numbers, none, none, none)
        pods = [self._pods[uid] for uid in uids]
        return HeldSum(
            model, owner, numbers, [job_number(pod) for pod in pods], [pod.bound_ms for pod in pods],
            [wait_ms(pod) for pod in pods],
        )  # fmt: skip
