"""What the memory is asked, on a small world of known answers."""

import numpy as np
import pytest
from memory_parts import cluster, decision, diagnosis, episode, fill, measurement, program, review, scene, verdict

from lerobot_coda import memory as m
from lerobot_coda.memory import Memory, content_hash, queries
from lerobot_coda.memory.lineage import ancestors, descendants
from lerobot_coda.memory.precedents import explanations, precedents
from lerobot_coda.memory.tables import TABLES
from libero_pro.record import RecordError


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    store = Memory(tmp_path_factory.mktemp("world") / "memory.sqlite")
    yield store, fill(store)
    store.close()


def letters(texts):
    """An embedding of the letters that a text has."""
    return np.array([[text.count(chr(97 + i)) for i in range(26)] for text in texts], dtype=float)


def test_lineage_goes_from_what_made_a_scene_to_what_it_led_to(world):
    store, names = world
    found = store.lineage(names["a"])
    assert [p["name"] for p in found["made_by"]] == ["easy"] and found["ancestors"] == []
    assert [g["gate"] for g in found["gates"]] == ["all"] and len(found["episodes"]) == 1
    assert [d["cause"] for d in found["diagnoses"]] == ["missed_grasp"] and [c["hash"] for c in found["clusters"]] == [
        names["grasp"]
    ]
    assert [v["outcome"] for v in found["verdicts"]] == ["validated"]
    assert [p["body"]["name"] for p in found["proposals"] if p["refused"]] == ["magnet"]
    assert [p["name"] for p in found["led_to"]] == ["easy", "hard"]
    assert [r["round"] for r in found["measurements"]] == [1, 2]
    assert [d["action"] for d in found["decisions"]] == ["promote", "keep"]


def test_lineage_of_a_start_of_the_task_itself(world):
    store, names = world
    found = store.lineage(names["start"])
    assert found["made_by"] == [] and found["led_to"] == [] and len(found["episodes"]) == 1
    with pytest.raises(RecordError, match="no scene with hash nothing"):
        store.lineage("nothing")


def test_programs_joined_from_two_have_both_as_ancestors(tmp_path):
    store = Memory(tmp_path / "memory.sqlite")
    a, b = program("a"), program("b", content_hash("a"))
    store.add(m.Program, [a, b])
    store.add(m.Program, [program("c")])
    joined = program("joined", content_hash("b"), other=content_hash("c"))
    store.add(m.Program, [joined])
    assert {p["name"] for p in ancestors(store, store.rows(m.Program, name="joined")[0])} == {"a", "b", "c"}
    assert [p["name"] for p in descendants(store, content_hash("a"))] == ["a", "b", "joined"]
    assert [p["name"] for p in descendants(store, content_hash("c"))] == ["c", "joined"]
    store.close()


def test_failures_like_these_and_how_much_helped(world):
    store, names = world
    (found,) = precedents(store, causes=["missed_grasp"], objects=["milk_1", "basket_1"], stage="grasp")
    assert found.cluster == names["grasp"] and found.likeness == pytest.approx((1 + 0.5 + 1) / 3, abs=1e-4)
    assert [(t.name, t.before, t.after, t.n, t.outcome, t.action) for t in found.tried] == [
        ("easy", 2, 8, 10, "validated", "promote"),
        ("hard", 3, 5, 10, None, "keep"),
    ]
    assert found.tried[0].progress == 0.5 and found.tried[0].operations == ("permute", "resample")
    assert (found.tried[0].scenes, found.tried[0].accepted) == (3, 1)
    assert found.refused == ("program: no object 'magnet' in the scene",)
    assert precedents(store, causes=["stalled"]) == [] and precedents(store, stage="grasp", suite="libero_goal") == []
    assert [p.cluster for p in precedents(store, causes=["dropped", "missed_grasp"], limit=1)] != []
    with pytest.raises(RecordError, match="say which failures are meant"):
        precedents(store)


def test_words_are_compared_with_what_critics_said(world):
    store, names = world
    by_words = precedents(store, text="zzz the can fell", embed=letters)
    assert [p.cluster for p in by_words] == [names["transport"], names["grasp"]]
    assert by_words[0].explanation.startswith("the soup can fell") and 1 > by_words[0].likeness > by_words[1].likeness
    assert precedents(store, text="000", embed=letters) == []  # like nothing
    both = precedents(store, text="zzz the can fell", causes=["missed_grasp"], embed=letters)
    assert [p.cluster for p in both] == [names["grasp"]]  # of another cause: left out, however it reads


def test_the_offline_model_finds_what_is_said_in_other_words(world):
    store, names = world
    found = precedents(store, text="a tin of soup slipped away in mid-air")
    assert found[0].cluster == names["transport"] and found[0].likeness > 0.3


def test_a_reviewed_cluster_takes_the_place_of_the_one_before(tmp_path):
    store = Memory(tmp_path / "memory.sqlite")
    store.add(m.Scene, [scene("s", None)])
    store.add(m.EpisodeRow, [episode(content_hash("scene", "s"))])
    told = diagnosis(content_hash("base", content_hash("scene", "s")), "stalled", "reach", "it stood still")
    before = cluster("stalled", "reach", ["milk_1"], [told["hash"]])
    after = cluster("missed_grasp", "grasp", ["milk_1"], [told["hash"]], parent=before["hash"])
    store.add_all([(m.DiagnosisRow, [told]), (m.Cluster, [before, after])])
    assert explanations(store, [after]) == {after["hash"]: "it stood still"}
    store.add(m.ReviewRow, [review(before["hash"], explanation="it closed beside the carton")])
    (found,) = precedents(store, objects=["milk_1"])
    assert (found.cluster, found.explanation) == (after["hash"], "it closed beside the carton")
    store.close()


def test_programs_by_progress(world):
    store, names = world
    assert [(t.name, t.progress) for t in queries.ranked(store)] == [
        ("easy", 0.5),
        ("hard", pytest.approx(1 / 6)),
        ("carry", None),
    ]
    assert [t.program for t in queries.ranked(store, mode="transport")] == [names["carry"]]
    assert len(queries.ranked(store, limit=2)) == 2


def test_progress_is_that_of_the_last_round(tmp_path):
    store = Memory(tmp_path / "memory.sqlite")
    p = program("p")
    store.add(m.Program, [p])
    store.add(m.MeasurementRow, [measurement(p["hash"], k, 0, k) for k in (2, 10, 3)])
    store.add(m.DecisionRow, [decision(p["hash"], k, action) for k, action in ((10, "retire"), (3, "keep"))])
    (found,) = queries.ranked(store)
    assert (found.after, found.rounds, found.action) == (10, 3, "retire")
    store.close()


def test_what_was_turned_down_and_why(world):
    store, names = world
    assert [(r.kind, r.author, r.what, r.why, r.cluster) for r in queries.refusals(store)] == [
        ("answer", "endpoint", "answer on a cluster", "it is prose", names["transport"]),
        ("potential", "endpoint", "phi", "its potential falls on the way to the goal", None),
        ("program", "endpoint", "magnet", "no object 'magnet' in the scene", names["grasp"]),
        ("verdict", "validation", f"carry ({names['carry']})", "it is refuted", names["transport"]),
    ]
    assert [r.answer for r in queries.refusals(store, kind="answer")] == [names["answer"]]


def test_short_hashes_mean_one_record(world):
    store, names = world
    assert queries.resolve(store, names["easy"][:7]) == ("programs", names["easy"])
    assert queries.resolve(store, "run") == ("runs", "run")
    with pytest.raises(RecordError, match=r"is ambiguous: .*; give more of it"):
        queries.resolve(store, "r")
    for nothing in ("", "zz", "%", "_"):
        with pytest.raises(RecordError, match="begins with"):
            queries.resolve(store, nothing)
    with pytest.raises(RecordError, match="holds no scenes"):
        queries.resolve(store, names["easy"], ("scenes",))


def test_every_link_is_found_backwards(world):
    store, names = world
    found = queries.links(store, "programs", names["easy"])
    assert found["programs.parent"] == [names["hard"]] and len(found["scenes.program"]) == 3
    assert queries.links(store, "blobs", names["answer"]).keys() == {"proposals.answer", "reviews.answer"}
    assert all(key.split(".")[0] in TABLES for key in found)


def test_queries_are_the_same_wherever_the_memory_came_from(world, tmp_path):
    from lerobot_coda.memory import export

    store, names = world
    export.write(store, tmp_path / "folder")
    copy = Memory(tmp_path / "copy.sqlite")
    export.read(tmp_path / "folder", copy)
    for ask in (
        queries.ranked,
        queries.refusals,
        lambda s: s.lineage(names["a"]),
        lambda s: precedents(s, stage="grasp"),
    ):
        assert ask(store) == ask(copy)
    copy.close()


def test_a_verdict_of_another_run_on_the_same_program_is_kept_beside(world, tmp_path):
    store = Memory(tmp_path / "memory.sqlite")
    p, c = program("p"), cluster("dropped", "transport", [], ["d"])
    store.add_all([(m.Program, [p]), (m.Cluster, [c])])
    store.add(m.VerdictRow, [verdict(c["hash"], p["hash"], "refuted")])
    store.add(m.VerdictRow, [verdict(c["hash"], p["hash"], "validated") | {"hash": "zz"}])
    assert len(store.rows(m.VerdictRow, program=p["hash"])) == 2
    store.close()
