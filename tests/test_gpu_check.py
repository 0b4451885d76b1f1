"""The GPU check: on a tiny random model it runs to its end; without a GPU, or on a wrong file, it is one sentence."""

import json
from pathlib import Path

import pytest
import torch

from scripts.gpu_check import main

RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.mark.e2e
@pytest.mark.render
def test_a_tiny_model_goes_through_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("num2words", reason="SmolVLM's processor needs it: pip install 'lerobot[smolvla]'")
    from accelerate.state import AcceleratorState
    from lerobot.configs import parser

    try:
        code = main([str(RECIPES / "coda_smolvla.yaml"), "--tiny", "smolvla", "--json", str(tmp_path / "gpu.json")])
    finally:  # the trainer expects one command a process
        AcceleratorState._reset_state(reset_partial_state=True)
        parser._config_path_args.clear(), parser._config_yaml_overrides.clear()
    said = capsys.readouterr().out
    assert code == 0, said
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert [check["name"] for check in report["checks"]] == [
        "load the model", "a loss of 2 samples", "a training step", "load the checkpoint", "chunks for 1 observation",
        "chunks for 8 observations", "two chunks in the simulator",
    ]  # fmt: skip
    assert report["problem"] is None and "All parts ran" in said
    assert all(check["seconds"] > 0 and check["memory_gb"] > 0 and check["found"] for check in report["checks"])
    assert report["checks"][-1]["found"] == "8 steps"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["coda_smolvla.yaml"], "torch sees no GPU here: run this on a machine with one, or add --tiny smolvla"),
        (["smolvla_libero_pro.yaml"], "is no train recipe of a pretrained model: give"),
        (["coda_libero_object.yaml"], "is no train recipe of a pretrained model: give one of recipes/coda_*.yaml"),
        (["absent.yaml"], "cannot be read"),
    ],
)
def test_nothing_to_check_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([str(RECIPES / word) for word in words]) == 2
    said = capsys.readouterr()
    assert says in said.err and said.err.count("\n") == 1 and not said.out
