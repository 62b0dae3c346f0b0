# SPDX-License-Identifier: Apache-2.0
"""Host ports in use on each slot, as kube-scheduler's NodePorts counts them."""

from __future__ import annotations

from collections import Counter

from dovetail.core.model import Request


class HostPorts:
    """`in_use[(protocol, port)][slot]` are the host IPs, with the number of pods that use each."""

    def __init__(self) -> None:
        self.in_use: dict[tuple[str, int], dict[int, Counter[str]]] = {}

    def add(self, request: Request, slot: int) -> None:
        """A pod with this request was placed on the slot."""
        for port in request.ports:
            self.in_use.setdefault((port.protocol, port.port), {}).setdefault(slot, Counter())[port.ip] += 1

    def remove(self, request: Request, slot: int) -> None:
        """A pod with this request left the slot."""
        for port in request.ports:
            used = self.in_use[port.protocol, port.port]
            used[slot][port.ip] -= 1
            used[slot] = +used[slot]
            if not used[slot]:
                del used[slot]
            if not used:
                del self.in_use[port.protocol, port.port]
