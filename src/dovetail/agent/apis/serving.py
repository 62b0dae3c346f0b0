# SPDX-License-Identifier: Apache-2.0
"""Servers and clients of gRPC interfaces on unix sockets.

Rules: a socket of an earlier process is removed before its path is served. A path that is too long for a unix socket is
an error that names it. The methods of a service and their messages are data.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

Reply = TypeVar("Reply", bound=Message)
Unary = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Message]]
Stream = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], AsyncIterator[Message]]
_LONGEST_PATH = 107
_serialized = methodcaller("SerializeToString")


class SocketError(Exception):
    """A socket cannot be served or reached; the message names the socket and the reason. `refused`: no process listens
    there, as while a kubelet restarts."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        self.refused = refused
        super().__init__(message)


def service(
    name: str,
    unary: Mapping[str, tuple[type[Message], Unary]],
    streams: Mapping[str, tuple[type[Message], Stream]] | None = None,
) -> grpc.GenericRpcHandler:
    """The service `name` (with its package). By method the type of the request and the function that answers it."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method: grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=takes.FromString, response_serializer=_serialized
        )
        for method, (takes, answer) in unary.items()
    }
    for method, (takes, answers) in (streams or {}).items():
        handlers[method] = grpc.unary_stream_rpc_method_handler(
            answers, request_deserializer=takes.FromString, response_serializer=_serialized
        )
    return grpc.method_handlers_generic_handler(name, handlers)


async def serve(path: Path, *services: grpc.GenericRpcHandler) -> grpc.aio.Server:
    """A server on the socket `path`. Raises SocketError."""
    if len(str(path).encode()) > _LONGEST_PATH:
        raise SocketError(f"the path of the socket {path} is longer than {_LONGEST_PATH} bytes")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(services)
    try:
        _clear(path)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
    except (OSError, RuntimeError) as error:
        raise SocketError(f"cannot serve {path}: {error}") from error
    return server


def _clear(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


def answers(path: Path) -> bool:
    """Whether a process listens on this socket. A socket file outlives its process."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(path)) == 0


async def call(path: Path, method: str, request: Message, reply: type[Reply], *, timeout_s: float = 10.0) -> Reply:
    """Call the method (`/package.Service/Method`) at `path` and return its answer. Raises SocketError."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        ask = channel.unary_unary(method, request_serializer=_serialized, response_deserializer=reply.FromString)
        try:
            return await ask(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            text = f"{path}: {method}: {error.code().name}: {error.details()}"
            raise SocketError(text, refused=error.code() is grpc.StatusCode.UNAVAILABLE) from None
