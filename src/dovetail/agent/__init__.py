# SPDX-License-Identifier: Apache-2.0
"""The agent of a GPU node: discovers the GPUs, offers them to the kubelet, and allocates the chosen ones to pods."""
