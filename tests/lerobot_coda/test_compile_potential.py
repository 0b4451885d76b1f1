"""One potential in a training set: what is judged, what is refused, and that no set mixes versions."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import START, above, beside, episode, lost, path, scene, solved

from lerobot_coda.columns import POTENTIAL
from lerobot_coda.critic.diagnosis import Mode
from lerobot_coda.potential import Names, from_text
from lerobot_coda.potential.acceptance import Thresholds
from lerobot_coda.potential.plans import plan_of
from lerobot_coda.potential.refine import refined
from lerobot_coda.potential.refinement import Refinement
from lerobot_coda.potential.versions import Potentials, settle
from lerobot_coda.relabel import relabel, version_of
from libero_pro.episode import Episode
from libero_pro.record import RecordError


def dropped(seed: int = 0) -> Episode:
    eef = path(START, above("milk_1"), above("milk_1", 0.2), above("basket_1", 0.2))
    return episode(eef, closed=[(30, 65)], held={"milk_1": (32, 66)}, where=scene(seed), actor="policy:a")


STORED = [
    *(solved(scene(seed), "expert") for seed in range(4)),
    *(dropped(10 + seed) for seed in range(4)),
    *(lost(scene(20 + seed), "policy:a") for seed in range(3)),
    beside(scene(30), "policy:a"),
]
CANONICAL = plan_of(STORED[0])


def by_rule(mode: Mode) -> Refinement:
    return Refinement(mode=mode, objects=("milk_1",))


def written(text: str, instead_of: str = CANONICAL.hash) -> Refinement:
    return Refinement(mode=Mode.PLACEMENT, written=from_text(text), instead_of=instead_of)


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.GRASP])  # it needs recorded touches
def test_a_refinement_is_judged_on_stored_episodes_and_used(mode):
    found = settle([("p", by_rule(mode))], STORED)
    one = found.tried[0]
    assert one.accepted, one.reason
    assert (one.acceptance.successes, one.acceptance.near_misses, one.acceptance.failures) == (4, 4, 4)
    assert one.acceptance.auc >= 0.95 and one.goal == "in milk_1 basket_1_contain_region"
    used = found.potentials.of(STORED[0])
    assert used == refined(CANONICAL, mode, ["milk_1"], Names.of_episode(STORED[0])) and used != CANONICAL


def test_refinements_build_on_those_accepted_before():
    both = settle([("a", by_rule(Mode.LOCALIZATION)), ("b", by_rule(Mode.PLACEMENT))], STORED)
    names = [stage.name for stage in both.potentials.of(STORED[0]).stages]
    assert names == ["find", "reach", "grasp", "lift", "carry", "center", "place"]
    assert [t.accepted for t in both.tried] == [True, True]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a 1: near(gripper, ketchup_1, 0.3) until held(ketchup_1)", "ranks successes over"),
        ("a 1: held(milk_1) until goal(1)", "rank correlation"),
        ("a 1: held(cookies_1) until goal(1)", "'cookies_1' is not in the scene"),
    ],
)
def test_a_refused_refinement_leaves_the_goal_s_own_potential_with_the_reason(text, reason):
    found = settle([("bad", written(text))], STORED)
    assert found.potentials == Potentials() and not found.tried[0].accepted
    assert reason in found.tried[0].reason
    after = settle([("bad", written(text)), ("good", by_rule(Mode.PLACEMENT))], STORED)
    assert [t.accepted for t in after.tried] == [False, True] and len(after.potentials.refined) == 1


def test_a_refinement_that_the_episodes_do_not_hold_the_facts_for_is_refused():
    found = settle([("p", by_rule(Mode.GRASP))], STORED)
    assert not found.tried[0].accepted and "without 'touched'" in found.tried[0].reason
    assert found.potentials == Potentials()


def test_too_few_episodes_and_stricter_thresholds_refuse():
    assert "too few" in settle([("p", by_rule(Mode.PLACEMENT))], STORED[:2]).tried[0].reason
    strict = Thresholds(rank_correlation=1.0)
    assert not settle([("p", by_rule(Mode.PLACEMENT))], STORED, strict).tried[0].accepted


def test_a_written_plan_is_for_goals_of_its_form_alone():
    text = "a 1: near(gripper, target, 0.3) until held(target)"
    assert settle([("p", written(text, "another form"))], STORED).tried == ()
    for broken in ({"written": from_text(text)}, {"instead_of": "x"}):
        with pytest.raises(ValueError, match="belong together"):
            Refinement(mode=Mode.PLACEMENT, **broken)
    latched = from_text("scale 0.5 latched\n" + text)
    with pytest.raises(ValueError, match="does not see the stage"):
        Refinement(mode=Mode.PLACEMENT, written=latched, instead_of="x")
    with pytest.raises(ValueError, match="latched"):
        Potentials(refined={"x": latched})


def test_without_a_potential_every_label_is_zero():
    assert not Potentials(form="none").evaluate(STORED[0]).any()
    assert Potentials().evaluate(STORED[0]).max() > 0.4


# --- the column of a dataset --------------------------------------------------------------------------------------


def dataset(root: Path, labeled: list[tuple[Episode, Potentials]]) -> Path:
    """The files of a LeRobot dataset that labels are in, each episode in a version of its own."""
    rows = {name: [] for name in ("episode_index", "frame_index", POTENTIAL, "action")}
    told = []
    for index, (one, version) in enumerate(labeled):
        phi = version.evaluate(one)
        rows["episode_index"] += [index] * len(phi)
        rows["frame_index"] += range(len(phi))
        rows["action"] += [[float(index), 1.0]] * len(phi)
        rows[POTENTIAL] += phi.tolist()
        row = {"episode_index": index, "length": len(phi), "coda/scene": one.scene.hash, "coda/actor": one.actor}
        told.append({**row, f"stats/{POTENTIAL}/mean": [-1.0], f"stats/{POTENTIAL}/count": [0]})
    for folder in ("data/chunk-000", "meta/episodes/chunk-000"):
        (root / folder).mkdir(parents=True)
    table = pa.table(rows).set_column(2, POTENTIAL, pa.array(rows[POTENTIAL], pa.float32()))
    with pq.ParquetWriter(root / "data/chunk-000/file-000.parquet", table.schema) as writer:
        for index in range(len(labeled)):
            writer.write_table(table.filter(pa.compute.equal(table["episode_index"], index)))
    pq.write_table(pa.Table.from_pylist(told), root / "meta/episodes/chunk-000/file-000.parquet")
    (root / "meta/stats.json").write_text(json.dumps({"action": {"mean": [0.0]}}))
    return root


def mixed(root: Path, episodes: list[Episode], version: Potentials) -> list[int]:
    """Episodes whose column is not of the version."""
    table = pq.read_table(root / "data/chunk-000/file-000.parquet").to_pandas()
    held = [table[table["episode_index"] == n][POTENTIAL].to_numpy() for n in range(len(episodes))]
    return [n for n, e in enumerate(episodes) if not np.array_equal(held[n], version.evaluate(e))]


@pytest.fixture
def sources(tmp_path):
    files = []
    for one in STORED:
        files.append(tmp_path / one.actor.replace(":", "-") / f"{one.scene.hash}.npz")
        one.save(files[-1])
    return files


def test_shards_of_several_rounds_are_labeled_in_one_version(tmp_path, sources):
    first, second = (settle([("p", by_rule(m))], STORED).potentials for m in (Mode.LOCALIZATION, Mode.PLACEMENT))
    labeled = list(zip(STORED, [Potentials()] * 4 + [first] * 4 + [second] * 4, strict=True))
    root = dataset(tmp_path / "set", labeled)
    assert mixed(root, STORED, second) == list(range(8)), "the versions must differ, or nothing is tested"
    before = pq.ParquetFile(root / "data/chunk-000/file-000.parquet")
    assert relabel(root, second, sources) == 12
    assert mixed(root, STORED, second) == []
    after = pq.ParquetFile(root / "data/chunk-000/file-000.parquet")
    assert after.num_row_groups == before.num_row_groups == 12 and after.schema_arrow == before.schema_arrow
    assert after.read(["action"]) == before.read(["action"])
    told = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert told[3][f"stats/{POTENTIAL}/count"] == [91]
    assert told[3][f"stats/{POTENTIAL}/mean"][0] == pytest.approx(second.evaluate(STORED[3]).mean())
    stats = json.loads((root / "meta/stats.json").read_text())
    assert stats[POTENTIAL]["count"] == [12 * 91] and stats["action"] == {"mean": [0.0]}
    assert version_of(root) == second.hash != version_of(tmp_path)


def test_an_episode_that_is_not_stored_is_named(tmp_path, sources):
    root = dataset(tmp_path / "set", [(e, Potentials()) for e in STORED])
    with pytest.raises(RecordError, match=f"the episode of policy:a in scene {STORED[5].scene.hash} is not stored"):
        relabel(root, Potentials(form="none"), [p for p in sources if p.stem != STORED[5].scene.hash])


def test_an_episode_of_another_actor_in_the_same_scene_is_not_taken(tmp_path, sources):
    twin = lost(STORED[0].scene, "policy:b")
    twin.save(tmp_path / "b" / f"{twin.scene.hash}.npz")
    root = dataset(tmp_path / "set", [(STORED[0], Potentials()), (twin, Potentials(form="none"))])
    relabel(root, Potentials(), [tmp_path / "b" / f"{twin.scene.hash}.npz", *sources])
    assert mixed(root, [STORED[0], twin], Potentials()) == []
    with pytest.raises(RecordError, match="no parquet files"):
        relabel(tmp_path / "nowhere", Potentials(), sources)


@pytest.mark.render
def test_merged_shards_of_two_versions_train_on_one(tmp_path):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from lerobot_coda.engine import LiberoEngine
    from lerobot_coda.recipe import Render
    from libero_pro.demonstrate import demonstrate
    from libero_pro.suites import scene_for

    scenes = [scene_for("libero_object", 2, seed=seed) for seed in (3, 4)]
    shown = {e.scene.hash: e for e in demonstrate(scenes, workers=0, out=tmp_path / "demos")}
    one, two = (shown[s.hash] for s in scenes)
    finer = refined(plan_of(one), Mode.GRASP, (), Names.of_episode(one))
    version = Potentials(refined={plan_of(one).hash: finer})
    engine = LiberoEngine(workers=0, render=Render(size=32, every=16), repo_id="local/versions")
    engine.write_shard([one], tmp_path / "a", None, lambda done: None)
    engine.write_shard([two], tmp_path / "b", version, lambda done: None)
    shards = [tmp_path / "a", tmp_path / "b"]
    assert [version_of(shard) for shard in shards] == [Potentials().hash, version.hash]
    with pytest.raises(RecordError, match="is not stored"):
        engine.merge(shards, tmp_path / "set", version)
    engine.merge(shards, tmp_path / "set", version, sorted((tmp_path / "demos").glob("*.npz")))
    found = LeRobotDataset("local/versions", root=tmp_path / "set", video_backend="pyav")
    phi = np.array([float(value) for value in found.hf_dataset[POTENTIAL]])
    assert np.array_equal(phi.astype(np.float32), np.concatenate([version.evaluate(one), version.evaluate(two)]))
    assert version_of(tmp_path / "set") == version.hash and found[3]["observation.images.image"].shape == (3, 32, 32)
