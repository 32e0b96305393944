"""A Python that takes itself for one with another version of Beam: what a worker's image may have."""

from importlib import metadata

_version = metadata.version
metadata.version = lambda name: "2.76.0" if name == "apache-beam" else _version(name)
