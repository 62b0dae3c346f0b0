# SPDX-License-Identifier: Apache-2.0
"""What is read on demand: how often, and what a kubelet or a missing right answers in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError, Forbidden
from dovetail.operator.nodes.reading import NodeReads
from tests.operator.nodes.facts_made import pod

GONE = b"unable to retrieve container logs for containerd://9141a2"
BAD_REQUEST = ApiError(400, "BadRequest", "previous terminated container not found", "GET")
FORBIDDEN = Forbidden(403, "Forbidden", "pods/log is forbidden", "GET")
Answer = bytes | ApiError


class Server:
    """Answers for the log of the run before, and of the last run; `asked` has the parameters."""

    def __init__(self, previous: Answer, last: Answer) -> None:
        self.answers = {"true": previous, "false": last}
        self.asked: list[Mapping[str, Any]] = []

    async def fetch(self, _method: str, path: str, *, params: Mapping[str, Any]) -> bytes:
        assert path == "/api/v1/namespaces/dovetail-agent/pods/agent-x/log"
        self.asked.append(params)
        answer = self.answers[params["previous"]]
        if isinstance(answer, ApiError):
            raise answer
        return answer


def reads(server: Server, clock_ms: Callable[[], int] = lambda: 0) -> NodeReads:
    return NodeReads(cast(Client, server), clock_ms)


@pytest.mark.parametrize(
    ("previous", "last", "line", "requests"),
    [
        (b"first\nwhy\n", b"", "why", 1),
        (BAD_REQUEST, b"why\n", "why", 2),
        # The kubelet has removed the container, and answers with a text of its own.
        (GONE, b"why\n", "why", 2),
        (GONE, GONE, "", 2),
        (b"\n", BAD_REQUEST, "", 2),
        (b"\xff why", b"", "\ufffd why", 1),
    ],
)
async def test_the_last_line_of_a_log(previous: Answer, last: Answer, line: str, requests: int) -> None:
    server = Server(previous, last)
    assert await reads(server).log_line(pod(), "agent", 1) == line
    assert len(server.asked) == requests
    assert all(one["container"] == "agent" and one["limitBytes"] <= 16_384 for one in server.asked)


async def test_a_right_that_is_missing_is_remembered_until_it_is_there() -> None:
    now_ms = 0
    server = Server(FORBIDDEN, b"why")
    mine = reads(server, lambda: now_ms)
    assert await mine.log_line(pod(), "agent", 1) == "" and "pods/log" in mine.problems["log"]
    server.answers["true"] = b"why"
    now_ms = 10_000
    assert await mine.log_line(pod(), "agent", 1) == "why" and mine.problems == {}


async def test_a_question_that_is_asked_all_day_costs_a_few_requests_an_hour() -> None:
    now_ms, server = 0, Server(b"why", b"")
    mine = reads(server, lambda: now_ms)
    for _ in range(24 * 360):
        assert await mine.log_line(pod(), "agent", 9) == "why"
        now_ms += 10_000
    assert 24 * 6 <= len(server.asked) <= 24 * 6 + 10
    # Another run is another question.
    before = len(server.asked)
    await mine.log_line(pod(), "agent", 1)
    assert len(server.asked) == before + 1
