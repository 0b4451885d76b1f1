"""A critic on this machine: any vision-language model that `transformers` loads, by id or folder.

It is first left to write its answer. Where that cannot be used, it chooses among finitely many answers instead (of a
claim, all that there are): they are a tree of tokens, and generation may only walk that tree, so that any model gives
an answer of the right form and a probability for it.
"""

import itertools
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lerobot_coda.critic.answer import Known
from lerobot_coda.critic.diagnosis import Cause, Stage
from lerobot_coda.critic.model_critic import Answer, NoAnswer
from lerobot_coda.critic.prompt import Question
from lerobot_coda.critic.review import CriticUsage
from lerobot_coda.critic.settings import CriticSettings
from libero_pro.record import RecordError

Tree = dict[int, Any]  # token -> the tree of what may follow; empty after a whole claim


class LocalModel:
    """A model loaded from the Hub's cache or a folder; no code that comes with it is run.

    RecordError where it cannot be loaded. Generation ends at the deadline (`timeout_s`), between two tokens.
    """

    def __init__(self, settings: CriticSettings):
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        where = str(settings.model)
        self.name = f"transformers:{Path(where).name if Path(where).exists() else where}"
        self._settings = settings
        device = settings.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        try:
            self._processor = AutoProcessor.from_pretrained(where, trust_remote_code=False)
            model = AutoModelForImageTextToText.from_pretrained(where, dtype=dtype, trust_remote_code=False)
            self._model = model.to(device).eval()
        except Exception as error:  # of many libraries; all mean that there is no such model to be had here
            raise _not_there(where, error) from None
        self._device = device

    def answer(self, question: Question) -> Answer:
        """What the model writes, or, after an answer that could not be used, what it chooses."""
        try:
            return self._choose(question) if question.refused else self._write(question)
        except NoAnswer:
            raise
        except Exception as error:  # out of memory, an image that the processor cannot take
            reason = " ".join(str(error).split())[:200]
            raise NoAnswer(f"the model failed ({type(error).__name__}: {reason})") from None

    def _write(self, question: Question) -> Answer:
        inputs = self._inputs(question)
        settings = self._settings
        sampling = (
            {"do_sample": True, "temperature": settings.temperature} if settings.temperature else {"do_sample": False}
        )
        tokens = self._generate(inputs, max_new_tokens=settings.max_tokens, **sampling)
        return self._answered(self._processor.decode(tokens, skip_special_tokens=True), inputs, len(tokens))

    def _choose(self, question: Question) -> Answer:
        from transformers import LogitsProcessorList, StoppingCriteriaList

        choices = list(question.choices) or finite_claims(question.known)
        tokenizer = self._processor.tokenizer
        spelled = [tuple(tokens) for tokens in tokenizer(choices, add_special_tokens=False)["input_ids"]]
        if len(set(spelled)) < len(choices):
            raise NoAnswer("the model's tokenizer cannot tell the possible answers apart", final=True)
        inputs = self._inputs(question)
        walk = _walk(tree(spelled), inputs["input_ids"].shape[1])
        tokens = self._generate(
            inputs,
            max_new_tokens=max(map(len, spelled)),
            do_sample=False,
            logits_processor=LogitsProcessorList([walk]),
            stopping_criteria=StoppingCriteriaList([walk.ended]),
        )
        chosen = choices[spelled.index(tuple(tokens))]
        if not question.choices and (claim := json.loads(chosen)).get("failed", True):
            claim |= {"explanation": "chosen by likelihood among the possible claims", "confidence": walk.probability}
            chosen = json.dumps(claim)
        return self._answered(chosen, inputs, len(tokens))

    def _generate(self, inputs: Any, **how: Any) -> list[int]:
        """New tokens, without what was asked; NoAnswer where the deadline cut them off."""
        import torch

        began, limit = time.monotonic(), self._settings.timeout_s
        with torch.inference_mode():
            whole = self._model.generate(**inputs, num_beams=1, max_time=limit, **how)
        if time.monotonic() - began > limit:
            raise NoAnswer(f"no complete answer within {limit:g} s (critic.timeout_s)")
        return whole[0, inputs["input_ids"].shape[1] :].tolist()

    def _inputs(self, question: Question) -> Any:
        """The question as the model's inputs, through its chat template if it has one; proposals show no image."""
        from PIL import Image

        with ExitStack() as open_files:
            images = [open_files.enter_context(Image.open(sheet)).convert("RGB") for sheet in question.sheets]
        if getattr(self._processor, "chat_template", None):
            shown = [{"type": "image", "image": image} for image in images]
            turn = {"role": "user", "content": [*shown, {"type": "text", "text": question.text}]}
            inputs = self._processor.apply_chat_template(
                [turn], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
            )
        else:
            places = getattr(self._processor, "image_token", "<image>") * len(images)
            inputs = self._processor(text=f"{places}{question.text}", images=images or None, return_tensors="pt")
        return inputs.to(self._device, dtype=self._model.dtype)

    def _answered(self, text: str, inputs: Any, written: int) -> Answer:
        usage = CriticUsage(prompt_tokens=int(inputs["input_ids"].shape[1]), completion_tokens=written)
        return Answer(text, usage)


def check_model(settings: CriticSettings) -> None:
    """RecordError where the settings name no vision-language model; reads its configuration, not its weights."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    where = str(settings.model)
    try:
        config = AutoConfig.from_pretrained(where, trust_remote_code=False)
        if type(config) not in AutoModelForImageTextToText._model_mapping:
            raise ValueError(f"it is a '{config.model_type}', which answers no questions about images")
    except Exception as error:
        raise _not_there(where, error) from None


def _not_there(where: str, error: Exception) -> RecordError:
    reason = " ".join(str(error).split())[:300]
    return RecordError(f"field 'critic.model': '{where}' cannot be loaded as a vision-language model: {reason}")


def finite_claims(known: Known) -> list[str]:
    """The beginnings of all claims as JSON: stage, cause, the goal's object and at most one other; or no failure."""
    target = list(known.targets[:1])
    others = [[], *([name] for name in known.names if name not in known.targets)]
    claims = [
        json.dumps({"stage": stage, "cause": cause, "objects": target + other})
        for stage, cause, other in itertools.product(map(str, Stage), map(str, Cause), others)
    ]
    return claims if known.failed else [json.dumps({"failed": False}), *claims]


def tree(spelled: Sequence[Sequence[int]]) -> Tree:
    """Token sequences, none of which begins another, as a tree."""
    root: Tree = {}
    for tokens in spelled:
        node = root
        for token in tokens:
            node = node.setdefault(token, {})
    return root


def _walk(root: Tree, asked: int) -> Any:
    """A logits processor that lets generation only walk the tree, after `asked` tokens, and what it took on the way.

    `probability` of the path among all paths of the tree;  `ended` is the stopping criterion at a whole claim.
    """
    import torch
    from transformers import LogitsProcessor, StoppingCriteria

    def node(ids: Any) -> Tree:
        at = root
        for token in ids[0, asked:].tolist():
            at = at[token]
        return at

    class Ended(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return torch.full((len(input_ids),), not node(input_ids), device=input_ids.device)

    class Walk(LogitsProcessor):
        probability = 1.0
        ended = Ended()

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            allowed = torch.tensor(sorted(node(input_ids)), device=scores.device)
            self.probability *= float(scores[0, allowed].float().softmax(-1).max())
            masked = torch.full_like(scores, float("-inf"))
            masked[:, allowed] = scores[:, allowed]
            return masked

    return Walk()
