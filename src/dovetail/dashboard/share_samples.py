# SPDX-License-Identifier: Apache-2.0
"""The fair share, the GPUs and the credit of each queue over time, as the scheduler has published them.

Rules
- The history has what was allocated and used, and not what was due: so it is asked for each EVERY_S, from the start of
  this process on, whether somebody looks or not. That is one small question a minute.
- The last MOST_FINE samples are kept, and of those before each COARSE_EVERY-th one, MOST_COARSE of them.
- A time at which nobody answered is a gap, which has its reason. A queue that was not there has no value.
- It is of all namespaces: only users that may see all of them see it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.core.queues.amounts import GPU
from dovetail.core.queues.types import Amounts
from dovetail.dashboard.page_types import SampledQueue, SampleGap, SharesPage
from dovetail.dashboard.sheets import Sheet
from dovetail.dashboard.sources import SourceAway, ViewSource
from dovetail.kube.objects.views import QUEUE_SHARES
from dovetail.kube.reading.views import NoSuchObject, ViewRequest
from dovetail.views.queue_types import QueueShare

EVERY_S = 60.0
MOST_FINE, COARSE_EVERY, MOST_COARSE = 360, 30, 672
"""Six hours of minutes, and 14 days of half hours."""
MOST_QUEUES, MOST_GAPS = 500, 100
_MILLI = 1000


class _Sample(Struct, frozen=True):
    """By queue: GPUs due, GPUs allocated, credit in GPU-hours."""

    at_ms: int
    queues: dict[str, tuple[float, float, float]]


class ShareSamples:
    """Of one source."""

    def __init__(self, source: ViewSource, clock_ms: Callable[[], int]) -> None:
        self._source = source
        self._clock_ms = clock_ms
        self._fine: deque[_Sample] = deque()
        self._coarse: deque[_Sample] = deque(maxlen=MOST_COARSE)
        self._gaps: deque[SampleGap] = deque(maxlen=MOST_GAPS)
        self._passed = 0
        self._since_ms = clock_ms()
        self._sheet: Sheet | None = None

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
            self._add(_Sample(now_ms, dict(map(_values, shares[:MOST_QUEUES]))))
        self._sheet = None

    def sheet(self) -> Sheet:
        """The page, made once for all that look at it between two samples: of many queues it is long."""
        if self._sheet is None:
            page = self.page()
            self._sheet = Sheet(0, page.now_ms, page)
        return self._sheet

    def page(self) -> SharesPage:
        """What is known."""
        samples = [*self._coarse, *self._fine]
        names = dict.fromkeys(name for one in reversed(samples) for name in one.queues)
        queues = tuple(
            SampledQueue(name, *(tuple(of) for of in zip(*(_of(one, name) for one in samples), strict=True)))
            for name in list(names)[:MOST_QUEUES]
        )
        times = tuple(one.at_ms for one in samples)
        return SharesPage(self._clock_ms(), self._since_ms, times, queues, tuple(self._gaps), len(self._coarse))

    def _add(self, sample: _Sample) -> None:
        self._fine.append(sample)
        while len(self._fine) > MOST_FINE:
            oldest = self._fine.popleft()
            if self._passed % COARSE_EVERY == 0:
                self._coarse.append(oldest)
            self._passed += 1

    def _miss(self, now_ms: int, why: str) -> None:
        last = self._fine[-1].at_ms if self._fine else self._since_ms
        if self._gaps and self._gaps[-1].from_ms == last:
            self._gaps.pop()
        self._gaps.append(SampleGap(last, now_ms, why))


def _values(share: QueueShare) -> tuple[str, tuple[float, float, float]]:
    return share.queue, (_gpus(share.due), _gpus(share.allocated), round(share.credit_gpu_hours, 2))


def _gpus(amounts: Amounts) -> float:
    return dict(amounts).get(GPU, 0) / _MILLI


def _of(sample: _Sample, name: str) -> tuple[float | None, float | None, float | None]:
    return sample.queues.get(name, (None, None, None))
