"""The local critic with a tiny random vision-language model: it writes nonsense, and then must choose."""

import json

import clipped
import pytest
from clipped import grouped
from fakeworld import write_recipes
from synthetic import NAMES, T
from tinycritic import save_vlm

from lerobot_coda.critic.answer import Known, parse
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Cause, Mode, Stage
from lerobot_coda.critic.local_vlm import LocalModel, finite_claims, tree
from lerobot_coda.critic.model_critic import NoAnswer
from lerobot_coda.critic.prompt import OPERATIONS, ask
from lerobot_coda.critic.review import SimulatorCritic, reviewed
from lerobot_coda.critic.settings import CriticSettings, open_critic
from lerobot_coda.preflight import check_critic
from lerobot_coda.proposal import propose, simple_proposals
from lerobot_coda.recipe import load_evolve
from libero_pro.record import RecordError

KNOWN = Known(NAMES, ("milk_1",), (("in", "milk_1", "basket_1_contain_region"),), OPERATIONS, T, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("num2words", reason="the processor of SmolVLM spells numbers with it")
    return save_vlm(tmp_path_factory.mktemp("vlm"))


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return clipped.clips(tmp_path_factory.mktemp("sheets"), 2)


def settings(folder, **changes):
    return CriticSettings(kind="transformers", model=str(folder), device="cpu", max_tokens=24, **changes)


def test_a_model_that_writes_nonsense_chooses_a_claim(folder, clips, tmp_path):
    found = grouped(clips)
    critic = open_critic(settings(folder, retries=1), tmp_path)
    [(_, review)] = reviewed([found], {found.hash: clips}, critic, SimulatorCritic())
    assert review.invalid is None and review.decided == f"transformers:{folder.name}"
    assert review.usage.requests == 2 and review.usage.prompt_tokens > 1000
    assert "milk_1" in review.claim.objects and 0 < review.claim.confidence < 1
    written, chosen = ((tmp_path / review.raw).with_name(f"answer-{n}.txt").read_text() for n in (1, 2))
    assert json.loads(chosen)["cause"] == review.claim.cause and written != chosen


def test_a_model_that_writes_no_program_chooses_one_of_the_simplest(folder, tmp_path):
    recipe = load_evolve(write_recipes(tmp_path))
    failures = FailureCluster(
        mode=Mode.GRASP, stage=Stage.GRASP, suite="libero_object", causes={"slipped": 2}, tasks=(2,),
        objects=("milk_1",), diagnoses=("a", "b"),
    )  # fmt: skip
    model = LocalModel(settings(folder))
    written, chosen = (
        propose(model, failures, recipe, 1, limits=settings(folder, retries=retries)) for retries in (0, 1)
    )
    assert written.program is None and written.usage.completion_tokens == 24 and written.raw != chosen.raw
    assert chosen.refused is None and chosen.program.name == "grasp-1-written"
    assert chosen.raw in simple_proposals(recipe) and chosen.usage.requests == 2


def test_choosing_is_deterministic_and_its_probability_adds_up(folder, clips, monkeypatch):
    """The walk takes the likeliest token at each fork; over a tree of two leaves its probability is at least a half."""
    model, question = LocalModel(settings(folder)), ask(clips).again("no JSON object")
    two = [json.dumps({"stage": "grasp", "cause": cause, "objects": ["milk_1"]}) for cause in ("slipped", "dropped")]
    monkeypatch.setattr("lerobot_coda.critic.local_vlm.finite_claims", lambda known: two)
    assert 0.5 <= json.loads(model.answer(question).text)["confidence"] < 1
    assert model.answer(question) == model.answer(question)
    monkeypatch.setattr("lerobot_coda.critic.local_vlm.finite_claims", lambda known: two[:1])
    assert json.loads(model.answer(question).text)["confidence"] == pytest.approx(1)


def test_a_processor_without_a_chat_template_is_asked_plainly_and_sampling_is_possible(folder, clips):
    model, question = LocalModel(settings(folder, temperature=0.8)), ask(clips)
    templated = model.answer(question)
    model._processor.chat_template = None
    plain = model.answer(question)
    assert 0 < plain.usage.completion_tokens <= 24 and 0 < templated.usage.completion_tokens <= 24
    assert plain.usage.prompt_tokens < templated.usage.prompt_tokens


def test_a_model_that_does_not_end_is_stopped_at_the_deadline(folder, clips):
    model = LocalModel(settings(folder, timeout_s=0.2).model_copy(update={"max_tokens": 30_000}))
    with pytest.raises(NoAnswer, match=r"within 0.2 s"):
        model.answer(ask(clips))


def test_a_model_that_breaks_is_an_answer_that_is_missing(folder, clips, monkeypatch):
    model = LocalModel(settings(folder))

    def out_of_memory(**inputs):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(model._model, "generate", out_of_memory)
    with pytest.raises(NoAnswer, match="RuntimeError: out of memory"):
        model.answer(ask(clips))


def test_a_folder_without_a_vision_language_model_is_refused_at_once(folder, tmp_path):
    check_critic(settings(folder))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "config.json").write_text('{"model_type": "gpt2"}')
    for name, reason in (("nothing", r"critic\.model"), ("text", "answers no questions about images")):
        with pytest.raises(RecordError, match=reason):
            check_critic(settings(tmp_path / name))
        with pytest.raises(RecordError, match=r"critic\.model"):
            open_critic(settings(tmp_path / name), tmp_path)


@pytest.mark.parametrize("failed", [True, False])
def test_every_finite_claim_is_one(failed):
    known = KNOWN._replace(failed=failed)
    claims = finite_claims(known)
    sure = [json.dumps(json.loads(c) | {"explanation": "", "confidence": 0.5}) for c in claims if "stage" in c]
    assert len({parse(claim, known).to_json() for claim in sure}) == len(sure) == len(Stage) * len(Cause) * 4
    assert len(claims) - len(sure) == (not failed)


def test_a_tree_holds_its_sequences_and_no_other():
    assert tree([(1, 2), (1, 3, 4), (5,)]) == {1: {2: {}, 3: {4: {}}}, 5: {}}
