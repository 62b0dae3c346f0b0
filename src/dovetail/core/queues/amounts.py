# SPDX-License-Identifier: Apache-2.0
"""Amounts by resource class (`core.queues.types`), sorted by its name."""

from __future__ import annotations

Amounts = tuple[tuple[str, int], ...]
