# SPDX-License-Identifier: Apache-2.0
"""Connections to one server that are kept for the next request: a handshake costs both sides more than a read.

Rules: a connection has one request at a time, so threads never share one that is in use. One that was idle for
`IDLE_S` is not used again, as the server may be about to close it, nor one of which a request failed.
"""

import json
import ssl
import threading
import time
from http.client import HTTPSConnection
from typing import Any

IDLE_S = 30.0
"""kube-apiserver closes connections after 90 idle seconds."""


class Connections:
    """The connections to a host and port that are open and not in use. A request fails after `timeout_s`."""

    def __init__(self, host: str, port: int, timeout_s: float = 60.0) -> None:
        self._address = host, port
        self._timeout_s = timeout_s
        self._idle: dict[ssl.SSLContext, list[tuple[HTTPSConnection, float]]] = {}
        self._lock = threading.Lock()

    def request(
        self, context: ssl.SSLContext, method: str, path: str, body: object, content_type: str
    ) -> tuple[int, bytes]:
        """Send a request (`body` None: without one) and return the status and body of the answer. Raises OSError and
        http.client.HTTPException."""
        connection = self._taken(context)
        headers: dict[str, Any] = {"Content-Type": content_type} if body is not None else {}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.setdefault(context, []).append((connection, time.monotonic()))
        return answer.status, text

    def close(self) -> None:
        """Close those that are not in use."""
        with self._lock:
            for kept in self._idle.values():
                for connection, _ in kept:
                    connection.close()
            self._idle.clear()

    def _taken(self, context: ssl.SSLContext) -> HTTPSConnection:
        with self._lock:
            kept = self._idle.get(context, [])
            while kept:
                connection, since = kept.pop()
                if time.monotonic() - since < IDLE_S:
                    return connection
                connection.close()
        host, port = self._address
        return HTTPSConnection(host, port, context=context, timeout=self._timeout_s)
