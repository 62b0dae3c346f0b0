# SPDX-License-Identifier: Apache-2.0
"""The exporter in a whole agent, on a stand-in machine, at an in-memory API: its port, XIDs, and what it keeps."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from dovetail.agent.exporter.counter_list import CounterListError
from dovetail.agent.exporter.exporter import Parts
from dovetail.agent.exporter.exporting import Exporting
from dovetail.agent.exporter.shared_nvml import SharedNvml
from dovetail.agent.health import xids
from dovetail.agent.options import AgentOptions
from dovetail.agent.run import run
from dovetail.kube.api.config import load_kubeconfig
from dovetail.playground import Playground
from tests.agent.exporter.scraped import Series, series_of
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tools.standin import Standin
from tools.standin.fixture import MakeStandin

STATE = "dovetail_gpu_health_state"
XIDS, HEALTHY = "dovetail_gpu_xids_total", "dovetail_gpu_healthy"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total"  # the parser appends _total to counters


class Place:
    """The options of an agent of the machine `standin`, and its exporter's port."""

    def __init__(self, standin: Standin, folder: Path) -> None:
        self.standin, self.port = standin, free_port()
        self.kubeconfig = folder / "kubeconfig"
        self.options = AgentOptions(
            "gpu-1", device_plugin=False, exporter=f"127.0.0.1:{self.port}", kubelet_folder=folder / "kubelet",
            state_folder=folder / "state", cdi_folder=folder / "cdi", mps_folder=folder / "mps",
            sysfs_root=standin.sysfs, proc_root=standin.proc, dev_root=standin.dev, driver_root=standin.driver_root,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        task = asyncio.create_task(run(load_kubeconfig([self.kubeconfig]), self.options))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def scrape(self, until: Callable[[Series], bool]) -> Series:
        """The first scrape for which the condition holds. Raises TimeoutError."""
        found: Series = {}
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as client:
            while not until(found):
                await asyncio.sleep(0.1)
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(f"http://127.0.0.1:{self.port}/metrics") as answer:
                        found = series_of(await answer.text())
        return found


@pytest.fixture
async def place(standin: MakeStandin, tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(standin("pcie-l40s"), tmp_path)
    playground = Playground()
    await playground.start()
    playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}})
    playground.kubeconfig(place.kubeconfig)
    try:
        yield place
    finally:
        await playground.stop()


@pytest.mark.slow
async def test_an_xid_is_counted_and_stays_counted_over_a_restart(place: Place) -> None:
    count = len(place.standin.description.gpus)
    async with place.agent():
        before = await place.scrape(lambda found: len(found.get(HEALTHY, ())) == count)
        assert all(value == 1 for _, value in before[HEALTHY])
        assert before["dovetail_gpu_expected"][0][1] == count
        place.standin.xid(1, 79)
        found = await place.scrape(lambda found: XIDS in found)
        ((labels, value),) = found[XIDS]
        assert (labels["gpu"], labels["xid"], labels["action"], value) == ("1", "79", "quarantine-node", 1)
        assert found["dovetail_gpu_xid_last_seconds"][0][1] == pytest.approx(time.time(), abs=120)
        unhealthy = await place.scrape(lambda found: any(value == 0 for _, value in found.get(HEALTHY, ())))
        assert [labels["gpu"] for labels, value in unhealthy[HEALTHY] if value == 0] == ["1"]
        states = {labels["gpu"]: labels["state"] for labels, value in unhealthy[STATE] if value == 1}
        assert len(unhealthy[STATE]) == 4 * count
        assert states == {str(gpu): "quarantined" if gpu == 1 else "healthy" for gpu in range(count)}
        by_dcgm = {labels["gpu"]: value for labels, value in unhealthy["DCGM_EXP_GPU_HEALTH_STATUS"]}
        assert by_dcgm == {str(gpu): 20 if gpu == 1 else 0 for gpu in range(count)}
    async with place.agent():
        found = await place.scrape(lambda found: XIDS in found)
        assert found[XIDS][0][1] == 1


async def test_a_gpu_that_is_gone_after_a_restart_is_still_expected(place: Place) -> None:
    count = len(place.standin.description.gpus)
    async with place.agent():
        await place.scrape(lambda found: len(found.get(HEALTHY, ())) == count)
    place.standin.remove(1)
    async with place.agent():
        found = await place.scrape(lambda found: len(found.get(HEALTHY, ())) == count - 1)
    assert found["dovetail_gpu_found"][0][1] == count - 1
    assert found["dovetail_gpu_expected"][0][1] == count


@pytest.mark.slow
async def test_counters_go_on_after_a_restart_with_a_reload_of_the_driver(place: Place) -> None:
    place.standin.stop_clock()
    place.standin.advance(1000)
    async with place.agent():
        before = {labels["gpu"]: value for labels, value in (await place.scrape(lambda found: ENERGY in found))[ENERGY]}
    place.standin.reload()
    place.standin.advance(1)
    async with place.agent():
        found = await place.scrape(lambda found: len(found.get(ENERGY, ())) == len(before))
    assert all(value >= before[labels["gpu"]] > 0 for labels, value in found[ENERGY])


async def test_a_wrong_counter_list_ends_the_agent_at_its_start(place: Place, tmp_path: Path) -> None:
    wrong = tmp_path / "counters.csv"
    wrong.write_text("DCGM_FI_DEV_GPU_TMP, gauge, x\n")
    place.options = AgentOptions("gpu-1", exporter="127.0.0.1:0", exporter_counters=wrong, state_folder=tmp_path)
    with pytest.raises(CounterListError, match="line 1: unknown field DCGM_FI_DEV_GPU_TMP"):
        await run(load_kubeconfig([place.kubeconfig]), place.options)


async def test_a_pause_that_is_cancelled_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pause, resume = SharedNvml.pause, SharedNvml.resume
    begun, go, order = threading.Event(), threading.Event(), list[str]()

    def held(self: SharedNvml) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)
        pause(self)
        order.append("paused")

    def resumed(self: SharedNvml) -> None:
        resume(self)
        order.append("resumed")

    async def pausing() -> None:
        async with exporting.paused():
            await asyncio.Event().wait()

    monkeypatch.setattr(SharedNvml, "pause", held)
    monkeypatch.setattr(SharedNvml, "resume", resumed)
    options = AgentOptions("gpu-1", exporter="127.0.0.1:0", state_folder=tmp_path, proc_root=tmp_path)
    exporting = Exporting(options, Parts(), xids.default())
    task = asyncio.create_task(pausing())
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    task.cancel()
    await asyncio.sleep(0.05)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert order == ["paused", "resumed"], "or no GPU would be read any more"
