"""`lerobot-coda push` by the real client over HTTP, against a Hub on this machine that fails as the real one does."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_double import Blob, Fault, HubDouble, Repo, killed_at
from hubs import served
from huggingface_hub import constants
from tinyrun import RUN, bytes_checkpoint, write_run

from lerobot_coda.hub import Target, prepare, push, push_so_far
from lerobot_coda.hub.errors import HubError
from lerobot_coda.hub.portable import checkpoint_files

REPO = "ada/milk"
TARGET = Target(repo=REPO)
SOME = TARGET.model_copy(update={"what": ("datasets", "checkpoints")})
DATA = TARGET.model_copy(update={"what": ("datasets",)})
DATASETS, MODELS = ("dataset", REPO), ("model", REPO)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubDouble]:
    with served(monkeypatch, tmp_path) as double:
        yield double


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A run that has only its base policy."""
    return write_run(tmp_path / "short", rounds=0)


def pushed(run: Path, target: Target = TARGET) -> list[str]:
    return [done.outcome for done in push(run, target, wait=lambda seconds: None)]


def test_each_state_is_a_tagged_revision_and_a_second_push_changes_nothing(hub: HubDouble, run: Path) -> None:
    assert pushed(run) == ["pushed"] * 6
    made = hub.contents()
    assert list(made) == [f"datasets/{REPO}", f"datasets/{REPO}-memory", f"models/{REPO}", f"spaces/{REPO}-report"]
    assert all(repo["private"] for repo in made.values())
    assert list(made[f"datasets/{REPO}"]["tags"]) == ["base", "round-001", "v3.0"]
    assert len(made[f"datasets/{REPO}"]["commits"]) == 1 + 2  # the Hub's own, and one a revision
    assert list(made[f"models/{REPO}"]["tags"]) == ["base", "round-001"]
    assert hub.repos[DATASETS].tags["v3.0"] == hub.repos[DATASETS].tags["round-001"]

    uploads = dict(hub.uploads)
    assert pushed(run) == ["there"] * 6
    assert hub.contents() == made and hub.uploads == uploads and set(uploads.values()) == {1}


def test_what_is_in_a_revision(hub: HubDouble, run: Path) -> None:
    pushed(run)
    tree = hub.repos[DATASETS].at("round-001").tree  # type: ignore[union-attr]
    assert "images/scratch.png" not in tree and tree["data/chunk-000/file-000.parquet"].data == b"rows1"
    assert json.loads(tree["coda.json"].data)["tag"] == "round-001" and "programs/aa.json" in tree
    card = tree["README.md"].data.decode()
    for told in ("license: apache-2.0", "LeRobot", "| libero_object/2 | 2 |", "grasp-1", "denylist", "LIBERO"):
        assert told in card
    model = hub.repos[MODELS].at("round-001").tree  # type: ignore[union-attr]
    train = json.loads(model["train_config.json"].data)
    assert train["dataset"] == {"repo_id": REPO, "revision": "round-001", "root": None}
    assert not any(b"/here" in blob.data for blob in model.values())
    memory = hub.repos["dataset", f"{REPO}-memory"]
    assert "data/programs.parquet" in memory.commits[-1].tree and next(iter(memory.tags)).startswith("final-")
    assert "1/8 before, 5/8 after" in model["README.md"].data.decode()


def test_other_words_on_a_card_are_no_other_content(hub: HubDouble, run: Path) -> None:
    pushed(run, SOME)
    made = hub.contents()
    assert pushed(run, SOME.model_copy(update={"license": "mit"})) == ["there"] * 4
    assert hub.contents() == made


def test_a_run_that_goes_on_adds_its_next_round(hub: HubDouble, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=1)
    assert pushed(run, DATA) == ["pushed"]
    longer = write_run(tmp_path / "longer", rounds=2)
    assert pushed(longer, DATA) == ["there", "pushed"]
    assert [commit.title for commit in hub.repos[DATASETS].commits][1:] == [
        "tiny, base: 2 episodes",
        "tiny, round-001: 2 episodes",
    ]


def test_killed_anywhere_and_repeated_it_is_one_complete_revision(hub: HubDouble, run: Path) -> None:
    """SIGKILL at random requests: before they are read, before or after they take effect."""
    with HubDouble() as other:  # what an uninterrupted push leaves
        _on(other, lambda: push(run, SOME))
        whole, requests = other.contents(), len(other.log)
    draw = random.Random(0)
    for number in draw.sample(range(1, requests - 2), 6):  # the first push asks a little more
        hub.repos.clear(), hub.objects.clear(), hub.uploads.clear()
        assert killed_at(hub, number, draw.choice(["arrived", "before", "after"]), lambda: push(run, SOME))
        pushed(run, SOME)
        assert hub.contents() == whole
        assert set(hub.uploads.values()) == {1}, "an object that had arrived was sent again"


def _on(hub: HubDouble, work) -> None:  # type: ignore[no-untyped-def]
    before = constants.ENDPOINT
    constants.ENDPOINT = hub.endpoint
    try:
        work()
    finally:
        constants.ENDPOINT = before


@pytest.mark.parametrize("pattern", ["whoami", "repos/create", "POST .*/commit/", "/tag/", "PUT ", "/tree/", "batch"])
@pytest.mark.parametrize("do", [503, "cut", "cut after"])
def test_what_passes_is_waited_for(hub: HubDouble, short: Path, pattern: str, do: int | str) -> None:
    hub.faults = [Fault(pattern, do, times=2, headers={"Retry-After": "0"} if do == 503 else {})]
    assert pushed(short, DATA) in (["pushed"], ["tagged"], ["there"])
    left = hub.contents()[f"datasets/{REPO}"]
    assert left["commits"] == ["initial commit", "tiny, base: 2 episodes"] and list(left["tags"]) == ["base", "v3.0"]


def test_a_rate_limit_is_waited_for_as_long_as_the_hub_asks(hub: HubDouble, run: Path) -> None:
    hub.faults = [Fault("POST .*/commit/", 429, headers={"Retry-After": "7"})]
    waits: list[float] = []
    push(run, TARGET, wait=waits.append)
    assert waits == [7.0]
    hub.repos.clear()
    hub.faults.append(Fault("POST .*/commit/", 429, times=99, headers={"Retry-After": "3600"}))
    with pytest.raises(HubError, match="pushing dataset ada/milk at base: the Hub limits how often it is asked"):
        push(run, TARGET, wait=waits.append)


def refused(run: Path, match: str, target: Target = TARGET) -> None:
    with pytest.raises(HubError, match=match) as caught:
        push(run, target, wait=lambda seconds: None)
    assert "\n" not in str(caught.value)


def test_it_is_said_before_anything_is_sent(
    hub: HubDouble, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused(run, "must be NAMESPACE/NAME", TARGET.model_copy(update={"repo": "milk"}))
    refused(run, "is no repository name", TARGET.model_copy(update={"repo": "ada/mi lk"}))
    refused(run, "'bob' is not one of your namespaces", TARGET.model_copy(update={"repo": "bob/milk"}))
    refused(run, "in 'audience' you may only read", TARGET.model_copy(update={"repo": "audience/milk"}))
    refused(tmp_path, "is not a run folder: run.json is missing")
    for token, match in (
        ("hf_reader", "may only read"),
        ("hf_fine", "has no 'repo.write'"),
        ("hf_x", "does not accept"),
    ):
        monkeypatch.setenv("HF_TOKEN", token)
        refused(run, match)
    monkeypatch.delenv("HF_TOKEN")
    refused(run, "there is no token")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(run, "HF_HUB_OFFLINE is set")
    assert not hub.repos and not hub.objects


def test_a_run_goes_on_when_the_hub_does_not(hub: HubDouble, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    push_so_far(run, TARGET, say=said.append)
    assert len(said) == 1 and said[0].startswith("not pushed: the token may only read") and not hub.repos
    monkeypatch.setenv("HF_TOKEN", "hf_ada")
    push_so_far(run, TARGET, say=said.append)
    assert len(said) == 1 + 6 and "model ada/milk at round-001 pushed" in said[4]


def test_a_hub_that_is_not_there(hub: HubDouble, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refused(run, "asking http://127.0.0.1:9 who you are: the connection failed")


def test_a_repository_with_other_content_is_left_alone(hub: HubDouble, run: Path, tmp_path: Path) -> None:
    theirs = hub.repos[DATASETS] = Repo("dataset", REPO, private=True)
    theirs.add("mine", {"README.md": Blob(b"x", lfs=False)})
    prepare(TARGET, RUN["name"], RUN["recipe_hash"])  # a card alone is no content
    theirs.add("mine", {"data.csv": Blob(b"1", lfs=False)})
    refused(run, r"dataset ada/milk holds other content \(data.csv, no coda.json\); choose another --repo")

    theirs = hub.repos["space", f"{REPO}-report"] = Repo("space", f"{REPO}-report", private=True)
    for text in (b"Welcome", b"mine"):
        theirs.add("page", {"index.html": Blob(text, lfs=False)})
    del hub.repos[DATASETS]
    refused(run, r"space ada/milk-report holds other content \(a page of its own")

    hub.repos.clear()
    pushed(run)
    other = write_run(tmp_path / "other")
    (other / "run.json").write_text(json.dumps({**RUN, "recipe_hash": "feed"}))
    refused(other, r"holds another run \('tiny', 0123456789abcdef\), not 'tiny', feed")
    (run / "base" / "dataset" / "data" / "chunk-000" / "file-000.parquet").write_bytes(b"changed")
    refused(run, "dataset ada/milk at base holds other content .*a revision is never changed")


def test_a_public_repository_takes_no_private_run(hub: HubDouble, run: Path) -> None:
    public = TARGET.model_copy(update={"private": False})
    pushed(run, public)
    assert not hub.repos[MODELS].private
    refused(run, "dataset ada/milk is public: push with --public")


def test_a_full_hub_and_a_lost_race(hub: HubDouble, run: Path) -> None:
    hub.quota = 8
    refused(run, "the Hub has no room left there .*storage limit reached.*nothing local is lost")
    hub.quota = None
    hub.watch = lambda number, request, moment: (
        hub.repos[DATASETS].add("theirs", {}) if "/commit/" in request and moment == "before" else None
    )
    refused(run, "somebody else changed the repository meanwhile")


def test_adapters_name_a_base_that_others_can_load(tmp_path: Path) -> None:
    bytes_checkpoint(tmp_path / "c")
    (tmp_path / "c" / "adapter_config.json").write_text('{"base_model_name_or_path": "/here/base", "r": 4}')
    with pytest.raises(HubError, match=r"base model is the local folder '/here/base'.*--base OWNER/NAME"):
        checkpoint_files(tmp_path / "c", dataset="a/b", revision="base", base=None)
    files, base = checkpoint_files(tmp_path / "c", dataset="a/b", revision="base", base="lerobot/smolvla_base")
    with pytest.raises(HubError, match="base model is the local folder"):  # known before the first hour of training
        prepare(TARGET, "tiny", "0", trains=[{"peft": {"r": 4}, "policy": {"backbone_path": str(tmp_path)}}])
    assert base == "lerobot/smolvla_base"
    assert json.loads(files["adapter_config.json"]) == {"base_model_name_or_path": base, "r": 4}  # type: ignore[arg-type]
