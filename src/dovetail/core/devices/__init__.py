# SPDX-License-Identifier: Apache-2.0
"""The devices of one node: how its GPUs are wired, which of them each pod gets, and how the kubelet will answer."""
