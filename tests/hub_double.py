"""A Hub on this machine, over real HTTP: what `huggingface_hub` asks of repositories, commits, LFS and revisions.

Behaves as the Hub does where the client can tell: private repositories are "not found" to strangers, a commit names its
parent or is refused, LFS objects are stored once by content and handed out through a redirect, tags exist once. It can
be told to fail: any request may be answered with a status, cut off before or after it took effect, or end a client.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LFS_ENDINGS = (".parquet", ".mp4", ".safetensors", ".png", ".bin")
LFS_BYTES = 10 * 2**20  # larger files are LFS whatever they are called
ATTRIBUTES = b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"


@dataclass(frozen=True)
class User:
    """Whom a token stands for: own namespace and organizations; `role` of the token: write, read or fineGrained."""

    name: str
    orgs: dict[str, str] = field(default_factory=dict)  # organization -> role in it
    role: str = "write"
    scoped: tuple[str, ...] = ()  # namespaces in which a fine-grained token may write


@dataclass(frozen=True)
class Blob:
    """A file of a commit; `lfs` says whether its content is an LFS object or stands in git."""

    data: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()

    @property
    def oid(self) -> str:
        """Git's own hash of the file, or of the pointer that stands for it."""
        data = self.pointer if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class Commit:
    sha: str
    title: str
    tree: dict[str, Blob]


@dataclass
class Repo:
    kind: str
    name: str
    private: bool
    commits: list[Commit] = field(default_factory=list)  # of main, oldest first
    tags: dict[str, str] = field(default_factory=dict)

    def add(self, title: str, tree: dict[str, Blob]) -> Commit:
        names = "".join(f"{path} {blob.oid}\n" for path, blob in sorted(tree.items()))
        parent = self.commits[-1].sha if self.commits else ""
        made = Commit(hashlib.sha1(f"{parent}{title}{names}".encode()).hexdigest(), title, tree)
        self.commits.append(made)
        return made

    def at(self, revision: str) -> Commit | None:
        sha = self.commits[-1].sha if revision == "main" else self.tags.get(revision, revision)
        return next((commit for commit in self.commits if commit.sha == sha), None)


@dataclass(frozen=True)
class Fault:
    """Answers requests "METHOD /path" that match `pattern`, the first `times` of them, with a status or not at all.

    do  an HTTP status, or "cut" the connection before the request takes effect, or "cut after" it did
    """

    pattern: str
    do: int | str
    times: int = 1
    message: str = "made to fail"
    headers: dict[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An HTTP answer other than 2xx."""

    def __init__(self, status: int, message: str, code: str | None = None, **body: str):
        super().__init__(message)
        self.status, self.code, self.body = status, code, {"error": message, **body}


class HubDouble:
    """`with HubDouble() as hub`: serves at `hub.endpoint` until the block ends.

    users      token -> User;  `repos` ("dataset", "ada/milk") -> Repo
    uploads    how often each LFS object was stored whole
    log        every request as "METHOD /path", in the order of arrival
    watch      called with the number of each request, the request, and "arrived" (its body not read yet), "before" it
               takes effect or "after", before it is answered; a ConnectionError from it drops the request
    quota      bytes of LFS objects that fit, None: no end
    """

    def __init__(self) -> None:
        self.users = {
            "hf_ada": User("ada", {"lab": "write", "audience": "read"}),
            "hf_reader": User("ada", role="read"),
            "hf_fine": User("ada", role="fineGrained", scoped=("elsewhere",)),
            "hf_bob": User("bob"),
        }
        self.repos: dict[tuple[str, str], Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.uploads: Counter[str] = Counter()
        self.log: list[str] = []
        self.faults: list[Fault] = []
        self.watch: Callable[[int, str, str], None] = lambda number, request, moment: None
        self.quota: int | None = None
        self._struck: Counter[int] = Counter()
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubDouble":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def contents(self) -> dict[str, Any]:
        """Everything there is, to be compared: per repository its commits and, per tag, the files and their hashes."""
        return {
            f"{kind}s/{name}": {
                "private": repo.private,
                "commits": [commit.title for commit in repo.commits],
                "tags": {
                    tag: {path: blob.oid for path, blob in commit.tree.items()}
                    for tag, sha in sorted(repo.tags.items())
                    if (commit := repo.at(sha)) is not None
                },
            }
            for (kind, name), repo in sorted(self.repos.items())
        }

    def fault(self, request: str) -> Fault | None:
        with self._lock:
            for number, fault in enumerate(self.faults):
                if re.search(fault.pattern, request) and self._struck[number] < fault.times:
                    self._struck[number] += 1
                    return fault
        return None

    def arrived(self, request: str) -> int:
        with self._lock:
            self.log.append(request)
            return len(self.log)

    # --- what the Hub does ----------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: dict[str, list[str]], user: User | None, body: bytes) -> Any:
        """JSON of a 2xx answer, or raises Refused."""
        for verb, pattern, name in ROUTES:
            if verb == method and (found := re.fullmatch(pattern, path)):
                given = {key: unquote(value) for key, value in found.groupdict().items() if value is not None}
                with self._lock:
                    return getattr(self, f"_{name}")(user, body, query, **given)
        raise Refused(404, f"the double does not know {method} {path}")

    def _whoami(self, user: User | None, body: bytes, query: dict) -> Any:
        if user is None:
            raise Refused(401, "Invalid credentials in Authorization header")
        token: dict[str, Any] = {"displayName": "test", "role": user.role}
        if user.role == "fineGrained":
            scoped = [{"entity": {"type": "user", "name": n}, "permissions": ["repo.write"]} for n in user.scoped]
            token["fineGrained"] = {"global": [], "scoped": scoped}
        orgs = [{"type": "org", "name": org, "roleInOrg": role} for org, role in user.orgs.items()]
        return {"type": "user", "name": user.name, "orgs": orgs, "auth": {"type": "access_token", "accessToken": token}}

    def _create(self, user: User | None, body: bytes, query: dict) -> Any:
        asked = json.loads(body)
        namespace = asked.get("organization") or (user.name if user else "")
        kind, name = asked.get("type", "model"), f"{namespace}/{asked['name']}"
        if not self._writes(user, namespace):
            raise Refused(403, f'You don\'t have the rights to create a {kind} under the namespace "{namespace}"')
        url = f"{self.endpoint}/{'' if kind == 'model' else kind + 's/'}{name}"
        if (kind, name) in self.repos:
            raise Refused(409, "You already created this repo", url=url)
        made = self.repos[kind, name] = Repo(kind, name, private=asked.get("visibility") == "private")
        new = {".gitattributes": ATTRIBUTES}
        if kind == "space":
            new |= {"README.md": b"---\nsdk: static\n---\n", "index.html": b"Welcome", "style.css": b"body {}"}
        made.add("initial commit", {path: Blob(data, lfs=False) for path, data in new.items()})
        return {"url": url, "name": name, "id": name}

    def _validate(self, user: User | None, body: bytes, query: dict) -> Any:
        import yaml

        text = json.loads(body)["content"]
        head = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
        if head is None or not isinstance(yaml.safe_load(head.group(1)), dict):
            raise Refused(400, "Invalid metadata in README.md")
        return {"errors": [], "warnings": []}

    def _info(self, user: User | None, body: bytes, query: dict, kind: str, repo: str, revision: str = "main") -> Any:
        found = self._found(user, kind, repo)
        commit = self._commit_of(found, revision)
        siblings = [{"rfilename": path} for path in commit.tree]
        return {"_id": "0", "id": repo, "modelId": repo, "sha": commit.sha, "private": found.private, "tags": [],
                "downloads": 0, "likes": 0, "siblings": siblings}  # fmt: skip

    def _auth(self, user: User | None, body: bytes, query: dict, kind: str, repo: str, write: str = "") -> Any:
        self._found(user, kind, repo)
        if write and not self._writes(user, repo.split("/")[0]):
            raise Refused(403, "You have read access but not the required permissions for this operation")
        return {}

    def _refs(self, user: User | None, body: bytes, query: dict, kind: str, repo: str) -> Any:
        found = self._found(user, kind, repo)
        main = {"name": "main", "ref": "refs/heads/main", "targetCommit": found.commits[-1].sha}
        tags = [{"name": t, "ref": f"refs/tags/{t}", "targetCommit": sha} for t, sha in found.tags.items()]
        return {"branches": [main], "converts": [], "tags": tags, "pullRequests": []}

    def _tree(
        self, user: User | None, body: bytes, query: dict, kind: str, repo: str, revision: str, folder: str = ""
    ) -> Any:
        commit = self._commit_of(self._found(user, kind, repo), revision)
        return [_entry(path, blob) for path, blob in sorted(commit.tree.items()) if path.startswith(folder)]

    def _commits(self, user: User | None, body: bytes, query: dict, kind: str, repo: str, revision: str) -> Any:
        commits = self._found(user, kind, repo).commits
        return [
            {"id": c.sha, "title": c.title, "message": "", "date": "2026-01-01T00:00:00.000Z", "authors": []}
            for c in reversed(commits)
        ]

    def _preupload(self, user: User | None, body: bytes, query: dict, kind: str, repo: str, revision: str) -> Any:
        found = self._writable(user, kind, repo)
        tree, answers = self._commit_of(found, revision).tree, []
        for file in json.loads(body)["files"]:
            lfs = file["path"].endswith(LFS_ENDINGS) or file["size"] > LFS_BYTES
            old = tree.get(file["path"])
            oid = None if old is None else old.sha256 if old.lfs else old.oid
            mode = "lfs" if lfs else "regular"
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": answers}

    def _batch(self, user: User | None, body: bytes, query: dict, repo: str, prefix: str = "") -> Any:
        self._writable(user, prefix.rstrip("s/") or "model", repo)
        objects = []
        for wanted in json.loads(body)["objects"]:
            oid, size = wanted["oid"], wanted["size"]
            answer: dict[str, Any] = {"oid": oid, "size": size}
            if self.quota is not None and oid not in self.objects and size + self._stored() > self.quota:
                answer["error"] = {"code": 403, "message": "Private repository storage limit reached"}
            elif oid not in self.objects:
                answer["actions"] = {"upload": {"href": f"{self.endpoint}/storage/{oid}"}}
            objects.append(answer)
        return {"transfer": "basic", "objects": objects}

    def _store(self, user: User | None, body: bytes, query: dict, oid: str) -> Any:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400, "the content does not have this hash")
        self.objects[oid] = body
        self.uploads[oid] += 1
        return {}

    def _commit(self, user: User | None, body: bytes, query: dict, kind: str, repo: str, revision: str) -> Any:
        found = self._writable(user, kind, repo)
        lines = [json.loads(line) for line in body.splitlines() if line]
        header, head = lines[0]["value"], found.commits[-1]
        if header.get("parentCommit", head.sha) != head.sha:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(head.tree)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                tree[value["path"]] = Blob(base64.b64decode(value["content"]), lfs=False)
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.objects:
                    raise Refused(400, f"LFS object {value['oid']} was not uploaded")
                tree[value["path"]] = Blob(self.objects[value["oid"]], lfs=True)
            elif tree.pop(value["path"], None) is None:
                raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
        made = found.add(header["summary"], tree)
        return {"success": True, "commitOid": made.sha, "commitUrl": f"{self.endpoint}/{repo}/commit/{made.sha}"}

    def _tag(self, user: User | None, body: bytes, query: dict, kind: str, repo: str, revision: str) -> Any:
        found, tag = self._writable(user, kind, repo), json.loads(body)["tag"]
        commit = self._commit_of(found, revision)
        if tag in found.tags:
            raise Refused(409, "Tag reference exists already")
        found.tags[tag] = commit.sha
        return {}

    def _untag(self, user: User | None, body: bytes, query: dict, kind: str, repo: str, tag: str) -> Any:
        if self._writable(user, kind, repo).tags.pop(tag, None) is None:
            raise Refused(404, "no such tag", "RevisionNotFound")
        return {}

    def file(self, user: User | None, kind: str, repo: str, revision: str, path: str) -> tuple[str, Blob]:
        """Commit and content of a file that is downloaded."""
        with self._lock:
            commit = self._commit_of(self._found(user, kind, repo), revision)
            if path not in commit.tree:
                raise Refused(404, "Entry not found", "EntryNotFound")
            return commit.sha, commit.tree[path]

    # --- who may do what ------------------------------------------------------------------------------------------

    def _writes(self, user: User | None, namespace: str) -> bool:
        if user is None or user.role == "read" or (user.role == "fineGrained" and namespace not in user.scoped):
            return False
        return namespace == user.name or user.orgs.get(namespace) in ("admin", "write")

    def _found(self, user: User | None, kind: str, repo: str) -> Repo:
        found, namespace = self.repos.get((kind, repo)), repo.split("/")[0]
        reads = user is not None and (namespace == user.name or namespace in user.orgs)
        if found is None or (found.private and not reads):
            raise Refused(401 if user is None else 404, "Repository not found", "RepoNotFound")
        return found

    def _writable(self, user: User | None, kind: str, repo: str) -> Repo:
        found = self._found(user, kind, repo)
        if not self._writes(user, repo.split("/")[0]):
            raise Refused(403, "You don't have write access to this repository")
        return found

    def _commit_of(self, repo: Repo, revision: str) -> Commit:
        commit = repo.at(revision)
        if commit is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def _stored(self) -> int:
        return sum(map(len, self.objects.values()))


def _entry(path: str, blob: Blob) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "oid": blob.oid, "size": len(blob.data)}
    if blob.lfs:
        entry["lfs"] = {"oid": blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}
    return entry


_REPO = r"/api/(?P<kind>model|dataset|space)s/(?P<repo>[^/]+/[^/]+)"
_REVISION = r"(?P<revision>[^/]+)"
ROUTES = (
    ("GET", r"/api/whoami-v2", "whoami"),
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("GET", rf"{_REPO}/auth-check(?P<write>/write)?", "auth"),
    ("GET", rf"{_REPO}/refs", "refs"),
    ("GET", rf"{_REPO}/tree/{_REVISION}(?:/(?P<folder>.+))?", "tree"),
    ("GET", rf"{_REPO}/commits/{_REVISION}", "commits"),
    ("GET", rf"{_REPO}(?:/revision/{_REVISION})?", "info"),
    ("POST", rf"{_REPO}/preupload/{_REVISION}", "preupload"),
    ("POST", rf"{_REPO}/commit/{_REVISION}", "commit"),
    ("POST", rf"{_REPO}/tag/{_REVISION}", "tag"),
    ("DELETE", rf"{_REPO}/tag/(?P<tag>[^/]+)", "untag"),
    ("POST", r"/(?P<prefix>datasets/|spaces/)?(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/storage/(?P<oid>[0-9a-f]{64})", "store"),
)
_RESOLVE = re.compile(rf"/(?P<prefix>datasets/|spaces/)?(?P<repo>[^/]+/[^/]+)/resolve/{_REVISION}/(?P<path>.+)")


def killed_at(hub: HubDouble, number: int, moment: str, work: Callable[[], Any]) -> bool:
    """Does `work` in a process of its own, which is ended by SIGKILL at its request `number` (from 1) at that moment.

    Returns whether it came to that; a process that failed by itself raises RuntimeError.
    """
    first = len(hub.log)
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)

    def watch(count: int, request: str, when: str) -> None:
        if count - first >= number and (count - first > number or when == moment):
            os.kill(child, signal.SIGKILL)
            raise ConnectionError("its client is dead")

    hub.watch = watch
    _, status = os.waitpid(child, 0)
    hub.watch = lambda count, request, when: None
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("the process failed before it was to be ended")
    return os.WIFSIGNALED(status)


class _Handler(BaseHTTPRequestHandler):
    hub: HubDouble
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that is gone
            super().handle()

    def log_message(self, *arguments: Any) -> None:
        pass

    def _serve(self) -> None:
        url = urlsplit(self.path)
        request = f"{self.command} {url.path}"
        number = self.hub.arrived(request)
        try:
            self.hub.watch(number, request, "arrived")
            body = self._body()
            if body is None:
                raise ConnectionError("the client went away in the middle")
            fault = self.hub.fault(request)
            if fault is not None and fault.do == "cut":
                return self._cut()
            if fault is not None and isinstance(fault.do, int):
                return self._json(fault.do, {"error": fault.message}, fault.headers)
            self.hub.watch(number, request, "before")
            self._apply(url.path, parse_qs(url.query), body, after=lambda: self.hub.watch(number, request, "after"),
                        silent=fault is not None)  # fmt: skip
        except Refused as refused:
            code = {"X-Error-Code": refused.code} if refused.code else {}
            self._json(refused.status, refused.body, {"X-Error-Message": str(refused), **code})
        except ConnectionError:
            self.close_connection = True

    def _apply(
        self, path: str, query: dict[str, list[str]], body: bytes, *, after: Callable[[], None], silent: bool
    ) -> None:
        user = self.hub.users.get(self.headers.get("authorization", "").removeprefix("Bearer "))
        if self.headers.get("authorization") and user is None and not path.startswith("/storage/"):
            raise Refused(401, "Invalid credentials in Authorization header")
        if found := _RESOLVE.fullmatch(path):
            kind = (found["prefix"] or "model").rstrip("s/")
            return self._resolve(user, kind, found["repo"], unquote(found["revision"]), unquote(found["path"]))
        if self.command in ("GET", "HEAD") and path.startswith("/storage/"):
            return self._bytes(200, self.hub.objects[path.removeprefix("/storage/")], {})
        answered = self.hub.answer(self.command, path, query, user, body)
        after()
        if silent:
            return self._cut()
        self._json(200, answered, {})

    def _resolve(self, user: User | None, kind: str, repo: str, revision: str, path: str) -> None:
        sha, blob = self.hub.file(user, kind, repo, revision, path)
        headers = {"X-Repo-Commit": sha, "ETag": f'"{blob.oid}"', "Accept-Ranges": "bytes"}
        if blob.lfs:
            headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.data))}
            # Another host than the endpoint's, as the Hub's storage is: the client must not send the token there.
            headers["Location"] = f"{self.hub.endpoint.replace('127.0.0.1', 'localhost')}/storage/{blob.sha256}"
            return self._bytes(302, b"", headers)
        self._bytes(200, blob.data, headers)

    def _body(self) -> bytes | None:
        if "chunked" in self.headers.get("transfer-encoding", ""):
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        return body if len(body) == length else None

    def _json(self, status: int, data: Any, headers: dict[str, str]) -> None:
        self._bytes(status, json.dumps(data).encode(), {"Content-Type": "application/json", **headers})

    def _bytes(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
