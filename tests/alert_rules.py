"""make docs-reference: writes deploy/prometheus/alerts.yml from the table of conditions that raise an alarm."""

from orchestrator.operations.alarms import CONDITIONS
from tests.support.surroundings import ROOT

PATH = ROOT / "deploy/prometheus/alerts.yml"
HEAD = """\
# Generated from orchestrator/operations/alarms.py; the service evaluates the same conditions itself.
# Counters are summed over servers. Gauges are the same on all of them, so they are never summed.
groups:
  - name: mailonce
    rules:
"""
VALUES = {
    "destination": "{{ $labels.destination }}",
    "share": "{{ $value | humanizePercentage }}",
    "age": "{{ $value | humanizeDuration }}",
    "count": "{{ $value }}",
}


def alert_rules() -> str:
    lines = []
    for rule in CONDITIONS:
        expr = rule.expr.replace("$threshold", f"{rule.threshold:g}").splitlines()
        lines += [f"      - alert: Mailonce{rule.name.title().replace('_', '')}", "        expr: |"]
        lines += [f"          {line}" for line in expr]
        lines += [f"        for: {rule.after}"] if rule.after else []
        lines += [f"        labels: {{severity: {rule.severity}}}", "        annotations:"]
        lines += [f'          summary: "{rule.summary.format(**VALUES)}"']
        lines += [f'          description: "{rule.description}"']
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(alert_rules())
