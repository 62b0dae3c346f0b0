# SPDX-License-Identifier: Apache-2.0
"""The number of pods on each node that affinity and spread terms select.

A matcher is what picks pods: selectors with their namespaces, all of which must match. Counts are kept per node slot
for matchers that some known pod of this scheduler uses; domains are added up when a decision asks. `carriers` counts,
per required anti-affinity term, the placed pods that carry it: they repel others. A pod is compared with
the matchers that may pick it, by its labels, not with all.
Source of the rules: kube-scheduler's plugins interpodaffinity and podtopologyspread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from dovetail.core.cluster.by_label import ByLabel
from dovetail.core.labels import matches
from dovetail.core.model import LabelSelector, Namespace, PeerTerm, Pod, Request

Matcher = tuple[tuple[LabelSelector | None, frozenset[str], LabelSelector | None], ...]


def matcher_of(*terms: PeerTerm) -> Matcher:
    """What picks the pods of these terms together: a pod must match every one of them."""
    return tuple((term.selector, term.namespaces, term.namespace_selector) for term in terms)


def matchers_of(request: Request) -> Iterator[Matcher]:
    """All matchers whose counts a decision about the request reads."""
    for spread in request.spread:
        yield matcher_of(spread.peers)
    if request.affinity:
        yield matcher_of(*request.affinity)
    for term in request.anti_affinity:
        yield matcher_of(term)
    for preferred in request.preferred_peers:
        yield matcher_of(preferred.term)


class PeerCount:
    """Placed pods that a matcher picks, by slot; `deleting` of them are on their way out (spread ignores those)."""

    __slots__ = ("deleting", "pods", "users")

    def __init__(self, users: int = 0) -> None:
        self.users = users
        self.pods: Counter[int] = Counter()
        self.deleting: Counter[int] = Counter()


class Peers:
    """`retain` and `release` as pods become known or are forgotten, `add` and `remove` as they are placed."""

    def __init__(self) -> None:
        self.counts: dict[Matcher, PeerCount] = {}
        self.carriers: dict[PeerTerm, Counter[int]] = {}
        self._matchers: ByLabel[Matcher] = ByLabel()
        self._repelled: ByLabel[PeerTerm] = ByLabel()
        self.wanted: set[Matcher] = set()
        """Matchers of required affinity: a new pod that they pick can make room for a waiting one."""
        self.labels: dict[str, Mapping[str, str]] = {}
        """The labels of each known namespace."""

    def retain(self, request: Request, placed: Iterable[tuple[Pod, int]]) -> None:
        """A pod with this request became known; `placed` are all placed pods with their slots."""
        fresh: ByLabel[Matcher] | None = None
        for matcher in matchers_of(request):
            count = self.counts.get(matcher)
            if count is None:
                count = self.counts[matcher] = PeerCount()
                fresh = fresh or ByLabel()
                fresh.put(matcher, matcher[0][0])
                self._matchers.put(matcher, matcher[0][0])
            count.users += 1
        if request.affinity:
            self.wanted.add(matcher_of(*request.affinity))
        if fresh is not None:
            for pod, slot in placed:
                self._count(pod, slot, 1, fresh.about(pod.labels))

    def release(self, request: Request) -> None:
        for matcher in matchers_of(request):
            count = self.counts[matcher]
            count.users -= 1
            if count.users == 0:
                del self.counts[matcher]
                self._matchers.drop(matcher, matcher[0][0])
                self.wanted.discard(matcher)

    def add(self, pod: Pod, slot: int) -> bool:
        """Count a placed pod. True where it may satisfy the required affinity of a waiting pod."""
        for term in pod.request.anti_affinity:
            carriers = self.carriers.get(term)
            if carriers is None:
                carriers = self.carriers[term] = Counter()
                self._repelled.put(term, term.selector)
            carriers[slot] += 1
        return bool(self.counts) and self._count(pod, slot, 1, self._matchers.about(pod.labels))

    def remove(self, pod: Pod, slot: int) -> None:
        for term in pod.request.anti_affinity:
            carriers = self.carriers[term]
            _add(carriers, slot, -1)
            if not carriers:
                del self.carriers[term]
                self._repelled.drop(term, term.selector)
        if self.counts:
            self._count(pod, slot, -1, self._matchers.about(pod.labels))

    def picks(self, matcher: Matcher, pod: Pod) -> bool:
        """Whether all terms of the matcher match the pod."""
        if not matcher:
            return False
        return self._picks(matcher, pod.namespace, dict(pod.labels))

    def _picks(self, matcher: Matcher, namespace: str, labels: Mapping[str, str]) -> bool:
        return all(
            (namespace in namespaces or self._in_namespace(by_label, namespace)) and matches(selector, labels)
            for selector, namespaces, by_label in matcher
        )

    def repelling(self, pod: Pod) -> dict[str, Counter[int]]:
        """By topology key the slots of the pods that carry an anti-affinity term which matches the pod."""
        found: dict[str, Counter[int]] = {}
        if self.carriers:
            labels = dict(pod.labels)
            for term in self._repelled.about(pod.labels):
                if self._picks(matcher_of(term), pod.namespace, labels):
                    slots = found.get(term.topology_key)
                    if slots is None:
                        slots = found[term.topology_key] = Counter()
                    slots.update(self.carriers[term])
        return found

    def about(self, pod: Pod) -> frozenset[Matcher]:
        """What picks the pod, and what repels it: to the rules of all others pods are equal for which this is."""
        labels = dict(pod.labels)
        picking = [*self._matchers.about(pod.labels), *map(matcher_of, self._repelled.about(pod.labels))]
        return frozenset([matcher for matcher in picking if self._picks(matcher, pod.namespace, labels)])

    def namespaces(self) -> Iterator[Namespace]:
        return (Namespace(name, tuple(labels.items())) for name, labels in self.labels.items())

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """The labels of a namespace; none where it is not known."""
        return self.labels.get(namespace, {})

    def set_namespace(self, namespace: Namespace, placed: Iterable[tuple[Pod, int]]) -> bool:
        """Labels of a namespace changed: terms with a namespaceSelector may pick other pods. True where one exists."""
        labels = dict(namespace.labels)
        if self.labels.get(namespace.name) == labels:
            return False
        self.labels[namespace.name] = labels
        return self._recount(placed)

    def forget_namespace(self, name: str, placed: Iterable[tuple[Pod, int]]) -> bool:
        return self.labels.pop(name, None) is not None and self._recount(placed)

    def _recount(self, placed: Iterable[tuple[Pod, int]]) -> bool:
        moved = [m for m in self.counts if any(by_label is not None for _, _, by_label in m)]
        again: ByLabel[Matcher] = ByLabel()
        for matcher in moved:
            self.counts[matcher] = PeerCount(users=self.counts[matcher].users)
            again.put(matcher, matcher[0][0])
        if moved:
            for pod, slot in placed:
                self._count(pod, slot, 1, again.about(pod.labels))
        return bool(moved)

    def _in_namespace(self, selector: LabelSelector | None, namespace: str) -> bool:
        return selector is not None and matches(selector, self.labels.get(namespace, {}))

    def _count(self, pod: Pod, slot: int, by: int, matchers: Iterable[Matcher]) -> bool:
        """`matchers` are those that may pick it."""
        satisfies, labels = False, dict(pod.labels)
        for matcher in matchers:
            if self._picks(matcher, pod.namespace, labels):
                count = self.counts[matcher]
                _add(count.pods, slot, by)
                if pod.deleting:
                    _add(count.deleting, slot, by)
                satisfies |= matcher in self.wanted
        return satisfies


def _add(counter: Counter[int], slot: int, by: int) -> None:
    counter[slot] += by
    if counter[slot] == 0:
        del counter[slot]
