# SPDX-License-Identifier: Apache-2.0
"""On each GPU node: finds the GPUs, offers them to the kubelet, and gives pods the very ones that were chosen."""
