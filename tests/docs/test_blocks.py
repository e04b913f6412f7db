"""Every block of every page does what it shows; the rule is in __init__.py."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from deduplication.message import Message
from orchestrator.config.model import DestinationConfig, load_config
from orchestrator.config.settings import Settings, load_settings
from orchestrator.delivery.fetching import fetch
from orchestrator.delivery.webhook import Destination, Webhook
from orchestrator.item import message_item
from routes.providers.base import Surroundings
from routes.providers.registry import open_providers
from tests.docs.conftest import Service, values_of
from tests.docs.pages import Block, Command, all_blocks, code, commands
from tests.support import programs_loaded
from tests.support.programs import Program
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import INGRESS_TOKEN, Server, WorkerProcess
from tests.support.sink import Sink
from tests.support.surroundings import ROOT, clean_environment, output_of

KINDS = {"sh", "toml", "python", "ini", "json", "http", "text"}
OTHERS_UNITS = {"nginx", "prometheus", "redis", "redis-server"}
MAKE_VARIABLES = {"ARGS", "PYTHON", "SEED"}
COMPOSE_VARIABLES = set(re.findall(r"\$\{(\w+)", (ROOT / "deploy/compose.yaml").read_text()))
REDIS = "redis://127.0.0.1:6379/0"
OURS = re.compile(r"(?:deploy|docs|examples|tests|routes|orchestrator|deduplication)/[\w./-]*")
SETTINGS = {name.upper() for name in Settings.model_fields}


def each_block(*languages: str, having: str = "") -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [each for each in all_blocks(*languages) if having in each.text], ids=str)


def is_shown_in(line: str, output: str) -> bool:
    """With other ids, times, numbers and widths. Pictures made of blocks are left out."""
    words = [word for word in line.split() if word.isascii()]
    pattern = r"\s+".join(r"\S+" if re.search(r"\d", word) else re.escape(word) for word in words)
    return re.search(pattern, output) is not None


def is_said_by_the_code(line: str) -> bool:
    """The code has four words of it in a row."""
    words = [word.strip(":.") for word in line.split()]
    runs = (" ".join(words[start : start + 4]) for start in range(len(words) - 3))
    return any(run in code() for run in runs if not re.search(r"\d", run))


def check_below(block: Block, output: str) -> None:
    """What is shown below the command, if anything, is what it printed."""
    for below in all_blocks("text"):
        if below.above == block:
            lines = [line for line in below.text.splitlines() if line.strip()]
            lost = [
                line for line in lines if not is_shown_in(line, output) and (output or not is_said_by_the_code(line))
            ]
            assert not lost, f"{below} shows what {block} does not print:\n{output}"


def test_every_block_is_of_a_kind_that_is_covered() -> None:
    known = "\n".join(
        path.read_text(errors="replace")
        for folder in ("examples", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    )
    uncovered = [block for block in all_blocks() if block.language not in KINDS and block.text not in known]
    assert not uncovered, [
        f"{block} is {block.language}; tests/docs/__init__.py says what can be" for block in uncovered
    ]


@each_block("sh")
def test_commands_do_what_they_say(block: Block, service: Service, tmp_path: Path, redis_server: RedisServer) -> None:
    printed = [_done(command, service, tmp_path, redis_server.url) for command in commands(block.text)]
    assert printed, "there is no command"
    check_below(block, "\n".join(each for each in printed if each is not None))


def _done(command: Command, service: Service, folder: Path, redis_url: str) -> str | None:
    """What it printed; None if it was not run."""
    settings = {name: value.replace(REDIS, redis_url) for name, value in command.settings.items()}
    unknown = settings.keys() - SETTINGS - MAKE_VARIABLES - COMPOSE_VARIABLES
    assert not unknown, f"{unknown} are no settings"
    words, program = command.words, command.program
    if program == "curl":
        status, answer = service.send(command.text)
        assert status < 400 or "/health" in command.text, answer
        return json.dumps(answer) if not isinstance(answer, str) else answer
    if program in ("make", ".venv/bin/mailonce") and words[1] in ("run", "serve"):
        with Server(folder / "data", INGRESS_TOKEN="", ADMIN_TOKEN="", **settings) as server:
            server.stop()
            return server.log.read_text().replace(server.url, "http://127.0.0.1:8000").replace(f"{folder}/", "")
    if program == ".venv/bin/mailonce" and words[1] == "listen":
        return service.listen(words)
    if program == ".venv/bin/mailonce" and words[1] == "worker":
        with WorkerProcess(folder / "data", **settings) as worker:
            return worker.log.read_text()
    if not words:
        load_settings(**{name.lower(): value for name, value in settings.items()})
        return None
    if program in (".venv/bin/mailonce", ".venv/bin/python", "python3"):
        return _run(command, service)
    check = _check_target if program == "make" else _check_elsewhere
    check(command)
    return None


def _check_target(command: Command) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in command.words[1:]:
        name, is_variable, _ = word.partition("=")
        assert name in MAKE_VARIABLES if is_variable else re.search(rf"^{name}:", makefile, re.MULTILINE), word


def _run(command: Command, service: Service) -> str:
    words = command.words
    if words[1] in _named_files():
        return ""  # started by test_the_shown_receiver_verifies_and_deduplicates
    if words[1] == "-m" or OURS.match(words[1]):  # a script of this repository
        printed = output_of((sys.executable, *words[1:]))
    else:
        printed = service.run(words)
    if command.into_shell:
        status, answer = service.send(printed.strip())
        assert (status, answer["success"]) == (200, True)
    return printed


def _named_files() -> dict[str, Block]:
    named = ((re.match(r"# (\w+\.py)\n", block.text), block) for block in all_blocks("python"))
    return {found[1]: block for found, block in named if found}


def _check_elsewhere(command: Command) -> None:
    """For a machine that is not here: at least, what it names of ours is there."""
    missing = [path for path in OURS.findall(command.text) if not (ROOT / path).exists()]
    assert not missing, f"{command.text} names what does not exist: {missing}"
    if command.program == "systemctl":
        named = [word.removesuffix(".service") for word in command.words[2:] if not word.startswith("-")]
        unknown = [
            unit for unit in named if unit not in OTHERS_UNITS and not (ROOT / f"deploy/{unit}.service").exists()
        ]
        assert not unknown, f"{command.text} names units that do not exist: {unknown}"
    if command.program.endswith("pip"):
        project = (ROOT / "pyproject.toml").read_text()
        extras = [extra for group in re.findall(r"\[([\w,]+)\]", command.text) for extra in group.split(",")]
        assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras), command.text


@each_block("toml")
def test_sections_of_mailonce_toml_load(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in values_of(block.text).items():
        monkeypatch.setenv(name, value)
    for comment in ("", "# "):  # and again with the commented keys
        path = tmp_path / "mailonce.toml"
        path.write_text(re.sub(rf"^{comment}(\w+ = )", r"\1", block.text, flags=re.MULTILINE))
        config = load_config(load_settings(mailonce_config=path))
        open_providers(config.model_copy(update={"providers": _without_s3(config.providers)}), Surroundings((), fetch))


def _without_s3(providers: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """A client of S3 wants a region; that it is opened is tested in test_ses.py."""
    return {name: {key: value for key, value in table.items() if key != "buckets"} for name, table in providers.items()}


@each_block("ini")
def test_settings_load(block: Block) -> None:
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    given = dict(line.split("=", 1) for line in lines)
    assert given.keys() <= SETTINGS | set(values_of("\n".join(each.text for each in all_blocks("toml"))))
    load_settings(**{name.lower(): value for name, value in given.items() if name in SETTINGS})


TRIED_BELOW = re.compile(r"app\.run\(|from deduplication\.(reservations|locks|content|realtime_guard|redis_client) ")


@each_block("python")
def test_python_runs_in_a_fresh_interpreter(block: Block, tmp_path: Path, redis_server: RedisServer) -> None:
    if not TRIED_BELOW.search(block.text):
        assert paste(block.text.replace(REDIS, redis_server.url), tmp_path)


def paste(text: str, folder: Path) -> str:
    """What it prints, in the folder of a service."""
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data/service.json").write_text(json.dumps({"redis": "", "is_trial": False}))
    return output_of([sys.executable, "-"], folder, stdin=text)


@pytest.mark.parametrize(
    ("module", "first", "again"),
    [
        ("reservations", "publish it\n", ""),
        ("locks", "publish it, under the number \n", "publish it, under the number \n"),
        ("content", "forward it\n", ""),
        ("realtime_guard", "handle it\n", "handle it\n"),
        ("redis_client", "process it\n", ""),
    ],
)
def test_the_example_of_every_vocabulary_remembers(
    tmp_path: Path, redis_server: RedisServer, module: str, first: str, again: str
) -> None:
    (block,) = [each for each in all_blocks("python") if f"from deduplication.{module} import" in each.text]
    text = block.text.replace(REDIS, redis_server.url)
    printed = [paste(text, tmp_path)]
    printed += [programs_loaded.run([sys.executable, "-c", text], tmp_path, clean_environment()).stdout]
    assert [re.sub(r"\d+", "", each) for each in printed] == [first, again]
    assert redis_server.client.keys("processed_ids:*") == ["processed_ids:2026-11-16"] * (module == "redis_client")


@each_block("python", having="app.run(")
def test_the_shown_receiver_verifies_and_deduplicates(block: Block, tmp_path: Path) -> None:
    """Two attempts of one webhook, one of them forged."""
    (secret,) = re.findall('SECRET = "(.*?)"', block.text)
    port = free_port()
    (tmp_path / "receiver.py").write_text(re.sub(r"port=\d+", f"port={port}", block.text))
    (tmp_path / ".venv").symlink_to(sys.prefix)
    command = [".venv/bin/python", "receiver.py"]
    receiver = Program(command, tmp_path, tmp_path / "receiver.log", {"PATH": "/usr/bin:/bin"})
    receiver.port = port
    with receiver:
        url = f"http://127.0.0.1:{port}/hooks/mail"
        good = Destination("crm", DestinationConfig(url=url, secret=(secret,)), pool_size=1)
        attempts = [Webhook("msg_1", {"email_id": email_id, "subject": "Signé 🖋"}) for email_id in ("e1", "e2")]
        assert [good.deliver(webhook).receiver_id for webhook in attempts] == ["e1", "e1"], "the first one counts"
        post = message_item(Message(source="tg:news", id="1", text="Hello")).payload(())
        assert good.deliver(Webhook("msg_2", post)).receiver_id == post["message_key"]
        forged = Destination("crm", DestinationConfig(url=url, secret=("whsec_" + "B" * 32,)), pool_size=1)
        assert forged.deliver(attempts[0]).error == "crm: answered 401"


@each_block("json")
def test_answers_are_those_of_the_curl_line_above(block: Block, service: Service) -> None:
    shown = json.loads(block.text)
    above = block.above
    while above is not None and above.language == "json":
        above = above.above
    asked = [each.text for each in commands(above.text)] if above is not None and above.language == "sh" else []
    for curl in (each for each in asked if each.startswith("curl")):
        real = service.answers.get(curl) or [service.send(curl)[1]]
        assert _unchanging(shown) in map(_unchanging, real)


def _unchanging(answer: dict[str, Any]) -> dict[str, Any]:
    """What is the same each time: all the names, and some of the values."""
    return {name: value if name in ("success", "status", "email_id") else "" for name, value in answer.items()}


def test_webhooks_have_the_headers_and_fields_that_are_shown(tmp_path: Path) -> None:
    (block,) = all_blocks("http")
    head, _, body = block.text.partition("\n\n")
    shown, shown_headers = json.loads(body), {line.split(": ")[0].lower() for line in head.splitlines()[1:]}
    (of_message,) = re.findall(r"other fields: (`.*?)\.\s", (ROOT / block.page).read_text(), re.DOTALL)
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    with Sink() as sink, Server(tmp_path, WEBHOOK_URL=sink.url, WEBHOOK_SECRET=secret) as server:
        server.post({name: shown[name] for name in ("subject", "sender", "date", "body")})
        headers = {"Authorization": f"Bearer {INGRESS_TOKEN}"}
        post = {"source": "tg:news", "id": "1", "text": "Hello"}
        requests.post(f"{server.url}/api/ingress/message", json=post, headers=headers, timeout=60)
    email, message = sink.accepted
    assert email.payload.keys() == shown.keys()
    assert shown_headers | {"webhook-signature"} <= {name.lower() for name in email.headers}
    assert set(message.payload) == set(re.findall(r"`(\w+)`", of_message))


@each_block("text")
def test_what_no_command_prints_is_logged_or_drawn(block: Block, service: Service) -> None:
    if block.above is not None and block.above.language == "sh":
        return  # what that prints is compared where it is run
    requests.post(f"{service.server.url}/api/ingress/mailgun", data={"signature": "wrong"}, timeout=60)
    logged = service.server.log.read_text()
    for line in block.text.splitlines():
        is_drawn = all((ROOT / folder).is_dir() for folder in re.findall(r"\b([a-z]+)/ ", line)) and "->" in block.text
        assert is_drawn or is_shown_in(line, logged) or is_said_by_the_code(line), line
