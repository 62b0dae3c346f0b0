# SPDX-License-Identifier: Apache-2.0
"""MPS daemons start, limit, come back and end; what cannot be shared is refused with the reason."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from dovetail.agent.checkpoint import CheckpointFile
from dovetail.agent.config import Config, Shared
from dovetail.agent.machine.host import Gpu, GpuInstance, Host
from dovetail.agent.machine.nvml import NO_PERMISSION, NOT_FOUND, Nvml, NvmlError
from dovetail.agent.mps.clients import Mps, MpsError
from dovetail.agent.mps.daemons import MpsDaemons
from dovetail.agent.mps.keeper import Keeper
from dovetail.agent.mps.shares import SOCKET
from tests.patience import PATIENCE_S
from tools.standin import Standin

GPU = "nvidia.com/gpu"
DEFAULT, EXCLUSIVE = pynvml.NVML_COMPUTEMODE_DEFAULT, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


class Modes:
    """NVML as far as compute modes go."""

    def __init__(self, **modes: int) -> None:
        self.modes = modes
        self.may_set = True
        self.fixed: set[str] = set()

    def __enter__(self) -> Modes:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def call(self, name: str, *arguments: Any) -> Any:
        match name, *arguments:
            case "nvmlDeviceGetHandleByUUID", uuid if uuid in self.modes:
                return uuid
            case "nvmlDeviceGetHandleByUUID", _:
                raise NvmlError(name, NOT_FOUND, "no such GPU")
            case "nvmlDeviceGetComputeMode", uuid:
                return self.modes[uuid]
            case "nvmlDeviceSetComputeMode", uuid, mode:
                if not self.may_set or uuid in self.fixed:
                    raise NvmlError(name, NO_PERMISSION, "no")
                self.modes[uuid] = mode
                return None
        raise AssertionError(name)


def gpu(index: int, memory_mib: int = 40960, **fields: Any) -> Gpu:
    known = {"compute": (8, 0)} | fields
    return Gpu(index, index, f"GPU-{index}", "NVIDIA A100", f"0000:{index:02x}:00.0", memory_mib, **known)


def host(*gpus: Gpu) -> Host:
    return Host(gpus=gpus or (gpu(0), gpu(1, 81920)))


def mps(replicas: int = 4, **fields: Any) -> Config:
    return Config(sharing={GPU: Shared("mps", replicas, True, GPU)}, **fields)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What passes commands to a daemon."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH: install gcc (Debian: `apt install gcc libc6-dev`)")
    built = tmp_path_factory.mktemp("client") / "client"
    subprocess.run([compiler, "-o", built, Path(__file__).with_name("fake_mps_control.c")], check=True)
    return built


class World:
    def __init__(self, folder: Path, client: Path) -> None:
        self.folder = folder / "mps"
        self.pipe = self.folder / GPU / "pipe"
        self.control = folder / "nvidia-cuda-mps-control"
        daemon = f"{sys.executable} -S -E {Path(__file__).with_name('fake_mps_daemon.py')}"
        self.control.write_text(f'#!/bin/sh\n[ "$1" = -f ] && exec {daemon}\nexec {client}\n')
        self.control.chmod(0o755)
        self.nvml = Modes(**{f"GPU-{i}": DEFAULT for i in range(4)})
        self.heard = asyncio.Event()
        self.agents: list[Mps] = []
        self.keepers: list[asyncio.Task[None]] = []

    async def keeper(self, **options: Any) -> asyncio.Task[None]:
        known = {"control": str(self.control), "check_s": 0.2, "answer_s": 5.0, "first_pause_s": 0.05}
        made = MpsDaemons(
            self.folder,
            shm=self.folder / "shm",
            open_library=lambda: self.nvml,  # type: ignore[arg-type,return-value]
            **(known | options),
        )
        self.keepers.append(asyncio.create_task(Keeper(self.folder, made).run()))
        while not (self.folder / SOCKET).exists():  # noqa: ASYNC110 - there is nothing to wait for
            await asyncio.sleep(0.01)
        return self.keepers[-1]

    def agent(self) -> Mps:
        self.agents.append(Mps(self.folder, shm=self.folder / "shm", changed=self.heard.set))
        return self.agents[-1]

    async def daemons(self, **options: Any) -> Mps:
        """An agent beside a keeper."""
        await self.keeper(**options)
        return self.agent()

    async def end(self, keeper: asyncio.Task[None]) -> None:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            self.heard.clear()
            assert time.monotonic() < deadline
            await asyncio.wait([asyncio.ensure_future(self.heard.wait())], timeout=0.2)

    async def ready(self, daemons: Mps, resource: str = GPU) -> None:
        await self.until(lambda: not daemons.problem(resource, "GPU-0"))

    def ask(self, command: str) -> str:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "PATH": os.environ["PATH"]}
        done = subprocess.run([self.control], input=f"{command}\n", env=environment, capture_output=True, text=True)
        return done.stdout.strip()

    def begin(self) -> subprocess.Popen[bytes]:
        """A daemon that no agent has started."""
        self.pipe.mkdir(parents=True)
        begun = subprocess.Popen([self.control, "-f"], env={"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)})
        while self.ask("get_default_active_thread_percentage") != "100.0":
            time.sleep(0.05)
        return begun

    @property
    def pids(self) -> list[int]:
        """Of all daemons that started so far."""
        return [int(line) for line in (self.pipe / "starts").read_text().split()]


@pytest.fixture
async def world(tmp_path_factory: pytest.TempPathFactory, client: Path) -> AsyncIterator[World]:
    # With the name of the test, and of a worker, paths of sockets are longer than the kernel takes.
    made = World(tmp_path_factory.mktemp("mps"), client)
    yield made
    for fault in ("hang", "broken", "deaf"):
        (made.pipe / fault).unlink(missing_ok=True)
    for daemons in made.agents:
        await daemons.close()
    for keeper in made.keepers:
        await made.end(keeper)


async def test_a_client_has_its_share_of_memory_and_threads(world: World) -> None:
    daemons = await world.daemons()
    await daemons.update(host(), mps(replicas=4))
    await world.ready(daemons)
    limits = {"GPU-0": "10240M", "GPU-1": "20480M"}
    assert json.loads(world.ask("client")) == {"percentage": "25.0", "limits": limits}
    edits = daemons.client(GPU, ["GPU-1", "GPU-0"])
    environment = dict(edits.env)
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == str(world.pipe)
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    # By the container's own numbers, in the order of the bus.
    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M,1=20480M"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    mounts = {mount.container_path: (mount.host_path, mount.options[0]) for mount in edits.mounts}
    assert mounts == {str(world.pipe): (str(world.pipe), "rw"), "/dev/shm": (str(world.folder / "shm"), "rw")}
    # For clients of any user.
    assert stat.S_IMODE((world.folder / "shm").stat().st_mode) == 0o1777


async def test_its_gpus_are_in_exclusive_mode_as_long_as_it_runs(world: World) -> None:
    world.nvml.modes["GPU-1"] = pynvml.NVML_COMPUTEMODE_PROHIBITED
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    assert world.nvml.modes["GPU-0"] == world.nvml.modes["GPU-1"] == EXCLUSIVE
    assert world.nvml.modes["GPU-2"] == DEFAULT
    await daemons.update(host(gpu(0)), mps())
    assert world.nvml.modes == {f"GPU-{i}": DEFAULT for i in range(4)} | {
        "GPU-0": EXCLUSIVE,
        "GPU-1": pynvml.NVML_COMPUTEMODE_PROHIBITED,
    }
    await daemons.update(host(), Config())
    assert world.nvml.modes["GPU-0"] == DEFAULT


async def test_an_agent_puts_back_the_modes_that_one_before_it_has_set(world: World) -> None:
    world.folder.mkdir()
    CheckpointFile(world.folder / "compute-modes.json", dict[str, int]).write({"GPU-0": DEFAULT, "GPU-gone": DEFAULT})
    world.nvml.modes["GPU-0"] = EXCLUSIVE
    await (await world.daemons()).update(host(), Config())
    assert world.nvml.modes["GPU-0"] == DEFAULT
    assert CheckpointFile(world.folder / "compute-modes.json", dict[str, int]).read() == {}


async def test_without_the_privilege_to_set_the_mode_nothing_is_allocated(world: World) -> None:
    world.nvml.may_set = False
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    assert "docs/reference/agent-privileges.md" in daemons.problem(GPU, "GPU-0")
    with pytest.raises(MpsError, match="compute mode"):
        daemons.client(GPU, ["GPU-0"])
    world.nvml.may_set = True
    await daemons.update(host(), mps())
    await world.ready(daemons)


async def test_a_gpu_whose_mode_cannot_be_set_does_not_block_the_others(world: World) -> None:
    world.nvml.fixed = {"GPU-1"}
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    await world.ready(daemons)
    assert [(one.uuid, one.code) for one in daemons.unhealthy] == [("GPU-1", "mps")]
    assert daemons.client(GPU, ["GPU-0"]).env
    with pytest.raises(MpsError, match="compute mode"):
        daemons.client(GPU, ["GPU-1"])
    world.nvml.fixed = set()
    await daemons.update(host(), mps())
    assert not daemons.unhealthy and len(world.pids) == 1, "and the daemon went on"


async def test_a_daemon_that_was_killed_comes_back_with_its_limits(world: World) -> None:
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    await world.ready(daemons)
    assert daemons.unhealthy == ()
    os.kill(world.pids[-1], signal.SIGKILL)
    await world.until(lambda: bool(daemons.problem(GPU, "GPU-0")))
    assert {(fault.uuid, fault.code) for fault in daemons.unhealthy} == {("GPU-0", "mps"), ("GPU-1", "mps")}
    assert "ended with status -9" in daemons.problem(GPU, "GPU-0")
    with pytest.raises(MpsError):
        daemons.client(GPU, ["GPU-0"])
    await world.ready(daemons)
    assert len(world.pids) == 2
    assert json.loads(world.ask("client"))["limits"]["GPU-0"] == "10240M"


@pytest.mark.slow
async def test_a_daemon_that_hangs_is_killed_and_started_anew(world: World) -> None:
    daemons = await world.daemons(answer_s=1.0)
    await daemons.update(host(), mps())
    await world.ready(daemons)
    first = world.pids[0]
    (world.pipe / "hang").touch()
    await world.until(lambda: bool(daemons.problem(GPU, "GPU-0")))
    assert "does not answer within" in daemons.problem(GPU, "GPU-0")
    (world.pipe / "hang").unlink()
    await world.ready(daemons)
    assert len(world.pids) >= 2, "more, if a new one needs more than a second to answer"
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


async def test_a_daemon_that_cannot_start_is_reported_and_retried(world: World) -> None:
    world.pipe.mkdir(parents=True)
    (world.pipe / "broken").touch()
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    await world.until(lambda: "Failed to start: no GPU can be used" in daemons.problem(GPU, "GPU-0"))
    (world.pipe / "broken").unlink()
    await world.ready(daemons)


async def test_a_daemon_that_does_not_take_its_limits_is_not_used(world: World) -> None:
    world.pipe.mkdir(parents=True)
    (world.pipe / "deaf").touch()
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    await world.until(lambda: "did not accept the limit of 25 %" in daemons.problem(GPU, "GPU-0"))


async def test_a_missing_program_is_reported_with_its_source(world: World) -> None:
    daemons = await world.daemons(control=str(world.control) + "-not-there")
    await daemons.update(host(), mps())
    await world.until(lambda: "driver capability `compute`" in daemons.problem(GPU, "GPU-0"))


async def test_a_daemon_of_a_keeper_that_was_killed_is_kept(world: World) -> None:
    """Its clients go on."""
    with world.begin() as old:
        try:
            daemons = await world.daemons()
            await daemons.update(host(), mps())
            await world.ready(daemons)
            assert world.pids == [old.pid]
            assert json.loads(world.ask("client"))["percentage"] == "25.0"
            # A process gets no signal when the child of another process ends, so this is polled.
            old.kill()
            await world.until(lambda: bool(daemons.problem(GPU, "GPU-0")))
            await world.ready(daemons)
            assert len(world.pids) == 2
        finally:
            old.kill()


async def test_it_outlives_its_agent_and_is_taken_over_by_the_next(world: World) -> None:
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    await world.ready(daemons)
    client = world.ask("client")
    await daemons.close()
    assert world.ask("client") == client and world.nvml.modes["GPU-0"] == EXCLUSIVE
    following = world.agent()
    await following.update(host(), mps())
    assert not following.unhealthy, "it is known at once that they run"
    assert following.client(GPU, ["GPU-0"]).env
    assert len(world.pids) == 1 and world.ask("client") == client


async def test_an_agent_that_does_not_share_by_it_any_more_ends_it(world: World) -> None:
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    await world.ready(daemons)
    await daemons.close()
    await world.agent().update(host(), Config())
    assert world.ask("client") == "Cannot find MPS control daemon process"
    assert world.nvml.modes["GPU-0"] == DEFAULT


async def test_it_goes_on_while_a_gpu_is_lost(world: World) -> None:
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    await world.ready(daemons)
    await daemons.update(host(gpu(0)), mps())
    assert not daemons.problem(GPU, "GPU-0") and "not shared" in daemons.problem(GPU, "GPU-1")
    await daemons.update(host(), mps())
    assert not daemons.unhealthy and len(world.pids) == 1


async def test_a_daemon_ends_with_its_keeper_and_the_agent_reports_it(world: World) -> None:
    keeper = await world.keeper()
    daemons = world.agent()
    await daemons.update(host(), mps())
    await world.ready(daemons)
    (pid,) = world.pids
    await world.end(keeper)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert world.ask("client") == "Cannot find MPS control daemon process"
    assert world.nvml.modes["GPU-0"] == DEFAULT
    await world.until(lambda: "add the function mps" in daemons.problem(GPU, "GPU-0"))
    await world.keeper()
    await world.ready(daemons)
    assert len(world.pids) == 2, "the next keeper has been asked by the same agent"


async def test_without_a_keeper_nothing_is_allocated_and_without_sharing_none_is_needed(world: World) -> None:
    daemons = world.agent()
    await daemons.update(host(), Config())
    assert daemons._task is None
    await daemons.update(host(), mps())
    assert {one.code for one in daemons.unhealthy} == {"mps"}
    with pytest.raises(MpsError, match=r"nothing keeps MPS daemons at .*keeper\.sock .*add the function mps"):
        daemons.client(GPU, ["GPU-0"])


async def test_a_keeper_takes_no_nonsense(world: World) -> None:
    await world.keeper()
    reader, writer = await asyncio.open_unix_connection(world.folder / SOCKET)
    writer.write(b'{"shares": 7}\n')
    assert await reader.read() == b"", "it hangs up"
    writer.close()
    daemons = world.agent()
    await daemons.update(host(), mps())
    await world.ready(daemons)


async def test_an_update_that_changes_nothing_leaves_it_alone_and_other_limits_are_a_new_daemon(world: World) -> None:
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    await world.ready(daemons)
    await daemons.update(host(), mps())
    assert not daemons.problem(GPU, "GPU-0")
    assert len(world.pids) == 1
    await daemons.update(host(), mps(replicas=2))
    await world.ready(daemons)
    assert len(world.pids) == 2
    assert json.loads(world.ask("client"))["percentage"] == "50.0"


@pytest.mark.parametrize(
    ("replicas", "compute", "reason"),
    [
        (48, (8, 0), ""),
        (49, (8, 0), "GPU 0 (compute capability 8.0) can have 48 MPS clients, not 49"),
        (48, (7, 0), ""),
        (16, (6, 1), ""),
        (17, (6, 1), "GPU 0 (compute capability 6.1) can have 16 MPS clients, not 17"),
        (17, None, "GPU 0 (compute capability unknown) can have 16 MPS clients, not 17"),
    ],
)
async def test_more_replicas_than_clients_are_refused(
    world: World, replicas: int, compute: tuple[int, int] | None, reason: str
) -> None:
    daemons = await world.daemons()
    await daemons.update(host(gpu(0, compute=compute)), mps(replicas))
    if reason:
        assert daemons.problem(GPU, "GPU-0") == reason
        assert world.nvml.modes["GPU-0"] == DEFAULT
    else:
        await world.ready(daemons)


async def test_a_gpu_in_mig_mode_is_refused_and_the_others_are_shared(world: World) -> None:
    instance = GpuInstance("MIG-0", "1g.5gb", 7, 0, 0, 1, 4864)
    daemons = await world.daemons()
    await daemons.update(host(gpu(0), gpu(1, mig=(instance,))), mps())
    assert "GPU 1 is in MIG mode" in daemons.problem(GPU, "GPU-1")
    await world.ready(daemons)
    assert [fault.uuid for fault in daemons.unhealthy] == ["GPU-1"]
    assert world.nvml.modes["GPU-1"] == DEFAULT


async def test_a_resource_is_called_as_it_is_offered(world: World) -> None:
    daemons = await world.daemons()
    shared = "nvidia.com/gpu.shared"
    await daemons.update(host(), Config(sharing={GPU: Shared("mps", 4, True, shared)}))
    await world.ready(daemons, shared)
    assert f"{world.folder / shared / 'pipe'}" in dict(daemons.client(shared, ["GPU-0"]).env).values()
    with pytest.raises(MpsError):
        daemons.client(GPU, ["GPU-0"])


async def test_an_update_by_itself_is_no_change(world: World) -> None:
    """A caller that updates at every change would never come to rest."""
    daemons = await world.daemons()
    await daemons.update(host(), mps())
    await world.ready(daemons)
    world.heard.clear()
    await daemons.update(host(), mps())
    assert not world.heard.is_set()


async def test_a_gpu_that_was_never_shared_is_not_allocated(world: World) -> None:
    daemons = await world.daemons()
    await daemons.update(host(), Config())
    with pytest.raises(MpsError, match=r"GPU-0 is not shared by MPS as nvidia\.com/gpu"):
        daemons.client(GPU, ["GPU-0"])


async def test_the_keeper_is_a_process_of_its_own_and_an_agent_that_is_killed_leaves_it_alone(
    world: World, standin: Callable[[Any], Standin]
) -> None:
    machine = standin("dgx-a100")
    with Nvml() as nvml:
        uuid = nvml.call("nvmlDeviceGetUUID", nvml.call("nvmlDeviceGetHandleByIndex", 0))
    here = host(replace(gpu(0), uuid=uuid))
    path = f"{world.control.parent}:{os.environ['PATH']}"
    words = ("-c", "from dovetail.cli import cli; cli()", "agent", "mps", f"--mps-folder={world.folder}")
    keeper = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=os.environ | machine.environment | {"PATH": path}
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (world.folder / SOCKET).exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
        daemons = world.agent()
        await daemons.update(here, mps())
        await world.until(lambda: not daemons.problem(GPU, uuid))
        assert machine.compute_mode(0) == EXCLUSIVE
        # As by kill -9: no connection is closed in order.
        assert daemons._writer is not None
        daemons._writer.transport.abort()
        await daemons.close()
        following = world.agent()
        await following.update(here, mps())
        assert not following.unhealthy and len(world.pids) == 1
    finally:
        keeper.terminate()
        assert await keeper.wait() == 0
    assert machine.compute_mode(0) == DEFAULT
    assert world.ask("client") == "Cannot find MPS control daemon process"
