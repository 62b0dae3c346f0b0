# SPDX-License-Identifier: Apache-2.0
"""Queues: their tree, quota, fair share, usage over time, and order."""
