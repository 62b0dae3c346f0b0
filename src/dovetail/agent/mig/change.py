# SPDX-License-Identifier: Apache-2.0
"""Changes the division of GPUs so that after any end of the process each GPU can get its old or its new division.

Rules
- The old and the new division of each GPU are written to a journal before the first change; so is each step.
- The change of one GPU is all or nothing: if a step fails, the steps before it are undone by the same rules. Instances
  that are in both divisions are never touched, and neither are instances in use.
- Steps are computed from the actual instances, not from the steps that were recorded. So an interrupted change
  continues from any point. It is finished, and undone only if that fails.
- MIG mode is switched on before instances are created, and off after they are destroyed. Instances are destroyed before
  any is created.
- While a mode waits for a reset of the GPU, the GPU keeps its old division, with the mode pending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from dovetail.agent.checkpoint import CheckpointFile
from dovetail.agent.machine.nvml import IN_USE, NOT_SUPPORTED, NvmlError
from dovetail.agent.mig.geometry import Placed, listed
from dovetail.agent.mig.hardware import Hardware, MigGpu
from dovetail.core.devices.mig.geometry import Geometry, GeometryError

End = Literal["done", "undone", "busy", "reset", "gone", "stuck"]
"""`busy`: an instance that would be destroyed is in use, and nothing was done. `reset`: the mode waits for a reset of
the GPU, the rest is as before. `gone`: the GPU no longer exists. `stuck`: the division is neither the old nor the new
one."""


_UNDONE: End = "undone"
_BUSY: End = "busy"
Geometries = Mapping[str, Geometry | None]
"""By the uuid of the GPU."""


class Division(msgspec.Struct, frozen=True):
    """The division of a GPU: instances in the order of their starts, none without MIG mode."""

    mig: bool
    instances: tuple[Placed, ...] = ()

    def __str__(self) -> str:
        return listed(self.instances) or ("MIG mode without instances" if self.mig else "MIG mode off")


class ChangeStep(msgspec.Struct, frozen=True):
    """`placed` is the instance that is destroyed or created."""

    kind: Literal["mode on", "mode off", "destroy", "create"]
    placed: Placed | None = None

    def __str__(self) -> str:
        return f"{self.kind} {listed([self.placed])}" if self.placed else self.kind


class DivisionChange(msgspec.Struct, frozen=True):
    """The change of one GPU. `undo`: it goes back to `old`. `begun` is the last step that was begun."""

    uuid: str
    index: int
    old: Division
    new: Division
    undo: bool = False
    begun: ChangeStep | None = None

    @property
    def goal(self) -> Division:
        return self.old if self.undo else self.new


class ChangeJournal(msgspec.Struct, frozen=True):
    """The unfinished changes, and their target."""

    target: str = ""
    changes: tuple[DivisionChange, ...] = ()


class EndedChange(NamedTuple):
    """`again`: the driver refused a step because the GPU was in use."""

    change: DivisionChange
    end: End
    why: str = ""
    again: bool = False


def division_of(card: MigGpu) -> Division:
    """The division that pods are offered: only whole instances count."""
    return Division(card.mig, tuple(one.placed for one in card.instances if one.whole))


def steps(card: MigGpu, goal: Division) -> Iterator[ChangeStep]:
    """The steps from the actual division to the goal."""
    stays = {one.placed for one in card.instances if one.whole} & {*goal.instances}
    for one in card.instances:
        if one.placed not in stays:
            yield ChangeStep("destroy", one.placed)
    if card.mig != goal.mig or card.pending != goal.mig:
        yield _mode(goal)
    for placed in goal.instances:
        if placed not in stays:
            yield ChangeStep("create", placed)


def _mode(goal: Division) -> ChangeStep:
    return ChangeStep("mode on" if goal.mig else "mode off")


def in_use(card: MigGpu, held: Collection[str]) -> dict[Placed, str]:
    """The user of each instance in use. `held` are the uuids of the GPUs and MIG devices that pods hold."""
    users = ((one.placed, _user(one.uuids, one.pids, held)) for one in card.instances)
    return {placed: user for placed, user in users if user}


def blocked(card: MigGpu, goal: Division, held: Collection[str]) -> str:
    """Why the steps to the goal cannot be done now; "" if no instance that they destroy is in use."""
    going = {step.placed for step in steps(card, goal) if step.kind == "destroy"}
    users = [f"{listed([placed])}: {user}" for placed, user in in_use(card, held).items() if placed in going]
    whole = _user((card.uuid,), card.pids, held)
    if whole and card.mig != goal.mig:
        users.append(f"MIG mode: {whole}")
    return "; ".join(users)


def _user(uuids: tuple[str, ...], pids: tuple[int, ...], held: Collection[str]) -> str:
    if any(uuid in held for uuid in uuids):
        return "held by a pod"
    return f"in use by processes {', '.join(map(str, pids))}" if pids else ""


class Changer:
    """Carries changes out, one after another."""

    def __init__(self, hardware: Hardware, journal: CheckpointFile[ChangeJournal]) -> None:
        self._hardware = hardware
        self._checkpoint = journal
        self.journal = ChangeJournal()

    def load(self) -> ChangeJournal:
        """Read the unfinished changes of the last process. Raises CheckpointError."""
        self.journal = self._checkpoint.read() or ChangeJournal()
        return self.journal

    def begin(self, target: str, changes: Sequence[DivisionChange]) -> None:
        """Write the changes to the journal, beside stuck changes of other GPUs. Raises CheckpointError; then nothing
        may be changed."""
        new = {change.uuid for change in changes}
        stuck = (change for change in self.journal.changes if change.uuid not in new)
        self._write(ChangeJournal(target, (*stuck, *changes)))

    def carry_out(self, geometries: Geometries, held: Collection[str]) -> list[EndedChange]:
        """Finish or undo all changes of the journal; stuck changes stay in it. A GPU without an entry in `geometries`
        has gone. Raises CheckpointError."""
        return [self._over(self._carried_out(change, geometries, held)) for change in self.journal.changes]

    def _carried_out(self, change: DivisionChange, geometries: Geometries, held: Collection[str]) -> EndedChange:
        if change.uuid not in geometries:
            return EndedChange(change, "gone", "the GPU no longer exists")
        geometry = geometries[change.uuid]
        why, end = "it was being undone when the agent ended", _UNDONE
        if not change.undo:
            ended = self._attempt(change, geometry, held)
            if ended.end != "stuck" and (ended.end != "busy" or change.begun is None):
                return ended
            why, change, end = ended.why, ended.change, _BUSY if ended.again else _UNDONE
        ended = self._attempt(self._noted(replace(change, undo=True, begun=None)), geometry, held)
        if ended.end in ("stuck", "busy"):
            return EndedChange(ended.change, "stuck", f"{why}; and its old division cannot be restored: {ended.why}")
        return EndedChange(ended.change, end, f"{why}; {ended.why}" if ended.why else why)

    def _attempt(self, change: DivisionChange, geometry: Geometry | None, held: Collection[str]) -> EndedChange:
        """Bring the GPU to the goal of the change, or stop at the first step that fails."""
        goal, step = change.goal, None
        try:
            card = self._hardware.card(change.uuid, geometry)
            if reason := blocked(card, goal, held):
                return EndedChange(change, "busy", reason)
            if card.mig != goal.mig and card.pending == goal.mig:
                # An earlier attempt left the mode pending: the process that had the GPU open may have ended.
                change = self._step(change, geometry, step := _mode(goal))
                card = self._hardware.card(change.uuid, geometry)
                if card.mig != goal.mig:
                    return EndedChange(change, "reset", _waits(card))
            for step in steps(card, goal):
                change = self._step(change, geometry, step)
                if step.placed is None:
                    card = self._hardware.card(change.uuid, geometry)
                    if card.mig != goal.mig:
                        return self._left(change, geometry, card)
            found = division_of(self._hardware.card(change.uuid, geometry))
        except (NvmlError, GeometryError) as error:
            in_use = isinstance(error, NvmlError) and error.code == IN_USE
            return EndedChange(change, "stuck", f"{step}: {error}" if step else str(error), in_use)
        if found != goal:
            return EndedChange(change, "stuck", f"the driver agreed to every step, and has {found}")
        return EndedChange(change, "done")

    def _left(self, change: DivisionChange, geometry: Geometry | None, card: MigGpu) -> EndedChange:
        """The mode is pending: create the old instances again."""
        if not change.undo:
            for step in steps(with_fields(card, pending=card.mig), change.old):
                change = self._step(change, geometry, step)
        return EndedChange(change, "reset", _waits(card))

    def _step(self, change: DivisionChange, geometry: Geometry | None, step: ChangeStep) -> DivisionChange:
        change = self._noted(replace(change, begun=step))
        if step.placed is None:
            self._hardware.set_mode(change.uuid, step.kind == "mode on")
        elif geometry is None:
            raise NvmlError("nvmlDeviceGetGpuInstances", NOT_SUPPORTED, "the profiles of this GPU are unknown")
        elif step.kind == "destroy":
            self._hardware.destroy(change.uuid, geometry, step.placed)
        else:
            self._hardware.create(change.uuid, geometry, step.placed)
        return change

    def _noted(self, change: DivisionChange) -> DivisionChange:
        changes = (change if other.uuid == change.uuid else other for other in self.journal.changes)
        self._write(replace(self.journal, changes=tuple(changes)))
        return change

    def _over(self, ended: EndedChange) -> EndedChange:
        if ended.end != "stuck":
            left = tuple(other for other in self.journal.changes if other.uuid != ended.change.uuid)
            self._write(replace(self.journal, changes=left) if left else ChangeJournal())
        return ended

    def _write(self, journal: ChangeJournal) -> None:
        self._checkpoint.write(journal)
        self.journal = journal


def _waits(card: MigGpu) -> str:
    pids = f" (processes {', '.join(map(str, card.pids))})" if card.pids else ""
    return f"MIG mode is {'on' if card.pending else 'off'} after the next reset of the GPU: something has it open{pids}"
