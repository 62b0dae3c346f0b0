# SPDX-License-Identifier: Apache-2.0
"""The MIG manager of a node: from what somebody asks for to GPUs that are divided so.

Rules
- Two can ask: a node's label names a layout; the scheduler's decision names the instances of some GPUs by profile and
  start. What a GPU cannot be is refused as a whole, before anything is touched, with the rule that it breaks.
- Only what nobody uses is changed: no pod holds it, no process runs on it, and the driver agrees. A layout is applied
  to the GPUs where that is so, and the others are waited for (`pending`): ask again when pods have gone. A decision is
  applied to all its GPUs or, where somebody uses one, refused: the scheduler decides anew.
- Of a layout, instances that are there and have a place in it stay where they are.
- Before a GPU is changed it is in `changing`, and `changed` is awaited: nobody may be given it any more. Then it is
  looked at once more. `changed` is awaited again when it is over: the GPUs have to be discovered anew.
- A GPU is never reset here: the library is open in this process, which alone prevents it, and on machines with
  NVSwitches all GPUs have to be reset at once. The driver resets an idle GPU by itself where its mode needs that; where
  something has the GPU open, the mode stays pending, and the outcome says so.
- `recover` comes first: it finishes what a process before this one began, or undoes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import Struct

from dovetail.agent.checkpoint import CheckpointFile
from dovetail.agent.machine.host import Gpu, Host
from dovetail.agent.machine.nvml import Nvml, NvmlError
from dovetail.agent.mig.change import (
    ChangeJournal,
    Changer,
    Division,
    DivisionChange,
    EndedChange,
    blocked,
    division_of,
    in_use,
    steps,
)
from dovetail.agent.mig.geometry import Placed, arranged, geometry_of
from dovetail.agent.mig.hardware import Hardware, MigGpu
from dovetail.agent.mig.layouts import Candidate, Layouts, MigLayoutError, WantedLayout, exact
from dovetail.core.devices.mig.geometry import Geometry, GeometryError

State = Literal["applying", "applied", "pending", "refused", "failed"]
_FAILED = frozenset({"undone", "stuck", "gone"})
_WORDS = {
    "done": "finished",
    "undone": "undone",
    "busy": "not begun",
    "reset": "waits",
    "gone": "given up",
    "stuck": "stuck",
}


class NamedLayout(Struct, frozen=True):
    """What the label nvidia.com/mig.config asks for."""

    name: str

    def __str__(self) -> str:
        return f"layout {self.name}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the scheduler decided (GPUNode spec.mig): all instances of each of these GPUs, by its uuid."""

    id: str
    gpus: Mapping[str, tuple[Placed, ...]] = field(hash=False)

    def __str__(self) -> str:
        return f"decision {self.id}"


Target = NamedLayout | Decision


class DivisionOutcome(Struct, frozen=True):
    """`pending`: ask again when something has changed. `refused`: it cannot be. `failed`: it was tried and undone, or,
    as the message then says, not even that."""

    state: State
    message: str = ""


class _Goal(Struct, frozen=True):
    """`why` it has to wait; "" where it has not."""

    gpu: Gpu
    card: MigGpu
    new: Division
    why: str


class MigManager:
    """`host` is what was discovered last; `holders` tells which GPUs and MIG devices pods hold, by uuid, and what it
    raises is passed on; `changed` as the module says."""

    def __init__(
        self,
        nvml: Nvml,
        host: Callable[[], Host],
        holders: Callable[[], Awaitable[Collection[str]]],
        changed: Callable[[], Awaitable[None]],
        checkpoint: Path,
        layouts: Layouts | None = None,
    ) -> None:
        self._hardware = Hardware(nvml)
        self._changer = Changer(self._hardware, CheckpointFile(checkpoint, ChangeJournal))
        self._host = host
        self._holders = holders
        self._changed = changed
        self._layouts = layouts or Layouts()
        self._lock = asyncio.Lock()
        self.changing: frozenset[str] = frozenset()
        """The uuids of the GPUs that are being changed."""
        self.outcome: DivisionOutcome | None = None
        """That of the last target; None before the first."""

    async def recover(self) -> DivisionOutcome | None:
        """Finishes or undoes what was cut off; None where nothing was. Raises CheckpointError."""
        async with self._lock:
            journal = await asyncio.to_thread(self._changer.load)
            if not journal.changes:
                return None
            cut = {change.uuid: str(change.begun or "before its first step") for change in journal.changes}
            ended = await self._carry_out(f"{journal.target}, which was cut off")
            texts = [
                f"GPU {one.change.index} ({cut[one.change.uuid]}): {_WORDS[one.end]}{one.why and ': '}{one.why}"
                for one in ended
            ]
            self.outcome = DivisionOutcome(_state(ended), f"{journal.target} was cut off: {'; '.join(texts)}")
            return self.outcome

    async def apply(self, target: Target) -> DivisionOutcome:
        """Raises CheckpointError, where nothing can be written down: then nothing was changed."""
        async with self._lock:
            self.outcome = await self._apply(target)
            return self.outcome

    async def _apply(self, target: Target) -> DivisionOutcome:
        held = _whole_ids(await self._holders())
        try:
            goals = await asyncio.to_thread(self._goals, target, held)
        except (MigLayoutError, GeometryError) as error:
            return DivisionOutcome("refused", str(error))
        except NvmlError as error:
            return DivisionOutcome("failed", str(error))
        waiting = [f"GPU {goal.gpu.index}: {goal.why}" for goal in goals if goal.why]
        decided = isinstance(target, Decision)
        if waiting and decided:
            return DivisionOutcome("refused", "; ".join(waiting))
        unfinished = {change.uuid for change in self._changer.journal.changes}
        changes = [
            DivisionChange(goal.gpu.uuid, goal.gpu.index, self._before(goal.card), goal.new)
            for goal in goals
            if not goal.why and (goal.gpu.uuid in unfinished or any(steps(goal.card, goal.new)))
        ]
        ended: list[EndedChange] = []
        if changes:
            await asyncio.to_thread(self._changer.begin, str(target), changes)
            ended = await self._carry_out(str(target))
        texts = [f"GPU {one.change.index}: {one.why}" for one in ended if one.why] + waiting
        return DivisionOutcome(
            "pending" if waiting and _state(ended) == "applied" else _state(ended, decided), "; ".join(texts)
        )

    def _before(self, card: MigGpu) -> Division:
        """Where a change is stuck, what was there before that one."""
        stuck = {change.uuid: change.old for change in self._changer.journal.changes}
        return stuck.get(card.uuid) or division_of(card)

    async def _carry_out(self, what: str) -> list[EndedChange]:
        self.changing = frozenset(change.uuid for change in self._changer.journal.changes)
        self.outcome = DivisionOutcome("applying", what)
        try:
            await self._changed()
            held = _whole_ids(await self._holders())
            return await asyncio.to_thread(self._changer.carry_out, self._geometries(), held)
        finally:
            self.changing = frozenset()
            await self._changed()

    def _geometries(self) -> dict[str, Geometry | None]:
        return {gpu.uuid: geometry_of(gpu) for gpu in self._host().gpus}

    def _goals(self, target: Target, held: Collection[str]) -> list[_Goal]:
        """How each GPU that the target is about should be. Raises LayoutError, GeometryError, NvmlError."""
        gpus = self._host().gpus
        candidates = {
            gpu.index: Candidate(
                gpu.index, gpu.product, self._hardware.device(gpu.uuid), gpu.mig_capable, geometry_of(gpu)
            )
            for gpu in gpus
        }
        if isinstance(target, Decision):
            return self._of_decision(target, candidates, held)
        wanted = self._layouts.of(target.name, list(candidates.values()))
        return [goal for gpu in gpus if gpu.index in wanted for goal in self._of_layout(gpu, wanted[gpu.index], held)]

    def _of_layout(self, gpu: Gpu, wanted: WantedLayout, held: Collection[str]) -> Iterable[_Goal]:
        if not gpu.mig_capable:
            # It is as it should be: `Layouts.of` has refused all else.
            return
        geometry = geometry_of(gpu)
        card = self._hardware.card(gpu.uuid, geometry)
        users = in_use(card, held) if wanted.mig else {}
        there = [one.placed for one in card.instances if one.whole]
        own = arranged(geometry, wanted.counts, there, users) if geometry is not None else ()
        if own is None:
            texts = ", ".join(f"{name}@{start} ({user})" for (name, start), user in users.items())
            yield _Goal(gpu, card, division_of(card), f"the layout has no place for what is there: {texts}")
        else:
            yield _goal(gpu, card, Division(wanted.mig, own), held)

    def _of_decision(
        self, decision: Decision, candidates: Mapping[int, Candidate], held: Collection[str]
    ) -> list[_Goal]:
        by_uuid = {gpu.uuid: gpu for gpu in self._host().gpus}
        for uuid in decision.gpus:
            if uuid not in by_uuid:
                raise MigLayoutError(f"this node has no GPU {uuid}")
        asked = [(by_uuid[uuid], exact(candidates[by_uuid[uuid].index], own)) for uuid, own in decision.gpus.items()]
        geometries = self._geometries()
        cards = [self._hardware.card(gpu.uuid, geometries[gpu.uuid]) for gpu, _ in asked]
        return [_goal(gpu, card, Division(True, own), held) for (gpu, own), card in zip(asked, cards, strict=True)]


def _goal(gpu: Gpu, card: MigGpu, new: Division, held: Collection[str]) -> _Goal:
    return _Goal(gpu, card, new, blocked(card, new, held))


def _state(ended: Iterable[EndedChange], decided: bool = False) -> State:
    ends = {one.end for one in ended}
    if ends & _FAILED:
        return "failed"
    if "busy" in ends and decided:
        return "refused"
    return "pending" if ends & {"busy", "reset"} else "applied"


def _whole_ids(held: Collection[str]) -> frozenset[str]:
    """Replicas of a device (`ID::2`) hold the device."""
    return frozenset(uuid.partition("::")[0] for uuid in held)
