"""Critic settings: the recipe block `critic:`, and the critic that it names."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from libero_pro.record import Record, RecordError

if TYPE_CHECKING:  # a recipe holds these settings, and reading one needs no clustering
    from lerobot_coda.critic.model_critic import Model
    from lerobot_coda.critic.review import Critic

Kind = Literal["simulator", "transformers", "endpoint"]


class CriticSettings(Record):
    """Who is asked about failures, and within which limits.

    kind               `simulator` (needs nothing), `transformers` (a local model), `endpoint` (a server)
    model              id or folder of a vision-language model, or the name the server knows it by
    url                base of an OpenAI-compatible server ("http://localhost:8000/v1"); None: HF Inference Providers
    provider           which of these; "auto" takes the first that the account allows
    key_env            environment variable with the server's key, the only place where one is looked for
    response_format    how the server is told of the answer's schema; not every one knows `json_schema`
    timeout_s          wall time for one answer
    max_tokens         its length, under the name `length_field` (newer OpenAI models want `max_completion_tokens`)
    temperature        0: the likeliest answer; null: left to the server
    retries            further attempts after an unusable or missing answer
    requests_per_minute  the server's rate limit
    clips_per_cluster  clips shown of a cluster, `frames` instants of each, images of `image_size` pixels
    state_summary      whether distances and contacts are told beside the images
    max_requests, max_cost  what a round may use; beyond it the simulator critic decides, and nothing is proposed
    input_price, output_price  of a million tokens, in the currency of `max_cost`
    device             where a local model runs: "auto" is a GPU if there is one
    """

    kind: Kind = "simulator"
    model: str | None = Field(default=None, min_length=1, max_length=400)
    url: str | None = Field(default=None, max_length=400)
    provider: str = Field(default="auto", pattern=r"^[a-z0-9-]{1,40}$")
    key_env: str | None = None
    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    timeout_s: float = Field(default=60.0, gt=0.0, le=3600.0)
    max_tokens: int = Field(default=700, ge=16, le=32_768)
    length_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: float | None = Field(default=0.0, ge=0.0, le=2.0)
    retries: int = Field(default=2, ge=0, le=10)
    requests_per_minute: float | None = Field(default=None, gt=0.0)
    clips_per_cluster: int = Field(default=3, ge=1, le=12)
    frames: int = Field(default=6, ge=2, le=16)
    image_size: int = Field(default=224, ge=64, le=512)
    state_summary: bool = True
    max_requests: int = Field(default=60, ge=1)
    max_cost: float | None = Field(default=None, gt=0.0)
    input_price: float = Field(default=0.0, ge=0.0)
    output_price: float = Field(default=0.0, ge=0.0)
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("it must be http(s)://host/path without a user or password; a key goes into key_env")
        if parts.query or parts.fragment:
            raise ValueError("it must end with its path; leave out what follows '?' or '#'")
        return url

    @field_validator("key_env", mode="before")
    @classmethod
    def _a_name(cls, name: object) -> object:
        if isinstance(name, str) and not (name.isidentifier() and name == name.upper() and len(name) < 64):
            raise ValueError("it must be the NAME of an environment variable (like HF_TOKEN), never the key itself")
        return name

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind != "simulator" and self.model is None:
            raise ValueError(f"kind '{self.kind}' needs 'model': which vision-language model answers")
        if self.kind != "endpoint" and (self.url or self.key_env):
            raise ValueError(f"'url' and 'key_env' belong to kind 'endpoint', not '{self.kind}'")
        if self.max_cost is not None and not (self.input_price or self.output_price):
            raise ValueError("'max_cost' needs 'input_price' and 'output_price' (of a million tokens)")
        return self


def open_critic(settings: CriticSettings, folder: Path) -> "Critic":
    """The critic of the settings; what it is shown and answers is kept in `folder/critic`. Open one for each round.

    RecordError before anything is asked: a key that is not in the environment, a model that cannot be loaded.
    """
    if settings.kind == "simulator":
        from lerobot_coda.critic.review import SimulatorCritic

        return SimulatorCritic()
    from lerobot_coda.critic.model_critic import ModelCritic

    return ModelCritic(open_model(settings), settings, folder)


def open_model(settings: CriticSettings) -> "Model":
    """The model behind a critic that is not the simulator. RecordError as for `open_critic`."""
    if settings.kind == "transformers":
        from lerobot_coda.critic.local_vlm import LocalModel

        return LocalModel(settings)
    from lerobot_coda.critic.endpoint import Endpoint

    return Endpoint(settings, read_key(settings))


def read_key(settings: CriticSettings) -> str | None:
    """The endpoint's key from the environment; None where a server of one's own needs none.

    RecordError where it is missing or cannot be one, and where HF Inference Providers are meant in offline mode.
    """
    if settings.url is None:
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            raise RecordError("field 'critic.url': HF_HUB_OFFLINE is set, so HF Inference Providers cannot be asked")
    name = settings.key_env or (None if settings.url else "HF_TOKEN")
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise RecordError(f"field 'critic.key_env': the environment variable {name} holds what cannot be a key")
    if not key:
        raise RecordError(
            f"field 'critic.key_env': the environment variable {name} is not set; export it and run again"
        )
    if settings.url is None and settings.provider == "auto" and not key.startswith("hf_"):
        raise RecordError(
            f"field 'critic.key_env': {name} holds no Hub token (hf_...); name the provider whose key it is"
        )
    return key
