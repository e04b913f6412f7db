"""Emails that were handled before Mailonce: read from files and remembered without being sent. docs/tools.md."""
