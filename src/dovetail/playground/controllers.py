# SPDX-License-Identifier: Apache-2.0
"""The loop of the playground's controllers: jobs, claims of devices, and the status of disruption budgets."""

from __future__ import annotations

import asyncio

from dovetail.playground.budgets import Budgets
from dovetail.playground.claim_controller import ClaimController
from dovetail.playground.jobs import Jobs
from dovetail.playground.objects import Key, key_of, text_at
from dovetail.playground.store import Store, StoreChange


class Controllers:
    """Reacts to what changed in a store."""

    def __init__(self, store: Store, jobs: Jobs, budgets: Budgets, claims: ClaimController) -> None:
        self._jobs = jobs
        self._budgets = budgets
        self._claims = claims
        self._changed = asyncio.Event()
        self._dirty_jobs: set[Key] = set()
        self._dirty_namespaces: set[str] = set()
        store.collection("pods").listeners.append(self._note_pod)
        store.collection("jobs.batch").listeners.append(self._note_job)
        store.collection("poddisruptionbudgets.policy").listeners.append(self._note_budget)
        store.collection("resourceclaims.resource.k8s.io").listeners.append(self._note_claim)
        store.collection("resourceclaimtemplates.resource.k8s.io").listeners.append(self._note_template)

    def _note_pod(self, change: StoreChange) -> None:
        job = self._jobs.note_pod(change.object, removed=change.removed)
        if job is not None:
            self._dirty_jobs.add(job)
        self._claims.note_pod(change)
        self._note_budget(change)

    def _note_claim(self, change: StoreChange) -> None:
        self._claims.note_claim(change)
        self._changed.set()

    def _note_template(self, change: StoreChange) -> None:
        self._claims.note_template(change)
        self._changed.set()

    def _note_job(self, change: StoreChange) -> None:
        self._dirty_jobs.add(key_of(change.object))
        self._changed.set()

    def _note_budget(self, change: StoreChange) -> None:
        self._dirty_namespaces.add(text_at(change.object, "metadata.namespace"))
        self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._changed.wait()
            self.step()
            # One turn of the event loop lets a burst of writes be handled together.
            await asyncio.sleep(0)

    def step(self) -> None:
        """Handles what has changed since the last step."""
        self._changed.clear()
        jobs, self._dirty_jobs = self._dirty_jobs, set()
        namespaces, self._dirty_namespaces = self._dirty_namespaces, set()
        for key in sorted(jobs):
            self._jobs.reconcile(key)
        for namespace in sorted(namespaces):
            self._budgets.refresh(namespace)
        self._claims.step()
