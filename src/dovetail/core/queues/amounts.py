# SPDX-License-Identifier: Apache-2.0
"""Amounts by resource class, sorted by its name: see `core.queues.types`."""

from __future__ import annotations

CPU = "cpu"
MEMORY = "memory"
GPU = "gpu"
GPU_SLICES = "gpu-slices"
GPU_MEMORY = "gpu-memory"
MODEL_PREFIX = "gpu/"
GPU_CLASSES = frozenset({GPU, GPU_SLICES, GPU_MEMORY})
MODEL_LABEL = "nvidia.com/gpu.product"

Amounts = tuple[tuple[str, int], ...]
