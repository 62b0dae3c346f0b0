# SPDX-License-Identifier: Apache-2.0
"""Named layouts of a node's GPUs: from a file in the format of NVIDIA's mig-parted, and generated from the GPUs.

Rules
- A file has `version: v1` and `mig-configs`: by name a list of entries {device-filter, devices, mig-enabled,
  mig-devices}. An entry applies to the GPUs whose index is in `devices` (or `all`) and whose PCI device is in
  `device-filter` (0x, device, vendor: 0x20B010DE), if it has one. A GPU to which no entry applies stays as it is.
- An entry that turns MIG mode on has a list of instances, which may be {}; one that turns it off has none. Two entries
  that apply to one GPU contradict each other and are refused.
- These layouts are generated for the GPUs of the node: all-disabled; all-enabled (MIG mode, no instances); all-PROFILE,
  as many instances of the profile as fit, with `.` for `+`; and all-balanced, two 1g, one 2g and, if a GPU has seven
  compute slices, one 3g. They leave GPUs that cannot have them as they are. A layout of that name in the file wins.
Source: mig-parted api/spec/v1, pkg/mig/builder (names and numbers of the generated layouts).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from dovetail.agent.mig.geometry import no_profile, refusal
from dovetail.core.devices.mig import names
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX, Geometry
from dovetail.core.devices.mig.instances import states
from dovetail.kube.manifests.documents import Document, read_documents
from dovetail.kube.translate.problems import nearest

_DEVICE = re.compile(r"0[xX][0-9a-fA-F]{8}")
_FIELDS = ("device-filter", "devices", "mig-enabled", "mig-devices")
_PROFILE = re.compile(r"(?:[1-9]c\.)?[1-9]\d?g\.[1-9]\d{0,3}gb(?:[+-][a-z.]+)?")
_ALL = "all-"
_SIZE = re.compile(r"\dg\W?\d")
_BALANCED = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""By the compute slices of a GPU: how many instances of how many compute slices."""


class MigLayoutError(Exception):
    """A layout is unknown, invalid, or impossible on a GPU. The text names the layout, the place and the reason."""


class WantedLayout(NamedTuple):
    """How one GPU should be: MIG mode, and how many instances of each profile."""

    mig: bool
    counts: dict[str, int]


OFF = WantedLayout(False, {})


class Candidate(Struct, frozen=True):
    """A GPU that a layout may apply to. `device` is its PCI device and vendor (0x20B010DE), `capable` whether it
    supports MIG mode. `geometry` is None if it does not, or if its profiles are unknown."""

    index: int
    product: str
    device: int
    capable: bool
    geometry: Geometry | None


class _Entry(Struct, frozen=True):
    """`devices` None: all. No `filters`: any."""

    devices: frozenset[int] | None
    filters: frozenset[int]
    wanted: WantedLayout
    where: str

    def covers(self, gpu: Candidate) -> bool:
        return (self.devices is None or gpu.index in self.devices) and (not self.filters or gpu.device in self.filters)


class Layouts:
    """The layouts of a file, if there is one, and the generated ones."""

    def __init__(self, entries: Mapping[str, Sequence[_Entry]] | None = None) -> None:
        self._entries = dict(entries or {})

    def names(self, gpus: Sequence[Candidate]) -> tuple[str, ...]:
        """All layouts for a node with these GPUs."""
        return tuple(sorted({*self._entries, *_generated(gpus)}))

    def of(self, name: str, gpus: Sequence[Candidate]) -> dict[int, WantedLayout]:
        """The layout of each GPU, by its index; a GPU that is not listed stays as it is. Raises MigLayoutError."""
        if name in self._entries:
            found = self._of_file(name, gpus)
        else:
            generated = _generated(gpus)
            if name not in generated:
                valid = self.names(gpus)
                rule = (
                    f"; nearest valid value: {_nearest(name, valid)}" if valid else ": no GPU of this node has MIG mode"
                )
                raise MigLayoutError(f"no layout is named {name!r}{rule}")
            found = generated[name]
        for gpu in gpus:
            wanted = found.get(gpu.index)
            if wanted is not None and (reason := _refusal(gpu, wanted)):
                raise MigLayoutError(f"layout {name}, GPU {gpu.index} ({gpu.product}): {reason}")
        return found

    def _of_file(self, name: str, gpus: Sequence[Candidate]) -> dict[int, WantedLayout]:
        found: dict[int, WantedLayout] = {}
        for gpu in gpus:
            covering = [entry for entry in self._entries[name] if entry.covers(gpu)]
            if len(covering) > 1:
                places = " and ".join(entry.where for entry in covering)
                raise MigLayoutError(f"layout {name}: {places} both apply to GPU {gpu.index}")
            if covering:
                found[gpu.index] = covering[0].wanted
        return found


def _nearest(name: str, valid: Iterable[str]) -> str:
    """The nearest valid name: by the size of the instances if the name has one, else by spelling."""
    profiles = {RESOURCE_PREFIX + own.removeprefix(_ALL): own for own in valid if _SIZE.search(own)}
    if _SIZE.search(name) and profiles:
        return profiles[names.nearest(RESOURCE_PREFIX + name.removeprefix(_ALL), profiles)]
    return nearest(name, valid)


def _refusal(gpu: Candidate, wanted: WantedLayout) -> str:
    if not wanted.mig or (gpu.capable and not wanted.counts):
        return ""
    return _undividable(gpu) if gpu.geometry is None else refusal(gpu.geometry, wanted.counts)


def _undividable(gpu: Candidate) -> str:
    if not gpu.capable:
        return "this product has no MIG mode"
    return "its driver does not report its profiles while MIG mode is off: apply all-enabled first"


def _generated(gpus: Sequence[Candidate]) -> dict[str, dict[int, WantedLayout]]:
    found: dict[str, dict[int, WantedLayout]] = {}
    for gpu in gpus:
        for name, wanted in _layouts_of(gpu):
            found.setdefault(name, {})[gpu.index] = wanted
    return found


def _layouts_of(gpu: Candidate) -> Iterable[tuple[str, WantedLayout]]:
    if gpu.capable:
        yield "all-disabled", OFF
        yield "all-enabled", WantedLayout(True, {})
    if gpu.geometry is not None:
        yield from _of_geometry(gpu.geometry)


def _of_geometry(geometry: Geometry) -> Iterable[tuple[str, WantedLayout]]:
    known = states(geometry)
    for i, profile in enumerate(geometry.profiles):
        yield f"{_ALL}{profile.name.replace('+', '.')}", WantedLayout(True, {profile.name: known.room(0, i)})
    formula = _BALANCED.get(geometry.compute_slices, {})
    plain = [profile for profile in geometry.profiles if re.fullmatch(r"\d+g\.\d+gb", profile.name)]
    # Of profiles with as many compute slices the one of which there are most: it has the least memory.
    best = {own.compute_slices: own for own in sorted(plain, key=lambda own: own.most)}
    if formula and all(size in best for size in formula):
        yield "all-balanced", WantedLayout(True, {best[size].name: count for size, count in formula.items()})


def read_layouts(path: Path) -> Layouts:
    """The layouts of a file. Raises ManifestError if it cannot be read, MigLayoutError if it is invalid."""
    documents = list(read_documents([str(path)]))
    if len(documents) != 1:
        raise MigLayoutError(f"{path}: has {len(documents)} documents: one is expected")
    document = documents[0]
    value = document.value
    if not isinstance(value, dict):
        raise _wrong(document, "", value, "must be a mapping with version and mig-configs")
    _known(document, "", value, ("version", "mig-configs"))
    if value.get("version") != "v1":
        raise _wrong(document, "version", value.get("version"), "must be v1")
    configs = value.get("mig-configs")
    if not isinstance(configs, dict) or not configs:
        raise _wrong(document, "mig-configs", configs, "must name at least one layout")
    return Layouts({str(name): tuple(_entries(document, str(name), entries)) for name, entries in configs.items()})


def _entries(document: Document, name: str, entries: Any) -> Iterable[_Entry]:
    path = f"mig-configs[{name}]"
    if not isinstance(entries, list) or not entries:
        raise _wrong(document, path, entries, "must be a list of at least one entry")
    for i, entry in enumerate(entries):
        yield _entry(document, f"{path}[{i}]", entry)


def _entry(document: Document, path: str, entry: Any) -> _Entry:
    if not isinstance(entry, dict):
        raise _wrong(document, path, entry, f"must be a mapping with {', '.join(_FIELDS)}")
    _known(document, path, entry, _FIELDS)
    enabled, instances = entry.get("mig-enabled"), entry.get("mig-devices")
    if not isinstance(enabled, bool):
        raise _wrong(document, f"{path}.mig-enabled", enabled, "must be true or false")
    if enabled and instances is None:
        raise _wrong(document, f"{path}.mig-devices", None, "is required if mig-enabled is true; it may be {}")
    if not enabled and instances:
        raise _wrong(document, f"{path}.mig-devices", instances, "must be empty if mig-enabled is false")
    return _Entry(
        devices=_devices(document, f"{path}.devices", entry.get("devices")),
        filters=_filters(document, f"{path}.device-filter", entry.get("device-filter")),
        wanted=WantedLayout(enabled, _counts(document, f"{path}.mig-devices", instances or {})),
        where=f"{document.file}:{document.line(path)}",
    )


def _devices(document: Document, path: str, value: Any) -> frozenset[int] | None:
    if value == "all":
        return None
    if not isinstance(value, list) or not all(type(one) is int and one >= 0 for one in value):
        raise _wrong(document, path, value, "must be all, or a list of GPU indices")
    return frozenset(value)


def _filters(document: Document, path: str, value: Any) -> frozenset[int]:
    listed = [] if value in (None, "") else value if isinstance(value, list) else [value]
    for one in listed:
        if not isinstance(one, str | int) or not _DEVICE.fullmatch(_hexadecimal(one)):
            raise _wrong(document, path, one, 'must be a PCI device as "0x20B010DE" (0x, device, vendor)')
    return frozenset(int(_hexadecimal(one), 16) for one in listed)


def _hexadecimal(one: str | int) -> str:
    """As it was written: YAML reads 0x20B010DE without quotes as a number."""
    return one if isinstance(one, str) else f"{one:#010x}"


def _counts(document: Document, path: str, value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise _wrong(document, path, value, "must be a mapping from profiles to numbers")
    for name, count in value.items():
        if not isinstance(name, str) or not _PROFILE.fullmatch(name):
            raise _wrong(document, path, name, "must be a profile such as 1g.5gb or 1g.5gb+me")
        if type(count) is not int or count < 0:
            raise _wrong(document, f"{path}[{name}]", count, "must be a whole number of instances")
    return {name: count for name, count in value.items() if count}


def _known(document: Document, path: str, value: dict[Any, Any], fields: Sequence[str]) -> None:
    for name in value:
        if name not in fields:
            at = f"{path}.{name}" if path else str(name)
            raise _wrong(document, at, name, f"is not a known field; nearest valid value: {nearest(str(name), fields)}")


def _wrong(document: Document, path: str, value: Any, rule: str) -> MigLayoutError:
    line = document.line(path)
    where = f"{document.file}:{line}" if line else document.file
    shown = f"{path}: " if path else ""
    return MigLayoutError(f"{where}: {shown}{value!r}: {rule}")


def exact(gpu: Candidate, instances: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The same instances in the order of their starts, with the driver's names. Raises MigLayoutError if the GPU cannot
    have all of them at once."""
    if gpu.geometry is None:
        raise MigLayoutError(f"GPU {gpu.index} ({gpu.product}): {_undividable(gpu)}")
    bits = 0
    for name, start in instances:
        index = gpu.geometry.find(name)
        if index is None:
            raise MigLayoutError(f"GPU {gpu.index} ({gpu.product}): {no_profile(gpu.geometry, name)}")
        if start not in gpu.geometry.profiles[index].starts:
            at = " or ".join(map(str, gpu.geometry.profiles[index].starts))
            raise MigLayoutError(f"GPU {gpu.index} ({gpu.product}): {name} starts at {at}, not at {start}")
        bit = gpu.geometry.bit(index, start)
        if bits & bit:
            raise MigLayoutError(f"GPU {gpu.index} ({gpu.product}): {name}@{start} is listed twice")
        bits |= bit
    if fault := states(gpu.geometry).fault(bits):
        raise MigLayoutError(f"GPU {gpu.index} ({gpu.product}): {fault}")
    return tuple((gpu.geometry.profiles[i].name, start) for i, start in gpu.geometry.members(bits))
