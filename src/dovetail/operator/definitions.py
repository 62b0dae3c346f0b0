# SPDX-License-Identifier: Apache-2.0
"""The definitions of our kinds (CustomResourceDefinitions): brought up to date, never taken back, never deleted.

Rules
- A definition that is missing, or of an older release, is applied. One of the same release is mended where it differs.
- One of a newer release stays: to take it back would drop the fields that it added from every object.
- Where objects are stored in an API version that this release does not know, or the version that this release needs is
  not served, the definition is refused, and nothing is written: see `skew`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from dovetail import __version__
from dovetail.kube.api.client import APPLY_PATCH, Client
from dovetail.kube.api.errors import ApiError, Forbidden, NotFound
from dovetail.operator import metrics
from dovetail.operator.comparison import FIELD_MANAGER, differences
from dovetail.operator.live import LiveObject
from dovetail.operator.rendering.stack_objects import Document
from dovetail.operator.skew import API_VERSION, RELEASE_ANNOTATION, SKEW, Part, fits, newer
from dovetail.operator.surroundings import DEFINITIONS

_SETTLE_S = 0.5
_AGAIN_S = 10.0


class DefinitionAction(StrEnum):
    """What is done with a definition."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    KEEP = "keep"
    """It is of a newer release, which this one works with."""
    REFUSE = "refuse"


class DefinitionPlan(Struct, frozen=True):
    """`found` is the release of the definition in the cluster, "" where that is not known. `text`: why it is kept or
    refused, and what to do, or the first field that differs."""

    name: str
    action: DefinitionAction
    found: str = ""
    text: str = ""


def plan(wanted: Document, live: LiveObject | None, program: str = __version__) -> DefinitionPlan:
    """What to do with one definition. `program`: the version of the program that asks."""
    name = wanted["metadata"]["name"]
    if live is None:
        return DefinitionPlan(name, DefinitionAction.CREATE)
    found = live.metadata.annotations.get(RELEASE_ANNOTATION, "")
    offered = wanted["metadata"].get("annotations", {}).get(RELEASE_ANNOTATION, "")
    if refusal := _refusal(wanted, live, found, program):
        return DefinitionPlan(name, DefinitionAction.REFUSE, found, f"{name}: {refusal}")
    if newer(found, offered):
        return DefinitionPlan(name, DefinitionAction.KEEP, found, f"{name} is of release {found} and stays as it is")
    difference = next(differences(wanted, live), "")
    return DefinitionPlan(
        name, DefinitionAction.UPDATE if difference else DefinitionAction.UNCHANGED, found, difference
    )


def _refusal(wanted: Document, live: LiveObject, found: str, program: str) -> str:
    """Why this program cannot work with the definition as it is; "" where it can."""
    known = {one["name"] for one in wanted["spec"]["versions"]}
    stored = [one for one in _mapping(live.status).get("storedVersions") or () if one not in known]
    if stored and not newer(found, program):
        return f"objects are stored as {', '.join(stored)}, which release {program} does not know: they would be lost"
    versions = _mapping(live.spec).get("versions") or ()
    served = [one.get("name", "") for one in versions if one.get("served")]
    if API_VERSION not in served:
        return (
            f"it serves {', '.join(served) or 'no version'}, and release {program} needs {API_VERSION}: "
            f"install release {found or 'of the definition'} of Dovetail, or a later one"
        )
    (rule,) = (one for one in SKEW if (one.part, one.than) == (Part.DEFINITIONS, Part.OPERATOR))
    if newer(found, program) and not fits(rule, found, program):
        return f"it is of release {found}, too new for release {program}: install release {found} of Dovetail"
    return ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


async def read(client: Client, wanted: Iterable[Document]) -> list[DefinitionPlan]:
    """What to do with each definition. Raises ApiError."""
    return [plan(one, await _live(client, one["metadata"]["name"])) for one in wanted]


async def bring_up_to_date(
    client: Client, wanted: Sequence[Document], *, dry_run: bool = False
) -> list[DefinitionPlan]:  # fmt: skip
    """Apply what is missing or older; nothing if one is refused. Returns the plans. Raises ApiError."""
    plans = await read(client, wanted)
    if dry_run or any(one.action is DefinitionAction.REFUSE for one in plans):
        return plans
    for one, document in zip(plans, wanted, strict=True):
        if one.action in (DefinitionAction.CREATE, DefinitionAction.UPDATE):
            params = {"fieldManager": FIELD_MANAGER, "force": "true"}
            path = DEFINITIONS.path(None, one.name)
            await client.request("PATCH", path, document, params=params, content_type=APPLY_PATCH)
    return plans


class Definitions:
    """The definitions while this process leads. `refusal` is why it cannot work with them, "" where it can; `changed`
    is called when that is another one."""

    def __init__(self, client: Client, wanted: Sequence[Document], changed: Callable[[], None]) -> None:
        self._client = client
        self._wanted = wanted
        self._changed = changed
        self._due = asyncio.Event()
        self.refusal = ""

    def wake(self) -> None:
        """A definition has changed."""
        self._due.set()

    async def run(self) -> None:
        """Examine them after each change, until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(_SETTLE_S)
            self._due.clear()
            before = self.refusal
            if not await self.examine():
                await asyncio.sleep(_AGAIN_S)
                self._due.set()
            if self.refusal != before:
                self._changed()

    async def examine(self) -> bool:
        """Bring them up to date. False where the API server did not answer."""
        try:
            plans = await bring_up_to_date(self._client, self._wanted)
        except Forbidden as error:
            # Somebody else keeps the definitions then.
            metrics.log.warning("definitions: %s", error)
            return True
        except ApiError as error:
            metrics.log.warning("definitions: %s; trying again", error)
            return False
        for one in plans:
            if one.action is not DefinitionAction.UNCHANGED:
                metrics.log.info("definition %s: %s %s", one.name, one.action, one.text)
        self.refusal = "; ".join(one.text for one in plans if one.action is DefinitionAction.REFUSE)
        return True


async def _live(client: Client, name: str) -> LiveObject | None:
    try:
        return await client.request("GET", DEFINITIONS.path(None, name), decode=LiveObject)
    except NotFound:
        return None
