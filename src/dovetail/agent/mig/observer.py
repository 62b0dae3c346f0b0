# SPDX-License-Identifier: Apache-2.0
"""The MIG observer: a separate process that may read MIG, and does nothing else.

Rules: NVML returns the placements of instances only to privileged users, and that privilege (CAP_SYS_ADMIN) is close to
all rights on the node. So a process with this privilege takes no input: to each connection on its socket it writes the
division of the GPUs at this moment as JSON, and closes it. It has no token and no folder of the host. The agent has
those and no privilege; it connects at each look that needs the observer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import msgspec

from dovetail.agent.machine.nvml import NOT_SUPPORTED, Nvml, NvmlError
from dovetail.agent.mig.reading import ReadDivision, read
from dovetail.core.json_text import JsonError, decode_json

log = logging.getLogger(__name__)

_PATIENCE_S = 30.0
_MOST_BYTES = 1 << 22
_Answer = dict[str, ReadDivision]


class ObserverError(Exception):
    """The observer does not answer; the message names the socket, the reason and the remedy."""


def look() -> _Answer:
    """By uuid the division of the GPUs in MIG mode. A GPU that does not answer is left out. Raises NvmlError."""
    found: _Answer = {}
    with Nvml() as nvml:
        for index in range(nvml.call("nvmlDeviceGetCount")):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
                if nvml.call("nvmlDeviceGetMigMode", handle)[0]:
                    found[nvml.call("nvmlDeviceGetUUID", handle)] = read(nvml, handle, True)
            except NvmlError as error:
                if error.code != NOT_SUPPORTED:
                    log.warning("GPU %d: %s", index, error)
    return found


async def observe(path: Path) -> None:
    """Answer on the socket `path` until cancelled. Raises OSError if it cannot be created."""
    looking = asyncio.Lock()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with looking:
                found = await asyncio.to_thread(look)
            writer.write(msgspec.json.encode(found))
            await writer.drain()
        except NvmlError as error:
            log.warning("nothing can be read: %s", error)
        except ConnectionError as error:
            log.warning("the client has closed the connection: %s", error)
        finally:
            writer.close()

    with socket.socket(socket.AF_UNIX) as listener:
        _bind(listener, path)
        server = await asyncio.start_unix_server(answer, sock=listener)
        log.info("serving MIG instances at %s", path)
        await server.serve_forever()


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind the socket in place of one of an earlier process, with access for root only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    path.chmod(0o600)


def ask(path: Path, patience_s: float = _PATIENCE_S) -> _Answer:
    """The answer of the observer at `path`; blocks. Raises ObserverError."""
    data = b""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(patience_s)
            connection.connect(str(path))
            while (part := connection.recv(1 << 16)) and len(data) <= _MOST_BYTES:
                data += part
        return decode_json(data, _Answer)
    except OSError as error:
        raise ObserverError(f"{path}: {error}: does the container mig-observer run?") from error
    except JsonError as error:
        raise ObserverError(
            f"{path}: the observer could not read MIG: see the log of the container mig-observer"
        ) from error
