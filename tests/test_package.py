"""What ``make dist`` makes is complete, and the wheel serves on a machine that has no checkout; and make itself."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
import requests
import yaml
from packaging.requirements import Requirement

from tests.support import programs_loaded
from tests.support.programs import program
from tests.support.programs_loaded import MAILONCE
from tests.support.server import Server, email
from tests.support.sink import Sink
from tests.support.surroundings import ROOT, clean_environment, output_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
BARE = {"PATH": os.environ["PATH"]}
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
IGNORED = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
PRIVATE = (".env", "mailonce.toml", "data/journal.sqlite", "routes/__pycache__/left.pyc", "deploy/.env", ".venv-3.13/x")
PACKAGES = ("routes/", "orchestrator/", "deduplication/", "wsgi.py")
SHARED = ("deploy/", "docs/", "examples/", "CHANGELOG.md", "constraints.txt")
MADE = re.compile(r"PKG-INFO|setup\.cfg|mailonce\.egg-info/.*")


def checkout(to: Path) -> Path:
    """The files of the checkout that git would keep, and some that must not be published."""
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(".git", *IGNORED))
    for name in PRIVATE:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_text("SECRET=not-to-be-published")
    return to


def tracked() -> list[str]:
    """The files that belong into the sdist, as git lists them."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout knows which files belong into the sdist")
    listing = [program("git", "git"), "-C", str(ROOT), "ls-files"]
    return [name for name in output_of(listing).splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``make dist`` has filled, with the tools of the environment that runs the tests."""
    copy = checkout(tmp_path_factory.mktemp("dist") / "checkout")
    command = ["make", f"--old-file={sys.prefix}/.ready", "dist", f"VENV={sys.prefix}"]
    output_of(command, copy, clean_environment(PYTHONPATH=""))
    return copy / "dist"


def test_the_sdist_has_every_file_of_the_checkout_and_nothing_private(dist: Path) -> None:
    with tarfile.open(dist / f"mailonce-{VERSION}.tar.gz") as archive:
        held = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    assert not set(tracked()) - held, "MANIFEST.in leaves them out"
    assert not held & set(PRIVATE)
    assert all((ROOT / name).is_file() for name in held if not MADE.fullmatch(name))


def test_the_wheel_has_all_of_the_packages_and_the_files_beside_them(dist: Path) -> None:
    with zipfile.ZipFile(dist / f"mailonce-{VERSION}-py3-none-any.whl") as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
    beside = f"mailonce-{VERSION}.data/data/share/mailonce/"
    for name in tracked():
        if name.startswith(PACKAGES):
            assert name in held
        if name.startswith(SHARED):
            assert beside + name in held
    assert f"mailonce-{VERSION}.dist-info/licenses/LICENSE" in held
    assert not [name for name in held if any(fnmatch.fnmatch(part, "*.pyc") for part in name.split("/"))]
    assert not [name for name in held if name.endswith((".env", "mailonce.toml"))]
    allowed = (*PACKAGES, beside, f"mailonce-{VERSION}.dist-info/")
    assert all(name.startswith(allowed) for name in held), "nothing else of ours in site-packages"


def needed(wheel: Path) -> set[str]:
    """Every distribution that installing the wheel brings along, as it and those it needs declare it."""
    with zipfile.ZipFile(wheel) as archive:
        declared = message_from_bytes(archive.read(f"mailonce-{VERSION}.dist-info/METADATA"))
    waiting, found = [str(line) for line in declared.get_all("Requires-Dist", [])], set[str]()
    while waiting:
        requirement = Requirement(waiting.pop())
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in found:
            found.add(requirement.name)
            waiting += metadata.requires(requirement.name) or []
    return found


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the wheel in it, by pip and without an index: what it declares has to be enough.

    Its dependencies are linked to those of the environment that runs the tests, instead of being downloaded once more.
    """
    (wheel,) = dist.glob("*.whl")
    folder = tmp_path_factory.mktemp("machine") / "venv"
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in needed(wheel):
        distribution = metadata.distribution(name)
        for top in {Path(file).parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin/python")]
    for words in (["install", "--no-index", "-c", str(ROOT / "constraints.txt"), str(wheel)], ["check"]):
        output_of(pip + words, env=BARE)
    return folder


class Installed(Server):
    """Started from an empty folder; nothing of the checkout can be imported, and nothing but tokens and PORT is set."""

    def __init__(self, environment: Path, folder: Path, **settings: str) -> None:
        super().__init__(folder, **settings)
        self.command = [str(environment / "bin/mailonce"), "serve"]
        del self._env["PYTHONPATH"], self._env["DATA_DIR"]


def test_the_installed_wheel_serves_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    modules = ("deduplication", "orchestrator", "routes", "wsgi")
    where = "import sys, importlib; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]))"
    paths = output_of([str(installed / "bin/python"), "-c", where, *modules], tmp_path, BARE).split()
    assert len(paths) == len(modules) and all(Path(path).is_relative_to(installed) for path in paths)
    folder = tmp_path / "empty"
    with Sink() as sink, Installed(installed, folder, WEBHOOK_URL=sink.url) as server:
        assert [server.post(email()).json()["status"] for _ in range(2)] == ["processed", "already_processed"]
        (received,) = sink.received
        assert received.payload["subject"] == "Rapport hebdomadaire"
        assert server.health()["version"] == VERSION
        page = requests.get(f"{server.url}/", timeout=30)
        assert page.status_code == 200 and "Mailonce" in page.text
        (style,) = set(re.findall(r'href="(/[^"]*page\.css[^"]*)"', page.text))
        assert requests.get(f"{server.url}{style}", timeout=30).status_code == 200
    assert (folder / "data").is_dir(), "what it keeps is in the folder it was started in"
    assert (installed / "share/mailonce/deploy/mailonce.service").is_file()


def test_mailonce_says_its_version(tmp_path: Path) -> None:
    shown = programs_loaded.run([MAILONCE, "--version"], tmp_path, clean_environment())
    assert shown.stdout == f"mailonce, version {VERSION}\n"


def test_the_changelog_begins_with_the_version_and_dates_the_released_ones() -> None:
    headings = re.findall(r"^## \[(.*)\] - (.*)$", CHANGELOG, re.MULTILINE)
    assert len(headings) == len(re.findall(r"^## ", CHANGELOG, re.MULTILINE))
    (first, _), *earlier = headings
    assert first == VERSION
    dates = [date for _, date in headings if date != "unreleased"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in dates)
    assert "unreleased" not in [date for _, date in earlier]
    numbers = [tuple(map(int, version.split("."))) for version, _ in headings]
    assert numbers == sorted(numbers, reverse=True) and dates == sorted(dates, reverse=True)


# make, as CONTRIBUTING.md shows it: it installs for each target only its dependencies

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture
def unmade_checkout(tmp_path: Path) -> Path:
    """One in which nothing was made yet."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(unmade_checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment()
    return subprocess.run(
        ["make", *words], cwd=unmade_checkout, env=environment, capture_output=True, text=True, timeout=60
    )


def steps(unmade_checkout: Path, *words: str) -> list[str]:
    """What make would run."""
    return output_of(["make", "--dry-run", *words, f"PYTHON={sys.executable}"], unmade_checkout).splitlines()


def test_a_python_that_is_missing_or_too_old_is_named_in_one_line(unmade_checkout: Path) -> None:
    old = unmade_checkout / "old-python"
    pretend = "import sys; sys.version_info, sys.version = (3, 10, 12), '3.10.12 (main)'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$2"\n')
    old.chmod(0o755)
    result = make(unmade_checkout, "run", f"PYTHON={old}")
    assert result.returncode != 0
    (line,) = (result.stdout + result.stderr).splitlines()
    assert f"Mailonce needs Python 3.11 or newer; {old} is 3.10.12" in line
    assert "no-such-python is not there" in make(unmade_checkout, "run", "PYTHON=no-such-python").stderr
    assert not (unmade_checkout / ".venv").exists()


def test_each_target_installs_what_it_needs_and_no_more(unmade_checkout: Path) -> None:
    for target, extras in {"run": ["receiver"], "test": ["receiver", "dev"], "docs": ["receiver", "docs"]}.items():
        shown = "\n".join(steps(unmade_checkout, target))
        assert [extra for extra in ("receiver", "dev", "docs") if f"-e '.[{extra}]'" in shown] == extras
        assert shown.count('echo "Installing') == len(extras), "the first run takes a minute"


def test_a_seed_is_handed_on(unmade_checkout: Path) -> None:
    assert "--hypothesis-seed=7 " in steps(unmade_checkout, "test", "SEED=7")[-1]
    assert "seed" not in steps(unmade_checkout, "test")[-1]


def test_the_hooks_run_what_make_lint_runs(unmade_checkout: Path) -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local", "nothing is downloaded"
    entries = [hook["entry"] for hook in local["hooks"]]
    assert entries == steps(unmade_checkout, "lint")[-len(entries) :]
    for hook in local["hooks"]:
        assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("system", False, True), hook["id"]


def test_the_commands_for_contributors_can_be_run(unmade_checkout: Path) -> None:
    for command in re.findall(r"(?:`|^    )make ([^`\n]+)", CONTRIBUTING, re.MULTILINE):
        assert steps(unmade_checkout, *re.findall(r"\w+=\"[^\"]*\"|\S+", command)), command
    examples = re.findall(r"^    \.venv/bin/python -m pytest (\S+)(?: -k (\w+))?$", CONTRIBUTING, re.MULTILINE)
    assert len(examples) == 2
    for path, word in examples:
        assert re.search(rf"^def test_\w*{word}", (ROOT / path).read_text(), re.MULTILINE), word


def test_the_latest_version_is_the_one_that_gets_fixes() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| (yes|no) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert [version for version, fixes in rows if fixes == "yes"] == [VERSION.rpartition(".")[0]]
