# SPDX-License-Identifier: Apache-2.0
"""The MIG manager on machines whose driver is a stand-in: what it changes, what it leaves alone, and its messages."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dovetail.agent.checkpoint import CheckpointError, CheckpointFile
from dovetail.agent.machine.discovery import discover
from dovetail.agent.machine.host import Host
from dovetail.agent.machine.nvml import IN_USE, Nvml, NvmlError
from dovetail.agent.machine.sysfs import Sysfs
from dovetail.agent.mig.change import ChangeJournal, ChangeStep, Division, DivisionChange
from dovetail.agent.mig.layouts import Candidate, Layouts, read_layouts
from dovetail.agent.mig.manager import Decision, MigManager, NamedLayout
from dovetail.agent.mig.node import another, target_of
from dovetail.core.devices.mig.products import of_product
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.standin import Standin

CAPABLE = ("dgx-a100", "dgx-h100", "pcie-a100-bridged", "gh200", "gb200-nvl72", "small-2numa")
SMALL = ("gh200", "pcie-a100-bridged")
CHANGING = {
    "nvmlDeviceSetMigMode",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
}
UNKNOWN = 999
Make = Callable[[str | Mapping[str, Any]], Standin]


class Faulty(Nvml):
    """Of the calls that change a GPU the one of this number fails, before it has done anything or after."""

    def __init__(self) -> None:
        self.program()

    def program(self, fails_at: int = 0, after: bool = False) -> None:
        self.calls, self._fails_at, self._after = 0, fails_at, after

    def call(self, name: str, *arguments: Any) -> Any:
        if name not in CHANGING:
            return super().call(name, *arguments)
        self.calls += 1
        if self.calls == self._fails_at and not self._after:
            raise NvmlError(name, UNKNOWN, "injected")
        answer = super().call(name, *arguments)
        if self.calls == self._fails_at:
            raise NvmlError(name, UNKNOWN, "injected")
        return answer


class Held(Nvml):
    """The first call that changes a GPU is held until `go`."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def call(self, name: str, *arguments: Any) -> Any:
        if name in CHANGING and not self.begun.is_set():
            self.begun.set()
            assert self.go.wait(PATIENCE_S)
        return super().call(name, *arguments)


class Node:
    """A machine with a manager on it. `held` are the uuids that pods hold; `seen` is what `changing` was whenever the
    manager reported a change, with the layout of GPU 0 at that moment."""

    def __init__(self, machine: Standin, nvml: Nvml, layouts: Layouts | None = None) -> None:
        self.machine = machine
        self.held: set[str] = set()
        self.seen: list[tuple[frozenset[str], Division]] = []
        self.path = machine.folder / "mig.json"
        self.nvml = nvml
        self.layouts = layouts
        self.manager = self.restarted()

    def restarted(self) -> MigManager:
        self.manager = MigManager(self.nvml, self.host, self._holders, self._changed, self.path, self.layouts)
        return self.manager

    def host(self) -> Host:
        return discover(self.nvml, Sysfs(self.machine.sysfs, self.machine.proc))

    def division(self, gpu: int = 0) -> Division:
        parts = self.machine.parts(gpu)
        assert all(len(part.cis) == 1 for part in parts), f"GPU {gpu}: {parts} are not whole"
        placed = sorted(((part.profile, part.start) for part in parts), key=lambda part: part[1])
        return Division(self.machine.mig_mode(gpu)[0], tuple(placed))

    def all(self) -> list[Division]:
        return [self.division(gpu.index) for gpu in self.machine.description.gpus]

    def uuid(self, gpu: int, start: int | None = None) -> str:
        """Of the GPU, or of its instance that begins there."""
        found = self.host().gpus[gpu]
        return found.uuid if start is None else next(one.uuid for one in found.mig or () if one.start == start)

    async def _holders(self) -> set[str]:
        return self.held

    async def _changed(self) -> None:
        self.seen.append((self.manager.changing, self.division()))


@pytest.fixture
def node(standin: Make) -> Iterator[Callable[..., Node]]:
    with ExitStack() as stack:

        def make(host: str = "gh200", nvml: Nvml | None = None, layouts: Layouts | None = None) -> Node:
            machine = standin(host)
            return Node(machine, stack.enter_context(nvml or Nvml()), layouts)

        yield make


OFF = Division(False)


@pytest.mark.slow
@pytest.mark.parametrize("host", CAPABLE)
async def test_every_layout_follows_every_other(host: str, node: Callable[..., Node]) -> None:
    here = node(host)
    product = here.machine.description.gpus[0].product["name"]
    candidates = [Candidate(0, product, 0, True, of_product(product))]
    names = Layouts().names(candidates)
    # On small machines each has two others before it.
    for step in (1, 3) if len(here.machine.description.gpus) < 5 else (1,):
        for i in range(len(names)):
            name = names[i * step % len(names)]
            wanted = Layouts().of(name, candidates)[0]
            outcome = await here.manager.apply(NamedLayout(name))
            assert (outcome.state, outcome.message) == ("applied", ""), name
            for found in here.all():
                assert found.mig == wanted.mig
                assert Counter(profile for profile, _ in found.instances) == wanted.counts


async def test_a_layout_that_is_there_is_left_alone(node: Callable[..., Node]) -> None:
    nvml = Faulty()
    here = node("pcie-a100-bridged", nvml)
    await here.manager.apply(NamedLayout("all-balanced"))
    before, calls, reported = here.all(), nvml.calls, len(here.seen)
    assert (await here.manager.apply(NamedLayout("all-balanced"))).state == "applied"
    assert (here.all(), nvml.calls, len(here.seen)) == (before, calls, reported)


async def test_instances_with_a_place_in_the_new_layout_are_not_touched(
    node: Callable[..., Node], tmp_path: Path
) -> None:
    (tmp_path / "layouts.yaml").write_text("""
version: v1
mig-configs:
  half: [{devices: all, mig-enabled: true, mig-devices: {3g.48gb: 1}}]
  more: [{devices: all, mig-enabled: true, mig-devices: {3g.48gb: 1, 1g.12gb: 2}}]
""")
    nvml = Faulty()
    here = node("gh200", nvml, read_layouts(tmp_path / "layouts.yaml"))
    await here.manager.apply(NamedLayout("half"))
    (stays,) = here.division().instances
    here.held = {here.uuid(0, stays[1])}
    nvml.calls = 0
    assert (await here.manager.apply(NamedLayout("more"))).state == "applied"
    assert stays in here.division().instances
    assert nvml.calls == 4, "two instances, each with its compute instance"


async def test_a_gpu_is_not_allocatable_from_before_its_change_until_after_it(node: Callable[..., Node]) -> None:
    here = node("gh200")
    uuid = here.uuid(0)
    await here.manager.apply(NamedLayout("all-1g.12gb"))
    assert here.seen == [(frozenset({uuid}), OFF), (frozenset(), here.division())]
    assert len(here.division().instances) == 7


async def test_a_pod_that_got_the_gpu_at_the_last_moment_keeps_it(node: Callable[..., Node]) -> None:
    here = node("gh200")
    await here.manager.apply(NamedLayout("all-1g.12gb"))
    before = here.division()

    async def held_from_the_second_time_on() -> set[str]:
        asked.append(1)
        return {here.uuid(0, 3)} if len(asked) > 1 else set()

    asked: list[int] = []
    manager = MigManager(here.nvml, here.host, held_from_the_second_time_on, here._changed, here.path)
    outcome = await manager.apply(NamedLayout("all-disabled"))
    assert (outcome.state, outcome.message) == ("pending", "GPU 0: 1g.12gb@3: held by a pod")
    assert here.division() == before


@pytest.mark.slow
async def test_of_a_layout_idle_gpus_change_and_the_others_are_waited_for(node: Callable[..., Node]) -> None:
    here = node("pcie-a100-bridged")
    await here.manager.apply(NamedLayout("all-1g.10gb"))
    before = here.all()
    here.held = {f"{here.uuid(2, 4)}::1"}
    outcome = await here.manager.apply(NamedLayout("all-3g.40gb"))
    assert outcome.state == "pending"
    assert outcome.message == "GPU 2: the layout has no place for instances in use: 1g.10gb@4 (held by a pod)"
    assert here.division(2) == before[2]
    assert here.division(0).instances == (("3g.40gb", 0), ("3g.40gb", 4))
    here.held = set()
    assert (await here.manager.apply(NamedLayout("all-3g.40gb"))).state == "applied"
    assert len({*map(str, here.all())}) == 1


async def test_a_whole_gpu_that_a_pod_holds_keeps_its_mode(node: Callable[..., Node]) -> None:
    here = node("small-2numa")
    here.held = {here.uuid(1)}
    outcome = await here.manager.apply(NamedLayout("all-enabled"))
    assert (outcome.state, outcome.message) == ("pending", "GPU 1: MIG mode: held by a pod")
    assert [division.mig for division in here.all()].count(False) == 1
    assert not here.division(1).mig


async def test_a_process_keeps_what_it_runs_on(node: Callable[..., Node]) -> None:
    here = node("gh200")
    await here.manager.apply(NamedLayout("all-1g.12gb"))
    part = next(part for part in here.machine.parts(0) if part.start == 2)
    here.machine.process(0, gi=part.gi, ci=part.cis[0], pid=77)
    outcome = await here.manager.apply(NamedLayout("all-disabled"))
    assert (outcome.state, outcome.message) == ("pending", "GPU 0: 1g.12gb@2: in use by processes 77")
    assert len(here.division().instances) == 7


async def test_what_only_the_driver_knows_to_be_in_use_is_made_good_again(node: Callable[..., Node]) -> None:
    here = node("gh200")
    await here.manager.apply(NamedLayout("all-balanced"))
    before = here.division()
    here.machine.fail("nvmlGpuInstanceDestroy", IN_USE, times=1)
    outcome = await here.manager.apply(NamedLayout("all-7g.96gb"))
    assert outcome.state == "pending"
    assert outcome.message.startswith("GPU 0: destroy 1g.12gb@0: nvmlGpuInstanceDestroy")
    assert here.division() == before


@pytest.mark.slow
async def test_a_mode_that_waits_for_a_reset_leaves_everything_as_it_was(node: Callable[..., Node]) -> None:
    here = node("pcie-a100-bridged")
    # A process that no list of processes shows, such as a monitoring daemon.
    here.machine.process(0, pid=9, mode=pynvml.NVML_PROCESS_MODE_MPS)
    outcome = await here.manager.apply(NamedLayout("all-1g.10gb"))
    assert outcome.state == "pending"
    assert outcome.message == "GPU 0: MIG mode is on after the next reset of the GPU: something has it open"
    assert here.machine.mig_mode(0) == (False, True)
    assert len(here.division(1).instances) == 7
    here.machine.release(9)
    assert (await here.manager.apply(NamedLayout("all-1g.10gb"))).state == "applied"

    before = here.division()
    here.machine.process(0, pid=9, mode=pynvml.NVML_PROCESS_MODE_MPS)
    outcome = await here.manager.apply(NamedLayout("all-disabled"))
    assert (outcome.state, here.machine.mig_mode(0)) == ("pending", (True, False))
    assert here.division() == before, "what had to go for the mode is back"
    assert (await here.manager.apply(NamedLayout("all-disabled"))).state == "pending"
    assert here.division() == before
    assert (await here.manager.apply(NamedLayout("all-1g.10gb"))).state == "applied"
    assert here.machine.mig_mode(0) == (True, True), "the other mode is not asked for any more"


@pytest.mark.slow
async def test_after_a_reboot_the_layout_is_made_anew(node: Callable[..., Node]) -> None:
    here = node("dgx-h100")
    await here.manager.apply(NamedLayout("all-balanced"))
    before = here.all()
    here.machine.reboot()
    assert here.all() == [OFF] * 8
    manager = here.restarted()
    assert await manager.recover() is None
    assert (await manager.apply(NamedLayout("all-balanced"))).state == "applied"
    assert here.all() == before


async def test_a_decision_names_instances_of_some_gpus_and_leaves_the_others(node: Callable[..., Node]) -> None:
    here = node("pcie-a100-bridged")
    uuid = here.uuid(1)
    decision = Decision("d1", {uuid: (("3g.40gb", 4), ("2g.20gb", 0))})
    assert (await here.manager.apply(decision)).state == "applied"
    assert here.all() == [OFF, Division(True, (("2g.20gb", 0), ("3g.40gb", 4))), OFF, OFF]
    assert (await here.manager.apply(Decision("d2", {uuid: ()}))).state == "applied"
    assert here.division(1) == Division(True)


@pytest.mark.parametrize(
    ("instances", "reason"),
    [
        ((("4g.40gb", 4),), "GPU 0 .*: 4g.40gb starts at 0, not at 4"),
        ((("3g.40gb", 0), ("1g.10gb", 3)), "GPU 0 .*: 1g.10gb at 3: it overlaps another one"),
        ((("1g.5gb", 0),), "has no profile 1g.5gb; nearest valid value: 1g.10gb"),
    ],
)
async def test_a_decision_that_cannot_be_is_refused_before_anything_is_touched(
    instances: tuple[tuple[str, int], ...], reason: str, node: Callable[..., Node]
) -> None:
    nvml = Faulty()
    here = node("pcie-a100-bridged", nvml)
    decision = Decision("d", {here.uuid(1): (("7g.80gb", 0),), here.uuid(0): instances})
    outcome = await here.manager.apply(decision)
    assert outcome.state == "refused"
    assert re.search(reason, outcome.message)
    assert nvml.calls == 0


async def test_a_decision_about_what_is_in_use_or_not_there_is_refused_as_a_whole(node: Callable[..., Node]) -> None:
    here = node("pcie-a100-bridged")
    here.held = {here.uuid(0)}
    decision = Decision("d", {here.uuid(0): (), here.uuid(1): ()})
    outcome = await here.manager.apply(decision)
    assert (outcome.state, outcome.message) == ("refused", "GPU 0: MIG mode: held by a pod")
    assert here.all() == [OFF] * 4
    outcome = await here.manager.apply(Decision("d", {"GPU-unknown": ()}))
    assert (outcome.state, outcome.message) == ("refused", "this node has no GPU GPU-unknown")


async def test_a_typo_is_refused_with_the_nearest_layout(node: Callable[..., Node]) -> None:
    here = node("dgx-h100")
    outcome = await here.manager.apply(NamedLayout("all-1g.5gb"))
    assert outcome.state == "refused"
    assert outcome.message == "no layout is named 'all-1g.5gb'; nearest valid value: all-1g.10gb"


async def test_a_machine_without_mig_has_no_layouts(node: Callable[..., Node]) -> None:
    here = node("pcie-l40s")
    outcome = await here.manager.apply(NamedLayout("all-disabled"))
    assert (outcome.state, outcome.message) == (
        "refused", "no layout is named 'all-disabled': no GPU of this node has MIG mode",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_whichever_step_fails_the_gpu_is_as_it_was(after: bool, node: Callable[..., Node]) -> None:
    nvml = Faulty()
    here = node("gh200", nvml)
    steps = []
    for old, new in (
        ("all-balanced", "all-3g.48gb"),
        ("all-disabled", "all-balanced"),
        ("all-balanced", "all-disabled"),
    ):
        fails_at = 0
        while True:
            fails_at += 1
            nvml.program()
            await here.manager.apply(NamedLayout(old))
            before = here.division()
            nvml.program(fails_at, after)
            outcome = await here.manager.apply(NamedLayout(new))
            if nvml.calls < fails_at:
                assert outcome.state == "applied"
                break
            assert outcome.state == "failed", f"{old} to {new}, call {fails_at}"
            assert "injected" in outcome.message
            assert here.division() == before
            assert await here.restarted().recover() is None, "nothing is left to do"
        steps.append(fails_at - 1)
    # One 3g stays, three go and one comes, each with its compute instance; the mode and four instances, on and off.
    assert steps == [8, 9, 9]


async def test_a_failed_undo_is_reported_and_repaired_at_the_next_start(node: Callable[..., Node]) -> None:
    here = node("gh200")
    await here.manager.apply(NamedLayout("all-balanced"))
    before = here.division()
    here.machine.fail("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN)
    outcome = await here.manager.apply(NamedLayout("all-7g.96gb"))
    assert outcome.state == "failed"
    assert "create 7g.96gb@0" in outcome.message
    assert "its old division cannot be restored: create 1g.12gb@0" in outcome.message
    here.machine.clear()
    recovered = await here.restarted().recover()
    assert recovered is not None
    assert recovered.state == "failed", "the layout that was asked for is not there"
    assert recovered.message.startswith("layout all-7g.96gb was cut off: GPU 0 (create 1g.12gb@0): undone")
    assert here.division() == before


async def test_what_is_stuck_is_forgotten_once_another_layout_is_there(node: Callable[..., Node]) -> None:
    here = node("gh200")
    await here.manager.apply(NamedLayout("all-balanced"))
    here.machine.fail("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN)
    await here.manager.apply(NamedLayout("all-7g.96gb"))
    here.machine.clear()
    assert (await here.manager.apply(NamedLayout("all-enabled"))).state == "applied"
    assert await here.restarted().recover() is None
    assert here.division() == Division(True)


@pytest.mark.parametrize("undo", [False, True], ids=["finished", "undone"])
async def test_an_interrupted_change_is_resumed_and_reported(undo: bool, node: Callable[..., Node]) -> None:
    here = node("gh200")
    await here.manager.apply(NamedLayout("all-balanced"))
    old, new = here.division(), Division(True, (("3g.48gb", 0), ("3g.48gb", 4)))
    change = DivisionChange(here.uuid(0), 0, old, new, undo)
    CheckpointFile(here.path, ChangeJournal).write(ChangeJournal("layout all-3g.48gb", (change,)))
    here.machine.divide(0, [("3g.48gb", 4)])
    outcome = await here.restarted().recover()
    assert outcome is not None
    end = "undone: it was being undone when the agent ended" if undo else "finished"
    assert outcome.message == f"layout all-3g.48gb was cut off: GPU 0 (before its first step): {end}"
    assert outcome.state == ("failed" if undo else "applied")
    assert here.division() == (old if undo else new)


async def test_a_pod_that_holds_what_should_have_gone_turns_a_cut_off_change_back(node: Callable[..., Node]) -> None:
    here = node("gh200")
    await here.manager.apply(NamedLayout("all-balanced"))
    old, new = here.division(), Division(True, (("7g.96gb", 0),))
    step = ChangeJournal("layout all-7g.96gb", (DivisionChange(here.uuid(0), 0, old, new),))
    CheckpointFile(here.path, ChangeJournal).write(step)
    await here.restarted().recover()
    assert here.division() == new
    # The same, but the first of the old instances is gone already, and a pod holds the second.
    here.machine.divide(0, old.instances[1:])
    here.held = {here.uuid(0, old.instances[1][1])}
    begun = ChangeStep("destroy", old.instances[0])
    CheckpointFile(here.path, ChangeJournal).write(
        ChangeJournal("layout all-7g.96gb", (DivisionChange(here.uuid(0), 0, old, new, False, begun),))
    )
    outcome = await here.restarted().recover()
    assert outcome is not None
    assert outcome.state == "failed"
    assert outcome.message.endswith("undone: 1g.12gb@1: held by a pod")
    assert here.division() == old


async def test_the_change_of_a_removed_gpu_is_abandoned_at_the_next_start(node: Callable[..., Node]) -> None:
    here = node("pcie-a100-bridged")
    gone = DivisionChange("GPU-gone", 9, OFF, Division(True))
    CheckpointFile(here.path, ChangeJournal).write(ChangeJournal("decision d", (gone,)))
    outcome = await here.manager.recover()
    assert outcome is not None
    assert outcome.message == (
        "decision d was cut off: GPU 9 (before its first step): abandoned: the GPU no longer exists"
    )
    assert await here.restarted().recover() is None


async def test_instances_unknown_to_the_driver_are_reported_as_stuck(node: Callable[..., Node]) -> None:
    here = node("gh200")
    change = DivisionChange(here.uuid(0), 0, OFF, Division(True, (("1g.1gb", 0),)))
    CheckpointFile(here.path, ChangeJournal).write(ChangeJournal("layout x", (change,)))
    outcome = await here.manager.recover()
    assert outcome is not None
    assert (outcome.state, "has no 1g.1gb" in outcome.message) == ("failed", True)
    assert here.division() == OFF


async def test_a_lost_gpu_is_reported_and_the_others_stay_as_they_are(node: Callable[..., Node]) -> None:
    here = node("pcie-a100-bridged")
    lost = here.host()
    manager = MigManager(here.nvml, lambda: lost, here._holders, here._changed, here.path)
    here.machine.lose(2)
    outcome = await manager.apply(NamedLayout("all-enabled"))
    assert outcome.state == "failed"
    assert "the GPU has fallen off the bus" in outcome.message
    here.machine.restore(2)
    assert here.all() == [OFF] * 4


async def test_nothing_is_changed_where_nothing_can_be_written_down(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = Faulty()
    here = node("gh200", nvml)

    def full(path: Path, value: object) -> None:
        raise CheckpointError("cannot write: No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(CheckpointFile, "write", full)
        with pytest.raises(CheckpointError, match="No space left"):
            await here.manager.apply(NamedLayout("all-enabled"))
    assert (nvml.calls, here.division()) == (0, OFF)
    assert here.manager.changing == frozenset()
    assert (await here.manager.apply(NamedLayout("all-enabled"))).state == "applied"


@pytest.mark.parametrize("fails_at", range(2, 9))
async def test_where_a_step_cannot_be_written_down_the_next_start_finishes(
    fails_at: int, node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = node("gh200")
    writes = []
    write = CheckpointFile.write

    def full(self: CheckpointFile[Any], value: object) -> None:
        writes.append(value)
        if len(writes) == fails_at:
            raise CheckpointError("cannot write: No space left on device")
        write(self, value)

    with monkeypatch.context() as broken:
        broken.setattr(CheckpointFile, "write", full)
        with pytest.raises(CheckpointError, match="No space left"):
            await here.manager.apply(NamedLayout("all-1g.12gb"))
    assert len(writes) == fails_at
    outcome = await here.restarted().recover()
    assert outcome is not None
    assert outcome.state == "applied"
    assert len(here.division().instances) == 7


@pytest.mark.slow
def test_however_often_it_is_killed_the_layout_is_the_old_or_the_new_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.mig.rounds", "--rounds", "24", "--seed", "5", "--hosts", *SMALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["killed"] > 8
    assert counts["as asked for"] > 10
    assert counts["as it was"] > 10


def test_the_label_names_the_layout_and_nvidias_own_manager_has_the_right_of_way() -> None:
    labels = {"nvidia.com/mig.config": "all-1g.5gb"}
    assert target_of(labels) == NamedLayout("all-1g.5gb")
    assert target_of({}) is None
    assert another(labels) == another({"nvidia.com/gpu.deploy.mig-manager": "false"}) == ""
    for value in ("true", "paused-for-driver-upgrade"):
        reported = another({"nvidia.com/gpu.deploy.mig-manager": value})
        assert f"mig-manager={value}" in reported


async def test_a_change_whose_caller_is_cancelled_ends_before_nvml_is_closed_and_another_begins(
    node: Callable[..., Node],
) -> None:
    nvml = Held()
    here = node(nvml=nvml)
    order: list[str] = []

    async def apply(name: str) -> None:
        try:
            # As the agent does: the library is open for this change alone.
            await here.manager.apply(NamedLayout(name))
        finally:
            order.append(f"{name}: {here.division()}")

    first = asyncio.create_task(apply("all-1g.12gb"))
    assert await asyncio.to_thread(nvml.begun.wait, PATIENCE_S)
    second = asyncio.create_task(apply("all-disabled"))
    first.cancel()
    first.cancel()
    try:
        await asyncio.sleep(0.05)
        assert order == []
        assert here.manager.changing == {here.uuid(0)}, "it is not offered while it is half divided"
    finally:
        nvml.go.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    divided = Division(True, tuple(("1g.12gb", start) for start in range(7)))
    assert order == [f"all-1g.12gb: {divided}", "all-disabled: MIG mode off"]
    assert await here.restarted().recover() is None, "nothing was cut off"
