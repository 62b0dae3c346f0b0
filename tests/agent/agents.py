# SPDX-License-Identifier: Apache-2.0
"""Hosts in a few words, and device plugins that run beside a fake kubelet and a playground."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dovetail.agent.cdi import Edits
from dovetail.agent.config import Config
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.machine.host import Gpu, GpuInstance, Host
from dovetail.agent.plugin import DeviceDifference, DevicePlugins
from dovetail.core.devices.layout import BOARD, NODE, SYS
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.playground import Playground
from tests.agent.fake_kubelet import FakeKubelet, Pod
from tests.patience import PATIENCE_S

GPU = "nvidia.com/gpu"
NVIDIAS_BUT_CDI = Config()


def uuid(i: int) -> str:
    return f"GPU-{i:08d}-0000-0000-0000-000000000000"


def mig_uuid(card: int, start: int) -> str:
    return f"MIG-{card:04d}{start:04d}-0000-0000-0000-000000000000"


def host(
    count: int = 8, numa: Sequence[int | None] = (), mig: dict[int, Sequence[tuple[str, int, int]]] | None = None
) -> Host:
    """GPUs without NVLink, half of them on each of two NUMA nodes by default. `mig`: of cards in MIG mode the
    instances (profile, start, size)."""
    nodes = tuple(numa) or tuple(i * 2 // count for i in range(count))
    gpus = tuple(
        Gpu(
            index=i,
            minor=i,
            uuid=uuid(i),
            product="NVIDIA A100-SXM4-40GB",
            pci_bus_id=f"0000:{i:02x}:00.0",
            memory_mib=40960,
            numa=nodes[i],
            mig=_instances(i, mig[i]) if mig is not None and i in mig else None,
        )
        for i in range(count)
    )
    pcie = tuple(
        tuple(BOARD if i == j else NODE if nodes[i] == nodes[j] else SYS for j in range(count)) for i in range(count)
    )
    return Host(gpus=gpus, pcie=pcie, nvlinks=tuple((0,) * count for _ in range(count)))


def _instances(card: int, instances: Sequence[tuple[str, int, int]]) -> tuple[GpuInstance, ...]:
    return tuple(
        GpuInstance(mig_uuid(card, start), profile, gi, 0, start, size, 4864)
        for gi, (profile, start, size) in enumerate(instances, 7)
    )


def without(all: Host, *gone: int) -> Host:
    """The host after these GPUs have fallen off the bus: the others have new indices."""
    left = [i for i in range(len(all.gpus)) if i not in gone]
    gpus = tuple(replace(all.gpus[i], index=new) for new, i in enumerate(left))
    part = tuple(tuple(all.pcie[i][j] for j in left) for i in left)
    return replace(all, gpus=gpus, pcie=part, nvlinks=tuple((0,) * len(left) for _ in left))


def unhealthy(*indices: int) -> tuple[Unhealthy, ...]:
    return tuple(Unhealthy(uuid(i), "xid-79", "gone", 0) for i in indices)


def no_edits(uuids: Sequence[str]) -> Edits:
    return Edits()


def no_mps(resource: str, uuids: Sequence[str]) -> Edits:
    raise AssertionError("there is no MPS here")


async def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Waits until it is so."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is nothing to wait for: files and other processes change
            await asyncio.sleep(0.01)


class Node:
    """A kubelet, an API server and an agent's device plugins, which can be ended and begun anew."""

    def __init__(self, folder: Path, config: Config = NVIDIAS_BUT_CDI, **options: Any) -> None:
        self.kubelet = FakeKubelet(folder)
        self.api = Playground(start_delay_s=0.0)
        self.config, self._options = config, options
        self.reported: list[tuple[DeviceDifference, ...]] = []
        self.plugins: DevicePlugins
        self.chosen: Allocations
        self.host, self.unhealthy = host(), ()

    async def __aenter__(self) -> Node:
        await self.kubelet.start()
        await self.api.start()
        self._client = await Client(ClusterConfig(self.api.url)).__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        with contextlib.suppress(AttributeError):
            await self.end_agent()
        await self._client.__aexit__(None, None, None)
        await self.kubelet.stop()
        await self.api.stop()

    async def begin_agent(
        self, host: Host | None = None, unhealthy: Collection[Unhealthy] = (), *, wait_s: float = 2.0
    ) -> None:
        self.host, self.unhealthy = host or self.host, tuple(unhealthy)
        self.chosen = Allocations(self._client, "n1", wait_s=wait_s)
        self._following = asyncio.create_task(self.chosen.run())
        options = {"gpu_edits": no_edits, "mps": no_mps} | self._options
        self.plugins = DevicePlugins(
            self.kubelet.plugins,
            self.config,
            self.chosen,
            pod_resources=PodResources(self.kubelet.pod_resources),
            differences=self.reported.append,
            **options,
        )
        await self.plugins.update(self.host, self.unhealthy)
        await self.chosen.synced.wait()

    async def ready(self) -> None:
        """Waits until the kubelet knows all that the agent offers, as it is."""

        def known() -> bool:
            return self.plugins.registered == {*self.plugins.offered} and all(
                {id: device.healthy for id, device in offer.devices.items()}
                == {id: device.health == "Healthy" for id, device in self.kubelet.listed(resource).items()}
                and self.kubelet.connected(resource)
                for resource, offer in self.plugins.offered.items()
            )

        await until(known)

    def stop_watching(self) -> None:
        """As if the watch of the pods were slow: from now on it shows nothing."""
        self._following.cancel()

    async def end_agent(self) -> None:
        await self.plugins.close()
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    async def run(self, pod: Pod, mask: frozenset[int] | None = None) -> dict[str, set[str]]:
        """Bind the pod and have the kubelet admit it; what it holds, by resource. Raises Rejected."""
        meta, spec = pod["metadata"], pod["spec"]
        stored = self.api.store.get("pods", meta["namespace"], meta["name"])
        if stored is None:
            waiting = {field: value for field, value in spec.items() if field != "nodeName"}
            stored = self.api.put(pod | {"spec": waiting})
            uid = stored["metadata"]["uid"]
            # As a Binding does it: with the record of the pod that the server has made.
            meta["annotations"] = {key: text.replace(meta["uid"], uid) for key, text in meta["annotations"].items()}
            bound = {"spec": stored["spec"] | {"nodeName": spec["nodeName"]}, "metadata": stored["metadata"] | meta}
            bound["metadata"]["uid"] = uid
            self.api.store.put_raw("pods", stored | bound)
        meta["uid"] = stored["metadata"]["uid"]
        await self.kubelet.admit(pod, mask)
        self.works(pod)
        return self.holds(pod)

    def works(self, pod: Pod, phase: str = "Running") -> None:
        statuses = [
            {"name": c["name"], "image": "i", "imageID": "", "ready": True, "restartCount": 0}
            for c in pod["spec"]["containers"]
        ]
        self.api.put(pod | {"status": {"phase": phase, "containerStatuses": statuses}})

    def holds(self, pod: Pod) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for held in self.kubelet.books.allocations.get(pod["metadata"]["uid"], {}).values():
            for resource, allocation in held.items():
                found.setdefault(resource, set()).update(allocation.ids)
        return found

    def end(self, pod: Pod) -> None:
        """The pod ends and is deleted."""
        meta = pod["metadata"]
        self.works(pod, "Succeeded")
        self.kubelet.remove(meta["uid"])
        self.api.delete("pods", meta["namespace"], meta["name"])

    async def settled(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Waits until it is so."""
        await until(condition, timeout_s)


@contextlib.asynccontextmanager
async def running(
    folder: Path, config: Config = NVIDIAS_BUT_CDI, of: Host | None = None, **options: Any
) -> AsyncIterator[Node]:
    """A node whose agent has registered what it offers."""
    async with Node(folder, config, **options) as node:
        await node.begin_agent(of)
        await node.ready()
        yield node
