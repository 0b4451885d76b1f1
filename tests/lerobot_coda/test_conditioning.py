"""What a policy is told of the chunks that it imitates."""

import pytest
import torch
from test_modeling import batch, config

from lerobot_coda.columns import EXECUTED
from lerobot_coda.conditioning import AdvantageCondition, told
from lerobot_coda.modeling_coda import CodaPolicy


def test_better_than_expected_is_positive_and_a_correction_always_is() -> None:
    advantage, executed = torch.tensor([0.2, 0.0, -0.1, -0.1]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert told(advantage, executed, 0.0).tolist() == [1, -1, -1, 1]
    assert told(advantage, None, 0.0).tolist() == [1, -1, -1, -1]


def test_a_share_is_told_nothing() -> None:
    torch.manual_seed(0)
    signs = told(torch.ones(4000), None, 0.3)
    assert set(signs.tolist()) == {0.0, 1.0}
    assert signs.mean().item() == pytest.approx(0.7, abs=0.03)


def test_each_sign_has_a_vector_and_nothing_said_adds_nothing() -> None:
    condition = AdvantageCondition(3)
    assert not condition(torch.tensor([1.0, -1.0])).any()
    with torch.no_grad():
        condition.vectors.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert condition(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [[4, 5, 6], [0, 0, 0], [1, 2, 3]]


def test_the_small_policy_learns_apart_what_is_good_and_what_is_bad() -> None:
    """One chunk led to the reward and its opposite did not, from the same state: asked, it gives the good one."""
    torch.manual_seed(0)
    policy = CodaPolicy(config(value_weight=0.5, advantage_conditioning=True, advantage_weighting=False))
    data = batch(later=True)
    for key, value in data.items():
        if key.startswith("observation."):
            data[key] = value[:1].expand_as(value).clone()
    good = torch.tensor([True, True, False, False])
    data["action"][:] = torch.where(good[:, None, None], 0.8, -0.8)
    data["next.reward"][good, 2] = 1.0
    data["index"] = torch.zeros(4, dtype=torch.long)  # the same frame
    optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=3e-3)
    for _ in range(150):
        policy.train()(data)[0].backward()
        optimizer.step()
        policy.update()
        optimizer.zero_grad()
    seen = {key: value[:1, 0] for key, value in data.items() if key in policy.config.input_features}
    chunk = policy.predict_action_chunk({**seen, "task": data["task"][:1]})
    assert chunk[..., :6].mean() > 0.4 and (chunk[..., 6] == 1).all()


def test_a_correction_is_good_whatever_was_executed() -> None:
    policy = CodaPolicy(config(value_weight=0.5, advantage_conditioning=True, advantage_dropout=0.0)).train()
    data = batch(later=True)
    data[EXECUTED][1] = 0.0
    policy(data)
    assert policy._told[1] == 1 and policy._told.shape == (4,)
    policy(data, reduction="none")
    assert policy._told is None


def test_a_checkpoint_without_a_condition_gets_a_new_one_and_one_with_it_can_do_without(tmp_path) -> None:
    CodaPolicy(config(value_weight=0.5)).save_pretrained(tmp_path / "plain")
    asked = config(value_weight=0.5, advantage_conditioning=True)
    policy = CodaPolicy.from_pretrained(tmp_path / "plain", config=asked)
    assert not policy.condition.vectors.any()
    policy.save_pretrained(tmp_path / "asked")
    assert CodaPolicy.from_pretrained(tmp_path / "asked").condition is not None
    assert CodaPolicy.from_pretrained(tmp_path / "asked", config=config(value_weight=0.5)).condition is None
