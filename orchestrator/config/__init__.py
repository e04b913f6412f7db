"""What the service is told: the environment, mailonce.toml and the model both are checked against."""
