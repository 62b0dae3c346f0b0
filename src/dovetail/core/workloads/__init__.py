# SPDX-License-Identifier: Apache-2.0
"""Workloads: the pods and gangs that there are, which of them start together, and the life of a gang."""
