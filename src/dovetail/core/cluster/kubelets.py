# SPDX-License-Identifier: Apache-2.0
"""What the kubelet of each node holds for whom, and whether it would let one more pod in.

Rules: a node whose inventory is told has books of CPUs, memory and devices, kept by the kubelet's own rules. A pod that
the managers of a kubelet cannot refuse (`Request.managed` None) is in no book. What a kubelet answers depends on what
is held there and on the shape, not on the node: equal questions are answered once. Which GPUs a plugin prefers is our
own choice, since our plugin answers with what was written down. What the world has placed is held as far as the
kubelet's rules explain it; a pod that should have been rejected is in no book.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.choose import choices
from dovetail.core.devices.kubelet.admission import Kubelet
from dovetail.core.devices.kubelet.holdings import Held, Holdings, PodHeld
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.layout import Layout
from dovetail.core.model import GPU

NVLINKS_NEEDED = "NVLinks"
_REMEMBERED = 65_536
_NEW = "\0"
"""Stands for the uid of a pod that is not there yet."""
Entry = tuple[Holdings, Holdings]
"""The books of a node before and after a pod was entered."""
_Kind = tuple[Inventory, Layout | None, bool, bool]


@dataclass(frozen=True, slots=True)
class Answer:
    """`admitted` None: it cannot be said, for the reason in `message`. Else `reason` and `message` are the kubelet's.
    `gpu_bits` are the GPUs that the pod gets; `certain` is false where the kubelet chooses some at random."""

    admitted: bool | None
    reason: str
    message: str
    certain: bool
    gpu_bits: int
    after: Holdings
    held: PodHeld | None


class Kubelets:
    """`books[slot]` are those of the nodes that have some."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._kubelets: dict[_Kind, Kubelet] = {}
        self._answers: dict[object, Answer] = {}
        self.books: dict[int, Holdings] = {}

    def open(self, slot: int) -> None:
        """Begin the node's books anew, with nobody in them; none where its inventory is not told."""
        inventory = self._nodes.inventory(slot)
        if inventory is None:
            self.books.pop(slot, None)
        else:
            self.books[slot] = Holdings.of_empty(inventory)

    def decides(self, slot: int, shape: Shape) -> bool:
        """Whether the node's kubelet has a say in this shape."""
        return shape.request.managed is not None and slot in self.books

    def lets_in(self, slot: int, shape: Shape) -> bool:
        """Whether the node's kubelet would take one more pod of the shape now, as far as that is known."""
        return not self.decides(slot, shape) or self.ask(slot, shape).admitted is not False

    def ask(self, slot: int, shape: Shape, books: Holdings | None = None) -> Answer:
        """Would the node let in one more pod of this shape? With `books`, if it held these. Ask where it `decides`."""
        pod = shape.request.managed
        assert pod is not None, "this kubelet has no say"
        kubelet = self._kubelet(slot, shape)
        books = books if books is not None else self.books[slot]
        question = id(kubelet), shape.id, books.shared_cpus, books.memory, tuple(sorted(books.devices.items()))
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            verdict = kubelet.admit(books, _NEW, pod)
            held = verdict.holdings.pods.get(_NEW)
            gpus = reduce(or_, (_gpus(one) for one in held.containers), 0) if held is not None else 0
            answer = Answer(
                verdict.admitted, verdict.reason, verdict.message, verdict.certain, gpus, verdict.holdings, held
            )
            self._answers[question] = answer = self._linked(slot, shape, answer)
        return answer

    def ask_empty(self, slot: int, shape: Shape) -> Answer:
        """Would the node let the pod in if nobody else were there?"""
        inventory = self._nodes.inventory(slot)
        assert inventory is not None
        return self.ask(slot, shape, Holdings.of_empty(inventory))

    def enter(self, slot: int, shape: Shape, uid: str, written: int) -> Entry | None:
        """Enter a pod that was placed: the books before and after it; None where the kubelet's rules do not explain it.
        `written` are the GPUs that were written down for it, 0 for none."""
        answer = self.ask(slot, shape)
        if not answer.admitted or answer.held is None:
            return None
        before, held, devices = self.books[slot], answer.held, dict(answer.after.devices)
        if written and written != answer.gpu_bits:
            owners = [index for index, one in enumerate(held.containers) if _gpus(one)]
            if len(owners) != 1 or written & before.devices.get(GPU, 0):
                return None
            devices[GPU] = before.devices.get(GPU, 0) | written
            containers = list(held.containers)
            own = dict(containers[owners[0]].devices) | {GPU: written}
            containers[owners[0]] = containers[owners[0]]._replace(devices=tuple(sorted(own.items())))
            held = held._replace(containers=tuple(containers))
        after = Holdings(answer.after.shared_cpus, answer.after.memory, devices, before.pods | {uid: held})
        self.books[slot] = after
        return before, after

    def leave(self, slot: int, uid: str, entry: Entry) -> None:
        """A pod that was entered has left. Nobody came after it: then all is as it was before."""
        books = self.books.get(slot)
        if books is entry[1]:
            self.books[slot] = entry[0]
        elif books is not None and uid in books.pods:
            inventory = self._nodes.inventory(slot)
            assert inventory is not None
            self.books[slot] = self._plain(inventory, self._nodes.layout(slot)).release(books, uid)

    def _kubelet(self, slot: int, shape: Shape) -> Kubelet:
        inventory = self._nodes.inventory(slot)
        assert inventory is not None
        layout, request = self._nodes.layout(slot), shape.request
        return self._of_kind((inventory, layout, request.nvlink_required, request.near_nics))

    def _plain(self, inventory: Inventory, layout: Layout | None) -> Kubelet:
        return self._of_kind((inventory, layout, False, False))

    def _of_kind(self, kind: _Kind) -> Kubelet:
        kubelet = self._kubelets.get(kind)
        if kubelet is None:
            kubelet = self._kubelets[kind] = Kubelet(kind[0], _preference(*kind[1:]))
        return kubelet

    def _linked(self, slot: int, shape: Shape, answer: Answer) -> Answer:
        """NUMA can leave GPUs that are not linked to a pod that needs it."""
        layout = self._nodes.layout(slot)
        if not answer.admitted or not shape.request.nvlink_required or layout is None or shape.gpus < 2:
            return answer
        if sets_of(layout).nvlinked[answer.gpu_bits]:
            return answer
        return Answer(False, NVLINKS_NEEDED, "the GPUs would not be linked", True, 0, answer.after, None)


def _gpus(held: Held) -> int:
    return dict(held.devices).get(GPU, 0)


def _preference(layout: Layout | None, nvlinked: bool, near_nics: bool) -> Callable[[str, int, int, int], int]:
    """What our plugin answers to GetPreferredAllocation."""

    def prefer(resource: str, available: int, must_include: int, size: int) -> int:
        chosen = 0
        if layout is not None and resource == GPU and not must_include:
            chosen = choices(layout, nvlinked, near_nics).choose(available, size)
        left = available & ~must_include
        while not chosen and left.bit_count() + must_include.bit_count() > size:
            left &= ~(1 << left.bit_length() - 1)
        return chosen or must_include | left

    return prefer
