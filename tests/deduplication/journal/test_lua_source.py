"""What Redis is given to run, made of the files of lua/."""

from __future__ import annotations

import re

import pytest

from deduplication.journal.lua_source import _REST, _assembled, _read, _with_numbers, source
from deduplication.journal.redis import _STEPS
from tests.support.redis_server import RedisServer

_DEFINED = re.compile(r"^local function (\w+)", re.MULTILINE)

LIBRARY = """
local ONE, TWO = 1, 2
local shared = {}
local function first(x) return x end

-- why
local function second(x)
  if x then return first(x) end
end

local function third() return shared end
local last = 5
"""


@pytest.mark.parametrize("step", _STEPS)
def test_every_function_is_defined_before_it_is_used_and_none_in_vain(step: str) -> None:
    text = source(step)
    defined = _DEFINED.findall(text)
    for name in {*_DEFINED.findall(_read("entry")), *defined}:
        places = [found.start() for found in re.finditer(rf"(?<!')\b{name}\b(?=\()", text)]
        where = text.find(f"local function {name}(")
        assert not places or 0 <= where < min(places), name
        if name in _DEFINED.findall(_read("entry")):
            uses = re.findall(rf"\b{name}\b", re.sub(r"--.*", "", text))
            assert len(uses) != 1, f"{name} is defined and not used"


@pytest.mark.real_redis
@pytest.mark.parametrize("step", _STEPS)
def test_redis_takes_every_script(step: str, redis_server: RedisServer) -> None:
    redis_server.client.script_load(source(step))


def test_what_a_script_needs_stays_with_what_that_needs_and_all_that_is_no_function() -> None:
    kept = _assembled(LIBRARY, "return second(ONE)")
    assert _DEFINED.findall(kept) == ["first", "second"]
    assert "local shared = {}" in kept and "local last = 5" in kept and "if x then return first(x) end\nend" in kept
    assert _DEFINED.findall(_assembled(LIBRARY, "return third()")) == ["third"]


def test_what_only_the_rest_of_a_script_needs_is_defined_there_and_once() -> None:
    text = _assembled(LIBRARY, f"if first(1) then return end\n{_REST}\nreturn second(first(third()))")
    assert _DEFINED.findall(text) == ["first", "second", "third"]
    assert text.index("function first") < text.index("if first(1)") < text.index("function second")
    assert text.count("local last = 5") == 1


def test_positions_become_numbers_but_not_in_words_of_commands() -> None:
    text = "local ID, SET =\n  1, 2\nlocal KEYS_OF = prefix .. 'x'\ncall('SET', entry[SET], ID, KEYS_OF, IDS)"
    assert _with_numbers(text) == "\nlocal KEYS_OF = prefix .. 'x'\ncall('SET', entry[2], 1, KEYS_OF, IDS)"


def test_a_script_is_a_part_of_all_that_there_is() -> None:
    assert "local function end_if_over" not in source("claim")
    assert source("claim").index("{'repeat'") < source("claim").index("local function save")
    assert "local function end_if_over" in source("settle")
    assert not re.search(r"\bDELIVERIES\b", re.sub(r"--.*", "", source("claim")))
