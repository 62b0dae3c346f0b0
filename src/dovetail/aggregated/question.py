# SPDX-License-Identifier: Apache-2.0
"""A question to an aggregated API, its reply, and how both are refused."""

from __future__ import annotations

from msgspec import Struct


class Question(Struct, frozen=True):
    """A view of `resource`, of the object `name` where it has objects. With a `namespace`, for users that may see that
    one alone. `body` is that of a POST."""

    resource: str
    namespace: str = ""
    name: str = ""
    query: tuple[tuple[str, str], ...] = ()
    body: str = ""


class Reply(Struct, frozen=True):
    """`body` is a ViewDocument with status 200, else a message."""

    status: int
    body: bytes


class BadQuestion(Exception):
    """The status and the message of a question that has no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
