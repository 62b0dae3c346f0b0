# SPDX-License-Identifier: Apache-2.0
"""What the scheduler passes to this process: one line of JSON on standard input.

After its line the scheduler sends the stream of its calls (`recording.stream`) on standard input. When that ends, this
process ends.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.aggregated.front_proxy import FrontProxy


class ServerOptions(Struct, frozen=True):
    """`listen` is HOST:PORT, `host` the name that the API server asks for. `scheduler_name` is that of our pods,
    `recording` the folder of the recording, "" for none."""

    listen: str
    host: str
    scheduler_name: str
    front_proxy: FrontProxy
    recording: str = ""
