"""Errors in the format of OpenAI: {"error": {"message", "type", "code", "param"}}."""
from typing import Any

from starlette.responses import JSONResponse

TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
         405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 429: "rate_limit_error",
         500: "server_error", 501: "not_supported_error", 503: "unavailable_error"}


class ApiError(Exception):
    """An error that the client receives. `param`: the field of the request. `fields`: further fields of the error."""

    def __init__(self, status: int, message: str, *, kind: str | None = None, param: str | None = None,
                 retry_after: int | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or TYPES[status]
        self.param = param
        self.retry_after = retry_after
        self.fields = fields

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "code": self.status, "param": self.param,
                          **self.fields}}

    def headers(self) -> dict[str, str]:
        # Clients retry after 408, 429 and 5xx. A repeated request would meet the same time limit.
        headers = {"x-should-retry": "false"} if self.status == 408 else {}
        if self.status in (408, 413):  # the rest of the body may never end
            headers["Connection"] = "close"
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers())


def invalid(param: str, problem: str) -> ApiError:
    """A wrong field: invalid("top_p", "is 3; give a number from 0 to 1")."""
    return ApiError(400, f"{param} {problem}", param=param)
