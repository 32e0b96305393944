"""Configurations: the schema, their values checked, and the job that one describes."""
