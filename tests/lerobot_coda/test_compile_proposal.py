"""Programs that a model writes: used like a rule's or refused with the reason; and what it is told was tried before."""

import io
import json
from types import SimpleNamespace

import pytest
from fakeworld import write_recipes
from rich.console import Console

from lerobot_coda import archive, proposal
from lerobot_coda import memory as m
from lerobot_coda.console import Display
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Mode, Stage
from lerobot_coda.critic.model_critic import Answer, NoAnswer
from lerobot_coda.critic.review import CriticUsage
from lerobot_coda.critic.settings import CriticSettings
from lerobot_coda.memory import Memory
from lerobot_coda.programs import compile_cluster
from lerobot_coda.progress import Decision, measure
from lerobot_coda.proposal import KEPT, Proposal, proposal_rows, propose, simple_proposals, tried_before, written
from lerobot_coda.recipe import load_evolve
from lerobot_coda.steps import Steps

ONCE = CriticSettings(retries=0)
PLAN = "reach 1: near(gripper, target, 0.3) until near(gripper, target, 0.04)\nhold 2: held(target) until goal(1)"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return load_evolve(write_recipes(tmp_path_factory.mktemp("recipe")))


def cluster(mode: Mode = Mode.GRASP, suite: str = "libero_object", **causes: int) -> FailureCluster:
    causes = causes or {"missed_grasp": 3}
    return FailureCluster(
        mode=mode, stage=Stage.GRASP, suite=suite, causes=causes, tasks=(2, 5), objects=("milk_1",),
        diagnoses=tuple(f"{suite}{mode}{n}" for n in range(sum(causes.values()))),
    )  # fmt: skip


ANSWER = {
    "operations": [{"op": "crowd", "near": "target", "count": 3}, {"op": "arm"}],
    "difficulty": 0.6,
    "tasks": [2, 5],
    "training": {"start": {"stage": "grasp", "share": 0.4}, "rephrase_share": 0.2, "n_action_steps": 6},
    "potential": PLAN,
    "why": "it is crowded\x07 there",
}


class Says:
    """A model that answers every question by a function of its text."""

    name = "x"

    def __init__(self, answer):
        self._answer = answer

    def answer(self, question):
        return Answer(self._answer(question.text), CriticUsage(prompt_tokens=100, completion_tokens=10))


def asked(recipe, answer, **changes):
    """What becomes of an answer: text as it is, or a mapping with changes."""
    text = answer if isinstance(answer, str) else json.dumps({**answer, **changes})
    return propose(Says(lambda prompt: text), cluster(), recipe, 3, limits=ONCE)


def test_an_answer_becomes_a_program_beside_the_rule_s(recipe):
    found = asked(recipe, ANSWER)
    assert found.refused is None and found.why == "it is crowded there"
    program, rule = found.program, compile_cluster(cluster(), recipe, 3)
    assert program.name == "grasp-3-written" and program.mode == rule.mode == "grasp"
    assert [o.op for o in program.generation.operations] == ["crowd", "arm"]
    assert program.generation.task_ids == (2, 5) and program.generation.difficulty == 0.6
    assert program.generation.domain != rule.generation.domain
    training = program.training
    assert (training.start.stage, training.rephrase_share, training.n_action_steps) == (Stage.GRASP, 0.2, 6)
    assert training.noise == rule.training.noise and training.steps == rule.training.steps
    assert [s.name for s in training.refinement.written.stages] == ["reach", "hold"]
    assert next(program.generation.scenes(1)).objects


def test_prose_around_the_answer_is_no_harm(recipe):
    assert asked(recipe, f"<think>{{x}}</think>Sure!\n```json\n{json.dumps(ANSWER)}\n```").program is not None


def test_the_simplest_proposals_are_programs_too(recipe):
    choices = simple_proposals(recipe)
    found = {
        (p.generation.operations[0].op, p.generation.difficulty) for c in choices if (p := asked(recipe, c).program)
    }
    assert len(found) == len(choices) and {("permute", 1.0), ("arm", 0.25), ("retarget", 0.5)} <= found


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I would rather not.", "no JSON object"),
        ('{"operations": [', "no JSON object"),
        ({**ANSWER, "operations": [{"op": "explode"}]}, "field 'operations.0'"),
        ({**ANSWER, "operations": [{"op": "resume", "instants": []}]}, "field 'operations.0'"),
        ({**ANSWER, "operations": [{"op": "offset", "target": "banana_1"}]}, "'banana_1' is not an object"),
        ({**ANSWER, "operations": []}, "field 'operations'"),
        ({**ANSWER, "difficulty": 7}, "field 'difficulty'"),
        ({**ANSWER, "tasks": [2, 8]}, "[8] are not among the recipe's tasks"),
        ({**ANSWER, "training": {"steps": 1_000_000}}, "field 'training.steps'"),
        ({**ANSWER, "training": {"n_action_steps": 0}}, "field 'training.n_action_steps'"),
        ({**ANSWER, "command": "rm -rf /"}, "field 'command'"),
        ({**ANSWER, "potential": "a 1: near(gripper, banana_1, 0.3) until goal(1)"}, "'banana_1' is not in the scene"),
        ({**ANSWER, "potential": "import os"}, "field 'potential': line 1"),
        ({**ANSWER, "potential": f"scale 0.5 latched\n{PLAN}"}, "latched"),
        ({**ANSWER, "potential": PLAN.replace("0.3", "nan")}, "not a positive, finite number"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_with_the_reason_and_kept(recipe, answer, reason):
    found = asked(recipe, answer)
    assert found.program is None and reason in found.refused and "\n" not in found.refused
    assert found.raw == (answer if isinstance(answer, str) else json.dumps(answer))


def test_a_model_that_does_not_answer_or_never_stops(recipe):
    def silent(prompt):
        raise NoAnswer("no complete answer within 60 s", raw="<html>", usage=CriticUsage(prompt_tokens=7))

    found = propose(Says(silent), cluster(), recipe, 3, limits=CriticSettings(retries=1))
    assert (found.usage.requests, found.usage.prompt_tokens) == (2, 14)
    assert found.refused == "no answer: no complete answer within 60 s" and found.raw == "<html>"
    endless = asked(recipe, "{" * 10_000_000)
    assert "characters" in endless.refused and len(endless.raw) == KEPT


def test_it_is_asked_again_with_the_reason(recipe):
    prompts = []

    def learns(prompt):
        prompts.append(prompt)
        return json.dumps({**ANSWER, "difficulty": 0.5 if "field 'difficulty'" in prompt else 7})

    assert propose(Says(learns), cluster(), recipe, 3, limits=ONCE).program is None
    prompts.clear()
    found = propose(Says(learns), cluster(), recipe, 3, limits=CriticSettings(retries=3))
    assert found.program.generation.difficulty == 0.5 and len(prompts) == 2 and prompts[1].startswith(prompts[0])
    assert (found.usage.requests, found.usage.prompt_tokens, found.usage.completion_tokens) == (2, 200, 20)


def test_proposals_stay_within_what_a_round_may_use(recipe):
    limits = CriticSettings(retries=5, max_requests=7)
    found = propose(Says(lambda prompt: "no"), cluster(), recipe, 3, limits=limits, spent=CriticUsage(requests=5))
    assert found.usage.requests == 2 and found.refused.endswith("7 requests (critic.max_requests) are used")
    none = propose(Says(lambda prompt: "no"), cluster(), recipe, 3, limits=limits, spent=CriticUsage(requests=7))
    assert none.usage.requests == 0 and none.refused.startswith("the round's 7 requests")


def test_a_round_asks_once_and_files_what_came_of_it(tmp_path, monkeypatch):
    critic = {"kind": "endpoint", "model": "x", "url": "http://localhost:1/v1", "retries": 0}
    recipe = load_evolve(write_recipes(tmp_path, critic=critic, proposals=True))
    asked_for = []

    def answer(prompt):
        asked_for.append(prompt)
        return json.dumps({**ANSWER, "difficulty": 0.6 if "Failures: 4" in prompt else 7})

    monkeypatch.setattr(proposal, "open_model", lambda settings: Says(answer))
    store = Memory(tmp_path / "memory.sqlite")
    clusters = [cluster(slipped=4), cluster(Mode.MOTION, drifted=3)]
    store.add(*next(rows for rows in archive.failure_rows([], clusters, "base") if rows[0] is m.Cluster))

    def remember(programs):
        store.add(*archive.program_rows(programs))

    for _ in range(2):
        steps = Steps(tmp_path / "round", Display(Console(file=io.StringIO())))
        run = SimpleNamespace(memory=store)
        round_ = SimpleNamespace(run=run, recipe=recipe, number=1, steps=steps, remember=remember, asked=CriticUsage())
        ((program, found),) = proposal.written_programs(round_, clusters)
        assert program.name == "grasp-1-written" and found == clusters[0]
        assert round_.asked.requests == 2
    assert len(asked_for) == 2 and store.count(m.ProposalRow) == 2
    told = json.loads((tmp_path / "round/proposals.json").read_text())
    assert [one["refused"] is None for one in told] == [True, False]
    plain = SimpleNamespace(recipe=load_evolve(write_recipes(tmp_path)))
    assert proposal.written_programs(plain, clusters) == []
    store.close()


def remember(store: Memory, found: FailureCluster, recipe, name: str, gain: float | None) -> str:
    """Files a cluster with the program it was compiled to and, with a gain, a measurement of it."""
    program = compile_cluster(found, recipe, 1).model_copy(update={"name": name})
    store.add(*archive.program_rows([program]))
    store.add(*next(rows for rows in archive.failure_rows([], [found], "base") if rows[0] is m.Cluster))
    links = {"cluster": found.hash, "program": program.hash, "body": {}}
    store.add(m.VerdictRow, [{**links, "hash": f"v-{name}", "outcome": "validated", "p_value": 0.01}])
    if gain is not None:
        won = round(20 * gain)
        measured = measure(name, 1, [False] * 20, [True] * won + [False] * (20 - won))
        for rows in archive.progress_rows(program, measured, Decision("keep", "it learns"), program, 1):
            store.add(*rows)
    return program.hash


def test_the_prompt_tells_what_may_be_asked_for_and_what_was_tried(recipe, tmp_path):
    store = Memory(tmp_path / "memory.sqlite")
    helped, useless, unlike = cluster(slipped=3, missed_grasp=1), cluster(slipped=4), cluster(Mode.MOTION, stalled=3)
    remember(store, helped, recipe, "helped", 0.4)
    remember(store, useless, recipe, "useless", None)
    remember(store, unlike.model_copy(update={"stage": Stage.PLACE}), recipe, "unlike", 0.9)
    now = cluster(slipped=5)
    store.add(*next(rows for rows in archive.failure_rows([], [now], "base") if rows[0] is m.Cluster))
    refused = propose(Says(lambda prompt: json.dumps({**ANSWER, "difficulty": 7})), useless, recipe, 1, limits=ONCE)
    store.add(
        *proposal_rows([refused, propose(Says(lambda prompt: "no"), helped, recipe, 1, limits=ONCE)], "endpoint:x")
    )

    known = tried_before(store, now)
    assert {p.cluster for p in known} == {helped.hash, useless.hash}
    text = written(now, recipe, known)
    assert "permute + arm + resample at 0.50: validated, 0/20 to 8/20, keep" in text and "never measured" in text
    assert "refused: program: " in text and "field 'difficulty'" in text
    assert "the salad dressing" in text and "slipped (5)" in text and "crowd: Distractors" in text
    assert "resume" not in text and "touching" in text
    schema = json.dumps(Proposal.model_json_schema())
    assert "qpos" not in schema and "crowd" in schema and schema in text
    assert propose(Says(lambda prompt: "no"), now, recipe, 2, known, limits=ONCE).precedents == tuple(
        p.cluster for p in known
    )
    store.close()


def test_what_was_proposed_is_remembered(recipe, tmp_path):
    store = Memory(tmp_path / "memory.sqlite")
    store.add(*next(rows for rows in archive.failure_rows([], [cluster()], "base") if rows[0] is m.Cluster))
    good, bad = asked(recipe, ANSWER), asked(recipe, ANSWER, difficulty=7)
    store.add(*archive.program_rows([good.program]))
    assert store.add(*proposal_rows([good, bad], "endpoint:x")) == 2
    assert store.add(*proposal_rows([good, bad], "endpoint:x")) == 0
    rows = {row["refused"] is None: row for row in store.rows(m.ProposalRow)}
    assert rows[True]["program"] == good.program.hash and rows[False]["program"] is None
    assert "difficulty" in rows[False]["refused"] and rows[False]["body"]["text"] == bad.raw
    store.close()
