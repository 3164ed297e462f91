"""`python -m t5suite` is `t5suite`."""

from t5suite.cli import run

run()
