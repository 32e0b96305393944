"""`layerbeam run`: the pipeline for all runners, and the runner of this machine with its workers and signals."""
