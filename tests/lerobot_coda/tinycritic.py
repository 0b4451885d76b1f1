"""A random vision-language model of some thousand parameters with its processor: what a local critic loads, offline."""

from pathlib import Path
from typing import Any

from tinyvlas import SPECIAL

from lerobot_coda.critic.prompt import template

TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}\nAssistant: {% endif %}"
)


def subword_tokenizer() -> Any:
    """A byte-level tokenizer that can spell everything and has some merges from the critic's prompt."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [template(True)], trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, special_tokens=list(SPECIAL))
    )
    named = {"fake_image_token": SPECIAL[4], "image_token": SPECIAL[5], "global_image_token": SPECIAL[6]}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token=SPECIAL[3], additional_special_tokens=list(SPECIAL[2:]),
        extra_special_tokens={**named, "end_of_utterance_token": SPECIAL[3], "video_token": SPECIAL[7]},
    )  # fmt: skip


def save_vlm(folder: Path) -> Path:
    """Weights, configuration, tokenizer and processor with a chat template, in `folder`."""
    import torch
    from transformers import (
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    torch.manual_seed(0)
    tokenizer = subword_tokenizer()
    text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8, "pad_token_id": 0,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(tokenizer), "model_type": "llama",
            "max_position_embeddings": 8192}  # fmt: skip
    vision = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 64, "patch_size": 16}  # fmt: skip
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=2, image_token_id=image)
    SmolVLMForConditionalGeneration(config).save_pretrained(folder)
    eye = SmolVLMImageProcessor(
        do_image_splitting=False, size={"longest_edge": 64}, max_image_size={"longest_edge": 64}
    )
    processor = SmolVLMProcessor(eye, tokenizer, SmolVLMVideoProcessor(), image_seq_len=4, chat_template=TEMPLATE)
    processor.save_pretrained(folder)
    return folder
