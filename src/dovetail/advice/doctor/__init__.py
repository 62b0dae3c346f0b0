# SPDX-License-Identifier: Apache-2.0
"""The doctor: checks for problems with the GPUs of a cluster."""
