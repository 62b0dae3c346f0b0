# SPDX-License-Identifier: Apache-2.0
"""Recordings of the scheduler: what the core was told and what it decided, step by step, and their replay."""
