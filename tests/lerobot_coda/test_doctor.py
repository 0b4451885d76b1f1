"""The doctor: every planted fault is named by its check, nothing sound is accused, and the command says it all."""

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.doctor_faults import FAULTS
from benchmarks.faults.bench import Bench, Fault
from benchmarks.faults.damage import as_adapter
from lerobot_coda.commands.doctor import show
from lerobot_coda.doctor import machine
from lerobot_coda.doctor.check import Finding, attempt, check, fail, ok, raised, skipped
from libero_pro.record import RecordError

MARKS = {
    "machine": (),
    "render": (pytest.mark.sim, pytest.mark.render),
    "simulator": (pytest.mark.sim,),
    "policy": (),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("doctor"))


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault.what.replace(" ", "_"), marks=MARKS[fault.kind]) for fault in FAULTS]
)
def test_a_planted_fault_is_named_and_its_sound_twin_is_not_accused(fault: Fault, bench: Bench) -> None:
    finding = fault.plant(bench)
    assert fault.named(finding), finding
    twin = fault.sound(bench)
    assert (twin.name, twin.status) == (fault.check, "ok"), twin


def test_faults_are_distinct_and_enough() -> None:
    assert len({fault.what for fault in FAULTS}) == len(FAULTS) >= 15


def test_a_fault_is_not_named_by_another_check_status_or_sentence() -> None:
    fault = FAULTS[0]
    finding = Finding(fault.check, fault.status, fault.says, "do this")
    assert fault.named(finding)
    for other in ({"name": "disk"}, {"status": "warn"}, {"found": "something"}, {"remedy": ""}):
        assert not fault.named(replace(finding, **other))


def test_a_check_that_raises_is_a_failed_check() -> None:
    @check("broken")
    def look(number: int) -> object:
        return ok(f"{1 / number:g}")

    assert look(2) == Finding("broken", "ok", "0.5")
    assert look(0).status == "fail" and "ZeroDivisionError: division by zero" in look(0).found
    assert attempt("made", lambda: 3) == 3
    failed = attempt("made", lambda: json.loads("{"))
    assert isinstance(failed, Finding) and (failed.name, failed.status) == ("made", "fail")
    assert raised("disk", RecordError("it is full; make room")) == Finding("disk", "fail", "it is full", "make room")
    assert raised("disk", RuntimeError()).remedy
    assert [finding.status for finding in skipped(("a", "b"), "made")] == ["warn", "warn"]


def test_rows_come_as_they_are_made_and_are_counted() -> None:
    screen = io.StringIO()

    def findings() -> Iterator[Finding]:
        yield Finding("python", "ok", "3.12.1")
        assert "3.12.1" in screen.getvalue()
        yield Finding("disk", *fail("[full]", "make room"))

    assert len(show(findings(), Console(file=screen, width=100))) == 2
    text = screen.getvalue()
    assert "fail  disk                  [full]" in text and "-> make room" in text
    assert text.strip().endswith("1 ok, 0 warn, 1 fail")


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({}, None),
    ],
)
def test_the_container_s_share_of_cpus_is_read(files: dict[str, str], granted: float | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.cpu_quota(tmp_path) == granted


def test_a_real_adapter_is_sound_until_a_weight_below_it_differs(bench: Bench) -> None:
    from lerobot.policies.act.modeling_act import ACTPolicy
    from peft import LoraConfig, get_peft_model

    from lerobot_coda.doctor import policy
    from lerobot_coda.doctor.checkpoint import read

    folder = bench.copy()
    (folder / "model.safetensors").unlink()
    adapted = get_peft_model(
        ACTPolicy.from_pretrained(bench.checkpoint), LoraConfig(target_modules=["action_head"], r=2)
    )
    adapted.save_pretrained(folder)
    as_adapter(str(bench.checkpoint))(folder)
    checkpoint = read(str(folder))
    assert [look(checkpoint).status for look in policy.CHECKS] == ["ok"] * len(policy.CHECKS)
    loaded = policy.load(checkpoint).policy
    assert policy.weights_loaded(loaded, checkpoint).status == "ok"
    loaded.get_base_model().model.action_head.base_layer.bias.data += 1.0
    finding = policy.weights_loaded(loaded, checkpoint)
    assert finding.status == "fail" and f"'model.action_head.bias' is not what {bench.checkpoint}" in finding.found


COMMAND = """import argparse, sys
from lerobot_coda.commands import doctor
parser = argparse.ArgumentParser()
doctor.add(parser.add_subparsers())
arguments = parser.parse_args(sys.argv[1:])
assert not {'torch', 'mujoco', 'lerobot'} & set(sys.modules)
arguments.run(arguments)"""


def _doctor(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, "doctor", *arguments]
    env = {**os.environ, "COLUMNS": "160", **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900)


@pytest.mark.e2e
@pytest.mark.sim
@pytest.mark.render
def test_all_is_well_here(bench: Bench, tmp_path: Path) -> None:
    run = _doctor(f"--policy.path={bench.checkpoint}", "--json", "found.json", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["name"] for row in found if row["status"] != "ok" and row["name"] not in ("cpu", "disk")] == []
    expected = {fault.check for fault in FAULTS}
    assert expected <= {row["name"] for row in found}, "a check that faults are planted for is not part of the command"
    assert f"{len(found)} ok" in run.stdout or "warn" in run.stdout


@pytest.mark.e2e
def test_a_failed_check_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lerobot_coda.commands import doctor

    monkeypatch.setattr("lerobot_coda.doctor.examine", lambda *arguments: iter([Finding("gl", "fail", "none", "apt")]))
    with pytest.raises(SystemExit) as left:
        doctor._run(argparse.Namespace(policy=None, full=False, json=tmp_path / "found.json"))
    assert left.value.code == 1
    assert json.loads((tmp_path / "found.json").read_text())[0]["remedy"] == "apt"
