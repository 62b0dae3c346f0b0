# SPDX-License-Identifier: Apache-2.0
"""A minimal device plugin: healthy devices with a NUMA node each, and an allocation response that the caller supplies.

Rules: it has no preferred allocation, so the kubelet chooses arbitrary devices of a NUMA node. It does not register
again after a restart of the kubelet.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from dovetail.agent.apis import deviceplugin_pb2 as api
from dovetail.agent.apis.serving import call, serve, service

# id -> NUMA node, four on each of two.
DEVICES = {f"{numa}-{number}": numa for numa in (0, 1) for number in range(4)}
VARIABLE = "GIVEN_DEVICES"
Answer = Callable[[list[str]], api.ContainerAllocateResponse]


def named(ids: list[str]) -> api.ContainerAllocateResponse:
    """A response that sets the environment variable VARIABLE to the ids of the devices."""
    return api.ContainerAllocateResponse(envs={VARIABLE: ",".join(sorted(ids))})


@asynccontextmanager
async def offered(folder: Path, resource: str, answer: Answer = named) -> AsyncIterator[None]:
    """Serve DEVICES in the kubelet's plugin folder and register them. Raises SocketError."""
    closing = asyncio.Event()

    async def options(request: Any, context: Any) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    async def allocate(request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        return api.AllocateResponse(
            container_responses=[answer(list(one.devices_ids)) for one in request.container_requests]
        )

    async def watch(request: api.Empty, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        yield api.ListAndWatchResponse(
            devices=[
                api.Device(ID=device, health="Healthy", topology=api.TopologyInfo(nodes=[api.NUMANode(ID=numa)]))
                for device, numa in DEVICES.items()
            ]
        )
        await closing.wait()

    name = f"{resource.replace('/', '-')}.sock"
    server = await serve(
        folder / name,
        service(
            "v1beta1.DevicePlugin",
            {"GetDevicePluginOptions": (api.Empty, options), "Allocate": (api.AllocateRequest, allocate)},
            {"ListAndWatch": (api.Empty, watch)},
        ),
    )
    try:
        request = api.RegisterRequest(version="v1beta1", endpoint=name, resource_name=resource)
        await call(folder / "kubelet.sock", "/v1beta1.Registration/Register", request, api.Empty)
        yield
    finally:
        closing.set()
        await server.stop(1)
