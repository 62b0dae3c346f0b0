# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail.viewserver`: started by the scheduler, never by hand."""

from __future__ import annotations

import asyncio
import gc
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
from dovetail.viewserver.following import Following
from dovetail.viewserver.generations import Generations
from dovetail.viewserver.options import ServerOptions
from dovetail.viewserver.server import ViewServer
from dovetail.viewserver.whatifs import WhatIfs

_BUFFER_BYTES = 4 << 20


async def main() -> None:
    """Answer until the scheduler ends the stream. Raises OSError, ImportError, JsonError, and what the
    stream raises."""
    reader = asyncio.StreamReader(_BUFFER_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    options = decode_json(await reader.readuntil(b"\n"), ServerOptions)
    certificate = ServingCertificate(options.host)
    following = Following(reader, options.scheduler_name)
    generations = Generations(following, options.scheduler_name)
    recording = Path(options.recording) if options.recording else None
    what_ifs = WhatIfs(following, options.scheduler_name, recording)
    server = ViewServer(generations, what_ifs, options.front_proxy)
    port = await server.listen(options.listen, certificate.context(options.front_proxy.ca_pem))
    sys.stdout.buffer.write(msgspec.json.encode(Listening(port, certificate.pem)) + b"\n")
    sys.stdout.flush()
    made = asyncio.create_task(generations.run())
    followed = asyncio.create_task(following.run())
    done, left = await asyncio.wait((made, followed), return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for task in done:
        task.result()


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    gc.set_threshold(20_000)
    # The scheduler ends all of the group.
    os.setpgrp()
    yield_by(FOLLOWING)
    uvloop.run(main())
