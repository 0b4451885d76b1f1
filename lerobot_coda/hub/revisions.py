"""A revision: one state of a repository, complete or not there at all.

The files of a revision are one commit, and its tag is set last: what carries the tag is complete. Content decides
what is sent, so that a push which was cut off anywhere is finished by repeating it, and one that was finished changes
nothing.
"""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.hf_api import RepoFile

from lerobot_coda.hub.errors import HubError

Kind = Literal["model", "dataset", "space"]
KEPT = ".gitattributes"  # the Hub's own, in every repository
CARD = "README.md"
MARK = "coda.json"  # says which run a revision belongs to


@dataclass(frozen=True)
class Revision:
    """`files` (path in the repository -> local file or bytes) as they shall be under `tag`; `title` of the commit.

    moving  tags that follow the newest revision, such as LeRobot's own "v3.0"
    """

    kind: Kind
    repo: str
    tag: str
    title: str
    files: Mapping[str, Path | bytes]
    moving: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(f) if isinstance(f, bytes) else f.stat().st_size for f in self.files.values())

    @property
    def name(self) -> str:
        """Kind, repository and tag, for messages."""
        return f"{self.kind} {self.repo} at {self.tag}"


@dataclass(frozen=True)
class Published:
    """What became of a revision: `outcome` pushed (a commit was made), tagged (an earlier push made it) or there."""

    revision: Revision
    commit: str
    outcome: Literal["pushed", "tagged", "there"]


def publish(api: HfApi, revision: Revision) -> Published:
    """Brings a revision to an existing repository, or finds it there. May be repeated after any failure.

    HubError if its tag holds other content.
    """
    repo, kind = revision.repo, revision.kind
    tags = tags_of(api, kind, repo)
    if commit := tags.get(revision.tag):
        added, removed = difference(revision.files, tree_of(api, kind, repo, commit))
        if other := [path for path in (*added, *removed) if path != CARD]:  # a card of other words is as good
            raise HubError(
                f"{revision.name} holds other content ('{other[0]}' differs), and a revision is never changed: give "
                "another --repo"
            )
        return Published(revision, commit, "there")
    head = str(api.repo_info(repo, repo_type=kind, revision="main").sha)
    added, removed = difference(revision.files, tree_of(api, kind, repo, head))
    outcome: Literal["pushed", "tagged"] = "tagged"
    if added or removed:
        made = api.create_commit(
            repo,
            [
                *(CommitOperationAdd(path, _source(revision.files[path])) for path in added),
                *(CommitOperationDelete(path, is_folder=False) for path in removed),
            ],
            commit_message=revision.title,
            repo_type=kind,
            parent_commit=head,  # a push beside this one is refused, not mixed with it
        )
        head, outcome = made.oid, "pushed"
    api.create_tag(repo, tag=revision.tag, revision=head, repo_type=kind)
    return Published(revision, head, outcome)


def follow(api: HfApi, published: Published) -> None:
    """Moves the moving tags to a revision. May be repeated after any failure."""
    repo, kind = published.revision.repo, published.revision.kind
    tags = tags_of(api, kind, repo)
    for tag in published.revision.moving:
        if tags.get(tag) == published.commit:
            continue
        if tag in tags:
            api.delete_tag(repo, tag=tag, repo_type=kind)
        api.create_tag(repo, tag=tag, revision=published.commit, repo_type=kind)


def tags_of(api: HfApi, kind: Kind, repo: str) -> dict[str, str]:
    """Tag -> commit."""
    return {tag.name: tag.target_commit for tag in api.list_repo_refs(repo, repo_type=kind).tags}


def tree_of(api: HfApi, kind: Kind, repo: str, revision: str) -> dict[str, RepoFile]:
    """Path -> file at a revision."""
    listed = api.list_repo_tree(repo, recursive=True, revision=revision, repo_type=kind)
    return {entry.path: entry for entry in listed if isinstance(entry, RepoFile)}


def difference(files: Mapping[str, Path | bytes], remote: Mapping[str, RepoFile]) -> tuple[list[str], list[str]]:
    """Paths whose content has to be sent, and paths that have to go."""
    added = [path for path, file in files.items() if path not in remote or not _equal(file, remote[path])]
    return sorted(added), sorted(remote.keys() - files.keys() - {KEPT})


def mark_of(api: HfApi, kind: Kind, repo: str, revision: str) -> bytes | None:
    """The mark of the revision; None where there is none."""
    if MARK not in tree_of(api, kind, repo, revision):
        return None
    with tempfile.TemporaryDirectory() as folder:
        return Path(api.hf_hub_download(repo, MARK, repo_type=kind, revision=revision, local_dir=folder)).read_bytes()


def _equal(file: Path | bytes, remote: RepoFile) -> bool:
    size = len(file) if isinstance(file, bytes) else file.stat().st_size
    if size != remote.size:
        return False
    if remote.lfs is not None:
        return _digest(file, hashlib.sha256()) == remote.lfs.sha256
    return _digest(file, hashlib.sha1(b"blob %d\0" % size)) == remote.blob_id  # as git names it


def _digest(file: Path | bytes, digest: "hashlib._Hash") -> str:
    if isinstance(file, bytes):
        digest.update(file)
        return digest.hexdigest()
    with file.open("rb") as stream:
        while part := stream.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def _source(file: Path | bytes) -> str | bytes:
    return file if isinstance(file, bytes) else str(file)
