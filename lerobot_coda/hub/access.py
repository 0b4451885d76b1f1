"""What must hold before anything is pushed, so that it is said before hours of work and not after them."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import huggingface_hub
from huggingface_hub import HfApi, is_offline_mode
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from lerobot_coda.hub.errors import HubError, Wait, patiently
from lerobot_coda.hub.revisions import KEPT, MARK, Kind, mark_of, tree_of

_MAY_WRITE = ("admin", "write", "contributor")  # roles in an organization
# What the Hub itself, or a person in the browser, puts into a new repository.
_FRESH: dict[Kind, set[str]] = {kind: {KEPT, "README.md"} for kind in ("model", "dataset")}
_FRESH["space"] = {KEPT, "README.md", "index.html", "style.css"}


def connect(namespace: str, wait: Wait = time.sleep) -> HfApi:
    """A client whose token may write in the namespace, as far as the Hub tells; else HubError."""
    if is_offline_mode():
        raise HubError("nothing can be pushed while HF_HUB_OFFLINE is set: unset it")
    token = huggingface_hub.get_token()
    if not token:
        raise HubError("there is no token for the Hub: run `hf auth login`, or set HF_TOKEN to one that may write")
    api = HfApi(token=token)
    who = patiently(api.whoami, f"asking {api.endpoint} who you are", wait)
    orgs = {org["name"]: org.get("roleInOrg") for org in who.get("orgs", [])}
    if namespace != who["name"] and namespace not in orgs:
        yours = ", ".join([who["name"], *orgs])
        raise HubError(f"--repo: '{namespace}' is not one of your namespaces ({yours})")
    if namespace in orgs and orgs[namespace] not in (*_MAY_WRITE, None):
        raise HubError(f"--repo: in '{namespace}' you may only read; ask its admins for the role 'write'")
    access = who.get("auth", {}).get("accessToken", {})
    if access.get("role") == "read":
        raise HubError("the token may only read: make one of type 'write' at the Hub's settings and log in with it")
    if access.get("role") == "fineGrained" and not _granted(access.get("fineGrained") or {}, namespace):
        raise HubError(f"the fine-grained token has no 'repo.write' for '{namespace}': add it at the Hub's settings")
    return api


def check_name(repo: str) -> str:
    """The namespace of `NAMESPACE/NAME`; HubError if it is no such name."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise HubError(f"--repo '{repo}' is no repository name: {error}") from None
    if repo.count("/") != 1:
        raise HubError(f"--repo '{repo}' must be NAMESPACE/NAME, your user name or an organization first")
    return repo.split("/")[0]


def check_repo(
    api: HfApi, kind: Kind, repo: str, *, private: bool, run: Mapping[str, Any], wait: Wait = time.sleep
) -> bool:
    """Whether the repository exists; HubError if it holds something else than this run, or can't be written.

    run  what the marks of this run's revisions say: `name` and `recipe_hash`
    """
    try:
        info = patiently(lambda: _found(api, kind, repo), f"looking at {kind} {repo}", wait)
    except _Absent:
        return False
    if private and info.private is False:
        raise HubError(
            f"{kind} {repo} is public: push with --public, make it private at the Hub, or choose another --repo"
        )
    patiently(lambda: api.auth_check(repo, repo_type=kind, write=True), f"checking the rights on {kind} {repo}", wait)
    held = patiently(lambda: tree_of(api, kind, repo, "main"), f"listing {kind} {repo}", wait).keys() - _FRESH[kind]
    commits = patiently(lambda: api.list_repo_commits(repo, repo_type=kind), f"listing {kind} {repo}", wait)
    if not held and (kind != "space" or len(commits) == 1):
        return True
    mark = patiently(lambda: mark_of(api, kind, repo, "main"), f"reading {kind} {repo}", wait)
    if mark is None:
        found = sorted(held)[0] if held else "a page of its own"
        raise HubError(f"{kind} {repo} holds other content ({found}, no {MARK}); choose another --repo")
    if (theirs := _identity(mark)) != (run["name"], run["recipe_hash"]):
        raise HubError(
            f"{kind} {repo} holds another run ('{theirs[0]}', {theirs[1]}), not '{run['name']}', "
            f"{run['recipe_hash']}; choose another --repo"
        )
    return True


def create(api: HfApi, kind: Kind, repo: str, *, private: bool, wait: Wait = time.sleep) -> None:
    """Makes an empty repository where there is none: the one sure way to know that it may be made."""
    space = {"space_sdk": "static"} if kind == "space" else {}

    def make() -> None:
        api.create_repo(repo, repo_type=kind, private=private, exist_ok=True, **space)

    patiently(make, f"making {kind} {repo}", wait)


class _Absent(Exception):
    """There is no such repository, or none that this token may see."""


def _found(api: HfApi, kind: Kind, repo: str) -> Any:
    try:
        return api.repo_info(repo, repo_type=kind)
    except RepositoryNotFoundError:
        raise _Absent from None


def _granted(fine: Mapping[str, Any], namespace: str) -> bool:
    """Whether a fine-grained token says that it may write here; the Hub's word is final in any case."""
    scoped: Sequence[Mapping[str, Any]] | None = fine.get("scoped")
    if scoped is None:
        return True
    mine = [s for s in scoped if str((s.get("entity") or {}).get("name", "")).split("/")[0] == namespace]
    return any("repo.write" in (s.get("permissions") or []) for s in mine)


def _identity(mark: bytes) -> tuple[str, str]:
    try:
        read = json.loads(mark)
        return str(read["run"]), str(read["recipe_hash"])
    except (ValueError, KeyError, TypeError):
        return "unreadable", "?"
