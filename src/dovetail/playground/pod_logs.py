# SPDX-License-Identifier: Apache-2.0
"""The logs of pods: a pod has written the text in its annotation `playground.dovetail.dev/log` when it runs.

Not simulated: times of lines, logs of containers before the last restart.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from msgspec import Struct

from dovetail.apiserver import failures
from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.objects import Object, object_at, objects_at, text_at
from dovetail.apiserver.store import Store

LOG = "playground.dovetail.dev/log"
_BEGUN = ("Running", "Succeeded", "Failed")


class WrittenLogs(Struct, frozen=True):
    """Answers requests for logs from the pods in a store."""

    store: Store

    async def answer(self, request: web.BaseRequest, namespace: str, name: str) -> web.StreamResponse:
        """What the pod has written; with `follow` until it has ended. Raises Failures."""
        pod = self._pod(namespace, name)
        containers = [text_at(one, "name") for one in objects_at(pod, "spec.containers")]
        wanted = request.query.get("container") or containers[0]
        if wanted not in containers:
            raise failures.bad_request(f"container {wanted} is not valid for pod {name}")
        if not text_at(pod, "spec.nodeName"):
            raise failures.bad_request(f"pod {name} does not have a host assigned")
        if text_at(pod, "status.phase") not in _BEGUN:
            why = "ContainerCreating"
            raise failures.bad_request(f'container "{wanted}" in pod "{name}" is waiting to start: {why}')
        lines = str(object_at(pod, "metadata.annotations").get(LOG, "")).splitlines(keepends=True)
        if (tail := request.query.get("tailLines", "")).isdecimal():
            lines = lines[len(lines) - min(len(lines), int(tail)) :]
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write("".join(lines).encode())
        if request.query.get("follow") == "true":
            await self._end_of(namespace, name, text_at(pod, "metadata.uid"))
        await response.write_eof()
        return response

    def _pod(self, namespace: str, name: str) -> Object:
        pod = self.store.get("pods", namespace, name)
        if pod is None:
            raise failures.not_found("", "pods", name)
        return pod

    async def _end_of(self, namespace: str, name: str, uid: str) -> None:
        changed, listeners = asyncio.Event(), self.store.collection("pods").listeners

        def note(_: StoreChange) -> None:
            changed.set()

        listeners.append(note)
        try:
            while self._runs(namespace, name, uid):
                changed.clear()
                await changed.wait()
        finally:
            listeners.remove(note)

    def _runs(self, namespace: str, name: str, uid: str) -> bool:
        pod = self.store.get("pods", namespace, name)
        return pod is not None and text_at(pod, "metadata.uid") == uid and text_at(pod, "status.phase") == "Running"
