"""Where names are remembered. The contract is in base.py; every store passes the same test-suite."""
