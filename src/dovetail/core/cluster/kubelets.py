# SPDX-License-Identifier: Apache-2.0
"""The allocations of each node's kubelet, and whether the kubelet would admit one more pod.

Rules: a node with a known inventory has books of CPUs, memory and devices, kept by the kubelet's own rules. A pod that
the managers of a kubelet cannot refuse (`Request.managed` None) is in no book. The answer of a kubelet depends on what
is allocated there and on the shape, not on the node: equal questions are answered once. Which GPUs a plugin prefers is
this scheduler's choice, since its plugin answers with the record of the bind. Pods that are bound already are entered
as far as the kubelet's rules explain them; a pod that should have been rejected is in no book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mypy_extensions import mypyc_attr

from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.choose import choices
from dovetail.core.devices.kubelet.admission import NEW, Kubelet
from dovetail.core.devices.kubelet.holdings import Holdings, MemoryNode, PodHeld
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.shortcut import Alone, Devices, Shortcut
from dovetail.core.devices.layout import Layout
from dovetail.core.model import GPU

NVLINKS_NEEDED = "NVLinks"
_REMEMBERED = 65_536


@mypyc_attr(acyclic=True)
class KubeletStock:
    """What a kubelet of one kind has allocated in all, as in `Holdings`; devices sorted by resource. Equal ones are one
    object, with one `number`."""

    __slots__ = ("devices", "memory", "number", "shared_cpus")

    def __init__(self, number: int, shared_cpus: int, memory: tuple[MemoryNode, ...], devices: Devices) -> None:
        self.number = number
        self.shared_cpus = shared_cpus
        self.memory = memory
        self.devices = devices

    @property
    def holdings(self) -> Holdings:
        return Holdings(self.shared_cpus, self.memory, dict(self.devices), {})


@mypyc_attr(acyclic=True)
class KubeletAnswer:
    """`admitted` None: it is not known, for the reason in `message`. Else `reason` and `message` are the kubelet's.
    `gpu_bits` are the GPUs that the pod gets; `certain` is false where the kubelet chooses some at random."""

    __slots__ = ("admitted", "after", "certain", "gpu_bits", "has", "message", "reason")

    def __init__(
        self,
        admitted: bool | None,
        reason: str,
        message: str,
        certain: bool,
        gpu_bits: int,
        after: KubeletStock,
        has: PodHeld | Alone | None,
    ) -> None:
        self.admitted = admitted
        self.reason = reason
        self.message = message
        self.certain = certain
        self.gpu_bits = gpu_bits
        self.after = after
        self.has = has

    @property
    def held(self) -> PodHeld | None:
        """What the pod holds then; None where it is not admitted, or in an entry without a pod."""
        return self.has.held if isinstance(self.has, Alone) else self.has


@mypyc_attr(acyclic=True)
class KubeletEntry:
    """A pod in the books of its node: the answer of the kubelet to it, and the entry before it. Books begin with an
    entry without a pod, and go on with one after a pod other than the last has left."""

    __slots__ = ("answer", "before")

    def __init__(self, answer: KubeletAnswer, before: KubeletEntry | None = None) -> None:
        self.answer = answer
        self.before = before

    @property
    def stock(self) -> KubeletStock:
        """What was held in all once it was in."""
        return self.answer.after

    @property
    def held(self) -> PodHeld | None:
        """What the pod holds; None in an entry without a pod."""
        return self.answer.held


class Kubelets:
    """`books[slot]` is the last entry in the books of a node that has some. The node table's `book_numbers[slot]` is
    the number of what is held there now, 0 where there are no books."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._kinds: dict[tuple[Inventory, Layout | None], _Kind] = {}
        self._of_slot: dict[int, _Kind] = {}
        self._answers: dict[int, dict[int, KubeletAnswer]] = {}
        """By shape and by the number of what is held before."""
        self._answered = 0
        self._stocks: dict[tuple[int, int, tuple[MemoryNode, ...], Devices], KubeletStock] = {}
        """By kind and by what is held."""
        self._count = 0
        self.books: dict[int, KubeletEntry] = {}

    def open(self, slot: int) -> None:
        """Begin the node's books again, without pods; there are none where its inventory is not known."""
        inventory, layout = self._nodes.inventory(slot), self._nodes.layout(slot)
        self.books.pop(slot, None)
        self._of_slot.pop(slot, None)
        self._nodes.book_numbers[slot] = 0
        if inventory is not None:
            kind = self._kinds.get((inventory, layout))
            if kind is None:
                kind = self._kinds[inventory, layout] = _Kind(len(self._kinds), inventory, layout)
                kind.empty = self._stock_of(kind, Holdings.of_empty(inventory))
            self._of_slot[slot] = kind
            self._put(slot, _beginning(kind.empty))

    def lets_in(self, slot: int, shape: Shape) -> bool:
        """Whether the node's kubelet would take one more pod of the shape now, as far as that is known."""
        answer = self.ask(slot, shape)
        return answer is None or answer.admitted is not False

    def ask(self, slot: int, shape: Shape) -> KubeletAnswer | None:
        """Would the node let in one more pod of this shape? None where its kubelet does not decide about it."""
        last = self.books.get(slot)
        if last is None:
            return None
        stock, answers = last.answer.after, self._answers.get(shape.id)
        answer = None if answers is None else answers.get(stock.number)
        if answer is not None or shape.request.managed is None:
            return answer
        return self._work_out(self._of_slot[slot], shape, stock)

    def ask_empty(self, slot: int, shape: Shape) -> KubeletAnswer:
        """Whether the node would admit the pod if no other were there. Only for nodes with a managed kubelet."""
        kind = self._of_slot[slot]
        answer = self._answers.get(shape.id, {}).get(kind.empty.number)
        return answer if answer is not None else self._work_out(kind, shape, kind.empty)

    def forget(self, shape: int) -> None:
        """Nobody asks for the shape of this number any more."""
        self._answers.pop(shape, None)

    def _work_out(self, kind: _Kind, shape: Shape, stock: KubeletStock) -> KubeletAnswer:
        if self._answered >= _REMEMBERED:
            self._answers.clear()
            self._stocks.clear()
            self._answered = 0
        self._answered += 1
        shortcut = kind.shortcut(shape)
        found = shortcut.admit(stock.shared_cpus, stock.memory, stock.devices) if shortcut is not None else None
        if found is not None:
            shared, memory, devices, has, certain = found
            after = self._stock(kind.number, shared, memory, devices)
            answer = KubeletAnswer(True, "", "", certain, _gpus(has.devices), after, has)
        else:
            pod = shape.request.managed
            assert pod is not None, "this kubelet does not decide"
            verdict = kind.kubelet_for(shape).admit(stock.holdings, NEW, pod)
            held = verdict.holdings.pods.pop(NEW, None)
            gpus = 0 if held is None else _gpus([some for one in held.containers for some in one.devices])
            after = self._stock_of(kind, verdict.holdings)
            answer = KubeletAnswer(
                verdict.admitted, verdict.reason, verdict.message, verdict.certain, gpus, after, held
            )
        if shape.needs_links:
            answer = _linked(kind.layout, shape, answer)
        self._answers.setdefault(shape.id, {})[stock.number] = answer
        return answer

    def _stock(self, kind: int, shared_cpus: int, memory: tuple[MemoryNode, ...], devices: Devices) -> KubeletStock:
        new = KubeletStock(self._count + 1, shared_cpus, memory, devices)
        stock = self._stocks.setdefault((kind, shared_cpus, memory, devices), new)
        if stock is new:
            self._count += 1
        return stock

    def _stock_of(self, kind: _Kind, holdings: Holdings) -> KubeletStock:
        devices = tuple(sorted(holdings.devices.items()))
        return self._stock(kind.number, holdings.shared_cpus, holdings.memory, devices)

    def enter(self, slot: int, answer: KubeletAnswer, written: int) -> KubeletEntry | None:
        """Enter a pod that was placed, to which the kubelet answers so: its entry; None where the kubelet's rules do
        not explain it. `written` are the GPUs that were written down for it, 0 for none."""
        before = self.books[slot]
        if not answer.admitted:
            return None
        if written and written != answer.gpu_bits:
            held = answer.held
            assert held is not None, "somebody is let in"
            owners = [index for index, one in enumerate(held.containers) if dict(one.devices).get(GPU)]
            in_use = dict(before.stock.devices).get(GPU, 0)
            if len(owners) != 1 or written & in_use:
                return None
            containers = list(held.containers)
            own = dict(containers[owners[0]].devices) | {GPU: written}
            containers[owners[0]] = containers[owners[0]]._replace(devices=tuple(sorted(own.items())))
            held = held._replace(containers=tuple(containers))
            holdings = answer.after.holdings
            holdings.devices[GPU] = in_use | written
            after = self._stock_of(self._of_slot[slot], holdings)
            answer = KubeletAnswer(True, answer.reason, answer.message, answer.certain, written, after, held)
        entry = KubeletEntry(answer, before)
        self._put(slot, entry)
        return entry

    def leave(self, slot: int, entry: KubeletEntry) -> None:
        """A pod that was entered has left. Nobody came after it: then all is as it was before."""
        assert entry.held is not None and entry.before is not None, "nobody came with this entry"
        last = self.books[slot]
        if last is entry:
            self._put(slot, entry.before)
            return
        kind, holdings = self._of_slot[slot], last.stock.holdings
        holdings.pods[NEW] = entry.held
        self._put(slot, _beginning(self._stock_of(kind, kind.kubelet(False, False).release(holdings, NEW))))

    def set_aside(self, slot: int, gpus: int) -> None:
        """Shares of these GPUs are allocated now: the plugin allocates none of them to a pod that asks for whole
        ones."""
        self._hold(slot, gpus, 0)

    def take_back(self, slot: int, gpus: int) -> None:
        """Nobody has a share any more of GPUs that were set aside."""
        self._hold(slot, 0, gpus)

    def _hold(self, slot: int, gpus: int, no_more: int) -> None:
        kind = self._of_slot.get(slot)
        if kind is None or not kind.has_gpus:
            return
        stock = self.books[slot].stock
        held = _gpus(stock.devices) & ~no_more | gpus
        others = [one for one in stock.devices if one[0] != GPU]
        devices = tuple(sorted([*others, (GPU, held)])) if held else tuple(others)
        self._put(slot, _beginning(self._stock(kind.number, stock.shared_cpus, stock.memory, devices)))

    def reopen(self, slot: int, last: KubeletEntry) -> None:
        """The books go on from an entry that was the last before."""
        self._put(slot, last)

    def recounted(self, slot: int, entries: Iterable[KubeletEntry], aside: int) -> tuple[int, dict[str, int]]:
        """The CPUs that are shared and the devices that are held if these and nobody else are entered, and these GPUs
        are set aside."""
        kind = self._of_slot[slot]
        shared, devices = kind.empty.shared_cpus, {GPU: aside} if aside and kind.has_gpus else dict[str, int]()
        for held in (entry.held for entry in entries):
            assert held is not None
            for one in held.containers:
                shared &= ~(one.cpus or 0)
                for resource, bits in one.devices:
                    devices[resource] = devices.get(resource, 0) | bits
            shared &= ~(held.cpus or 0)
        return shared, devices

    def _put(self, slot: int, entry: KubeletEntry) -> None:
        self.books[slot] = entry
        self._nodes.book_numbers[slot] = entry.answer.after.number


class _Kind:
    """The kubelets of nodes with one inventory and one layout: one for each kind of request, made when it is asked."""

    def __init__(self, number: int, inventory: Inventory, layout: Layout | None) -> None:
        self.layout = layout
        self.has_gpus = any(pool.resource == GPU for pool in inventory.devices)
        self.empty: KubeletStock
        self.number = number
        self._inventory = inventory
        self._kubelets: dict[tuple[bool, bool], Kubelet] = {}
        self._shortcuts: dict[int, Shortcut | None] = {}

    def kubelet_for(self, shape: Shape) -> Kubelet:
        return self.kubelet(shape.request.nvlink_required, shape.request.near_nics)

    def shortcut(self, shape: Shape) -> Shortcut | None:
        """The short way in for pods of the shape, where there is one."""
        try:
            return self._shortcuts[shape.id]
        except KeyError:
            pod = shape.request.managed
            found = None if pod is None else self.kubelet_for(shape).shortcut(pod)
            self._shortcuts[shape.id] = found
            return found

    def kubelet(self, nvlinked: bool, near_nics: bool) -> Kubelet:
        kubelet = self._kubelets.get((nvlinked, near_nics))
        if kubelet is None:
            prefer = _preference(self.layout, nvlinked, near_nics)
            kubelet = self._kubelets[nvlinked, near_nics] = Kubelet(self._inventory, prefer)
        return kubelet


def _linked(layout: Layout | None, shape: Shape, answer: KubeletAnswer) -> KubeletAnswer:
    """NUMA can leave GPUs that are not linked to a pod that needs it."""
    if not answer.admitted or layout is None:
        return answer
    if sets_of(layout).nvlinked[answer.gpu_bits]:
        return answer
    return KubeletAnswer(False, NVLINKS_NEEDED, "the GPUs would not be linked", True, 0, answer.after, None)


def _beginning(stock: KubeletStock) -> KubeletEntry:
    """An entry without a pod."""
    return KubeletEntry(KubeletAnswer(True, "", "", True, 0, stock, None))


def _gpus(devices: Iterable[tuple[str, int]]) -> int:
    """Those that are GPUs, as bits."""
    bits = 0
    for resource, some in devices:
        if resource == GPU:
            bits |= some
    return bits


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
