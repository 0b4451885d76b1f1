"""`lerobot-coda potential`, the progress file that LeRobot reads, and failures injected into a demonstration."""

import argparse
from contextlib import suppress

import numpy as np
import pytest
from synthetic import lost, scene, solved

from lerobot_coda.columns import STAGE, coda_columns
from lerobot_coda.commands import export_progress, potential
from lerobot_coda.potential import StagedPotential, from_goal
from libero_pro.record import RecordError


def run(*words: str) -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    potential.add(commands)
    export_progress.add(commands)
    arguments = parser.parse_args(list(words))
    arguments.run(arguments)


def test_the_command_shows_stages_and_curve_of_a_stored_episode(tmp_path, capsys):
    solved(scene(task_id=7)).save(tmp_path / "e.npz")
    page, file = tmp_path / "curve.html", tmp_path / "p.json"
    stored = ("--scene", "libero_object:7", "--episode", str(tmp_path / "e.npz"))
    run("potential", *stored, "--out", str(page), "--json", str(file))
    shown = capsys.readouterr().out
    assert "reach 1: near(gripper, target, 0.3) until near(gripper, target, 0.04)" in shown
    assert "expert" not in shown and "(success), Phi in [0, 0.5]" in shown
    assert "rank correlation with time until the goal holds: 0.9" in shown and "place" in shown
    assert "Plotly" in page.read_text() and StagedPotential.load(file).stages[0].name == "reach"


def test_the_command_takes_words_the_language_and_json(tmp_path, capsys):
    where = ("--scene", "libero_object:7", "--no-episode")
    run("potential", "pick up the milk and put it in the basket", *where)
    words = capsys.readouterr().out
    plan = tmp_path / "plan.txt"
    plan.write_text(words.split("\n\n")[1])
    run("potential", f"@{plan}", *where, "--json", str(tmp_path / "p.json"))
    assert capsys.readouterr().out == words
    run("potential", (tmp_path / "p.json").read_text(), *where)
    assert capsys.readouterr().out == words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--scene", "libero_object"), "is not SUITE:TASK"),
        (("--scene", "libero_objekt:1"), "did you mean 'libero_object'"),
        (("--scene", "libero_object:7", "--no-episode", "--out", "x.html"), "--out needs an episode"),
        (("@nowhere.txt", "--scene", "libero_object:7"), "cannot read nowhere.txt"),
        (("grasp the unicorn", "--scene", "libero_object:7"), "there is no 'the unicorn' in the scene"),
        (("a 1: held(unicorn) until goal(1)", "--scene", "libero_object:7"), "'unicorn' is not in the scene"),
        (("{}", "--scene", "libero_object:7"), "field 'stages'"),
        (("x" * 30_000, "--scene", "libero_object:7"), "use at most 20000"),
        (("--scene", "libero_object:7", "--episode", "nowhere.npz"), "nowhere.npz is not a readable episode"),
    ],
)
def test_the_command_refuses_with_the_reason(words, said):
    with pytest.raises(RecordError, match=said):
        run("potential", *words)


def test_a_latched_potential_writes_its_stage():
    latched = from_goal(scene().goal, solved().object_names).model_copy(update={"latched": True})
    columns = coda_columns(solved(), latched)
    assert columns[STAGE].shape == (91, 1) and columns[STAGE].dtype == np.float32 and columns[STAGE][-1] == 1
    assert STAGE not in coda_columns(solved())


def test_lerobot_s_own_reader_weighs_frames_by_the_progress_file(tmp_path, monkeypatch, capsys):
    import pandas as pd
    import torch
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.utils.sample_weighting import SampleWeightingConfig, make_sample_weighter

    root = gray_dataset(tmp_path / "set", monkeypatch)
    run("export-progress", str(root))
    assert "182 frames in 2 episodes" in capsys.readouterr().out
    policy = argparse.Namespace(config=ACTConfig(chunk_size=8, n_action_steps=8))
    wanted = SampleWeightingConfig(type="rabc")
    weighter = make_sample_weighter(wanted, policy, torch.device("cpu"), dataset_root=str(root))
    assert weighter.get_stats()["num_frames"] == 182
    phi = coda_columns(solved())["observation.coda_potential"][:, 0] / 0.5
    assert [weighter.progress_lookup[t] for t in (0, 40, 89)] == pytest.approx([phi[0], phi[40], phi[89]])
    assert weighter.progress_lookup[90] == 1.0  # the terminal, where Phi is 0
    spans = (torch.arange(80), torch.arange(91, 171))
    success, failure = (weighter.compute_batch_weights({"index": span})[1] for span in spans)
    assert success["mean_weight"] > failure["mean_weight"]

    with pytest.raises(RecordError, match="give its scale with --scale"):
        export_progress.export_progress(root, scale=0.1)
    with pytest.raises(RecordError, match=r"--scale 3 is not in \(0, 1\]"):
        export_progress.export_progress(root, scale=3)
    (shard,) = (root / "data").glob("*/*.parquet")
    pd.read_parquet(shard).drop(columns="observation.coda_potential").to_parquet(shard)
    with pytest.raises(RecordError, match=r"no column 'observation\.coda_potential'; .*lerobot-coda demos"):
        export_progress.export_progress(root)
    with pytest.raises(RecordError, match="is not a LeRobot dataset"):
        export_progress.export_progress(tmp_path / "nowhere")


def gray_dataset(root, monkeypatch):
    """A real LeRobot dataset of a success and a failure, with gray images."""
    from libero_pro import dataset

    def render(episodes, spool, *, cameras, render_every, size, **options):
        for episode in episodes:
            count = len(dataset.rendered_steps(len(episode), render_every))
            yield {camera: np.full((count, size, size, 3), 128, np.uint8) for camera in cameras}

    monkeypatch.setattr(dataset, "render_episodes", render)
    dataset.write_dataset(
        [solved(), lost(scene(3))], root, repo_id="me/set", columns=coda_columns, cameras=("agentview",), size=64
    )
    return root


@pytest.mark.sim
def test_planted_failures_are_ranked_by_how_far_they_came():
    from lerobot_coda.critic.bench.actor import NotPlanted
    from lerobot_coda.critic.bench.planted import plant
    from lerobot_coda.critic.diagnosis import Cause
    from lerobot_coda.potential.acceptance import grade
    from libero_pro.expert import solve
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task, scene_for

    sim, scene = Simulator(get_task("libero_object", 0)), scene_for("libero_object", 0, seed=7000)
    shown = solve(sim, scene)
    assert shown.success
    plan, best = from_goal(shown.scene.goal, shown.object_names), {}
    for cause, came in ((Cause.DROPPED, "near_miss"), (Cause.MISSED_GRASP, "failure")):
        for draw in range(6):
            with suppress(NotPlanted):
                failed, _ = plant(sim, scene, cause, np.random.default_rng(draw))
                break
        else:
            pytest.fail(f"{cause} was not planted")
        assert grade(failed) == came and failed.truncated
        best[cause] = plan.run(failed).phi.max()
    assert plan.run(shown).phi.max() == pytest.approx(0.5) and max(best.values()) < 0.45
    assert best[Cause.MISSED_GRASP] < best[Cause.DROPPED]
