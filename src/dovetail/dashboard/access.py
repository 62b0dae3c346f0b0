# SPDX-License-Identifier: Apache-2.0
"""What a request may see: all, or one namespace.

Rules
- `OwnAccess`, on the machine of a user: the pages have the rights of the kubeconfig, and only that machine reaches
  them.
- `ReviewedAccess`, in a cluster: the API server authenticates the token of each request and decides whether its user
  may list the views, of the cluster or of the namespace that the request names. Commands need that right, too.
- To ask what a change would do, its user needs the right to create the question (`PREDICTS`).
- Pages about the past need the right to list what they are made of besides.
- Without that right nothing is shown, and the message is the same whether there is such a namespace or not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Protocol

from msgspec import Struct

from dovetail.kube.api.resources import Resource
from dovetail.kube.api.reviews import Access, Refusal, Reviews
from dovetail.kube.objects.views import NODE_LISTS, WHAT_IFS

_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


class Right(Struct, frozen=True):
    """A verb on a resource."""

    verb: str
    resource: Resource


SEES = Right("list", NODE_LISTS)
"""To see the pages."""
PREDICTS = Right("create", WHAT_IFS)
"""To ask what a change would do."""


def lists(resources: Iterable[Resource]) -> tuple[Right, ...]:
    """The rights to list these."""
    return tuple(Right("list", one) for one in resources)


class Accesses(Protocol):
    """Decides what is shown."""

    async def refusal(
        self, authorization: str, namespace: str, needed: Collection[Right] = ()
    ) -> Refusal | None:  # fmt: skip
        """Why a request with this Authorization header may not see this namespace ("": all), or has not there what is
        `needed` besides: an HTTP status and a text; None: it may."""


class OwnAccess:
    """All requests may see all that the kubeconfig may."""

    async def refusal(
        self, authorization: str, namespace: str, needed: Collection[Right] = ()
    ) -> Refusal | None:  # fmt: skip
        return wrong_namespace(namespace)


class ReviewedAccess:
    """The API server decides."""

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews

    async def refusal(
        self, authorization: str, namespace: str, needed: Collection[Right] = ()
    ) -> Refusal | None:  # fmt: skip
        if refused := wrong_namespace(namespace):
            return refused
        for right in (SEES, *needed):
            if refused := await self._reviews.refusal(authorization, _access(right, namespace)):
                return refused
        return None


def wrong_namespace(namespace: str) -> Refusal | None:
    """The refusal of what is no name of a namespace."""
    if namespace and not _NAMESPACE.fullmatch(namespace):
        return 400, "that is no name of a namespace"
    return None


def _access(right: Right, namespace: str) -> Access:
    group, plural = right.resource.group, right.resource.plural
    where = f"namespace {namespace}" if namespace else "all namespaces"
    named = (("namespace", namespace),) if namespace else ()
    return Access(
        f"{right.verb} {plural}.{group} in {where}", "resourceAttributes",
        (("group", group), ("resource", plural), ("verb", right.verb), *named),
    )  # fmt: skip
