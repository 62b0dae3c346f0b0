# SPDX-License-Identifier: Apache-2.0
"""Publishes the history again and again, as long as the collector runs."""

from __future__ import annotations

import asyncio
import time

from dovetail.history.collector import metrics
from dovetail.history.prometheus.publication import Publication
from dovetail.history.store import StoreError

_REST = 50
"""It rests for at least so many times as long as it took: 2 % of a core."""


async def publishing(publication: Publication, every_s: float) -> None:
    """`publish` every so many seconds, in a thread. What goes wrong is in the log and the metrics, and tried again."""
    failure = ""
    while True:
        begun_s = time.monotonic()
        try:
            made = await asyncio.to_thread(publication.publish)
            metrics.PUBLICATIONS.labels("made").inc()
            metrics.PUBLISHED.set(made.series)
            metrics.PUBLISHED_BYTES.set(made.bytes)
            metrics.PUBLISHED_UNTIL.set(made.until_ms / 1000)
            failure = ""
        except StoreError as error:
            metrics.PUBLICATIONS.labels("failed").inc()
            if str(error) != failure:
                metrics.log.error("the history cannot be published: %s", error)
            failure = str(error)
        await asyncio.sleep(max(every_s, _REST * (time.monotonic() - begun_s)))
