"""make docs-reference: writes the reference in docs/api.md from /api/openapi.json, as tables of Markdown."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.build import build
from orchestrator.config.settings import load_settings
from routes.app import create_app
from tests.routes.providers.everyone import SETTINGS
from tests.support.surroundings import ROOT

PAGE = ROOT / "docs/api.md"
MARK = "<!-- What follows is written by `make docs-reference`, from the document. -->\n"
TITLES = {
    "ingress": "Ingress",
    "decisions": "Decisions",
    "deliveries": "Deliveries",
    "destinations": "Destinations",
    "operations": "Operations",
}

Schema = Mapping[str, Any]


def read_document() -> dict[str, Any]:
    """Of a service with all providers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mailonce.toml"
        file.write_text(f'[destinations.crm]\nurl = "log:"\n{SETTINGS}')
        service = build(load_settings(data_dir=Path(folder) / "data", mailonce_config=file))
        try:
            document: dict[str, Any] = create_app(service).test_client().get("/api/openapi.json").get_json()
        finally:
            service.close()
    return document


def rendered(document: Mapping[str, Any]) -> str:
    return "\n".join([*_operations(document), *_webhooks(document), *_schemas(document)]) + "\n"


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for tag, title in TITLES.items():
        yield f"\n## {title}"
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if operation["tags"] == [tag]:
                    yield f"\n### {method.upper()} {path}\n"
                    yield from _operation(operation)


def _operation(operation: Schema) -> Iterator[str]:
    yield f"{operation['summary']}."
    proofs = [name for each in operation.get("security", []) for name in each]
    if proofs:
        yield f"By {' or '.join(f'`{name}`' for name in proofs)}."
    if description := operation.get("description"):
        yield f"\n{description}"
    if operation["parameters"]:
        yield "\n| parameter | in | type | |\n|---|---|---|---|"
        for each in operation["parameters"]:
            yield f"| `{each['name']}` | {each['in']} | {_kind(each['schema'])} | {each['description']} |"
    body = operation.get("requestBody")
    if body:
        kinds = [f"`{media_type}`: {_kind(each['schema'])}" for media_type, each in body["content"].items()]
        yield f"\nBody{'' if body['required'] else ' (optional)'}: {'; '.join(kinds)}."
    yield "\n| answer | | |\n|---|---|---|"
    for status, answer in operation["responses"].items():
        (schema,) = {repr(each["schema"]): each["schema"] for each in answer["content"].values()}.values()
        yield f"| {status} | {_kind(schema)} | {answer['description']} |"


def _webhooks(document: Mapping[str, Any]) -> Iterator[str]:
    yield "\n## Webhooks sent\n"
    some = next(iter(document["webhooks"].values()))["post"]
    yield "| header | |\n|---|---|"
    yield from (f"| `{each['name']}` | {each['description']} |" for each in some["parameters"])
    yield "\n| type | fields | |\n|---|---|---|"
    for event, each in document["webhooks"].items():
        kind = _kind(each["post"]["requestBody"]["content"]["application/json"]["schema"])
        yield f"| `{event}` | {kind} | {each['post']['description']} |"
    yield "\n| answer of the destination | |\n|---|---|"
    yield from (f"| {status} | {each['description']} |" for status, each in some["responses"].items())


def _schemas(document: Mapping[str, Any]) -> Iterator[str]:
    yield "\n## Fields\n"
    yield "Optional fields are marked with a question mark."
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"\n### {name}\n"
        if description := schema.get("description"):
            yield " ".join(description.replace("``", "`").split()) + "\n"
        if "enum" in schema:
            yield f"{_kind(schema)}."
            continue
        if not schema.get("properties"):
            continue
        yield "| field | | |\n|---|---|---|"
        for field, kind in schema["properties"].items():
            mark = "" if field in schema.get("required", []) else "?"
            yield f"| `{field}`{mark} | {_kind(kind)} | {kind.get('description', '')} |"


def _kind(schema: Schema) -> str:
    """A type in words, with links to named ones."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        choices = [schema["const"]] if "const" in schema else schema["enum"]
        return ", ".join(f"`{str(each).lower() if isinstance(each, bool) else each}`" for each in choices)
    if isinstance(schema.get("type"), list):
        return " or ".join(schema["type"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    limits = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    kind = {"date-time": "time"}.get(schema.get("format", ""), str(schema.get("type", "anything")))
    return " ".join([kind, *limits])


def page(document: Mapping[str, Any]) -> str:
    written, mark, _ = PAGE.read_text().partition(MARK)
    assert mark, "the page has lost its mark"
    return written + mark + rendered(document)


if __name__ == "__main__":
    PAGE.write_text(page(read_document()))
