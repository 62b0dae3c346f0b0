# SPDX-License-Identifier: Apache-2.0
"""Inference engines that sleep and wake in turns, so that several of a namespace share the memory of GPUs."""
