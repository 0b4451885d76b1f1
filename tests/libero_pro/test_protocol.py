"""What makes two runs alike, and the sentence when they are not."""

from pathlib import Path

import pytest
from benchmark_parts import run_made_up

from libero_pro.protocol import COMPARED, Protocol, files_hash, require_alike
from libero_pro.record import RecordError
from libero_pro.suites import get_task, tasks


@pytest.fixture(scope="module")
def protocol(tmp_path_factory) -> Protocol:
    return run_made_up(tmp_path_factory.mktemp("run"), lambda scene: True, ["libero_goal_swap", "libero_10"]).protocol


def test_it_holds_what_was_run(protocol: Protocol):
    assert protocol.suites == {"libero_goal_swap": (0, 1), "libero_10": (0, 1)}
    assert protocol.horizons == {"libero_goal_swap": 300, "libero_10": 520}
    assert (protocol.starts, protocol.seed, protocol.episodes_per_task) == ((0, 1, 2, 3), 1000, 4)
    assert protocol.physics["mujoco"] == "3.3.7" and "lerobot" in protocol.software
    assert Protocol.parse(protocol.to_json()) == protocol


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("prompt_source", "filename", "prompt_source is 'bddl' in the first and 'filename' in the second"),
        ("n_action_steps", 1, "n_action_steps is 8 in the first and 1 in the second"),
        ("horizons", {"libero_goal_swap": 300, "libero_10": 505}, "horizons of libero_10 is 520 in the first and 505"),
        ("settle_steps", 15, "settle_steps is 10"),
        ("profile", "fast", "profile is 'faithful' in the first and 'fast'"),
        ("seed", 0, "seed is 1000 in the first and 0"),
        ("files", {"libero_goal_swap": "x", "libero_10": "y"}, "files of libero_10"),
        ("physics", {"mujoco": "3.17"}, "physics of mujoco is '3.3.7' in the first and '3.17'"),
    ],
)
def test_unlike_settings_are_named_and_can_be_allowed(protocol: Protocol, name: str, value, message: str):
    assert name in COMPARED
    other = protocol.model_copy(update={name: value})
    with pytest.raises(RecordError, match=f"not alike: {message}.*--allow {name}"):
        require_alike(protocol, other)
    require_alike(protocol, other, allowed=[name])


def test_what_is_the_policys_own_or_not_shared_may_differ(protocol: Protocol):
    other = protocol.model_copy(
        update={
            "actor": "policy:other",
            "cameras": ("agentview", "wrist"),
            "size": 256,
            "suites": {"libero_goal_swap": (3,)},
            "horizons": {"libero_goal_swap": 300},
            "files": {"libero_goal_swap": protocol.files["libero_goal_swap"]},
            "software": {},
        }
    )
    require_alike(protocol, other)
    with pytest.raises(RecordError, match="'colour' is not a setting that is compared; there are: prompt_source"):
        require_alike(protocol, other, allowed=["colour"])


def test_the_files_hash_follows_the_files(tmp_path: Path):
    from dataclasses import replace

    assert files_hash(tasks("libero_goal")) != files_hash(tasks("libero_goal_lan"))
    task = get_task("libero_goal", 0)
    changed = tmp_path / task.bddl_path.name
    changed.write_text(task.bddl_path.read_text() + ";")
    assert files_hash([replace(task, bddl_path=changed)]) != files_hash([task])
