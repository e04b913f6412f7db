"""gunicorn -c deploy/gunicorn.conf.py wsgi:app"""

import shlex
import sys
from datetime import UTC, datetime
from urllib.parse import urlsplit

from gunicorn.arbiter import Arbiter

from orchestrator.config import load_config
from orchestrator.settings import DELIVERY_BUDGET_S, SettingsError, load_settings
from orchestrator.tokens import ensure_tokens, ingress_token_file, show_new
from orchestrator.wiring import make_data_dir

try:
    _settings = load_settings()
    _config = load_config(_settings)
    make_data_dir(_settings)
except SettingsError as error:
    sys.exit(f"mailonce: {error}")

_host = f"[{_settings.host}]" if ":" in _settings.host else _settings.host
bind = f"{_host}:{_settings.port}"
raw_env = [f"SERVICE_STARTED_AT={datetime.now(UTC).isoformat()}"]  # the same for all workers, also restarted ones
worker_class = "gthread"
workers = _settings.web_concurrency
threads = _settings.web_threads
graceful_timeout = DELIVERY_BUDGET_S + 7  # a delivery under way is allowed to finish
timeout = 60
keepalive = 5
control_socket_disable = True


def on_starting(server: Arbiter) -> None:
    """Tokens are made before the workers start, and shown this once."""
    show_new(ensure_tokens(_settings))


def when_ready(server: Arbiter) -> None:
    kept = shlex.quote(str(ingress_token_file(_settings)))
    token = "${INGRESS_TOKEN%%,*}" if _settings.ingress_token else f"$(cat {kept})"
    address = f"http://{_host}:{_settings.port}"
    places = ", ".join(
        f"{name} ({urlsplit(each.url).hostname or each.url})" for name, each in _config.destinations.items()
    )
    email = """{"subject": "Lot 456 - Documents", "sender": "Ada <ada@example.org>",
        "date": "2026-11-16T09:00:00.000Z", "body": "Hello"}"""
    print(
        f"""
Mailonce listens on {address}   health: {address}/health
store: {"redis" if _settings.redis_url else _settings.data_dir / "mailonce.db"}   destination: {places}

Try it (twice: the second time it is a duplicate):
  curl -sS {address}/api/ingress/gmail -H "Authorization: Bearer {token}" -H "Content-Type: application/json" \\
    -d '{email}'
""",
        flush=True,
    )
