# SPDX-License-Identifier: Apache-2.0
"""Recordings of the scheduler: the events and decisions of the core, step by step, and their replay."""
