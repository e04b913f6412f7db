"""Providers that prove themselves by the username and password in the URL they were given, and by nothing else."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from deduplication.email import Email
from routes.auth import require_basic
from routes.providers.base import BASIC, Parsed, Provider, ProviderRequest, json_object, sound
from routes.providers.options import BasicAuthOptions


class BasicAuthProvider(Provider[BasicAuthOptions]):
    options_type = BasicAuthOptions
    needs = "username and password"
    challenge = BASIC
    security = ("login",)

    def verify(self, request: ProviderRequest) -> None:
        require_basic(request.header("Authorization"), self.options.username, self.options.password)


class OneEmailAsJson(BasicAuthProvider):
    """Of these, the ones whose request is one email, as a JSON object."""

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        return [sound(self._email(json_object(request.header("Content-Type"), request.body)))]

    @abstractmethod
    def _email(self, document: dict[str, Any]) -> Email: ...
