"""A real nginx in front of a server, with deploy/nginx.conf as it is shipped, or with the page as its comment says."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import requests
import trustme
from requests.adapters import HTTPAdapter

from tests.support.programs import Program, program
from tests.support.redis_server import free_port
from tests.support.surroundings import ROOT

SHIPPED = ROOT / "deploy/nginx.conf"
AROUND = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/unused;
    uwsgi_temp_path {folder}/unused;
    scgi_temp_path {folder}/unused;
    include {folder}/mailonce.conf;
}}
"""


def with_the_page(config: str, allowed: str) -> str:
    """``return 404`` of the location / replaced with the lines below it."""
    found = re.search(r"    location / \{\n(.*?)    \}\n", config, re.DOTALL)
    assert found
    first, *commented = found[1].splitlines()
    assert first.strip() == "return 404;"
    lines = "\n".join(line.replace("# ", "", 1) for line in commented)
    return config.replace(found[1], f"{lines}\n").replace("192.0.2.0/24", allowed)


class NginxServer(Program):
    def __init__(
        self, folder: Path, behind_port: int, page_allowed: str | None = None, changes: Iterable[tuple[str, str]] = ()
    ) -> None:
        """``page_allowed``: the network that may see the page; None: it is not published."""
        folder.mkdir()
        self.port = free_port()
        self.url = f"https://localhost:{self.port}"
        self.authority = str(folder / "ca.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.authority)
        certificate = authority.issue_cert("localhost")
        certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "own.pem"))
        config = SHIPPED.read_text()
        for shipped, ours in (
            ("listen 443 ssl;", f"listen 127.0.0.1:{self.port} ssl;"),
            ("listen [::]:443 ssl;", ""),
            ("/etc/ssl/mailonce/fullchain.pem", f"{folder}/own.pem"),
            ("/etc/ssl/mailonce/privkey.pem", f"{folder}/own.pem"),
            ("127.0.0.1:8000;", f"127.0.0.1:{behind_port};"),
            *changes,
        ):
            assert shipped in config
            config = config.replace(shipped, ours)
        (folder / "mailonce.conf").write_text(with_the_page(config, page_allowed) if page_allowed else config)
        user = "user root;" if os.getuid() == 0 else ""  # or its workers could not write where the tests do
        (folder / "nginx.conf").write_text(AROUND.format(folder=folder, user=user))
        command = [program("nginx", "nginx"), "-c", str(folder / "nginx.conf"), "-p", str(folder)]
        super().__init__(command, folder, folder / "error.log")

    def ask(self) -> requests.Response:
        return self.http().get(f"{self.url}/readyz", timeout=60)

    def http(self, address: str = "127.0.0.1") -> requests.Session:
        """A client at that address of this machine, which checks the certificate."""
        session = requests.Session()
        session.trust_env = False
        session.verify = self.authority
        session.mount("https://", _From(address))
        return session


class _From(HTTPAdapter):
    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, source_address=(self._address, 0))
