"""Settings from the environment, and mailonce.toml, validated and described by their models."""
