# SPDX-License-Identifier: Apache-2.0
"""What is read only when a node needs it: events of a pod that does not start, the log of a container that fails, the
pods on a node, its ResourceSlices.

Nothing of this is watched: in a cluster that is well none of it is read. An answer is kept for `_KEPT_MS`, twice as
long each time for the same question, so that a node that stays broken costs a few requests an hour. A right that is
missing leaves the answer empty, and is remembered in `problems`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from msgspec import Struct

from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError, Forbidden, KubeError
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import EVENTS, PODS, RESOURCE_SLICES
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.operator.nodes.evidence import one_line
from dovetail.operator.nodes.outlines import WalkedEvent
from dovetail.operator.watched.pods import WatchedPod

T = TypeVar("T")

_KEPT_MS, _KEPT_MOST_MS = 10_000, 600_000
_LOG_LINES, _LOG_BYTES = 20, 16_384
_NO_LOG = "unable to retrieve container logs for"
"""What a kubelet serves in place of the log of a container that was removed. Source: pkg/kubelet/kubelet_pods.go."""
_MOST_KEPT = 4096


class Items(Wire, Generic[T], frozen=True):
    items: tuple[T, ...] = ()


class _Slice(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _Kept(Struct):
    answer: object
    read_ms: int
    lasts_ms: int


class NodeReads:
    """Reads through this client; `clock_ms` is epoch time. `problems`: by right that is missing, the server's text."""

    def __init__(self, client: Client, clock_ms: Callable[[], int]) -> None:
        self._client, self._clock_ms = client, clock_ms
        self._kept: dict[tuple[str, ...], _Kept] = {}
        self.problems: dict[str, str] = {}

    async def events(self, namespace: str, kind: str, name: str, uid: str = "") -> tuple[WalkedEvent, ...]:
        """The events of an object."""
        fields = {"regarding.kind": kind, "regarding.name": name}
        if uid:
            fields["regarding.uid"] = uid
        selector = ",".join(f"{path}={value}" for path, value in fields.items())

        async def read() -> tuple[WalkedEvent, ...]:
            params: dict[str, str | int] = {"fieldSelector": selector, "limit": 100}
            path = EVENTS.path(namespace)
            return (await self._client.request("GET", path, params=params, decode=Items[WalkedEvent])).items

        return await self._once(("events", namespace, selector), read, ())

    async def log_line(self, pod: WatchedPod, container: str, restarts: int) -> str:
        """The last line of the log of a container's run before. `restarts`: another one is another question."""
        meta = pod.metadata
        path = PODS.path(meta.namespace, meta.name, "log")
        params: dict[str, str | int] = {"container": container, "tailLines": _LOG_LINES, "limitBytes": _LOG_BYTES}

        async def read() -> str:
            for previous in ("true", "false"):
                try:
                    text = await self._client.fetch("GET", path, params={**params, "previous": previous})
                except Forbidden:
                    raise
                except ApiError:
                    # The log of that run is gone, or the kubelet does not answer.
                    continue
                line = one_line(text.decode(errors="replace"))
                if line and not line.startswith(_NO_LOG):
                    return line
            return ""

        return await self._once(("log", meta.uid, container, str(min(restarts, 3))), read, "")

    async def pods_on(self, node: str) -> tuple[WatchedPod, ...]:
        """The pods on a node that have not ended. Raises ApiError, as a guess would let a taint hit jobs."""
        params = {"fieldSelector": f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"}
        listing = await list_all(self._client, PODS, WatchedPod, params=params)
        return tuple(listing.objects.values())

    async def has_slices(self, node: str, driver: str) -> bool:
        """Whether a ResourceSlice of this driver offers devices of the node."""
        selector = f"spec.nodeName={node},spec.driver={driver}"

        async def read() -> bool:
            params: dict[str, str | int] = {"fieldSelector": selector, "limit": 1}
            found = await self._client.request("GET", RESOURCE_SLICES.path(), params=params, decode=Items[_Slice])
            return bool(found.items)

        return await self._once(("slices", selector), read, False)

    async def _once(self, key: tuple[str, ...], read: Callable[[], Awaitable[T]], nothing: T) -> T:
        now_ms = self._clock_ms()
        kept = self._kept.get(key)
        if kept is not None and now_ms - kept.read_ms < kept.lasts_ms:
            return kept.answer  # type: ignore[return-value]
        try:
            answer = await read()
            self.problems.pop(key[0], None)
        except Forbidden as error:
            answer, self.problems[key[0]] = nothing, str(error)
        except KubeError:
            answer = nothing
        lasts_ms = min(_KEPT_MOST_MS, 2 * kept.lasts_ms) if kept is not None else _KEPT_MS
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[key] = _Kept(answer, now_ms, lasts_ms)
        return answer
