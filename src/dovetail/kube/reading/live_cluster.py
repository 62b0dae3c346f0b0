# SPDX-License-Identifier: Apache-2.0
"""A cluster that was read, live or from files. Needs no connection."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.state import State
from dovetail.kube.translate.translator import Translator


class LiveCluster(Struct, frozen=True):
    """A cluster at the time of the read. `feed` has translated its objects, and knows more of them than the core.
    `quarantine_budget` is that of the scheduler, "" if it is not known: then the state has that of the policy."""

    state: State
    feed: Translator
    quarantine_budget: str = ""

    @property
    def schedulers(self) -> dict[str, str]:
        """By pod (namespace/name), the schedulerName of the pods of other schedulers."""
        return self.feed.schedulers or {}
