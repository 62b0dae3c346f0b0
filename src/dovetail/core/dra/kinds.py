# SPDX-License-Identifier: Apache-2.0
"""Kinds of nodes: nodes whose devices are equal in all that requests read are of one kind.

Rules: the devices of a node are bits of an integer, in the order in which upstream tries them. Devices that are equal
in all that selectors read have one profile, and each selector is evaluated once on a profile. Values that constraints
compare are numbers within the node: they show which devices have the same value, not the value. Names of devices and
pools do not matter. The attributes that are read are learned from the requests; when requests read more, all kinds are
made again. A node that equals an earlier one in all that a kind is made of takes its kind by a look-up.

The layout of a node numbers its GPUs; its devices are matched to them in the order of their PCI bus ids, for the
devices of one driver, or of the numbers in their names where one has no bus id. A partition is on the GPU of its bus
id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from dovetail.core.devices.layout import MAX_LINKED_GPUS, Layout
from dovetail.core.dra.joins import PCIE_ROOT, Join, joins_of
from dovetail.core.dra.partitions import PartitionedGpu, cards_of
from dovetail.core.dra.pools import PoolHere, uses_of
from dovetail.core.dra.types import Device, Value
from kubecel import SelectorReads

BUS_ID = "resource.kubernetes.io/pciBusID"
_TYPE = "/type"
"""The attribute of a driver's domain that has the type of a device."""
NO_GPU = -1
_REMEMBERED = 1024
"""The most nodes whose kinds are kept; where every node names its devices differently, the look-up never hits."""
_BUS_ID = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_NUMBER = re.compile(r"\D*(\d{1,9})")


def bits(mask: int) -> Iterator[int]:
    """The indices of the set bits, in ascending order."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


class DeviceProfile(Struct, frozen=True):
    """Devices of a driver that are equal in all that is read of them; `device` is one of them."""

    number: int
    driver: str
    device: Device


class PoolKind(Struct, frozen=True):
    """`first` and `end` are the bits of its devices, `counters` the indices of its counters."""

    driver: str
    incomplete: bool
    invalid: bool
    first: int
    end: int
    counters: range


class DeviceKind(Struct, frozen=True, eq=False):
    """`values[attribute][bit]` is a set of value numbers as bits, None where the device does not have the attribute.
    `counters` are the amounts of all counters of the node's pools, `uses[bit]` what a device consumes of them by index.
    `gpus[bit]` is the device's GPU in the layout, or NO_GPU. `whole_gpus` are the devices that are one GPU each."""

    number: int
    pools: tuple[PoolKind, ...]
    profiles: tuple[DeviceProfile, ...]
    here: int
    shareable: int
    partitioned: int
    conditional: int
    values: dict[str, tuple[int | None, ...]]
    counters: tuple[int, ...]
    uses: tuple[tuple[tuple[int, int], ...], ...]
    pool_of: tuple[int, ...]
    layout: Layout | None
    gpus: tuple[int, ...]
    whole_gpus: int
    neighbours: tuple[int, ...]
    """By device: the devices that consume the same counters, including itself."""
    sizes: tuple[int, ...]
    """By device: the sum of what it consumes of its counters, in thousandths of each."""
    cards: dict[int, PartitionedGpu]
    """By partition: its card; empty where the worth of the node's cards is unknown."""
    joins: tuple[Join, ...]
    """For each PCIe root with devices of several drivers, and each of these drivers."""

    def gpus_of(self, devices: Iterable[int]) -> int:
        """The GPUs of these devices, as bits of the layout."""
        found = 0
        for bit in devices if self.layout is not None else ():
            if self.gpus[bit] != NO_GPU:
                found |= 1 << self.gpus[bit]
        return found

    def compared(self, attribute: str) -> tuple[int | None, ...]:
        """The entry of an attribute in `values`; None for all devices where none has it."""
        found = self.values.get(attribute)
        return found if found is not None else (None,) * len(self.profiles)


class Kinds:
    """Profiles, kinds, and the attributes that are read. If a selector may read anything, all attributes count."""

    def __init__(self) -> None:
        self.version = 0
        """Grows when requests read more: all earlier kinds are then invalid."""
        self._read: set[SelectorReads] = set()
        self._compared: set[str] = set()
        self._everything = False
        self._names: dict[str, bool] = {}
        """By qualified name of an attribute: whether it is read. Filled on demand."""
        self._kept: dict[str, bool] = {}
        """The same for all attributes that kinds are made of: also compared ones, and those that identify the GPU."""
        self._profiles: dict[object, DeviceProfile] = {}
        self._kinds: dict[object, DeviceKind] = {}
        self._written: dict[object, DeviceKind] = {}
        """Kinds by all that they are made of, as it is written."""
        self._numbers = 0

    def read(self, reads: Iterable[frozenset[SelectorReads] | None], compared: Iterable[str]) -> None:
        """Note the attributes that selectors read and that constraints compare."""
        before = len(self._read), self._everything
        for each in reads:
            if each is None:
                self._everything = True
            else:
                # Drivers, capacities and whether a device is shareable are part of each profile.
                self._read |= {one for one in each if one.kind == "attributes"}
        fresh = set(compared) - self._compared
        self._compared |= fresh
        if not fresh.isdisjoint(self._kept) or (before != (len(self._read), self._everything) and self._matters()):
            self._names.clear()
            self._kept.clear()
            self._profiles.clear()
            self._kinds.clear()
            self._written.clear()
            self.version += 1

    def _matters(self) -> bool:
        """Whether requests now read more of existing devices. Selectors can name attributes that no device has."""
        known = (*self._names.items(), *self._kept.items())
        return any(not before and self._is_requested(name) for name, before in known)

    def forget(self) -> None:
        """Drop the attributes that were read: no request reads them now. Existing kinds are then finer than needed.
        The root is kept: whether claims join devices is known from all claims, also those that nobody asks for now."""
        self._read.clear()
        self._compared &= {PCIE_ROOT}
        self._everything = False

    def of(self, pools: tuple[PoolHere, ...], layout: Layout | None) -> DeviceKind:
        """The kind of a node with these pools; equal ones get the same object."""
        written = layout, tuple([self._as_written(pool) for pool in pools])
        kind = self._written.get(written)
        if kind is None:
            if len(self._written) >= _REMEMBERED:
                self._written.clear()
            kind = self._written[written] = self._worked_out(pools, layout)
        return kind

    def _as_written(self, pool: PoolHere) -> object:
        """All of a pool that `_worked_out` reads. Equal results make equal kinds; different ones may, too."""
        known, kept = self._kept, self._is_kept
        devices = [
            (
                offer.here, device.name, device.shareable, device.capacity, device.consumes, device.taints,
                bool(device.conditions),
                tuple([
                    (name, value if type(value) is str else _typed(value))
                    for name, value in device.attributes
                    if (known[name] if name in known else kept(name))
                ]),
            )
            for offer in pool.offers
            for device in (offer.device,)
        ]  # fmt: skip
        return pool.id[0], pool.incomplete, bool(pool.invalid), pool.counters, tuple(devices)

    def _worked_out(self, pools: tuple[PoolHere, ...], layout: Layout | None) -> DeviceKind:
        profiles: list[DeviceProfile] = []
        uses: list[tuple[tuple[int, int], ...]] = []
        counters: list[int] = []
        parts, pool_of = [], []
        offers = [offer for pool in pools for offer in pool.offers]
        for number, pool in enumerate(pools):
            first, begin = len(profiles), len(counters)
            index = {name: begin + i for i, (name, _) in enumerate(pool.counters)}
            counters += [milli for _, milli in pool.counters]
            for offer in pool.offers:
                profiles.append(self._profile(pool.id[0], offer.device))
                uses.append(tuple((index[name], milli) for name, milli in uses_of(offer.device)))
                pool_of.append(number)
            parts.append(
                PoolKind(
                    pool.id[0], pool.incomplete, bool(pool.invalid), first, len(profiles), range(begin, len(counters))
                )
            )
        devices = [offer.device for offer in offers]
        present = {name for device in devices for name, _ in device.attributes}
        values = {name: _numbered(devices, name) for name in sorted(self._compared & present)}
        here = _mask(offer.here for offer in offers)
        conditional = _mask(bool(offer.device.conditions) for offer in offers)
        layout, gpus, whole = _wired(pools, layout)
        key = (
            tuple(parts), tuple(p.number for p in profiles), here, conditional, tuple(values.items()), tuple(counters),
            tuple(uses), layout, gpus, whole,
        )  # fmt: skip
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = DeviceKind(
                number=self._numbers,
                pools=tuple(parts),
                profiles=tuple(profiles),
                here=here,
                shareable=_mask(p.device.shareable for p in profiles),
                partitioned=_mask(bool(each) for each in uses),
                conditional=conditional,
                values=values,
                counters=tuple(counters),
                uses=tuple(uses),
                pool_of=tuple(pool_of),
                layout=layout,
                gpus=gpus,
                whole_gpus=whole,
                neighbours=_neighbours(uses),
                sizes=tuple(sum(1000 * milli // max(counters[i], 1) for i, milli in own) for own in uses),
                cards=cards_of(uses, counters, _mask(p.device.shareable for p in profiles)),
                joins=joins_of([(p.driver, p.device) for p in profiles], uses, values.get(PCIE_ROOT, ())),
            )
            self._numbers += 1
        return kind

    def _profile(self, driver: str, device: Device) -> DeviceProfile:
        key = (
            driver,
            tuple([(name, _typed(value)) for name, value in device.attributes if self._is_read(name)]),
            device.capacity,
            tuple([(taint.key, taint.value, taint.effect) for taint in device.taints]),
            device.shareable,
        )
        profile = self._profiles.get(key)
        if profile is None:
            self._numbers += 1
            profile = self._profiles[key] = DeviceProfile(self._numbers, driver, device)
        return profile

    def _is_kept(self, qualified: str) -> bool:
        placed = qualified == BUS_ID or qualified.endswith(_TYPE)
        kept = self._kept[qualified] = placed or qualified in self._compared or self._is_read(qualified)
        return kept

    def _is_read(self, qualified: str) -> bool:
        known = self._names.get(qualified)
        if known is None:
            known = self._names[qualified] = self._is_requested(qualified)
        return known

    def _is_requested(self, qualified: str) -> bool:
        domain, _, name = qualified.partition("/")
        found = (SelectorReads("attributes", domain, name), SelectorReads("attributes", domain, ""))
        return self._everything or not self._read.isdisjoint(found)


def _mask(bits: Iterable[bool]) -> int:
    return sum(1 << i for i, bit in enumerate(bits) if bit)


def _typed(value: Value) -> object:
    """The value with its type: True equals 1 in Python, and does not in an attribute."""
    if isinstance(value, tuple):
        return tuple(_typed(one) for one in value)
    return type(value).__name__, value


def _numbered(devices: Iterable[Device], attribute: str) -> tuple[int | None, ...]:
    """The values of the devices as sets of numbers; equal values have one number."""
    numbers: dict[object, int] = {}
    sets: list[int | None] = []
    for device in devices:
        value = dict(device.attributes).get(attribute)
        found = value if isinstance(value, tuple) else () if value is None else (value,)
        own = 0
        for one in found:
            own |= 1 << numbers.setdefault(_typed(one), len(numbers))
        sets.append(own or None)
    return tuple(sets)


def _neighbours(uses: list[tuple[tuple[int, int], ...]]) -> tuple[int, ...]:
    users: dict[int, int] = {}
    for bit, own in enumerate(uses):
        for counter, _ in own:
            users[counter] = users.get(counter, 0) | 1 << bit
    masks = []
    for bit, own in enumerate(uses):
        mask = 1 << bit
        for counter, _ in own:
            mask |= users[counter]
        masks.append(mask)
    return tuple(masks)


def _wired(pools: tuple[PoolHere, ...], layout: Layout | None) -> tuple[Layout | None, tuple[int, ...], int]:
    """The layout if it is usable, the GPU of each device, and the devices that are a whole GPU."""
    offers = [(pool.id[0], offer.device) for pool in pools for offer in pool.offers]
    nothing = (NO_GPU,) * len(offers)
    if layout is None or layout.gpus > MAX_LINKED_GPUS:
        return None, nothing, 0
    for driver in dict.fromkeys(driver for driver, _ in offers):
        own = [(bit, device) for bit, (of, device) in enumerate(offers) if of == driver]
        types = {bit: dict(device.attributes).get(driver + _TYPE) for bit, device in own}
        typed = any(kind is not None for kind in types.values())
        wholes = [(bit, device) for bit, device in own if not typed or types[bit] == "gpu"]
        if len(wholes) != layout.gpus:
            continue
        buses = {bit: _bus_id(device) for bit, device in own}
        by_bus = len({buses[bit] for bit, _ in wholes if buses[bit]}) == len(wholes)
        # The sort is stable: without numbers the order of the slices remains.
        wholes.sort(key=lambda each: buses[each[0]] if by_bus else (_number(each[1]),))
        of_bit = {bit: gpu for gpu, (bit, _) in enumerate(wholes)}
        of_bus = {buses[bit]: gpu for bit, gpu in of_bit.items()} if by_bus else {}
        for bit, _ in own:
            of_bit.setdefault(bit, of_bus.get(buses[bit], NO_GPU))
        gpus = tuple(of_bit.get(bit, NO_GPU) for bit in range(len(offers)))
        return layout, gpus, sum(1 << bit for bit, _ in wholes)
    return None, nothing, 0


def _bus_id(device: Device) -> tuple[int, ...]:
    written = dict(device.attributes).get(BUS_ID)
    found = _BUS_ID.fullmatch(written) if isinstance(written, str) else None
    return tuple(int(part, 16) for part in found.groups()) if found else ()


def _number(device: Device) -> int:
    found = _NUMBER.match(device.name)
    return int(found[1]) if found else 0
