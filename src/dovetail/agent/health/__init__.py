# SPDX-License-Identifier: Apache-2.0
"""GPU health: NVML events, XID errors, and the list of unhealthy GPUs."""
