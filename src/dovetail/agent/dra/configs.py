# SPDX-License-Identifier: Apache-2.0
"""How the containers of a claim share its devices: the opaque parameters GpuConfig and MigDeviceConfig.

Rules
- Of the configurations for a request the last counts, so that a claim's own comes before that of its class.
- Time slicing is what GPUs do unless told otherwise; another interval than Default is set on the GPU, and put back when
  the claim has ended. MIG instances have no interval of their own.
- MPS by claim is refused: a control daemon for each claim is not run. What is not known is refused, by its field.
Source: resource.nvidia.com/v1beta1 of kubernetes-sigs/dra-driver-nvidia-gpu v0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.kube.objects.base import Wire
from dovetail.kube.objects.claims import AllocatedDevices, AllocationResult, ResourceClaim, ResourceClaimStatus
from dovetail.kube.objects.claims import OpaqueConfiguration as Opaque
from dovetail.kube.translate.problems import nearest

API_VERSION = "resource.nvidia.com/v1beta1"
INTERVALS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
"""As nvidia-smi counts them."""
_KINDS = {"GpuConfig": "gpu", "MigDeviceConfig": "mig"}


class ClaimError(Exception):
    """A claim cannot be prepared as it stands; the text says what of it, and what to do."""


class Configuration(Wire, frozen=True):
    """An entry of `status.allocation.devices.config`; for all requests where `requests` is empty."""

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
    """The time slice that the device of a request gets, as nvidia-smi counts it. `kind` is gpu or mig. Raises
    ClaimError."""
    for number, config in reversed(list(enumerate(configs))):
        if config.opaque is None or config.opaque.driver != driver:
            continue
        # A request stands for its alternatives, which are called request/alternative.
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
        # Those of a long claim are as they were written.
        written = isinstance(found, msgspec.Raw)
        parameters = msgspec.json.decode(found, type=_Parameters) if written else msgspec.convert(found, _Parameters)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
