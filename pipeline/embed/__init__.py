"""Texts embedded without files: `encode`, and the transforms for other pipelines of Beam."""
