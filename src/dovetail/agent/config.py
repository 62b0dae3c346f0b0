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

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.agent import config_values as values
from dovetail.agent.config_values import CDI_CRI, ENVVAR, VOLUME_MOUNTS, RdmaResource
from dovetail.core.devices.mig import names
from dovetail.core.model import GPU
from dovetail.kube.manifests.documents import Document, ManifestError, read_documents

_LONGEST_RESOURCE = 63
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


class _Field(NamedTuple):
    """`parse` checks the value, which is stored in `attribute` of Config. A field without an attribute has no effect;
    it adds a note with the reason `why`, unless its value is in `quiet`."""

    parse: Callable[[Any], Any]
    attribute: str = ""
    why: str = ""
    quiet: tuple[Any, ...] = ()


_LABELS = "the agent writes the labels at every change"
_KEEP_NAMES = "NVIDIA's plugin ignores it, too: resources keep their names"
_SHARING = ("timeSlicing", "mps")
_FIELDS: dict[str, _Field] = {
    "version": _Field(values.one_of("v1"), why="", quiet=("v1",)),
    "flags.migStrategy": _Field(values.one_of("none", "single", "mixed"), "mig_strategy"),
    "flags.failOnInitError": _Field(
        values.truth,
        why="without a driver the agent runs, offers nothing, and reports why in the GPUNode",
        quiet=(False,),
    ),
    "flags.mpsRoot": _Field(values.path, "mps_root"),
    "flags.nvidiaDriverRoot": _Field(values.path, "driver_root"),
    "flags.nvidiaDevRoot": _Field(values.path, "dev_root"),
    "flags.gdrcopyEnabled": _Field(values.truth, "gdrcopy"),
    "flags.gdsEnabled": _Field(values.truth, "gds"),
    "flags.mofedEnabled": _Field(values.truth, "mofed"),
    "flags.useNodeFeatureAPI": _Field(values.truth, why=_LABELS, quiet=(False,)),
    "flags.deviceDiscoveryStrategy": _Field(values.one_of("auto", "nvml"), why="", quiet=("auto", "nvml")),
    "flags.plugin.passDeviceSpecs": _Field(values.truth, "pass_device_specs"),
    "flags.plugin.deviceListStrategy": _Field(values.strategies, "device_list_strategies"),
    "flags.plugin.deviceIDStrategy": _Field(values.one_of("uuid", "index"), "device_id_strategy"),
    "flags.plugin.cdiAnnotationPrefix": _Field(values.text, "cdi_annotation_prefix"),
    "flags.plugin.nvidiaCTKPath": _Field(values.anything, why="the agent writes CDI specifications itself"),
    "flags.plugin.containerDriverRoot": _Field(values.anything, why="it is an option of `dovetail agent run`"),
    "flags.plugin.sharedDevicesAllocationPolicy": _Field(
        values.one_of("distributed", "packed"), "shared_devices_allocation_policy"
    ),
    "flags.gfd.oneshot": _Field(values.anything, why=_LABELS, quiet=(False,)),
    "flags.gfd.noTimestamp": _Field(values.anything, why=_LABELS),
    "flags.gfd.sleepInterval": _Field(values.anything, why=_LABELS),
    "flags.gfd.outputFile": _Field(values.anything, why=_LABELS),
    "flags.gfd.machineTypeFile": _Field(values.anything, why=_LABELS),
    "resources.gpus": _Field(values.anything, why=_KEEP_NAMES, quiet=([],)),
    "resources.mig": _Field(values.anything, why=_KEEP_NAMES, quiet=([],)),
    **{
        f"sharing.{way}.{name}": _Field(parse)
        for way in _SHARING
        for name, parse in (
            ("renameByDefault", values.truth),
            ("failRequestsGreaterThanOne", values.truth),
            ("resources", values.resources),
        )
    },
    "imex.channelIDs": _Field(values.channels, "imex_channels"),
    "imex.required": _Field(values.truth, "imex_required"),
    "rdma.periodicUpdateInterval": _Field(
        values.interval, why="the agent looks for changes at least every five minutes", quiet=(60,)
    ),
    "rdma.configList": _Field(values.rdma, "rdma"),
    "nccl.conf": _Field(values.truth, "nccl_conf"),
    "network.environment": _Field(values.truth, "network_environment"),
    "network.hostInterface": _Field(values.interface_name, "host_interface"),
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
                self._problem(path, f"is not a known field{values.nearest(str(key), siblings)}")

    def _read(self, path: str, value: Any) -> None:
        known = _FIELDS[path]
        try:
            self._found[path] = known.parse(value)
        except values.BadSetting as bad:
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
