# SPDX-License-Identifier: Apache-2.0
"""The device plugins of a node: GPUs, replicas and MIG instances offered to the kubelet, one gRPC server per resource.

plugins = DevicePlugins(folder, config, chosen, gpu_edits, mps)
await plugins.update(host, unhealthy)      # whenever the host or the health of a device changes
await plugins.close()
"""

from dovetail.agent.plugin.plugins import DevicePlugins
from dovetail.kube.objects.topology import DeviceDifference

__all__ = ["DeviceDifference", "DevicePlugins"]
