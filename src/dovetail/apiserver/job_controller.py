# SPDX-License-Identifier: Apache-2.0
"""The loop of the Job controller of one store: it runs when a job or a pod of one has changed, and never otherwise."""

from __future__ import annotations

import asyncio
import logging

from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.jobs import JOBS, Jobs
from dovetail.apiserver.objects import Key, key_of
from dovetail.apiserver.store import Store

_LOG = logging.getLogger(__name__)


class JobController:
    """Reconciles the jobs of a store, all of them once at the start."""

    def __init__(self, store: Store, jobs: Jobs) -> None:
        self._jobs = jobs
        self._dirty: set[Key] = set()
        self._scheduled: asyncio.Handle | None = None
        self._ended = False
        for pod in store.collection("pods").objects.values():
            jobs.note_pod(pod, removed=False)
        self._mark(set(store.collection(JOBS).objects))
        store.collection("pods").listeners.append(self._note_pod)
        store.collection(JOBS).listeners.append(lambda change: self._mark({key_of(change.object)}))
        store.listeners.append(self._note_room)

    def _note_pod(self, change: StoreChange) -> None:
        job = self._jobs.note_pod(change.object, removed=change.removed)
        if job is not None:
            self._mark({job})

    def _note_room(self, change: StoreChange) -> None:
        if change.removed:
            self._mark(self._jobs.without_room())

    def _mark(self, jobs: set[Key]) -> None:
        self._dirty |= jobs
        if self._dirty and self._scheduled is None and not self._ended:
            # In another turn of the event loop: a burst of writes is handled together.
            self._scheduled = asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = None
        dirty, self._dirty = self._dirty, set()
        for key in sorted(dirty):
            try:
                self._jobs.reconcile(key)
            except Failure:
                # The store cannot be written any more; it is opened again from its file, with all its jobs.
                return
            except Exception:
                # A job that nothing foresaw must not keep the others from running.
                _LOG.exception("job %s/%s cannot be reconciled", *key)

    def end(self) -> None:
        """Reconciles nothing from now on."""
        self._ended = True
        if self._scheduled is not None:
            self._scheduled.cancel()
