# SPDX-License-Identifier: Apache-2.0
"""Where the API server finds an API, and how it authenticates itself."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from dovetail.aggregated.registration import ApiObjects, NoFrontProxy, address_of, authentication, register
from dovetail.kube.api.errors import NotFound

API = ApiObjects("dovetail-views", "v1alpha1.views.dovetail.dev")
AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


class _Client:
    """Answers with `data`, and keeps what is written."""

    def __init__(self, data: dict[str, str]) -> None:
        self._data = data
        self.written: dict[str, Any] = {}

    async def request(self, method: str, path: str, *, decode: Any) -> Any:
        assert (method, path) == ("GET", AUTHENTICATION)
        return msgspec.json.decode(json.dumps({"data": self._data}), type=decode)

    async def fetch(self, method: str, path: str, body: Any, *, content_type: str) -> None:
        assert (method, content_type) == ("PATCH", "application/merge-patch+json")
        self.written[path] = body


async def test_the_certificates_and_headers_of_the_front_proxy() -> None:
    found = await authentication(
        _Client(
            {
                "requestheader-client-ca-file": "PEM",
                "requestheader-allowed-names": '["front-proxy-client"]',
                "requestheader-username-headers": '["X-Remote-User","X-Other"]',
            }
        )  # type: ignore[arg-type]
    )
    assert (found.ca_pem, found.names, found.user_headers) == (
        "PEM", ("front-proxy-client",), ("X-Remote-User", "X-Other")
    )  # fmt: skip
    plain = await authentication(_Client({"requestheader-client-ca-file": "PEM"}))  # type: ignore[arg-type]
    assert (plain.names, plain.user_headers) == ((), ("X-Remote-User",))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": "front-proxy-client"},
        {"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": "[1]"},
    ],
)
async def test_an_api_server_that_does_not_forward(data: dict[str, str]) -> None:
    with pytest.raises(NoFrontProxy):
        await authentication(_Client(data))  # type: ignore[arg-type]


@pytest.mark.parametrize(("address", "family"), [("10.1.2.3", "ipv4"), ("fd00::2", "ipv6")])
async def test_the_slice_of_its_family_gets_the_address(address: str, family: str) -> None:
    client = _Client({})
    assert await register(client, API, "system", address, 10352, "PEM")  # type: ignore[arg-type]
    of_slice = client.written[f"/apis/discovery.k8s.io/v1/namespaces/system/endpointslices/dovetail-views-{family}"]
    assert of_slice["addressType"].lower() == family
    assert [one["addresses"] for one in of_slice["endpoints"]] == [[address]]
    bundle = client.written["/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.views.dovetail.dev"]
    assert base64.b64decode(bundle["spec"]["caBundle"]) == b"PEM"


async def test_without_the_api_the_address_is_written_all_the_same() -> None:
    class _WithoutApi(_Client):
        async def fetch(self, method: str, path: str, body: Any, *, content_type: str) -> None:
            if "apiservices" in path:
                raise NotFound(404, "NotFound", "there is no such APIService", f"{method} {path}")
            await super().fetch(method, path, body, content_type=content_type)

    client = _WithoutApi({})
    assert not await register(client, API, "system", "10.1.2.3", 10352, "PEM")  # type: ignore[arg-type]
    assert len(client.written) == 1


def test_an_address_that_the_api_server_cannot_reach_is_refused() -> None:
    assert address_of("192.0.2.7:1", "https://127.0.0.1:6443") == "192.0.2.7"
    assert address_of("[fd00::7]:1", "https://127.0.0.1:6443") == "fd00::7"
    for listen in ("127.0.0.1:1", "0.0.0.0:1", "localhost:1"):
        with pytest.raises(OSError, match=r"is a name|cannot reach"):
            address_of(listen, "https://127.0.0.1:6443")
