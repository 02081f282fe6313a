"""The commands of ``gazctl journals``, one a module."""
