"""The examples do what their pages say."""

import json
import threading
from pathlib import Path

import pytest
import yaml

from examples import own_critic
from lerobot_coda.critic.diagnosis import Cause, Stage
from lerobot_coda.critic.review import SimulatorCritic, reviewed
from lerobot_coda.critic.settings import CriticSettings, open_critic
from lerobot_coda.recipe import parse_recipe
from libero_pro.denylist import leaks
from libero_pro.scenefile import read_program, read_scenes

ROOT = Path(__file__).parents[2]


@pytest.mark.sim
def test_own_policy(tmp_path: Path, capsys) -> None:
    from examples import own_policy

    result = own_policy.main(tmp_path, horizon=12)
    assert [(row["suite"], row["steps"]) for row in result.rows] == [
        (suite, 12) for suite in ("libero_object", "libero_object_swap") for _ in range(2)
    ]
    assert "policy:memorizer" in (tmp_path / "card.md").read_text()
    assert "libero_object_swap: 0 of 2" in capsys.readouterr().out


def test_own_program_emits_scenes_that_are_no_test() -> None:
    program = read_program(ROOT / "examples" / "own_program.json")
    scenes = [program.scene(index) for index in range(6)]
    assert len({scene.hash for scene in scenes}) == 6
    assert {scene.task_id for scene in scenes} <= {0, 1, 2}
    assert not any(leaks(scene) for scene in scenes)


@pytest.mark.sim
def test_own_perturbation(tmp_path: Path) -> None:
    from examples import own_perturbation

    good = own_perturbation.main(tmp_path, count=2)
    assert good and read_scenes(tmp_path) == good
    own, mirrored = own_perturbation.scene_for("libero_object", 0, seed=0), good[0]
    assert mirrored.objects and mirrored.goal == own.goal and mirrored.hash != own.hash


def test_own_critic_is_asked_over_http_and_its_claim_stands(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "lerobot_coda"))
    import clipped

    settings = parse_recipe(CriticSettings, yaml.safe_load((ROOT / "examples/own_critic.yaml").read_text()), "critic")
    clips = clipped.clips(tmp_path, 2)
    found = clipped.grouped(clips)
    with own_critic.server(0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{running.server_port}/v1"
        critic = open_critic(settings.model_copy(update={"url": url}), tmp_path)
        _, review = reviewed([found], {found.hash: clips}, critic, SimulatorCritic())[0]
        running.shutdown()
    assert review.invalid is None and review.decided == "endpoint:own-rules"
    assert (review.claim.stage, review.claim.cause) == (Stage.REACH, Cause.MISSED_GRASP)
    assert "milk_1" in review.claim.explanation


@pytest.mark.parametrize(
    ("held", "least", "expected"),
    [
        (["ketchup_1"], 30, "wrong_object"),
        (["milk_1"], 0, "wrong_place"),
        ([], 2, "missed_grasp"),
    ],
)
def test_own_critic_reads_what_it_is_told(held: list[str], least: int, expected: str) -> None:
    states = {
        "least_cm_of_hand_from_object_and_step": {"milk_1": [least, 7]},
        "held_by_both_fingers": [{"object": name, "from": 1, "to": 5} for name in held],
    }
    told = {"episodes": [{"states": states}], "names": ["milk_1", "ketchup_1"], "goals": ["in milk_1 basket_1"]}
    schema = {"properties": {"difficulty": {"properties": {"permute": {}}}}}
    claim = own_critic.diagnose(told, [], schema)
    assert claim["cause"] == expected and json.dumps(claim)


def test_own_backbone_learns_under_the_critic(capsys) -> None:
    from examples import own_backbone

    assert own_backbone.main() < 0.5
    assert "chunk (6, 8, 7)" in capsys.readouterr().out


def test_an_adapter_that_breaks_the_contract_is_caught() -> None:
    import torch

    from examples import own_backbone

    class Peeks(own_backbone.LinearBackbone):
        """Its features see the actions, so a value could read the future."""

        def clone(self, batch):
            cloned = super().clone(batch)
            mean = batch[own_backbone.ACTION].mean((1, 2))[:, None]
            return own_backbone.Cloned(cloned.loss, torch.cat([cloned.features[:, 1:], mean], -1))

    config = own_backbone.LinearConfig(device="cpu", push_to_hub=False)
    config.input_features = {own_backbone.STATE: own_backbone.PolicyFeature(own_backbone.FeatureType.STATE, (8,))}
    config.output_features = {own_backbone.ACTION: own_backbone.PolicyFeature(own_backbone.FeatureType.ACTION, (7,))}
    backbone = Peeks(own_backbone.LinearPolicy(config))
    with pytest.raises(AssertionError, match="with and without actions"):
        own_backbone.check(backbone, own_backbone.batch_of(3, config))
