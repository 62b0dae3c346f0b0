# SPDX-License-Identifier: Apache-2.0
"""A port that nothing listens on."""

import socket


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
