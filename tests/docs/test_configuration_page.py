"""docs/configuration.md and deploy/env.example are written from the models, which describe every field."""

import re

import pytest
from pydantic import BaseModel

from orchestrator.config.model import Config, RouteConfig, load_config
from orchestrator.config.settings import Settings, load_settings
from orchestrator.config.words import must_be
from routes.providers.base import Options
from routes.providers.registry import TYPES
from tests.configuration_page import ENV_EXAMPLE, PAGE, TABLES, TOML_EXAMPLE, configuration_page, env_example, sentence

OPTIONS = dict.fromkeys(provider.options_type for provider in TYPES.values())  # in one order for all who run a part
MODELS = [Settings, Config, *TABLES.values(), *OPTIONS]


def test_the_page_and_env_example_are_what_make_docs_reference_writes() -> None:
    assert PAGE.read_text() == configuration_page(), "stale: run make docs-reference"
    assert ENV_EXAMPLE.read_text() == env_example(), "stale: run make docs-reference"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_has_a_sentence_and_a_description_of_its_value(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        text = sentence(model, name)
        assert text[:1].isupper() and text.endswith("."), f"{model.__name__}.{name} has no sentence below it"
        assert must_be(field)


def test_every_key_of_the_file_has_its_table() -> None:
    page = PAGE.read_text()
    for key in Config.model_fields:
        assert re.search(rf"^### \[+{key}[\].]", page, re.MULTILINE), key
    for name, provider in TYPES.items():
        if provider.options_type.model_fields.keys() - Options.model_fields.keys():
            assert f"[providers.{name}]" in page


def test_the_shipped_example_of_the_file_changes_nothing_but_where_webhooks_go() -> None:
    shown = load_config(load_settings(mailonce_config=TOML_EXAMPLE))
    shipped = load_config(load_settings())
    assert shown.patterns == shipped.patterns
    assert (shown.media, shown.alerts) == (shipped.media, shipped.alerts)

    def gates(route: RouteConfig) -> RouteConfig:
        return route.model_copy(update={"destinations": None})

    assert [gates(each) for each in shown.routes] == [gates(each) for each in shipped.routes]
    (ours,), (theirs,) = shown.destinations.values(), shipped.destinations.values()
    assert ours.model_copy(update={"url": theirs.url}) == theirs
