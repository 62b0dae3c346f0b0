# SPDX-License-Identifier: Apache-2.0
"""The loop of the playground's controllers: jobs, Deployments, DaemonSets, claims of devices, and the status of
disruption budgets."""

from __future__ import annotations

import asyncio

from dovetail.apiserver.budgets import Budgets
from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.jobs import Jobs
from dovetail.apiserver.objects import Key, Object, condition_of, key_of, labels_of, text_at, value_at
from dovetail.apiserver.store import Store
from dovetail.playground.claim_controller import ClaimController
from dovetail.playground.daemon_sets import DAEMON_SETS, DaemonSets
from dovetail.playground.default_scheduler import DefaultScheduler
from dovetail.playground.deployments import DEPLOYMENTS, REPLICA_SETS, Deployments


class Controllers:
    """Reacts to what changed in a store."""

    def __init__(
        self, store: Store, jobs: Jobs, budgets: Budgets, claims: ClaimController, daemon_sets: DaemonSets,
        deployments: Deployments, scheduler: DefaultScheduler,
    ) -> None:  # fmt: skip
        self._store = store
        self._daemon_sets = daemon_sets
        self._deployments = deployments
        self._scheduler = scheduler
        self._dirty_daemon_sets: set[Key] = set()
        self._dirty_deployments: set[Key] = set()
        self._unbound = False
        store.collection("nodes").listeners.append(self._note_node)
        store.collection(DAEMON_SETS).listeners.append(self._note_daemon_set)
        store.collection(DEPLOYMENTS).listeners.append(self._note_deployment)
        store.collection(REPLICA_SETS).listeners.append(self._note_replica_set)
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
        daemon_set = self._daemon_sets.note_pod(change.object, removed=change.removed)
        if daemon_set is not None:
            self._dirty_daemon_sets.add(daemon_set)
        deployment = self._deployments.note_pod(change.object, removed=change.removed)
        if deployment is not None:
            self._dirty_deployments.add(deployment)
        self._unbound |= self._scheduler.note_pod(change)
        self._claims.note_pod(change)
        self._note_budget(change)

    def _note_node(self, change: StoreChange) -> None:
        if change.previous is not None and not change.removed and _same_place(change.object, change.previous):
            return
        self._dirty_daemon_sets |= self._store.collection(DAEMON_SETS).objects.keys()
        self._unbound = True
        self._changed.set()

    def _note_daemon_set(self, change: StoreChange) -> None:
        self._dirty_daemon_sets.add(key_of(change.object))
        self._changed.set()

    def _note_deployment(self, change: StoreChange) -> None:
        self._dirty_deployments.add(key_of(change.object))
        self._changed.set()

    def _note_replica_set(self, change: StoreChange) -> None:
        deployment = self._deployments.note_set(change.object, removed=change.removed)
        if deployment is not None:
            self._dirty_deployments.add(deployment)
            self._changed.set()

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
        daemon_sets, self._dirty_daemon_sets = self._dirty_daemon_sets, set()
        deployments, self._dirty_deployments = self._dirty_deployments, set()
        for key in sorted(daemon_sets):
            self._daemon_sets.reconcile(key)
        for key in sorted(deployments):
            self._deployments.reconcile(key)
        if self._unbound:
            self._unbound = False
            self._scheduler.step()


def _same_place(node: Object, before: Object) -> bool:
    """Whether the change of a node, such as a heartbeat, is none for the pods that may run there."""
    fields = ("spec.taints", "spec.unschedulable")
    ready = condition_of(node, "Ready").get("status") == condition_of(before, "Ready").get("status")
    return (
        ready and labels_of(node) == labels_of(before) and all(value_at(node, f) == value_at(before, f) for f in fields)
    )
