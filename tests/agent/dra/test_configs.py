# SPDX-License-Identifier: Apache-2.0
"""Opaque parameters of claims: what counts for a request, and what is refused, by its field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.agent.dra.configs import ClaimError, Configuration, ConfiguredClaim, interval

DRIVER = "gpu.nvidia.com"
AT = r"status\.allocation\.devices\.config\[0\]\.opaque\.parameters"


def config(sharing: object = None, *requests: str, kind: str = "GpuConfig", driver: str = DRIVER) -> Configuration:
    parameters: dict[str, Any] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    if sharing is not None:
        parameters["sharing"] = sharing
    document = {"source": "FromClaim", "requests": requests, "opaque": {"driver": driver, "parameters": parameters}}
    return msgspec.convert(document, Configuration)


def slices(value: str) -> dict[str, Any]:
    return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": value}}


@pytest.mark.parametrize("value, number", [("Default", 0), ("Short", 1), ("Medium", 2), ("Long", 3)])
def test_intervals_are_those_of_nvidia_smi(value: str, number: int) -> None:
    assert interval(DRIVER, "gpu", "r", [config(slices(value))]) == number


def test_the_default_interval_applies_without_a_configuration() -> None:
    assert interval(DRIVER, "gpu", "r", []) == 0
    assert interval(DRIVER, "gpu", "r", [config()]) == 0
    assert interval(DRIVER, "gpu", "r", [config({"strategy": "TimeSlicing"})]) == 0


def test_the_last_for_the_request_counts() -> None:
    configs = [config(slices("Short")), config(slices("Long"), "r"), config(slices("Medium"), "other")]
    assert interval(DRIVER, "gpu", "r", configs) == 3
    assert interval(DRIVER, "gpu", "other", configs) == 2
    assert interval(DRIVER, "gpu", "third", configs) == 1


def test_a_request_stands_for_its_alternatives() -> None:
    assert interval(DRIVER, "gpu", "r/small", [config(slices("Long"), "r")]) == 3
    assert interval(DRIVER, "gpu", "r/small", [config(slices("Long"), "r/large")]) == 0


def test_those_of_other_drivers_and_other_kinds_are_passed_by() -> None:
    assert interval(DRIVER, "gpu", "r", [config(slices("Long"), driver="x.example.com")]) == 0
    assert interval(DRIVER, "mig", "r", [config(slices("Long"))]) == 0
    with pytest.raises(ClaimError, match=rf"{AT}\.kind: GpuConfig is not for the request r, which has a mig device"):
        interval(DRIVER, "mig", "r", [config(slices("Long"), "r")])


@pytest.mark.parametrize(
    "sharing, message",
    [
        ({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}, r"\.sharing: MPS is not supported"),
        ({"strategy": "TimeSlicing", "mpsConfig": {}}, r"\.sharing: MPS is not supported"),
        ({"strategy": "TimeSlice"}, r"\.sharing\.strategy: 'TimeSlice' .*nearest valid value: TimeSlicing"),
        (slices("Lang"), r"\.sharing\.timeSlicingConfig\.interval: 'Lang' .*nearest valid value: Long"),
        ({"strategies": "MPS"}, r": Object contains unknown field `strategies`"),
        ({"strategy": 1}, r": Expected `str`, got `int`"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_field(sharing: object, message: str) -> None:
    with pytest.raises(ClaimError, match=AT + message):
        interval(DRIVER, "gpu", "r", [config(sharing)])


def test_kinds_and_versions_that_are_not_known_are_refused() -> None:
    with pytest.raises(ClaimError, match=r"\.kind: 'GPUConfig' is not known; nearest valid value: GpuConfig"):
        interval(DRIVER, "gpu", "r", [config(kind="GPUConfig")])
    old = {"opaque": {"driver": DRIVER, "parameters": {"apiVersion": "gpu.nvidia.com/v1alpha1", "kind": "GpuConfig"}}}
    with pytest.raises(ClaimError, match=r"\.apiVersion: .* must be resource.nvidia.com/v1beta1"):
        interval(DRIVER, "gpu", "r", [msgspec.convert(old, Configuration)])
    with pytest.raises(ClaimError, match=r"Expected `object`"):
        interval(DRIVER, "gpu", "r", [msgspec.convert({"opaque": {"driver": DRIVER, "parameters": 3}}, Configuration)])


def test_a_mig_instance_has_no_interval_of_its_own() -> None:
    assert interval(DRIVER, "mig", "r", [config(slices("Default"), kind="MigDeviceConfig")]) == 0
    with pytest.raises(ClaimError, match="Short cannot be set on a MIG instance"):
        interval(DRIVER, "mig", "r", [config(slices("Short"), kind="MigDeviceConfig")])


def test_configurations_are_read_from_a_claim() -> None:
    document = {
        "metadata": {"name": "c", "uid": "u"},
        "status": {
            "allocation": {
                "devices": {
                    "results": [{"request": "r", "driver": DRIVER, "pool": "n", "device": "gpu-0"}],
                    "config": [{"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": {"a": 1}}}],
                }
            }
        },
    }
    claim = msgspec.convert(document, ConfiguredClaim)
    assert claim.status.allocation.devices.config[0].source == "FromClass"
    assert claim.status.allocation.devices.results[0].device == "gpu-0"
