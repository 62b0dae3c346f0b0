# SPDX-License-Identifier: Apache-2.0
"""Inside one node: how its GPUs are wired, which of them go to whom, and what the kubelet will say."""
