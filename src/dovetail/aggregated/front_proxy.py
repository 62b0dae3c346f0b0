# SPDX-License-Identifier: Apache-2.0
"""How the API server authenticates itself to this process, and what this process reports when it listens."""

from __future__ import annotations

from msgspec import Struct


class FrontProxy(Struct, frozen=True):
    """How the API server authenticates itself when it forwards a request, and in which headers it names the user: the
    ConfigMap kube-system/extension-apiserver-authentication. No `names`: any that `ca_pem` signed."""

    ca_pem: str
    names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ("X-Remote-User",)


class Listening(Struct, frozen=True):
    """This process listens at `port`, with a certificate that `ca_pem` signed. The first line that it writes."""

    port: int
    ca_pem: str
