"""Laws of chunk value learning: projection, targets, and that shaping never changes what is optimal."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_coda.value import advantage_weights, chunk_return, chunk_target, shaping, support, two_hot


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20), st.integers(2, 101))
def test_two_hot_has_the_value_as_its_mean(values: list[float], bins: int) -> None:
    centres = support(bins, -1.0, 1.0)
    rows = two_hot(torch.tensor(values), centres)
    assert torch.allclose(rows.sum(-1), torch.ones(len(values)), atol=1e-5)
    assert (rows >= 0).all()
    assert torch.allclose(rows @ centres, torch.tensor(values).clamp(-1, 1), atol=1e-4)


def test_chunk_return_ignores_padding_and_discounts_per_step() -> None:
    rewards = torch.tensor([[0.0, 1.0, 1.0, 1.0]])
    valid = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    assert chunk_return(rewards, valid, 0.9).item() == pytest.approx(0.9)


def test_a_truncation_bootstraps_and_a_termination_does_not() -> None:
    reward, value, tau = torch.tensor([0.0, 1.0]), torch.tensor([0.6, 0.6]), torch.tensor([4.0, 4.0])
    target = chunk_target(reward, value, tau, torch.tensor([0.0, 1.0]), 0.9)
    assert target.tolist() == pytest.approx([0.9**4 * 0.6, 1.0])


def test_advantage_weights_prefer_better_chunks_and_average_one() -> None:
    weights = advantage_weights(torch.tensor([-0.5, 0.0, 0.5]), temperature=0.1, clip=3.0)
    assert weights.mean().item() == pytest.approx(1.0)
    assert weights[0] < weights[1] < weights[2]


def random_mdp(
    rng: np.random.Generator, states: int = 6, actions: int = 2
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deterministic MDP: successors, rewards, and which states are terminal."""
    successor = rng.integers(states, size=(states, actions))
    terminal = np.zeros(states, bool)
    terminal[: rng.integers(1, 3)] = True
    return successor, 0.1 * rng.normal(size=(states, actions)), terminal


def chunk_model(
    mdp: tuple[np.ndarray, np.ndarray, np.ndarray], k: int, gamma: float
) -> list[list[tuple[float, int, int, bool]]]:
    """For each state and each open-loop chunk of k actions: (R, executed steps, next state, terminated)."""
    successor, reward, terminal = mdp
    model = []
    for start in range(len(successor)):
        rows = []
        for chunk in itertools.product(range(successor.shape[1]), repeat=k):
            state, total, tau = start, 0.0, 0
            for action in chunk:
                total += gamma**tau * reward[state, action]
                state, tau = int(successor[state, action]), tau + 1
                if terminal[state]:
                    break
            rows.append((total, tau, state, bool(terminal[state])))
        model.append(rows)
    return model


def greedy(
    model: list[list[tuple[float, int, int, bool]]], gamma: float, phi: np.ndarray, terminal_phi: bool
) -> list[int]:
    """Greedy chunk of each state after value iteration on R + F. `terminal_phi` breaks the rule Phi(terminal) = 0."""
    value = np.zeros(len(model))
    table = np.zeros((len(model), len(model[0])))
    for _ in range(400):
        for s, rows in enumerate(model):
            for c, (total, tau, after, ended) in enumerate(rows):
                mask = torch.tensor(float(ended and not terminal_phi))
                f = shaping(
                    torch.tensor(phi[s]), torch.tensor(phi[after]), torch.tensor(float(tau)), mask, gamma
                ).item()
                table[s, c] = total + f + (0.0 if ended else gamma**tau * value[after])
        updated = table.max(1)
        if np.abs(updated - value).max() < 1e-10:
            break
        value = updated
    return table.round(7).argmax(1).tolist()


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_invariance_of_the_greedy_chunk(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, states=5)
    model = chunk_model(mdp, 2, 0.9)
    phi = rng.normal(size=5)
    assert greedy(model, 0.9, np.zeros(5), False) == greedy(model, 0.9, phi, False)


def test_invariance_is_lost_when_the_terminal_potential_is_not_zero() -> None:
    changed = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        model = chunk_model(random_mdp(rng, states=5), 2, 0.9)
        phi = 3 * rng.normal(size=5)
        changed += greedy(model, 0.9, np.zeros(5), False) != greedy(model, 0.9, phi, True)
    assert changed > 0
