"""A journal on every machine, Redis the referee. docs/architecture.md has the protocol; modules cite its rules."""
