"""What is left to do of a corpus, from a sample: for `plan`, and for what `run` says first."""
