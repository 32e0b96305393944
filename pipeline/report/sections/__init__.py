"""The sections of the report: each computes its data from the run, independently of the others."""
