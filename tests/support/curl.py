"""The curl lines that the README, the server and ``mailonce sample`` print, sent without a curl or a shell."""

import argparse
import base64
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import requests

_INPUT = re.compile(r"^echo (\S+) \| base64 -d \| ")
_FILE = re.compile(r"\$\(cat ([^)]+)\)")


@dataclass(frozen=True)
class Request:
    url: str
    headers: dict[str, str]
    body: bytes | None

    def send(self) -> requests.Response:
        method = "GET" if self.body is None else "POST"
        with requests.Session() as http:
            http.trust_env = False
            return http.request(method, self.url, headers=self.headers, data=self.body, timeout=60)


def read_curl(line: str, folder: Path = Path()) -> Request:
    """The request of a curl line in that folder. An option or shell syntax that we do not print is an error."""
    given = _INPUT.match(line)
    text = _INPUT.sub("", line).replace("\\\n", "")
    text = _FILE.sub(lambda found: (folder / shlex.split(found[1])[0]).read_text().strip(), text)
    words = shlex.split(text)
    assert words.pop(0) == "curl", line
    options = _OPTIONS.parse_args(words)
    assert "$" not in options.url + "".join(options.headers), "unknown shell syntax"
    headers = dict(header.split(": ", 1) for header in options.headers)
    if options.body is None:
        return Request(options.url, headers, None)
    body = base64.b64decode(given[1]) if given and options.body == "@-" else options.body.encode()
    return Request(options.url, {"Content-Type": "application/x-www-form-urlencoded"} | headers, body)


_OPTIONS = argparse.ArgumentParser("curl", exit_on_error=False)
_OPTIONS.add_argument("url")
_OPTIONS.add_argument("-sS", action="store_true")
_OPTIONS.add_argument("-H", dest="headers", action="append", default=[])
_OPTIONS.add_argument("-d", "--data-binary", dest="body")
