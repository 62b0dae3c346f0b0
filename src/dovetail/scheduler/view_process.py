# SPDX-License-Identifier: Apache-2.0
"""The process that answers views runs while this one leads, and gets its calls of the core, and all objects that views
show."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from dovetail.aggregated.process import AnsweredApi, AnsweringProcess, Starter
from dovetail.aggregated.registration import ApiObjects
from dovetail.kube.api.client import Client
from dovetail.kube.objects.views import VIEWS_GROUP, VIEWS_VERSION
from dovetail.scheduler import metrics
from dovetail.scheduler.view_feed import ViewFeed

MODULE = "dovetail.viewserver"
VIEWS = ApiObjects("dovetail-views", f"{VIEWS_VERSION}.{VIEWS_GROUP}")


class ViewStarter(Starter):
    """`leads` is whether this process leads and knows the cluster; `wake` makes the main loop pass. `report` sends all
    objects that views show."""

    def __init__(
        self, feed: ViewFeed, leads: Callable[[], bool], wake: Callable[[], object],
        report: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._feed = feed
        self._leads = leads
        self._wake = wake
        self._report = report

    def decides(self) -> bool:
        return self._leads()

    async def connect(self, process: socket.socket, cut_off: Callable[[str], object]) -> None:
        self._feed.connect(process, cut_off)
        await self._report()
        self._feed.want_checkpoint()
        self._wake()

    def disconnect(self) -> None:
        self._feed.disconnect()


def view_process(
    client: Client, listen: str, namespace: str, scheduler_name: str, starter: ViewStarter, recording: Path | None
) -> AnsweringProcess:  # fmt: skip
    """`listen` is HOST:PORT, `namespace` that of the Service, `recording` the folder of the recording."""
    api = AnsweredApi(
        MODULE, "views", VIEWS, metrics.VIEW_SERVER_UP, metrics.VIEW_SERVER_ENDS, metrics.log,
        {"scheduler_name": scheduler_name, "recording": str(recording or "")},
    )  # fmt: skip
    return AnsweringProcess(client, api, listen, namespace, starter)
