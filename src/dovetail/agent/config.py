# SPDX-License-Identifier: Apache-2.0
"""The configuration of the device plugin: a YAML file in the format of NVIDIA's device plugin, version v1.

Rules
- A field that is unknown, of the wrong type, or not supported is a problem with file, line, path and the nearest valid
  name; all problems are reported at once. A known field without effect here is a note. No field is ignored silently.
- Without a file, and for absent fields, the defaults are NVIDIA's, with one exception: devices are passed by CDI alone
  (`cdi-cri`), so that an image cannot request a GPU by itself.
- A file without a version has version v1. One replica of a device is the device itself.
- Replicas are offered as `<resource>.shared` if `renameByDefault` is true, else under the resource's own name. With MPS
  requests for more than one replica are refused by default. If both ways of sharing are configured, MPS counts.
- The section `rdma` is the file of the RDMA shared device plugin: a NIC matches if it matches each selector, and a
  selector if it matches one of its values. `devices` is the old form of `selectors.ifNames`.
Sources: NVIDIA k8s-device-plugin, api/config/v1; Mellanox k8s-rdma-shared-dev-plugin, pkg/types and pkg/resources.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.devices.mig import names
from dovetail.core.model import GPU
from dovetail.kube.manifests.documents import Document, ManifestError, read_documents

ENVVAR, VOLUME_MOUNTS, CDI_ANNOTATIONS, CDI_CRI = "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"
DEVICE_LIST_STRATEGIES = (ENVVAR, VOLUME_MOUNTS, CDI_ANNOTATIONS, CDI_CRI)
_PREFIX = "nvidia.com/"
_LONGEST_RESOURCE = 63
_MOST_REPLICAS = 1000

_MOST_HCAS = 10_000
_INTERFACE = re.compile(r"[^\s/:,]{1,15}")
_RDMA_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9_]{0,61}[a-zA-Z0-9])?")
_RDMA_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")

Strategy = Literal["time-slicing", "mps"]


class AgentConfigError(Exception):
    """The file cannot be used; the message has a line for each problem."""


class Shared(Struct, frozen=True):
    """Each device of a resource is offered `replicas` times, under the name `renamed`. With
    `fail_requests_greater_than_one` a container that requests more than one replica is refused."""

    strategy: Strategy
    replicas: int
    fail_requests_greater_than_one: bool
    renamed: str


class RdmaResource(Struct, frozen=True):
    """The resource `name` (`rdma/hca_a`) is offered `most` times. `selectors` has the allowed values by selector."""

    name: str
    most: int
    selectors: Mapping[str, tuple[str, ...]]


class Config(Struct, frozen=True):
    """`sharing` is by the resource's name without sharing. Roots and paths are None if the file does not set them.
    Every container with a GPU gets the `imex_channels` that the node has; with `imex_required` nothing is offered if
    one is missing. With `nccl_conf` they get a file that names their NICs, with `network_environment` variables for it;
    `host_interface` is what pods on the network of the node use, None if it is to be found. `notes` are
    messages for fields without effect here."""

    mig_strategy: Literal["none", "single", "mixed"] = "none"
    device_list_strategies: tuple[str, ...] = (CDI_CRI,)
    device_id_strategy: Literal["uuid", "index"] = "uuid"
    pass_device_specs: bool = False
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    driver_root: Path | None = None
    dev_root: Path | None = None
    mps_root: Path | None = None
    sharing: Mapping[str, Shared] = field(default_factory=dict)
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    rdma: tuple[RdmaResource, ...] = ()
    nccl_conf: bool = False
    network_environment: bool = False
    host_interface: str | None = None
    notes: tuple[str, ...] = ()


class _Bad(ValueError):
    """The value breaks `rule`; `at` is the place below the field, such as `[0].name`."""

    def __init__(self, rule: str, at: str = "") -> None:
        super().__init__(rule)
        self.rule, self.at = rule, at


class _Field(NamedTuple):
    """`parse` checks the value, which is stored in `attribute` of Config. A field without an attribute has no effect;
    it adds a note with the reason `why`, unless its value is in `quiet`."""

    parse: Callable[[Any], Any]
    attribute: str = ""
    why: str = ""
    quiet: tuple[Any, ...] = ()


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise _Bad(f"must be one of {', '.join(allowed)}{_nearest(value, allowed)}")
        return value

    return parse


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Bad("must be true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _Bad("must be a non-empty string")
    return value


def _interface_name(value: Any) -> str:
    if not isinstance(value, str) or not _INTERFACE.fullmatch(value):
        raise _Bad("must be the name of a network interface, of 1 to 15 characters without `/`, `:`, `,` and spaces")
    return value


def _path(value: Any) -> Path:
    path = Path(_text(value))
    if not path.is_absolute():
        raise _Bad(f"must be an absolute path; nearest valid value: {Path('/') / path}")
    return path


def _strategies(value: Any) -> tuple[str, ...]:
    parse, listed = _one_of(*DEVICE_LIST_STRATEGIES), value if isinstance(value, list) else [value]
    found = tuple(dict.fromkeys(parse(one) for one in listed))
    if not found:
        raise _Bad(f"must name at least one of {', '.join(DEVICE_LIST_STRATEGIES)}")
    if ENVVAR in found and VOLUME_MOUNTS in found:
        raise _Bad(f"{ENVVAR} and {VOLUME_MOUNTS} set NVIDIA_VISIBLE_DEVICES to different values: leave one out")
    return found


def _anything(value: Any) -> Any:
    return value


def _channels(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or value not in ([], [0]):
        raise _Bad("must be [] or [0]: one channel for all containers")
    return tuple(value)


class _Resource(NamedTuple):
    name: str
    replicas: int


def _resources(value: Any) -> tuple[_Resource, ...]:
    if not isinstance(value, list):
        raise _Bad("must be a list of {name, replicas}")
    found: dict[str, _Resource] = {}
    for i, entry in enumerate(value):
        at = f"[{i}]"
        _known_keys(entry, at, _RESOURCE_FIELDS, "must have name and replicas")
        name = _shareable(entry.get("name"), at)
        replicas = _whole(entry.get("replicas"), f"{at}.replicas", 1, _MOST_REPLICAS)
        if name in found:
            raise _Bad(f"{name} is shared twice", f"{at}.name")
        found[name] = _Resource(name, replicas)
    return tuple(found.values())


_RESOURCE_FIELDS = ("name", "replicas", "rename", "devices")


def _shareable(value: Any, at: str) -> str:
    name = value if isinstance(value, str) else ""
    name = name if name.startswith(_PREFIX) or not name else _PREFIX + name
    read = names.read(name)
    if name != GPU and (read is None or read.shared):
        near = GPU if difflib.SequenceMatcher(None, name, GPU).ratio() > 0.8 else names.FORM
        raise _Bad(f"must be {GPU} or {names.FORM}; nearest valid value: {near}", f"{at}.name")
    return name


def _interval(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Bad("must be a whole number of seconds from 0")
    return value


def _whole(value: Any, at: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _Bad(f"must be a whole number from {least} to {most}", at)
    return value


def _known_keys(value: Any, at: str, keys: tuple[str, ...], rule: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Bad(rule or f"must have fields of {', '.join(keys)}", at)
    for key in value:
        if key not in keys:
            raise _Bad(f"is not a known field{_nearest(str(key), keys)}", f"{at}.{key}")
    return value


def _texts(value: Any, at: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise _Bad("must be a list of non-empty strings; a PCI id needs quotes", at)
    return tuple(value)


def _rdma(value: Any) -> tuple[RdmaResource, ...]:
    if not isinstance(value, list) or not value:
        raise _Bad(f"must be a list with at least one entry of {', '.join(_RDMA_FIELDS)}")
    found: dict[str, RdmaResource] = {}
    for i, listed in enumerate(value):
        at = f"[{i}]"
        one = _rdma_resource(_known_keys(listed, at, _RDMA_FIELDS), at)
        if one.name in found or one.name == GPU:
            raise _Bad(f"{one.name} is offered already: use another name", f"{at}.resourceName")
        found[one.name] = one
    return tuple(found.values())


def _rdma_resource(entry: dict[str, Any], at: str) -> RdmaResource:
    name, prefix = entry.get("resourceName"), entry.get("resourcePrefix") or "rdma"
    if not isinstance(name, str) or not _RDMA_NAME.fullmatch(name):
        raise _Bad("must be up to 63 letters, digits and _, and begin and end without _", f"{at}.resourceName")
    if not isinstance(prefix, str) or not _RDMA_PREFIX.fullmatch(prefix) or prefix.endswith("kubernetes.io"):
        raise _Bad("must be a domain in lower case, not kubernetes.io", f"{at}.resourcePrefix")
    most = _whole(entry.get("rdmaHcaMax"), f"{at}.rdmaHcaMax", 0, _MOST_HCAS)
    listed = _known_keys(entry.get("selectors") or {}, f"{at}.selectors", RDMA_SELECTORS)
    texts = {key: _texts(values or [], f"{at}.selectors.{key}") for key, values in listed.items()}
    selectors = {key: values for key, values in texts.items() if values}
    devices = _texts(entry.get("devices") or [], f"{at}.devices")
    if bool(selectors) == bool(devices):
        raise _Bad("must have either selectors or devices, with at least one value", at)
    return RdmaResource(f"{prefix}/{name}", most, selectors or {"ifNames": devices})


RDMA_SELECTORS = ("vendors", "deviceIDs", "drivers", "ifNames", "linkTypes")
_RDMA_FIELDS = ("resourceName", "resourcePrefix", "rdmaHcaMax", "selectors", "devices")

_LABELS = "the agent writes the labels at every change"
_SHARING = ("timeSlicing", "mps")
_FIELDS: dict[str, _Field] = {
    "version": _Field(_one_of("v1"), why="", quiet=("v1",)),
    "flags.migStrategy": _Field(_one_of("none", "single", "mixed"), "mig_strategy"),
    "flags.failOnInitError": _Field(
        _truth,
        why="without a driver the agent runs, offers nothing, and reports why in the GPUNode",
        quiet=(False,),
    ),
    "flags.mpsRoot": _Field(_path, "mps_root"),
    "flags.nvidiaDriverRoot": _Field(_path, "driver_root"),
    "flags.nvidiaDevRoot": _Field(_path, "dev_root"),
    "flags.gdrcopyEnabled": _Field(_truth, "gdrcopy"),
    "flags.gdsEnabled": _Field(_truth, "gds"),
    "flags.mofedEnabled": _Field(_truth, "mofed"),
    "flags.useNodeFeatureAPI": _Field(_truth, why=_LABELS, quiet=(False,)),
    "flags.deviceDiscoveryStrategy": _Field(_one_of("auto", "nvml"), why="", quiet=("auto", "nvml")),
    "flags.plugin.passDeviceSpecs": _Field(_truth, "pass_device_specs"),
    "flags.plugin.deviceListStrategy": _Field(_strategies, "device_list_strategies"),
    "flags.plugin.deviceIDStrategy": _Field(_one_of("uuid", "index"), "device_id_strategy"),
    "flags.plugin.cdiAnnotationPrefix": _Field(_text, "cdi_annotation_prefix"),
    "flags.plugin.nvidiaCTKPath": _Field(_anything, why="the agent writes CDI specifications itself"),
    "flags.plugin.containerDriverRoot": _Field(_anything, why="it is an option of `dovetail agent run`"),
    "flags.plugin.sharedDevicesAllocationPolicy": _Field(
        _one_of("distributed", "packed"), "shared_devices_allocation_policy"
    ),
    "flags.gfd.oneshot": _Field(_anything, why=_LABELS, quiet=(False,)),
    "flags.gfd.noTimestamp": _Field(_anything, why=_LABELS),
    "flags.gfd.sleepInterval": _Field(_anything, why=_LABELS),
    "flags.gfd.outputFile": _Field(_anything, why=_LABELS),
    "flags.gfd.machineTypeFile": _Field(_anything, why=_LABELS),
    "resources.gpus": _Field(_anything, why="NVIDIA's plugin ignores it, too: resources keep their names", quiet=([],)),
    "resources.mig": _Field(_anything, why="NVIDIA's plugin ignores it, too: resources keep their names", quiet=([],)),
    **{
        f"sharing.{way}.{name}": _Field(parse)
        for way in _SHARING
        for name, parse in (
            ("renameByDefault", _truth),
            ("failRequestsGreaterThanOne", _truth),
            ("resources", _resources),
        )
    },
    "imex.channelIDs": _Field(_channels, "imex_channels"),
    "imex.required": _Field(_truth, "imex_required"),
    "rdma.periodicUpdateInterval": _Field(
        _interval, why="the agent looks for changes at least every five minutes", quiet=(60,)
    ),
    "rdma.configList": _Field(_rdma, "rdma"),
    "nccl.conf": _Field(_truth, "nccl_conf"),
    "network.environment": _Field(_truth, "network_environment"),
    "network.hostInterface": _Field(_interface_name, "host_interface"),
}


def read(path: Path) -> Config:
    """The configuration in the file. Raises AgentConfigError."""
    try:
        documents = list(read_documents([str(path)]))
    except ManifestError as error:
        raise AgentConfigError(str(error)) from error
    if not documents:
        return Config()
    if len(documents) > 1:
        raise AgentConfigError(f"{path}:{documents[1].line()}: the file must have one document, here is another")
    return _Reading(documents[0]).config()


class _Reading:
    """The reading of one document: its fields, notes and problems."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._found: dict[str, Any] = {}
        self._notes: list[str] = []
        self._problems: list[str] = []

    def config(self) -> Config:
        self._walk("", self._document.value)
        sharing = {} if self._problems else self._sharing()
        known = {_FIELDS[path].attribute: value for path, value in self._found.items() if _FIELDS[path].attribute}
        config = replace(Config(), **known, sharing=sharing)
        self._contradictions(config)
        if self._problems:
            raise AgentConfigError("\n".join(self._problems))
        return replace(config, notes=tuple(self._notes))

    def _walk(self, at: str, value: Any) -> None:
        if not isinstance(value, dict):
            self._problem(at, "must have fields")
            return
        prefix = f"{at}." if at else ""
        siblings = tuple(dict.fromkeys(p[len(prefix) :].partition(".")[0] for p in _FIELDS if p.startswith(prefix)))
        for key, inner in value.items():
            path = f"{prefix}{key}"
            if path in _FIELDS:
                self._read(path, inner)
            elif key in siblings:
                self._walk(path, inner)
            else:
                self._problem(path, f"is not a known field{_nearest(str(key), siblings)}")

    def _read(self, path: str, value: Any) -> None:
        known = _FIELDS[path]
        try:
            self._found[path] = known.parse(value)
        except _Bad as bad:
            self._problem(path + bad.at, bad.rule)
            return
        if known.why and value not in known.quiet:
            self._note(path, f"has no effect: {known.why}")

    def _sharing(self) -> dict[str, Shared]:
        configured = [way for way in _SHARING if self._found.get(f"sharing.{way}.resources")]
        if not configured:
            return {}
        way = configured[-1]
        if len(configured) > 1:
            self._note("sharing.timeSlicing", "has no effect: sharing.mps counts if both are configured")
        flags = {
            name: self._found.get(f"sharing.{way}.{name}") for name in ("renameByDefault", "failRequestsGreaterThanOne")
        }
        one_only = flags["failRequestsGreaterThanOne"]
        if one_only is None:
            one_only = way == "mps"
        for i, entry in enumerate(self._document.value["sharing"][way]["resources"]):
            at = f"sharing.{way}.resources[{i}]"
            if "rename" in entry:
                self._note(f"{at}.rename", "has no effect: only renameByDefault renames")
            if entry.get("devices", "all") != "all":
                self._note(f"{at}.devices", "has no effect: all devices of the resource are shared")
        sharing = {}
        for i, (name, replicas) in enumerate(self._found[f"sharing.{way}.resources"]):
            renamed = name + names.SHARED if flags["renameByDefault"] else name
            if len(renamed) > _LONGEST_RESOURCE:
                rule = f"{renamed} is longer than {_LONGEST_RESOURCE} characters"
                self._problem(f"sharing.{way}.resources[{i}].name", rule)
            if replicas == 1:
                self._unshared(f"sharing.{way}.resources[{i}].replicas", bool(flags["renameByDefault"]))
                continue
            if way == "mps" and name != GPU:
                self._problem(f"sharing.mps.resources[{i}].name", "MPS does not share MIG instances: use timeSlicing")
            sharing[name] = Shared("mps" if way == "mps" else "time-slicing", replicas, one_only, renamed)
        return sharing

    def _unshared(self, path: str, renamed: bool) -> None:
        """One replica of a device is the device."""
        if renamed:
            self._problem(
                path, "one replica is not shared and keeps its name: leave renameByDefault out, or ask for more"
            )
        else:
            self._note(path, "has no effect: one replica is the device itself, unshared")

    def _contradictions(self, config: Config) -> None:
        if {ENVVAR, VOLUME_MOUNTS} & {*config.device_list_strategies}:
            return
        if config.device_id_strategy == "index":
            self._note("flags.plugin.deviceIDStrategy", "has no effect: CDI names are those by uuid")
        needed = f"is for the NVIDIA container runtime: deviceListStrategy must have {ENVVAR} or {VOLUME_MOUNTS}"
        for path, enabled in (
            ("flags.gdrcopyEnabled", config.gdrcopy),
            ("flags.gdsEnabled", config.gds),
            ("flags.mofedEnabled", config.mofed),
        ):
            if enabled:
                self._problem(path, needed)

    def _problem(self, path: str, rule: str) -> None:
        self._problems.append(self._message(path, rule))

    def _note(self, path: str, rule: str) -> None:
        self._notes.append(self._message(path, rule))

    def _message(self, path: str, rule: str) -> str:
        line = self._document.line(path) if path else 1
        place = f"{self._document.file}:{line}" if line else self._document.file
        return f"{place}: {path}: {rule}" if path else f"{place}: {rule}"


def _nearest(value: Any, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(value), list(valid), n=1, cutoff=0)
    return f"; nearest valid value: {near[0]}" if near else ""
