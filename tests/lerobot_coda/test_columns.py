"""Label columns: points at the instant the image shows, potentials, and which actions were executed."""

from dataclasses import replace

import numpy as np
from synthetic import lost, solved

from lerobot_coda.columns import EXECUTED, POINTS, POTENTIAL, coda_columns


def test_points_belong_to_the_image_that_a_frame_holds():
    episode = solved()
    every, held = coda_columns(episode)[POINTS], coda_columns(episode, render_every=4)[POINTS]
    assert every.shape == (len(episode) + 1, 10)
    assert np.array_equal(held[4], every[4]) and np.array_equal(held[7], every[4])
    milk = episode.object_names.index("milk_1")
    assert np.allclose(every[:, 2:5], episode.object_pos[:, milk], atol=1e-6)


def test_potential_rises_in_a_success_and_is_zero_at_its_terminal():
    episode = solved()
    phi = coda_columns(episode)[POTENTIAL][:, 0]
    assert phi[-1] == 0.0 and phi[-2] > phi[0]
    assert (phi >= 0).all() and (phi <= 0.5).all()
    assert phi.max() > coda_columns(lost())[POTENTIAL].max()


def test_a_correction_is_told_from_what_was_executed():
    episode = lost()
    assert coda_columns(episode)[EXECUTED].all()
    labels = episode.actions.copy()
    labels[3] = 0.5
    marked = coda_columns(replace(episode, expert_actions=labels))[EXECUTED][:, 0]
    assert marked[3] == 0.0 and marked.sum() == len(episode)
