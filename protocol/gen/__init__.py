"""Stubs that `make proto` generates from the ``.proto`` files beside them. Nothing here is written by hand."""
