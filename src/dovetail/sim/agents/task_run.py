# SPDX-License-Identifier: Apache-2.0
"""The progress of one task: what it runs on, what it did, what of that is saved, and what was lost.

All GPU time that a task holds is one of four: progress, progress that was lost, checkpoints and restarts (`overhead`),
or nothing at all, between a checkpoint and what the agent does next, which takes no time.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.sim.agents.tasks import AgentTask


class TaskRun(Struct):
    """The state of a task; the world changes it, its agent reads it.

    `devices` are those in use. Between `since_ms` and `from_ms` the task starts; from then on it makes progress, unless
    it is `saving`, until `from_ms` too. `saved` is progress that is safe, `fresh` progress that is not. Amounts are
    GPU-milliseconds up to `since_ms`."""

    number: int
    task: AgentTask
    devices: tuple[int, ...] = ()
    saving: bool = False
    since_ms: int = 0
    from_ms: int = 0
    saved: int = 0
    fresh: int = 0
    lost: int = 0
    overhead: int = 0
    starts: int = 0
    """Counts its starts, and the changes of its devices."""
    version: int = 0
    """Counts all changes, so that an event that was planned before one is dropped."""
    started_ms: int | None = None
    ended_ms: int | None = None
    refused: bool = False

    @property
    def active(self) -> bool:
        """Whether it has devices: it starts, runs or saves."""
        return bool(self.devices)

    def progress(self, now_ms: int) -> int:
        """All progress that is not lost."""
        done = self.saved + self.fresh
        if self.devices and not self.saving:
            done += max(0, now_ms - max(self.since_ms, self.from_ms)) * len(self.devices)
        return min(done, self.task.work_gpu_ms)

    def remaining(self, now_ms: int) -> int:
        return self.task.work_gpu_ms - self.progress(now_ms)

    def unsaved(self, now_ms: int) -> int:
        """Progress that would be lost if it were stopped now."""
        return self.progress(now_ms) - self.saved

    def end_ms(self, now_ms: int) -> int:
        """When it ends on its devices, if nothing changes. Only for a task that runs."""
        return max(now_ms, self.from_ms) + -(-self.remaining(now_ms) // len(self.devices))

    def run(self, now_ms: int, devices: tuple[int, ...]) -> None:
        """Run on these devices from now on. Progress that is not saved is lost if a device is left out, or if it has no
        devices now."""
        self.fold(now_ms)
        if not set(self.devices) <= set(devices):
            self._lose()
        pause_ms = self.task.restart_ms if self.starts else 0
        self.devices, self.saving = devices, False
        self.since_ms, self.from_ms = now_ms, now_ms + pause_ms
        self.starts += 1
        self.version += 1
        if self.started_ms is None:
            self.started_ms = now_ms

    def save(self, now_ms: int) -> int:
        """Begin a checkpoint; returns when it is complete."""
        self.fold(now_ms)
        self.saving = True
        self.from_ms = now_ms + (self.task.checkpoint_ms if self.fresh else 0)
        self.version += 1
        return self.from_ms

    def complete_save(self, now_ms: int) -> None:
        self.fold(now_ms)
        self.saved += self.fresh
        self.fresh = 0

    def stop(self, now_ms: int) -> None:
        """It has no devices from now on, and loses what is not saved."""
        self.fold(now_ms)
        self._lose()
        self.devices, self.saving = (), False
        self.version += 1

    def end(self, now_ms: int) -> None:
        """All of its work is done."""
        self.fold(now_ms)
        self.saved, self.fresh = self.task.work_gpu_ms, 0
        self.devices, self.ended_ms = (), now_ms
        self.version += 1

    def fold(self, now_ms: int) -> None:
        """Add up what happened since `since_ms`."""
        gpus, lasted_ms = len(self.devices), now_ms - self.since_ms
        if self.saving:
            self.overhead += gpus * lasted_ms
        elif gpus:
            paused_ms = max(0, min(now_ms, self.from_ms) - self.since_ms)
            worked = gpus * (lasted_ms - paused_ms)
            kept = min(worked, self.task.work_gpu_ms - self.saved - self.fresh)
            self.fresh += kept
            # The last millisecond may be longer than its work.
            self.overhead += gpus * paused_ms + worked - kept
        self.since_ms = now_ms

    def _lose(self) -> None:
        self.lost += self.fresh
        self.fresh = 0
