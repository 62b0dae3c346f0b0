# SPDX-License-Identifier: Apache-2.0
"""The queue of each pod: the one that it names or that its namespace has, and what follows from it for the pod.

Rules: a waiting pod may name a queue that does not exist, and waits for it. A bound pod always counts for a queue that
exists. Whether a namespace may use a queue is worked out once until queues or namespaces change.
"""

from __future__ import annotations

from dovetail.core.cluster.peers import Peers
from dovetail.core.model import Pod
from dovetail.core.queues.accounts import QueueUser
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import DEFAULT_QUEUE, QUEUE_LABEL


class PodQueues:
    """`peers` has the labels of namespaces, `tree` the queues."""

    def __init__(self, peers: Peers, tree: Tree) -> None:
        self._peers = peers
        self._tree = tree
        self.by_namespace: dict[str, str] = {}
        """The queues of namespaces that belong to control planes of software agents."""
        self._rights: dict[tuple[str, str], bool] = {}
        """By queue and namespace: whether pods may use the queue."""

    def forget_rights(self) -> None:
        """Queues or namespaces have changed."""
        self._rights.clear()

    def of(self, pod: Pod) -> str:
        """The queue that the pod names, else that of its namespace, else `default`. For a waiting pod it may not exist.
        A bound pod counts for `default` where its queue does not exist, or where the pod may not use it and was not
        placed for it."""
        queue = pod.queue
        if not queue:
            # Asked several times for each pod: no method of its own.
            queue = self.by_namespace.get(pod.namespace, "") if self.by_namespace else ""
            if not queue:
                labels = self._peers.labels.get(pod.namespace)
                queue = labels.get(QUEUE_LABEL, DEFAULT_QUEUE) if labels else DEFAULT_QUEUE
        if not pod.node or queue == DEFAULT_QUEUE:
            return queue
        if queue not in self._tree.queues or not (pod.recorded or self._may_use(queue, pod.namespace)):
            return DEFAULT_QUEUE
        return queue

    def _may_use(self, queue: str, namespace: str) -> bool:
        """Whether pods of the namespace may be placed for a queue that exists."""
        known = self._rights.get((queue, namespace))
        if known is None:
            labels = self._peers.labels_of(namespace)
            path = self._tree.path(queue) if self._tree.leaf(queue) else ()
            known = bool(path) and not [name for name in path if not self._tree.admits(name, namespace, labels)]
            self._rights[queue, namespace] = known
        return known

    def user_of(self, pod: Pod) -> QueueUser:
        """The queue and user of the pod."""
        queue = self.of(pod)
        record = self._tree.written.get(queue)
        return queue, pod.user if record is not None and record.by_user else ""

    def preemptible(self, pod: Pod) -> bool:
        """Whether the pod may be preempted, by its own annotation, else by its queue."""
        return self.preemptible_in(pod, self.of(pod))

    def preemptible_in(self, pod: Pod, queue: str) -> bool:
        """As `preemptible`, where the pod counts for this queue."""
        preemptible = pod.work.preemptible
        if preemptible is not None:
            return preemptible
        record = self._tree.written.get(queue)
        return record is None or record.preemptible
