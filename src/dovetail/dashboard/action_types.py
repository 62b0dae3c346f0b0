# SPDX-License-Identifier: Apache-2.0
"""What viewers ask to be done, what a dry run of it shows, and what was done."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.core.model import DrainMode
from dovetail.views.drain_types import DrainPlan

_Name = Annotated[str, Meta(min_length=1, max_length=253)]


class DrainNode(Struct, frozen=True, tag="drain", rename="camel"):
    """Put the node into maintenance, as `dovetail drain` does."""

    node: _Name
    mode: DrainMode = "WaitForJobs"
    reason: Annotated[str, Meta(max_length=256)] = ""


class UndrainNode(Struct, frozen=True, tag="undrain", rename="camel"):
    """End it, as `dovetail drain --undo` does."""

    node: _Name


class NotifyOwner(Struct, frozen=True, tag="notify", rename="camel"):
    """Write an event on each idle pod of the job, as `dovetail idle --notify` does."""

    namespace: _Name
    job: _Name


class SuspendJob(Struct, frozen=True, tag="suspend", rename="camel"):
    """Suspend the object of the job, which is of this API group and kind: objects of other kinds, and kinds of other
    groups, can have the same name."""

    namespace: _Name
    job: _Name
    group: _Name
    kind: Annotated[str, Meta(min_length=1, max_length=63)]


Action = DrainNode | UndrainNode | NotifyOwner | SuspendJob


class AskedAction(Struct, frozen=True, rename="camel"):
    """The body of a request. Without `confirmation`, which a dry run gives, it is a dry run."""

    action: Action
    confirmation: str = ""


class PossibleActions(Struct, frozen=True):
    """The actions that the viewer has the rights for: drain, undrain, notify, suspend."""

    actions: tuple[str, ...]


class ActionPreview(Struct, frozen=True):
    """What an action would do: `title` is its name, `effects` are sentences, `plan` is that of a drain. `confirmation`
    has to come with the same action of the same user, up to `valid_until_ms`."""

    user: str
    title: str
    effects: tuple[str, ...]
    plan: DrainPlan | None
    confirmation: str
    valid_until_ms: int


class ActionDone(Struct, frozen=True):
    """What was done, by which user, and where it is recorded."""

    user: str
    done: str
    record: str
