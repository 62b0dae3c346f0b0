# SPDX-License-Identifier: Apache-2.0
"""Connections that are kept for the next request: the server sees from which port of the client a request comes."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tools.controlplane import connections
from tools.controlplane.connections import Connections

TLS = ssl.create_default_context()


class Handler(BaseHTTPRequestHandler):
    """Answers with the port of the client and the body of the request; at /breaks it closes the connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/breaks":
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = f"{self.client_address[1]} {body.decode()}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connections]:
    def plain(host: str, port: int, *, context: ssl.SSLContext, timeout: int) -> HTTPConnection:
        return HTTPConnection(host, port, timeout=timeout)

    monkeypatch.setattr(connections, "HTTPSConnection", plain)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = Connections("127.0.0.1", server.server_address[1])
    yield found
    found.close()
    server.shutdown()
    server.server_close()


def ask(kept: Connections, path: str = "/", body: object = None, context: ssl.SSLContext = TLS) -> tuple[str, str]:
    status, text = kept.request(context, "GET", path, body, "application/json")
    assert status == 200
    port, _, sent = text.decode().partition(" ")
    return port, sent


def test_the_next_request_of_a_user_takes_the_same_connection(kept: Connections) -> None:
    port, sent = ask(kept, body={"a": 1})
    assert sent == '{"a": 1}' and ask(kept) == (port, "")
    assert ask(kept, context=ssl.create_default_context())[0] != port
    kept.close()
    assert ask(kept)[0] != port


def test_one_that_was_idle_for_long_or_failed_is_not_used_again(
    kept: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, _ = ask(kept)
    with monkeypatch.context() as soon:
        soon.setattr(connections, "IDLE_S", 0.0)
        assert (second := ask(kept)[0]) != port
    assert ask(kept)[0] == second
    with pytest.raises(OSError):
        ask(kept, "/breaks")
    assert ask(kept)[0] != second
