# SPDX-License-Identifier: Apache-2.0
"""Advice before a job is submitted: pure functions over tables, which need no cluster."""
