# SPDX-License-Identifier: Apache-2.0
"""The client of a process that may write only while it leads: the one place where the lease is asked before a write.

The engine and its parts write through it alone. The election has a client of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig

_CONNECTIONS = 16


class NotLeading(Exception):
    """This process may not write any more."""


class LeaderClient(Client):
    """`leads` is asked before each attempt of each write, and has to be set before the first one."""

    def __init__(self, config: ClusterConfig, *, retries: int = 5, leads: Callable[[], bool] = lambda: False) -> None:
        super().__init__(
            config, concurrency=_CONNECTIONS, user_agent="dovetail-operator", retries=retries, permit=self.permit
        )
        self.leads = leads

    def permit(self, method: str) -> None:
        """Raises NotLeading for a write while this process does not lead."""
        if method != "GET" and not self.leads():
            raise NotLeading
