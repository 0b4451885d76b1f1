"""A critic behind a server: any OpenAI-compatible one by its URL, or HF Inference Providers through `huggingface_hub`.

`InferenceClient` finds the provider and gives the schema the form that it wants. Requests to a URL of one's own do not
pass through it: there it sends the saved Hub token to whoever is asked, puts the schema into a form that only TGI
reads, and refuses to work offline. Either way the same transport reads the answer: it follows no redirect, and stops
at a size and at a wall time.
"""

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, override

import httpx
from huggingface_hub import InferenceClient

from lerobot_coda.critic.model_critic import Answer, NoAnswer
from lerobot_coda.critic.prompt import Question
from lerobot_coda.critic.review import CriticUsage
from lerobot_coda.critic.settings import CriticSettings

_LARGEST = 2**20  # bytes of a response that are read
_FINAL = {401: "the key is not accepted", 403: "the key may not use this model", 404: "no such model or path"}
_TOKENS = 10**9  # a token count beyond this is no count


class Endpoint:
    """A chat-completions server as a critic's model. `key` is sent to it and appears nowhere else."""

    def __init__(self, settings: CriticSettings, key: str | None):
        self.name = f"endpoint:{settings.model}"
        self._settings = settings
        self._key = key

    def answer(self, question: Question) -> Answer:
        """The server's text, whatever it says, and the tokens it counted. NoAnswer where it does not say anything."""
        limit = self._settings.timeout_s
        try:
            body = within(limit, lambda: self._post(question, time.monotonic() + limit))
        except NoAnswer as none:
            reason, raw = self._without_key(str(none)), none.raw and self._without_key(none.raw)
            raise NoAnswer(reason, final=none.final, wait_s=none.wait_s, raw=raw) from None
        except (TimeoutError, httpx.TimeoutException):
            raise NoAnswer(f"no complete answer within {limit:g} s (critic.timeout_s)") from None
        except httpx.HTTPError as error:
            raise NoAnswer(self._without_key(f"the server cannot be reached: {error}")) from None
        except Exception as error:  # of the client: an unknown provider, a model that no provider has, a broken URL
            raise NoAnswer(self._without_key(f"{type(error).__name__}: {error}"), final=True) from None
        return self._read(self._without_key(body.decode("utf-8", "replace")))

    def _post(self, question: Question, deadline: float) -> bytes:
        settings = self._settings
        messages = [{"role": "user", "content": _content(question)}]
        limits: dict[str, Any] = {settings.length_field: settings.max_tokens}
        if settings.temperature is not None:
            limits["temperature"] = settings.temperature
        wanted = _response_format(settings, question)
        if settings.url is None:
            client = _Providers(settings, self._key, deadline)
            client.chat_completion(messages, model=settings.model, response_format=wanted, extra_body=limits)
            return client.body
        body = {"model": settings.model, "messages": messages, **limits}
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        url = settings.url.rstrip("/") + "/chat/completions"
        return post(url, body | ({"response_format": wanted} if wanted else {}), headers, deadline)

    def _read(self, body: str) -> Answer:
        try:
            data = json.loads(body)
            choice = data["choices"][0]
            content, refusal = choice["message"].get("content"), choice["message"].get("refusal")
            usage = self._metered(data.get("usage"))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise NoAnswer("the server's response is not a chat completion", raw=body) from None
        if isinstance(content, list):  # some servers answer in parts
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if not isinstance(content, str) or not content:
            raise NoAnswer(f"the server answered nothing ({refusal or 'no content'})", usage=usage, raw=body)
        if choice.get("finish_reason") == "length":
            raise NoAnswer(
                f"cut off at {self._settings.max_tokens} tokens (critic.max_tokens)", usage=usage, raw=content
            )
        return Answer(content, usage)

    def _metered(self, usage: Any) -> CriticUsage:
        told = usage if isinstance(usage, dict) else {}
        prompt, completion = told.get("prompt_tokens"), told.get("completion_tokens")
        if not (_is_count(prompt) and _is_count(completion)):
            return CriticUsage(unmetered=1)
        cost = (prompt * self._settings.input_price + completion * self._settings.output_price) / 1e6
        return CriticUsage(prompt_tokens=prompt, completion_tokens=completion, cost=round(cost, 8))

    def _without_key(self, text: str) -> str:
        """Text of a server, which may send back what it was sent, without the key.

        A key of a few letters ("none", for servers that want any) is no secret, and its letters stand everywhere.
        """
        return text.replace(self._key, "[key]") if self._key and len(self._key) >= 8 else text


class _Providers(InferenceClient):
    """HF Inference Providers: the client's routing over our transport; keeps the body of the response."""

    def __init__(self, settings: CriticSettings, key: str | None, deadline: float):
        super().__init__(provider=settings.provider, api_key=key)  # type: ignore[arg-type]
        self._deadline = deadline
        self.body = b""

    @override
    def _inner_post(self, request_parameters: Any, *, stream: bool = False) -> Any:
        headers = {name: str(value) for name, value in request_parameters.headers.items()}
        self.body = post(request_parameters.url, request_parameters.json, headers, self._deadline)
        return b'{"choices": []}'


def within[Result](seconds: float, work: Callable[[], Result]) -> Result:
    """What `work` returns or raises; TimeoutError after `seconds`.

    It runs in a thread of its own, which is left behind then: a server can keep its reader busy at every point (name
    look-up, handshake, headers), and only some of them have a time limit. A request ends with the next byte it reads.
    """
    returned: list[Result] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            returned.append(work())
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="critic request", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not returned:
        raise TimeoutError
    return returned[0]


def post(url: str, body: Any, headers: Mapping[str, str], deadline: float) -> bytes:
    """The body of the response to a JSON request. httpx.HTTPError where there is none by the deadline (monotonic
    seconds), NoAnswer beyond `_LARGEST` bytes and for every status but 200."""
    answer = bytearray()
    with (
        httpx.Client(timeout=max(0.0, deadline - time.monotonic()), follow_redirects=False) as client,
        client.stream("POST", url, json=body, headers=dict(headers)) as response,
    ):
        for chunk in response.iter_bytes():
            answer += chunk
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("")
            if len(answer) > _LARGEST:
                text = answer[:_LARGEST].decode("utf-8", "replace")
                raise NoAnswer(f"the server's response is longer than {_LARGEST} bytes", raw=text)
        if response.status_code != 200:
            raise _refusal(response, answer.decode("utf-8", "replace"))
    return bytes(answer)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < _TOKENS


def _refusal(response: httpx.Response, text: str) -> NoAnswer:
    status = response.status_code
    hint = _FINAL.get(status, "its body is kept")
    if status == 400:
        hint = "it does not take the request; if it is about response_format, set critic.response_format"
    asked = response.headers.get("retry-after", "")
    wait_s = float(asked) if asked.isdigit() and len(asked) < 6 else None
    final = status in _FINAL or 300 <= status < 400
    return NoAnswer(f"the server answered HTTP {status}: {hint}", final=final, wait_s=wait_s, raw=text)


def _response_format(settings: CriticSettings, question: Question) -> Any:
    if settings.response_format == "json_schema":
        claim = {"name": "claim", "strict": True, "schema": question.schema}
        return {"type": "json_schema", "json_schema": claim}
    return {"type": "json_object"} if settings.response_format == "json_object" else None


def _content(question: Question) -> list[dict[str, Any]]:
    """The question as parts of a chat message: text, then the sheets as data URLs."""
    images = (base64.b64encode(sheet.read_bytes()).decode() for sheet in question.sheets)
    shown = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}} for image in images]
    return [{"type": "text", "text": question.text}, *shown]
