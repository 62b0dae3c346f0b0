# SPDX-License-Identifier: Apache-2.0
"""Selects this node's configuration file, and follows its changes.

Rules
- The configuration is a file, or a folder of files. In a folder the node's label nvidia.com/device-plugin.config names
  the file; without the label it is the file `default`, else the only file.
- A change of the label or of the file applies at once. A file that cannot be used changes nothing, and is reported.
- Paths (mpsRoot, nvidiaDriverRoot, nvidiaDevRoot) are fixed when the agent starts.
Source: NVIDIA k8s-device-plugin, cmd/config-manager (label, fallback strategies `named` and `single`).
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from dovetail.agent.config import AgentConfigError, Config, read
from dovetail.agent.plugin.folder import PluginFolder
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import NODES
from dovetail.kube.objects.base import Node

log = logging.getLogger(__name__)

LABEL = "nvidia.com/device-plugin.config"
DEFAULT = "default"
_AGAIN_S = 2.0
_LOOK_EVERY_S = 60.0
"""A file that is written in place is no event of its folder."""
_SETTLED = {"mps_root": "flags.mpsRoot", "driver_root": "flags.nvidiaDriverRoot", "dev_root": "flags.nvidiaDevRoot"}


def chosen(path: Path, label: str) -> Path:
    """The file for this value of the node's label, "" without the label. Raises AgentConfigError."""
    if not path.is_dir():
        return path
    # A ConfigMap that is mounted has entries of its own that begin with two dots.
    names = sorted(each.name for each in path.iterdir() if each.is_file() and not each.name.startswith(".."))
    if label and label not in names:
        near = difflib.get_close_matches(label, names, n=1, cutoff=0)
        hint = f"; nearest valid value: {near[0]}" if near else ""
        raise AgentConfigError(f"{path}: the node's label {LABEL} names {label}, which is not there{hint}")
    if not label and DEFAULT not in names and len(names) != 1:
        raise AgentConfigError(
            f"{path}: the node has no label {LABEL}, and of {len(names)} files none is called {DEFAULT}: label the node"
        )
    return path / (label or (DEFAULT if DEFAULT in names else names[0]))


class Configuring:
    """Follows the configuration of the node `node_name` in `path`. `fault` is why the newest file is not in effect, ""
    if it is."""

    def __init__(self, client: Client, node_name: str, path: Path) -> None:
        self.fault = ""
        self._client, self._node_name, self._path = client, node_name, path
        params = {"fieldSelector": f"metadata.name={node_name}"}
        self._nodes = Reflector(client, NODES, Node, self._node, params=params)
        self._folder = PluginFolder(path if path.is_dir() else path.parent)
        self._label = ""
        self._now = Config()

    def _node(self, changes: Sequence[Change[Node]]) -> None:
        self._label = changes[-1].object.metadata.labels.get(LABEL, "")
        self._folder.wake()

    async def first(self) -> Config:
        """The configuration at the start of the agent. Raises AgentConfigError."""
        while self._path.is_dir():
            try:
                node = await self._client.request("GET", NODES.path(name=self._node_name), decode=Node)
                self._label = node.metadata.labels.get(LABEL, "")
                break
            except KubeError as error:
                log.warning("which configuration this node has is not known yet: %s", error)
                await asyncio.sleep(_AGAIN_S)
        self._now = read(chosen(self._path, self._label))
        return self._now

    async def run(self, changed: Callable[[Config], None], fault_changed: Callable[[], None]) -> None:
        """Run until cancelled. `changed` is called with every new configuration, `fault_changed` when `fault` has
        changed."""
        self._folder.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._path.is_dir():
                    tasks.create_task(self._nodes.run())
                while True:
                    turn, fault = self._folder.turn, self.fault
                    self._look(changed)
                    if self.fault != fault:
                        fault_changed()
                    await self._folder.changed(turn, _LOOK_EVERY_S)
        finally:
            self._folder.close()

    def _look(self, changed: Callable[[Config], None]) -> None:
        try:
            file = chosen(self._path, self._label)
            found = read(file)
        except AgentConfigError as error:
            self._report(f"the configuration of before stays: {error}")
            return
        settled = {name: getattr(self._now, name) for name in _SETTLED}
        late = [field for name, field in _SETTLED.items() if getattr(found, name) != settled[name]]
        self._report(f"{file}: {', '.join(late)}: counts from the next start of the agent" if late else "")
        found = replace(found, **settled)
        if replace(found, notes=()) != replace(self._now, notes=()):
            for note in found.notes:
                log.warning("%s", note)
            log.warning("%s is the configuration from now on", file)
            changed(found)
        self._now = found

    def _report(self, fault: str) -> None:
        if fault and fault != self.fault:
            log.error("%s", fault)
        self.fault = fault
