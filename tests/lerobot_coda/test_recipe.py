"""Recipes: the shipped ones are valid, and each mistake gets one sentence with the way out."""

import pytest
import yaml
from fakeworld import RECIPE, TRAIN, write_recipes

from lerobot_coda.outlook import costs, plan
from lerobot_coda.recipe import load_demos, load_evolve
from libero_pro.record import RecordError


def test_shipped_recipes_are_valid(repository):
    for name in ("quickstart", "libero_object"):
        recipe = load_evolve(repository / "recipes" / f"{name}.yaml")
        assert recipe.name == name and set(recipe.heldout.suites) == {
            "libero_object", "libero_object_swap", "libero_object_task",
        }  # fmt: skip
    for name in ("sft_libero_object", "coda_libero_object"):
        demos, train = load_demos(repository / "recipes" / f"{name}.yaml")
        assert demos.suite == "libero_object"
        assert demos.layouts > 0 or not train["policy"].get("grounding_path")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prob": {"scenes": 4}}, "unknown key 'prob'; did you mean 'probe'?"),
        ({"probe": {"scenes": 12, "scenez": 3}}, "unknown key 'probe.scenez'; did you mean 'scenes'?"),
        ({"budget": {"zzz": 3}}, "unknown key 'budget.zzz'; the keys there are environments, environments_per_round"),
        ({"suite": "libero_objekt"}, "nearest is 'libero_object'"),
        ({"suite": "libero_object_swap"}, "only base suites can, LIBERO-Pro suites are held out"),
        ({"heldout": {"suites": ["libero_object_swop"]}}, "did you mean 'libero_object_swap'"),
        ({"task_ids": [3, 12]}, "tasks 0 to 9, not 12"),
        ({"rounds": "many"}, "field 'rounds'"),
        ({"arm": "codaa"}, "field 'arm'"),
        ({"validation": {"alpha": 0.9}}, "field 'validation.alpha'"),
        ({"budget": {"environments_per_round": 12}}, "leaves nothing to demonstrate"),
        ({"arm": "no-corrections", "training": {"value_weight": 0}}, "set training.value_weight above 0"),
        ({"critic": {"kind": "endpoit"}}, "field 'critic.kind'"),
        ({"critic": {"modell": "x"}}, "unknown key 'critic.modell'; did you mean 'model'?"),
        ({"critic": {"kind": "endpoint"}}, "needs 'model'"),
        ({"proposals": True}, "proposals needs a critic that writes"),
        ({"potential": {"accept": {"auk": 0.9}}}, "unknown key 'potential.accept.auk'; did you mean 'auc'?"),
        ({"potential": {"accept": {"auc": 0.2}}}, "field 'potential.accept.auc'"),
        ({"memory": "memory.sqlite"}, "field 'memory'"),
        ({"retention": {"scene": 3}}, "unknown key 'retention.scene'; did you mean 'scenes'?"),
        ({"name": "Not A Name"}, "field 'name'"),
        ({"base": {"train": "nowhere.yaml"}}, "field 'base.train' names nowhere.yaml"),
        ({"base": {"steps": 0}}, "either 'train' and 'steps', or 'policy' alone"),
        ({"base": {"policy": "libero_object_sft"}}, "'policy' alone"),
        ({"seed": float("nan")}, "field 'seed'"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(tmp_path, changes, message):
    path = write_recipes(tmp_path, **changes)
    with pytest.raises(RecordError) as error:
        load_evolve(path)
    text = str(error.value)
    assert message in text and str(path) in text and "\n" not in text


def test_what_is_left_out_has_a_default(tmp_path):
    recipe = load_evolve(write_recipes(tmp_path))
    assert recipe.critic.kind == "simulator" and recipe.memory is None and recipe.retention.scenes == 0
    assert recipe.potential.refine and recipe.potential.accept.auc == 0.95
    shared = load_evolve(write_recipes(tmp_path, memory="postgresql+psycopg://user@host/coda", arm="plr"))
    assert shared.memory.startswith("postgresql") and shared.rules.allocation == "plr"


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n- b", "must be a mapping"), ("a: [", "is not YAML"), ("", "must be a mapping"), (None, "cannot be read")],
)
def test_what_is_no_recipe_is_refused(tmp_path, text, message):
    path = tmp_path / "r.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecordError, match=message):
        load_evolve(path)


def test_a_key_that_is_missing_is_named(tmp_path):
    path = write_recipes(tmp_path)
    path.write_text(yaml.safe_dump({k: v for k, v in RECIPE.items() if k != "rounds"}))
    with pytest.raises(RecordError, match="field 'rounds': Field required"):
        load_evolve(path)


def test_a_train_recipe_without_a_demonstration_recipe_says_where_it_belongs(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(TRAIN))
    with pytest.raises(RecordError, match=r"demos/y\.yaml says nothing of how to build it"):
        load_demos(path)
    path.write_text(yaml.safe_dump(TRAIN | {"dataset": {"repo_id": "x/y"}}))
    with pytest.raises(RecordError, match=r"'dataset.repo_id' and 'dataset.root'"):
        load_demos(path)


def test_one_worker_is_expected_to_take_twice_as_long_for_all_but_training(tmp_path):
    stages = plan(load_evolve(write_recipes(tmp_path)))
    two, one = ({cost.kind: cost.seconds for cost in costs(stages, workers)} for workers in (2, 1))
    assert one["train"] == two["train"] and one["probe"] == 2 * two["probe"]
    assert {cost.kind: cost.seconds for cost in costs(stages, 8)} == two
