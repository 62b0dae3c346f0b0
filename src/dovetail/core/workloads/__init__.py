# SPDX-License-Identifier: Apache-2.0
"""Workloads: which pods and gangs there are, and which of them start together."""
