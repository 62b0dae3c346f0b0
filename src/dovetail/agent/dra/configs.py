# SPDX-License-Identifier: Apache-2.0
"""The sharing of a claim's devices by its containers: the opaque parameters GpuConfig and MigDeviceConfig.

Rules
- Of the configurations for a request the last one counts, so a claim's own overrides that of its class.
- Time slicing is the default of GPUs. An interval other than Default is set on the GPU, and put back when the claim has
  ended. MIG instances have no interval.
- MPS for claims is refused: no control daemon runs for a claim. Unknown fields and values are refused by name.
Source: resource.nvidia.com/v1beta1 of kubernetes-sigs/dra-driver-nvidia-gpu v0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.objects.base import Wire
from dovetail.kube.objects.claims import AllocatedDevices, AllocationResult, ResourceClaim, ResourceClaimStatus
from dovetail.kube.objects.claims import OpaqueConfiguration as Opaque
from dovetail.kube.translate.problems import nearest

API_VERSION = "resource.nvidia.com/v1beta1"
INTERVALS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
"""nvidia-smi's numbers."""
_KINDS = {"GpuConfig": "gpu", "MigDeviceConfig": "mig"}


class ClaimError(Exception):
    """A claim cannot be prepared; the message names the field or device and the remedy."""


class Configuration(Wire, frozen=True):
    """An entry of `status.allocation.devices.config`, for all requests if `requests` is empty."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: Opaque | None = None


class ConfiguredDevices(AllocatedDevices, frozen=True):
    config: tuple[Configuration, ...] = ()


class Allocated(AllocationResult, frozen=True):
    devices: ConfiguredDevices = ConfiguredDevices()


class ConfigStatus(ResourceClaimStatus, frozen=True):
    allocation: Allocated | None = None


class ConfiguredClaim(ResourceClaim, frozen=True):
    """A ResourceClaim with its configurations."""

    status: ConfigStatus = ConfigStatus()


class _Interval(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    interval: str = "Default"


class _Sharing(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    strategy: str = "TimeSlicing"
    time_slicing_config: _Interval | None = None
    mps_config: Any = None


class _Parameters(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: str = ""
    kind: str = ""
    sharing: _Sharing | None = None


def interval(driver: str, kind: str, request: str, configs: Sequence[Configuration]) -> int:
    """The time slice of the device of a request, with nvidia-smi's numbers. `kind` is gpu or mig. Raises ClaimError."""
    for number, config in reversed(list(enumerate(configs))):
        if config.opaque is None or config.opaque.driver != driver:
            continue
        # A request includes its alternatives, which are named request/alternative.
        named = request in config.requests or request.partition("/")[0] in config.requests
        if config.requests and not named:
            continue
        at = f"status.allocation.devices.config[{number}].opaque.parameters"
        parameters = _parameters(config.opaque.parameters, at)
        if _KINDS[parameters.kind] == kind:
            return _interval(parameters.sharing or _Sharing(), kind, f"{at}.sharing")
        if named:
            raise ClaimError(
                f"{at}.kind: {parameters.kind} is not for the request {request}, which has a {kind} device"
            )
    return 0


def _parameters(found: Any, at: str) -> _Parameters:
    try:
        # The parameters of a long claim are not decoded yet.
        written = isinstance(found, msgspec.Raw)
        parameters = decode_json(found, _Parameters) if written else msgspec.convert(found, _Parameters)
    except (JsonError, msgspec.ValidationError) as error:
        raise ClaimError(f"{at}: {error}") from None
    if parameters.api_version != API_VERSION:
        raise ClaimError(f"{at}.apiVersion: {parameters.api_version!r} is not known; it must be {API_VERSION}")
    if parameters.kind not in _KINDS:
        raise _unknown(f"{at}.kind", parameters.kind, _KINDS)
    return parameters


def _interval(sharing: _Sharing, kind: str, at: str) -> int:
    if sharing.strategy == "MPS" or sharing.mps_config is not None:
        raise ClaimError(
            f"{at}: MPS is not supported for claims; use the strategy TimeSlicing, or MPS replicas of the device plugin"
        )
    if sharing.strategy != "TimeSlicing":
        raise _unknown(f"{at}.strategy", sharing.strategy, ["TimeSlicing"])
    wanted = (sharing.time_slicing_config or _Interval()).interval
    if wanted not in INTERVALS:
        raise _unknown(f"{at}.timeSlicingConfig.interval", wanted, INTERVALS)
    if kind == "mig" and INTERVALS[wanted]:
        raise ClaimError(f"{at}.timeSlicingConfig.interval: {wanted} cannot be set on a MIG instance; leave it out")
    return INTERVALS[wanted]


def _unknown(at: str, value: str, known: Any) -> ClaimError:
    return ClaimError(f"{at}: {value!r} is not known; nearest valid value: {nearest(value, known)}")
