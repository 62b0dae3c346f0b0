# SPDX-License-Identifier: Apache-2.0
"""The device plugin service of one resource on one socket.

Rules
- ListAndWatch sends the complete list at the call and at once after every change.
- Allocate refuses devices that are not offered or unhealthy, and more than one replica if the configuration forbids it.
  The kubelet then rejects the pod with the reason.
- With CDI alone NVIDIA_VISIBLE_DEVICES is `void`: an image that sets `all` gets no GPU by that.
- Allocate waits only where the container is to get what its network needs and its pod is not known yet, for a moment.
Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1; NVIDIA k8s-device-plugin (internal/plugin/server.go) for what the
strategies put into the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import Message

from dovetail.agent.apis import deviceplugin_pb2 as wire
from dovetail.agent.apis.serving import Unary, serve, service
from dovetail.agent.cdi import GPU_KIND, Edits
from dovetail.agent.config import Config
from dovetail.agent.config_values import CDI_ANNOTATIONS, CDI_CRI, ENVVAR, VOLUME_MOUNTS
from dovetail.agent.machine.driver_files import channel_path
from dovetail.agent.mps.clients import MpsError
from dovetail.agent.plugin.offers import AdvertisedDevice, ResourceOffer

Context = grpc.aio.ServicerContext[Any, Any]
Prefer = Callable[[ResourceOffer, Sequence[str], Sequence[str], int], Awaitable[Sequence[str]]]

_GRACE_S = 3.0
"""Calls of the kubelet are answered before the server ends: a call may wait for the watch of the pods."""
OPTIONS = wire.DevicePluginOptions(get_preferred_allocation_available=True)
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_VOID = "void"
_MOUNTED = "/var/run/nvidia-container-devices"


class RequestRefused(Exception):
    """These devices are not allocated; the message has the reason."""


async def _no_network(offer: ResourceOffer, uuids: Sequence[str]) -> Edits:
    return Edits()


class Answers:
    """Builds the answers of Allocate by `config`, which may change. `gpu_edits` returns the container edits for GPUs
    and instances by uuid, `mps` those for replicas of a resource that is shared by MPS. `network`, which is set later,
    returns those by which a container with whole GPUs of an offer, by the uuids, finds its network."""

    def __init__(
        self,
        config: Config,
        gpu_edits: Callable[[Sequence[str]], Edits],
        mps: Callable[[str, Sequence[str]], Edits],
    ) -> None:
        self.config, self._gpu_edits, self._mps = config, gpu_edits, mps
        self.network: Callable[[ResourceOffer, Sequence[str]], Awaitable[Edits]] = _no_network

    async def allocate(self, offer: ResourceOffer, ids: Sequence[str]) -> wire.ContainerAllocateResponse:
        """The answer for the devices `ids`. Raises RequestRefused."""
        unknown = [id for id in ids if id not in offer.devices]
        if unknown:
            raise RequestRefused(f"{', '.join(unknown)} is not offered as {offer.resource} by this node")
        devices = [offer.devices[id] for id in ids]
        unhealthy = sorted(device.id for device in devices if not device.healthy)
        if unhealthy:
            raise RequestRefused(f"{', '.join(unhealthy)} is unhealthy")
        if offer.shared is not None and offer.shared.fail_requests_greater_than_one and len(ids) > 1:
            raise RequestRefused(
                f"{len(ids)} replicas of {offer.resource} were requested: more than one give no more of a GPU, "
                "and sharing.failRequestsGreaterThanOne refuses them"
            )
        if not offer.of_gpus:
            rdma = wire.ContainerAllocateResponse()
            for path, host_path in offer.device_nodes.items():
                _add_node(rdma, path, host_path, "rwm")
            return rdma
        once = list({device.uuid: device for device in sorted(devices, key=_order)}.values())
        answer = wire.ContainerAllocateResponse()
        self._name(answer, offer.resource, once)
        uuids = [device.uuid for device in once]
        self._name_channels(answer, uuids)
        if self.config.pass_device_specs:
            for node in self._gpu_edits(uuids).device_nodes:
                _add_node(answer, node.path, node.host_path or node.path, node.permissions)
        if offer.shared is not None and offer.shared.strategy == "mps":
            try:
                _add(answer, self._mps(offer.resource, uuids))
            except MpsError as error:
                raise RequestRefused(str(error)) from error
        if offer.shared is None and not offer.profile:
            _add(answer, await self.network(offer, uuids))
        return answer

    def _name(self, answer: wire.ContainerAllocateResponse, resource: str, devices: list[AdvertisedDevice]) -> None:
        config, strategies = self.config, self.config.device_list_strategies
        names = [device.index if config.device_id_strategy == "index" else device.uuid for device in devices]
        qualified = [f"{GPU_KIND}={device.uuid}" for device in devices]
        answer.envs[VISIBLE] = _VOID
        if ENVVAR in strategies:
            answer.envs[VISIBLE] = ",".join(names)
        if VOLUME_MOUNTS in strategies:
            answer.envs[VISIBLE] = _MOUNTED
            for name in names:
                answer.mounts.add(container_path=f"{_MOUNTED}/{name}", host_path="/dev/null", read_only=False)
        if CDI_CRI in strategies:
            for name in qualified:
                answer.cdi_devices.add(name=name)
        if CDI_ANNOTATIONS in strategies:
            key = f"{config.cdi_annotation_prefix}dovetail_{resource.rpartition('/')[2]}"
            answer.annotations[key] = ",".join(qualified)
        for name, on in (("GDRCOPY", config.gdrcopy), ("GDS", config.gds), ("MOFED", config.mofed)):
            if on:
                answer.envs[f"NVIDIA_{name}"] = "enabled"

    def _name_channels(self, answer: wire.ContainerAllocateResponse, uuids: Sequence[str]) -> None:
        """Add IMEX channels for NVIDIA's own runtime; those of CDI devices are in the specification."""
        if not self.config.imex_channels:
            return
        there = {node.path for node in self._gpu_edits(uuids).device_nodes}
        channels = [str(number) for number in self.config.imex_channels if channel_path(number) in there]
        if channels and ENVVAR in self.config.device_list_strategies:
            answer.envs["NVIDIA_IMEX_CHANNELS"] = ",".join(channels)
        for channel in channels if VOLUME_MOUNTS in self.config.device_list_strategies else ():
            path = f"{_MOUNTED}/imex/{channel}"
            answer.mounts.add(container_path=path, host_path="/dev/null", read_only=False)


def _order(device: AdvertisedDevice) -> tuple[int, str]:
    return device.card, device.part


def _add(answer: wire.ContainerAllocateResponse, edits: Edits) -> None:
    for name, value in edits.env:
        answer.envs[name] = value
    for mount in edits.mounts:
        read_only = "ro" in mount.options
        answer.mounts.add(container_path=mount.container_path, host_path=mount.host_path, read_only=read_only)
    for node in edits.device_nodes:
        _add_node(answer, node.path, node.host_path or node.path, node.permissions)


def _add_node(answer: wire.ContainerAllocateResponse, path: str, host_path: str, permissions: str) -> None:
    answer.devices.add(container_path=path, host_path=host_path, permissions=permissions)


class PluginServer:
    """Serves `offer` on `path` from `open` to `close`. `prefer` answers GetPreferredAllocation. `allocated` is called
    with the ids that Allocate returned, `left` when the kubelet has ended ListAndWatch; from then on `gone` is True.
    `heard` is set when ListAndWatch begins."""

    def __init__(
        self,
        path: Path,
        offer: ResourceOffer,
        answers: Answers,
        prefer: Prefer,
        allocated: Callable[[ResourceOffer, tuple[str, ...]], None],
        left: Callable[[], None],
    ) -> None:
        self.path = path
        self.heard = asyncio.Event()
        self.gone = False
        self._left = left
        self._offer, self._answers, self._prefer, self._allocated = offer, answers, prefer, allocated
        self._fence: frozenset[str] = frozenset()
        self._news = asyncio.Event()
        self._closing = False
        self._server: grpc.aio.Server | None = None

    async def open(self) -> None:
        """Raises SocketError."""
        unary: dict[str, tuple[type[Message], Unary]] = {
            "GetDevicePluginOptions": (wire.Empty, self._options),
            "GetPreferredAllocation": (wire.PreferredAllocationRequest, self._preferred),
            "Allocate": (wire.AllocateRequest, self._allocate),
            "PreStartContainer": (wire.PreStartContainerRequest, self._pre_start),
        }
        streams = {"ListAndWatch": (wire.Empty, self._list)}
        self._server = await serve(self.path, service("v1beta1.DevicePlugin", unary, streams))

    async def close(self) -> None:
        self._closing = True
        self._wake()
        if self._server is not None:
            await self._server.stop(grace=_GRACE_S)
        self.path.unlink(missing_ok=True)

    def offer(self, offer: ResourceOffer) -> None:
        """Offer this from now on."""
        if offer != self._offer:
            self._offer = offer
            self._wake()

    def fence(self, parts: frozenset[str]) -> None:
        """From now on send NUMA nodes only for these parts; for all if there are none."""
        if parts != self._fence:
            self._fence = parts
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _options(self, request: wire.Empty, context: Context) -> wire.DevicePluginOptions:
        return OPTIONS

    async def _pre_start(
        self, request: wire.PreStartContainerRequest, context: Context
    ) -> wire.PreStartContainerResponse:
        return wire.PreStartContainerResponse()

    async def _list(self, request: wire.Empty, context: Context) -> AsyncIterator[wire.ListAndWatchResponse]:
        self.heard.set()
        # After a new call the kubelet may admit running pods again: it needs all NUMA nodes.
        self._fence = frozenset()
        sent: tuple[ResourceOffer, frozenset[str]] | None = None
        try:
            while True:
                if (self._offer, self._fence) != sent:
                    sent = self._offer, self._fence
                    yield _listed(*sent)
                elif self._closing:
                    return
                else:
                    await self._news.wait()
        finally:
            self.gone = True
            self._left()

    async def _preferred(
        self, request: wire.PreferredAllocationRequest, context: Context
    ) -> wire.PreferredAllocationResponse:
        answer = wire.PreferredAllocationResponse()
        for one in request.container_requests:
            available, must = list(one.available_deviceIDs), list(one.must_include_deviceIDs)
            try:
                ids = await self._prefer(self._offer, available, must, one.allocation_size)
            except RequestRefused as refused:
                await _fail(context, refused)
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def _allocate(self, request: wire.AllocateRequest, context: Context) -> wire.AllocateResponse:
        answer = wire.AllocateResponse()
        offer = self._offer
        try:
            for one in request.container_requests:
                answer.container_responses.append(await self._answers.allocate(offer, list(one.devices_ids)))
        except RequestRefused as refused:
            await _fail(context, refused)
        for one in request.container_requests:
            self._allocated(offer, tuple(one.devices_ids))
        return answer


async def _fail(context: Context, refused: RequestRefused) -> NoReturn:
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
    raise refused


def _listed(offer: ResourceOffer, fence: frozenset[str]) -> wire.ListAndWatchResponse:
    answer = wire.ListAndWatchResponse()
    for device in offer.devices.values():
        one = answer.devices.add(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
        if device.numa is not None and (not fence or device.part in fence):
            one.topology.nodes.add(ID=device.numa)
    return answer
