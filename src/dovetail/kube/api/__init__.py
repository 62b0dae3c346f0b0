# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API server: how it is reached, listed and watched, and what can go wrong."""
