# SPDX-License-Identifier: Apache-2.0
"""A small model of a Prometheus with the series of inference engines: it answers the three questions of the reader."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tests.kube.reading.test_prometheus import Answer


def series(name: str, value: float | str, pod: str = "llama-0", /, **labels: str) -> dict[str, Any]:
    """A series of a pod in the namespace `serving`."""
    own = {"namespace": "serving", "pod": pod, "instance": "10.0.0.1:8000"} | labels
    return {"metric": {"__name__": name, **own}, "value": [0, str(value)]}


def engines(
    now: list[dict[str, Any]], growth: list[dict[str, Any]] | None = None, lost: list[dict[str, Any]] | None = None,
    asked: list[str] | None = None,
) -> Answer:  # fmt: skip
    """Answers with these series, and notes what is asked."""

    async def answer(request: web.Request) -> web.Response:
        query = (await request.post())["query"]
        assert isinstance(query, str)
        if asked is not None:
            asked.append(query)
        found = now if query.startswith("{") else growth if query.startswith("label_replace") else lost
        if query.startswith("group") and "last_over_time" not in query:
            found = []
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": found or []}})

    return answer


def slope(name: str, per_s: float, pod: str = "llama-0", /, **labels: str) -> dict[str, Any]:
    """The slope of a queue, as the reader asks for it."""
    one = series(name, per_s, pod, **labels)
    one["metric"]["metric"] = one["metric"].pop("__name__")
    return one
