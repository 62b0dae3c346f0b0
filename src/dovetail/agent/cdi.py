# SPDX-License-Identifier: Apache-2.0
"""CDI specifications: files by which a container runtime resolves the names of devices.

Rules: a file is written atomically. Files of other programs are never overwritten or removed. The version is the oldest
one that has all used fields, as old runtimes refuse newer versions. Paths are those of the host, where the runtime
reads them.
Source: Container Device Interface specification 1.1.0 (github.com/cncf-tags/container-device-interface).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.agent.checkpoint import replace_file
from dovetail.core.json_text import JsonError, decode_json

VENDOR = "dovetail.dev"
GPU_KIND = f"{VENDOR}/gpu"
CLAIM_KIND = f"{VENDOR}/claim"
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")

_PREFIX = f"{VENDOR}-"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_being_written: set[Path] = set()
"""Files that a thread of this process is writing now."""


class CdiError(Exception):
    """A specification cannot be written, read or removed; the message names it, the reason and the remedy."""


class DeviceNode(Struct, frozen=True):
    """`path` is the path in the container, `host_path` that on the host if it differs. With `major` and `minor` the
    runtime creates a character device, and the node need not exist on the host. `permissions` are letters of rwm."""

    path: str
    host_path: str = ""
    major: int | None = None
    minor: int | None = None
    permissions: str = "rw"


class Mount(Struct, frozen=True):
    host_path: str
    container_path: str
    options: tuple[str, ...] = READ_ONLY


class Hook(Struct, frozen=True):
    """A program that runs on the host at the OCI stage `name` (createContainer). `args` begin with the program's
    name."""

    path: str
    args: tuple[str, ...]
    name: str = "createContainer"
    env: tuple[str, ...] = ()


class Edits(Struct, frozen=True):
    """The changes that a runtime makes to a container. `env` is (name, value)."""

    env: tuple[tuple[str, str], ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def __add__(self, other: Edits) -> Edits:
        """These edits, then those of `other` that are not among them."""
        return Edits(
            tuple(dict.fromkeys((*self.env, *other.env))),
            tuple(dict.fromkeys((*self.device_nodes, *other.device_nodes))),
            tuple(dict.fromkeys((*self.mounts, *other.mounts))),
            tuple(dict.fromkeys((*self.hooks, *other.hooks))),
        )


class CdiFolder:
    """The specifications in `path` (/var/run/cdi) whose file names begin with `dovetail.dev-`. The folder also has
    files of other programs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> frozenset[str]:
        """File names without `.json`. Raises CdiError."""
        return frozenset(name.removesuffix(".json") for name in self._listed() if name.endswith(".json"))

    def clean(self) -> None:
        """Remove unfinished files of killed processes. Raises CdiError."""
        for name in self._listed():
            if name.endswith(".json.new") and self._path / name not in _being_written:
                self._unlink(self._path / name)

    def write(self, name: str, kind: str, devices: Mapping[str, Edits], common: Edits = Edits()) -> None:
        """Write the file `name`.json if it differs from the earlier one. Containers with any of the `devices` get
        `common` too. Raises CdiError; then the earlier file is still there."""
        document = specification(kind, devices, common)
        path = self._owned(name)
        data = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
        new = path.with_name(f"{path.name}.new")
        _being_written.add(new)
        try:
            if path.exists() and path.read_bytes() == data:
                return
            replace_file(path, data)
        except OSError as error:
            hint = "; the folder of CDI specifications must be writable, and the runtime must read the same one"
            raise CdiError(f"cannot write {path}: {error.strerror}{hint}") from error
        finally:
            _being_written.discard(new)

    def remove(self, name: str) -> None:
        """Remove a specification, if it exists. Raises CdiError."""
        self._unlink(self._owned(name))

    def _listed(self) -> list[str]:
        try:
            return [each.name for each in self._path.iterdir() if each.name.startswith(_PREFIX)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CdiError(f"cannot list {self._path}: {error.strerror}") from error

    def _owned(self, name: str) -> Path:
        """The path of a file that is ours or does not exist yet. Raises CdiError."""
        if not name.startswith(_PREFIX) or "/" in name:
            raise CdiError(f"the name {name!r} of a CDI specification must begin with {_PREFIX}")
        path = self._path / f"{name}.json"
        try:
            kind = decode_json(path.read_bytes(), dict[str, Any]).get("kind", "")
        except FileNotFoundError:
            return path
        except OSError as error:
            raise CdiError(f"cannot read {path}: {error.strerror}") from error
        except JsonError:
            kind = ""
        if not str(kind).startswith(f"{VENDOR}/"):
            raise CdiError(f"{path} is not dovetail's: it is of kind {kind!r}; remove it, or move it away")
        return path

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CdiError(f"cannot remove {path}: {error.strerror}") from error


def specification(kind: str, devices: Mapping[str, Edits], common: Edits = Edits()) -> dict[str, Any]:
    """The specification as a document. Raises CdiError for names that the format does not allow, and without
    devices."""
    if not devices:
        raise CdiError(f"a CDI specification of {kind} needs a device")
    for name in devices:
        if not _NAME.fullmatch(name):
            raise CdiError(f"{name!r} cannot be the name of a CDI device: letters, digits and _ - . : are allowed")
    document: dict[str, Any] = {
        "cdiVersion": _version(devices, common),
        "kind": kind,
        "devices": [{"name": name, "containerEdits": _wire(edits)} for name, edits in devices.items()],
    }
    if edits := _wire(common):
        document["containerEdits"] = edits
    return document


def _version(devices: Mapping[str, Edits], common: Edits) -> str:
    """0.5.0 allows other paths on the host, and names that begin with a digit."""
    nodes = [node for edits in (common, *devices.values()) for node in edits.device_nodes]
    newer = any(node.host_path for node in nodes) or any(name[0].isdigit() for name in devices)
    return "0.5.0" if newer else "0.3.0"


def _wire(edits: Edits) -> dict[str, Any]:
    parts: dict[str, list[Any]] = {
        "env": [f"{name}={value}" for name, value in edits.env],
        "deviceNodes": [_node(node) for node in edits.device_nodes],
        "mounts": [
            {"hostPath": each.host_path, "containerPath": each.container_path, "options": list(each.options)}
            for each in edits.mounts
        ],
        "hooks": [
            {"hookName": each.name, "path": each.path, "args": list(each.args)}
            | ({"env": list(each.env)} if each.env else {})
            for each in edits.hooks
        ],
    }
    return {name: found for name, found in parts.items() if found}


def _node(node: DeviceNode) -> dict[str, Any]:
    wired: dict[str, Any] = {"path": node.path}
    if node.host_path and node.host_path != node.path:
        wired["hostPath"] = node.host_path
    if node.major is not None and node.minor is not None:
        wired |= {"type": "c", "major": node.major, "minor": node.minor}
    return wired | {"permissions": node.permissions}
