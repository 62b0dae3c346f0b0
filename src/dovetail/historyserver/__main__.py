# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail.historyserver`: started by the collector, never by hand."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import msgspec
import uvloop

from dovetail.aggregated.certificate import ServingCertificate
from dovetail.aggregated.front_proxy import Listening
from dovetail.aggregated.priority import FOLLOWING, yield_by
from dovetail.core.json_text import decode_json
from dovetail.historyserver.options import HistoryServerOptions
from dovetail.historyserver.server import HistoryServer


async def main() -> None:
    """Answer until the collector ends. Raises OSError, ImportError, JsonError."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    options = decode_json(await reader.readuntil(b"\n"), HistoryServerOptions)
    certificate = ServingCertificate(options.host)
    server = HistoryServer(options.front_proxy, Path(options.store), options.prices)
    port = await server.listen(options.listen, certificate.context(options.front_proxy.ca_pem))
    sys.stdout.buffer.write(msgspec.json.encode(Listening(port, certificate.pem)) + b"\n")
    sys.stdout.flush()
    await reader.read()


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # The collector ends all of the group.
    os.setpgrp()
    yield_by(FOLLOWING)
    uvloop.run(main())
