# SPDX-License-Identifier: Apache-2.0
"""CUDA MPS: the shares, the keeper with its control daemons, and the edits for containers that share."""
