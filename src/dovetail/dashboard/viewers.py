# SPDX-License-Identifier: Apache-2.0
"""How the API server is reached as a viewer: with the token of the request; on the machine of a user as the kubeconfig
has it.

Rules
- In a cluster the configuration that is kept has no identity: without a token of the viewer nothing can be asked.
- On the machine of a user all programs of that machine reach the pages. An action needs the key besides that the
  command prints as a part of the address, which the browser sends nowhere (a fragment).
"""

from __future__ import annotations

import hmac
import secrets

from msgspec import Struct
from msgspec.structs import replace

from dovetail.aggregated.question import BadQuestion
from dovetail.jobs.kinds import kind_of
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.credentials import Files
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.resources import EVENTS, GPU_NODES, Resource
from dovetail.kube.api.reviews import scheme_and_token

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
KEY_HEADER = "x-dovetail-key"


class _Status(Struct, frozen=True):
    allowed: bool = False


class _Review(Struct, frozen=True):
    status: _Status


class _User(Struct, frozen=True):
    username: str = ""


class _SelfStatus(Struct, frozen=True, rename="camel"):
    user_info: _User = _User()


class _SelfReview(Struct, frozen=True):
    status: _SelfStatus


class Viewers:
    """Of the cluster of this configuration. `key` is "" where viewers have tokens."""

    def __init__(self, config: ClusterConfig, *, tokens: bool) -> None:
        self._config = replace(config, source=Files()) if tokens else config
        self._tokens = tokens
        self.key = "" if tokens else secrets.token_urlsafe(18)

    def has_key(self, sent: str) -> bool:
        return hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), self.key.encode())

    def config(self, authorization: str) -> ClusterConfig:
        """For requests of the viewer with this Authorization header. Raises BadQuestion."""
        if not self._tokens:
            return self._config
        scheme, token = scheme_and_token(authorization)
        if scheme != "bearer" or not token:
            raise BadQuestion(401, "a bearer token is needed: that of the user that acts")
        return replace(self._config, source=Files(token=token))

    async def possible(self, on: str, kind: tuple[str, str], namespace: str, authorization: str) -> tuple[str, ...]:
        """What the viewer has the rights for: on a `node`, on a `job` of this API group and kind in the namespace, or
        about idle pods (`waste`) of the namespace ("": all). Raises BadQuestion."""
        config = self.config(authorization)
        needed: dict[str, tuple[str, Resource]] = {}
        if on == "node":
            needed = {"drain": ("patch", GPU_NODES)}
        elif on == "waste":
            needed = {"notify": ("create", EVENTS)}
        elif on == "job" and (found := kind_of(*kind)) is not None and found.suspend:
            needed = {"suspend": ("patch", found.resource)}
        try:
            async with Client(config, user_agent="dovetail-dashboard") as client:
                may = [
                    name for name, (verb, resource) in needed.items()
                    if await _may(client, verb, resource, namespace if resource.namespaced else "")
                ]  # fmt: skip
        except KubeError as error:
            raise BadQuestion(503, str(error)) from error
        return tuple(may)


async def _may(client: Client, verb: str, resource: Resource, namespace: str) -> bool:
    """Whether the user of this client may do that. A server without such reviews (a playground) refuses nothing."""
    attributes = {"group": resource.group, "resource": resource.plural, "verb": verb}
    if namespace:
        attributes["namespace"] = namespace
    body = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }  # fmt: skip
    try:
        return (await client.request("POST", _REVIEWS, body, decode=_Review)).status.allowed
    except NotFound:
        return True


async def user_of(config: ClusterConfig) -> str:
    """The name that the API server has for the user of this configuration; "somebody" where it has none.
    Raises KubeError."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        async with Client(config, user_agent="dovetail-dashboard") as client:
            found = await client.request("POST", _SELF, body, decode=_SelfReview)
    except NotFound:
        return "somebody"
    return found.status.user_info.username or "somebody"
