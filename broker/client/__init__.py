"""A client of the Journal API: bytes over RPC. Imports none of the broker's runtime."""
