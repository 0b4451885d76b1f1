"""`--env.type=libero_pro`: LIBERO-Pro for the stock `lerobot-eval` and `lerobot-train`.

Unlike LeRobot's own LIBERO environment, the instruction comes from the perturbed task's BDDL file, the horizon from the
base suite, start states follow the episode number alone, a timeout is a truncation, 20 frames a second.
Observations have the same keys, orientation and 8 numbers of state, so policies and datasets fit both.

Imported by every `lerobot-*` command: simulator and renderer are imported and built at the first reset only.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.envs.utils import _LazyAsyncVectorEnv, freeze_after_episode_end

from libero_pro.record import RecordError
from libero_pro.render import Profile
from libero_pro.rollout import SETTLE_STEPS
from libero_pro.scene import PromptSource
from libero_pro.suites import among, get_task, runnable_tasks, scene_for, select_suites

IMAGE_NAMES = {"agentview": "image", "wrist": "image2"}  # LeRobot's names of LIBERO's cameras
FPS = 20


class LiberoProGymEnv(gym.Env):
    """One task. Episode k of sub-environment i of n starts from `init_state_ids[(k * n + i) % len]`.

    The released start state, the prompt and the reset's seed form a `SceneSpec`, so an evaluation here and one by
    `libero_pro.rollout` with the same ids and seeds run the same scenes.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 (gymnasium's own form)

    def __init__(
        self,
        suite: str,
        task_id: int,
        *,
        index: int = 0,
        n_envs: int = 1,
        cameras: tuple[str, ...] = ("agentview", "wrist"),
        size: int = 128,
        profile: Profile = "faithful",
        prompt_source: PromptSource = "bddl",
        init_state_ids: tuple[int, ...] | None = None,
        episode_length: int | None = None,
    ):
        released = get_task(suite, task_id)
        self.suite, self.task_id = suite, task_id
        self.task = released.name
        self.task_description = released.prompt(prompt_source)
        self._prompt_source = prompt_source
        self._max_episode_steps = episode_length or released.horizon
        self._cameras, self._size, self._profile = tuple(cameras), size, profile
        self._init_state_ids = init_state_ids
        self._next_episode, self._stride = index, n_envs
        self._simulator: Any = None
        self._renderer: Any = None
        self._images: dict[str, np.ndarray] = {}
        self._step = 0
        self.render_mode = "rgb_array"
        image = gym.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.observation_space = gym.spaces.Dict(
            {
                "pixels": gym.spaces.Dict({IMAGE_NAMES[camera]: image for camera in self._cameras}),
                "agent_pos": gym.spaces.Box(-np.inf, np.inf, (8,), np.float32),
            }
        )
        self.action_space = gym.spaces.Box(-1.0, 1.0, (7,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Starts the next episode; `options["init_state_id"]` picks a start by hand without advancing the count."""
        super().reset(seed=seed)
        chosen = (options or {}).get("init_state_id")
        if chosen is None:
            ids = self._init_state_ids or tuple(range(len(get_task(self.suite, self.task_id).init_states())))
            chosen = ids[self._next_episode % len(ids)]
            self._next_episode += self._stride
        self.scene = scene_for(
            self.suite,
            self.task_id,
            init_state_id=int(chosen),
            seed=0 if seed is None else int(seed),
            prompt_source=self._prompt_source,
        )
        simulator = self._built()
        simulator.reset(self.scene)
        simulator.settle(SETTLE_STEPS)
        self._step = 0
        return self._observe(), self._info(success=False)

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """One control step at 20 Hz. `truncated` at the horizon unless the goal holds then."""
        action = np.asarray(action, np.float64)
        if action.shape != (7,):
            raise RecordError(f"action must have shape (7,), not {action.shape}")
        success = bool(self._built().step(action))
        self._step += 1
        truncated = not success and self._step >= self._max_episode_steps
        return self._observe(), float(success), success, truncated, self._info(success)

    def render(self) -> np.ndarray:
        """The latest image of the first camera (H, W, 3) uint8."""
        return self._images[self._cameras[0]]

    def close(self) -> None:
        """Releases simulator and renderer (about 2 GB); a later reset builds them again."""
        if self._renderer is not None:
            self._renderer.close()
        self._simulator = self._renderer = None

    def _built(self) -> Any:
        if self._simulator is None:
            from libero_pro.render import Renderer
            from libero_pro.simulator import Simulator

            self._simulator = Simulator(get_task(self.suite, self.task_id))
            self._renderer = Renderer(
                self._simulator.model, cameras=self._cameras, size=self._size, profile=self._profile
            )
        return self._simulator

    def _observe(self) -> dict:
        self._images = self._renderer.render(self._simulator.frame())
        pixels = {IMAGE_NAMES[camera]: self._images[camera] for camera in self._cameras}
        return {"pixels": pixels, "agent_pos": self._simulator.proprio()}

    def _info(self, success: bool) -> dict:
        return {"is_success": success, "init_state_id": self.scene.init_state_id, "scene": self.scene.hash}


def _one_choice(config: type) -> type:
    """Registers the environment once: a LeRobot that ships its own `libero_pro` keeps it, and import must not fail."""
    if "libero_pro" in EnvConfig.get_known_choices():
        return config
    return EnvConfig.register_subclass("libero_pro")(config)


@_one_choice
@dataclass
class LiberoProEnv(EnvConfig):
    """Which tasks, seen how.

    task            suites, comma-separated: `libero_object_swap,libero_goal`; also `base`, `pro`, `all`, `grid`
    perturbations   axes of `task`'s base suites instead of the base suites themselves: `[swap,lan]`
    task_ids        of each suite; None: all that have released start states
    prompt_source   `bddl` (what the perturbed task file says) or `filename` (the base task's, on every axis)
    init_state_ids  released start states, in the order episodes use them; None: 0, 1, 2, ...
    episode_length  control steps before truncation; None: 280, 280, 300 or 520 by base suite
    camera_name     `agentview,wrist`, or one of them for a policy that looks at one
    render_profile  `faithful` (robosuite's pixels) or `fast` (meshes simplified to 0.2 mm)
    """

    task: str = "libero_object_swap"
    fps: int = FPS
    perturbations: list[str] | None = None
    task_ids: list[int] | None = None
    prompt_source: str = "bddl"
    init_state_ids: list[int] | None = None
    episode_length: int | None = None
    camera_name: str = "agentview,wrist"
    observation_height: int = 128
    observation_width: int = 128
    render_profile: Profile = "faithful"
    features: dict[str, PolicyFeature] = field(default_factory=dict)
    features_map: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Checked in `create_envs`: the command-line parser would bury a message raised here under its own.
        size = (self.observation_height, self.observation_width, 3)
        images = [IMAGE_NAMES[name] for name in _names(self.camera_name) if name in IMAGE_NAMES]
        self.features = {
            "action": PolicyFeature(FeatureType.ACTION, (7,)),
            "agent_pos": PolicyFeature(FeatureType.STATE, (8,)),
            **{f"pixels/{image}": PolicyFeature(FeatureType.VISUAL, size) for image in images},
        }
        self.features_map = {
            "action": "action",
            "agent_pos": "observation.state",
            **{f"pixels/{image}": f"observation.images.{image}" for image in images},
        }

    def check(self) -> None:
        """RecordError names the first setting that cannot be used and what can."""
        if self.max_parallel_tasks > 1:
            raise RecordError(
                f"env.max_parallel_tasks is {self.max_parallel_tasks}, but LeRobot's parallel tasks share one policy "
                "and its action queue, which silently scores near 0 %; leave it at 1 and raise eval.batch_size"
            )
        if self.fps != FPS:
            raise RecordError(f"env.fps is {self.fps}, but LIBERO-Pro is controlled at {FPS} Hz; leave it at {FPS}")
        if self.observation_height != self.observation_width or self.observation_height < 16:
            raise RecordError("env.observation_height and env.observation_width must be equal and at least 16")
        if self.episode_length is not None and self.episode_length < 1:
            raise RecordError(f"env.episode_length must be at least 1 control step, not {self.episode_length}")
        among("env.prompt_source", self.prompt_source, ["bddl", "filename"])
        among("env.render_profile", self.render_profile, ["faithful", "fast"])
        self.cameras()
        for suite in self.suites():
            for task_id in self.task_ids if self.task_ids is not None else runnable_tasks(suite):
                for start in self.init_state_ids or (0,):
                    scene_for(suite, task_id, init_state_id=start)

    def suites(self) -> list[str]:
        """The evaluated suites in order; RecordError if one is unknown or perturbed twice."""
        return select_suites(_names(self.task), self.perturbations, what=("env.task", "env.perturbations"))

    def cameras(self) -> tuple[str, ...]:
        """Camera names; RecordError if one is unknown."""
        names = _names(self.camera_name)
        for name in names or [""]:
            among("env.camera_name", name, list(IMAGE_NAMES))
        return tuple(names)

    @property
    def gym_kwargs(self) -> dict:
        """Keyword arguments shared by all sub-environments."""
        return {
            "cameras": self.cameras(),
            "size": self.observation_height,
            "profile": self.render_profile,
            "prompt_source": self.prompt_source,
            "init_state_ids": None if self.init_state_ids is None else tuple(self.init_state_ids),
            "episode_length": self.episode_length,
        }

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, Any]]:
        """{suite: {task id: vector environment}}; nothing is compiled before a task's first reset. See `check`."""
        self.check()
        return {
            suite: {
                task_id: self._vector(suite, task_id, n_envs, use_async_envs)
                for task_id in (self.task_ids if self.task_ids is not None else runnable_tasks(suite))
            }
            for suite in self.suites()
        }

    def _vector(self, suite: str, task_id: int, n_envs: int, use_async_envs: bool) -> Any:
        makers = [
            partial(LiberoProGymEnv, suite, task_id, index=index, n_envs=n_envs, **self.gym_kwargs)
            for index in range(n_envs)
        ]
        if use_async_envs and n_envs > 1:
            probe = makers[0]()
            return _LazyAsyncVectorEnv(makers, probe.observation_space, probe.action_space, probe.metadata)
        # Frozen after its end: otherwise the vector environment resets a finished episode and uses up a start state.
        return SyncVectorEnv(
            [freeze_after_episode_end(make) for make in makers], autoreset_mode=AutoresetMode.NEXT_STEP
        )


def _names(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [name.strip() for name in text.split(",") if name.strip()]
