# SPDX-License-Identifier: Apache-2.0
"""The health of devices for the kubelet, which shows it in the status of their pods.

Rules: each message is the whole list. A message is sent at the call, at every change, and every RENEW_S: after
TIMEOUT_S without a message the kubelet takes the health of a device for unknown. Source:
k8s.io/kubelet/pkg/apis/dra-health/v1 (1.37).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from dovetail.agent.apis import drahealth_pb2 as health
from dovetail.agent.apis.serving import service
from dovetail.agent.dra.offer import Offered
from dovetail.agent.dra.slices import faults_of
from dovetail.agent.health.health import Unhealthy
from dovetail.kube.api.texts import clipped

SERVICE = "v1.DRAResourceHealth"
RENEW_S = 60.0
TIMEOUT_S = 180
_LONGEST_MESSAGE = 1024


class Health:
    def __init__(self, pool: str) -> None:
        self.handler = service(SERVICE, {}, {"NodeWatchResources": (health.NodeWatchResourcesRequest, self._watch)})
        self._pool = pool
        self._devices: tuple[tuple[str, str], ...] = ()
        self._changed = asyncio.Event()

    def update(self, devices: Sequence[Offered], unhealthy: Sequence[Unhealthy]) -> None:
        """Set the devices, and the unhealthy ones with their reasons."""
        found = tuple((one.name, "; ".join(each.message for each in faults_of(one, unhealthy))) for one in devices)
        if found != self._devices:
            self._devices = found
            self._changed.set()
            self._changed = asyncio.Event()

    async def _watch(
        self, request: health.NodeWatchResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        while True:
            changed = self._changed
            yield health.NodeWatchResourcesResponse(devices=[self._device(*one) for one in self._devices])
            try:
                async with asyncio.timeout(RENEW_S):
                    await changed.wait()
            except TimeoutError:
                continue

    def _device(self, name: str, message: str) -> health.DeviceHealth:
        return health.DeviceHealth(
            device=health.DeviceIdentifier(pool_name=self._pool, device_name=name),
            health=health.UNHEALTHY if message else health.HEALTHY,
            last_updated_time=int(time.time()),
            health_check_timeout_seconds=TIMEOUT_S,
            message=clipped(message, _LONGEST_MESSAGE),
        )
