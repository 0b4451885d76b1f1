"""`rollout` in an evolve recipe: where episodes are run is no part of what a run is."""

import sys
from pathlib import Path

import pytest
import yaml

from lerobot_coda.engine import LiberoEngine
from lerobot_coda.recipe import EvolveRecipe, load_evolve
from lerobot_coda.runfolder import identity
from libero_pro import ray_workers
from libero_pro.record import RecordError

RECIPES = Path(__file__).parents[2] / "recipes"


def recipe(tmp_path: Path, **rollout: object) -> EvolveRecipe:
    data = yaml.safe_load((RECIPES / "quickstart.yaml").read_text()) | {"rollout": rollout}
    for name in (data["base"]["train"], data["training"]["train"]):
        (tmp_path / name).write_text("{}")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(data))
    return load_evolve(tmp_path / "recipe.yaml")


def test_a_run_may_go_on_elsewhere_than_it_began(tmp_path: Path):
    here, there = recipe(tmp_path), recipe(tmp_path, backend="ray", address="10.0.0.1:6379", workers=64)
    assert there.rollout.workers == 64 and here.rollout.backend == "local"
    assert identity(here, {}) == identity(there, {}) == identity(load_evolve(RECIPES / "quickstart.yaml"), {})


def test_the_engine_has_the_recipes_crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    class Connected:
        @staticmethod
        def connect(count: int, address: str | None) -> str:
            asked.append((count, address))
            return "crew"

    monkeypatch.setattr(ray_workers, "RayWorkers", Connected)
    assert LiberoEngine.of(recipe(tmp_path)).crew is None and not asked
    engine = LiberoEngine.of(recipe(tmp_path, backend="ray"))
    assert (engine.crew, engine.workers) == ("crew", 2)
    LiberoEngine.of(recipe(tmp_path, backend="ray", address="auto", workers=64))
    assert asked == [(2, None), (64, "auto")]


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        ({"backend": "slurm"}, "'local' or 'ray'"),
        ({"adress": "auto"}, "unknown key 'rollout.adress'; did you mean 'address'"),
        ({"workers": 4}, "address and workers are of the backend ray: set backend: ray, or leave them out"),
        ({"backend": "ray", "workers": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_settings_are_one_sentence(tmp_path: Path, rollout: dict, says: str):
    with pytest.raises(RecordError, match=says):
        recipe(tmp_path, **rollout)


def test_without_ray_the_run_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RecordError, match="Ray is not installed"):
        LiberoEngine.of(recipe(tmp_path, backend="ray"))
