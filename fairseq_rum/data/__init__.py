"""Datasets, corpora and the codecs that turn text into symbols."""
