# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs: events of NVML, XID errors, and which GPUs are sick."""
