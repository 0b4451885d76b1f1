"""Laws of chunk value learning: projections, targets, shaping, advantages, weights, calibration."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lerobot_coda.value import (
    HL_GAUSS_WIDTH,
    advantage_weights,
    calibration,
    chunk_gae,
    chunk_return,
    chunk_target,
    executed_steps,
    expectation,
    expectile_weights,
    head_target,
    hl_gauss,
    shaping,
    support,
    two_hot,
    whole_value,
)

GAMMA = 0.9
seeds = st.integers(0, 10_000)
laws = settings(max_examples=40, deadline=None)


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=draws(seed), dtype=torch.float64) * 2 - 1


@laws
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20), st.integers(2, 101))
def test_two_hot_has_the_value_as_its_mean(values: list[float], bins: int) -> None:
    centres = support(bins, -1.0, 1.0)
    rows = two_hot(torch.tensor(values), centres)
    assert torch.allclose(rows.sum(-1), torch.ones(len(values)), atol=1e-5)
    assert (rows >= 0).all()
    assert torch.allclose(rows @ centres, torch.tensor(values).clamp(-1, 1), atol=1e-4)


@laws
@given(st.lists(st.floats(-0.8, 0.8), min_size=1, max_size=20), st.integers(41, 101))
def test_hl_gauss_has_the_value_as_its_mean_away_from_the_ends(values: list[float], bins: int) -> None:
    centres = support(bins, -1.0, 1.0)
    rows = hl_gauss(torch.tensor(values), centres)
    assert torch.allclose(rows.sum(-1), torch.ones(len(values)), atol=1e-5)
    assert (rows >= 0).all()
    assert torch.allclose(rows @ centres, torch.tensor(values), atol=1e-3)
    spread = (rows * (centres - torch.tensor(values)[:, None]).square()).sum(-1).sqrt()
    width = HL_GAUSS_WIDTH * (centres[1] - centres[0])
    assert torch.allclose(spread, width.expand_as(spread), rtol=0.2)


@laws
@given(st.floats(-5, 5))
def test_hl_gauss_stays_a_distribution_beyond_the_support(value: float) -> None:
    centres = support(51, -1.0, 1.0)
    row = hl_gauss(torch.tensor([value]), centres)
    assert row.isfinite().all() and row.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert abs((row @ centres).item() - max(-1.0, min(1.0, value))) < 0.04


@laws
@given(seeds, st.sampled_from([two_hot, hl_gauss]))
def test_expectation_reads_back_what_was_projected(seed: int, projection: object) -> None:
    centres = support(51, -1.0, 1.0)
    value = 0.8 * uniform(8, seed=seed).float()
    assert callable(projection)
    logits = projection(value, centres).clamp_min(1e-12).log()
    assert torch.allclose(expectation(logits, centres), value, atol=1e-3)


def test_chunk_return_discounts_each_step_and_ends_where_the_chunk_does() -> None:
    rewards = torch.tensor([[0.0, 1.0, 1.0, 1.0], [1.0, 0.0, float("nan"), 1.0]])
    valid = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0]])
    assert chunk_return(rewards, valid, GAMMA).tolist() == pytest.approx([0.9, 1.0])
    assert executed_steps(valid).tolist() == executed_steps(valid.bool()).tolist() == [2.0, 2.0]


def test_a_truncation_bootstraps_and_a_termination_does_not() -> None:
    reward, value, tau = torch.tensor([0.0, 1.0]), torch.tensor([0.6, 0.6]), torch.tensor([4.0, 4.0])
    terminated = torch.tensor([0.0, 1.0])
    assert chunk_target(reward, value, tau, terminated, GAMMA).tolist() == pytest.approx([GAMMA**4 * 0.6, 1.0])
    f = shaping(torch.tensor([0.2, 0.2]), torch.tensor([0.5, 0.5]), tau, terminated, GAMMA)
    assert f.tolist() == pytest.approx([GAMMA**4 * 0.5 - 0.2, -0.2])


@laws
@given(seeds, st.lists(st.integers(1, 5), min_size=1, max_size=8), st.booleans())
def test_shaping_telescopes_along_an_episode(seed: int, lengths: list[int], terminated: bool) -> None:
    """Discounted and summed it is -Phi(start), plus what is left where the episode was cut; per step or per chunk."""
    phi = uniform(sum(lengths) + 1, seed=seed)
    per_step, per_chunk, start = 0.0, 0.0, 0
    one = torch.ones((), dtype=torch.float64)
    for count, tau in enumerate(lengths, 1):
        ended = one * (terminated and count == len(lengths))
        per_chunk += GAMMA**start * shaping(phi[start], phi[start + tau], one * tau, ended, GAMMA)
        for i in range(start, start + tau):
            last = ended * (i == start + tau - 1)
            per_step += GAMMA**i * shaping(phi[i], phi[i + 1], one, last, GAMMA)
        start += tau
    left = 0.0 if terminated else GAMMA**start * phi[start].item()
    assert float(per_chunk) == pytest.approx(left - phi[0].item(), abs=1e-9)
    assert float(per_step) == pytest.approx(float(per_chunk), abs=1e-9)


def episode(seed: int, n: int, terminated: bool) -> dict[str, Tensor]:
    """n consecutive chunks of one episode, with the value of each end."""
    value = uniform(n + 1, seed=seed)
    last = torch.zeros(n, dtype=torch.float64)
    last[-1] = 1.0
    return {
        "reward": uniform(n, seed=seed + 1),
        "value": value[:-1],
        "later_value": value[1:],
        "tau": torch.randint(1, 6, (n,), generator=draws(seed)).double(),
        "terminated": last * terminated,
        "done": last,
    }


@laws
@given(seeds, st.integers(1, 8), st.booleans())
def test_gae_of_decay_1_is_return_minus_value_and_of_decay_0_the_td_error(seed: int, n: int, terminated: bool) -> None:
    chunks = episode(seed, n, terminated)
    reward, value, tau = chunks["reward"], chunks["value"], chunks["tau"]
    returns, after = [], chunks["later_value"][-1] * (1 - terminated)
    for j in reversed(range(n)):
        after = reward[j] + GAMMA ** tau[j] * after
        returns.append(after)
    assert torch.allclose(chunk_gae(**chunks, gamma=GAMMA, decay=1.0), torch.stack(returns[::-1]) - value)
    error = chunk_target(reward, chunks["later_value"], tau, chunks["terminated"], GAMMA) - value
    assert torch.allclose(chunk_gae(**chunks, gamma=GAMMA, decay=0.0), error)


@laws
@given(seeds, st.integers(1, 6), st.integers(1, 6), st.floats(0, 1))
def test_gae_keeps_episodes_apart_and_padding_out(seed: int, first: int, second: int, decay: float) -> None:
    parts = [episode(seed, first, True), episode(seed + 7, second, False)]
    padding = {name: torch.full((3,), 0.0 if name == "tau" else 5.0, dtype=torch.float64) for name in parts[0]}
    joined = {name: torch.cat([parts[0][name], parts[1][name], padding[name]]) for name in padding}
    together = chunk_gae(**joined, gamma=GAMMA, decay=decay)
    alone = [chunk_gae(**part, gamma=GAMMA, decay=decay) for part in parts]
    assert torch.allclose(together, torch.cat([*alone, torch.zeros(3, dtype=torch.float64)]))


@laws
@given(seeds)
def test_both_modes_regress_on_the_same_number_and_give_the_same_advantage(seed: int) -> None:
    reward, phi, later_phi, head, later_head = uniform(5, 32, seed=seed)
    tau = torch.randint(1, 9, (32,), generator=draws(seed)).double()
    terminated = (uniform(32, seed=seed + 1) > 0).double()
    targets = {
        mode: head_target(reward, phi, later_phi, later_head, tau, terminated, GAMMA, mode)
        for mode in ("baseline", "reward")
    }
    assert torch.allclose(targets["baseline"], targets["reward"])
    whole = chunk_target(reward, whole_value(later_head, later_phi, "baseline"), tau, terminated, GAMMA)
    assert torch.allclose(whole - whole_value(head, phi, "baseline"), targets["reward"] - head)


@laws
@given(seeds, st.integers(1, 6), st.floats(0, 1))
def test_gae_of_the_baseline_is_gae_of_the_shaped_reward(seed: int, n: int, decay: float) -> None:
    chunks = episode(seed, n, terminated=seed % 2 == 0)
    phi = uniform(n + 1, seed=seed + 3)
    whole = {"value": chunks["value"] + phi[:-1], "later_value": chunks["later_value"] + phi[1:]}
    f = shaping(phi[:-1], phi[1:], chunks["tau"], chunks["terminated"], GAMMA)
    baseline = chunk_gae(**{**chunks, **whole}, gamma=GAMMA, decay=decay)
    assert torch.allclose(baseline, chunk_gae(**{**chunks, "reward": chunks["reward"] + f}, gamma=GAMMA, decay=decay))


@laws
@given(seeds, st.integers(1, 7))
def test_what_stands_in_padding_changes_no_return(seed: int, tau: int) -> None:
    valid = (torch.arange(8) < tau).double()[None]
    reward = uniform(1, 8, seed=seed)
    other = torch.where(valid > 0, reward, uniform(1, 8, seed=seed + 1))
    assert torch.equal(chunk_return(reward, valid, GAMMA), chunk_return(other, valid, GAMMA))
    assert executed_steps(valid).item() == tau


@laws
@given(seeds, st.floats(0.01, 2), st.floats(1, 20))
def test_advantage_weights_prefer_better_chunks_and_average_one(seed: int, temperature: float, clip: float) -> None:
    advantage = uniform(16, seed=seed).sort().values
    weights = advantage_weights(advantage, temperature, clip)
    assert weights.mean().item() == pytest.approx(1.0)
    assert (weights.diff() >= 0).all() and (weights >= 0).all() and weights.isfinite().all()


def test_advantage_weights_are_clipped_and_carry_no_gradient() -> None:
    advantage = torch.tensor([0.0, 50.0], requires_grad=True)
    weights = advantage_weights(advantage, temperature=0.1, clip=3.0)
    assert weights[1].item() / weights[0].item() == pytest.approx(3.0)
    assert not weights.requires_grad


def test_expectile_weights_lean_to_what_is_better_than_the_value() -> None:
    assert expectile_weights(torch.tensor([-1.0, 1.0]), 0.5).tolist() == [1.0, 1.0]
    assert expectile_weights(torch.tensor([-1.0, 1.0]), 0.9).tolist() == pytest.approx([0.2, 1.8])


def test_calibration_tells_bias_and_error_by_stage() -> None:
    found = calibration(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0.0, 1.0, 0.5]), torch.tensor([0, 0, 2]))
    assert set(found) == {None, 0, 2}
    assert (found[None].n, found[None].bias) == (3, pytest.approx(0.0))
    assert found[None].error == pytest.approx(math.sqrt(2 / 3))
    assert (found[0].bias, found[0].error, found[2].error) == (0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="at least one chunk"):
        calibration(torch.zeros(0), torch.zeros(0))
