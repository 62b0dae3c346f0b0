# SPDX-License-Identifier: Apache-2.0
"""The loop of the playground's controllers: jobs, and the status of disruption budgets."""

from __future__ import annotations

import asyncio

from dovetail.playground.budgets import Budgets
from dovetail.playground.jobs import Jobs
from dovetail.playground.objects import Key, key_of, text_at
from dovetail.playground.store import Store, Watcher


class Controllers:
    """Reacts to what changed in a store."""

    def __init__(self, store: Store, jobs: Jobs, budgets: Budgets) -> None:
        self._jobs = jobs
        self._budgets = budgets
        self._changed = asyncio.Event()
        self._watched_pods = Watcher(store.collection("pods"), changed=self._changed)
        self._watched_jobs = Watcher(store.collection("jobs.batch"), changed=self._changed)
        self._watched_budgets = Watcher(store.collection("poddisruptionbudgets.policy"), changed=self._changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._changed.wait()
            self.step()
            # One turn of the event loop lets a burst of writes be handled together.
            await asyncio.sleep(0)

    def step(self) -> None:
        """Handles what has changed since the last step."""
        namespaces: set[str] = set()
        jobs: set[Key] = set()
        for change in self._watched_pods.take():
            namespaces.add(text_at(change.object, "metadata.namespace"))
            job = self._jobs.note_pod(change.object, removed=change.removed)
            jobs |= {job} if job else set()
        jobs |= {key_of(change.object) for change in self._watched_jobs.take()}
        namespaces |= {text_at(change.object, "metadata.namespace") for change in self._watched_budgets.take()}
        for key in sorted(jobs):
            self._jobs.reconcile(key)
        for namespace in sorted(namespaces):
            self._budgets.refresh(namespace)
