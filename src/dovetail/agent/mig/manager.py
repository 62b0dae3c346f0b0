# SPDX-License-Identifier: Apache-2.0
"""The MIG manager of a node: repartitions GPUs for a layout or a decision.

Rules
- There are two kinds of targets: the node's label names a layout; a decision of the scheduler names the instances of
  some GPUs by profile and start. A target that a GPU cannot have is refused as a whole, before any change, with the
  rule that it breaks.
- Only idle instances and GPUs are changed: no pod holds them, no process runs on them, and the driver agrees. A layout
  is applied to the idle GPUs, and is `pending` for the others: call `apply` again when pods have gone. A decision is
  applied to all its GPUs, or refused if one is in use: the scheduler decides again.
- Existing instances that have a place in a layout stay where they are.
- Before a GPU is changed its uuid is in `changing`, and `changed` is awaited: the GPU may no longer be allocated. Then
  its use is checked again. `changed` is awaited again at the end: the GPUs have to be discovered again.
- No GPU is reset here: the library is open in this process, which prevents a reset, and on machines with NVSwitches all
  GPUs must be reset together. The driver itself resets an idle GPU if its mode needs that. If a process has the GPU
  open, the mode stays pending, and the outcome reports it.
- `recover` is called first: it finishes or undoes an interrupted change of an earlier process.
- A call that is cancelled ends only after the change that it has begun: until then NVML stays open, the GPUs stay in
  `changing`, and no other change begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
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
from dovetail.kube.threads import run_to_end

State = Literal["applying", "applied", "pending", "refused", "failed"]
_FAILED = frozenset({"undone", "stuck", "gone"})
_WORDS = {
    "done": "finished",
    "undone": "undone",
    "busy": "not begun",
    "reset": "waits",
    "gone": "abandoned",
    "stuck": "stuck",
}


class NamedLayout(Struct, frozen=True):
    """The layout that the label nvidia.com/mig.config names."""

    name: str

    def __str__(self) -> str:
        return f"layout {self.name}"


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of the scheduler (GPUNode spec.mig): by the uuid of each GPU all its instances."""

    id: str
    gpus: Mapping[str, tuple[Placed, ...]] = field(hash=False)

    def __str__(self) -> str:
        return f"decision {self.id}"


Target = NamedLayout | Decision


class DivisionOutcome(Struct, frozen=True):
    """`pending`: apply again after a change. `refused`: the target is impossible. `failed`: it was attempted and
    undone, or could not be undone; the message states which."""

    state: State
    message: str = ""


class _Goal(Struct, frozen=True):
    """The wanted division of a GPU. `why` it has to wait, "" if it has not."""

    gpu: Gpu
    card: MigGpu
    new: Division
    why: str


class MigManager:
    """`host` returns the last discovery. `holders` returns the uuids of the GPUs and MIG devices that pods hold; its
    exceptions are passed on. `changed` is described above."""

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
        """The outcome of the last target; None before the first."""

    async def recover(self) -> DivisionOutcome | None:
        """Finish or undo an interrupted change; None if there is none. Raises CheckpointError."""
        async with self._lock:
            journal = await run_to_end(self._changer.load)
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
        """Apply the target. Raises CheckpointError if the journal cannot be written; then nothing was changed."""
        async with self._lock:
            self.outcome = await self._apply(target)
            return self.outcome

    async def _apply(self, target: Target) -> DivisionOutcome:
        held = _whole_ids(await self._holders())
        try:
            goals = await run_to_end(partial(self._goals, target, held))
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
            await run_to_end(partial(self._changer.begin, str(target), changes))
            ended = await self._carry_out(str(target))
        texts = [f"GPU {one.change.index}: {one.why}" for one in ended if one.why] + waiting
        return DivisionOutcome(
            "pending" if waiting and _state(ended) == "applied" else _state(ended, decided), "; ".join(texts)
        )

    def _before(self, card: MigGpu) -> Division:
        """The division to return to: of a GPU with a stuck change the one before that change."""
        stuck = {change.uuid: change.old for change in self._changer.journal.changes}
        return stuck.get(card.uuid) or division_of(card)

    async def _carry_out(self, what: str) -> list[EndedChange]:
        self.changing = frozenset(change.uuid for change in self._changer.journal.changes)
        self.outcome = DivisionOutcome("applying", what)
        try:
            await self._changed()
            held = _whole_ids(await self._holders())
            return await run_to_end(partial(self._changer.carry_out, self._geometries(), held))
        finally:
            self.changing = frozenset()
            await self._changed()

    def _geometries(self) -> dict[str, Geometry | None]:
        return {gpu.uuid: geometry_of(gpu) for gpu in self._host().gpus}

    def _goals(self, target: Target, held: Collection[str]) -> list[_Goal]:
        """The wanted division of each GPU of the target. Raises MigLayoutError, GeometryError, NvmlError."""
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
            # Nothing to do: `Layouts.of` refuses instances on such a GPU.
            return
        geometry = geometry_of(gpu)
        card = self._hardware.card(gpu.uuid, geometry)
        users = in_use(card, held) if wanted.mig else {}
        there = [one.placed for one in card.instances if one.whole]
        own = arranged(geometry, wanted.counts, there, users) if geometry is not None else ()
        if own is None:
            texts = ", ".join(f"{name}@{start} ({user})" for (name, start), user in users.items())
            yield _Goal(gpu, card, division_of(card), f"the layout has no place for instances in use: {texts}")
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
    """The uuids without replicas: a replica (`ID::2`) holds its device."""
    return frozenset(uuid.partition("::")[0] for uuid in held)
