"""`--env.type=libero_pro`: configuration, start states, episode ends, and the stock `lerobot-eval`."""

import json
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from rollout_parts import save_tiny_act

from libero_pro import env as env_module
from libero_pro.env import LiberoProEnv, LiberoProGymEnv
from libero_pro.record import RecordError
from libero_pro.suites import get_task, scene_for


def test_stock_discovery_registers_environment_and_policy():
    from importlib.metadata import distribution

    from lerobot.configs import PreTrainedConfig
    from lerobot.envs import make_env_config
    from lerobot.utils.import_utils import register_third_party_plugins

    assert distribution("lerobot_policy_coda").metadata["Name"] == "lerobot_policy_coda"  # a dash would hide it
    register_third_party_plugins()
    assert "coda" in PreTrainedConfig.get_known_choices()
    config = make_env_config("libero_pro", task="libero_goal_lan")
    assert (config.type, type(config)) == ("libero_pro", LiberoProEnv)


def test_features_are_liberos():
    from lerobot.envs.utils import env_to_policy_features

    config = LiberoProEnv(observation_height=96, observation_width=96)
    shapes = {key: feature.shape for key, feature in env_to_policy_features(config).items()}
    assert shapes == {
        "action": (7,),
        "observation.state": (8,),
        "observation.images.image": (3, 96, 96),
        "observation.images.image2": (3, 96, 96),
    }
    assert "observation.images.image2" not in env_to_policy_features(LiberoProEnv(camera_name="agentview"))


def test_suites_are_named_or_built_from_axes():
    assert LiberoProEnv(task="libero_object_swap, libero_10").suites() == ["libero_object_swap", "libero_10"]
    assert LiberoProEnv(task="libero_goal,libero_10", perturbations=["swap", "lan"]).suites() == [
        "libero_goal_swap",
        "libero_goal_lan",
        "libero_10_swap",
        "libero_10_lan",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "libero_object_swop"}, "env.task: .*did you mean 'libero_object_swap'.*; there are: libero_spatial,"),
        ({"task": " , "}, "env.task names no suite"),
        ({"task": "libero_object_temp_y0.5", "task_ids": [1]}, "was released without start states"),
        ({"task_ids": [3, 12]}, "libero_object_swap has tasks 0 to 9, not 12"),
        ({"task": "libero_goal", "perturbations": ["swop"]}, "env.perturbations: 'swop' is unknown; did you mean"),
        ({"perturbations": ["lan"]}, r"env.task \(with env.perturbations\): 'libero_object_swap' is unknown"),
        ({"max_parallel_tasks": 2}, "share one policy and its action queue"),
        ({"fps": 30}, "controlled at 20 Hz"),
        ({"prompt_source": "bdll"}, "env.prompt_source: 'bdll' is unknown; did you mean 'bddl'"),
        ({"render_profile": "quick"}, "env.render_profile: 'quick' is unknown.*faithful, fast"),
        ({"camera_name": "agentview_image"}, "env.camera_name: .*did you mean 'agentview'"),
        ({"observation_width": 64}, "must be equal"),
        ({"episode_length": 0}, "env.episode_length must be at least 1"),
        ({"init_state_ids": [0, 50]}, "init_state_id 50: libero_object_swap 0 has start states 0 to 49"),
    ],
)
def test_bad_settings_are_named(settings: dict, message: str):
    with pytest.raises(RecordError, match=message):
        LiberoProEnv(**settings).create_envs(n_envs=1)


def test_prompts_and_horizons_are_the_perturbed_tasks():
    def made(suite: str, **settings) -> LiberoProGymEnv:
        return LiberoProGymEnv(suite, 1, **settings)

    assert [made(f"libero_{name}_lan")._max_episode_steps for name in ("spatial", "goal", "10")] == [280, 300, 520]
    assert made("libero_goal_lan", episode_length=7)._max_episode_steps == 7
    assert made("libero_goal_lan").task_description == get_task("libero_goal_lan", 1).prompt("bddl")
    by_file = made("libero_goal_lan", prompt_source="filename").task_description
    assert by_file == get_task("libero_goal", 1).prompt("filename") != made("libero_goal_lan").task_description


class FakeSimulator:
    """Succeeds at the step that the fixture's table says, by init state."""

    lengths: dict[int, int] = {}  # noqa: RUF012 (set by the fixture)
    started: list[int] = []  # noqa: RUF012

    def reset(self, scene):
        self.scene, self.count = scene, 0
        self.started.append(scene.init_state_id)

    def settle(self, steps):
        assert steps == 10

    def step(self, action):
        self.count += 1
        return self.count >= self.lengths.get(self.scene.init_state_id, 10**6)


@pytest.fixture
def simulated(monkeypatch):
    FakeSimulator.lengths, FakeSimulator.started = {}, []

    def built(self):
        self._simulator = self._simulator or FakeSimulator()
        return self._simulator

    blank = {"pixels": {"image": np.zeros((128, 128, 3), np.uint8), "image2": np.zeros((128, 128, 3), np.uint8)}}
    monkeypatch.setattr(LiberoProGymEnv, "_built", built)
    monkeypatch.setattr(LiberoProGymEnv, "_observe", lambda self: {**blank, "agent_pos": np.zeros(8, np.float32)})
    return FakeSimulator


def play(vector, seeds: list[int]) -> list[tuple[int, bool]]:
    """One batch as lerobot-eval runs it: until every episode ended; (steps, success) of each."""
    from lerobot.envs.utils import NEW_ROLLOUT_OPTION

    vector.reset(seed=seeds, options={NEW_ROLLOUT_OPTION: True})
    ends: dict[int, tuple[int, bool]] = {}
    for step in range(1, vector.call("_max_episode_steps")[0] + 1):
        *_, terminated, truncated, info = vector.step(np.zeros((vector.num_envs, 7), np.float32))
        for index in np.flatnonzero(terminated | truncated):
            ends.setdefault(int(index), (step, bool(info["is_success"][index])))
        if len(ends) == vector.num_envs:
            break
    return [ends[index] for index in range(vector.num_envs)]


def test_start_states_follow_the_episode_number_however_episodes_end(simulated):
    simulated.lengths = {0: 2, 2: 3, 5: 1}  # others run into the horizon
    config = LiberoProEnv(task_ids=[4], episode_length=6)
    vector = config.create_envs(n_envs=2)["libero_object_swap"][4]
    ends = [play(vector, [1000 + 2 * batch, 1001 + 2 * batch]) for batch in range(3)]
    assert simulated.started == [0, 1, 2, 3, 4, 5]  # none is used up by an automatic reset
    assert ends == [[(2, True), (6, False)], [(3, True), (6, False)], [(6, False), (1, True)]]


def test_start_states_can_be_chosen_and_wrap_around(simulated):
    (vector,) = (
        LiberoProEnv(task_ids=[0], init_state_ids=[7, 3], episode_length=1)
        .create_envs(1)["libero_object_swap"]
        .values()
    )
    for batch in range(3):
        play(vector, [batch])
    assert simulated.started == [7, 3, 7]
    single = LiberoProGymEnv("libero_object_swap", 0, init_state_ids=(7, 3))
    _, info = single.reset(seed=5, options={"init_state_id": 40})
    assert info["init_state_id"] == 40
    assert info["scene"] == scene_for("libero_object_swap", 0, init_state_id=40, seed=5).hash
    assert single.reset(seed=5)[1]["init_state_id"] == 7


def test_a_timeout_is_a_truncation_and_success_on_the_last_step_is_not(simulated):
    simulated.lengths = {1: 3}
    single = LiberoProGymEnv("libero_object_swap", 0, episode_length=3)
    for expected in ((0.0, False, True, False), (1.0, True, False, True)):
        single.reset(seed=0)
        outcomes = [single.step(np.zeros(7)) for _ in range(3)]
        assert [(o[2], o[3]) for o in outcomes[:2]] == [(False, False)] * 2
        _, reward, terminated, truncated, info = outcomes[2]
        assert (reward, terminated, truncated, info["is_success"]) == expected
    with pytest.raises(RecordError, match="shape"):
        single.step(np.zeros((1, 7)))


def test_nothing_is_compiled_before_a_reset(monkeypatch):
    monkeypatch.setattr(LiberoProGymEnv, "_built", lambda self: pytest.fail("built too early"))
    envs = LiberoProEnv(task="libero_spatial_swap,libero_10_lan").create_envs(n_envs=1)
    assert {suite: list(group) for suite, group in envs.items()} == {
        "libero_spatial_swap": list(range(10)),
        "libero_10_lan": list(range(10)),
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_tiny_act(tmp_path_factory.mktemp("checkpoint"))


def stock_episode(config, suite: str, task_id: int, policy) -> dict[str, np.ndarray]:
    """The first episode of `lerobot-eval`'s own loop, one action a call, in an environment of LeRobot's making.

    actions (T, 7); states (T, 8) and images (T, 3, H, W) as the policy was given them.
    """
    import torch
    from lerobot.envs import make_env_pre_post_processors
    from lerobot.scripts.lerobot_eval import rollout as stock_rollout

    vector = config.create_envs(1)[suite][task_id]
    before_policy, after_policy = make_env_pre_post_processors(config, policy.policy.config)
    seen = []

    def remembered(observation: dict) -> dict:
        seen.append(before_policy(observation))
        return seen[-1]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        episode = stock_rollout(
            vector, policy.policy, remembered, after_policy, policy._pre, policy._post, seeds=[1000]
        )
    finally:
        torch.set_num_threads(threads)
        vector.close()
    return {
        "actions": np.clip(episode["action"][0].numpy(), -1, 1),
        "states": np.concatenate([observation["observation.state"].numpy() for observation in seen]),
        "images": np.concatenate([observation["observation.images.image"].numpy() for observation in seen]),
    }


@pytest.mark.render
@pytest.mark.parametrize("environment", ["libero_pro", "libero"])
def test_stock_rollout_and_ours_are_the_same_episode(checkpoint: Path, environment: str, monkeypatch):
    """An ACT policy by both routes: lerobot-eval's loop in this environment or in LeRobot's own, one action a call and
    an image a step, against whole chunks with lazy rendering. States and actions agree to the last."""
    from lerobot.envs.configs import LiberoEnv as StockConfig

    from libero_pro.policy_runner import LeRobotChunkPolicy
    from libero_pro.render import Frame, Renderer
    from libero_pro.rollout import run
    from libero_pro.simulator import Simulator

    policy = LeRobotChunkPolicy.from_pretrained(checkpoint)
    assert (policy.cameras, policy.n_action_steps, policy.image_size) == (("agentview", "wrist"), 5, 128)
    if environment == "libero_pro":
        suite, config = "libero_object_swap", LiberoProEnv(task_ids=[2], episode_length=7)
    else:
        import lerobot.envs.libero

        suite = "libero_object"
        size = {"observation_height": 128, "observation_width": 128}
        config = StockConfig(task=suite, task_ids=[2], episode_length=7, **size)
        states = np.array(get_task(suite, 2).init_states())  # LeRobot's loader expects them in a torch file
        monkeypatch.setattr(lerobot.envs.libero, "get_task_init_states", lambda *task, **options: states)
    scene = scene_for(suite, 2, init_state_id=0, seed=1000, prompt_source="bddl" if "swap" in suite else "filename")
    (ours,) = run(policy, [scene], workers=0, horizon=7)
    stock = stock_episode(config, suite, 2, policy)
    with Renderer(Simulator(get_task(suite, 2)).model, ("agentview",)) as renderer:
        drawn = [renderer.render(Frame.of(ours, step))["agentview"] for step in (0, 3)]
    np.testing.assert_array_equal(stock["images"][[0, 3]], np.stack(drawn).transpose(0, 3, 1, 2) / np.float32(255))
    if environment == "libero_pro":
        np.testing.assert_array_equal(stock["states"], ours.proprio[:-1])
        np.testing.assert_array_equal(stock["actions"], ours.actions)
    else:  # torch's float32 arc cosine, which LeRobot takes of the hand's quaternion, rounds otherwise than numpy's
        np.testing.assert_allclose(stock["states"], ours.proprio[:-1], rtol=0, atol=1e-5)
        np.testing.assert_allclose(stock["actions"][:5], ours.actions[:5], rtol=0, atol=1e-5)  # the first chunk
        np.testing.assert_allclose(stock["actions"], ours.actions, rtol=0, atol=1e-3)
    assert np.ptp(ours.actions, axis=0).max() > 0.01  # the policy reacts to what it sees


@pytest.mark.render
def test_worker_processes_give_the_episodes_of_one_process():
    """LeRobot's lazy vector of two processes against the one that steps both here: the same images, states, ends."""
    from lerobot.envs.utils import NEW_ROLLOUT_OPTION

    config = LiberoProEnv(task_ids=[1], episode_length=3, camera_name="agentview", observation_height=32,
                          observation_width=32)  # fmt: skip
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (3, 2, 7)).astype(np.float32)
    seen = []
    for use_async_envs in (False, True):
        vector = config.create_envs(2, use_async_envs=use_async_envs)["libero_object_swap"][1]
        try:
            observation, info = vector.reset(seed=[1000, 1001], options={NEW_ROLLOUT_OPTION: True})
            steps = [(observation, info["init_state_id"], None, None)]
            for action in actions:
                observation, _, terminated, truncated, info = vector.step(action)
                steps.append((observation, info["init_state_id"], terminated, truncated))
            assert [str(text) for text in vector.call("task_description")] == [
                get_task("libero_object_swap", 1).prompt()
            ] * 2
        finally:
            vector.close()
        seen.append(steps)
    for (here, start, *ends), (there, other, *other_ends) in zip(*seen, strict=True):
        np.testing.assert_array_equal(here["pixels"]["image"], there["pixels"]["image"])
        np.testing.assert_array_equal(here["agent_pos"], there["agent_pos"])
        assert list(start) == list(other) == [0, 1]
        assert [list(end) for end in ends if end is not None] == [list(end) for end in other_ends if end is not None]
    assert list(seen[1][-1][3]) == [True, True]  # truncated at the horizon


@pytest.mark.e2e
@pytest.mark.render
def test_lerobot_eval_needs_no_plugin_flags(checkpoint: Path, tmp_path: Path):
    command = [
        str(Path(sys.executable).with_name("lerobot-eval")),
        f"--policy.path={checkpoint}",
        "--policy.device=cpu",
        "--env.type=libero_pro",
        "--env.task=libero_object",
        "--env.perturbations=[swap]",
        "--env.task_ids=[0]",
        "--env.episode_length=4",
        "--env.render_profile=fast",
        "--eval.n_episodes=2",
        "--eval.batch_size=1",
        f"--output_dir={tmp_path / 'eval'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    info = json.loads((tmp_path / "eval" / "eval_info.json").read_text())
    assert list(info["per_group"]) == ["libero_object_swap"]
    assert info["overall"]["n_episodes"] == 2
    videos = info["per_group"]["libero_object_swap"]["video_paths"]
    assert len(videos) == 2
    for video in videos:
        with av.open(video) as container:
            assert container.streams.video[0].average_rate == 20  # real speed


def test_frame_rate_is_the_control_rate():
    assert LiberoProGymEnv.metadata["render_fps"] == env_module.FPS == LiberoProEnv().fps == 20
