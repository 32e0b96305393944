"""Runs on remote workers: `preflight` checks, `submit` submits and waits; the workers' image and the Flex Template."""
