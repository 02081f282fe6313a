"""The broker runtime: it serves the Journal API for the journals assigned to it.

``broker.client`` is the other side of that API and imports none of the runtime.
"""
