"""Bring your own critic: any server that speaks OpenAI's chat completions can diagnose failures.

    python examples/own_critic.py 8000
    lerobot-coda critic-bench --critic examples/own_critic.yaml --limit 100
    lerobot-coda evolve recipes/quickstart.yaml --output runs/mine     # with `critic:` from the YAML file in the recipe

Replace `diagnose`. What it claims is a proposal: it must fit the schema, and validation tests it like every claim.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NEAR_CM = 5  # the hand was at an object if it came as near as this, seen from above


def diagnose(told: dict[str, Any], images: list[str], schema: dict[str, Any]) -> dict[str, Any]:
    """A claim about a failure cluster.

    told    what the critic knows in numbers: `episodes` with instruction and state summary, `names`, `goals`
    images  contact sheets, one an episode, as data URLs; a vision-language model would look at these
    schema  JSON schema of the answer, with the causes, stages and names that may be used
    """
    episode = told["episodes"][0]
    states, goal = episode.get("states", {}), told["goals"][0]
    target = next((word for word in goal.split() if word in told["names"]), told["names"][0])
    least, step = states.get("least_cm_of_hand_from_object_and_step", {}).get(target, [0, 0])
    held = [interval["object"] for interval in states.get("held_by_both_fingers", [])]
    if held and target not in held:
        stage, cause, why = "reach", "wrong_object", f"it took {held[0]} instead of {target}"
    elif target in held:
        stage, cause, why = "place", "wrong_place", f"it had {target} and did not bring it where it belongs"
    elif least <= NEAR_CM:
        stage, cause, why = "grasp", "missed_grasp", f"it was at {target} at step {step} and never held it"
    else:
        stage, cause, why = "reach", "missed_grasp", f"it never came nearer to {target} than {least} cm"
    claim = {
        "stage": stage, "cause": cause, "objects": [target], "predicate": goal, "span": [step, step],
        "explanation": why, "difficulty": dict.fromkeys(schema["properties"]["difficulty"]["properties"], 0),
        "confidence": 0.5,
    }  # fmt: skip
    return {"failed": True, **claim} if "failed" in schema["properties"] else claim


class Handler(BaseHTTPRequestHandler):
    """POST /v1/chat/completions, as far as a critic is asked through it."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        parts = body["messages"][-1]["content"]
        text = next(part["text"] for part in parts if part["type"] == "text")
        data = re.search(r"<data>\n(.*?)\n</data>", text, re.DOTALL)
        images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        claim = diagnose(json.loads(data[1]) if data else {}, images, body["response_format"]["json_schema"]["schema"])
        choice = {"index": 0, "message": {"role": "assistant", "content": json.dumps(claim)}, "finish_reason": "stop"}
        answer = json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        """Says nothing of each request."""


def server(port: int) -> ThreadingHTTPServer:
    """The server, reachable from this machine only; port 0 takes a free one."""
    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    with server(int(sys.argv[1])) as running:
        print(f"http://127.0.0.1:{running.server_port}/v1")
        running.serve_forever()
