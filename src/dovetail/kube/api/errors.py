# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between us and the API server, as one exception tree.

    KubeError
      ConfigError               kubeconfig, service account or credential plugin; names the file and the field
      ApiError                  a request failed; status 0 means that no reply came
        Unauthorized 401, Forbidden 403, NotFound 404, Conflict 409, AlreadyExists 409, Gone 410,
        Invalid 422, TooManyRequests 429
        Unreachable             no reply, and nothing was changed: repeating the call is harmless
        OutcomeUnknown          a write was sent and no reply came: it may or may not have taken effect
        BadReply                success by status, but the body is not what was requested
        TooLarge                the reply is longer than the caller takes: ask for less

Conflict and AlreadyExists share a status; the reason distinguishes them, and neither is a subclass of the other,
because "read again and retry" is right for the first and wrong for the second.
"""

from msgspec import Struct, field

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.texts import MESSAGE_BYTES, clipped


class StatusCause(Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Struct, frozen=True, rename="camel"):
    """`details` of a meta/v1 Status: which object, and why, field by field."""

    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class ApiStatus(Struct, frozen=True):
    """meta/v1 Status: the body of every failure, and the object of an ERROR event in a watch."""

    reason: str = ""
    message: str = ""
    code: int = 0
    details: StatusDetails | None = field(default_factory=StatusDetails)


class KubeError(Exception):
    """Root of this tree."""


class ConfigError(KubeError):
    """The configuration of the cluster cannot be used; the text names the file, the field and the remedy."""


_PASSING = frozenset({0, 401, 408, 409, 429, 500, 502, 503, 504})
_TOO_LARGE = "request is too large"
"""What etcd reports of an object above its limit; the API server answers 500."""


class ApiError(KubeError):
    """A request failed. `path` is "METHOD /path"; `retry_after_s` is the server's Retry-After, if it sent one."""

    hint = ""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        path: str,
        details: StatusDetails | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(status, reason, message, path)
        self.status = status
        self.reason = reason
        self.message = message
        self.path = path
        self.details = details or StatusDetails()
        self.retry_after_s = retry_after_s

    @property
    def passes(self) -> bool:
        """Whether the same request may be taken later. Else the server refuses what is in it: by its schema, its size,
        the rights of the user, a policy or a webhook."""
        return self.status in _PASSING and not (self.status == 500 and _TOO_LARGE in self.message)

    def __str__(self) -> str:
        text = f"{self.path}: {self.status or 'no reply'} {self.reason}: {clipped(self.message, MESSAGE_BYTES)}"
        return f"{text} ({self.hint})" if self.hint else text


class Unauthorized(ApiError):
    hint = "the token or client certificate is missing, wrong or out of date"


class Forbidden(ApiError):
    hint = "grant this verb to the identity in an RBAC role"


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    hint = "the object has changed: read it again and retry"


class AlreadyExists(ApiError):
    pass


class Gone(ApiError):
    hint = "the resource version is too old: list again"


class Invalid(ApiError):
    pass


class TooManyRequests(ApiError):
    pass


class Unreachable(ApiError):
    pass


class OutcomeUnknown(ApiError):
    hint = "read the object to learn whether the write took effect"


class BadReply(ApiError):
    hint = "a proxy may be answering instead of the API server, or our type does not match this version"


class TooLarge(ApiError):
    pass


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}
_LOST_IN_A_GATEWAY = (502, 504)


def no_reply(reason: str, message: str, path: str, *, harmless: bool) -> ApiError:
    """The error for a request without an answer; `harmless` when repeating it cannot do anything twice."""
    return (Unreachable if harmless else OutcomeUnknown)(0, reason, message, path)


def status_error(
    status: ApiStatus, path: str, *, retry_after_s: float | None = None, harmless: bool = True
) -> ApiError:
    """The error for a Status object."""
    kind = AlreadyExists if status.reason == "AlreadyExists" else _BY_STATUS.get(status.code, ApiError)
    if status.code in _LOST_IN_A_GATEWAY and not harmless:
        kind = OutcomeUnknown
    if status.details and status.details.retry_after_seconds:
        retry_after_s = float(status.details.retry_after_seconds)
    return kind(status.code, status.reason or "Unknown", status.message, path, status.details, retry_after_s)


def reply_error(code: int, headers: dict[str, str], body: bytes, path: str, *, harmless: bool) -> ApiError:
    """The error for a reply whose status is not 2xx. The body may be anything: load balancers answer in HTML."""
    try:
        status = decode_json(body, ApiStatus)
    except JsonError:
        status = ApiStatus(message=body[:300].decode(errors="replace").strip() or "no message")
    after = headers.get("retry-after", "")
    status = ApiStatus(status.reason, status.message, code, status.details)
    return status_error(status, path, retry_after_s=float(after) if after.isdecimal() else None, harmless=harmless)
