# SPDX-License-Identifier: Apache-2.0
"""What an agent does: with its tasks, and as messages to the scheduler."""

from __future__ import annotations

from msgspec import Struct

from dovetail.sim.agents.protocol import Message
from dovetail.sim.agents.task_run import TaskRun


class RunsOn(Struct, frozen=True):
    """The task runs on these devices from now on."""

    run: TaskRun
    devices: tuple[int, ...]


class Saves(Struct, frozen=True):
    """The task makes a checkpoint; its agent hears of the end."""

    run: TaskRun


class Stops(Struct, frozen=True):
    """The task leaves its devices; what is not saved is lost."""

    run: TaskRun


class GivesUp(Struct, frozen=True):
    """The task will never be done."""

    run: TaskRun


AgentAction = RunsOn | Saves | Stops | GivesUp | Message
