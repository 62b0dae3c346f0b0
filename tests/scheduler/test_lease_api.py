# SPDX-License-Identifier: Apache-2.0
"""The end of a lease is written, or its object deleted; the object of another lease of its name is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.kube.api.errors import ApiError, Invalid
from dovetail.scheduler.lease_api import LeaseApi
from tests.scheduler.scripted import AWAY, BROKEN, BUSY, FORBIDDEN, FULL, GONE, Scripted

INVALID = Invalid(422, "Invalid", "the server rejected our request due to an error in our request", "PATCH /x")
STATUS = {"state": "Ended"}


class Server(Scripted):
    """It has the object of a lease with this fence."""

    def __init__(self, refusal: Exception, fence: int = 7) -> None:
        super().__init__()
        self.will("PATCH", "/status", refusal)
        self.will("GET", "/one", {"metadata": {"uid": "u"}, "spec": {"fence": fence}} if fence else GONE)

    async def end(self) -> str:
        mirror: Any = None
        client: Any = self
        return await LeaseApi(client, mirror).end("ns/one", 7, STATUS)


@pytest.mark.parametrize("refusal", [FORBIDDEN, FULL, INVALID, ApiError(413, "RequestEntityTooLarge", "", "PATCH /x")])
async def test_what_cannot_be_written_is_deleted_and_it_is_looked_whether_it_is_gone(refusal: Exception) -> None:
    server = Server(refusal)
    with pytest.raises(ApiError) as raised:
        await server.end()
    assert raised.value.passes
    (deleted,) = server.bodies("DELETE", "/namespaces/ns/gpuleases/one")
    assert deleted["preconditions"] == {"uid": "u"}
    server.will("PATCH", "/status", GONE)
    assert await server.end() == ""
    assert len(server.bodies("DELETE", "/one")) == 1


@pytest.mark.parametrize("fence", [6, 8, 0])
async def test_the_object_of_another_lease_is_left_alone(fence: int) -> None:
    """The API server answers in the same way when the test of a patch fails and when it refuses a status."""
    server = Server(INVALID, fence)
    assert await server.end() == ""
    assert not server.bodies("DELETE", "/one")


@pytest.mark.parametrize("error", [AWAY, BROKEN, BUSY])
async def test_nothing_is_deleted_while_the_server_may_take_the_status_later(error: Exception) -> None:
    server = Server(error)
    with pytest.raises(ApiError):
        await server.end()
    assert not server.bodies("DELETE", "/one")
