"""The coda policy as LeRobot sees it: losses, masks, chunk queue, what is saved, what becomes an input."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lerobot.configs.types import FeatureType, PolicyFeature

from lerobot_coda.backbones.language import embed
from lerobot_coda.columns import EXECUTED, POINTS, POTENTIAL
from lerobot_coda.configuration_coda import CodaConfig
from lerobot_coda.grounding import GroundingSet
from lerobot_coda.modeling_coda import CodaPolicy
from libero_pro.footage import FRAME_AGE

PROMPT = "pick the milk and place it in the basket"


def config(**changes: object) -> CodaConfig:
    base: dict = {"device": "cpu", "push_to_hub": False, "image_size": 64, "width": 16, "hidden": 32, "chunk_size": 6,
                  "n_action_steps": 3}  # fmt: skip
    made = CodaConfig(**{**base, **changes})
    made.input_features = {
        "observation.images.image": PolicyFeature(FeatureType.VISUAL, (3, 64, 64)),
        "observation.state": PolicyFeature(FeatureType.STATE, (8,)),
        POINTS: PolicyFeature(FeatureType.STATE, (10,)),
        POTENTIAL: PolicyFeature(FeatureType.STATE, (1,)),
    }
    made.output_features = {"action": PolicyFeature(FeatureType.ACTION, (7,))}
    return made


def batch(rows: int = 4, later: bool = False) -> dict:
    torch.manual_seed(0)
    time = (2,) if later else ()
    action = torch.rand(rows, 6, 7) * 2 - 1
    action[..., 6] = action[..., 6].sign()
    return {
        "observation.images.image": torch.rand(rows, *time, 3, 64, 64),
        "observation.state": torch.rand(rows, *time, 8) * 0.1,
        "action": action,
        "action_is_pad": torch.zeros(rows, 6, dtype=torch.bool),
        "next.reward": torch.zeros(rows, 3),
        "next.reward_is_pad": torch.zeros(rows, 3, dtype=torch.bool),
        POINTS: torch.rand(rows, *time, 10),
        POTENTIAL: torch.rand(rows, *time) * 0.5,
        EXECUTED: torch.ones(rows, *time),
        "index": torch.arange(rows) * 10,
        "task": [PROMPT] * rows,
    }


def test_label_columns_never_become_inputs() -> None:
    policy = CodaPolicy(config())
    assert set(policy.config.input_features) == {"observation.images.image", "observation.state"}


def test_padded_actions_do_not_move_the_loss() -> None:
    policy, data = CodaPolicy(config()), batch()
    data["action_is_pad"][:, 4:] = True
    before, _ = policy(data, reduction="none")
    data["action"][:, 4:] = 1.0
    after, _ = policy(data, reduction="none")
    assert torch.equal(before, after) and before.shape == (4,)
    data["action"][:, 3] = 1.0
    assert not torch.equal(after, policy(data, reduction="none")[0])


def test_a_few_steps_fit_a_small_batch() -> None:
    policy, data = CodaPolicy(config(grounding_weight=1.0)), batch()
    optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss, logs = policy(data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(logs["cloning_loss"])
    assert losses[-1] < 0.5 * losses[0]


def test_value_learning_weighs_cloning_and_moves_the_target_head() -> None:
    policy, data = CodaPolicy(config(value_weight=0.5)), batch(later=True)
    data["next.reward"][0, 2] = 1.0
    assert policy.config.observation_delta_indices == [0, 3]
    optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=1e-2)
    before = policy.critic.target["v"][0].weight.clone()
    for _ in range(3):
        loss, logs = policy(data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        policy.update()
    assert {"value_loss", "value", "cloning_loss"} <= set(logs)
    assert all(type(value) is float for value in logs.values())
    assert not torch.equal(before, policy.critic.target["v"][0].weight)


def test_value_learning_without_its_column_says_which_command_adds_it() -> None:
    policy, data = CodaPolicy(config(value_weight=0.5)), batch(later=True)
    del data[POTENTIAL]
    with pytest.raises(ValueError, match=r"observation\.coda_potential.*lerobot-coda demos"):
        policy(data)


def test_static_layouts_are_drawn_and_learned_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    count = 5
    GroundingSet(
        images=rng.integers(0, 255, (count, 64, 64, 3), dtype=np.uint8),
        text=np.zeros((count, 1), np.int32),
        image_points=rng.random((count, 1, 2, 2)).astype(np.float32),
        world_points=rng.random((count, 1, 2, 3)).astype(np.float32),
        weight=np.ones((count, 1, 2), np.float32),
        texts=(PROMPT,),
    ).save(tmp_path / "set.safetensors")
    policy = CodaPolicy(config(grounding_weight=1.0, grounding_path=str(tmp_path / "set.safetensors")))
    _, logs = policy(batch())
    assert logs["grounding_static_mm"] > 0


def test_cached_features_equal_fresh_ones() -> None:
    policy, data = CodaPolicy(config()), batch()
    first, _ = policy(data, reduction="none")
    assert len(policy.backbone._cache.rows) == 4
    second, _ = policy(data, reduction="none")
    assert torch.equal(first, second)


def test_frames_that_hold_an_older_image_share_its_features() -> None:
    policy, data = CodaPolicy(config()), batch()
    data["index"] = torch.tensor([8, 9, 10, 12])
    data[FRAME_AGE] = torch.tensor([0.0, 1.0, 2.0, 0.0])
    policy(data)
    assert sorted(policy.backbone._cache.rows) == [8, 12]


def test_chunks_are_executed_before_a_new_one_is_predicted() -> None:
    policy, data = CodaPolicy(config()).eval(), batch(rows=1)
    chunk = policy.predict_action_chunk(data)
    assert chunk.shape == (1, 6, 7) and set(chunk[..., 6].unique().tolist()) <= {-1.0, 1.0}
    taken = [policy.select_action(data) for _ in range(3)]
    assert torch.equal(torch.stack(taken, 1), chunk[:, :3])
    policy.reset()
    assert not policy._queue


def test_a_checkpoint_restores_the_outputs_and_leaves_the_frozen_trunks_out(tmp_path: Path) -> None:
    policy, data = CodaPolicy(config()).eval(), batch(rows=2)
    policy.save_pretrained(tmp_path)
    again = CodaPolicy.from_pretrained(tmp_path)
    assert torch.equal(policy.predict_action_chunk(data), again.predict_action_chunk(data))
    assert (tmp_path / "model.safetensors").stat().st_size < 4_000_000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_action_steps": 9}, "n_action_steps must lie between 1 and chunk_size=6"),
        ({"gamma": 1.0}, "gamma must lie between 0 and 1"),
        ({"image_size": 100}, "image_size must be a multiple of 32"),
        ({"grounding_path": "x"}, "grounding_weight is 0"),
    ],
)
def test_a_bad_setting_is_one_sentence(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config(**changes)


def test_a_dataset_without_the_camera_is_refused_by_name() -> None:
    made = config(camera="observation.images.front")
    with pytest.raises(ValueError, match=r"'observation\.images\.front' is not among the cameras"):
        CodaPolicy(made)


def test_instructions_are_told_apart() -> None:
    milk, soup, again = embed([PROMPT, "pick the alphabet soup and place it in the basket", f"  {PROMPT.upper()} "])
    assert torch.equal(milk, again)
    assert torch.cosine_similarity(milk, soup, dim=0) < 0.9
