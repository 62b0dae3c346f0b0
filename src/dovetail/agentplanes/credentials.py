# SPDX-License-Identifier: Apache-2.0
"""How an agent gets to its endpoint: a Secret in the namespace of its control plane.

Rules
- The Secret has a kubeconfig, and its parts. It is made again when it is not there, when its token is none of the plane
  any more, and when the address or the authority has changed. To replace a token, delete the Secret: the new one is
  then the only one.
- It belongs to the AgentControlPlane, and goes with it.
"""

from __future__ import annotations

import base64
import binascii

import yaml
from msgspec import Struct, field

from dovetail.apiserver.objects import Object
from dovetail.apiserver.planes.host import PlaneHost
from dovetail.apiserver.planes.registry import PlaneName
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import NotFound
from dovetail.kube.api.resources import CONTROL_PLANES, SECRETS

SECRET = "dovetail-agent-endpoint"
"""One name for all: a namespace has one control plane that counts, and a role can name it."""


class EndpointAddress(Struct, frozen=True):
    """Where agents find the endpoints: the URL before `/planes/`, and the certificates of its authority as PEM ("":
    those that the client knows)."""

    url: str
    authority: str = ""


class _Meta(Struct, rename="camel"):
    resource_version: str = ""


class _Secret(Struct):
    metadata: _Meta
    data: dict[str, str] = field(default_factory=dict)


async def write_secret(
    client: Client, planes: PlaneHost, name: PlaneName, uid: str, address: EndpointAddress
) -> bool:  # fmt: skip
    """See that the Secret of the plane is there and good. Returns whether it was written. Raises ApiError, KeyError."""
    path = SECRETS.path(name.namespace, SECRET)
    try:
        found = await client.request("GET", path, decode=_Secret)
    except NotFound:
        found = None
    if found is not None and _good(found.data, planes, name, address):
        return False
    token = await planes.issue_token(name.namespace, name.name, only=True)
    document = secret_of(name, uid, address, token)
    if found is None:
        await client.fetch("POST", SECRETS.path(name.namespace), document)
    else:
        document["metadata"]["resourceVersion"] = found.metadata.resource_version
        await client.fetch("PUT", path, document)
    return True


def _good(data: dict[str, str], planes: PlaneHost, name: PlaneName, address: EndpointAddress) -> bool:
    token = _decoded(data.get("token", ""))
    same = _encoded(_contents(name, address, token)) == data
    return same and planes.owns(name.namespace, name.name, token)


def secret_of(name: PlaneName, uid: str, address: EndpointAddress, token: str) -> Object:
    """The Secret with this token."""
    owner = {"apiVersion": CONTROL_PLANES.api_version, "kind": CONTROL_PLANES.kind, "name": name.name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": name.namespace, "ownerReferences": [owner]},
        "type": "Opaque",
        "data": _encoded(_contents(name, address, token)),
    }


def _contents(name: PlaneName, address: EndpointAddress, token: str) -> dict[str, str]:
    server = f"{address.url}/planes/{name.namespace}/{name.name}"
    cluster = {"server": server}
    if address.authority:
        cluster["certificate-authority-data"] = base64.b64encode(address.authority.encode()).decode()
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "plane",
        "clusters": [{"name": "plane", "cluster": cluster}],
        "users": [{"name": "agent", "user": {"token": token}}],
        "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "agent", "namespace": "default"}}],
    }
    contents = {"kubeconfig": yaml.safe_dump(kubeconfig, sort_keys=False), "server": server, "token": token}
    return contents | ({"ca.crt": address.authority} if address.authority else {})


def _encoded(contents: dict[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in contents.items()}


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
