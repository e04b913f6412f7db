#!/usr/bin/env python3
"""Hands the email on stdin to Mailonce, as a mail server's pipe: its exit code says what becomes of the email.

0: Mailonce has it. 75: keep it, and try again later. 65 and 69: refused for good; the mail server bounces it.
A wrong token or address is our own mistake, not the sender's: the email is kept, too. Needs nothing but Python 3.8.
"""

import argparse
import http.client
import os
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

EX_DATAERR, EX_UNAVAILABLE, EX_TEMPFAIL = 65, 69, 75  # as sysexits.h has them, and every mail server reads them
CAN_BE_MENDED = {401, 403, 404, 408, 409, 425, 429}
IS_THE_EMAIL = {400, 413, 415, 422}


def post(url: str, headers: "dict[str, str]", email: bytes, timeout_s: float) -> int:
    """The status. Redirects are not followed: what a login page answers says nothing about the email."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))
        connection = http.client.HTTPSConnection(parts.netloc, timeout=timeout_s, context=context)
    elif parts.scheme == "http":
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    else:
        raise ValueError("the address must begin with http:// or https://")
    try:
        connection.request("POST", f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}", email, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def in_bytes(text: str) -> str:
    """http.client sends headers in Latin-1, and an address may have any letters: in UTF-8."""
    return text.encode(errors="surrogateescape").decode("latin-1")


def exit_code(status: int) -> int:
    if 200 <= status < 300:
        return 0
    if status in IS_THE_EMAIL:
        return EX_DATAERR
    return EX_UNAVAILABLE if 400 <= status < 500 and status not in CAN_BE_MENDED else EX_TEMPFAIL


def main() -> int:
    parser = argparse.ArgumentParser(description="Hand the email on stdin to Mailonce.")
    parser.add_argument("url", help="such as https://mailonce.example/api/ingress/mime")
    parser.add_argument("token_file", help="a file that holds the ingress token, readable by the mail server's user")
    parser.add_argument("--from", dest="sender", help="the sender of the envelope; empty for a notification")
    parser.add_argument("--to", action="append", default=[], help="a recipient of the envelope; may be repeated")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    given = parser.parse_args()
    try:
        token = Path(given.token_file).read_text(encoding="ascii").strip()
        headers = {"Content-Type": "message/rfc822", "Authorization": f"Bearer {token}", "User-Agent": "mailonce-pipe"}
        if given.sender is not None:
            headers["X-Envelope-From"] = in_bytes(f"<{given.sender}>")
        if given.to:
            headers["X-Envelope-To"] = in_bytes(", ".join(f"<{address}>" for address in given.to))
        status = post(given.url, headers, sys.stdin.buffer.read(), given.timeout)
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"mailonce: {error}; to be tried again", file=sys.stderr)
        return EX_TEMPFAIL
    if code := exit_code(status):
        print(f"mailonce: answered {status}{'; to be tried again' if code == EX_TEMPFAIL else ''}", file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SystemExit as end:  # argparse says 2, which would bounce the email for our mistake
        sys.exit(EX_TEMPFAIL if end.code == 2 else end.code)
