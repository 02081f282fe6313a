"""Stubs generated from the ``.proto`` file beside them. Nothing here is written by hand."""
