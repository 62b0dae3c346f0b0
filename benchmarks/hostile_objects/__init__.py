# SPDX-License-Identifier: Apache-2.0
"""Cost of objects of a tenant that are as large and expensive as an API server accepts."""
