"""How other programs and services name things (lists.toml). Names of emails depend on it: none may be removed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

LISTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("lists.toml").read_text(encoding="utf-8"))
