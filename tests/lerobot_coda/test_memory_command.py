"""`lerobot-coda memory`, as a person uses it."""

import argparse
import json
import shutil

import pyarrow.parquet as pq
import pytest
from memory_parts import cluster, diagnosis, episode, fill, program, proposal, review, scene

from lerobot_coda import memory as m
from lerobot_coda.commands import memory as command
from lerobot_coda.memory import Memory, export
from libero_pro.record import RecordError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with a memory."""
    folder = tmp_path_factory.mktemp("run")
    store = Memory(folder / "memory.sqlite")
    names = fill(store)
    store.add(m.Program, [program("[red]evil[/red]\x1b[2J", mode="motion")])
    store.close()
    return folder, names


@pytest.fixture
def call(capsys, monkeypatch):
    """Runs the command and returns what it prints."""
    monkeypatch.setenv("COLUMNS", "200")
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers(required=True))

    def run_it(*words) -> str:
        arguments = parser.parse_args(["memory", *map(str, words)])
        arguments.run(arguments)
        return capsys.readouterr().out

    return run_it


def test_ls_tells_what_is_there(run, call):
    folder, _ = run
    shown = {row["table"]: row["records"] for row in json.loads(call("ls", folder, "--json"))}
    assert shown["programs"] == 4 and shown["blobs"] == 1 and len(shown) == 16
    assert "construction" in call("ls", folder, "--limit", "0")
    assert "measurements" in call("ls", folder / "memory.sqlite")


def test_ls_lists_programs_by_progress_what_was_rejected_and_any_table(run, call):
    folder, names = run
    text = call("ls", folder, "programs")
    assert text.index("easy") < text.index("hard") < text.index("carry") and "+0.50" in text and "8/10" in text
    assert "[red]evil[/red]" in text and "\x1b" not in text
    assert "no object 'magnet' in the scene" in call("ls", folder, "rejected")
    assert names["answer"] in call("ls", folder, "blobs")
    assert len(json.loads(call("ls", folder, "scenes", "--json", "--limit", "2"))) == 2
    assert "scenes (2 of 4)" in call("ls", folder, "scenes", "--limit", "2")
    with pytest.raises(RecordError, match="'nothing' is no table; give one of rejected"):
        call("ls", folder, "nothing")


def test_show_takes_a_short_hash_and_tells_what_links_to_it(run, call):
    folder, names = run
    text = call("show", folder, names["easy"][:8])
    assert f"programs {names['easy']}" in text and f"linked from programs.parent: {names['hard']}" in text
    shown = json.loads(call("show", folder, names["hard"], "--json"))
    assert shown["table"] == "programs" and shown["body"]["name"] == "hard"


def test_lineage_is_a_tree_from_the_scene_to_the_programs(run, call):
    folder, names = run
    text = call("lineage", folder, names["a"][:8])
    order = ["pick the milk", "made by", "accepted", "probe by base: failure", "missed_grasp in grasp", "validated"]
    order += ["program hard", "keep"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert json.loads(call("lineage", folder, names["a"], "--json"))["led_to"][0]["name"] == "easy"


def test_what_a_model_wrote_is_shown_as_text(call, tmp_path):
    hostile = "[red]no[/red] [link=file:x]claim[/link]"
    store = Memory(tmp_path / "memory.sqlite")
    spot = scene("hostile", None)
    played = episode(spot["hash"])
    said = diagnosis(played["hash"], "dropped", "transport", hostile)
    found = cluster("dropped", "transport", ["milk_1"], [said["hash"]])
    member = {"hash": "member", "cluster": found["hash"], "diagnosis": said["hash"], "body": {}}
    store.add_all([(m.Scene, [spot]), (m.EpisodeRow, [played]), (m.DiagnosisRow, [said]), (m.Cluster, [found])])
    store.add_all([(m.Member, [member]), (m.ReviewRow, [review(found["hash"], hostile, hostile)])])
    store.add(m.ProposalRow, [proposal("p", hostile, cluster=found["hash"])])
    store.close()
    assert call("lineage", tmp_path, spot["hash"]).count(hostile) == 3  # diagnosis, review, proposal
    assert call("search", tmp_path, "--cause", "dropped").count(hostile) == 2
    assert hostile in call("ls", tmp_path, "rejected") and hostile in call("show", tmp_path, said["hash"])


def test_search_finds_what_was_tried_for_failures_like_these(run, call):
    folder, names = run
    text = call("search", folder, "--cause", "missed_grasp", "--object", "milk_1", "--stage", "grasp")
    assert "1.00 alike" in text and "the gripper closed 3 cm beside" in text and "8/10" in text and "refused:" in text
    found = json.loads(call("search", folder, "--stage", "transport", "--json"))
    assert found[0]["cluster"] == names["transport"] and found[0]["tried"][0]["outcome"] == "refuted"
    assert call("search", folder, "--cause", "drifted").strip() == "no failures like these"


def test_export_and_import_by_command(run, call, tmp_path):
    folder, names = run
    shutil.copytree(folder, tmp_path / "run")
    assert "records in 16 tables" in call("export", tmp_path / "run")
    exported = tmp_path / "run" / "memory"
    assert pq.read_table(exported / "data" / "programs.parquet").num_rows == 4
    assert (exported / "blobs" / names["answer"][:2] / names["answer"]).read_bytes().startswith(b"I would say")
    assert "records are new" in call("import", exported, tmp_path / "copy.sqlite")
    assert set(json.loads(call("import", exported, tmp_path / "copy.sqlite", "--json"))["new"].values()) == {0}
    call("export", tmp_path / "copy.sqlite", tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_bytes() == (exported / "README.md").read_bytes()
    call("export", tmp_path / "run")  # an earlier export is replaced
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_the_card_names_the_tables_that_datasets_loads(run, call, tmp_path):
    from datasets import get_dataset_config_names, load_dataset

    folder, _ = run
    call("export", folder / "memory.sqlite", tmp_path / "memory")
    configs = get_dataset_config_names(str(tmp_path / "memory"))
    assert "programs" in configs and len(configs) == 16
    loaded = load_dataset(str(tmp_path / "memory"), "decisions", split="train", cache_dir=str(tmp_path / "cache"))
    assert sorted(loaded["action"]) == ["keep", "promote"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("ls", "{}/nowhere"), "is not there; give a folder"),
        (("show", "{}", "zz"), "holds no .* that begins with 'zz'"),
        (("lineage", "{}", "run"), "holds no scenes"),
        (("search", "{}"), "say which failures are meant"),
        (("export", "{}/memory.sqlite"), "name the folder to export to"),
        (("export", "{}", "{}"), "holds something else than an exported memory"),
        (("import", "{}/nowhere", "{}/memory.sqlite"), "is no exported memory: it has no data/programs.parquet"),
    ],
)
def test_bad_input_is_told_in_one_sentence(run, call, words, says):
    folder, _ = run
    with pytest.raises(RecordError, match=says):
        call(*(word.format(folder) for word in words))
    assert sorted(path.name for path in folder.iterdir() if "sqlite" not in path.name) == ["memory.blobs"]


def damaged(path, change):
    table = pq.read_table(path)
    pq.write_table(change(table), path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop_columns(["name"]), "has no column 'name'"),
        (lambda t: t.append_column("colour", t["name"]), "column 'colour' is not one of"),
        (lambda t: t.replace_schema_metadata({b"lerobot_coda.memory": b"0009"}), r"newer version \(schema 0009"),
        (lambda t: t.set_column(t.column_names.index("body"), "body", [["{"] * len(t)]), "body is not JSON"),
    ],
)
def test_what_is_no_export_is_refused(run, tmp_path, change, says):
    folder, _ = run
    source, target = Memory(folder / "memory.sqlite"), Memory(tmp_path / "copy.sqlite")
    export.write(source, tmp_path / "memory")
    damaged(tmp_path / "memory" / "data" / "programs.parquet", change)
    with pytest.raises(RecordError, match=says):
        export.read(tmp_path / "memory", target)
    assert target.count(m.Program) == 0 and target.count(m.Scene) == 0
    source.close()
    target.close()


def test_an_export_of_an_older_version_is_read(run, tmp_path):
    """It lacks the tables and the links that came later."""
    folder, names = run
    source, target = Memory(folder / "memory.sqlite"), Memory(tmp_path / "copy.sqlite")
    export.write(source, tmp_path / "memory")
    for later in ("runs", "blobs", "reviews", "proposals", "usage"):
        (tmp_path / "memory" / "data" / f"{later}.parquet").unlink()
    damaged(tmp_path / "memory" / "data" / "programs.parquet", lambda t: t.drop_columns(["other"]))
    new = export.read(tmp_path / "memory", target)
    assert new["programs"] == 4 and new["reviews"] == 0
    assert target.lineage(names["a"])["verdicts"]
    source.close()
    target.close()
