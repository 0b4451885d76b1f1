"""Each backbone under the critic: losses masked and per sample, features of the same pass, checkpoints, adapters."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinyvlas
import torch
from hubs import served
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from safetensors.torch import load_file, save_file
from tinyvlas import ACT, CAMERAS, CHUNK, DIFFUSION, EXECUTES, config, raw_batch, stats

from lerobot_coda.backbones.base import FeatureCache
from lerobot_coda.backbones.families import FAMILIES as ADAPTERS
from lerobot_coda.backbones.weights import checkpoint_folder, load_verified
from lerobot_coda.columns import POTENTIAL
from lerobot_coda.configuration_coda import CodaConfig
from lerobot_coda.modeling_coda import CodaPolicy, split_in_time
from lerobot_coda.processor_coda import make_coda_pre_post_processors

FAMILIES = ("act", "smolvla", "pi0", "pi05", "pi0_fast", "xvla", "diffusion")
NEEDS = {"smolvla": "num2words", "diffusion": "diffusers"}
CONDITIONED = tuple(family for family in FAMILIES if family != "pi0_fast")


@pytest.fixture(scope="session")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("num2words", reason="SmolVLM's processor needs it: pip install 'lerobot[smolvla]'")
    return tinyvlas.save_smolvlm(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture
def settings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Settings of a tiny policy of a family; skips where the family's own extra isn't installed."""

    def made(family: str) -> dict[str, Any]:
        if family in NEEDS:
            pytest.importorskip(NEEDS[family])
        if family == "smolvla":
            return tinyvlas.smolvla(request.getfixturevalue("smolvlm"))
        if family in ("pi0", "pi05"):
            return tinyvlas.shrink_pi(monkeypatch)
        if family in ("xvla", "pi0_fast"):
            return getattr(tinyvlas, family)(monkeypatch)
        return ACT if family == "act" else DIFFUSION

    return made


def observation(rows: int = 2) -> dict[str, Any]:
    batch = raw_batch(rows)
    return {key: batch[key] for key in (*CAMERAS, "observation.state", "task")}


def chunk_of(policy: CodaPolicy, batch: dict[str, Any]) -> torch.Tensor:
    torch.manual_seed(3)
    return policy.predict_action_chunk(batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_backbone_trains_and_its_checkpoint_acts_alike(family: str, settings: Callable, tmp_path: Path) -> None:
    made = config(family, settings(family), value_weight=0.5)
    policy = CodaPolicy(made, dataset_stats=stats())
    before, after = make_coda_pre_post_processors(made, stats())
    batch, optimizer = before(raw_batch(later=True)), torch.optim.AdamW(policy.get_optim_params())
    for _ in range(2):
        loss, logs = policy.train()(batch)
        loss.backward()
        optimizer.step()
        policy.update()
        optimizer.zero_grad()
    assert {"cloning_loss", "value_loss"} <= set(logs) and all(type(value) is float for value in logs.values())

    policy.save_pretrained(tmp_path)
    before.save_pretrained(tmp_path)
    after.save_pretrained(tmp_path)
    again = CodaPolicy.from_pretrained(tmp_path)
    assert set(again.config.input_features) == {*CAMERAS, "observation.state"}
    pre, post = make_pre_post_processors(again.config, pretrained_path=str(tmp_path))
    first, second = chunk_of(policy, before(observation())), chunk_of(again, pre(observation()))
    assert torch.equal(first, second) and first.shape[0] == 2 and first.shape[2] == 7
    assert torch.equal(after(first[:, 0]), post(second[:, 0]))
    assert torch.equal(policy.critic.online["v"][0].weight, again.critic.online["v"][0].weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_the_familys_own_per_sample_and_masked(family: str, settings: Callable) -> None:
    made = config(family, settings(family))
    policy = CodaPolicy(made).train()
    batch = make_coda_pre_post_processors(made, stats())[0](raw_batch())

    def loss() -> torch.Tensor:
        torch.manual_seed(1)
        return policy(batch, reduction="none")[0].detach()

    torch.manual_seed(1)
    inner = {**batch, "observation.state": batch["observation.state"][:, None]} if family == "diffusion" else batch
    theirs = policy.backbone.policy(copy.copy(inner))[0].detach()
    assert loss().shape == (3,) and torch.allclose(loss().mean(), theirs, atol=1e-5)

    batch["action_is_pad"][1, 5:] = True
    if family == "act":  # its variational encoder sees the actions too; there LeRobot masks them itself
        policy.backbone.policy.model.config.use_vae = False
    masked = loss()
    batch["action"][1, 5:] = 9.0
    again = loss()
    assert torch.equal(masked[[0, 2]], again[[0, 2]])
    # The noisy chunk goes in whole, as it will when acting; counted in the loss, 9.0 would weigh tens.
    assert (masked[1] - again[1]).abs() < (1e-5 if family == "act" else 1.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_come_with_the_loss_and_do_not_see_the_action(family: str, settings: Callable) -> None:
    policy = CodaPolicy(config(family, settings(family))).train()
    batch = make_coda_pre_post_processors(policy.config, stats())[0](raw_batch())
    batch.pop("index")
    features = policy.backbone.clone(batch).features
    assert features.shape == (3, policy.backbone.features_size) and not features.requires_grad
    assert torch.allclose(features, policy.backbone.features(batch), atol=1e-4)
    batch["action"] = -batch["action"]
    if family == "pi0_fast":  # which reads actions as words
        batch["action.tokens"] = batch["action.tokens"].roll(1, 0)
    assert torch.allclose(features, policy.backbone.clone(batch).features, atol=1e-5)
    batch[CAMERAS[0]] = batch[CAMERAS[0]].flip(-1)
    assert not torch.allclose(features, policy.backbone.clone(batch).features, atol=1e-4)


@pytest.mark.parametrize("family", ("act", "pi05"))
def test_the_later_observation_reaches_the_critic_only(family: str, settings: Callable) -> None:
    made = config(family, settings(family), value_weight=0.5)
    policy, pre = CodaPolicy(made).train(), make_coda_pre_post_processors(made, stats())[0]
    raw = raw_batch(later=True)
    alone = pre(raw_batch() | {k: v[:, 0] for k, v in raw.items() if k.startswith("observation.") and v.dim() > 2})
    now, later = split_in_time(pre(raw), EXECUTES)
    assert later is not None and later["index"].tolist() == [4, 14, 24]
    for key in (*CAMERAS, "observation.state"):
        assert torch.equal(now[key], alone[key])
    torch.manual_seed(2)
    expected = policy(alone, reduction="none")[0]
    raw[CAMERAS[0]][:, 1] = 0
    raw["observation.state"][:, 1] = 0
    torch.manual_seed(2)
    assert torch.allclose(policy(pre(raw), reduction="none")[0], expected, atol=1e-5)
    assert not torch.allclose(policy.backbone.features(later), policy.backbone.features(split_in_time(pre(raw), 4)[1]))


def test_a_state_in_the_prompt_is_that_of_its_own_row(settings: Callable) -> None:
    pre = make_coda_pre_post_processors(config("pi05", settings("pi05")), stats())[0]
    raw = raw_batch(later=True)
    tokens = pre(raw)["observation.language.tokens"]
    assert len(tokens) == 6 and not torch.equal(tokens[:3], tokens[3:])
    raw["observation.state"][:, 1] = raw["observation.state"][:, 0]
    tokens = pre(raw)["observation.language.tokens"]
    assert torch.equal(tokens[:3], tokens[3:])


def test_words_of_a_chunk_are_decoded_over_the_steps_that_they_stand_for(settings: Callable) -> None:
    made = config("pi0_fast", settings("pi0_fast"))
    policy, pre = CodaPolicy(made).eval(), make_coda_pre_post_processors(made, stats())[0]
    batch = pre(raw_batch())
    assert policy.predict_action_chunk(pre(observation())).shape == (2, CHUNK, 7)
    words = batch["action.tokens"][:, :-1]  # the first is the beginning of the text
    decoded = policy.backbone.policy.detokenize_actions(words[:, 1:], policy.backbone.policy.config.n_action_steps, 7)
    assert (decoded - batch["action"]).abs().max() < 0.6  # a quarter of a unit for each rounded coefficient


def test_words_of_a_padded_chunk_count_by_its_share_of_real_steps(settings: Callable) -> None:
    policy = CodaPolicy(config("pi0_fast", settings("pi0_fast"))).eval()
    batch = make_coda_pre_post_processors(policy.config, stats())[0](raw_batch())
    whole, _ = policy(batch, reduction="none")
    batch["action_is_pad"][1, 4:], batch["action_is_pad"][2] = True, True
    found, _ = policy(batch, reduction="none")
    assert torch.allclose(found, whole * torch.tensor([1.0, 0.5, 0.0]))


def test_terminal_frames_of_our_datasets_are_padding() -> None:
    pre = make_coda_pre_post_processors(config("act", ACT), stats())[0]
    raw = raw_batch(later=True)
    raw["action"][0, 6] = 0
    assert pre(raw)["action_is_pad"].nonzero().tolist() == [[0, 6]]


def test_past_the_end_the_later_features_are_the_last_frames() -> None:
    raw = raw_batch(later=True)
    raw["observation.state_is_pad"][2, 1] = True
    raw["next.reward_is_pad"][2, 2:] = True
    assert split_in_time(raw, EXECUTES)[1]["index"].tolist() == [4, 14, 21]


def test_the_critic_gives_the_backbone_no_gradient(settings: Callable) -> None:
    made = config("act", ACT, value_weight=0.5, value_q=True)
    policy = CodaPolicy(made).train()
    now, later = split_in_time(make_coda_pre_post_processors(made, stats())[0](raw_batch(later=True)), EXECUTES)
    batch = make_coda_pre_post_processors(made, stats())[0](raw_batch(later=True))
    policy.critic.loss(policy._transition(batch, now, later, policy.backbone.clone(now).features)).loss.backward()
    assert all(p.grad is None for p in policy.backbone.parameters())
    assert policy.critic.online["q1"][0].weight.grad is not None


def test_frozen_features_are_computed_once_a_frame(settings: Callable) -> None:
    made = config("smolvla", settings("smolvla"), value_weight=0.5)
    policy = CodaPolicy(made).train()
    batch = make_coda_pre_post_processors(made, stats())[0](raw_batch(later=True))
    _, first = policy(batch)
    assert sorted(policy.backbone.cache.rows) == [0, 4, 10, 14, 20, 24]
    policy.backbone.prefix = None  # a second pass over the prefix would fail
    _, second = policy(batch)
    assert second["value"] == pytest.approx(first["value"], abs=1e-6)
    policy.backbone.vision_language().requires_grad_(True)
    assert not policy.backbone._frozen()


def test_a_full_cache_stops_growing() -> None:
    cache = FeatureCache(8 * 4 / 2**30)  # two rows of four numbers
    compute = lambda rows: (torch.ones(len(rows), 4),)  # noqa: E731
    (found,) = cache.get(torch.tensor([5, 6, 7, 5]), 4, compute)
    assert found.shape == (4, 4) and list(cache.rows) == [5, 6]


@pytest.mark.parametrize("family", ("smolvla", "pi0"))
def test_the_best_of_several_chunks_is_the_one_of_largest_q(family: str, settings: Callable) -> None:
    made = config(family, settings(family), value_weight=0.5, value_q=True, best_of=5)
    policy, pre = CodaPolicy(made).eval(), make_coda_pre_post_processors(made, stats())[0]
    for parameter in policy.critic.online.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch = pre(observation())
    drawn: list[torch.Tensor] = []
    sample = policy.backbone.sample
    policy.backbone.sample = lambda *args, **kwargs: drawn.append(sample(*args, **kwargs)) or drawn[-1]
    chunk = policy.predict_action_chunk(batch)
    values = policy.critic.q(policy.backbone.features(batch), drawn[0].unflatten(0, (2, 5)))
    assert chunk.shape == (2, CHUNK, 7) and values.std(-1).min() > 0
    for row in range(2):
        assert torch.equal(chunk[row], drawn[0].unflatten(0, (2, 5))[row, values[row].argmax()])


# --- advantage conditioning -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", CONDITIONED)
def test_what_a_policy_is_told_reaches_its_loss_and_not_its_features(family: str, settings: Callable) -> None:
    made = config(family, settings(family), value_weight=0.5, advantage_conditioning=True, advantage_dropout=0.0)
    policy, plain = CodaPolicy(made).train(), config(family, settings(family))
    batch = make_coda_pre_post_processors(plain, stats())[0](raw_batch())
    batch.pop("index")

    def cloned(signs: list[float] | None) -> Any:
        torch.manual_seed(1)
        policy._told = None if signs is None else torch.tensor(signs)
        return policy.backbone.clone(batch)

    untold = cloned(None)
    assert torch.equal(cloned([1.0, -1.0, 0.0]).loss, untold.loss)  # its vectors begin at zero
    torch.nn.init.normal_(policy.condition.vectors)
    found = cloned([1.0, -1.0, 0.0])
    assert (found.loss != untold.loss).tolist() == [True, True, False]
    assert torch.equal(found.features, untold.features)
    assert torch.equal(cloned([1.0, 1.0, 0.0]).loss[0], found.loss[0])
    assert cloned([1.0, 1.0, 0.0]).loss[1] != found.loss[1]


@pytest.mark.parametrize("family", CONDITIONED)
def test_a_conditioned_policy_trains_and_asks_for_what_is_good(family: str, settings: Callable, tmp_path: Path) -> None:
    made = config(family, settings(family), value_weight=0.5, advantage_conditioning=True, advantage_dropout=0.0)
    policy = CodaPolicy(made, dataset_stats=stats())
    before, _ = make_coda_pre_post_processors(made, stats())
    raw = raw_batch(later=True)
    raw["action_is_pad"][1, 5:] = True
    batch, optimizer = before(raw), torch.optim.AdamW(policy.get_optim_params())
    for _ in range(2):
        policy.train()(batch)[0].backward()
        assert policy._told.shape == (3,) and policy.condition.vectors.grad.abs().sum() > 0
        optimizer.step()
        policy.update()
        optimizer.zero_grad()
    torch.nn.init.normal_(policy.condition.vectors)
    policy.save_pretrained(tmp_path)
    again, seen = CodaPolicy.from_pretrained(tmp_path), before(observation())
    chunk = chunk_of(policy, seen)
    assert torch.equal(chunk_of(again, seen), chunk)
    with torch.no_grad():
        policy.condition.vectors[1] = 9.0  # nobody asks for what is bad
    assert torch.equal(chunk_of(policy, seen), chunk)
    with torch.no_grad():
        policy.condition.vectors[0] = -policy.condition.vectors[0]
    assert not torch.equal(chunk_of(policy, seen), chunk)


# --- pretrained backbones, adapters ---------------------------------------------------------------------------------


def pretrained(family: str, settings: dict[str, Any], folder: Path) -> Any:
    """A plain LeRobot policy saved as its own trainer would."""
    made = config(family, settings).family()
    policy = get_policy_class(family)(made)
    policy.save_pretrained(folder)
    return policy


@pytest.mark.parametrize("family", ("smolvla", "pi0", "pi05", "pi0_fast"))
def test_adapters_and_critic_are_all_that_is_trained_and_saved(family: str, settings: Callable, tmp_path: Path) -> None:
    from peft import PeftModel

    base = pretrained(family, settings(family), tmp_path / "base").eval()
    base.config.n_action_steps = CHUNK
    beside = {"value_weight": 0.5, "advantage_conditioning": family in CONDITIONED, "advantage_dropout": 0.0}
    made = config("grounded", {}, backbone_path=str(tmp_path / "base"), **beside)
    assert made.backbone == family and made.chunk_size == CHUNK
    policy, pre = CodaPolicy(made), make_coda_pre_post_processors(made, stats())[0]
    torch.manual_seed(3)
    expected = base.predict_action_chunk(pre(observation()))
    assert torch.equal(chunk_of(policy, pre(observation())), expected)

    wrapped = policy.wrap_with_peft(peft_cli_overrides={"method_type": "LORA", "r": 4})
    assert wrapped.peft_config["default"].lora_alpha == 8
    trained = {name for name, p in wrapped.named_parameters() if p.requires_grad}
    assert any("q_proj" in name for name in trained)
    assert any("time_mlp_in" in name for name in trained) or family == "pi0_fast"
    assert all(any(part in name for part in ("lora_", ".critic.", ".condition.")) for name in trained)
    assert any(".condition." in name for name in trained) == (family in CONDITIONED)
    batch, optimizer = pre(raw_batch(later=True)), torch.optim.AdamW(wrapped.get_optim_params(), lr=1e-2)
    for _ in range(2):
        wrapped.train()(batch)[0].backward()
        optimizer.step()
        wrapped.update()
        optimizer.zero_grad()
    after = chunk_of(wrapped, pre(observation()))
    assert not torch.equal(after, expected)

    wrapped.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    remade = config("grounded", {}, backbone_path=str(tmp_path / "base"), **beside)
    plain = CodaPolicy.from_pretrained(tmp_path / "base", config=remade)
    again = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    assert torch.equal(chunk_of(again, pre(observation())), after)
    assert torch.equal(again.critic.target["v"][0].weight, wrapped.critic.target["v"][0].weight)
    if family in CONDITIONED:
        learned = wrapped.condition.vectors.detach()
        assert learned.abs().sum() > 0 and torch.equal(again.condition.vectors, learned)


@pytest.mark.parametrize("family", ("act", "pi0"))
def test_weights_that_did_not_load_are_an_error(family: str, settings: Callable, tmp_path: Path) -> None:
    pretrained(family, settings(family), tmp_path)
    file = tmp_path / "model.safetensors"
    made = config(family, settings(family)).family()
    load_verified(get_policy_class(family), tmp_path, made)
    weights = load_file(file)
    name = next(
        key for key in weights if key.endswith("action_head.weight" if family == "act" else "action_in_proj.weight")
    )
    save_file({key: value for key, value in weights.items() if key != name}, file)
    with pytest.raises(ValueError, match=r"parameters? (are|is) not in the file|was not loaded|does not fit"):
        load_verified(get_policy_class(family), tmp_path, made)
    file.write_bytes(b"no safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors can't be read"):
        load_verified(get_policy_class(family), tmp_path, made)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backbone": "actt"}, "'actt' is neither 'grounded' nor a LeRobot policy: .*smolvla"),
        ({"backbone": "act", "backbone_config": {"dim_modell": 3}}, "no setting 'dim_modell' for the policy 'act'"),
        ({"backbone_config": {"dim_model": 3}}, "set policy.backbone to the policy it configures"),
        ({"backbone": "act", "grounding_weight": 1.0}, "grounding_weight needs the backbone 'grounded'"),
        ({"backbone": "act", "best_of": 2}, "value_q=true and value_weight > 0"),
        ({"advantage_conditioning": True}, "advantage_conditioning=true needs value_weight > 0"),
        ({"advantage_dropout": 1.0}, r"advantage_dropout must lie in \[0, 1\)"),
        ({"backbone": "diffusion", "backbone_config": {"n_obs_steps": 2}}, "looks at n_obs_steps=2"),
        ({"backbone_path": "/nowhere/at/all"}, "neither a folder nor a hub id"),
    ],
)
def test_a_setting_that_cannot_work_is_one_sentence(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CodaConfig(device="cpu", **changes)


def test_a_deterministic_backbone_has_no_best_of() -> None:
    with pytest.raises(ValueError, match="'act' always gives the same chunk"):
        CodaPolicy(config("act", ACT, value_weight=0.5, value_q=True, best_of=2))


def test_the_wrong_type_beside_a_path_is_refused(tmp_path: Path) -> None:
    pretrained("act", ACT, tmp_path)
    with pytest.raises(ValueError, match=r"backbone is 'pi0' but .* holds a policy of type 'act'"):
        CodaConfig(device="cpu", backbone="pi0", backbone_path=str(tmp_path))
    assert checkpoint_folder(tmp_path) == tmp_path


def test_a_path_that_the_hub_does_not_give_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = "backbone_path 'ada/nothing' can't be had from the Hub: "
    with served(monkeypatch, tmp_path), pytest.raises(ValueError, match=said) as caught:
        CodaConfig(device="cpu", backbone_path="ada/nothing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("family", "weighs"), [("act", False), ("pi0", True)])
def test_a_policy_without_an_adapter_gets_features_of_frozen_trunks(
    family: str, weighs: bool, settings: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ADAPTERS, family)
    made = config(family, settings(family), value_weight=0.5)
    if not weighs:
        with pytest.raises(ValueError, match=f"'{family}' gives no loss for each sample.*advantage_weighting=false"):
            CodaPolicy(made)
        made.advantage_weighting = False
    policy, pre = CodaPolicy(made).train(), make_coda_pre_post_processors(made, stats())[0]
    assert policy.backbone.weighs == weighs
    loss, logs = policy(pre(raw_batch(later=True)))
    loss.backward()
    assert logs["value_loss"] > 0
    batch = pre(raw_batch())
    batch.pop("index")
    features = policy.backbone.features(batch)
    batch["task"] = ["pick the ketchup"] * 3
    assert features.shape[1] == policy.backbone.features_size
    assert not torch.equal(features, policy.backbone.features(batch))


@pytest.mark.parametrize("family", ("groot", "pi0_fast"))
def test_a_family_that_lacks_a_package_or_its_files_says_so(family: str) -> None:
    with pytest.raises(ValueError, match=rf"the backbone '{family}' can't be built here: .{{20,}}"):
        CodaPolicy(config(family, {}))


def test_a_backbone_without_a_layer_for_it_cannot_be_conditioned(settings: Callable) -> None:
    made = config("pi0_fast", settings("pi0_fast"), value_weight=0.5, advantage_conditioning=True)
    with pytest.raises(ValueError, match=r"'pi0_fast' has no layer that could be told.*advantage_conditioning=false"):
        CodaPolicy(made)


def test_presets_are_the_familys_unless_given() -> None:
    plain = config("act", ACT, value_weight=0.5)
    assert plain.get_optimizer_preset().lr == 1e-5 and plain.get_scheduler_preset() is None
    given = config("act", ACT, optimizer_lr=1e-3, scheduler_decay_steps=100)
    assert given.get_optimizer_preset().lr == 1e-3 and given.get_scheduler_preset().num_decay_steps == 100
    groups = CodaPolicy(plain).get_optim_params()
    assert groups[-1]["lr"] == 3e-4 and len(groups) == 3
    assert POTENTIAL not in CodaPolicy(plain).config.input_features
