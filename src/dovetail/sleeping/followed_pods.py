# SPDX-License-Identifier: Apache-2.0
"""The pods of a namespace, as a watch follows them.

Rules
- What this process wrote is known at once, before the watch brings it: of two versions of a pod the newer one counts.
  So no pass acts on a step that was over.
- A list is made where the watch cannot answer: before its first list, after a time in which the server was silent, and
  where only lists are permitted. It is also made when this process begins to lead (`refresh`), since the one that led
  before may have written something a moment ago; then until the watch is as new as that list.
"""

from __future__ import annotations

from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import Key
from dovetail.kube.api.errors import ApiError, KubeError
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.reflector import Reflector, ReflectorHandlers, log_error, version_number
from dovetail.kube.api.resources import PODS
from dovetail.kube.api.watch import HEARTBEAT_S
from dovetail.kube.objects.pods import Pod


class FollowedPods:
    """`run` follows them; without it each `read` is a list."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._resource = PODS.inside(namespace)
        self._written: dict[Key, Pod] = {}
        self._reported = ""
        self._listed: int | None = None
        """How new the watch has to be; None: a list is due."""
        self._reflector = Reflector(
            client, self._resource, Pod, lambda _: None, handlers=ReflectorHandlers(error=self._failed)
        )

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._reflector.run()

    @property
    def follows(self) -> bool:
        """Whether the watch is there, and as new as the last list."""
        reflector, listed = self._reflector, self._listed
        if listed is None or not reflector.synced.is_set() or reflector.staleness_s() >= HEARTBEAT_S:
            return False
        return version_number(reflector.resource_version) >= listed

    def refresh(self) -> None:
        """The next `read` asks the server."""
        self._listed = None

    def note(self, pod: Pod) -> None:
        """This process wrote the pod, and the server answered with this version of it."""
        self._written[pod.metadata.namespace, pod.metadata.name] = pod

    async def read(self) -> list[Pod]:
        """The pods now. Raises KubeError where a list is needed and fails."""
        if self.follows:
            return self._newest(self._reflector.known, version_number(self._reflector.resource_version))
        listing = await list_all(self._client, self._resource, Pod)
        self._listed = version_number(listing.resource_version)
        return self._newest(listing.objects, self._listed)

    def _newest(self, known: dict[Key, Pod], as_of: int) -> list[Pod]:
        """The pods that are known at this version, with what was written since."""
        written = {
            key: pod for key, pod in self._written.items() if version_number(pod.metadata.resource_version) > as_of
        }
        self._written = written
        return list((known | written).values())

    def _failed(self, error: KubeError) -> None:
        """Where it must not watch, that is reported once."""
        refused = isinstance(error, ApiError) and error.status in (401, 403)
        if not refused or str(error) != self._reported:
            log_error(error)
        self._reported = str(error) if refused else ""
