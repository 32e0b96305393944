"""Vectors inside other people's Beam pipelines: `EmbedText`, `EmbedRows`, `ModelHandler`, `Embeddings`."""
