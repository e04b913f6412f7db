"""Providers: where each sends its emails, and how to try it."""

from __future__ import annotations

from flask import Blueprint, render_template
from markupsafe import escape

from orchestrator.build import Service
from routes.providers.registry import TYPES, missing_setting, open_names


def add_views(page: Blueprint, service: Service) -> None:
    opened = open_names(service.config)
    shut = {
        name: missing_setting(name).removeprefix(f"{name} is not set up: ")
        for name in sorted(TYPES.keys() - set(opened))
    }

    @page.context_processor
    def address() -> dict[str, str]:
        """Pages show no Host of a request: the client can send any."""
        return {"address": service.settings.public_url or service.settings.address}

    @page.get("/providers")
    def providers() -> str:
        names = [*opened, "message"]
        seen = service.providers.read()
        return render_template("dashboard/providers.html", names=names, seen=seen, shut=shut)

    @page.get("/ingress-token")
    def ingress_token() -> str:
        """Only when somebody asks to see it; whoever only looks does not get it: to send emails in is to act."""
        return escape(service.tokens.ingress[0])
