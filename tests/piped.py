# SPDX-License-Identifier: Apache-2.0
"""Programs that a client starts as a process of its own and talks to through pipes, as shells and the SDK of MCP do.

Rules
- Most of what such a program costs is its imports. So it is a fork of a process that has imported all commands, and
  what else is named.
- What the client starts is a small process. It sends its own stdin, stdout and stderr, its environment and its folder:
  the program reads and writes the client's pipes. Signals are passed on, and the end, in both directions.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from ast import literal_eval
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import NoReturn

from tests.forked import Forked, become, end_with_parent

_LONGEST = 1 << 16
_STARTED = r"""
import os, signal, socket, sys
address, *asked = sys.argv[1:]
server = socket.socket(socket.AF_UNIX)
server.connect("\0" + address)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: server.send(bytes([number])))
socket.send_fds(server, [repr((asked, dict(os.environ), os.getcwd())).encode()], [0, 1, 2])
os.closerange(0, 3)
status = int.from_bytes(server.recv(2) or b"\1\0", "little", signed=True)
if status < 0:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


def piped(run: Callable[[], None], *arguments: str, imported: tuple[str, ...] = ()) -> list[str]:
    """The command line that starts a function of a module with these arguments."""
    function = f"{run.__module__}:{run.__name__}"
    return [sys.executable, "-I", "-S", "-c", _STARTED, _server(imported)[1], function, *arguments]


@cache
def _server(imported: tuple[str, ...]) -> tuple[Forked, str]:
    address = f"dovetail-piped-{os.getpid()}-{_server.cache_info().currsize}"
    server = Forked(address, *imported, run=_serve)
    server.first_line()
    return server, address


def _serve() -> None:
    for module in sys.argv[2:]:
        import_module(module)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + sys.argv[1])
        listening.listen()
        print("listening", flush=True)
        while True:
            connection, _ = listening.accept()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if os.fork() == 0:
                _run(connection)
            connection.close()


def _run(connection: socket.socket) -> NoReturn:
    """Run the program that is asked for, pass signals on to it, and tell how it ended."""
    end_with_parent()
    message, streams, _, _ = socket.recv_fds(connection, _LONGEST, 3)
    (function, *arguments), environment, folder = literal_eval(message.decode())
    module, _, name = function.partition(":")
    program = os.fork()
    if program == 0:
        become(getattr(import_module(module), name), ("dovetail", *arguments), streams, environment, folder)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(program)
    while ended not in select.select([connection, ended], [], [])[0]:
        for number in connection.recv(16) or [signal.SIGKILL]:
            os.kill(program, number)
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    connection.send(status.to_bytes(2, "little", signed=True))
    os._exit(0)
