# SPDX-License-Identifier: Apache-2.0
"""The fair share, the GPUs and the credit of each queue over time, as the scheduler has published them.

Rules
- The history has what was allocated and used, and not what was due: so it is asked for each EVERY_S, from the start of
  this process on, whether somebody looks or not. That is one small question a minute.
- The last MOST_FINE samples are kept, and of those before each COARSE_EVERY-th one, MOST_COARSE of them.
- A time at which nobody answered is a gap, which has its reason. A queue that was not there has no value.
- Values are kept as columns of numbers, and the page is kept packed alone, as it is sent: of many queues it is long.
- For a queue beyond MOST_QUEUES the one goes that was not there for longest.
- It is of all namespaces: only users that may see all of them see it.
"""

from __future__ import annotations

import asyncio
import gzip
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from math import isnan, nan

import msgspec
from msgspec import structs

from dovetail.core.json_text import JsonError, decode_json
from dovetail.core.queues.amounts import GPU
from dovetail.core.queues.types import Amounts
from dovetail.dashboard.page_types import SampledQueue, SampleGap, SharesPage
from dovetail.dashboard.sheets import PACKED_LEVEL, SheetDocument, csv_of
from dovetail.dashboard.sources import SourceAway, ViewSource
from dovetail.kube.objects.views import QUEUE_SHARES
from dovetail.kube.reading.views import NoSuchObject, ViewRequest
from dovetail.views.queue_types import QueueShare

EVERY_S = 60.0
MOST_FINE, COARSE_EVERY, MOST_COARSE = 360, 30, 672
"""Six hours of minutes, and 14 days of half hours."""
MOST_QUEUES, MOST_GAPS = 500, 100
_MILLI = 1000
_Values = tuple[float, float, float]
"""GPUs due, GPUs allocated, credit in GPU-hours; not numbers (NaN) of a queue that was not there."""
_NOT_THERE = (nan, nan, nan)


class _Column:
    """The values of a queue. `seen` is the number of the last sample that has it."""

    def __init__(self, count: int) -> None:
        none = array("d", [nan]) * count
        self.parts = none, none[:], none[:]
        self.seen = -1

    def add(self, values: _Values) -> None:
        for part, value in zip(self.parts, values, strict=True):
            part.append(value)

    def take_oldest(self) -> _Values:
        due, allocated, credit = self.parts
        return due.pop(0), allocated.pop(0), credit.pop(0)


class _Kept:
    """Samples at one distance, numbered as they came: the times of those that are kept, and the columns of their
    queues, which have a value for each time."""

    def __init__(self) -> None:
        self.times_ms: array[int] = array("q")
        self.columns: dict[str, _Column] = {}
        self._count = 0

    def add(self, at_ms: int, queues: Mapping[str, _Values]) -> None:
        """Add a sample of MOST_QUEUES queues at most."""
        for name in queues:
            if name not in self.columns:
                if len(self.columns) >= MOST_QUEUES:
                    gone = [one for one in self.columns if one not in queues]
                    del self.columns[min(gone, key=lambda one: self.columns[one].seen)]
                self.columns[name] = _Column(len(self.times_ms))
            self.columns[name].seen = self._count
        for name, column in self.columns.items():
            column.add(queues.get(name, _NOT_THERE))
        self.times_ms.append(at_ms)
        self._count += 1

    def take_oldest(self) -> tuple[int, dict[str, _Values]]:
        """The oldest sample, which is not kept any longer."""
        found = {name: column.take_oldest() for name, column in self.columns.items()}
        at_ms = self.times_ms.pop(0)
        first = self._count - len(self.times_ms)
        self.columns = {name: one for name, one in self.columns.items() if one.seen >= first}
        return at_ms, {name: values for name, values in found.items() if not isnan(values[0])}


class ShareSamples:
    """Of one source."""

    def __init__(self, source: ViewSource, clock_ms: Callable[[], int]) -> None:
        self._source = source
        self._clock_ms = clock_ms
        self._fine, self._coarse = _Kept(), _Kept()
        self._gaps: deque[SampleGap] = deque(maxlen=MOST_GAPS)
        self._passed = 0
        self._since_ms = clock_ms()
        self._packed: tuple[int, bytes] | None = None

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(EVERY_S)

    async def sample(self) -> None:
        """Ask once."""
        now_ms = self._clock_ms()
        try:
            found = await self._source.ask(ViewRequest(QUEUE_SHARES, ""))
            shares = decode_json(found.answer, tuple[QueueShare, ...])
        except (SourceAway, NoSuchObject, JsonError) as error:
            self._miss(now_ms, str(error))
        else:
            self._add(now_ms, dict(map(_values, shares[:MOST_QUEUES])))
        self._packed = None

    def packed(self) -> tuple[int, bytes]:
        """The time of the page, and its JSON by gzip: made once for all that look at it between two samples, a queue
        after the other."""
        if self._packed is None:
            now_ms = self._clock_ms()
            times = (*self._coarse.times_ms, *self._fine.times_ms)
            page = SharesPage(now_ms, self._since_ms, times, (), tuple(self._gaps), len(self._coarse.times_ms))
            queues = [msgspec.Raw(msgspec.json.encode(one)) for one in self._queues()]
            encoded = msgspec.json.encode(structs.asdict(page) | {"queues": queues})
            text = msgspec.json.encode(SheetDocument(now_ms, msgspec.Raw(encoded), ""))
            self._packed = now_ms, gzip.compress(text, PACKED_LEVEL)
        return self._packed

    def csv(self) -> str:
        """A row for each queue."""
        return csv_of(msgspec.to_builtins(one) for one in self._queues())

    def _queues(self) -> Iterator[SampledQueue]:
        """The queues, those that were there last first."""
        fine, coarse = self._fine, self._coarse
        older = sorted(coarse.columns.keys() - fine.columns.keys(), key=lambda one: -coarse.columns[one].seen)
        names = [*sorted(fine.columns, key=lambda one: -fine.columns[one].seen), *older]
        before, after = _Column(len(coarse.times_ms)), _Column(len(fine.times_ms))
        for name in names[:MOST_QUEUES]:
            parts = zip(coarse.columns.get(name, before).parts, fine.columns.get(name, after).parts, strict=True)
            yield SampledQueue(name, *(tuple(None if isnan(one) else one for one in (*a, *b)) for a, b in parts))

    def _add(self, at_ms: int, queues: dict[str, _Values]) -> None:
        self._fine.add(at_ms, queues)
        while len(self._fine.times_ms) > MOST_FINE:
            oldest = self._fine.take_oldest()
            if self._passed % COARSE_EVERY == 0:
                self._coarse.add(*oldest)
            self._passed += 1
        while len(self._coarse.times_ms) > MOST_COARSE:
            self._coarse.take_oldest()

    def _miss(self, now_ms: int, why: str) -> None:
        last = self._fine.times_ms[-1] if self._fine.times_ms else self._since_ms
        if self._gaps and self._gaps[-1].from_ms == last:
            self._gaps.pop()
        self._gaps.append(SampleGap(last, now_ms, why))


def _values(share: QueueShare) -> tuple[str, _Values]:
    return share.queue, (_gpus(share.due), _gpus(share.allocated), round(share.credit_gpu_hours, 2))


def _gpus(amounts: Amounts) -> float:
    return dict(amounts).get(GPU, 0) / _MILLI
