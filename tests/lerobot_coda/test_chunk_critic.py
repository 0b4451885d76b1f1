"""The chunk critic: what reaches which head, masks, targets, modes, best of N, and that it learns a known task."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lerobot_coda.chunk_critic import ChunkCritic, ChunkCriticConfig, ChunkTransition

FEATURES, HORIZON, ACTIONS = 4, 3, 2


def critic(**changes: object) -> ChunkCritic:
    torch.manual_seed(0)
    base: dict = {"features": FEATURES, "horizon": HORIZON, "actions": ACTIONS, "hidden": 32, "bins": 41}
    return ChunkCritic(ChunkCriticConfig(**{**base, **changes}))


def transition(rows: int = 6, **changes: Tensor | None) -> ChunkTransition:
    draws = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draws)

    made = ChunkTransition(
        features=draw(rows, FEATURES),
        later_features=draw(rows, FEATURES),
        chunk=draw(rows, HORIZON, ACTIONS) * 2 - 1,
        valid=torch.ones(rows, HORIZON),
        reward=0.1 * draw(rows, HORIZON),
        terminated=torch.zeros(rows),
        phi=0.5 * draw(rows),
        later_phi=0.5 * draw(rows),
    )
    return replace(made, **changes)


def trained(model: ChunkCritic, batch: ChunkTransition, steps: int = 20, rate: float = 3e-3) -> ChunkCritic:
    optimizer = torch.optim.Adam(model.online.parameters(), lr=rate)
    for _ in range(steps):
        loss = model.loss(batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_targets(0.9)
    return model


def test_an_untrained_value_is_the_potential() -> None:
    batch = transition()
    value = critic().value(batch.features, batch.phi)
    assert torch.allclose(value, batch.phi, atol=1e-3)
    assert torch.allclose(critic(mode="reward").value(batch.features, batch.phi), torch.zeros(6), atol=1e-3)
    assert torch.allclose(critic(low=-0.5, high=1.2).value(batch.features, batch.phi), batch.phi, atol=1e-3)


def test_an_untrained_advantage_is_the_temporal_difference_of_the_potential() -> None:
    batch = transition(reward=torch.zeros(6, HORIZON), terminated=torch.tensor([0.0, 0, 0, 0, 0, 1]))
    advantage = critic(use_q=False, gamma=0.9).loss(batch).advantage
    expected = 0.9**HORIZON * batch.later_phi * (1 - batch.terminated) - batch.phi
    assert torch.allclose(advantage, expected, atol=1e-3)


@pytest.mark.parametrize("use_q", [False, True])
def test_padding_changes_nothing(use_q: bool) -> None:
    valid = torch.ones(6, HORIZON)
    valid[0, 1:], valid[1] = 0.0, 0.0  # a chunk that was re-planned after one step, and a row that never ran
    batch = transition(valid=valid)
    model = trained(critic(use_q=use_q), batch)
    chunk, reward = batch.chunk.clone(), batch.reward.clone()
    chunk[0, 1:], reward[0, 1:] = 9.0, float("nan")
    chunk[1], reward[1] = -9.0, 7.0
    features = batch.features.clone()
    features[1] = 100.0
    one, other = model.loss(batch), model.loss(replace(batch, chunk=chunk, reward=reward, features=features))
    assert torch.allclose(one.loss, other.loss)
    assert torch.allclose(one.advantage, other.advantage) and one.advantage[1] == 0
    chunk[0, 0] = 0.5  # an action that ran does count
    assert torch.allclose(one.loss, model.loss(replace(batch, chunk=chunk)).loss) is not use_q


def test_the_two_modes_learn_the_same_and_report_different_values() -> None:
    batch = transition(terminated=torch.tensor([0.0, 1, 0, 1, 0, 0]))
    baseline, shaped = (trained(critic(mode=mode), batch) for mode in ("baseline", "reward"))
    assert torch.allclose(baseline.loss(batch).advantage, shaped.loss(batch).advantage, atol=1e-5)
    difference = baseline.value(batch.features, batch.phi) - shaped.value(batch.features, batch.phi)
    assert torch.allclose(difference, batch.phi, atol=1e-5)


def test_no_gradient_reaches_features_or_targets() -> None:
    model, batch = critic(), transition()
    batch = replace(batch, features=batch.features.requires_grad_())
    found = model.loss(batch)
    found.loss.backward()
    assert batch.features.grad is None and not found.advantage.requires_grad
    assert all(p.grad is None for p in model.target.parameters())
    assert all(p.grad is not None for p in model.online.parameters())
    assert all(type(value) is float for value in found.logs.values())


def test_q_learns_from_open_loop_chunks_alone() -> None:
    model = critic()
    found = model.loss(transition(open_loop=torch.zeros(6)))
    assert found.logs["q_loss"] == 0.0 and found.logs["value_loss"] > 0.0
    mixed = transition(open_loop=torch.tensor([1.0, 1, 1, 0, 0, 0]))
    found = trained(model, mixed).loss(mixed)
    td = trained(critic(use_q=False), mixed).loss(mixed)
    assert found.advantage.shape == td.advantage.shape
    model.loss(replace(mixed, chunk=mixed.chunk * torch.tensor([1.0, 1, 1, 9, 9, 9])[:, None, None]))
    changed = mixed.chunk.clone()
    changed[3:] = 9.0
    assert torch.allclose(model.loss(mixed).loss, model.loss(replace(mixed, chunk=changed)).loss)


def test_targets_follow_the_online_heads() -> None:
    model, batch = critic(), transition()
    optimizer = torch.optim.SGD(model.online.parameters(), lr=0.1)
    model.loss(batch).loss.backward()
    optimizer.step()
    before = model.target["v"][0].weight.clone()
    online = model.online["v"][0].weight
    model.update_targets(1.0)
    assert torch.equal(before, model.target["v"][0].weight)
    trained(model, batch)
    before = model.target["v"][0].weight.clone()
    model.update_targets(0.75)
    assert torch.allclose(model.target["v"][0].weight, 0.75 * before + 0.25 * online)


def test_a_checkpoint_restores_the_targets_or_rebuilds_missing_ones() -> None:
    model = trained(critic(), transition())
    model.update_targets(0.5)
    whole, online = critic(), critic()
    whole.load_state_dict(model.state_dict())
    assert torch.equal(whole.target["q1"][0].weight, model.target["q1"][0].weight)
    holder = torch.nn.ModuleDict({"critic": online})  # as a policy holds it, and as an adapter's checkpoint names it
    kept = {f"critic.{key}": value for key, value in model.state_dict().items() if key.startswith("online.")}
    assert not holder.load_state_dict(kept).missing_keys
    assert torch.equal(online.target["q1"][0].weight, model.online["q1"][0].weight)


def test_best_of_n_finds_the_chunk_that_pays() -> None:
    """The reward of a chunk is its first action's first number: Q must rank chunks by it, V must not fall for it."""
    draws = torch.Generator().manual_seed(3)
    rows = 512
    batch = transition(
        rows,
        chunk=torch.rand(rows, HORIZON, ACTIONS, generator=draws) * 2 - 1,
        terminated=torch.ones(rows),
        phi=torch.zeros(rows),
        later_phi=torch.zeros(rows),
    )
    reward = torch.zeros(rows, HORIZON)
    reward[:, 0] = batch.chunk[:, 0, 0]
    batch = replace(batch, reward=reward)
    model = trained(critic(), batch, steps=150)
    chunks = torch.rand(20, 8, HORIZON, ACTIONS, generator=draws) * 2 - 1
    q = model.q(torch.rand(20, FEATURES, generator=draws), chunks)
    assert q.shape == (20, 8)
    chosen = chunks[torch.arange(20), q.argmax(-1), 0, 0]
    assert (chosen > chunks[:, :, 0, 0].amax(-1) - 0.2).float().mean() > 0.8
    advantage = model.loss(batch).advantage
    assert torch.corrcoef(torch.stack([advantage, reward[:, 0]]))[0, 1] > 0.9


def test_a_high_expectile_values_the_best_chunks() -> None:
    draws = torch.Generator().manual_seed(4)
    chunk = torch.rand(128, HORIZON, ACTIONS, generator=draws) * 2 - 1
    batch = transition(128, chunk=chunk, terminated=torch.ones(128), phi=torch.zeros(128), later_phi=torch.zeros(128))
    batch = replace(batch, reward=torch.nn.functional.pad(chunk[:, :1, 0], (0, HORIZON - 1)))
    mean, best = (
        trained(critic(expectile=expectile), batch, steps=150).value(batch.features, batch.phi).mean()
        for expectile in (0.5, 0.9)
    )
    assert best > mean + 0.1


def test_a_latched_stage_is_seen_by_the_heads_or_refused() -> None:
    stage, later = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([1, 2, 2, 0, 1, 2])
    batch = transition(stage=stage, later_stage=later)
    model = trained(critic(stages=3), batch)
    one = model.value(batch.features, batch.phi, stage)
    assert not torch.allclose(one, model.value(batch.features, batch.phi, later))
    with pytest.raises(ValueError, match="stages=0 but the chunks come with a stage"):
        critic().loss(batch)
    with pytest.raises(ValueError, match="stages=3 but the chunks come without a stage"):
        model.loss(transition())


@pytest.mark.parametrize("mode", ["baseline", "reward"])
def test_calibration_is_of_the_unshaped_value_in_both_modes(mode: str) -> None:
    batch = transition()
    batch = replace(batch, realised=batch.phi + 0.25, stage=torch.tensor([0, 0, 0, 1, 1, 1]))
    logs = critic(mode=mode, stages=2).loss(replace(batch, later_stage=batch.stage)).logs
    assert logs["calibration_bias"] == pytest.approx(-0.25, abs=1e-3)
    assert logs["calibration_error_stage1"] == pytest.approx(0.25, abs=1e-3)


def test_targets_off_the_support_are_counted() -> None:
    assert critic().loss(transition(reward=torch.full((6, HORIZON), 5.0))).logs["clipped_targets"] == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 1.5}, "gamma must lie in"),
        ({"low": 0.2}, "low <= 0 <= high"),
        ({"expectile": 1.0}, "expectile must lie"),
        ({"expectile": 0.7, "use_q": False}, "needs use_q=True"),
        ({"mode": "shaped"}, "mode must be one of"),
        ({"projection": "one_hot"}, "projection must be one of"),
    ],
)
def test_a_wrong_configuration_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        critic(**changes)


def test_best_of_n_without_q_or_with_short_chunks_is_refused() -> None:
    with pytest.raises(ValueError, match="use_q=True"):
        critic(use_q=False).q(torch.zeros(1, FEATURES), torch.zeros(1, 2, HORIZON, ACTIONS))
    with pytest.raises(ValueError, match="trained on 3"):
        critic().q(torch.zeros(1, FEATURES), torch.zeros(1, 2, 2, ACTIONS))
