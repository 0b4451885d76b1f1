"""What README and docs say is so: commands are known to their programs, links lead somewhere, names exist.

A command is executed where that is cheap: one that says of itself that it does nothing (`--dry-run`, `--no-episode`),
`pretrained`, and what reads a run (`status`, `memory`), on a run of the loop in a made-up world. Every other one
simulates, trains, installs or needs a server: it is parsed by its program's own parser, and the files of this
repository that it names must exist. The examples are executed by tests/examples.
"""

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOES_NOTHING = ("--dry-run", "--no-episode")
READS_A_RUN = ("status", "memory")
OURS = ("recipes/", "examples/", "scripts/", "benchmarks/", "results/", "docs/")  # folders whose files must exist
MADE = ("results/", "docs/")  # ... unless the command writes there
SYSTEM = ("apt", "source", "hf")  # programs that are no business of ours


class Command(NamedTuple):
    """A command line of a page."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def _hooks() -> Any:
    """docs/hooks/pages.py, as mkdocs loads it."""
    folder = ROOT / "docs" / "hooks"
    spec = importlib.util.spec_from_file_location("docs_pages", folder / "pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


HOOKS = _hooks()


def fences(text: str, language: str) -> Iterator[str]:
    """The fenced blocks of a language."""
    for found in re.finditer(rf"^ *```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        yield found[1]


def commands_of(block: str, page: str) -> Iterator[Command]:
    """Command lines of a shell block: continued lines joined, comments dropped, chains taken apart."""
    for line in block.replace("\\\n", " ").splitlines():
        inner = re.findall(r"\$\(([^()]*)\)", line)
        outer = re.sub(r"\$\(([^()]*)\)", _answer, line)
        for part in (*inner, *outer.split("&&")):
            words = shlex.split(part, comments=True)
            if words:
                yield Command(page, (words[0].removeprefix(".venv/bin/"), *words[1:]))


def _answer(found: re.Match[str]) -> str:
    """What the shell would put in place of an inner command."""
    words = found[1].split()
    if words[:2] == ["lerobot-coda", "pretrained"]:
        return str(ROOT / "lerobot_coda" / "pretrained" / words[2])
    return str(BIN / words[1]) if words[0] == "which" else "ANSWER"


def all_commands() -> list[Command]:
    """Every command of README, docs and the examples' docstrings, each once."""
    found: dict[tuple[str, ...], Command] = {}
    for path in PAGES:
        name = path.relative_to(ROOT).as_posix()
        for block in fences(path.read_text(), "bash"):
            for command in commands_of(block, name):
                found.setdefault(command.words, command)
    for path in EXAMPLES:
        told = ast.get_docstring(ast.parse(path.read_text())) or ""
        for line in told.splitlines():
            if line.startswith("    "):
                for command in commands_of(line, path.relative_to(ROOT).as_posix()):
                    found.setdefault(command.words, command)
    return list(found.values())


COMMANDS = all_commands()
CODA = [command for command in COMMANDS if command.words[0] == "lerobot-coda"]
STOCK = [
    command for command in COMMANDS if command.words[0] in ("lerobot-train", "lerobot-eval", "lerobot-dataset-viz")
]


def test_pages_have_commands() -> None:
    assert len(CODA) > 25 and len(STOCK) >= 4


@pytest.mark.parametrize("command", CODA, ids=str)
def test_a_command_of_ours_is_one(command: Command) -> None:
    parsed = HOOKS.whole_parser().parse_args(command.words[1:])  # leaves with a message where an option is unknown
    assert callable(parsed.run)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_files_that_a_command_names_are_there(command: Command) -> None:
    written = {after for option, after in zip(command.words, command.words[1:], strict=False) if option == "--json"}
    for word in command.words[1:]:
        name = word.rpartition("=")[2]
        if name.startswith(OURS) and not (name.startswith(MADE) or name in written):
            assert (ROOT / name).exists(), f"{command}: there is no {name}"


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_other_programs_are_known(command: Command) -> None:
    program, *arguments = command.words
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
    elif program.startswith("python"):
        assert arguments[0].endswith(".py") or arguments[0] in ("-m", "-c")
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = re.findall(r"(?:lerobot_policy_coda|\.)\[(\w+)\]", " ".join(arguments))
        assert set(asked) <= set(extras)
    else:
        assert program in ("lerobot-coda", "accelerate", "ray", "rerun", *SYSTEM) or command in STOCK, (
            f"unknown: {command}"
        )


@pytest.mark.e2e
@pytest.mark.parametrize("command", STOCK, ids=str)
def test_lerobot_knows_the_options_of_its_commands(command: Command, tmp_path: Path, monkeypatch) -> None:
    """By LeRobot's own configuration classes, with a tiny policy in place of CHECKPOINT."""
    import draccus
    from lerobot.configs.eval import EvalPipelineConfig
    from lerobot.configs.train import TrainPipelineConfig

    import lerobot_policy_coda  # noqa: F401  (registers policy and environment, as LeRobot's discovery does)

    program, *arguments = command.words
    if program == "lerobot-dataset-viz":
        told = subprocess.run([str(BIN / program), "--help"], capture_output=True, text=True, timeout=300).stdout
        assert all(word in told for word in arguments if word.startswith("--"))
        return
    if "CHECKPOINT" in " ".join(arguments):
        monkeypatch.syspath_prepend(str(ROOT / "tests" / "libero_pro"))
        from rollout_parts import save_tiny_act

        tiny = str(save_tiny_act(tmp_path / "act"))
        arguments = [word.replace("CHECKPOINT", tiny) for word in arguments]
    monkeypatch.chdir(tmp_path)
    for folder in ("recipes", "runs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    paths = [word for word in arguments if word.startswith("--policy.path=")]
    configured = next((word.partition("=")[2] for word in arguments if word.startswith("--config_path=")), None)
    if configured and configured.startswith("runs/"):  # what a run writes is a train recipe like those here
        configured = "recipes/coda_libero_object.yaml"
    rest = [word for word in arguments if word not in paths and not word.startswith("--config_path=")]
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    kind: Any = TrainPipelineConfig if program == "lerobot-train" else EvalPipelineConfig
    assert draccus.parse(config_class=kind, config_path=configured, args=rest) is not None
    assert all((Path(word.partition("=")[2]) / "config.json").is_file() for word in paths)


@pytest.mark.parametrize("command", [c for c in CODA if set(DOES_NOTHING) & set(c.words)], ids=str)
def test_commands_that_do_nothing_are_executed(command: Command, monkeypatch, capsys) -> None:
    from lerobot_coda.cli import main

    monkeypatch.chdir(ROOT)
    assert main(command.words[1:]) == 0
    assert capsys.readouterr().out


def test_pretrained_policies_that_pages_name_are_there() -> None:
    from lerobot_coda.pretrained import folder

    named = {command.words[2] for command in CODA if command.words[1] == "pretrained" and len(command.words) > 2}
    assert named and all((folder(name) / "model.safetensors").is_file() for name in named)


@pytest.fixture(scope="module")
def made_up_run(tmp_path_factory) -> Path:
    """A run folder of the loop in a world without physics."""
    sys.path.insert(0, str(ROOT / "tests" / "lerobot_coda"))
    try:
        from fakeworld import FakeEngine, write_recipes
    finally:
        sys.path.pop(0)
    import io

    from rich.console import Console

    from lerobot_coda.console import Display
    from lerobot_coda.evolve import evolve

    folder = tmp_path_factory.mktemp("docs")
    display = Display(Console(file=io.StringIO()))
    evolve(write_recipes(folder), folder / "run", engine=FakeEngine(), display=display)
    return folder / "run"


@pytest.mark.parametrize("command", [c for c in CODA if c.words[1] in READS_A_RUN], ids=str)
def test_commands_that_read_a_run_are_executed(command: Command, made_up_run: Path, capsys) -> None:
    from lerobot_coda.cli import main
    from lerobot_coda.memory import Memory, Scene

    memory = Memory(made_up_run / "memory.sqlite")
    scene = memory.rows(Scene)[0]["hash"]
    memory.close()
    places = {"runs/quickstart": str(made_up_run), "HASH": scene}
    assert main([places.get(word, word) for word in command.words[1:]]) == 0
    assert capsys.readouterr().out.strip()


# --- what stands in the text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_inside_sentences_exist(path: Path) -> None:
    parser = HOOKS.whole_parser()
    known = next(action.choices for action in parser._actions if hasattr(action, "choices") and action.choices)
    for told in re.findall(r"`lerobot-coda ([a-z-]+)([^`]*)`", path.read_text()):
        name, rest = told
        assert name in known, f"{path}: lerobot-coda {name}"
        for option in re.findall(r"(--[\w.-]+)", rest):
            assert option in known[name].format_help(), f"{path}: lerobot-coda {name} has no {option}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_blocks_of_settings_are_parts_of_an_evolve_recipe(path: Path) -> None:
    from pydantic import TypeAdapter

    from lerobot_coda.recipe import EvolveRecipe

    for block in fences(path.read_text(), "yaml"):
        for key, value in ({} if "--8<--" in block else yaml.safe_load(block)).items():
            assert key in EvolveRecipe.model_fields, f"{path}: {key}"
            TypeAdapter(EvolveRecipe.model_fields[key].annotation).validate_python(value)


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """Pages that are made from the code, by their address below docs/."""
    return HOOKS.pages()


def links(text: str) -> Iterator[str]:
    """Targets of Markdown links and images, and of images in HTML, outside of code."""
    prose = re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"\]\(([^()\s]+)\)", prose)
    yield from re.findall(r"<(?:img|source)[^>]* src(?:set)?=\"([^\"]+)\"", prose)


def slugs(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.M)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "results/README.md"], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path: Path, generated: dict[str, str]) -> None:
    """Pages that a build makes count; external addresses are only looked at, nothing is fetched."""
    for target in links(path.read_text()):
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme in ("http", "https") and "." in parts.netloc, f"{path}: {target}"
            continue
        there = (path.parent / parts.path).resolve() if parts.path else path
        inside = ROOT / "docs" in path.parents
        address = there.relative_to(ROOT / "docs").as_posix() if inside and ROOT / "docs" in there.parents else ""
        if address.startswith("results/"):  # the site holds results/ as it stands in the repository
            there = ROOT / address
        text = generated.get(address) or (there.read_text() if there.suffix == ".md" and there.is_file() else "")
        assert text or there.exists(), f"{path}: {target} leads nowhere"
        assert not parts.fragment or parts.fragment in slugs(text), f"{path}: {target} has no such heading"


def test_every_page_is_in_the_navigation(generated: dict[str, str]) -> None:
    config = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text())

    def leaves(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        else:
            for child in node.values() if isinstance(node, dict) else node:
                yield from leaves(child)

    listed = set(leaves(yaml.safe_load(config)["nav"]))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES if path.name != "README.md"}
    assert listed == there | set(generated) | {"results/README.md"}


def _defined(dotted: str) -> bool:
    """Whether `package.module.name` is a module, or a name that one defines or passes on."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:cut])
        source = next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)
        if source is None:
            continue
        if cut == len(parts):
            return True
        names: set[str] = set()
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
        return len(parts) == cut + 1 and parts[cut] in names
    return False


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_of_code_and_tests_exist(path: Path) -> None:
    text = path.read_text()
    for dotted in re.findall(r"`((?:libero_pro|lerobot_coda)\.[\w.]+)", text):
        assert _defined(dotted), f"{path}: {dotted}"
    for dotted in re.findall(r"^::: ([\w.]+)", text, re.MULTILINE):
        assert _defined(dotted), f"{path}: {dotted}"
    for name in re.findall(r"`((?:lerobot_coda|libero_pro|tests|docs|recipes|examples)/[\w./]+?)(?:::|`)", text):
        assert (ROOT / name).exists(), f"{path}: {name}"
    for name, test in re.findall(r"`(tests/[\w/.]+)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / name).read_text(), f"{path}: {name}::{test}"


def test_figures_that_the_paper_index_names_are_in_the_results() -> None:
    linked = re.findall(r"\[([^\]]+)\]\(reference/figures\.md#(\w+)\)", (ROOT / "docs" / "paper.md").read_text())
    assert len(linked) > 8
    for text, name in linked:
        known = {row["figure"] for row in json.loads((ROOT / "results" / f"{name}.json").read_text())}
        assert set(re.findall(r"`([^`]+)`", text)) <= known, f"results/{name}.json"


# --- the site ---------------------------------------------------------------------------------------------------------


class Requests(HTMLParser):
    """Addresses that a browser would fetch to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        wanted = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
        told = dict(attrs)
        if tag in wanted and told.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(told.get(wanted[tag]) or "")


@pytest.mark.e2e
def test_the_site_builds_strictly_and_asks_no_server_for_anything(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made = sorted((tmp_path / "site").rglob("*.html"))
    assert len(made) > len(PAGES)
    for path in made:
        page = Requests()
        page.feed(path.read_text())
        assert not [url for url in page.found if urlsplit(url).netloc], path
    for path in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(url\(|@import\s+)[\"']?(https?:)?//", path.read_text()), path
    reference = (tmp_path / "site/reference/commands.html").read_text()
    assert "lerobot-coda evolve" in reference and "--dry-run" in reference
    assert "Memorizer" in (tmp_path / "site/howto/policy.html").read_text()  # the examples stand on their pages
