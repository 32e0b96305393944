"""What flows between the stages, and what is recorded of it: blocks, commits, names of files, counters."""
