# SPDX-License-Identifier: Apache-2.0
"""Reads the machine from NVML, sysfs and the MIG observer. No read uses cached values of an earlier one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dovetail.agent.machine.discovery import discover
from dovetail.agent.machine.gpus import Observed
from dovetail.agent.machine.host import Host
from dovetail.agent.machine.nvml import Nvml, NvmlError
from dovetail.agent.machine.sysfs import Sysfs
from dovetail.agent.mig.observer import ask


class MachineReader:
    """`observer` is the socket of the process that observes MIG instances, None where there is none."""

    def __init__(self, sysfs_root: Path, proc_root: Path, observer: Path | None) -> None:
        self._last_sysfs = Sysfs(sysfs_root, proc_root)
        self._observer = observer

    def read(self) -> Host:
        """Discover the machine. It blocks."""
        try:
            with Nvml() as nvml:
                return discover(nvml, self.sysfs(), self.observed)
        except NvmlError as error:
            return discover(error, self.sysfs())

    @property
    def observed(self) -> Observed | None:
        return None if self._observer is None else partial(ask, self._observer)

    def sysfs(self) -> Sysfs:
        """A new object for each look: it caches what it has read."""
        self._last_sysfs = self._last_sysfs.renewed()
        return self._last_sysfs
