# SPDX-License-Identifier: Apache-2.0
"""What the agent knows of GPUs beyond their readings: their health, and how many there should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dovetail.agent.exporter.expected import ExpectedGpus
from dovetail.agent.exporter.reading import Sample
from dovetail.agent.health.states import DeviceHealth, DeviceState
from dovetail.agent.machine.discovery import UNLISTED_GPU
from dovetail.agent.machine.host import Host


def health_samples(host: Host, devices: Mapping[str, DeviceHealth], expected: ExpectedGpus) -> Iterator[Sample]:
    """The samples of GPUs and MIG instances with this health, by uuid; that of the expected GPUs comes last."""
    for uuid, health in devices.items():
        yield Sample("dovetail_gpu_healthy", int(not health.closed), uuid)
        for state in DeviceState:
            yield Sample("dovetail_gpu_health_state", int(state is health.state), uuid, (("state", state),))
    for gpu in host.gpus:
        health = devices[gpu.uuid]
        status = 20 if health.closed else 10 if health.state is DeviceState.DEGRADED else 0
        yield Sample("DCGM_EXP_GPU_HEALTH_STATUS", status, gpu.uuid)
    seen = len(host.gpus) + sum(UNLISTED_GPU in one.why for one in host.unread)
    yield Sample("dovetail_gpu_expected", expected.count(seen))
