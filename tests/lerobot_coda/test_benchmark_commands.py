"""`benchmark`, `compare` and `model-card`: what they print, and one sentence for bad input before anything runs."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from lerobot_coda.commands import benchmark, compare, model_card
from libero_pro.record import RecordError
from libero_pro.suites import BASE

sys.path.insert(0, str(Path(__file__).parents[1] / "libero_pro"))
from benchmark_parts import run_made_up


@pytest.fixture
def run() -> Callable[..., None]:
    """Runs a command line of the three commands."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for command in (benchmark, compare, model_card):
        command.add(commands)

    def call(*words: object) -> None:
        arguments = parser.parse_args([str(word) for word in words])
        arguments.run(arguments)

    return call


@pytest.fixture
def nothing_starts(monkeypatch):
    """Fails if bad input gets as far as the checks of the machine."""
    monkeypatch.setattr(benchmark, "preflight", lambda *arguments, **more: pytest.fail("went too far"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy.path=x", "--suites", "libero_goal_swop"], "suites: .*did you mean 'libero_goal_swap'.*there are: "),
        (["x", "--suites", "base", "--perturbations", "swop"], "perturbations: 'swop' is unknown; did you mean 'swap'"),
        (["x", "--suites", "libero_goal_lan,libero_10_lan", "--task-ids", "11"], "has tasks 0 to 9, not 11"),
        (["x", "--episodes", "0"], "episodes must be at least 1"),
        ([], "name one checkpoint: --policy.path="),
        (["x", "--policy.path=y"], "name one checkpoint: --policy.path="),
        (["x", "--rename-map", "image"], "rename-map is not a JSON object"),
        (["x", "--rename-map", '{"observation.image": "a"}'], "'observation.image' is not one of LIBERO's image keys"),
    ],
)
def test_bad_input_is_one_sentence(run, nothing_starts, tmp_path: Path, words: list[str], message: str):
    with pytest.raises(RecordError, match=message):
        run("benchmark", *words, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_is_none_is_refused_before_a_simulator(run, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(benchmark, "preflight", lambda *arguments, **more: None)
    with pytest.raises(RecordError, match=r"is not a LeRobot checkpoint: it has no config\.json"):
        run("benchmark", f"--policy.path={tmp_path}", "--suites", "libero_goal", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_settings_reach_the_benchmark(run, monkeypatch, tmp_path: Path, capsys):
    import libero_pro.benchmark
    from libero_pro.policy_runner import LeRobotChunkPolicy

    seen = {}

    def fake_run(policy, suites, **options):
        seen.update(suites=suites, policy=policy, **options)
        return run_made_up(options["out"], lambda scene: True, ["libero_goal_swap"])

    monkeypatch.setattr(benchmark, "preflight", lambda *arguments, **more: None)
    monkeypatch.setattr(libero_pro.benchmark, "run_benchmark", fake_run)
    monkeypatch.setattr(LeRobotChunkPolicy, "from_pretrained", lambda path, **options: {"path": path, **options})
    words = ["--suites", "libero_goal", "--perturbations", "swap,task", "--episodes", "3", "--n-action-steps", "5"]
    words += ["--workers", "4", "--profile", "fast", "--prompt-source", "filename", "--seed", "7", "--task-ids", "2"]
    words += ["--rename-map", '{"observation.images.image2": "observation.images.wrist"}', "--device", "cuda"]
    run("benchmark", "--policy.path=some/checkpoint", *words, "--output", tmp_path / "out")
    assert seen["suites"] == ["libero_goal_swap", "libero_goal_task"]
    assert (seen["episodes"], seen["workers"], seen["profile"], seen["seed"]) == (3, 4, "fast", 7)
    assert (seen["prompt_source"], seen["task_ids"]) == ("filename", [2])
    assert seen["policy"] == {
        "path": "some/checkpoint",
        "device": "cuda",
        "n_action_steps": 5,
        "camera_keys": {"agentview": "observation.images.image", "wrist": "observation.images.wrist"},
    }
    assert "table.md" in capsys.readouterr().out


def test_the_board_counts_by_suite_and_tells_the_time_left():
    now = [0.0]
    console = Console(width=120, record=True, force_terminal=False)
    board = benchmark.Board(["a"] * 4 + ["b"] * 4, kept=2, console=console, clock=lambda: now[0])
    for suite, success, invalid in (("a", 1, ""), ("a", 0, ""), ("a", 1, "lost")):
        board.watch({"suite": suite, "success": success, "invalid": invalid})
    with board.shown():
        board.progress(2, 8)
        now[0] = 600.0
        board.progress(5, 8)  # three fresh ones in ten minutes
        board.progress(6, 8)  # too soon for another line
    console.print(board.table())
    text = console.export_text()
    assert text.count("benchmark: ") == 1
    assert "benchmark: 5/8 episodes, 10.0 min, about 10 min left; 1 of 2 counted succeeded" in text
    rows = {line.split()[1]: line.split() for line in text.splitlines() if line.startswith("│")}
    assert rows["a"][3] == "3/4" and "50.0" in rows["a"] and rows["a"][-2] == "1"
    assert rows["b"][3] == "0/4" and rows["all"][3] == "3/8"


def test_compare_prints_pairs_and_flips(run, tmp_path: Path, capsys):
    run_made_up(tmp_path / "a", lambda scene: scene.init_state_id < 2, ["libero_goal"])
    run_made_up(tmp_path / "b", lambda scene: scene.init_state_id > 0, ["libero_goal"])
    run("compare", tmp_path / "a", tmp_path / "b", "--flips", tmp_path / "flips.csv")
    out = capsys.readouterr().out
    assert "50.0 %" in out and "75.0 %" in out and "+4" in out and "-2" in out and "0.69" in out
    assert "only A solves: libero_goal 0 start 0, libero_goal 1 start 0" in " ".join(out.split())
    lines = (tmp_path / "flips.csv").read_text().splitlines()
    assert lines[0] == "suite,task_id,init_state_id,seed,solved_by"
    assert "libero_goal,0,2,1002,B" in lines and "libero_goal,1,0,1000,A" in lines and len(lines) == 7


def test_compare_refuses_unlike_runs_and_half_a_question(run, tmp_path: Path):
    run_made_up(tmp_path / "a", lambda scene: True)
    run_made_up(tmp_path / "b", lambda scene: True, conditions={"n_action_steps": 1})
    with pytest.raises(RecordError, match="n_action_steps is 8 in the first and 1 in the second"):
        run("compare", tmp_path / "a", tmp_path / "b")
    run("compare", tmp_path / "a", tmp_path / "b", "--allow", "n_action_steps")
    for words in ([tmp_path / "a"], [tmp_path / "a", tmp_path / "b", "--published"]):
        with pytest.raises(RecordError, match="name two benchmark folders, or one and --published"):
            run("compare", *words)
    with pytest.raises(RecordError, match="is not a finished benchmark folder"):
        run("compare", tmp_path / "a", tmp_path / "nowhere")


def test_a_run_is_printed_beside_the_published_numbers(run, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    run_made_up(tmp_path / "a", lambda scene: scene.init_state_id == 0, [f"{base}_swap" for base in BASE])
    run("compare", tmp_path / "a", "--published")
    out = capsys.readouterr().out
    assert "position (swap)" in out and "25.0 [" in out and "pi0.5" in out and "38.0" in out
    assert "prompts come from file names" in out


def test_a_model_card_is_written(run, tmp_path: Path, capsys):
    run_made_up(tmp_path / "a", lambda scene: True)
    run("model-card", tmp_path / "a", tmp_path / "README.md", "--name", "mine")
    assert "model-index:" in (tmp_path / "README.md").read_text()
    assert "README.md" in capsys.readouterr().out
