"""Runs whose workers are elsewhere: checked before (`preflight`), submitted, waited for; their image and template."""
