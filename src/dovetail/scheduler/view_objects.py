# SPDX-License-Identifier: Apache-2.0
"""The objects that views show and the core does not read, for the process that answers views.

Rules
- Their changes, and those of what is noted as objects are read, are sent as the informers read them. At the start of
  the process all is sent: what this process keeps, and the finished pods, of which it keeps too little. These are
  listed once, page by page.
- Of a list only pods are sent that the informers know: what has changed since the list was made comes from them.
"""

from __future__ import annotations

import asyncio

from dovetail.kube.api.changes import Change
from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import Reader
from dovetail.kube.api.resources import PODS
from dovetail.kube.informers import Informers
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.pod_status import FINISHED
from dovetail.kube.translate.reported import WHOLE
from dovetail.scheduler.view_feed import ViewFeed

_PAGE = 250
_BETWEEN_PAGES_S = 0.02
"""Binds go out between two pages."""


class ViewObjects:
    """Of the cluster that the informers follow."""

    def __init__(self, client: Client, mirror: Informers, feed: ViewFeed, scheduler_name: str) -> None:
        self._client = client
        self._mirror = mirror
        self._feed = feed
        self._scheduler_name = scheduler_name
        mirror.seen = feed.report
        mirror.feed.on_notes = lambda about: feed.report_notes([(about, mirror.feed.notes(about))])

    async def report_all(self) -> None:
        """Send all objects. Raises ApiError."""
        for reflector in self._mirror.reflectors:
            if reflector.resource in WHOLE:
                self._feed.report(reflector.resource, [Change("added", one) for one in reflector.known.values()])
        self._feed.report_notes((about, self._mirror.feed.notes(about)) for about in self._mirror.feed.noted())
        for phase in sorted(FINISHED):
            await self._report_finished(phase)

    async def _report_finished(self, phase: str) -> None:
        reader, known = Reader(PODS, Pod), self._mirror.pods.known
        selector = f"spec.schedulerName={self._scheduler_name},status.phase={phase}"
        query: dict[str, str | int] = {"fieldSelector": selector, "limit": _PAGE}
        while True:
            page, _ = reader.page(await self._client.fetch("GET", PODS.path(), params=query))
            changes = [Change("added", one) for one in page.items or () if _is_known(one, known)]
            self._feed.report(PODS, changes)
            if not page.metadata.next_page:
                return
            query["continue"] = page.metadata.next_page
            await asyncio.sleep(_BETWEEN_PAGES_S)


def _is_known(pod: Pod, known: dict[tuple[str, str], Pod]) -> bool:
    found = known.get((pod.metadata.namespace, pod.metadata.name))
    return found is not None and found.metadata.uid == pod.metadata.uid
