# SPDX-License-Identifier: Apache-2.0
"""Advice before a job is submitted, and about a cluster that was read: pure functions that read nothing themselves."""
