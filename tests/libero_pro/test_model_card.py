"""A benchmark folder in a model card, read back by the Hub's own library."""

from pathlib import Path

import pytest
from benchmark_parts import run_made_up
from huggingface_hub import ModelCard

from libero_pro.model_card import update_card
from libero_pro.record import RecordError


def test_a_card_is_made_updated_and_keeps_the_rest(tmp_path: Path):
    result = run_made_up(tmp_path / "run", lambda scene: scene.init_state_id == 0, ["libero_goal_swap"])
    path = tmp_path / "README.md"
    path.write_text("---\nlicense: apache-2.0\ntags:\n- robotics\n---\n\n# My policy\n\nText.\n")
    update_card(path, result, model_name="mine")
    card = ModelCard.load(path)
    assert card.data.license == "apache-2.0" and card.data.model_name == "mine"
    (evaluation,) = card.data.eval_results
    assert (evaluation.dataset_config, evaluation.metric_value) == ("libero_goal_swap", 25.0)
    assert evaluation.metric_args == {"wilson_95": [7.1, 59.1]}
    assert evaluation.dataset_args["prompt_source"] == "bddl"
    text = path.read_text()
    assert text.index("# My policy") < text.index("## LIBERO-Pro results") < text.index("### LIBERO-Pro protocol card")

    better = run_made_up(tmp_path / "later", lambda scene: True, ["libero_goal_swap"])
    path.write_text(text + "\nAfterwards.\n")
    update_card(path, better, model_name="other")
    card, text = ModelCard.load(path), path.read_text()
    assert card.data.model_name == "mine"
    assert [evaluation.metric_value for evaluation in card.data.eval_results] == [100.0]
    assert text.count("## LIBERO-Pro results") == 1
    assert "Text." in text and text.rstrip().endswith("Afterwards.")


def test_a_new_card_and_a_broken_one(tmp_path: Path):
    result = run_made_up(tmp_path / "run", lambda scene: True, ["libero_goal", "libero_goal_lan"])
    update_card(tmp_path / "new" / "README.md", result, model_name="mine")
    card = ModelCard.load(tmp_path / "new" / "README.md")
    assert [evaluation.dataset_config for evaluation in card.data.eval_results] == ["libero_goal", "libero_goal_lan"]
    broken = tmp_path / "README.md"
    broken.write_text("---\n- a\n- list\n---\n")
    with pytest.raises(RecordError, match="is not a model card"):
        update_card(broken, result, model_name="mine")
