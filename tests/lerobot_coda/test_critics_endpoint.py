"""The endpoint critic against a real server on a socket, on its good and its bad days: the loop is never harmed."""

import base64
import json
import logging
import socket

import clipped
import pytest
from clipped import grouped
from criticserver import INJECTED, Server, serve

from lerobot_coda.critic import model_critic
from lerobot_coda.critic.diagnosis import Cause
from lerobot_coda.critic.review import SimulatorCritic, reviewed
from lerobot_coda.critic.settings import CriticSettings, open_critic
from libero_pro.record import RecordError

KEY = "sk-a-secret-of-22-chars"


@pytest.fixture
def clips(tmp_path):
    return clipped.clips(tmp_path, 2)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A key in the environment, and no waiting between attempts."""
    monkeypatch.setenv("A_CRITIC_KEY", KEY)
    monkeypatch.setattr(model_critic, "_FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(model_critic, "_LONGEST_WAIT_S", 0.01)


def ask(server: Server | str, clips, folder, **settings):
    """(cluster as it stands, review) of one cluster."""
    url = server if isinstance(server, str) else server.url
    block = {"model": "m", "url": url, "key_env": "A_CRITIC_KEY", "retries": 0, "timeout_s": 20.0, **settings}
    critic = open_critic(CriticSettings(kind="endpoint", **block), folder)
    found = grouped(clips)
    return reviewed([found], {found.hash: clips}, critic, SimulatorCritic())[0]


@pytest.mark.parametrize("day", ["recorded", "in prose", "thinking", "in parts"])
def test_an_answer_is_taken(day, clips, tmp_path):
    with serve(day) as server:
        _, review = ask(server, clips, tmp_path, input_price=2.0, output_price=10.0)
    assert review.invalid is None and review.decided == review.critic == "endpoint:m"
    assert (review.claim.cause, review.claim.objects) == (Cause.MISSED_GRASP, ("milk_1",))
    assert review.claim.difficulty == {"permute": 0.5}
    assert review.usage.model_copy(update={"seconds": 0.0}).model_dump() == {
        "requests": 1, "prompt_tokens": 1000, "completion_tokens": 100, "unmetered": 0, "cost": 0.003, "seconds": 0.0,
    }  # fmt: skip


def test_the_request_is_what_openai_servers_expect(clips, tmp_path):
    with serve("recorded") as server:
        ask(server, clips, tmp_path, max_tokens=321)
    [seen] = server.seen
    body, [message] = seen["body"], seen["body"]["messages"]
    assert (seen["path"], body["model"], body["max_tokens"], body["temperature"]) == (
        "/v1/chat/completions",
        "m",
        321,
        0,
    )
    assert seen["headers"]["authorization"] == f"Bearer {KEY}"
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "image_url"]
    image = message["content"][1]["image_url"]["url"].removeprefix("data:image/png;base64,")
    assert base64.b64decode(image) == clips[0].sheet.read_bytes()
    wanted = body["response_format"]["json_schema"]
    assert wanted["strict"] and "milk_1" in wanted["schema"]["properties"]["objects"]["items"]["enum"]


def test_what_is_sent_can_be_fitted_to_the_server(clips, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")  # never sent to a server that was not given it
    with serve("recorded") as server:
        ask(server, clips, tmp_path, key_env=None, response_format="none", temperature=None,
            length_field="max_completion_tokens")  # fmt: skip
    [seen] = server.seen
    assert "authorization" not in {name.lower() for name in seen["headers"]}
    assert set(seen["body"]) == {"model", "messages", "max_completion_tokens"}


BAD_DAYS = {
    "prose": "no JSON object",
    "garbled": "no JSON object",
    "two claims": "2 different",
    "unknown object": "unicorn_1",
    "unknown cause": "'cause'",
    "wrong schema": "'stage'",
    "injected": "'tool'",
    "sure beyond 1": "'confidence'",
    "not a number": "NaN",
    "nested": "characters",
    "sees no failure": "nothing failed",
    "10 MB": "longer than",
    "refusal": "I cannot help",
    "cut": "max_tokens",
    "not JSON": "not a chat completion",
    "other JSON": "not a chat completion",
    "busy": "HTTP 429",
    "broken": "HTTP 500",
    "no access": "HTTP 401",
    "moved": "HTTP 307",
    "echo": "HTTP 400",
    "hangs up": "cannot be reached",
}


@pytest.mark.parametrize("day", BAD_DAYS)
def test_a_bad_day_is_recorded_and_the_simulator_decides(day, clips, tmp_path):
    with serve(day) as server:
        found, review = ask(server, clips, tmp_path, retries=1)
    assert BAD_DAYS[day] in review.invalid and len(review.invalid) < 600
    assert review.decided == "simulator" and review.claim.cause is Cause.MISSED_GRASP
    assert found == grouped(clips)
    assert len(server.seen) == (1 if day in ("no access", "moved") else 2) == review.usage.requests
    if day != "hangs up":
        assert (tmp_path / review.raw).stat().st_size < 70_000


@pytest.mark.parametrize("day", ["slow", "dripping", "dripping headers"])
def test_a_server_that_hangs_is_left_at_the_deadline(day, clips, tmp_path):
    with serve(day) as server:
        _, review = ask(server, clips, tmp_path, timeout_s=0.3)
    assert "within 0.3 s" in review.invalid
    assert review.decided == "simulator"


def test_a_good_answer_after_bad_ones_is_taken(clips, tmp_path):
    with serve("broken", "prose", "slow", "recorded") as server:
        _, review = ask(server, clips, tmp_path, retries=3, timeout_s=3.0)
    assert review.invalid is None and review.usage.requests == 4
    assert "no JSON object" in server.seen[2]["body"]["messages"][0]["content"][0]["text"]


def test_nobody_listens(clips, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    _, review = ask(f"http://127.0.0.1:{port}/v1", clips, tmp_path)
    assert "cannot be reached" in review.invalid and review.decided == "simulator"


def test_the_key_is_nowhere_but_in_the_request(clips, tmp_path, caplog, capfd):
    with caplog.at_level(logging.DEBUG), serve("echo") as server:
        _, review = ask(server, clips, tmp_path)
    assert (tmp_path / review.raw).read_text() == "bad key: Bearer [key]"
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    printed = capfd.readouterr()
    for text in (kept.decode("latin-1"), review.to_json(), caplog.text, printed.out, printed.err):
        assert KEY not in text


def test_a_hostile_explanation_is_kept_as_plain_text_and_shown_escaped(clips, tmp_path):
    from jinja2 import Environment

    with serve("hostile explanation") as server:
        _, review = ask(server, clips, tmp_path)
    said = review.claim.explanation
    assert (
        "{{7*7}}" in said and "\x1b" not in said and "\u202e" not in said
    )  # neither evaluated nor a control character
    assert "<script>" not in Environment(autoescape=True).from_string("{{ said }}").render(said=said)
    assert json.dumps(INJECTED)[1:20] in json.loads((tmp_path / review.raw).read_text())["explanation"]


def test_costs_that_cannot_be_known_are_not_run_up(clips, tmp_path):
    for day in ("no token count", "false token count"):
        with serve(day) as server:
            _, review = ask(server, clips, tmp_path / day)
        assert review.usage.unmetered == 1 and review.usage.cost == 0
    found = grouped(clips)
    settings = CriticSettings(kind="endpoint", model="m", url="http://x", input_price=1.0, max_cost=5.0)
    with serve("no token count") as server:
        settings = settings.model_copy(update={"url": server.url})
        critic = open_critic(settings, tmp_path)
        first = critic.review(found, clips)
        second = critic.review(found.model_copy(update={"suite": "other"}), clips)
    assert first.claim is not None and "no token counts" in second.invalid and len(server.seen) == 1


def test_inference_providers_are_reached_through_the_hub_client(clips, tmp_path, monkeypatch):
    from huggingface_hub import constants
    from huggingface_hub.inference._providers import CONVERSATIONAL_AUTO_ROUTER

    monkeypatch.setenv("HF_TOKEN", "hf_a_token_of_the_hub")
    asked = CriticSettings(kind="endpoint", model="org/vlm", retries=0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RecordError, match="HF_HUB_OFFLINE"):
        open_critic(asked, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    found = grouped(clips)
    with serve("recorded", "10 MB") as server:
        monkeypatch.setattr(CONVERSATIONAL_AUTO_ROUTER, "base_url", server.url.removesuffix("/v1"))
        good = open_critic(asked, tmp_path / "1").review(found, clips)
        large = open_critic(asked, tmp_path / "2").review(found, clips)
    assert good.claim is not None and good.usage.prompt_tokens == 1000
    assert "longer than" in large.invalid
    assert server.seen[0]["headers"]["authorization"] == "Bearer hf_a_token_of_the_hub"
    assert server.seen[0]["body"]["model"] == "org/vlm" and "response_format" in server.seen[0]["body"]
    monkeypatch.setenv("HF_TOKEN", "sk-not-of-the-hub")
    with pytest.raises(RecordError, match="provider"):
        open_critic(asked, tmp_path)


def test_a_rerun_asks_nobody_again(clips, tmp_path):
    with serve("recorded") as server:
        first, again = ask(server, clips, tmp_path), ask(server, clips, tmp_path)
    assert first == again and len(server.seen) == 1 and first[1].decided == "endpoint:m"
