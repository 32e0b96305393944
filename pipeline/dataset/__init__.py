"""The public reader of what a run wrote: `open_run`, and all that can be asked of a run."""
