# SPDX-License-Identifier: Apache-2.0
"""The node's feature labels for its GPUs, with the names and values of NVIDIA's GPU Feature Discovery (GFD).

Rules
- Labels describe whole GPUs (`nvidia.com/gpu.*`). With MIG strategy `single` the same names describe the instances if
  every GPU has some and all have one profile; else the product is INVALID. With `mixed` there are also labels for the
  instances of each profile (`nvidia.com/mig-1g.5gb.*`, `.` for the `+` of a profile).
- Of several products the last one counts, GPUs without MIG mode after those with it.
- A product or machine keeps letters, digits, `-`, `_` and `.`, and has `-` for blanks. A text that is still not a label
  value (63 characters, a letter or digit at both ends) is cut to one; GFD would drop its label.
- A GPU counts for `gpu.clique` if its fabric is ready and names a cluster; the label is written if these GPUs agree.
- A field that cannot be read has no label, except gpu.machine and gpu.mode, which are `unknown`.
- The labels are written by server-side apply with a field manager of their own, all or none: none while another manager
  writes one of them (managedFields; GFD's manager is `nfd-master`, that of kubectl is `kubectl-label`).
Sources: NVIDIA k8s-device-plugin, internal/lm and internal/vgpu; docs/reference/labels.md has each label.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dovetail.agent.config import Config, Shared
from dovetail.agent.machine.host import Gpu, GpuEngines, GpuInstance, Host
from dovetail.agent.machine.pci_device import NVIDIA
from dovetail.agent.machine.sysfs import Sysfs
from dovetail.agent.publish.field_managers import FieldsWritten, writers
from dovetail.core.devices.mig.geometry import resource_of
from dovetail.core.model import GPU
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import Conflict
from dovetail.kube.api.resources import NODES

MANAGER = "dovetail-agent-labels"
TIMESTAMP = "nvidia.com/gfd.timestamp"
_OURS = re.compile(
    r"nvidia\.com/(gfd\.timestamp|cuda\..*|vgpu\..*|mps\.capable|mig\.(capable|strategy)|mig-\d.*"
    r"|gpu\.(machine|count|replicas|sharing-strategy|product|memory|family|compute\..*|mode|clique|multiprocessors"
    r"|slices\..*|engines\..*))"
)
"""Every label that this module can write."""
_MODES = {0x0300: "graphics", 0x0302: "compute"}
"""By PCI class."""
_FAMILIES = {
    (1, 0): "tesla",
    (2, 0): "fermi",
    (3, 0): "kepler",
    (5, 0): "maxwell",
    (6, 0): "pascal",
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 9): "ada-lovelace",
    (9, 0): "hopper",
    (10, 0): "blackwell",
    (12, 0): "blackwell",
    (13, 0): "rubin",
}
"""By the least compute capability of the family."""
_DRIVER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_LONGEST = 63
_CONFIG_BYTES, _HAS_CAPABILITIES, _FIRST_CAPABILITY, _VENDOR_SPECIFIC = 256, (0x06, 0x10), 0x34, 0x09
_VGPU_SIGNATURE, _TEXT_BYTES = b"VF", 10


class Vgpu(Struct, frozen=True):
    """The vGPU driver of the virtual machine's host."""

    version: str
    branch: str


class Pci(Struct, frozen=True):
    """The PCI class of each GPU by its bus id, and the vGPUs; None if these may not be read (more than 64 bytes of a
    device's configuration need CAP_SYS_ADMIN)."""

    classes: Mapping[str, int]
    vgpus: tuple[Vgpu, ...] | None


NOTHING = Pci({}, None)


def labels_of(host: Host, config: Config, pci: Pci = NOTHING, timestamp_s: int | None = None) -> dict[str, str]:
    """All labels of a node with these GPUs; none without a GPU. Without `timestamp_s` there is no timestamp label."""
    if not host.gpus:
        return {}
    found = {
        "nvidia.com/gpu.machine": _value(host.machine.replace(" ", "-")) or "unknown",
        "nvidia.com/mig.capable": _truth(any(gpu.mig_capable for gpu in host.gpus)),
        "nvidia.com/mps.capable": _truth(_mps(config) and all(gpu.mig is None for gpu in host.gpus)),
        "nvidia.com/gpu.mode": _mode(host, pci),
        **_versions(host),
        **_clique(host),
        **_vgpu(pci),
    }
    if timestamp_s is not None:
        found[TIMESTAMP] = str(timestamp_s)
    for whole in sorted(host.gpus, key=lambda gpu: gpu.mig is None):
        found |= _whole(whole, host, config)
    if config.mig_strategy != "none":
        found["nvidia.com/mig.strategy"] = config.mig_strategy
        found |= _single(host, config) if config.mig_strategy == "single" else _mixed(host, config)
    return found


def pci_of(sysfs: Sysfs) -> Pci:
    """The PCI classes and vGPUs. Raises SysfsError if the PCI bus cannot be read."""
    own = [device for device in sysfs.pci.values() if device.vendor == NVIDIA]
    classes = {device.bus_id: device.kind for device in own if device.is_gpu}
    found = []
    for device in own:
        try:
            data = (sysfs.root / "bus/pci/devices" / device.bus_id / "config").read_bytes()
        except OSError:
            data = b""
        if len(data) < _CONFIG_BYTES:
            return Pci(classes, None)
        found.append(vgpu_of(data))
    return Pci(classes, tuple(vgpu for vgpu in found if vgpu is not None))


def vgpu_of(config: bytes) -> Vgpu | None:
    """The vGPU of a PCI configuration (256 bytes or more); None if the device is not a vGPU.

    Source: k8s-device-plugin internal/vgpu: a vendor specific capability with the signature VF has records (type,
    length, data); the record of type 0 has two texts of ten bytes."""
    capability = _capability(config)
    if capability[3:5] != _VGPU_SIGNATURE:
        return None
    at = 5
    while at + 1 < len(capability) and capability[at] != 0 and capability[at + 1] > 0:
        at += capability[at + 1]
    texts = capability[at + 2 : at + 2 + 2 * _TEXT_BYTES]
    if capability[at : at + 1] != b"\0" or len(texts) < 2 * _TEXT_BYTES:
        return None
    version, branch = texts[:_TEXT_BYTES], texts[_TEXT_BYTES:]
    return Vgpu(*(part.strip(b"\0").decode("ascii", "replace") for part in (version, branch)))


def _capability(config: bytes) -> bytes:
    """The vendor specific capability; empty without one."""
    byte, bit = _HAS_CAPABILITIES
    at, seen = config[_FIRST_CAPABILITY] if config[byte] & bit else 0, set[int]()
    while at and at not in seen and at + 2 < len(config) and config[at] != 0xFF:
        if config[at] == _VENDOR_SPECIFIC:
            return config[at : at + config[at + 2]]
        seen.add(at)
        at = config[at + 1]
    return b""


def _versions(host: Host) -> dict[str, str]:
    found: dict[str, str] = {}
    driver = _DRIVER.fullmatch(host.driver)
    if driver is not None:
        major, minor, revision = driver.groups(default="")
        new, old = "nvidia.com/cuda.driver-version", "nvidia.com/cuda.driver"
        found |= {f"{new}.full": host.driver, f"{new}.major": major, f"{new}.minor": minor, f"{new}.revision": revision}
        found |= {f"{old}.major": major, f"{old}.minor": minor, f"{old}.rev": revision}
    if host.cuda is not None:
        major, minor = map(str, host.cuda)
        new, old = "nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime"
        found |= {f"{new}.full": f"{major}.{minor}", f"{new}.major": major, f"{new}.minor": minor}
        found |= {f"{old}.major": major, f"{old}.minor": minor}
    return found


def _mode(host: Host, pci: Pci) -> str:
    kinds = {pci.classes.get(gpu.pci_bus_id) for gpu in host.gpus}
    kind = kinds.pop() if len(kinds) == 1 else None
    return _MODES.get(kind, "unknown") if kind is not None else "unknown"


def _clique(host: Host) -> dict[str, str]:
    domains = {gpu.fabric.domain for gpu in host.gpus if gpu.fabric is not None} - {""}
    return {"nvidia.com/gpu.clique": domains.pop()} if len(domains) == 1 else {}


def _vgpu(pci: Pci) -> dict[str, str]:
    if pci.vgpus is None:
        return {}
    found = {"nvidia.com/vgpu.present": _truth(bool(pci.vgpus))}
    for vgpu in pci.vgpus:
        found["nvidia.com/vgpu.host-driver-version"] = _value(vgpu.version)
        found["nvidia.com/vgpu.host-driver-branch"] = _value(vgpu.branch)
    return found


def _whole(gpu: Gpu, host: Host, config: Config) -> dict[str, str]:
    # GPUs in MIG mode are not shared as a whole.
    shared = config.sharing.get(GPU) if gpu.mig is None else None
    count = sum(other.product == gpu.product for other in host.gpus)
    replicas = _replicas(shared) if gpu.mig is None else 0
    found = _base(GPU, (gpu.product,), count, replicas, shared)
    if gpu.memory_mib:
        found[f"{GPU}.memory"] = str(gpu.memory_mib)
    if gpu.compute is not None:
        major, minor = gpu.compute
        found |= {
            f"{GPU}.family": _family(gpu.compute),
            f"{GPU}.compute.major": str(major),
            f"{GPU}.compute.minor": str(minor),
        }
    return found


def _family(compute: tuple[int, int]) -> str:
    known = [least for least in _FAMILIES if least[0] == compute[0] and least <= compute]
    return _FAMILIES[max(known)] if known else "undefined"


def _single(host: Host, config: Config) -> dict[str, str]:
    enabled = [gpu for gpu in host.gpus if gpu.mig is not None]
    if not enabled:
        return {}
    parts = _instances(enabled)
    profiles = {instance.profile for _, instance in parts}
    if len(enabled) < len(host.gpus) or not all(gpu.mig for gpu in enabled) or len(profiles) != 1:
        return {
            f"{GPU}.product": _product((enabled[0].product, "MIG", "INVALID"), None),
            f"{GPU}.count": "0",
            f"{GPU}.replicas": "0",
            f"{GPU}.memory": "0",
            f"{GPU}.sharing-strategy": "",
        }
    return _part(GPU, parts, config)


def _mixed(host: Host, config: Config) -> dict[str, str]:
    by_profile: dict[str, list[tuple[Gpu, GpuInstance]]] = {}
    for gpu, instance in _instances(host.gpus):
        by_profile.setdefault(instance.profile, []).append((gpu, instance))
    found: dict[str, str] = {}
    for profile, parts in by_profile.items():
        found |= _part(resource_of(profile), parts, config)
    return found


def _instances(gpus: Iterable[Gpu]) -> list[tuple[Gpu, GpuInstance]]:
    return [(gpu, instance) for gpu in gpus for instance in gpu.mig or ()]


def _part(resource: str, parts: Sequence[tuple[Gpu, GpuInstance]], config: Config) -> dict[str, str]:
    """The labels of the instances of one profile; the attributes are those of the first."""
    gpu, instance = parts[0]
    shared = config.sharing.get(resource)
    profile = instance.profile.replace("+", ".")
    slices = instance.profile.partition("g")[0]
    attributes = {"memory": instance.memory_mib, "slices.gi": slices, "slices.ci": slices, **_engines(instance.engines)}
    return {
        **_base(resource, (gpu.product, "MIG", profile), len(parts), _replicas(shared), shared),
        **{f"{resource}.{name}": str(value) for name, value in attributes.items()},
    }


def _engines(engines: GpuEngines) -> dict[str, int]:
    return {
        "multiprocessors": engines.multiprocessors,
        "engines.copy": engines.copy_engines,
        "engines.decoder": engines.decoders,
        "engines.encoder": engines.encoders,
        "engines.jpeg": engines.jpeg_engines,
        "engines.ofa": engines.ofa_engines,
    }


def _base(resource: str, parts: tuple[str, ...], count: int, replicas: int, shared: Shared | None) -> dict[str, str]:
    sharing = shared.strategy if shared is not None and replicas > 1 else "none"
    # The suffix marks replicas whose resource has the name of whole devices.
    suffix = shared if replicas > 1 and shared is not None and shared.renamed == resource else None
    return {
        f"{resource}.product": _product(parts, suffix),
        f"{resource}.count": str(count),
        f"{resource}.replicas": str(replicas),
        f"{resource}.sharing-strategy": sharing,
    }


def _product(parts: tuple[str, ...], shared: Shared | None) -> str:
    words = [*parts, "SHARED"] if shared is not None else parts
    return _value("-".join("-".join(_kept(word).split()) for word in words if word))


def _replicas(shared: Shared | None) -> int:
    return shared.replicas if shared is not None else 1


def _mps(config: Config) -> bool:
    return any(shared.strategy == "mps" for shared in config.sharing.values())


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _kept(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9\-_. ]", "", text)


def _value(text: str) -> str:
    """Cut to a label value."""
    return _kept(text).strip("-_. ")[:_LONGEST].rstrip("-_. ")


def labels_body(node: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """The body to apply so that these are all labels of a node that a manager owns."""
    metadata = {"name": node, "labels": labels} if labels else {"name": node}
    return {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": metadata}


class NodeLabels:
    """The labels on this node's Node object. `clock` returns Unix time in seconds."""

    def __init__(self, client: Client, node: str, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._path = NODES.path(name=node)
        self._node = node
        self._clock = clock

    async def write(self, labels: Mapping[str, str], timestamp: bool = True) -> str:
        """Set our labels to these, or remove them while another manager writes such labels; returns that reason, or "".
        Without labels ours are removed. `timestamp` adds the time of the change. Raises ApiError."""
        node = await self._client.request("GET", self._path, decode=FieldsWritten)
        own = writers(node, "metadata", "labels")
        others = {
            manager: [key for key in keys if _OURS.fullmatch(key)]
            for manager, keys in own.items()
            if manager != MANAGER
        }
        why = "; ".join(f"{manager} writes {_some(keys)}" for manager, keys in sorted(others.items()) if keys)
        wanted = {} if why else dict(labels)
        ours = {key: node.metadata.labels.get(key, "") for key in own.get(MANAGER, ()) if key != TIMESTAMP}
        if wanted == ours:
            return why
        if timestamp and wanted:
            wanted[TIMESTAMP] = str(int(self._clock()))
        body = labels_body(self._node, wanted)
        try:
            await self._client.apply(self._path, body, field_manager=MANAGER)
        except Conflict as error:
            return f"another manager has begun to write them: {error.message}"
        return why


def _some(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"{keys[0]}{more}"
