# SPDX-License-Identifier: Apache-2.0
"""Where the API server finds an API: the address in the EndpointSlice of a Service without selector, and the
certificate to trust in the APIService. And how the API server authenticates itself.

Both objects are made by the manifests, or by the operator, and are patched by name. They are
written again from time to time: manifests that are applied again may take the values out, and the operator empties the
addresses to see whether a leader lives.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
from urllib.parse import urlsplit

from msgspec import Struct, field

from dovetail.aggregated.front_proxy import FrontProxy
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import NotFound
from dovetail.kube.api.resources import API_SERVICES, CONFIG_MAPS, ENDPOINT_SLICES

AUTHENTICATION = ("kube-system", "extension-apiserver-authentication")


class ApiObjects(Struct, frozen=True):
    """The names of the objects of an API: its Service and the EndpointSlices of that, and its APIService."""

    service: str
    api_service: str


class _ConfigMap(Struct):
    data: dict[str, str] = field(default_factory=dict)


class NoFrontProxy(Exception):
    """The API server forwards to no other API server; the message is why."""


async def authentication(client: Client) -> FrontProxy:
    """What the API server publishes about itself. Raises NoFrontProxy, ApiError."""
    namespace, name = AUTHENTICATION
    data = (await client.request("GET", CONFIG_MAPS.path(namespace, name), decode=_ConfigMap)).data
    ca_pem = data.get("requestheader-client-ca-file", "")
    if not ca_pem:
        raise NoFrontProxy(
            f"ConfigMap {namespace}/{name} has no requestheader-client-ca-file: the API server has no aggregation layer"
        )
    headers = _names(data, "requestheader-username-headers") or ("X-Remote-User",)
    return FrontProxy(ca_pem, _names(data, "requestheader-allowed-names"), headers)


def _names(data: dict[str, str], key: str) -> tuple[str, ...]:
    """A list of strings in JSON. Raises NoFrontProxy."""
    try:
        names = json.loads(data.get(key, "[]"))
    except ValueError as error:
        raise NoFrontProxy(f"{key} is no list in JSON: {error}") from error
    if not (isinstance(names, list) and all(isinstance(one, str) for one in names)):
        raise NoFrontProxy(f"{key} is no list of names")
    return tuple(names)


async def register(
    client: Client, registration: ApiObjects, namespace: str, address: str, port: int, ca_pem: str
) -> bool:
    """Direct the API server to this address. Returns False where the API is not there: the operator registers it once
    it sees the address. Raises ApiError."""
    family = "IPv6" if ipaddress.ip_address(address).version == 6 else "IPv4"
    slices = {
        "addressType": family,
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
    await client.fetch(
        "PATCH",
        ENDPOINT_SLICES.path(namespace, f"{registration.service}-{family.lower()}"),
        slices,
        content_type=MERGE_PATCH,
    )
    bundle = {"spec": {"caBundle": base64.b64encode(ca_pem.encode()).decode()}}
    try:
        await client.fetch("PATCH", API_SERVICES.path(name=registration.api_service), bundle, content_type=MERGE_PATCH)
    except NotFound:
        return False
    return True


def address_of(listen: str, server: str) -> str:
    """The address at which others reach HOST:PORT: HOST, or where that is any address, the one from which this machine
    reaches the API server at `server`. Raises OSError for one that no other can reach."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host or "::")
    except ValueError as error:
        raise OSError(f"{host} is a name: an address is needed at which the API server reaches this process") from error
    if not host or ipaddress.ip_address(host).is_unspecified:
        url = urlsplit(server)
        target = (url.hostname or "", url.port or 443)
        family, kind, _, _, address = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Of a datagram socket this sends nothing.
            probe.connect(address)
            host = str(probe.getsockname()[0])
    if ipaddress.ip_address(host).is_loopback:
        raise OSError(f"the API server cannot reach {host}: pass an address of this machine")
    return host
