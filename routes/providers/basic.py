"""Providers that prove themselves by the username and password in the URL they were given, and by nothing else."""

from __future__ import annotations

from routes.auth import require_basic
from routes.providers.base import BASIC, Provider, ProviderRequest
from routes.providers.options import BasicAuthOptions


class BasicAuthProvider(Provider[BasicAuthOptions]):
    options_type = BasicAuthOptions
    needs = "username and password"
    challenge = BASIC

    def verify(self, request: ProviderRequest) -> None:
        require_basic(request.header("Authorization"), self.options.username, self.options.password)
