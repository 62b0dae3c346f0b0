# SPDX-License-Identifier: Apache-2.0
"""A node that is divided by MIG under an agent without privilege: with an observer all its instances are known, and
without one the reason is reported, and nothing is published that is not known."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.agent.dra.offer import Partition, offered
from dovetail.agent.dra.partitions import NvmlPartitions
from dovetail.agent.machine.discovery import discover
from dovetail.agent.machine.host import Host
from dovetail.agent.machine.known import MIG_UNREAD, KnownHost
from dovetail.agent.machine.nvml import NO_PERMISSION, Nvml, NvmlError
from dovetail.agent.machine.sysfs import Sysfs
from dovetail.agent.mig.observer import ObserverError, ask
from dovetail.agent.publish.gpunode_status import status_of
from tests.patience import PATIENCE_S
from tools.standin import Standin
from tools.standin.standin import RIGHTS

Machine = Callable[[Any], Standin]
PARTS = [("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6)]


@pytest.fixture
def divided(standin: Machine, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """As the default DaemonSet has it: no capability."""
    machine = standin("dgx-a100")
    machine.divide(0, PARTS)
    monkeypatch.setenv(RIGHTS, "none")
    return machine


def look(machine: Standin, observer: Path | None = None) -> Host:
    with Nvml() as nvml:
        sysfs = Sysfs(machine.sysfs, machine.proc)
        return discover(nvml, sysfs, partial(ask, observer) if observer is not None else None)


@contextlib.asynccontextmanager
async def observing(machine: Standin, rights: str = "monitor") -> AsyncIterator[Path]:
    """`dovetail agent observe`, with its own rights."""
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        path = Path(folder) / "mig.sock"
        code = "from dovetail.cli import cli; cli()"
        words = (sys.executable, "-c", code, "agent", "observe", f"--socket={path}", "--log-level=warning")
        process = await asyncio.create_subprocess_exec(*words, env=os.environ | machine.environment | {RIGHTS: rights})
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not path.exists():  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(0.02)
            yield path
        finally:
            process.terminate()
            assert await process.wait() == 0


@pytest.mark.slow
async def test_with_an_observer_all_is_known_as_to_a_privileged_agent(
    divided: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with observing(divided) as path:
        found = await asyncio.to_thread(look, divided, path)
        assert [(one.profile, one.start) for one in found.gpus[0].mig or ()] == PARTS
        assert not found.unread
        monkeypatch.setenv(RIGHTS, "admin")
        privileged = look(divided)
        assert found.gpus[0] == privileged.gpus[0]
        # Without MIG mode, the places of instances are not queried.
        assert [replace(gpu, profiles=()) for gpu in found.gpus] == [
            replace(gpu, profiles=()) for gpu in privileged.gpus
        ]


async def test_what_changes_is_seen_at_the_next_look(divided: Standin) -> None:
    async with observing(divided) as path:
        assert len((await asyncio.to_thread(look, divided, path)).gpus[0].mig or ()) == 3
        divided.divide(0, PARTS[:1])
        assert len((await asyncio.to_thread(look, divided, path)).gpus[0].mig or ()) == 1


async def test_a_claim_of_an_instance_that_is_there_is_found_by_it(divided: Standin) -> None:
    async with observing(divided) as path:
        found = await asyncio.to_thread(look, divided, path)
        device = next(one for one in offered(found, False, {}) if one.instance and one.instance.profile == "2g.10gb")
        assert isinstance(device.partition, Partition)
        partitions = NvmlPartitions(Nvml(), partial(ask, path))
        there = await asyncio.to_thread(partitions.find, device.gpu, device.partition)
        assert there == device.instance
        with pytest.raises(NvmlError) as refused:
            NvmlPartitions(Nvml()).find(device.gpu, device.partition)
        assert refused.value.code == NO_PERMISSION


def test_without_an_observer_this_is_reported_once_and_the_gpu_is_not_offered(divided: Standin) -> None:
    found = look(divided)
    assert [(one.what, one.why) for one in found.unread] == [
        (
            "gpus[0].mig",
            "nvmlDeviceGetGpuInstancePossiblePlacements: no permission: see "
            "docs/reference/agent-privileges.md; add the function mig-observer",
        )
    ]
    status = status_of(found, unhealthy={found.gpus[0].uuid: "mig-unread: no permission"}).gpus[0]
    assert (status.mig, status.healthy) == (None, False), "unknown instances are not written as none"
    known = KnownHost()
    known.look(found, True)
    assert [(one.uuid, one.code) for one in known.unhealthy] == [(found.gpus[0].uuid, MIG_UNREAD)]


def test_an_observer_that_is_away_is_named(divided: Standin, tmp_path: Path) -> None:
    (missed,) = look(divided, tmp_path / "mig.sock").unread
    assert missed.what == "gpus[0].mig"
    assert "does the container mig-observer run?" in missed.why


async def test_an_observer_without_the_privilege_reports_it(divided: Standin) -> None:
    async with observing(divided, "none") as path:
        (missed,) = (await asyncio.to_thread(look, divided, path)).unread
    assert missed.what == "gpus[0].mig" and "no permission" in missed.why


async def test_one_that_cannot_look_is_an_error(divided: Standin) -> None:
    divided.mismatch()
    async with observing(divided) as path:
        with pytest.raises(ObserverError, match="the observer could not read MIG"):
            await asyncio.to_thread(ask, path)


def test_cards_that_are_not_divided_are_whole_without_any_privilege(
    standin: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = standin("dgx-a100")
    monkeypatch.setenv(RIGHTS, "none")
    found = look(machine)
    assert not found.unread and len(found.gpus) == 8 and all(gpu.mig_capable for gpu in found.gpus)
