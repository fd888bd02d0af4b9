"""Errors in the format of Anthropic: {"type": "error", "error": {"type", "message"}}."""
from typing import Any

from starlette.responses import JSONResponse

from .errors import ApiError

PATH = "/v1/messages"
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 408: "timeout_error",
         413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}


def body(error: ApiError) -> dict[str, Any]:
    kind = TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def response_of(error: ApiError, path: str) -> JSONResponse:
    """The response in the format of the interface to which the path belongs."""
    if path == PATH or path.startswith(PATH + "/"):
        return JSONResponse(body(error), error.status, error.headers())
    return error.response()
