# SPDX-License-Identifier: Apache-2.0
"""What the scheduler passes to this process, and what comes back: one line of JSON on standard input and output each.

After its line the scheduler sends the stream of its calls (`recording.stream`) on standard input. When that ends, this
process ends.
"""

from __future__ import annotations

from msgspec import Struct


class FrontProxy(Struct, frozen=True):
    """How the API server authenticates itself when it forwards a request, and in which headers it names the user: the
    ConfigMap kube-system/extension-apiserver-authentication. No `names`: any that `ca_pem` signed."""

    ca_pem: str
    names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("X-Remote-User",)


class ServerOptions(Struct, frozen=True):
    """`listen` is HOST:PORT, `host` the name that the API server asks for. `scheduler_name` is that of our pods."""

    listen: str
    host: str
    scheduler_name: str
    front_proxy: FrontProxy


class Listening(Struct, frozen=True):
    """This process listens at `port`, with a certificate that `ca_pem` signed."""

    port: int
    ca_pem: str
