# SPDX-License-Identifier: Apache-2.0
"""The GPUs that this process sees, as in a container: what a validation compares with what was chosen for its pod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.agent.machine.nvml import NOT_FOUND, NOT_SUPPORTED, Nvml, NvmlError

_ABSENT = (NOT_SUPPORTED, NOT_FOUND)


def visible_devices(nvml: Nvml) -> tuple[str, ...]:
    """The uuids of the GPUs, and of a GPU with MIG instances those of the instances instead. Raises NvmlError."""
    found: list[str] = []
    for index in range(nvml.call("nvmlDeviceGetCount")):
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        found += list(_instances(nvml, handle)) or [str(nvml.call("nvmlDeviceGetUUID", handle))]
    return tuple(found)


def _instances(nvml: Nvml, handle: Any) -> Iterator[str]:
    try:
        most = nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle)
    except NvmlError as error:
        if error.code not in _ABSENT:
            raise
        return
    for number in range(most):
        try:
            instance = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        except NvmlError as error:
            # A number without an instance, or one that this container may not see.
            if error.code not in _ABSENT:
                raise
            continue
        yield str(nvml.call("nvmlDeviceGetUUID", instance))
