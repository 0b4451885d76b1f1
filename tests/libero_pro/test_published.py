"""The published rates: where they come from, and a run beside them."""

from pathlib import Path

import pytest
from benchmark_parts import run_made_up

from libero_pro.published import PUBLISHED, beside_published
from libero_pro.suites import AXES, BASE


def test_every_rate_is_of_a_released_suite_and_has_a_source():
    for row in PUBLISHED:
        assert row.model and row.source
        for (suite, axis), rate in row.rates.items():
            assert suite in BASE and axis in ("base", *AXES)
            assert 0 <= rate <= 1
    assert len({row.model for row in PUBLISHED}) == len(PUBLISHED)


def test_the_readmes_columns_are_where_they_belong():
    by_model = {row.model: row.rates for row in PUBLISHED}
    # pi0.5: position 0.38 goal, 0.20 spatial, 0.08 libero_10, 0.17 object.
    assert [by_model["pi0.5"][base, "swap"] for base in BASE] == [0.20, 0.17, 0.38, 0.08]
    assert by_model["pi0"]["libero_10", "object"] == 0.79
    assert by_model["OpenVLA"]["libero_object", "lan"] == 0.98


def test_a_run_stands_beside_them(tmp_path: Path):
    suites = [*(f"{base}_swap" for base in BASE[:3]), "libero_goal_lan"]
    result = run_made_up(tmp_path, lambda scene: scene.init_state_id == 0, suites)
    tables = beside_published(result)
    assert list(tables) == ["swap", "lan"]
    mine, *others = tables["swap"]
    assert (mine.model, mine.prompt_source) == ("policy:seeded", "bddl")
    assert [rate and rate[0] for rate in mine.rates] == [0.25, 0.25, 0.25, None, 0.25, None]
    published = next(line for line in others if line.model == "pi0.5")
    assert published.rates[4] == (pytest.approx(0.25), None, None)  # (.38 + .20 + .17) / 3
    assert published.rates[5] == (pytest.approx(0.2075), None, None)
    assert published.prompt_source == "filename"
    assert "UniVLA" not in [line.model for line in tables["lan"]]
