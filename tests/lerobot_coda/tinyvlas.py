"""Tiny random policies of each family, and what they need offline: a SmolVLM folder with tokenizer and processor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from scipy.fft import dct

from lerobot_coda.columns import EXECUTED, POTENTIAL
from lerobot_coda.configuration_coda import CodaConfig

CHUNK, EXECUTES, SIZE = 8, 4, 64
CAMERAS = ("observation.images.image", "observation.images.image2")
PROMPT = "pick the milk and place it in the basket"
ACT = {"dim_model": 32, "n_heads": 2, "dim_feedforward": 64, "n_encoder_layers": 1, "n_vae_encoder_layers": 1,
       "pretrained_backbone_weights": None, "dropout": 0.0}  # fmt: skip
DIFFUSION = {"down_dims": [16, 32], "n_groups": 4, "diffusion_step_embed_dim": 16, "num_train_timesteps": 8,
             "pretrained_backbone_weights": None, "crop_shape": None, "horizon": CHUNK,
             "spatial_softmax_num_keypoints": 4}  # fmt: skip
SPECIAL = ("<pad>", "<unk>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>",
           "<global-img>", "<video>")  # fmt: skip


def smolvla(folder: Path) -> dict[str, Any]:
    """Settings of a SmolVLA whose vision-language model is the one in `folder`."""
    return {
        "vlm_model_name": str(folder), "load_vlm_weights": False, "num_vlm_layers": 2, "expert_width_multiplier": 0.5,
        "resize_imgs_with_padding": [SIZE, SIZE], "max_state_dim": 8, "max_action_dim": 7, "num_steps": 2,
        "tokenizer_max_length": 16,
    }  # fmt: skip


def word_tokenizer() -> Any:
    """A tokenizer of whole words with SmolVLM's special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [
        *SPECIAL,
        *sorted({*PROMPT.split(), "ketchup", "|", "Task:", "State:", "Action:", *map(str, range(-1, 257))}),
    ]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"fake_image_token": SPECIAL[4], "image_token": SPECIAL[5], "global_image_token": SPECIAL[6]}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", additional_special_tokens=list(SPECIAL[2:]),
        extra_special_tokens={**named, "end_of_utterance_token": SPECIAL[3], "video_token": SPECIAL[7]},
    )  # fmt: skip


def save_smolvlm(folder: Path, text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None) -> Path:
    """Configuration, tokenizer and processor of a SmolVLM, by default of a few thousand parameters; no weights."""
    from transformers import SmolVLMConfig, SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

    tokenizer = word_tokenizer()
    words = {"vocab_size": len(tokenizer), "pad_token_id": 0, "model_type": "llama"}
    text = text or {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 12,
                    "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    vision = vision or {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                        "image_size": SIZE, "patch_size": 16}  # fmt: skip
    image = SPECIAL.index("<image>")
    config = SmolVLMConfig(text_config={**words, **text}, vision_config=vision, scale_factor=2, image_token_id=image)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    SmolVLMProcessor(SmolVLMImageProcessor(), tokenizer, SmolVLMVideoProcessor(), image_seq_len=4).save_pretrained(
        folder
    )
    return folder


def xvla(monkeypatch: Any) -> dict[str, Any]:
    """Settings of an X-VLA on a Florence-2 of a few thousand parameters; its tokenizer becomes the local one."""
    from transformers import AutoTokenizer

    tokenizer = word_tokenizer()
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *args, **kwargs: tokenizer)
    eye = {"depths": [1, 1], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1],
           "patch_prenorm": [False, True], "embed_dim": [8, 16], "num_heads": [1, 2], "num_groups": [1, 2],
           "window_size": 4, "projection_dim": 24, "drop_path_rate": 0.0}  # fmt: skip
    text = {"vocab_size": len(tokenizer), "d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
            "max_position_embeddings": 128, "pad_token_id": 0}  # fmt: skip
    return {
        "florence_config": {"vision_config": eye, "text_config": text}, "hidden_size": 32, "depth": 1, "num_heads": 2,
        "num_domains": 4, "len_soft_prompts": 2, "action_mode": "auto", "max_action_dim": 8, "max_state_dim": 8,
        "num_denoising_steps": 2, "tokenizer_max_length": 16, "freeze_vision_encoder": True,
        "freeze_language_encoder": True,
    }  # fmt: skip


def config(backbone: str, settings: dict[str, Any], **changes: Any) -> CodaConfig:
    """A coda configuration for two cameras, a state of 8 and an action of 7."""
    base = {"device": "cpu", "push_to_hub": False, "chunk_size": CHUNK, "n_action_steps": EXECUTES}
    made = CodaConfig(**{**base, "backbone": backbone, "backbone_config": settings, **changes})
    made.input_features = {key: PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE)) for key in CAMERAS}
    made.input_features["observation.state"] = PolicyFeature(FeatureType.STATE, (8,))
    made.input_features[POTENTIAL] = PolicyFeature(FeatureType.STATE, (1,))
    made.output_features = {"action": PolicyFeature(FeatureType.ACTION, (7,))}
    return made


def raw_batch(rows: int = 3, later: bool = False) -> dict[str, Any]:
    """What the data loader gives: one observation a row, or two with the later one."""
    draw = torch.Generator().manual_seed(0)
    time = (2,) if later else ()
    action = torch.rand(rows, CHUNK, 7, generator=draw) * 2 - 1
    action[..., 6] = action[..., 6].sign()
    batch: dict[str, Any] = {key: torch.rand(rows, *time, 3, SIZE, SIZE, generator=draw) for key in CAMERAS}
    batch |= {
        "observation.state": torch.rand(rows, *time, 8, generator=draw),
        "action": action,
        "action_is_pad": torch.zeros(rows, CHUNK, dtype=torch.bool),
        "next.reward": torch.zeros(rows, EXECUTES),
        "next.reward_is_pad": torch.zeros(rows, EXECUTES, dtype=torch.bool),
        POTENTIAL: torch.rand(rows, *time, generator=draw) * 0.5,
        EXECUTED: torch.ones(rows, *time),
        "index": torch.arange(rows) * 10,
        "task": [PROMPT, "pick the ketchup"][: min(rows, 2)] + [PROMPT] * max(0, rows - 2),
    }  # fmt: skip
    if later:
        batch |= {f"{key}_is_pad": torch.zeros(rows, 2, dtype=torch.bool) for key in ("observation.state", *CAMERAS)}
    return batch


def stats() -> dict[str, dict[str, torch.Tensor]]:
    """Statistics of every feature, for normalization by mean, range and quantile alike."""
    found = {}
    for key, shape in (("observation.state", (8,)), ("action", (7,)), *((camera, (3, 1, 1)) for camera in CAMERAS)):
        names = {"mean": 0.1, "std": 0.7, "min": -1.0, "max": 1.0, "q01": -0.9, "q99": 0.9}
        found[key] = {name: torch.full(shape, value) for name, value in names.items()}
    return found


def read_type(checkpoint: Path) -> str:
    return json.loads((checkpoint / "config.json").read_text())["type"]


class Fast:
    """An action tokenizer as FAST is one: a token for each rounded coefficient of a chunk's cosine transform."""

    min_token, scale = -16, 4.0

    @property
    def bpe_tokenizer(self) -> "Fast":
        return self

    def __call__(self, actions: torch.Tensor) -> list[list[int]]:
        waves = np.round(dct(actions[0].numpy(), axis=0, norm="ortho") * self.scale).astype(int)
        return [np.clip(waves - self.min_token, 0, 31).flatten().tolist()]

    def decode(self, tokens: torch.Tensor) -> str:
        return "".join(chr(token) for token in tokens.tolist())


def pi0_fast(monkeypatch: Any) -> dict[str, Any]:
    """Settings of a tiny pi0-FAST with local tokenizers of words and of actions."""
    import lerobot.policies.pi0_fast.modeling_pi0_fast as module
    from transformers import AutoProcessor

    made = _shrink(monkeypatch, [module])
    made.bos_token = SPECIAL[2]
    monkeypatch.setattr(AutoProcessor, "from_pretrained", lambda *args, **kwargs: Fast())
    return {"image_resolution": [32, 32], "tokenizer_max_length": 24, "max_action_tokens": 64, "fast_skip_tokens": 20,
            "max_decoding_steps": 6, "validate_action_token_prefix": False}  # fmt: skip


def shrink_pi(monkeypatch: Any) -> dict[str, Any]:
    """Makes LeRobot build pi0 and pi0.5 tiny and with a local tokenizer (their sizes are names of large models);
    returns their settings."""
    import lerobot.policies.pi0.modeling_pi0 as pi0
    import lerobot.policies.pi05.modeling_pi05 as pi05

    _shrink(monkeypatch, [pi0, pi05])
    return {"max_state_dim": 8, "max_action_dim": 7, "image_resolution": [32, 32], "num_inference_steps": 2,
            "tokenizer_max_length": 24}  # fmt: skip


def _shrink(monkeypatch: Any, modules: list[Any]) -> Any:
    """Makes the families of these modules build a tiny PaliGemma and take the local tokenizer, which is returned."""
    from transformers import AutoTokenizer, GemmaConfig, PaliGemmaConfig, SiglipVisionConfig

    tokenizer, width = word_tokenizer(), 32
    build = modules[0].PaliGemmaForConditionalGenerationWithPiGemma

    def paligemma() -> Any:
        eye = SiglipVisionConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16
        )
        return PaliGemmaConfig(vision_config=eye, text_config={"model_type": "gemma"})

    def gemma(**sizes: Any) -> Any:
        return GemmaConfig(**{**sizes, "vocab_size": len(tokenizer)})

    def built(config: Any) -> Any:
        config.vision_config.projection_dim = width  # LeRobot sets PaliGemma's, and its vocabulary
        config.text_config.vocab_size = len(tokenizer)
        return build(config=config)

    for module in modules:
        sizes = module.GemmaConfig(width=width, depth=2, mlp_dim=64, num_heads=8, num_kv_heads=1, head_dim=8)
        monkeypatch.setattr(module, "get_gemma_config", lambda variant, sizes=sizes: sizes)
        monkeypatch.setattr(module, "CONFIG_MAPPING", {"paligemma": paligemma, "gemma": gemma})
        monkeypatch.setattr(module, "PaliGemmaForConditionalGenerationWithPiGemma", built)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *args, **kwargs: tokenizer)
    return tokenizer
