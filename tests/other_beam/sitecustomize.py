"""A Python that reports another version of Beam, as a worker's image may."""

from importlib import metadata

_version = metadata.version
metadata.version = lambda name: "2.76.0" if name == "apache-beam" else _version(name)
