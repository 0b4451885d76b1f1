"""What a person clicks through: failures with what came of them, the memory's lineage, the map of scenes."""

import io
import json
import shutil
from pathlib import Path

import pytest
from fakeworld import FakeEngine, write_recipes
from rich.console import Console

from lerobot_coda.console import Display
from lerobot_coda.critic.diagnosis import Diagnosis
from lerobot_coda.evolve import evolve
from lerobot_coda.report import build_report, load_run
from lerobot_coda.report.gallery import MOST


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gallery")
    display = Display(Console(file=io.StringIO()))
    evolve(write_recipes(folder), folder / "run", engine=FakeEngine(), display=display)
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_each_failure_is_shown_with_its_verdict_and_program(finished: Path) -> None:
    summary = load_run(finished)
    assert 0 < len(summary.exhibits) <= MOST
    first = summary.exhibits[0]
    assert first.before.is_file() and first.title.startswith("localization: ")
    assert first.verdict == "validated" and "8/8 program scenes" in first.evidence
    shown = dict(first.program)
    assert any(name.startswith("scenes: ") for name in shown)
    assert float(shown["difficulty"]) > 0 and "training: steps" in shown
    assert first.failures == summary.diagnoses[0].failures


def test_the_scene_that_went_well_after_the_training_is_preferred(run: Path) -> None:
    """Of a cluster's scenes that were played again, another than the one shown now is made the only success."""
    summary = json.loads((run / "summary.json").read_text())
    clusters = json.loads((run / "rounds" / "001" / "clusters.json").read_text())
    diagnoses = [Diagnosis.parse(row) for row in json.loads((run / "rounds" / "001" / "diagnoses.json").read_text())]
    exhibit = next(one for one in load_run(run).exhibits if one.round == 1)
    members = next(c["diagnoses"] for c in clusters if exhibit.anchor.endswith(c["hash"]))
    own = {d.scene for d in diagnoses if d.hash in members}
    pairs = summary["rounds"][0]["frontier"]["pairs"]
    again = [pair["scene"] for pair in pairs if pair["scene"] in own and pair["scene"] != exhibit.scene]
    assert again, "the cluster has another scene that was played again"
    for pair in pairs:
        pair["after"] = pair["scene"] == again[0]
    (run / "summary.json").write_text(json.dumps(summary))
    shown = next(one for one in load_run(run).exhibits if one.anchor == exhibit.anchor)
    assert shown.scene == again[0] and shown.success_after
    assert shown.after is not None and shown.after.parent.name == "r001" and shown.before.parent.name == "base"


def test_lineage_joins_failures_programs_and_their_successors(finished: Path) -> None:
    graph = load_run(finished).lineage
    by_id = {node.id: node for node in graph.nodes}
    assert {node.kind for node in graph.nodes} == {"failure", "program"}
    failure = next(node for node in graph.nodes if node.title.startswith("localization"))
    assert ("round", "1") in failure.facts and any(value.startswith("validated") for _, value in failure.facts)
    assert {"validated", "met"} <= {edge.kind for edge in graph.edges}
    assert all(0 <= node.x < graph.width and 0 <= node.y < graph.height for node in by_id.values())
    assert len({(node.x, node.y) for node in by_id.values()}) == len(by_id), "no box hides another"


def test_map_holds_every_generated_scene(finished: Path) -> None:
    points = load_run(finished).scenes
    kept = [json.loads(file.read_text()) for file in sorted(finished.glob("rounds/*/scenes.json"))]
    assert len(points) == sum(map(len, kept)) > 0
    scene = kept[0][0]["scene"]
    assert (points[0].x, points[0].y) == tuple(scene["objects"][scene["goal"][0][1]]["position"][:2])


def test_page_links_every_box_and_lists_the_scenes(run: Path) -> None:
    page = build_report(run, videos=False)
    text, graph = page.read_text(), load_run(run).lineage
    for node in graph.nodes:
        assert f'href="#node-{node.id}"' in text and f'id="node-{node.id}"' in text
    assert 'id="figure-scenes"' in text
    header, *rows = (page.parent / "scenes.csv").read_text().splitlines()
    assert header.startswith("round,program,scene") and len(rows) == len(load_run(run).scenes)


def test_what_a_critic_wrote_is_escaped(run: Path) -> None:
    """Both in the gallery and in the drawing."""
    for name in ("001", "002"):
        file = run / "rounds" / name / "diagnoses.json"
        rows = json.loads(file.read_text())
        for row in rows:
            row["explanation"] = '"do <script>alert(1)</script>": ' + "<img src=x onerror=alert(2)>"
        file.write_text(json.dumps(rows))
        clusters = run / "rounds" / name / "clusters.json"
        known = json.loads(clusters.read_text())
        for cluster in known:
            cluster["diagnoses"] = [Diagnosis.parse(row).hash for row in rows]
        clusters.write_text(json.dumps(known))
    text = build_report(run, videos=False).read_text()
    assert "&lt;img src=x onerror" in text and "<img src=x" not in text and "<script>alert" not in text


def test_what_is_missing_or_damaged_is_said(run: Path) -> None:
    (run / "rounds" / "001" / "diagnoses.json").write_text("[{")
    (run / "rounds" / "002" / "clusters.json").unlink()
    (run / "rounds" / "001" / "scenes.json").write_text("[{")
    (run / "memory.sqlite").unlink()
    summary = load_run(run)
    said = " ".join(summary.missing)
    assert "rounds/001/diagnoses.json is damaged" in said and "rounds/002/clusters.json is missing" in said
    assert "rounds/001/scenes.json is damaged: its scenes are not on the map" in said
    assert "memory.sqlite is missing" in said and not summary.lineage.nodes and not summary.exhibits
    assert "is damaged" in build_report(run, videos=False).read_text()
