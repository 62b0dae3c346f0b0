# SPDX-License-Identifier: Apache-2.0
"""From JSON texts to typed values: the one place that knows what a decoder can raise."""

from __future__ import annotations

from typing import TypeVar

from msgspec import DecodeError, Raw
from msgspec.json import Decoder, decode

T = TypeVar("T")


class JsonError(ValueError):
    """The text is not JSON, is not UTF-8, or its values are not of the type. The message names the fault, and where it
    is."""


class NestedTooDeeply(JsonError):
    """The text may be JSON, but is nested deeper than the interpreter goes."""


def decode_json(text: bytes | str | Raw, kind: type[T]) -> T:
    """The value of the text, as a `kind`. Raises JsonError."""
    try:
        return decode(text, type=kind)
    except (DecodeError, UnicodeError) as error:
        raise JsonError(str(error)) from error
    except RecursionError as error:
        raise NestedTooDeeply(str(error)) from error


def decode_json_by(decoder: Decoder[T], text: bytes | str | Raw) -> T:
    """The same for texts of one type that come again and again. Raises JsonError."""
    try:
        return decoder.decode(text)
    except (DecodeError, UnicodeError) as error:
        raise JsonError(str(error)) from error
    except RecursionError as error:
        raise NestedTooDeeply(str(error)) from error
