# SPDX-License-Identifier: Apache-2.0
"""The doctor: what is wrong with the GPUs of a cluster."""
