# SPDX-License-Identifier: Apache-2.0
"""Authorization of what we serve, as in kube-scheduler: the API server authenticates the token (TokenReview) and checks
that its user may do what the request needs (SubjectAccessReview).

Rules: an approval is cached for a minute, a refusal for ten seconds. Tokens are kept as digests, `_KEPT` at most. At
most `_AT_ONCE` tokens are reviewed at a time, so that unknown tokens cost the API server little.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any

from msgspec import Struct

from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.errors import KubeError

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_HOLDS_S = 60.0
_REFUSAL_HOLDS_S = 10.0
_KEPT = 256
_AT_ONCE = 4
_LONGEST_TOKEN = 16 << 10
_TIMEOUT_S = 5.0

Refusal = tuple[int, str]


class Access(Struct, frozen=True):
    """What a request needs: in `words`, and as the `attributes` that a SubjectAccessReview has as its `kind`."""

    words: str
    kind: str
    attributes: tuple[tuple[str, str], ...]


METRICS = Access(
    "get the nonResourceURL /metrics", "nonResourceAttributes", (("path", "/metrics"), ("verb", "get"))
)  # fmt: skip
"""To read the metrics of the scheduler."""


class _User(Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(Struct):
    authenticated: bool = False
    user: _User | None = None


class _TokenReview(Struct):
    status: _TokenStatus


class _AccessStatus(Struct):
    allowed: bool = False


class _AccessReview(Struct):
    status: _AccessStatus


def scheme_and_token(authorization: str) -> tuple[str, str]:
    """The scheme of an Authorization header, in lower case, and what it sends (RFC 9110, 11.4); "" where it lacks them.

    Schemes are compared without regard to case, and any number of spaces may follow."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower(), token.strip()


class Reviews:
    """`refusal(header, access)` for what one process serves."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[bytes, Access], tuple[Refusal | None, float]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def refusal(self, authorization: str, access: Access) -> Refusal | None:
        """Why a request with this Authorization header has no such access: an HTTP status and a text; None: it has."""
        scheme, token = scheme_and_token(authorization)
        if scheme != "bearer" or not token or len(token) > _LONGEST_TOKEN:
            return 401, f"a bearer token is needed, of an account that may {access.words}"
        asked = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), access
        if known := self._fresh(asked):
            return known[0]
        async with self._turns:
            if known := self._fresh(asked):
                return known[0]
            try:
                answer = await self._ask(token, access)
            except KubeError as error:
                return 503, f"the API server cannot be asked for the identity of the caller: {error}"
        holds_s = _HOLDS_S if answer is None else _REFUSAL_HOLDS_S
        while len(self._known) >= _KEPT:
            del self._known[next(iter(self._known))]
        self._known[asked] = answer, time.monotonic() + holds_s
        return answer

    def _fresh(self, asked: tuple[bytes, Access]) -> tuple[Refusal | None, float] | None:
        known = self._known.get(asked)
        return known if known is not None and time.monotonic() < known[1] else None

    async def _ask(self, token: str, access: Access) -> Refusal | None:
        review = await self._review(_TOKENS, "authentication.k8s.io/v1", "TokenReview", {"token": token}, _TokenReview)
        user = review.status.user
        if not review.status.authenticated or user is None:
            return 401, "the API server does not know this token"
        spec: dict[str, Any] = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            access.kind: dict(access.attributes),
        }
        answer = await self._review(_ACCESS, "authorization.k8s.io/v1", "SubjectAccessReview", spec, _AccessReview)
        if not answer.status.allowed:
            return 403, f"{user.username} may not {access.words}: bind a role that lets it"
        return None

    async def _review(self, path: str, api_version: str, kind: str, spec: dict[str, Any], decode: type[Any]) -> Any:
        body = {"apiVersion": api_version, "kind": kind, "spec": spec}
        return await self._client.request(
            "POST", path, body, decode=decode, attempts=Attempts(_TIMEOUT_S, retries=1, idempotent=True)
        )
