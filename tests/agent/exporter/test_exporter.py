# SPDX-License-Identifier: Apache-2.0
"""Scrapes of a stand-in machine: owners, lost and slow GPUs, the port."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dovetail.agent.exporter import exporter as exporter_module
from dovetail.agent.exporter import sampler as sampler_module
from dovetail.agent.exporter import server as server_module
from dovetail.agent.exporter import shared_nvml as shared_nvml_module
from dovetail.agent.exporter.counter_list import default
from dovetail.agent.exporter.counters import Counters
from dovetail.agent.exporter.exporter import Exporter, Parts
from dovetail.agent.exporter.reading import GpuReading, Owner, Owners, PodValues, Sample
from dovetail.agent.exporter.sampler import Sampler
from dovetail.agent.exporter.server import ExporterServer
from dovetail.agent.exporter.shared_nvml import SharedNvml
from dovetail.agent.exporter.shared_use import SharedUse
from dovetail.agent.exporter.use_hours import UseHours
from dovetail.agent.machine.nvml import UNINITIALIZED
from dovetail.history.records import UseHour
from tests.agent.exporter.scraped import Series, series_of
from tests.patience import PATIENCE_S
from tools.standin import Standin
from tools.standin.fixture import MakeStandin

TEMPERATURE, POWER, SHARE = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "dovetail_gpu_allocated_share"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total"  # the parser appends _total to counters


def owner(pod: str, share: float = 1.0, vgpu: str = "") -> Owner:
    return Owner("team", pod, f"uid-{pod}", "main", share, vgpu)


class Node:
    """An exporter of the machine `standin`. `by_device` are the owners, `asked` how often they were read."""

    def __init__(self, standin: Standin, folder: Path, **options: Any) -> None:
        self.standin = standin
        self.by_device: dict[str, tuple[Owner, ...]] = {}
        self.asked = 0
        self.hung: asyncio.Event | None = None
        self.samples: tuple[Sample, ...] = ()
        self.library = SharedNvml()
        kinds = default()
        self.proc = folder / "proc"
        self.use = UseHours(folder / "use.json", "node-1", shared=SharedUse(self.proc))
        self.sampler = Sampler(self.library, kinds.values(), Counters(folder / "counters.json"), self.use)
        self.uses = 0
        parts = Parts(owners=self._owners, use=self._use, samples=lambda: self.samples, owned=self.use.owned)
        self.exporter = Exporter(self.sampler, kinds, "node-1", parts, **options)

    def _use(self, _readings: Sequence[GpuReading], _owners: Owners) -> PodValues:
        self.uses += 1
        return PodValues()

    async def _owners(self) -> Owners:
        self.asked += 1
        if self.hung is not None:
            await self.hung.wait()
        return Owners(dict(self.by_device), time.monotonic())

    def uuid(self, gpu: int) -> str:
        return self.standin.description.gpus[gpu].uuid

    async def scrape(self) -> Series:
        return series_of((await self.exporter.scrape()).decode())


def gpus(series: Series, name: str = TEMPERATURE) -> set[str]:
    return {labels["gpu"] for labels, _ in series.get(name, ())}


def pods(series: Series, name: str = TEMPERATURE) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for labels, _ in series.get(name, ()):
        found.setdefault(labels["gpu"], set()).add(labels.get("pod", ""))
    return found


@pytest.fixture
def node(standin: MakeStandin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(exporter_module, "FRESH_S", 0.0)
    monkeypatch.setattr(exporter_module, "READ_S", 0.0)
    monkeypatch.setattr(sampler_module, "PATIENCE_S", 0.3)
    monkeypatch.setattr(sampler_module, "_AGAIN_S", 0.05)
    monkeypatch.setattr(shared_nvml_module, "YOUNG_S", 0.0)
    return Node(standin("pcie-l40s"), tmp_path)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for the condition. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - only a scrape shows it
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def reading(node: Node) -> AsyncIterator[Node]:
    node.sampler.start()
    try:
        count = len(node.standin.description.gpus)

        async def all_read() -> bool:
            return len(gpus(await node.scrape())) == count

        await until(all_read)
        yield node
    finally:
        node.standin.clear()
        await asyncio.to_thread(node.sampler.stop, PATIENCE_S)


async def test_a_gpu_has_its_labels_and_its_owner(node: Node) -> None:
    node.by_device = {node.uuid(0): (owner("train"),), node.uuid(1): (owner("a", 0.25, "0"), owner("b", 0.75, "1"))}
    async with reading(node):
        series = await node.scrape()
    labels = next(labels for labels, _ in series[TEMPERATURE] if labels["gpu"] == "0")
    assert labels == {
        "gpu": "0",
        "UUID": node.uuid(0),
        "pci_bus_id": labels["pci_bus_id"],
        "device": "nvidia0",
        "modelName": "NVIDIA L40S",
        "hostname": "node-1",
        "Hostname": "node-1",
        "DCGM_FI_DRIVER_VERSION": node.standin.description.driver,
        "namespace": "team",
        "pod": "train",
        "container": "main",
        "pod_uid": "uid-train",
    }
    assert pods(series)["1"] == {"a", "b"}
    assert pods(series)["2"] == {""}
    shares = {(labels["gpu"], labels.get("vgpu", "")): value for labels, value in series[SHARE]}
    assert {key: shares[key] for key in (("0", ""), ("1", "0"), ("1", "1"), ("2", ""))} == {
        ("0", ""): 1.0,
        ("1", "0"): 0.25,
        ("1", "1"): 0.75,
        ("2", ""): 0.0,
    }


async def test_samples_of_other_parts_have_the_labels_of_device_and_owner(node: Node) -> None:
    node.by_device = {node.uuid(0): (owner("train"),)}
    node.samples = (
        Sample("dovetail_gpu_xids_total", 2, node.uuid(0), (("xid", "79"), ("action", "quarantine-node"))),
        Sample("dovetail_gpu_expected", 4),
    )
    async with reading(node):
        series = await node.scrape()
    ((labels, value),) = series["dovetail_gpu_xids_total"]
    assert (labels["pod"], labels["xid"], labels["action"], value) == ("train", "79", "quarantine-node", 2)
    assert series["dovetail_gpu_expected"] == [({"hostname": "node-1"}, 4)]


async def test_the_series_of_a_lost_gpu_end_and_come_back(node: Node) -> None:
    async with reading(node):
        node.standin.lose(1)
        left = {str(gpu.index) for gpu in node.standin.description.gpus} - {"1"}

        async def ended() -> bool:
            return gpus(await node.scrape()) == left

        await until(ended)
        node.samples = (Sample("dovetail_gpu_xids_total", 1, node.uuid(1), (("xid", "79"),)),)
        lost = await node.scrape()
        assert [labels["gpu"] for labels, _ in lost["dovetail_gpu_xids_total"]] == ["1"]
        assert gpus(lost, POWER) == left
        assert any("GPU 1 is not read" in fault for fault in node.sampler.faults)
        node.standin.restore(1)

        async def back() -> bool:
            return "1" in gpus(await node.scrape())

        await until(back)


@pytest.mark.slow
async def test_a_slow_gpu_delays_no_other_one(node: Node) -> None:
    async with reading(node):
        before = {labels["gpu"]: value for labels, value in (await node.scrape())[TEMPERATURE]}
        node.standin.slow("nvmlDeviceGetTemperature", 1500, gpu=0)
        node.standin.set(0, temperature_c=80)
        node.standin.set(1, temperature_c=81)
        found = {labels["gpu"]: value for labels, value in (await node.scrape())[TEMPERATURE]}
        assert (found["0"], found["1"]) == (before["0"], 81)


@pytest.mark.slow
async def test_values_from_before_the_last_change_of_owner_are_not_exported_but_the_owner_is(node: Node) -> None:
    node.by_device = {node.uuid(0): (owner("old"),), node.uuid(1): (owner("old"),)}
    async with reading(node):
        assert pods(await node.scrape())["0"] == {"old"}
        node.standin.slow("nvmlDeviceGetTemperature", 1500, gpu=0)
        node.by_device = {node.uuid(0): (owner("new"),), node.uuid(1): (owner("new"),)}
        series = await node.scrape()
        found = pods(series)
        assert "0" not in found
        assert found["1"] == {"new"}
        assert pods(series, SHARE)["0"] == {"new"}, "the owner needs no reading"
        node.standin.clear()

        async def exported() -> bool:
            return pods(await node.scrape()).get("0") == {"new"}

        await until(exported)


async def test_a_scrape_finds_what_was_read_ahead_unless_the_owner_has_changed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(series: Series) -> list[tuple[str, float]]:
        return [(labels.get("pod", ""), value) for labels, value in series[TEMPERATURE] if labels["gpu"] == "0"]

    async with reading(node):
        node.standin.set(0, temperature_c=71)
        assert seen(await node.scrape()) == [("", 71)]
        monkeypatch.setattr(exporter_module, "READ_S", 60.0)
        node.standin.set(0, temperature_c=72)
        assert seen(await node.scrape()) == [("", 71)]
        node.sampler.begin(time.monotonic())

        async def read() -> bool:
            return seen(await node.scrape()) == [("", 72)]

        await until(read)
        node.standin.set(0, temperature_c=73)
        node.by_device = {node.uuid(0): (owner("train"),)}
        assert seen(await node.scrape()) == [("train", 73)]


def energy(series: Series) -> dict[str, float]:
    return {labels["gpu"]: value for labels, value in series.get(ENERGY, ())}


async def test_after_a_reload_of_the_driver_all_is_read_again_and_no_counter_goes_back(node: Node) -> None:
    async with reading(node):
        node.standin.stop_clock()
        node.standin.advance(100)
        before = energy(await node.scrape())
        assert len(before) == len(node.standin.description.gpus)
        node.standin.reload()
        node.standin.advance(10)

        async def grown() -> bool:
            after = energy(await node.scrape())
            return after.keys() == before.keys() and all(after[gpu] > before[gpu] > 0 for gpu in before)

        await until(grown)
        assert not node.sampler.faults


async def test_while_the_driver_is_gone_nothing_is_read(node: Node) -> None:
    async with reading(node):
        node.standin.fail("nvmlDeviceGetTemperature", UNINITIALIZED)

        async def ended() -> bool:
            return not gpus(await node.scrape())

        await until(ended)
        node.standin.clear()

        async def back() -> bool:
            return len(gpus(await node.scrape())) == len(node.standin.description.gpus)

        await until(back)


async def test_a_gpu_that_comes_back_is_read_when_the_library_is_opened_anew(node: Node) -> None:
    async with reading(node):
        node.standin.remove(1)

        async def ended() -> bool:
            return "1" not in gpus(await node.scrape())

        await until(ended)
        node.standin.restore(1)
        await asyncio.to_thread(node.library.close)

        async def back() -> bool:
            return "1" in gpus(await node.scrape())

        await until(back)


async def test_a_call_that_hangs_ends_the_series_of_its_gpu_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(node):
        monkeypatch.setattr(sampler_module, "STALE_S", 0.5)
        node.standin.hang("nvmlDeviceGetTemperature", gpu=0)
        others = {str(gpu.index) for gpu in node.standin.description.gpus} - {"0"}

        async def alone() -> bool:
            return gpus(await node.scrape()) == others

        await until(alone)
        node.standin.clear()

        async def back() -> bool:
            return "0" in gpus(await node.scrape())

        await until(back)


async def test_while_nvml_is_paused_nothing_is_read(node: Node) -> None:
    async with reading(node):
        await asyncio.to_thread(node.library.pause)

        async def ended() -> bool:
            return not gpus(await node.scrape())

        await until(ended)
        node.library.resume()

        async def back() -> bool:
            return bool(gpus(await node.scrape()))

        await until(back)


async def test_owners_that_cannot_be_read_are_not_used(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "OWNERS_PATIENCE_S", 0.05)
    node.by_device = {node.uuid(0): (owner("train"),)}
    async with reading(node):
        assert pods(await node.scrape())["0"] == {"train"}
        node.hung = asyncio.Event()
        assert "train" not in pods(await node.scrape()).get("0", set())
        assert "the kubelet does not answer" in node.exporter.fault
        node.hung.set()
        node.hung = None

        async def known() -> bool:
            return pods(await node.scrape()).get("0") == {"train"}

        await until(known)
        assert not node.exporter.fault


async def test_a_scrape_may_wait_for_the_owners_that_are_asked_for_already(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_module, "OWNERS_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(exporter_module, "OWNERS_S", PATIENCE_S)
    async with reading(node):
        node.by_device, node.hung, node.asked = {node.uuid(0): (owner("train"),)}, asyncio.Event(), 0
        following = asyncio.create_task(node.exporter.follow_owners())
        for _ in range(10):
            await asyncio.sleep(0)
        assert node.asked == 1
        scraping = asyncio.create_task(node.scrape())
        for _ in range(10):
            await asyncio.sleep(0)
        node.hung.set()
        assert pods(await scraping)["0"] == {"train"}
        assert node.asked == 1 and not following.done()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_without_known_owners_no_process_is_taken_for_another_pods(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_module, "OWNERS_PATIENCE_S", 0.05)
    async with reading(node):
        await node.scrape()
        assert node.uses
        node.hung = asyncio.Event()
        node.uses = 0
        await node.scrape()
        assert node.exporter.fault
        assert not node.uses
        node.hung.set()
        node.hung = None

        async def used() -> bool:
            await node.scrape()
            return bool(node.uses)

        await until(used)


async def test_a_storm_of_scrapes_shares_one_reading(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(node):
        monkeypatch.setattr(exporter_module, "FRESH_S", 60.0)
        node.asked = 0
        texts = await asyncio.gather(*(node.exporter.scrape() for _ in range(200)))
        assert node.asked <= 1
        assert len(set(texts)) == 1


@contextlib.asynccontextmanager
async def serving(server: ExporterServer) -> AsyncIterator[None]:
    task = asyncio.create_task(server.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_port_serves_metrics_compressed_if_wanted(node: Node) -> None:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with reading(node), serving(ExporterServer("127.0.0.1:0", node.exporter, node.use, port.set_result)):
        url, plain = f"http://127.0.0.1:{await port}", {"Accept-Encoding": "identity"}
        async with aiohttp.ClientSession(auto_decompress=False) as client:
            async with client.get(f"{url}/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
                assert answer.headers["Content-Encoding"] == "gzip"
                assert TEMPERATURE in gzip.decompress(await answer.read()).decode()
            async with client.get(f"{url}/metrics", headers=plain) as answer:
                assert answer.content_type == "text/plain"
                assert TEMPERATURE in await answer.text()
            names = f"name[]={TEMPERATURE}&name[]={SHARE}&name[]=other"
            async with client.get(f"{url}/metrics?{names}", headers=plain) as answer:
                found = text_string_to_metric_families(await answer.text())
                assert {family.name for family in found} == {TEMPERATURE, SHARE}
            async with client.get(f"{url}/health") as answer:
                assert answer.status == 200


async def test_the_port_serves_the_use_of_the_gpus_from_an_hour_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(exporter_module, "OWNERS_S", 0.05)
    node.standin.load(0, sm=0.5, tensor=0.5, dram=0.5)
    node.by_device = {node.uuid(0): (owner("a"),)}
    async with reading(node), serving(ExporterServer("127.0.0.1:0", node.exporter, node.use, port.set_result)):
        following = asyncio.create_task(node.exporter.follow_owners())
        url = f"http://127.0.0.1:{await port}/use"
        async with aiohttp.ClientSession() as client:

            async def used() -> bool:
                node.sampler.begin(time.monotonic())
                async with client.get(url) as answer:
                    hours = msgspec.json.decode(await answer.read(), type=list[UseHour])
                mine = [one for one in hours if one.gpu == node.uuid(0) and one.pod_uid == "uid-a"]
                return bool(mine) and mine[0].measured_ms > 0 and mine[0].source.startswith("node-1/")

            await until(used)
            async with client.get(f"{url}?since={2**45}") as answer:
                assert await answer.json() == []
            for wrong in ("-1", "1.5", "x", "9" * 16, "%D9%A1"):
                async with client.get(f"{url}?since={wrong}") as answer:
                    assert answer.status == 400 and "epoch milliseconds" in await answer.text()
        following.cancel()


async def test_pods_that_share_a_gpu_have_the_use_of_their_processes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From NVML's processes and their cgroups to the hours that a collector reads."""
    monkeypatch.setattr(exporter_module, "OWNERS_S", 0.05)
    uids = {pod: f"{pod * 8}-0000-4000-8000-000000000000" for pod in "ab"}
    for pid, cgroup, comm in ((2, "0::/", "kthreadd"), (70, f"0::/kubepods/pod{uids['a']}/x", "python")):
        (node.proc / str(pid)).mkdir(parents=True)
        (node.proc / str(pid) / "cgroup").write_text(f"{cgroup}\n")
        (node.proc / str(pid) / "comm").write_text(f"{comm}\n")
    node.standin.process(0, 70, memory_mib=300, sm=20)
    node.by_device = {node.uuid(0): tuple(Owner("team", pod, uid, "main", 0.5) for pod, uid in uids.items())}
    async with reading(node):
        following = asyncio.create_task(node.exporter.follow_owners())

        async def used() -> bool:
            node.sampler.begin(time.monotonic())
            hours = {one.pod_uid: one for one in node.use.since(0) if one.gpu == node.uuid(0)}
            if not set(uids.values()) <= {uid for uid, one in hours.items() if one.measured_ms}:
                return False
            a, b = (hours[uids[pod]] for pod in "ab")
            assert (a.use, a.memory_peak_mib, a.idle_ms) == (400 * a.measured_ms, 300, 0)
            assert (b.use, b.memory_peak_mib, b.idle_ms) == (0, 0, b.measured_ms)
            return True

        try:
            await until(used)
        finally:
            following.cancel()


async def test_a_port_that_is_taken_is_a_fault_until_it_is_free(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "AGAIN_S", 0.05)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        opened = asyncio.Event()
        server = ExporterServer(address, node.exporter, node.use, lambda _: opened.set())
        async with serving(server):

            async def refused() -> bool:
                return address in server.fault

            await until(refused)
            taken.close()
            await opened.wait()
            assert not server.fault
