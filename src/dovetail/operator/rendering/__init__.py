# SPDX-License-Identifier: Apache-2.0
"""The objects that a GPUStack means: made from the manifests of `deploy/`, pure."""
