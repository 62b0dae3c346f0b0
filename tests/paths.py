# SPDX-License-Identifier: Apache-2.0
"""Where files are that tests read: a test that is moved to another folder finds them still."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The repository."""

WIRINGS = ROOT / "tests/topology/samples"
"""How the GPUs of machines that exist are wired: outputs of nvidia-smi, and NCCL's files."""
