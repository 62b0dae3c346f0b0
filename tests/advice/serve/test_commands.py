# SPDX-License-Identifier: Apache-2.0
"""Which engine converts which checkpoint."""

from __future__ import annotations

import pytest

from dovetail.advice.serve.commands import needs_checkpoint
from dovetail.advice.serve.engines import BY_NAME


@pytest.mark.parametrize(
    ("engine", "stored", "weights", "needed"),
    [
        ("vllm", "bf16", "bf16", False),
        ("vllm", "bf16", "fp16", False),
        ("vllm", "bf16", "fp8", False),
        ("llm-d", "bf16", "nf4", False),
        ("vllm", "bf16", "int4", True),
        ("vllm", "fp8", "fp8", False),
        ("vllm", "fp8", "bf16", True),
        ("vllm", "mxfp4", "fp8", True),
        ("tensorrt-llm", "bf16", "fp8", True),
        ("tensorrt-llm", "fp8", "fp8", False),
    ],
)
def test_formats_that_need_another_checkpoint(engine: str, stored: str, weights: str, needed: bool) -> None:
    assert needs_checkpoint(BY_NAME[engine], stored, weights) is needed
