"""Every code block of the README and of the pages works as shown.

`python` blocks are run, page by page, in order, in one namespace for each page. `pycon` blocks are doctests, which
pytest collects by itself. Commands in `sh` blocks and in the text have to exist, with the options they are shown with,
and `toml` blocks have to be configurations. Cells of tutorials are run when the site is built. A block that cannot be
run says why in a comment above it: `<!-- not run: it needs a device -->`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from markdown_it import MarkdownIt
from markdown_it.token import Token

from lyapflow.importing import import_object

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(path for path in sorted(ROOT.glob("*.md"))),
    *(path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->\s*$")
CHECKED = {"python", "pycon", "sh", "toml"}
PLAIN = {"bibtex", "text", "yaml"}  # nothing to check


@dataclasses.dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int
    not_run: str | None = None


@functools.cache
def tokens(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))


def blocks(path: Path) -> list[Block]:
    return list(_blocks(path.read_text(encoding="utf-8"), 0))


def _blocks(text: str, offset: int) -> Iterator[Block]:
    """The fenced blocks of a text; those inside of directives as well."""
    before = ""
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "html_block":
            before = token.content
        if token.type != "fence":
            continue
        assert token.map is not None
        line = offset + token.map[0] + 1
        kind, _, argument = token.info.strip().partition(" ")
        if kind == "{code-cell}":
            pass  # run when the site is built
        elif kind in ("{code-block}", "{code}"):
            yield Block(argument.strip(), token.content, line)
        elif kind.startswith("{"):
            yield from _blocks(token.content, line)
        else:
            reason = NOT_RUN.search(before)
            yield Block(kind, token.content, line, reason[1] if reason else None)
        before = ""


def of_kind(path: Path, kind: str) -> list[Block]:
    return [block for block in blocks(path) if block.kind == kind]


# -- all blocks are of a kind that is checked ------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_blocks_say_what_they_are(name: str) -> None:
    path = ROOT / name
    for block in blocks(path):
        assert block.kind in CHECKED | PLAIN, f"{name}:{block.line}: a block of kind {block.kind!r} is not checked"
        assert block.kind == "pycon" or not re.search(r"^>>> ", block.text, re.MULTILINE), (
            f"{name}:{block.line}: a session belongs in a block of kind pycon"
        )
        if block.kind == "pycon":
            assert ">>> " in block.text


def test_sessions_are_collected_by_pytest() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "--doctest-glob=*.md" in settings["addopts"]
    covered = [ROOT / path for path in settings["testpaths"]]
    for path in PAGES:
        if of_kind(path, "pycon"):
            assert any(path == place or place in path.parents for place in covered), f"{path.name} is not collected"


# -- python ----------------------------------------------------------------------------------------------------------


def runnable(path: Path) -> list[Block]:
    return [block for block in of_kind(path, "python") if block.not_run is None]


@pytest.mark.parametrize("name", [name for name, path in zip(NAMES, PAGES, strict=True) if runnable(path)])
def test_python_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # what they write stays out of the repository
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in runnable(ROOT / name):
        code = compile("\n" * block.line + block.text, name, "exec")
        exec(code, names)
    if name == "README.md":
        import torch

        edges = torch.tensor([[0, 1], [1, 0]])
        assert names["Net"](3, 8, 2)(torch.randn(2, 3), edges, torch.zeros(2, dtype=torch.long)).shape == (2, 2)
        assert names["solution"].success


# -- commands --------------------------------------------------------------------------------------------------------


# Commands that `lyapflow` imports when they are called.
FORWARDED = {
    "data": "lyapflow_graph.data.commands:app",
    "train": "lyapflow_graph.training.commands:train",
    "sweep": "lyapflow_graph.sweeping.commands:app",
    "report": "lyapflow_graph.training.commands:report",
    "predict": "lyapflow_graph.training.commands:predict",
    "export": "lyapflow_graph.training.commands:export",
}


@functools.cache
def command() -> Any:
    """The command with all its sub-commands."""
    from lyapflow.commands import app

    root: Any = typer.main.get_command(app)
    forwarding = {name for name, found in root.commands.items() if found.context_settings.get("ignore_unknown_options")}
    assert forwarding == set(FORWARDED)
    root.commands |= {
        name: typer.main.get_command(import_object(path, "a command")) for name, path in FORWARDED.items()
    }
    return root


def commands_in(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of shell blocks, and commands in the text, each with its line number."""
    for block in of_kind(path, "sh"):
        text = block.text.replace("\\\n", " ")
        for number, line in enumerate(text.splitlines(), block.line + 1):
            yield number, line.strip()
    for token in tokens(path):
        for child in token.children or ():
            if child.type == "code_inline" and re.match(r"(lyapflow|make|pip|torchrun) ", child.content):
                yield (token.map or [0])[0] + 1, child.content


def words_of(line: str) -> list[str]:
    """The words of a command, from its name on; empty if it is another one."""
    words = shlex.split(line.replace("…", "..."), comments=True)
    while words and re.fullmatch(r"\w+=.*", words[0]):  # variables that are set for it
        words = words[1:]
    if words[:1] == ["torchrun"] and "-m" in words:
        words = words[words.index("-m") + 1 :]
    elif len(words) > 2 and words[0].endswith("python") and words[1] == "-m":
        words = words[2:]
    return [Path(words[0]).name, *words[1:]] if words else []


def check_lyapflow(words: list[str]) -> None:
    """Every sub-command and option exists; an option that needs a value has one; no argument too many."""
    group: Any = command()
    words = words[1:]
    while hasattr(group, "commands") and words and not words[0].startswith("-"):
        if words[0].isupper():  # stands for any of them
            return
        assert words[0] in group.commands, f"there is no command {words[0]!r}"
        group, words = group.commands[words[0]], words[1:]
    options = {name: parameter for parameter in group.params for name in parameter.opts if name.startswith("-")}
    options |= {name: p for p in group.params for name in p.secondary_opts}
    positional = [parameter for parameter in group.params if parameter.param_type_name == "argument"]
    given, rest = 0, iter(words)
    for word in rest:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            if name == "--help":
                continue
            assert name in options, f"{group.name} has no option {name}"
            if not getattr(options[name], "is_flag", False) and not equals:
                assert next(rest, None) is not None, f"{name} needs a value"
        else:
            given += 1
    allowed = len(positional) if all(p.nargs == 1 for p in positional) else 99
    assert given <= allowed, f"{group.name} takes {allowed} arguments"


def check_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
    assert set(asked) <= targets, f"the Makefile has {sorted(targets)}"


def check_pip(words: list[str]) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:lyapflow|\.)\[([^\]]+)\]", " ".join(words)):
        assert {extra.strip() for extra in extras.split(",")} <= set(known), f"extras are {sorted(known)}"


CHECKS = {"lyapflow": check_lyapflow, "make": check_make, "pip": check_pip}


@pytest.mark.parametrize("name", [n for n, path in zip(NAMES, PAGES, strict=True) if next(commands_in(path), None)])
def test_commands_exist(name: str) -> None:
    for number, line in commands_in(ROOT / name):
        words = words_of(line)
        if words and words[0] in CHECKS:
            try:
                CHECKS[words[0]](words)
            except AssertionError as error:
                pytest.fail(f"{name}:{number}: {line}\n{error}")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("lyapflow trian x.toml", "no command"),
        ("lyapflow train x.toml --rezume", "no option"),
        ("lyapflow data show a b c", "arguments"),
        ("make tset", "Makefile"),
        ('pip install "lyapflow[grahp]"', "extras"),
    ],
)
def test_a_wrong_command_is_found(line: str, problem: str) -> None:
    words = words_of(line)
    with pytest.raises(AssertionError, match=problem):
        CHECKS[words[0]](words)


# -- toml ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, path in zip(NAMES, PAGES, strict=True) if of_kind(path, "toml")])
def test_toml_blocks_are_what_they_seem(name: str, tmp_path: Path) -> None:
    from lyapflow_graph.sweeping import load_sweep
    from lyapflow_graph.training import load_config

    for block in of_kind(ROOT / name, "toml"):
        try:
            table = tomllib.loads(block.text)
        except tomllib.TOMLDecodeError as error:
            pytest.fail(f"{name}:{block.line}: {error}")
        file = tmp_path / "shown.toml"
        file.write_text(block.text)
        if {"data", "sweep"} <= set(table):
            load_sweep(file)
        elif {"data", "model"} <= set(table):
            load_config(file)


# -- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_links_to_files_lead_somewhere(name: str) -> None:
    links = [
        str(child.attrs.get("href") or child.attrs.get("src"))
        for token in tokens(ROOT / name)
        for child in token.children or ()
        if child.type in ("link_open", "image")
    ]
    missing = []
    for link in links:
        path = link.partition("#")[0]
        if (
            path
            and "://" not in path
            and not path.startswith("mailto:")
            and not (ROOT / name).parent.joinpath(path).exists()
        ):
            missing.append(link)
    assert not missing


def test_the_readme_leads_to_every_section_of_the_site() -> None:
    text = (ROOT / "README.md").read_text()
    for page in ("tutorials/index", "guides", "theory", "interactive", "results", "comparison", "reference"):
        assert f"](docs/{page}.md)" in text, page
