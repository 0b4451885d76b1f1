"""What goes wrong with the Hub, in one sentence each, and what is worth another try."""

import time
from collections.abc import Callable

import httpx
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from libero_pro.record import RecordError

Wait = Callable[[float], None]  # takes seconds
TRIES = 5
LONGEST_WAIT = 300.0  # seconds; a rate limit that lasts longer is told instead
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_RESUME = "nothing local is lost, and the same command goes on from here"


class HubError(RecordError):
    """The Hub cannot be used as asked; the message says why and what to do."""


def patiently[T](work: Callable[[], T], doing: str, wait: Wait = time.sleep) -> T:
    """What `work` returns, tried again where the Hub or the network stumbled; `work` must tolerate being repeated.

    HubError says what stopped `doing` ("pushing X to Y").
    """
    for attempt in range(TRIES):
        try:
            return work()
        except (HfHubHTTPError, httpx.HTTPError, OfflineModeIsEnabled, RuntimeError, ValueError) as error:
            if isinstance(error, RecordError):
                raise
            pause = _pause(_cause(error), attempt)
            if pause is None or pause > LONGEST_WAIT or attempt == TRIES - 1:
                raise in_words(error, doing) from error
        wait(pause)
    raise AssertionError("the last try returns or raises")


def in_words(error: Exception, doing: str) -> HubError:
    """One sentence on a failure of the client."""
    cause = _cause(error)
    if isinstance(cause, OfflineModeIsEnabled):
        return HubError(f"{doing}: HF_HUB_OFFLINE is set; unset it to push, {_RESUME}")
    if isinstance(cause, httpx.HTTPError) and not isinstance(cause, HfHubHTTPError):
        reason = str(cause) or type(cause).__name__
        return HubError(f"{doing}: the connection failed ({reason}); check the network, {_RESUME}")
    said = _said(cause)
    status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else 0
    if "storage limit" in said.lower() or "quota" in said.lower() or status == 402:
        return HubError(
            f"{doing}: the Hub has no room left there ({said}); make room or choose another --repo, {_RESUME}"
        )
    sentences = {
        401: "the Hub does not accept the token; log in with `hf auth login` or set HF_TOKEN",
        403: f"the token has no rights for this ({said}); use one that may write there",
        404: "the repository or revision is gone; check --repo and the token's rights",
        409: f"the Hub found something there already ({said})",
        412: "somebody else changed the repository meanwhile",
        429: "the Hub limits how often it is asked; wait a few minutes",
    }
    if status >= 500:
        return HubError(f"{doing}: the Hub is in trouble (status {status}); try again later, {_RESUME}")
    return HubError(f"{doing}: {sentences.get(status, said)}; {_RESUME}")


def _pause(error: BaseException, attempt: int) -> float | None:
    """Seconds to wait before another try; None: it would end the same way."""
    if isinstance(error, HfHubHTTPError):
        if error.response.status_code not in _AGAIN:
            return None
        asked = error.response.headers.get("retry-after", "")
        return float(asked) if asked.isdigit() else 2.0**attempt
    return 2.0**attempt if isinstance(error, httpx.TransportError) else None


def _cause(error: BaseException) -> BaseException:
    """The client wraps what stopped an upload in a RuntimeError."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, HfHubHTTPError | httpx.HTTPError):
        return error.__cause__
    return error


def _said(error: BaseException) -> str:
    """What the server said, else the client."""
    told = getattr(error, "server_message", None) or str(error)
    return " ".join(str(told).split())[:300]
