"""What commands say while they work: lines for people, JSON lines for programs, nothing where nobody wants it."""

import argparse
import io
import json
import re
import shlex
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from lerobot_coda import cli
from lerobot_coda.commands.benchmark import Board
from lerobot_coda.console import Display, Log, add_options, display_of


def _events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _work(display: Display, clock: list[float]) -> None:
    with display.stage("probe", "round 1 probe", 40) as tick:
        for done in range(1, 41):
            clock[0] += 0.5
            tick(done)
    display.say("[green]4[/green] of 40 failed, [bold]all[/bold] said")


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    clock, out = [0.0], io.StringIO()
    log = tmp_path / "deep" / "log.jsonl"
    _work(Display(Console(file=out, width=200), clock=lambda: clock[0], log=Log(log)), clock)
    events = _events(log)
    assert all(list(event) == ["time", "step", "done", "total", "message"] for event in events)
    assert all(datetime.fromisoformat(str(event["time"])).utcoffset() is not None for event in events)
    steps = [event for event in events if event["step"] == "round 1 probe"]
    assert (steps[0]["message"], steps[0]["done"], steps[0]["total"]) == ("begins", 0, 40)
    assert [event["done"] for event in steps[1:-1]] == list(range(2, 41, 2)), "one a second"
    assert "left" in str(steps[1]["message"]) and str(steps[-1]["message"]).startswith("done in 0:20")
    assert events[-1]["message"] == "4 of 40 failed, all said" and events[-1]["step"] is None


def test_a_log_goes_on_where_it_stopped(tmp_path: Path) -> None:
    for text in ("first", "second"):
        Log(tmp_path / "log.jsonl").event(text)
    assert [event["message"] for event in _events(tmp_path / "log.jsonl")] == ["first", "second"]


def test_quiet_leaves_out_progress_and_nothing_else(tmp_path: Path) -> None:
    said = {}
    for quiet in (False, True):
        clock, out = [0.0], io.StringIO()
        log = Log(tmp_path / f"{quiet}.jsonl")
        _work(Display(Console(file=out, width=200), clock=lambda c=clock: c[0], quiet=quiet, log=log), clock)
        said[quiet] = out.getvalue()
    assert said[True] == "4 of 40 failed, all said\n"
    assert said[False].endswith(said[True]) and "40 to do" in said[False] and "20/40" in said[False]
    loud, silent = ([event["message"] for event in _events(tmp_path / f"{quiet}.jsonl")] for quiet in (False, True))
    assert loud == silent, "the log holds everything"


def test_the_options_make_the_display(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    named, default = tmp_path / "named.jsonl", tmp_path / "default.jsonl"
    for arguments, expected in ((["-q", "--log-json", str(named)], named), (["--quiet"], default)):
        with display_of(parser.parse_args(arguments), log=default).stage("gate", "gate", 3) as tick:
            tick(3)
        assert [event["step"] for event in _events(expected)] == ["gate", "gate"]
    assert capsys.readouterr().out == ""


def test_the_board_of_a_benchmark_logs_too(tmp_path: Path) -> None:
    board = Board(["a", "a"], console=Console(file=io.StringIO(), quiet=True), log=Log(tmp_path / "log.jsonl"))
    board.progress(1, 2)
    event = _events(tmp_path / "log.jsonl")[0]
    assert (event["step"], event["done"], event["total"]) == ("benchmark", 1, 2)


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    below = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [one for choices in below for child in choices.values() for one in _commands(child)] or [parser]


COMMANDS = {parser.prog: parser for parser in _commands(cli.build_parser())}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_that_is_understood(name: str) -> None:
    """Each line of an epilog that begins with the command's name is parsed as a shell would hand it over."""
    epilog = COMMANDS[name].epilog or ""
    lines = [line.strip() for line in epilog.splitlines() if f"{line.strip()} ".startswith(f"{name} ")]
    assert "example" in epilog and lines
    for line in lines:
        command = re.split(r"\s{2,}|\s[>|#]\s|\s\(", line)[0]  # what follows is said about it
        cli.build_parser().parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("command", ["evolve", "demos", "benchmark", "generate", "validate", "replay", "render"])
def test_every_long_command_can_be_quiet_and_logs(command: str) -> None:
    options = {option for action in COMMANDS[f"lerobot-coda {command}"]._actions for option in action.option_strings}
    assert {"--quiet", "--log-json"} <= options


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_options_and_files(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("evolve", "critic-bench", "--perturbations", "lineage"))
    if shell == "bash":
        assert "_shtab_compgen_files" in script and "_evolve_pos_0_COMPGEN=_shtab" in script
