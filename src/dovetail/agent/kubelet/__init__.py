# SPDX-License-Identifier: Apache-2.0
"""What the kubelet of this node has, does and has given to pods."""
