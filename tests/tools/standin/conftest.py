# SPDX-License-Identifier: Apache-2.0
"""A machine with GPUs for the tests of the stand-in."""

from tools.standin.fixture import standin

__all__ = ["standin"]
