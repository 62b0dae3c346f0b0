# SPDX-License-Identifier: Apache-2.0
"""The kubelet of this node: its configuration, its pods, and the devices that it allocated to them."""
