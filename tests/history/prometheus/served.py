# SPDX-License-Identifier: Apache-2.0
"""A small model of a Prometheus that has scraped publications: it answers the two questions of the reader."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from msgspec import Struct

from dovetail.kube.reading.prometheus_api import PrometheusAccess

Series = dict[str, Any]
_LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_CHUNKS = re.compile(r'last_over_time\(dovetail_history_part\{chunk=~"([^"]*)"(?:,(.*))?\}\[(\d+)s\]\)')
_DAYS = re.compile(
    r"topk by \(store, day, job, namespace\) "
    r"\(1, last_over_time\(dovetail_history_day\{(.*)\}\[(\d+)s\](?: offset (\d+)s)?\)\)"
)


class Scraped:
    """The last value of each series that was ever scraped, and how long ago, with the labels of the scrape."""

    def __init__(self) -> None:
        self._values: dict[tuple[tuple[str, str], ...], tuple[str, int]] = {}
        self.questions: list[str] = []
        self.engines: list[Series] = []
        """Series of inference engines."""

    def scrape(self, text: str, ago_s: int = 0, **target: str) -> None:
        for line in text.splitlines():
            if not line.startswith("#"):
                found = _LINE.fullmatch(line)
                assert found, line
                labels = {"__name__": found[1], **dict(_LABEL.findall(found[2])), **target}
                self._values[tuple(sorted(labels.items()))] = found[3], ago_s

    def answer(self, expression: str) -> list[Series]:
        self.questions.append(expression)
        if "vllm:" in expression:
            return self.engines if expression.startswith("{") else []
        if days := _DAYS.fullmatch(expression):
            latest: dict[tuple[str, ...], Series] = {}
            for one in self._series("dovetail_history_day", days[1], int(days[2]), int(days[3] or 0)):
                labels = one["metric"]
                key = tuple(labels.get(name, "") for name in ("store", "day", "job", "namespace"))
                if key not in latest or float(latest[key]["value"][1]) < float(one["value"][1]):
                    latest[key] = one
            return list(latest.values())
        parts = _CHUNKS.fullmatch(expression)
        assert parts, expression
        names = parts[1].split("|")
        return [
            one
            for one in self._series("dovetail_history_part", parts[2] or "", int(parts[3]))
            if one["metric"]["chunk"] in names
        ]

    def _series(self, metric: str, matchers: str, length_s: int, offset_s: int = 0) -> Iterator[Series]:
        wanted = dict(_LABEL.findall(matchers))
        for key, (value, ago_s) in self._values.items():
            labels = dict(key)
            inside = offset_s <= ago_s <= offset_s + length_s
            if (
                labels.pop("__name__") == metric
                and inside
                and all(labels.get(name) == one for name, one in wanted.items())
            ):
                yield {"metric": labels, "value": [time.time(), value]}


Answer = Callable[[str], tuple[int, bytes]]


class Asked(Struct, frozen=True):
    """A question as it came: the path, the fields of the form, and the headers by their names in small letters."""

    path: str
    form: dict[str, str]
    headers: dict[str, str]
    length: int


def success(series: list[Series], **more: Any) -> tuple[int, bytes]:
    data = {"resultType": "vector", "result": series}
    return 200, json.dumps({"status": "success", "data": data, **more}).encode()


@contextmanager
def served(answer: Answer) -> Iterator[PrometheusAccess]:
    """Answer queries with a status and a body."""
    with asked(lambda one: answer(one.form["query"])) as access:
        yield access


@contextmanager
def asked(answer: Callable[[Asked], tuple[int, bytes]]) -> Iterator[PrometheusAccess]:
    """Answer all that is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            form = {name: one[0] for name, one in parse_qs(self.rfile.read(length).decode()).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = answer(Asked(self.path, form, headers, length))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield PrometheusAccess(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def scraped(prometheus: Scraped) -> Iterator[PrometheusAccess]:
    with served(lambda expression: success(prometheus.answer(expression))) as access:
        yield access
