"""Generated scenes do not depend on what interrupted the run; bad input is refused before anything is written."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from libero_pro import generate as module
from libero_pro import judge as judging
from libero_pro.episode import Episode
from libero_pro.generate import generate
from libero_pro.journal import Journal
from libero_pro.programs import GenerationProgram, Permute, Place, Region, Resample
from libero_pro.record import RecordError
from libero_pro.scene import SceneSpec
from libero_pro.scenefile import read_program, read_scenes
from libero_pro.suites import scene_for
from libero_pro.validity import Verdict
from libero_pro.workers import Outcome

PROGRAM = GenerationProgram(
    suite="libero_object", task_ids=(0,), operations=(Permute(), Resample(jitter_m=0.04)), difficulty=0.9
)


@pytest.fixture
def judged(monkeypatch):
    """Every third scene is rejected, without a simulator; returns the hashes that were judged, in order."""
    asked: list[str] = []

    def judge(scenes, *, workers, demonstrations):
        for index in reversed(range(len(scenes))):  # workers answer in any order
            asked.append(scenes[index].hash)
            bad = int(scenes[index].hash, 16) % 3 == 0
            yield index, Verdict(scene=scenes[index].hash, accepted=not bad, gate="settles" if bad else None)

    monkeypatch.setattr(module, "judge", judge)
    return asked


def test_the_first_that_pass_are_taken_in_the_programs_order(judged, tmp_path: Path):
    told: list[int] = []
    made = generate(PROGRAM, 12, tmp_path, progress=told.append)
    passing = [scene for scene in PROGRAM.scenes(40) if int(scene.hash, 16) % 3]
    assert list(made.scenes) == passing[:12]
    assert read_scenes(tmp_path) == passing[:12] == read_scenes(made.path)
    last = list(PROGRAM.scenes(40)).index(passing[11])
    assert made.rejected == {"settles": last + 1 - 12}
    assert read_program(tmp_path / "program.json") == PROGRAM
    assert told == sorted(told) and told[-1] >= 12


@pytest.mark.parametrize("kept", [1, 3, 7])
def test_a_cut_off_run_goes_on_and_judges_nothing_twice(judged, tmp_path: Path, kept: int):
    whole = generate(PROGRAM, 12, tmp_path / "whole")
    generate(PROGRAM, 12, tmp_path / "cut")
    journal = tmp_path / "cut" / "verdicts.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: 1 + kept]) + lines[1 + kept][:9])  # a line that a crash cut in two
    (tmp_path / "cut" / "scenes.jsonl").unlink()
    judged.clear()
    again = generate(PROGRAM, 12, tmp_path / "cut")
    known = {json.loads(line)["index"] for line in lines[1 : 1 + kept]}
    assert {PROGRAM.scene(index).hash for index in known}.isdisjoint(judged)
    assert (again.scenes, again.rejected) == (whole.scenes, whole.rejected)
    assert (tmp_path / "cut" / "scenes.jsonl").read_bytes() == (tmp_path / "whole" / "scenes.jsonl").read_bytes()
    judged.clear()
    assert generate(PROGRAM, 5, tmp_path / "cut").scenes == whole.scenes[:5]
    assert judged == []


def test_a_folder_keeps_to_its_program_and_conditions(judged, tmp_path: Path):
    generate(PROGRAM, 3, tmp_path)
    with pytest.raises(RecordError, match="holds results for program"):
        generate(PROGRAM.at(0.5), 3, tmp_path)
    with pytest.raises(RecordError, match="demonstrate = False, not True"):
        generate(PROGRAM, 3, tmp_path, demonstrate=True)
    (tmp_path / "verdicts.jsonl").write_bytes(b"{}\nnot json\n{}\n")
    with pytest.raises(RecordError, match="damaged"):
        generate(PROGRAM, 3, tmp_path)


def test_a_program_that_hardly_passes_is_given_up_with_the_reason(tmp_path: Path):
    full = Place(target="all", area=Region(name="floor_target_object_region"))
    crowded = GenerationProgram(suite="libero_object", task_ids=(0,), operations=(full,), difficulty=1.0)
    with pytest.raises(RecordError, match=r"only 0 of 40 scenes pass; 'layout' rejects 40.*lower the difficulty"):
        generate(crowded, 2, tmp_path)
    for count in (0, 10**9):
        with pytest.raises(RecordError, match="count must be 1 to"):
            generate(PROGRAM, count, tmp_path / "none")
    with pytest.raises(RecordError, match="noise"):
        generate(PROGRAM, 1, tmp_path / "none", noise=2.0)
    assert not (tmp_path / "none").exists()


def test_a_journal_survives_being_cut_anywhere(tmp_path: Path):
    journal = Journal(tmp_path / "j.jsonl", {"of": "test"})
    for number in range(3):
        journal.append({"n": number})
    data = journal.path.read_bytes()
    for length in range(len(data) + 1):
        journal.path.write_bytes(data[:length])
        again = Journal(journal.path, {"of": "test"})
        again.append({"n": 9})
        rows = Journal(journal.path, {"of": "test"}).rows
        assert rows[-1] == {"n": 9} and [row["n"] for row in rows[:-1]] == list(range(len(rows) - 1))


SCENE = scene_for("libero_object", 0).to_json()
HOSTILE = [
    ("", "holds no scene"),
    ("[" * 100_000, "line 1"),
    ('{"suite": ' + '{"a": ' * 5000 + "1" + "}" * 5001, "line 1"),
    (SCENE + "\n" + SCENE.replace('"task_id":0', '"task_id":NaN'), "line 2: SceneSpec"),
    (SCENE.replace('"seed":0', '"seed":1e999'), "seed"),
    (SCENE[:-1] + ',"__reduce__":"os.system"}', "__reduce__"),
    (SCENE.replace('"objects":{}', '"objects":{"milk_1":{"position":[0,0,1e9]}}'), "objects.milk_1.position.2"),
]


@pytest.mark.parametrize(("text", "said"), HOSTILE)
def test_hostile_scene_files_are_refused_by_line_and_field(tmp_path: Path, text: str, said: str):
    path = tmp_path / "scenes.jsonl"
    path.write_text(text)
    with pytest.raises(RecordError) as caught:
        read_scenes(path)
    assert said in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_hostile_program_files_are_refused(tmp_path: Path, monkeypatch):
    path = tmp_path / "program.json"
    for text, said in (
        ("[" * 100_000, "GenerationProgram"),
        ('{"suite": "../../etc", "task_ids": [0]}', "'suite'"),
        ('{"suite": "libero_object", "task_ids": [0], "operations": [{"op": "__import__"}]}', "operations.0"),
        ("\x00\xff", "GenerationProgram"),
    ):
        path.write_text(text)
        with pytest.raises(RecordError, match=said) as caught:
            read_program(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(RecordError, match="cannot read"):
        read_program(tmp_path / "missing.json")
    monkeypatch.setattr("libero_pro.scenefile.MAX_BYTES", 2)
    with pytest.raises(RecordError, match="at most"):
        read_program(path)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in [folder / "scenes.jsonl", folder / "program.json"]}


@pytest.mark.e2e
@pytest.mark.sim
def test_killing_the_parent_and_a_worker_changes_nothing(tmp_path: Path, repository: Path):
    """kill -9 of a worker, then of the parent, in the middle; the rerun ends as an undisturbed run does."""
    run = (
        "import sys; from pathlib import Path\n"
        "from libero_pro.generate import generate; from libero_pro.scenefile import read_program\n"
        "if __name__ == '__main__':\n"
        "    generate(read_program(Path(sys.argv[1])), 3, Path(sys.argv[2]), workers=1, demonstrate=True)\n"
    )
    script = tmp_path / "run.py"
    script.write_text(run)
    PROGRAM.save(tmp_path / "program.json")

    def start(out: str) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, str(script), str(tmp_path / "program.json"), str(tmp_path / out)]
        return subprocess.Popen(arguments, cwd=repository, env={**os.environ, "PYTHONPATH": str(repository)})

    undisturbed = start("undisturbed")
    disturbed = start("disturbed")
    assert wait_for_rows(tmp_path / "disturbed/verdicts.jsonl", 1, disturbed)
    os.kill(worker_of(disturbed.pid), signal.SIGKILL)
    assert wait_for_rows(tmp_path / "disturbed/verdicts.jsonl", 2, disturbed)
    disturbed.kill()
    disturbed.wait()
    assert not (tmp_path / "disturbed/scenes.jsonl").exists()
    assert start("disturbed").wait(timeout=600) == 0
    assert undisturbed.wait(timeout=600) == 0
    first, second = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert files(first) == files(second)
    scenes = read_scenes(first)
    assert {path.stem for path in (second / "episodes").iterdir()} == {scene.hash for scene in scenes}
    for scene in scenes:
        one, two = (Episode.load(folder / "episodes" / f"{scene.hash}.npz") for folder in (first, second))
        assert one.success and (one.qpos == two.qpos).all() and (one.actions == two.actions).all()


def wait_for_rows(path: Path, rows: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether the journal gets this many rows while the process still runs."""
    for _ in range(6000):
        if path.exists() and path.read_bytes().count(b"\n") >= 1 + rows:
            return process.poll() is None
        if process.poll() is not None:
            return False
        time.sleep(0.1)
    return False


def worker_of(parent: int) -> int:
    """A worker: forked by the stem, which is the process that the parent spawned (its other child tracks resources)."""
    stem = next(pid for pid in children(parent) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return children(stem)[0]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_scenes_are_read_back_exactly(judged, tmp_path: Path):
    made = generate(PROGRAM, 4, tmp_path)
    assert [SceneSpec.parse(line) for line in made.path.read_text().splitlines()] == list(made.scenes)


def test_static_gates_ask_for_no_physics(monkeypatch):
    asked: list = []
    monkeypatch.setattr(judging, "run_in_forks", lambda jobs, **_: asked.extend(jobs) or iter(()))
    scene = scene_for("libero_object", 0)
    test = scene_for("libero_object_swap", 0)
    found = dict(judging.judge([scene, test], static=True))
    assert asked == [] and found[0].accepted and found[1].gate == "leakage"


def test_a_lost_worker_is_no_verdict_on_its_scene(monkeypatch):
    scenes = [scene_for("libero_object", 0, seed=seed) for seed in range(3)]

    def run(jobs, **_):
        for index, job in enumerate(jobs):
            lost = index == 1
            verdict = None if lost else (Verdict(scene=job.hash, accepted=True), None)
            yield Outcome(index, job, verdict, "its worker was lost twice" if lost else None)

    monkeypatch.setattr(judging, "run_in_forks", run)
    known = []
    with pytest.raises(RecordError, match=f"{scenes[1].hash}.*lost twice"):
        for index, _ in judging.judge(scenes):
            known.append(index)
    assert known == [0, 2]
