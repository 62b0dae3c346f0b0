# SPDX-License-Identifier: Apache-2.0
"""What a server serves. This alone decides which dialect of an object is used; version numbers decide nothing.

One aggregated document (KEP-3352) where the server offers it, else one document per group and version. An aggregated
API that is down takes only its own group with it: the group is listed in `failed`, and its kinds count as not served.
"""

import asyncio
import logging

from msgspec import Struct

from dovetail.kube.api.client import JSON, Attempts, Client
from dovetail.kube.api.errors import ApiError
from dovetail.kube.api.resources import Served as Served

_AGGREGATED = ",".join(
    [f"{JSON};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" for version in ("v2", "v2beta1")] + [JSON]
)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 10.0


class _Name(Struct):
    name: str = ""


class _Listed(Struct):
    """A kind, in either document: aggregated ones call it `resource`, the others `name`."""

    resource: str = ""
    name: str = ""


class _Version(Struct, rename="camel"):
    version: str = ""
    group_version: str = ""
    freshness: str = ""
    resources: list[_Listed] | None = None


class _Group(Struct):
    metadata: _Name | None = None
    versions: list[_Version] | None = None


class _Index(Struct):
    """/api or /apis: `items` if the server aggregates, else `groups` (for /apis) or `versions` (for /api)."""

    items: list[_Group] | None = None
    groups: list[_Group] | None = None
    versions: list[str] | None = None


class _Resources(Struct):
    resources: list[_Listed] | None = None


async def discover(client: Client) -> Served:
    """Read the server's groups and resources. Raises ApiError when the server cannot be reached at all."""
    kinds: set[tuple[str, str]] = set()
    failed: list[str] = []
    unread: list[str] = []
    for root in ("/api", "/apis"):
        index = await client.request("GET", root, decode=_Index, accept=_AGGREGATED)
        for group in index.items or ():
            for version in group.versions or ():
                name = group.metadata.name if group.metadata else ""
                api_version = f"{name}/{version.version}" if name else version.version
                if version.freshness == "Stale":
                    failed.append(api_version)
                else:
                    kinds.update((api_version, kind.resource) for kind in version.resources or ())
        unread += index.versions or ()
        unread += [version.group_version for group in index.groups or () for version in group.versions or ()]

    async def ask(api_version: str) -> None:
        root = "/apis" if "/" in api_version else "/api"
        try:
            document = await client.request(
                "GET", f"{root}/{api_version}", decode=_Resources, attempts=Attempts(retries=1)
            )
        except ApiError:
            failed.append(api_version)
        else:
            kinds.update((api_version, kind.name) for kind in document.resources or ())

    await asyncio.gather(*map(ask, unread))
    return Served(frozenset(kinds), tuple(sorted(failed)))


async def discover_when_up(client: Client, log: logging.Logger) -> Served:
    """The same, tried again while the server is away; each failure is logged. Raises ApiError where it refuses."""
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return await discover(client)
        except ApiError as error:
            if error.status not in (0, 429) and error.status < 500:
                raise
            log.warning("%s; trying again in %g s", error, wait_s)
        await asyncio.sleep(wait_s * (0.5 + 0.5 * client.jitter()))
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
